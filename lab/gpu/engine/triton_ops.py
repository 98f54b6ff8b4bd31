"""The operations of `torch_ops` as Triton kernels: paged attention that reads each token of context once."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK_TOKENS = 64
LEAST_ROWS = 16  # rows of a matrix product on tensor cores: the queries that share a key head are padded to this
PROGRAMS_WANTED = 512  # about four per multiprocessor of a large GPU
MOST_SPLITS = 32


@triton.jit
def _rotate_and_store(  # type: ignore[no-untyped-def]
    packed, query, keys, values, positions, slots, cosine, sine, heads, kv_heads, half: tl.constexpr
):
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = tl.arange(0, half)
    every = i >= 0
    is_query, is_value = head < heads, head >= heads + kv_heads
    is_key = (head >= heads) & (head < heads + kv_heads)
    source = packed + (token * (heads + 2 * kv_heads) + head) * 2 * half
    left, right = tl.load(source + i), tl.load(source + half + i)
    position, slot = tl.load(positions + token), tl.load(slots + token)
    turned = every & (is_query | is_key)
    cos = tl.load(cosine + position * half + i, mask=turned, other=1.0)
    sin = tl.load(sine + position * half + i, mask=turned, other=0.0)
    low, high = left.to(tl.float32), right.to(tl.float32)
    left, right = (low * cos - high * sin).to(left.dtype), (high * cos + low * sin).to(left.dtype)
    to_query = query + (token * heads + head) * 2 * half
    tl.store(to_query + i, left, mask=every & is_query)
    tl.store(to_query + half + i, right, mask=every & is_query)
    to_key = keys + (slot * kv_heads + head - heads) * 2 * half
    tl.store(to_key + i, left, mask=every & is_key)
    tl.store(to_key + half + i, right, mask=every & is_key)
    to_value = values + (slot * kv_heads + head - heads - kv_heads) * 2 * half
    tl.store(to_value + i, left, mask=every & is_value)
    tl.store(to_value + half + i, right, mask=every & is_value)


def rotate_and_store(
    packed: Tensor, angles: tuple[Tensor, Tensor], positions: Tensor, slots: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    """As `torch_ops.rotate_and_store`."""
    tokens, all_heads, head_dim = packed.shape
    kv_heads = keys.shape[1]
    heads = all_heads - 2 * kv_heads
    query = packed.new_empty((tokens, heads, head_dim))
    cosine, sine = angles
    _rotate_and_store[(tokens, all_heads)](
        packed, query, keys, values, positions, slots, cosine, sine, heads, kv_heads, half=head_dim // 2, num_warps=1
    )
    return query


@triton.jit
def _gated(gate_up, out, inner, block: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * block + tl.arange(0, block)
    here = i < inner
    gate = tl.load(gate_up + row * 2 * inner + i, mask=here, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * inner + inner + i, mask=here, other=0.0)
    tl.store(out + row * inner + i, (gate * tl.sigmoid(gate)).to(up.dtype) * up, mask=here)


def gated(gate_up: Tensor) -> Tensor:
    """As `torch_ops.gated`."""
    rows, inner = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty((rows, inner))
    block = 1024
    _gated[(rows, triton.cdiv(inner, block))](gate_up, out, inner, block=block)
    return out


@triton.jit
def _attend_part(  # type: ignore[no-untyped-def]
    query, keys, values, table, rows, positions, sums, maxima, weights,
    scale, width, heads, kv_heads, group, splits,
    head_dim: tl.constexpr, block: tl.constexpr, queries: tl.constexpr,
):  # fmt: skip
    """For one request, one key head and one part of the context: the part's softmax, not yet divided by its weight."""
    request, kv_head, part = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    tokens = (tl.load(positions + request) + 1).to(tl.int32)
    per_part = tl.cdiv(tl.cdiv(tokens, block), splits) * block
    first = part * per_part
    last = tl.minimum(first + per_part, tokens)
    q, d, t = tl.arange(0, queries), tl.arange(0, head_dim), tl.arange(0, block)
    is_mine = (q < group)[:, None]
    asked = tl.load(
        query + (request * heads + kv_head * group + q[:, None]) * head_dim + d[None, :], mask=is_mine, other=0.0
    )
    slots = table + tl.load(rows + request) * width
    maximum = tl.full((queries,), -1e30, tl.float32)
    weight = tl.zeros((queries,), tl.float32)
    total = tl.zeros((queries, head_dim), tl.float32)
    for start in range(first, last, block):
        there = start + t < last
        slot = tl.load(slots + start + t, mask=there, other=0)
        place = (slot * kv_heads + kv_head) * head_dim
        key = tl.load(keys + place[None, :] + d[:, None], mask=there[None, :], other=0.0)
        scores = tl.dot(asked, key) * scale
        scores = tl.where(there[None, :], scores, -1e30)
        higher = tl.maximum(maximum, tl.max(scores, 1))
        grown = tl.exp2(scores - higher[:, None])
        shrunk = tl.exp2(maximum - higher)
        value = tl.load(values + place[:, None] + d[None, :], mask=there[:, None], other=0.0)
        total = total * shrunk[:, None] + tl.dot(grown.to(value.dtype), value)
        weight = weight * shrunk + tl.sum(grown, 1)
        maximum = higher
    where = (request * heads + kv_head * group + q) * splits + part
    tl.store(maxima + where, maximum, mask=q < group)
    tl.store(weights + where, weight, mask=q < group)
    tl.store(sums + where[:, None] * head_dim + d[None, :], total, mask=is_mine)


@triton.jit
def _join_parts(  # type: ignore[no-untyped-def]
    sums, maxima, weights, out, splits, head_dim: tl.constexpr, most_splits: tl.constexpr
):
    head = tl.program_id(0).to(tl.int64)
    p, d = tl.arange(0, most_splits), tl.arange(0, head_dim)
    there = p < splits
    maximum = tl.load(maxima + head * splits + p, mask=there, other=-1e30)
    share = tl.exp2(maximum - tl.max(maximum, 0))
    weight = tl.sum(tl.load(weights + head * splits + p, mask=there, other=0.0) * share, 0)
    parts = tl.load(sums + (head * splits + p[:, None]) * head_dim + d[None, :], mask=there[:, None], other=0.0)
    joined = tl.sum(parts * share[:, None], 0) / weight
    tl.store(out + head * head_dim + d, joined.to(out.dtype.element_ty))


def splits_for(batch: int, kv_heads: int) -> int:
    """How many parts each context is cut into, so that even a small batch occupies the whole GPU; a power of two.

    >>> splits_for(1, 8), splits_for(16, 8), splits_for(256, 8)
    (32, 4, 1)
    """
    return min(MOST_SPLITS, int(triton.next_power_of_2(max(1, PROGRAMS_WANTED // (batch * kv_heads)))))


def attend_decoding(
    query: Tensor, keys: Tensor, values: Tensor, table: Tensor, rows: Tensor, positions: Tensor
) -> Tensor:
    """As `torch_ops.attend_decoding`, but each context is read once, and only up to its own length."""
    batch, heads, head_dim = query.shape
    kv_heads = keys.shape[1]
    splits = splits_for(batch, kv_heads)
    sums = query.new_empty((batch, heads, splits, head_dim), dtype=torch.float32)
    maxima, weights = (query.new_empty((batch, heads, splits), dtype=torch.float32) for _ in range(2))
    out = torch.empty_like(query)
    group = heads // kv_heads
    sizes: dict[str, Any] = {"head_dim": head_dim, "block": BLOCK_TOKENS}
    sizes["queries"] = max(LEAST_ROWS, triton.next_power_of_2(group))
    scale = head_dim**-0.5 * 1.4426950408889634  # powers of two instead of e
    _attend_part[(batch, kv_heads, splits)](
        query, keys, values, table, rows, positions, sums, maxima, weights,
        scale, table.shape[1], heads, kv_heads, group, splits,
        **sizes, num_warps=4, num_stages=3,
    )  # fmt: skip
    _join_parts[(batch * heads,)](sums, maxima, weights, out, splits, head_dim=head_dim, most_splits=MOST_SPLITS)
    return out.view(batch, -1)
