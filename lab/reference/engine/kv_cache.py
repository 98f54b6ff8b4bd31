"""A paged KV cache: requests get whole blocks of tokens."""

from __future__ import annotations

from collections import deque

import torch

from lab.reference.engine.kv_blocks import Blocks, prefix_keys
from lab.reference.engine.request import Request
from lab.reference.settings import KV_BLOCK_TOKENS


class KvCache:
    """Keys and values of every token in flight, and which request holds which block.

    `keys[layer]` and `values[layer]` are [slots, kv_heads, head_dim]; a slot holds one token.
    `table[row, position]` is the slot of a request's token: one row per request, filled as far as it has blocks.

    With `reuses`, full blocks of a prompt are kept after its request has ended, until they are needed, and requests
    whose prompts begin alike share them. Shared blocks are not written to: a request writes after its full blocks.
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
        reuses: bool = False,
    ) -> None:
        self.max_requests = max_requests
        self.reuses = reuses
        self.max_blocks = capacity_tokens // KV_BLOCK_TOKENS
        shape = (self.max_blocks * KV_BLOCK_TOKENS, kv_heads, head_dim)
        self.keys = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(layers)]
        self.values = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(layers)]
        width = _blocks(max_sequence_tokens) * KV_BLOCK_TOKENS
        self.table = torch.zeros((max_requests, width), dtype=torch.long, device=device)
        self._offsets = torch.arange(KV_BLOCK_TOKENS, device=device)
        self._free_rows = deque(range(max_requests))
        self._blocks = Blocks(self.max_blocks)

    @property
    def free_blocks(self) -> int:
        """Blocks available to a request, including those kept for reuse."""
        return self._blocks.free

    @property
    def reused_blocks(self) -> int:
        """How often a kept block was used again, since the start."""
        return self._blocks.reused

    def admit(self, request: Request, tokens: int) -> bool:
        """Give `request` a row, and blocks for its first `tokens` tokens; False, with nothing changed, if not free.

        The part of its prompt that the cache still holds counts as computed, except the last token, whose logits are
        needed.
        """
        if not self._free_rows:
            return False
        shared = self._found(request) if self.reuses and request.may_reuse else []
        blocks = self._blocks.take(_blocks(tokens) - len(shared), shared)
        if blocks is None:
            return False
        request.row, request.blocks = self._free_rows.popleft(), blocks
        request.computed = request.reused = len(shared) * KV_BLOCK_TOKENS
        first_slots = torch.tensor(blocks, device=self.table.device) * KV_BLOCK_TOKENS
        slots = (first_slots[:, None] + self._offsets).flatten()
        self.table[request.row, : len(slots)] = slots
        return True

    def grow(self, request: Request) -> bool:
        """Give the next token of `request` a slot; False, with nothing changed, if no block is free for it."""
        held = len(request.blocks) * KV_BLOCK_TOKENS
        if request.computed < held:
            return True
        blocks = self._blocks.take(1)
        if blocks is None:
            return False
        request.blocks += blocks
        self.table[request.row, held : held + KV_BLOCK_TOKENS] = blocks[0] * KV_BLOCK_TOKENS + self._offsets
        return True

    def keep(self, request: Request) -> None:
        """Let other requests use the full blocks of the computed prompt of `request`."""
        for block, key in zip(request.blocks, _keys(request), strict=False):
            self._blocks.keep(block, key)

    def release(self, request: Request) -> None:
        """Release the blocks of `admit` and `grow`."""
        self._free_rows.append(request.row)
        self._blocks.give_back(request.blocks)
        request.row, request.blocks = -1, []

    def _found(self, request: Request) -> list[int]:
        return self._blocks.found(_keys(request)[: (request.to_read - 1) // KV_BLOCK_TOKENS])


def _keys(request: Request) -> tuple[bytes, ...]:
    if not request.prefix_keys:
        request.prefix_keys = prefix_keys(request.prompt, request.reuse_key)
    return request.prefix_keys


def _blocks(tokens: int) -> int:
    return -(-tokens // KV_BLOCK_TOKENS)
