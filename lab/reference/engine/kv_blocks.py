"""Which blocks of the KV cache are held, and which are kept for the prompts in them."""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict, deque
from collections.abc import Sequence

from lab.reference.settings import KV_BLOCK_TOKENS


class Blocks:
    """Blocks by number. A block is free, held by one or more requests, or kept for its contents.

    A kept block has the keys and values of a prompt's tokens, under a key of `prefix_keys`. When no request holds it,
    it counts as free, but is given away only if no block is empty: the least recently used first, and of one prompt the
    last one first, because a block is useless without those before it.

    Attributes:
        count: blocks in all.
        reused: how often a kept block was used again, since the start.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.reused = 0
        self._holders = [0] * count
        self._empty = deque(range(count))
        self._idle: OrderedDict[int, None] = OrderedDict()  # kept without a holder, the least recently used first
        self._kept: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}

    @property
    def free(self) -> int:
        """Blocks that are available now, including those kept for their contents."""
        return len(self._empty) + len(self._idle)

    def found(self, keys: Sequence[bytes]) -> list[int]:
        """The kept blocks of `keys`, up to the first key without one."""
        blocks: list[int] = []
        for key in keys:
            block = self._kept.get(key)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def take(self, fresh: int, shared: Sequence[int] = ()) -> list[int] | None:
        """The `shared` blocks, with one more holder, and `fresh` ones to write to; None, with nothing changed, if there
        are too few.

        `shared` comes from `found`. A block that is given out for writing loses its kept contents.
        """
        idle = sum(not self._holders[block] for block in shared)
        if fresh + idle > self.free:
            return None
        for block in shared:
            self._holders[block] += 1
            self._idle.pop(block, None)
        self.reused += len(shared)
        return [*shared, *(self._empty_one() for _ in range(fresh))]

    def keep(self, block: int, key: bytes) -> None:
        """Keep the contents of `block`, which is held, under `key`, unless the key has a block already."""
        if key not in self._kept and block not in self._key_of:
            self._kept[key] = block
            self._key_of[block] = key

    def give_back(self, blocks: Sequence[int]) -> None:
        """Remove one holder of each."""
        for block in reversed(blocks):
            self._holders[block] -= 1
            if self._holders[block]:
                continue
            if block in self._key_of:
                self._idle[block] = None
            else:
                self._empty.append(block)

    def _empty_one(self) -> int:
        if self._empty:
            block = self._empty.popleft()
        else:
            block, _ = self._idle.popitem(last=False)
            del self._kept[self._key_of.pop(block)]
        self._holders[block] = 1
        return block


def prefix_keys(prompt: Sequence[int], reuse_key: str) -> tuple[bytes, ...]:
    """One key for each full block of `prompt`, which identifies its tokens and all before them.

    Prompts with different values of `reuse_key` share no key, because other weights computed their keys and values.
    """
    chain = hashlib.blake2b(reuse_key.encode(), digest_size=16).digest()
    keys = []
    for start in range(0, len(prompt) - KV_BLOCK_TOKENS + 1, KV_BLOCK_TOKENS):
        tokens = array("q", prompt[start : start + KV_BLOCK_TOKENS]).tobytes()
        chain = hashlib.blake2b(chain + tokens, digest_size=16).digest()
        keys.append(chain)
    return tuple(keys)
