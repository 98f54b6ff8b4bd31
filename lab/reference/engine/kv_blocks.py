"""The owners of the KV cache's blocks, and the blocks of old prompts that are kept for reuse."""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict, deque
from collections.abc import Sequence

from lab.reference.settings import KV_BLOCK_TOKENS


class Blocks:
    """Blocks by number. A block is free, or held by one or several requests, or kept for its contents.

    A kept block has the keys and values of a prompt's tokens, under the key of `prefix_keys`. Once nobody holds it, it
    counts as free and waits: the block unused for longest is given away first, of one prompt the later before the
    earlier, because a later one is of no use without those before it.

    Attributes:
        count: blocks in all.
        reused: how often a block has been held again for its contents, since the beginning.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.reused = 0
        self._holders = [0] * count
        self._empty = deque(range(count))
        self._idle: OrderedDict[int, None] = OrderedDict()  # kept without an owner, the least recently used first
        self._kept: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}

    @property
    def free(self) -> int:
        """Blocks that are available now, including those kept for their contents."""
        return len(self._empty) + len(self._idle)

    def found(self, keys: Sequence[bytes]) -> list[int]:
        """The kept blocks of the longest beginning of `keys` that is here."""
        blocks: list[int] = []
        for key in keys:
            block = self._kept.get(key)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def take(self, fresh: int, shared: Sequence[int] = ()) -> list[int] | None:
        """`shared`, held once more, and `fresh` blocks to write to; None, and nothing changed, if there are not enough.

        `shared` comes from `found`. Contents kept in a block that is given to write to are forgotten.
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
        """The contents of `block`, which is held, may be used again under `key`. The first block of a key stays it."""
        if key not in self._kept and block not in self._key_of:
            self._kept[key] = block
            self._key_of[block] = key

    def give_back(self, blocks: Sequence[int]) -> None:
        """Remove one owner of each."""
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
    """One key for each full block of `prompt`: it stands for these tokens and all before them.

    Prompts of different `reuse_key` have no key in common: their keys and values come from different weights.
    """
    chain = hashlib.blake2b(reuse_key.encode(), digest_size=16).digest()
    keys = []
    for start in range(0, len(prompt) - KV_BLOCK_TOKENS + 1, KV_BLOCK_TOKENS):
        tokens = array("q", prompt[start : start + KV_BLOCK_TOKENS]).tobytes()
        chain = hashlib.blake2b(chain + tokens, digest_size=16).digest()
        keys.append(chain)
    return tuple(keys)
