"""How a server counts tokens: its tokenizer.json, or words where none is known; and words of one token each."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from calibration.errors import PlanError

ENOUGH_WORDS = 4096
IDS_AT_ONCE = 4096
IDS_TRIED = 32_768  # merges are numbered by frequency: later ids are rarer words, and trying them takes a second

TokenIds = tuple[int, ...]


class Encoder(Hashable, Protocol):
    """What prompts are made of (`words`) and how the server will count them."""

    words: Sequence[str]

    def encode(self, text: str) -> TokenIds | None:
        """Token ids of `text` as a prompt, special ones included; None if tokens are not known."""

    def count(self, text: str) -> int:
        """Tokens of `text` alone, without special ones; words if tokens are not known."""

    def prompt(self, numbers: Sequence[int]) -> tuple[str, TokenIds | None]:
        """The text of the words with these `numbers`, and what `encode` says of it."""


class WordCounter:
    """Stands in where no tokenizer is known: a length is then a number of words.

    >>> WordCounter().encode("no tokens known") is None, WordCounter().count("no tokens known")
    (True, 3)
    """

    words: Sequence[str] = tuple(f"{a}{b}{c}" for a in "bdfgklmnprst" for b in "aeiou" for c in "bdfgklmnprst")

    def encode(self, text: str) -> None:
        return None

    def count(self, text: str) -> int:
        return len(text.split())

    def prompt(self, numbers: Sequence[int]) -> tuple[str, None]:
        return _joined(self.words, numbers), None


@dataclass(frozen=True, slots=True)
class _WordIds:
    """Token ids of prompts made of single-token words, without asking the tokenizer again.

    `first`, `later`: the id of each word where it opens the text and where it follows a space, int64 arrays of shape
    (words,). `before`, `after`: the special tokens around every prompt.
    """

    before: TokenIds
    first: NDArray[np.int64]
    later: NDArray[np.int64]
    after: TokenIds

    def of(self, numbers: Sequence[int]) -> TokenIds:
        words = self.later[numbers].tolist()
        return (*self.before, int(self.first[numbers[0]]), *words[1:], *self.after)


class TokenizerFile:
    """The tokenizer in a tokenizer.json. `words` are those that stay one token each wherever they stand.

    `add_special_tokens`: as the server's preprocessing does it. Raises PlanError if the file is missing or unusable.
    """

    def __init__(self, path: Path, add_special_tokens: bool = False) -> None:
        self._special = add_special_tokens
        self._tokenizer = _load(path)
        found = list(self._single_token_words())
        if len(found) < 2:
            raise PlanError(f"{path}: no words of one token each in this tokenizer; set tokenizer: none in the plan")
        self.words: Sequence[str] = [word for word, _, _ in found]
        self._word_ids = self._learnt([(first, later) for _, first, later in found])

    def encode(self, text: str) -> TokenIds:
        return tuple(self._tokenizer.encode(text, add_special_tokens=self._special).ids)

    def count(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def prompt(self, numbers: Sequence[int]) -> tuple[str, TokenIds]:
        text = _joined(self.words, numbers)
        if self._word_ids is None or not len(numbers):
            return text, self.encode(text)
        return text, self._word_ids.of(numbers)

    def _single_token_words(self) -> Iterator[tuple[str, int, int]]:
        """(word, its id at the start, its id after a space), by rising id until there are enough."""
        seen: set[str] = set()
        for start in range(0, min(IDS_TRIED, self._tokenizer.get_vocab_size()), IDS_AT_ONCE):
            texts = self._tokenizer.decode_batch([[number] for number in range(start, start + IDS_AT_ONCE)])
            stripped = dict.fromkeys(text.strip() for text in texts)
            block = [text for text in stripped if text.isascii() and text.isalnum() and text not in seen]
            pairs = self._tokenizer.encode_batch([f"{word} {word}" for word in block], add_special_tokens=False)
            for word, pair in zip(block, pairs, strict=True):
                if len(pair.ids) == 2:
                    seen.add(word)
                    first, later = pair.ids
                    yield word, first, later
            if len(seen) >= ENOUGH_WORDS:
                return

    def _learnt(self, ids: Sequence[tuple[int, int]]) -> _WordIds | None:
        """None where some text of these words has other ids than its words have: then every prompt is encoded."""
        first, later = np.array(ids, np.int64).T
        opening = (int(first[0]),)
        whole = self.encode(self.words[0])
        places = [place for place in range(len(whole)) if whole[place : place + 1] == opening]
        if not places:
            return None
        learnt = _WordIds(whole[: places[0]], first, later, whole[places[0] + 1 :])
        for seed in (0, 1):
            numbers = np.random.default_rng(seed).permutation(len(ids)).tolist()
            if learnt.of(numbers) != self.encode(_joined(self.words, numbers)):
                return None
        return learnt


@lru_cache(maxsize=4)
def encoder_of(tokenizer: Path | None, add_special_tokens: bool) -> Encoder:
    """The encoder of a tokenizer.json, read once a process; a WordCounter for None. Raises PlanError."""
    return WordCounter() if tokenizer is None else TokenizerFile(tokenizer, add_special_tokens)


def _joined(words: Sequence[str], numbers: Sequence[int]) -> str:
    return " ".join([words[number] for number in numbers])


def _load(path: Path) -> Tokenizer:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise PlanError(f"{path}: no such tokenizer.json; correct tokenizer in the plan, or set it to none") from None
    except (OSError, ValueError) as error:
        raise PlanError(f"{path}: cannot be read as a tokenizer.json ({error})") from None
    try:
        return Tokenizer.from_str(text)
    except Exception as error:  # the tokenizers library raises nothing narrower
        raise PlanError(f"{path}: not a tokenizer.json ({error})") from None
