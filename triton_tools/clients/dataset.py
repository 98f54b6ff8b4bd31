"""Prompts from a data set, a JSON list of {input, instruction, output}, used as the clients use them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

from calibration.errors import FileError
from calibration.requests.lengths import Text, read_dataset
from calibration.requests.source import PromptRequest

TOKENS_PER_WORD = 1.3
Encode = Callable[[str], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Given:
    """A source of the requests `given`, once each and in order."""

    given: tuple[PromptRequest, ...]

    def __len__(self) -> int:
        return len(self.given)

    def requests(self, shard: int = 0, shards: int = 1) -> Iterator[PromptRequest]:
        """Every `shards`-th of the given requests, from number `shard` on."""
        return iter(self.given[shard::shards])

    def repeated(self, n: int) -> Given:
        """`n` requests: the given ones, repeated."""
        return Given(tuple(islice(cycle(self.given), n)))


@dataclass(frozen=True, slots=True)
class FromDataset:
    """Requests from a data set. `left_out` examples were too long; the prompts of the others have `tokens_per_word`."""

    prompts: Given
    left_out: int
    tokens_per_word: float


def from_dataset(
    path: Path,
    *,
    encode: Encode | None,
    first: int | None = None,
    max_input_len: int | None = None,
    op_tokens_per_word: float = TOKENS_PER_WORD,
) -> FromDataset:
    """The `first` requests from the data set at `path`, in its order, with at most `max_input_len` tokens each.

    The output length is the number of words in the example's output times `op_tokens_per_word`, rounded down, at least
    1. Without `encode`, input lengths are words. Raises FileError if the data set is faulty or nothing is short enough.
    """
    made = [_request(text, encode, op_tokens_per_word) for text in read_dataset(path)]
    short = [request for request in made if max_input_len is None or request.isl <= max_input_len]
    if not short:
        least = min(request.isl for request in made)
        unit = "words" if encode is None else "tokens"
        raise FileError(f"{path}: no prompt within --max_input_len {max_input_len}; the shortest has {least} {unit}")
    kept = tuple(short[:first])
    words = sum(len(request.prompt.split()) for request in kept)
    tokens = sum(request.isl for request in kept)
    return FromDataset(Given(kept), len(made) - len(short), tokens / max(1, words))


def _request(text: Text, encode: Encode | None, op_tokens_per_word: float) -> PromptRequest:
    ids = None if encode is None else encode(text.prompt)
    isl = len(text.prompt.split()) if ids is None else len(ids)
    osl = max(1, int(len(text.answer.split(" ")) * op_tokens_per_word))
    return PromptRequest(text.prompt, max(1, isl), osl, ids)
