"""How a server counts tokens: by its tokenizer.json, or in words if none is known; and words of one token each."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from calibration.errors import KEY, PlanError

ENOUGH_WORDS = 4096
IDS_AT_ONCE = 4096
IDS_TRIED = 32_768  # merges are numbered by frequency: later ids are rarer words, and trying them takes a second

TokenIds = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ServerCount:
    """How a server was observed to count prompts, beyond its tokenizer.

    `added`: tokens that it puts around each prompt, such as a chat template. If no tokenizer is known:
    `tokens_per_word` of English or, for a server that accepts ids, the `ids` to choose from as (first, one past the
    last).
    """

    added: int = 0
    tokens_per_word: float | None = None
    ids: tuple[int, int] | None = None


AS_TOKENIZED = ServerCount()


class Encoder(Hashable, Protocol):
    """The `words` of prompts, and how the server counts them."""

    words: Sequence[str]

    def words_in(self, tokens: int) -> int:
        """Words of a prompt of `tokens` tokens, as a first guess."""

    def encode(self, text: str) -> TokenIds | None:
        """Token ids of `text` as a prompt, including special ones; None if tokens are unknown."""

    def count(self, text: str) -> int:
        """Tokens of `text` alone, without special ones; words if tokens are unknown."""

    def prompt(self, numbers: Sequence[int]) -> tuple[str, TokenIds | None]:
        """The text of the words with these `numbers`, and its `encode`."""


class WordCounter:
    """Used if no tokenizer is known: a length is then a number of words.

    >>> WordCounter().encode("no tokens known") is None, WordCounter().count("no tokens known")
    (True, 3)
    """

    words: Sequence[str] = tuple(f"{a}{b}{c}" for a in "bdfgklmnprst" for b in "aeiou" for c in "bdfgklmnprst")

    def words_in(self, tokens: int) -> int:
        return tokens

    def encode(self, text: str) -> None:
        return None

    def count(self, text: str) -> int:
        return len(text.split())

    def prompt(self, numbers: Sequence[int]) -> tuple[str, TokenIds | None]:
        return _joined(self.words, numbers), None


class CommonWords(WordCounter):
    """Common English words, nearly all of one token each for every tokenizer; `tokens_per_word` as the server counts.

    >>> CommonWords(1.5).words_in(30), CommonWords(1.5).count("the time of day")
    (20, 6)
    """

    words: Sequence[str] = tuple(
        "time people year way day man thing woman life child world school state family student group country problem "
        "hand part place case week company system program question work government number night point home water room "
        "mother area money story fact month lot right study book eye job word business issue side kind head house "
        "service friend father power hour game line end member law car city community name president team minute idea "
        "body information back parent face others level office door health person art war history party result change "
        "morning reason research girl moment air teacher force education foot boy age policy music market sense".split()
    )

    def __init__(self, tokens_per_word: float = 1.0) -> None:
        self._tokens_per_word = tokens_per_word

    def words_in(self, tokens: int) -> int:
        return max(1, round(tokens / self._tokens_per_word))

    def count(self, text: str) -> int:
        return round(len(text.split()) * self._tokens_per_word)


class AnyIds(WordCounter):
    """Ids in place of words, for a server that accepts them: the tokenizer need not be known."""

    def __init__(self, first: int, end: int) -> None:
        self._first = first
        self.words = tuple(map(str, range(first, end)))

    def prompt(self, numbers: Sequence[int]) -> tuple[str, TokenIds | None]:
        return "", tuple(self._first + number for number in numbers)


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
            raise PlanError(f"{path}: this tokenizer has no words of one token each; set {KEY} to none", "tokenizer")
        self.words: Sequence[str] = [word for word, _, _ in found]
        self._word_ids = self._learnt([(first, later) for _, first, later in found])

    def words_in(self, tokens: int) -> int:
        return tokens

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
        """None if a text of these words has other ids than its words: then every prompt is encoded."""
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
def encoder_of(tokenizer: Path | None, add_special_tokens: bool, seen: ServerCount = AS_TOKENIZED) -> Encoder:
    """The encoder of a tokenizer.json, read once per process; for None the best that `seen` allows.

    Raises PlanError.
    """
    if tokenizer is not None:
        return TokenizerFile(tokenizer, add_special_tokens)
    if seen.ids is not None:
        return AnyIds(*seen.ids)
    return WordCounter() if seen.tokens_per_word is None else CommonWords(seen.tokens_per_word)


def _joined(words: Sequence[str], numbers: Sequence[int]) -> str:
    return " ".join([words[number] for number in numbers])


def _load(path: Path) -> Tokenizer:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise PlanError(f"{path}: no such tokenizer.json; correct {KEY}, or set it to none", "tokenizer") from None
    except (OSError, ValueError) as error:
        raise PlanError(f"{path}: cannot be read as a tokenizer.json ({error})") from None
    try:
        return Tokenizer.from_str(text)
    except Exception as error:  # the tokenizers library raises nothing narrower
        raise PlanError(f"{path}: not a tokenizer.json ({error})") from None
