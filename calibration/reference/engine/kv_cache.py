"""A paged KV cache: blocks of tokens, handed out to requests whole and in advance."""

from __future__ import annotations

from collections import deque

import torch

from calibration.reference.engine.request import Request
from calibration.reference.settings import KV_BLOCK_TOKENS


class KvCache:
    """Keys and values of every token in flight, and who holds which block.

    `keys[layer]` and `values[layer]` are [slots, kv_heads, head_dim]; a slot holds one token.
    `table[row, position]` is the slot of a request's token: one row per request, filled when it is admitted (policy
    guaranteed_no_evict: it gets blocks for its longest possible sequence, so it never has to be put back).
    """

    def __init__(
        self,
        *,
        layers: int,
        kv_heads: int,
        head_dim: int,
        capacity_tokens: int,
        max_requests: int,
        max_sequence_tokens: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.max_requests = max_requests
        self.max_blocks = capacity_tokens // KV_BLOCK_TOKENS
        shape = (self.max_blocks * KV_BLOCK_TOKENS, kv_heads, head_dim)
        self.keys = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(layers)]
        self.values = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(layers)]
        width = _blocks(max_sequence_tokens) * KV_BLOCK_TOKENS
        self.table = torch.zeros((max_requests, width), dtype=torch.long, device=device)
        self._offsets = torch.arange(KV_BLOCK_TOKENS, device=device)
        self._free_rows = deque(range(max_requests))
        self._free_blocks = deque(range(self.max_blocks))

    @property
    def free_blocks(self) -> int:
        return len(self._free_blocks)

    @property
    def capacity_tokens(self) -> int:
        return self.max_blocks * KV_BLOCK_TOKENS

    def admit(self, request: Request) -> bool:
        """Reserve a row and blocks for the whole of `request`; False, and nothing changed, if they are not free."""
        needed = _blocks(request.longest)
        if not self._free_rows or needed > self.free_blocks:
            return False
        request.row = self._free_rows.popleft()
        request.blocks = [self._free_blocks.popleft() for _ in range(needed)]
        first_slots = torch.tensor(request.blocks, device=self.table.device) * KV_BLOCK_TOKENS
        self.table[request.row, : needed * KV_BLOCK_TOKENS] = (first_slots[:, None] + self._offsets).flatten()
        return True

    def release(self, request: Request) -> None:
        """Take back what `admit` gave."""
        self._free_rows.append(request.row)
        self._free_blocks.extend(request.blocks)
        request.row, request.blocks = -1, []


def _blocks(tokens: int) -> int:
    return -(-tokens // KV_BLOCK_TOKENS)
