"""The forward pass of a model of real shape with random weights, over the reference engine's paged KV cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from lab.gpu.engine import torch_ops
from lab.gpu.engine.pass_times import PassTimes
from lab.gpu.engine.shapes import RealShape
from lab.reference.engine.kv_cache import KvCache
from lab.reference.engine.transformer import Chunk, Pass

EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class Layer:
    """The weights of one block: two norms, [query|key|value], attention output, [gate|up], down.

    The norms of heads are empty if the shape has none.
    """

    norm1: Tensor
    qkv: Tensor
    out: Tensor
    norm2: Tensor
    gate_up: Tensor
    down: Tensor
    query_norm: Tensor
    key_norm: Tensor


class RealTransformer:
    """Random weights of `shape`, drawn on the device from `seed`, and the forward pass.

    `ops` are the operations that differ between devices: `torch_ops`, or `triton_ops` on a GPU. `times`, if given, is
    called at every pass. After `capture`, passes that only decode are replayed as CUDA graphs.
    """

    def __init__(
        self,
        shape: RealShape,
        *,
        seed: int,
        device: torch.device,
        dtype: torch.dtype,
        longest: int,
        ops: ModuleType = torch_ops,
        times: PassTimes | None = None,
    ) -> None:
        self.shape, self.device, self.dtype, self.ops, self.times = shape, device, dtype, ops, times
        generator = torch.Generator(device).manual_seed(seed)

        def weight(rows: int, columns: int) -> Tensor:
            values = torch.empty(rows, columns, device=device, dtype=dtype)
            return values.normal_(0.0, columns**-0.5, generator=generator)

        self.embedding = weight(shape.vocab_size, shape.hidden)
        self.head = weight(shape.vocab_size, shape.hidden)
        self.norm = torch.ones(shape.hidden, device=device, dtype=dtype)
        self.layers = [_layer(shape, weight, self.norm) for _ in range(shape.layers)]
        self.angles = _angles(shape, longest, device)
        self._graphs: dict[int, DecodeGraph] = {}

    def forward(self, step: Pass, cache: KvCache) -> Tensor:
        """Logits [R, vocab] of the requested rows, float32. Writes the keys and values of all N tokens into `cache`."""
        with torch.inference_mode():
            if self.times is not None:
                self.times.begin(step)
            graph = None if step.chunks else self._graph_for(step.decoding)
            if graph is None:
                logits = self._logits(self._hidden(step, cache), step.output_rows)
            else:
                logits = graph.replay(step)[step.output_rows]
            if self.times is not None:
                self.times.end()
            return logits.float()

    def capture(self, cache: KvCache, sizes: Sequence[int]) -> None:
        """Capture CUDA graphs of decoding steps of these batch sizes; a batch between two of them is padded."""
        pool = None
        for size in sorted(sizes, reverse=True):
            self._graphs[size] = DecodeGraph(self, cache, size, pool)
            pool = self._graphs[size].pool

    def _graph_for(self, decoding: int) -> DecodeGraph | None:
        size = min((size for size in self._graphs if size >= decoding), default=None)
        return None if size is None else self._graphs[size]

    def decode(self, step: Pass, cache: KvCache) -> Tensor:
        """Logits [B, vocab] of a pass without chunks, in the model's own format; safe to be captured."""
        return F.linear(self._rms(self._hidden(step, cache), self.norm), self.head)

    def _hidden(self, step: Pass, cache: KvCache) -> Tensor:
        x = self.embedding[step.token_ids]
        slots = cache.table[step.table_rows, step.positions]
        reading = [cache.table[chunk.table_row, : chunk.start + chunk.rows] for chunk in step.chunks]
        for number, layer in enumerate(self.layers):
            packed = F.linear(self._rms(x, layer.norm1), layer.qkv).view(len(x), -1, self.shape.head_dim)
            keys, values = cache.keys[number], cache.values[number]
            packed = self._head_norms(layer, packed)
            query = self.ops.rotate_and_store(packed, self.angles, step.positions, slots, keys, values)
            attended = self._attend(step, query, keys, values, cache.table, reading)
            x = torch.addmm(x, attended, layer.out.t())
            gate_up = F.linear(self._rms(x, layer.norm2), layer.gate_up)
            x = torch.addmm(x, self.ops.gated(gate_up), layer.down.t())
        return x

    def _attend(
        self, step: Pass, query: Tensor, keys: Tensor, values: Tensor, table: Tensor, reading: Sequence[Tensor]
    ) -> Tensor:
        """[N, heads x d]; `reading` are the cache slots of each chunk's request up to the chunk's end."""
        parts = []
        if step.decoding:
            rows, positions = step.table_rows[: step.decoding], step.positions[: step.decoding]
            parts.append(self.ops.attend_decoding(query[: step.decoding], keys, values, table, rows, positions))
        for chunk, slots in zip(step.chunks, reading, strict=True):
            parts.append(torch_ops.attend_chunk(_rows(query, chunk), keys[slots], values[slots]))
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def _logits(self, x: Tensor, rows: Tensor) -> Tensor:
        return F.linear(self._rms(x[rows], self.norm), self.head)

    def _head_norms(self, layer: Layer, packed: Tensor) -> Tensor:
        if not self.shape.has_qk_norm:
            return packed
        heads, kv_heads, size = self.shape.heads, self.shape.kv_heads, (self.shape.head_dim,)
        query, key, value = packed.split([heads, kv_heads, kv_heads], dim=1)
        query = F.rms_norm(query, size, layer.query_norm, EPSILON)
        return torch.cat((query, F.rms_norm(key, size, layer.key_norm, EPSILON), value), dim=1)

    def _rms(self, x: Tensor, scale: Tensor) -> Tensor:
        return F.rms_norm(x, (self.shape.hidden,), scale, EPSILON)


class DecodeGraph:
    """A decoding step of `size` requests, recorded once and replayed: one launch instead of about four hundred."""

    def __init__(self, model: RealTransformer, cache: KvCache, size: int, pool: object) -> None:
        self.size = size
        with torch.inference_mode():
            zeros = [torch.zeros(size, dtype=torch.long, device=model.device) for _ in range(3)]
            self._ids, self._positions, self._rows = ids, positions, rows = zeros
            step = Pass(ids, positions, rows, decoding=size, chunks=(), output_rows=self._rows)
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):  # compile kernels and warm up libraries before the recording
                for _ in range(2):
                    model.decode(step, cache)
            torch.cuda.current_stream().wait_stream(side)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, pool=pool):
                self._logits = model.decode(step, cache)
        self.pool = self._graph.pool()

    def replay(self, step: Pass) -> Tensor:
        """Logits [size, vocab], the step's own rows first; they are valid until the next replay.

        Padding rows repeat the last request: they write the same keys and values to the same place again.
        """
        pairs = ((self._ids, step.token_ids), (self._positions, step.positions), (self._rows, step.table_rows))
        for target, given in pairs:
            target[: step.decoding] = given
            target[step.decoding :] = given[-1]
        self._graph.replay()
        return self._logits


def _layer(shape: RealShape, weight: Callable[[int, int], Tensor], ones: Tensor) -> Layer:
    attention = shape.heads * shape.head_dim
    of_head = ones.new_ones(shape.head_dim if shape.has_qk_norm else 0)
    return Layer(
        norm1=ones,
        qkv=weight(attention + 2 * shape.kv_heads * shape.head_dim, shape.hidden),
        out=weight(shape.hidden, attention),
        norm2=ones,
        gate_up=weight(2 * shape.inner, shape.hidden),
        down=weight(shape.hidden, shape.inner),
        query_norm=of_head,
        key_norm=of_head,
    )


def _angles(shape: RealShape, longest: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The cosine and sine of each position's angles, [longest, head_dim / 2], float32."""
    half = torch.arange(0, shape.head_dim, 2, device=device, dtype=torch.float32)
    turns = torch.arange(longest, device=device, dtype=torch.float32)[:, None] * shape.rope_base ** (
        -half / shape.head_dim
    )
    return turns.cos().contiguous(), turns.sin().contiguous()


def _rows(query: Tensor, chunk: Chunk) -> Tensor:
    return query[chunk.first : chunk.first + chunk.rows]
