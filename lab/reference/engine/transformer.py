"""A Llama-like transformer with random weights: RMSNorm, rotary positions, grouped-query attention, SwiGLU."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from lab.reference.engine.adapters import Adapters, Group, add
from lab.reference.engine.kv_cache import KvCache
from lab.reference.engine.shape import Shape


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of one prompt: `rows` tokens from row `first` of the pass on, after `start` that are cached."""

    first: int
    rows: int
    table_row: int
    start: int


@dataclass(frozen=True, slots=True)
class Pass:
    """The packed tokens of one forward pass: one for each decoding request, then the chunks of prompts.

    Attributes:
        token_ids, positions, table_rows: [N], which token, where in its sequence, whose row of the cache table.
        decoding: the first `decoding` tokens belong to decoding requests.
        chunks: the rest, in order.
        output_rows: [R], the rows whose logits are wanted.
        adapted: the rows of requests with an adapter, one group for each adapter; all others are the model's own.
    """

    token_ids: Tensor
    positions: Tensor
    table_rows: Tensor
    decoding: int
    chunks: tuple[Chunk, ...]
    output_rows: Tensor
    adapted: tuple[Group, ...] = ()


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one block: two norms, [query|key|value], attention output, [gate|up], and down projection."""

    norm1: Tensor
    qkv: Tensor
    out: Tensor
    norm2: Tensor
    gate_up: Tensor
    down: Tensor


class Transformer:
    """Random weights of a given `shape`, drawn from `seed`, and the forward pass over a paged KV cache."""

    def __init__(self, shape: Shape, *, seed: int, device: torch.device, dtype: torch.dtype) -> None:
        self.shape, self.device, self.dtype = shape, device, dtype
        self.adapters = Adapters(shape, device, dtype)
        generator = torch.Generator().manual_seed(seed)

        def weight(rows: int, columns: int) -> Tensor:
            values = torch.randn(rows, columns, generator=generator) / columns**0.5
            return values.to(device, dtype)

        def ones() -> Tensor:
            return torch.ones(shape.hidden, device=device, dtype=dtype)

        qkv = shape.attention + 2 * shape.key_value
        self.embedding = weight(shape.vocab_size, shape.hidden)
        self.head = weight(shape.vocab_size, shape.hidden)
        self.norm = ones()
        self.layers = [
            Layer(
                norm1=ones(),
                qkv=weight(qkv, shape.hidden),
                out=weight(shape.hidden, shape.attention),
                norm2=ones(),
                gate_up=weight(2 * shape.inner, shape.hidden),
                down=weight(shape.hidden, shape.inner),
            )
            for _ in range(shape.layers)
        ]
        half = torch.arange(0, shape.head_dim, 2, device=device, dtype=torch.float32)
        self._frequencies = 10_000.0 ** (-half / shape.head_dim)

    def forward(self, step: Pass, cache: KvCache) -> Tensor:
        """Logits [R, vocab] of the wanted rows, float32. Writes the keys and values of all N tokens into `cache`."""
        with torch.inference_mode():
            x = self.embedding[step.token_ids]
            rotation = self._rotation(step.positions)
            slots = cache.table[step.table_rows, step.positions]
            window = _decode_window(step, cache)
            for number, layer in enumerate(self.layers):
                query, key, value = self._project(step, number, x, rotation)
                cache.keys[number][slots], cache.values[number][slots] = key, value
                attended = _attend(step, query, cache.keys[number], cache.values[number], cache.table, window)
                projected = F.linear(attended, layer.out)
                if step.adapted:
                    add(step.adapted, number, "out", attended, projected)
                x = x + projected
                x = x + self._feed_forward(step, number, self._rms(x, layer.norm2))
            return F.linear(self._rms(x[step.output_rows], self.norm), self.head).float()

    def _rms(self, x: Tensor, scale: Tensor) -> Tensor:
        return F.rms_norm(x, (self.shape.hidden,), scale, 1e-6)

    def _rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine of every token's angles, [N, 1, head_dim / 2]."""
        angles = positions[:, None].float() * self._frequencies
        return angles.cos().to(self.dtype)[:, None], angles.sin().to(self.dtype)[:, None]

    def _project(
        self, step: Pass, number: int, x: Tensor, rotation: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Query [N, heads, d], key and value [N, kv_heads, d]; query and key are rotated by position."""
        shape, layer = self.shape, self.layers[number]
        normed = self._rms(x, layer.norm1)
        packed = F.linear(normed, layer.qkv)
        if step.adapted:
            add(step.adapted, number, "qkv", normed, packed)
        heads = packed.view(len(x), -1, shape.head_dim)
        query, key, value = heads.split([shape.heads, shape.kv_heads, shape.kv_heads], dim=1)
        return _rotate(query, *rotation), _rotate(key, *rotation), value

    def _feed_forward(self, step: Pass, number: int, x: Tensor) -> Tensor:
        layer = self.layers[number]
        packed = F.linear(x, layer.gate_up)
        if step.adapted:
            add(step.adapted, number, "gate_up", x, packed)
        gate, up = packed.chunk(2, dim=-1)
        activated = F.silu(gate) * up
        projected = F.linear(activated, layer.down)
        if step.adapted:
            add(step.adapted, number, "down", activated, projected)
        return projected


def _rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    left, right = x.chunk(2, dim=-1)
    return torch.cat((left * cosine - right * sine, right * cosine + left * sine), dim=-1)


def _decode_window(step: Pass, cache: KvCache) -> tuple[Tensor, Tensor] | None:
    """Cache slots [B, L] that the decoding requests attend to, and a mask of their own, [B, 1, 1, L]."""
    if not step.decoding:
        return None
    positions = step.positions[: step.decoding]
    longest = int(positions.max()) + 1
    slots = cache.table[step.table_rows[: step.decoding], :longest]
    mine = torch.arange(longest, device=slots.device) <= positions[:, None]
    return slots, mine[:, None, None]


def _attend(
    step: Pass, query: Tensor, keys: Tensor, values: Tensor, table: Tensor, window: tuple[Tensor, Tensor] | None
) -> Tensor:
    """Attention of every token to its own request's tokens up to itself, [N, heads x d]."""
    parts = []
    if window is not None:
        parts.append(_attend_decoding(query[: step.decoding], keys, values, *window))
    for chunk in step.chunks:
        rows = query[chunk.first : chunk.first + chunk.rows]
        parts.append(_attend_chunk(rows, keys, values, table[chunk.table_row, : chunk.start + chunk.rows], chunk.start))
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def _attend_decoding(query: Tensor, keys: Tensor, values: Tensor, slots: Tensor, mine: Tensor) -> Tensor:
    """One query per request. The heads that share a key head are laid out as its queries, so keys are not repeated."""
    batch, heads, head_dim = query.shape
    kv_heads = keys.shape[1]
    key, value = keys[slots].transpose(1, 2), values[slots].transpose(1, 2)
    grouped = query.view(batch, kv_heads, heads // kv_heads, head_dim)
    return F.scaled_dot_product_attention(grouped, key, value, attn_mask=mine).reshape(batch, -1)


def _attend_chunk(query: Tensor, keys: Tensor, values: Tensor, slots: Tensor, start: int) -> Tensor:
    """Several queries of one prompt: each attends to what is cached before the chunk, and to the chunk up to itself."""
    rows = query.shape[0]
    key, value = keys[slots].transpose(0, 1), values[slots].transpose(0, 1)
    seen = None
    if start:
        seen = torch.ones(rows, start + rows, dtype=torch.bool, device=query.device).tril(start)
    attended = F.scaled_dot_product_attention(
        query.transpose(0, 1)[None], key[None], value[None], attn_mask=seen, is_causal=not start, enable_gqa=True
    )
    return attended[0].transpose(0, 1).reshape(rows, -1)
