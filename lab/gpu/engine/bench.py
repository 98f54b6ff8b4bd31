"""Step times of the engine alone, without Triton or requests: decoding by batch and context, prompts by length.

As a program, `python -m lab.gpu.engine.bench SHAPE DEVICE OPS`, it prints one line of JSON: a list of timed passes.
"""

from __future__ import annotations

import json
import sys

import torch

from lab.gpu.ceilings import timed
from lab.gpu.engine.build import operations
from lab.gpu.engine.shapes import SHAPES, RealShape
from lab.gpu.engine.transformer import RealTransformer
from lab.reference.engine.kv_cache import KvCache
from lab.reference.engine.transformer import Chunk, Pass

DECODING = ((1, 512), (8, 512), (32, 512), (128, 512), (256, 512), (1, 4096), (32, 4096), (64, 4096))
PROMPTS = (128, 512, 2048)
SMALL_DECODING, SMALL_PROMPTS = ((1, 64), (8, 64)), (64,)


def bench(shape: RealShape, device: torch.device, ops: str) -> list[dict[str, float]]:
    """Seconds of each pass, the median of ten, and the least that it must read and compute."""
    is_cuda = device.type == "cuda"
    dtype = torch.bfloat16 if is_cuda else torch.float32
    decoding, prompts = (DECODING, PROMPTS) if is_cuda else (SMALL_DECODING, SMALL_PROMPTS)
    longest = max(max(context for _, context in decoding), *prompts) + 16
    model = RealTransformer(shape, seed=0, device=device, dtype=dtype, longest=longest, ops=operations(ops))
    cache = KvCache(
        layers=shape.layers,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        capacity_tokens=max(batch * (context + 32) for batch, context in decoding) + longest + 16,
        max_requests=max(batch for batch, _ in decoding) + 1,
        max_sequence_tokens=longest,
        device=device,
        dtype=dtype,
    )
    if ops == "triton":
        model.capture(cache, sorted({batch for batch, _ in decoding}))
    found = []
    for batch, context in decoding:
        step = decoding_step(cache, batch, context, device)
        seconds = timed(lambda step=step: model.forward(step, cache), is_cuda)  # type: ignore[misc]
        found.append(_told(shape, dtype, batch, 0, batch * context, seconds))
    for tokens in prompts:
        step = prompt_step(tokens, device)
        seconds = timed(lambda step=step: model.forward(step, cache), is_cuda)  # type: ignore[misc]
        found.append(_told(shape, dtype, 0, tokens, tokens, seconds))
    return found


def decoding_step(cache: KvCache, batch: int, context: int, device: torch.device) -> Pass:
    """A pass that decodes one token of each of `batch` requests with `context` tokens, each in slots of its own."""
    rows = torch.arange(batch, device=device)
    cache.table[:batch, :context] = torch.arange(batch * context, device=device).view(batch, context)
    last = torch.full((batch,), context - 1, device=device)
    return Pass(torch.zeros_like(last), last, rows, batch, (), rows)


def prompt_step(tokens: int, device: torch.device) -> Pass:
    """A pass that reads a whole prompt, in the first row of the cache's table."""
    ids = torch.zeros(tokens, dtype=torch.long, device=device)
    chunk = Chunk(first=0, rows=tokens, table_row=0, start=0)
    return Pass(ids, torch.arange(tokens, device=device), ids, 0, (chunk,), ids[:1] + tokens - 1)


def _told(
    shape: RealShape, dtype: torch.dtype, decoding: int, reading: int, context: int, seconds: float
) -> dict[str, float]:
    size = torch.tensor([], dtype=dtype).element_size()
    least = size * (shape.step_weights + context * shape.kv_values_per_token)
    products = 2 * (decoding + reading) * (shape.step_weights - shape.vocab_size * shape.hidden)
    return {
        "decoding": decoding,
        "reading": reading,
        "context_tokens": context,
        "pass_s": seconds,
        "least_bytes": least,
        "least_flops": products,
    }


if __name__ == "__main__":
    name, where, ops_name = sys.argv[1:]
    sys.stdout.write(json.dumps({"passes": bench(SHAPES[name], torch.device(where), ops_name)}))
