"""A program for an environment with torch: prints how far apart logits are that must be the same, over their size."""

from __future__ import annotations

import json
import sys

import torch

from lab.gpu.engine.shapes import RealShape
from lab.gpu.engine.transformer import RealTransformer
from lab.reference.engine.kv_cache import KvCache
from lab.reference.engine.transformer import Chunk, Pass

SHAPE = RealShape("tiny", 64, 2, 4, 2, 32, 96, 100, 10_000.0, has_qk_norm=True)
CPU = torch.device("cpu")
MODEL = RealTransformer(SHAPE, seed=0, device=CPU, dtype=torch.float32, longest=128)
IDS = torch.randint(0, 100, (41,), generator=torch.Generator().manual_seed(2))


def scattered_cache() -> KvCache:
    sizes = {"layers": 2, "kv_heads": 2, "head_dim": 32, "capacity_tokens": 512, "max_requests": 3}
    cache = KvCache(**sizes, max_sequence_tokens=128, device=CPU, dtype=torch.float32)
    cache.table[:] = torch.randperm(512, generator=torch.Generator().manual_seed(1))[:384].view(3, 128)
    return cache


def read(cache: KvCache, row: int, start: int, end: int) -> torch.Tensor:
    """Logits of the prompt's tokens `start` to `end`, read in one pass."""
    count = end - start
    chunks = (Chunk(0, count, row, start),)
    rows = torch.full((count,), row)
    return MODEL.forward(Pass(IDS[start:end], torch.arange(start, end), rows, 0, chunks, torch.arange(count)), cache)


def decode_beside(cache: KvCache, reading: int) -> torch.Tensor:
    """Logits of token 40 of row 1, and of the last of `reading` tokens that row 2 reads in the same pass."""
    ids = torch.cat([IDS[40:41], IDS[:reading]])
    positions = torch.cat([torch.tensor([40]), torch.arange(reading)])
    rows = torch.tensor([1] + [2] * reading)
    chunks = (Chunk(1, reading, 2, 0),) if reading else ()
    wanted = torch.tensor([0, reading] if reading else [0])
    return MODEL.forward(Pass(ids, positions, rows, 1, chunks, wanted), cache)


whole = read(scattered_cache(), 1, 0, 41)
cache = scattered_cache()
pieces = torch.cat([read(cache, 1, 0, 17), read(cache, 1, 17, 40)])
alone, mixed = decode_beside(cache, 0), decode_beside(cache, 20)
pairs = {
    "pieces": (pieces, whole[:40]),
    "decoded": (alone[0], whole[40]),
    "beside another": (mixed[0], whole[40]),
    "the other": (mixed[1], whole[19]),
}
found = {name: float((a - b).norm() / b.norm()) for name, (a, b) in pairs.items()}
sys.stdout.write(json.dumps(found))
