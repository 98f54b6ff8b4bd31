"""The model's own operations in plain torch, which run without a GPU; the Triton kernels are checked against them."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor


def rotate_and_store(
    packed: Tensor, angles: tuple[Tensor, Tensor], positions: Tensor, slots: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    """The queries [N, heads, d] in `packed` [N, heads + 2 kv_heads, d], rotated by their positions.

    Keys are rotated likewise, and written with the values into slots [N] of the cache, each [slots, kv_heads, d].
    `angles` are cosine and sine by position, [longest, d / 2], float32.
    """
    kv_heads = keys.shape[1]
    cosine, sine = (table[positions][:, None] for table in angles)
    query, key, value = packed.split([packed.shape[1] - 2 * kv_heads, kv_heads, kv_heads], dim=1)
    keys[slots], values[slots] = _rotated(key, cosine, sine), value
    return _rotated(query, cosine, sine)


def _rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    left, right = x.float().chunk(2, dim=-1)
    return torch.cat((left * cosine - right * sine, right * cosine + left * sine), dim=-1).to(x.dtype)


def gated(gate_up: Tensor) -> Tensor:
    """SwiGLU: silu of the left half times the right half, [N, 2 inner] -> [N, inner]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def attend_decoding(
    query: Tensor, keys: Tensor, values: Tensor, table: Tensor, rows: Tensor, positions: Tensor
) -> Tensor:
    """One query for each request, [B, heads, d], over the tokens in the slots `table[rows, : positions + 1]`.

    Returns [B, heads x d]. The cache is read up to the longest context for all requests, which costs memory and time.
    """
    batch, heads, head_dim = query.shape
    kv_heads, longest = keys.shape[1], int(positions.max()) + 1
    slots = table[rows, :longest]
    mine = torch.arange(longest, device=slots.device) <= positions[:, None]
    key, value = keys[slots].transpose(1, 2), values[slots].transpose(1, 2)
    grouped = query.view(batch, kv_heads, heads // kv_heads, head_dim)
    return F.scaled_dot_product_attention(grouped, key, value, attn_mask=mine[:, None, None]).reshape(batch, -1)


def attend_chunk(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Several queries [n, heads, d] of one prompt over its `key` and `value` [m, kv_heads, d]: [n, heads x d].

    Query i sees what is cached before the chunk and the chunk up to itself: the first m - n + i + 1 tokens.
    """
    rows, cached = query.shape[0], key.shape[0] - query.shape[0]
    query, key, value = (part.transpose(0, 1)[None] for part in (query, key, value))
    if not cached:
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    else:  # with a mask, only kernels without grouped heads are fast
        seen = torch.ones(rows, cached + rows, dtype=torch.bool, device=query.device).tril(cached)
        repeats = query.shape[1] // key.shape[1]
        key, value = (part.repeat_interleave(repeats, dim=1) for part in (key, value))
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=seen)
    return attended[0].transpose(0, 1).reshape(rows, -1)
