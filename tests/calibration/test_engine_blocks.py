"""Blocks of the KV cache against a slow model of them: every block has one place, contents are what they should be."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from lab.reference.engine.kv_blocks import Blocks, prefix_keys

COUNT = 9
WORDS = st.lists(st.integers(0, 2), max_size=3)  # few different chains, so that they meet


class Holders(RuleBasedStateMachine):
    """Requests take blocks, keep the contents of some, and give them back, as the cache does."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = Blocks(COUNT)
        self.held: list[list[int]] = []
        self.contents: dict[int, bytes] = {}

    taken = Bundle("taken")

    @rule(target=taken, words=WORDS, fresh=st.integers(0, 4))
    def take(self, words: list[int], fresh: int) -> object:
        keys = [bytes(words[: end + 1]) for end in range(len(words))]
        shared = self.blocks.found(keys)
        assert [self.contents[block] for block in shared] == keys[: len(shared)]
        idle = [block for block in shared if not any(block in blocks for blocks in self.held)]
        enough = fresh + len(idle) <= self.blocks.free
        found = self.blocks.take(fresh, shared)
        assert (found is not None) == enough
        if found is None:
            return multiple()
        new = found[len(shared) :]
        assert found[: len(shared)] == shared and len(set(found)) == len(shared) + fresh
        assert not any(block in blocks for blocks in self.held for block in new)
        for block in new:
            self.contents.pop(block, None)  # written over
        self.held.append(found)
        for block, key in zip(found, keys, strict=False):  # the prompt is computed
            self.contents[block] = key
            self.blocks.keep(block, key)
        return found

    @rule(given_back=consumes(taken))
    def give_back(self, given_back: list[int]) -> None:
        self.held = [blocks for blocks in self.held if blocks is not given_back]
        self.blocks.give_back(given_back)

    @invariant()
    def every_block_is_free_or_held(self) -> None:
        assert self.blocks.free + len({block for blocks in self.held for block in blocks}) == COUNT


Holders.TestCase.settings = settings(max_examples=60, deadline=None)
TestBlocks = Holders.TestCase

PROMPTS = st.lists(st.integers(0, 1), max_size=70)


@given(PROMPTS, PROMPTS, st.sampled_from(("", "adapter")), st.sampled_from(("", "adapter")))
def test_keys_agree_as_far_as_the_prompts_do(left: list[int], right: list[int], one: str, other: str) -> None:
    for ours, theirs, end in zip(prefix_keys(left, one), prefix_keys(right, other), range(16, 81, 16), strict=False):
        assert (ours == theirs) == (one == other and left[:end] == right[:end])
    assert len(prefix_keys(left, one)) == len(left) // 16


def test_the_block_unused_for_longest_goes_first_and_of_one_prompt_the_last() -> None:
    blocks = Blocks(5)
    old, new = blocks.take(2), blocks.take(2)
    assert old is not None and new is not None
    for block, key in zip([*old, *new], (b"a", b"ab", b"x", b"xy"), strict=True):
        blocks.keep(block, key)
    blocks.give_back(old)
    blocks.give_back(new)
    assert blocks.free == 5
    lost = [blocks.take(1) for _ in range(4)]
    assert lost[1:] == [[old[1]], [old[0]], [new[1]]]
    assert blocks.found([b"x", b"xy"]) == [new[0]]
    assert blocks.found([b"a", b"ab"]) == []
