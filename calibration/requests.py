"""Prompts of an exact token count, each unique from its first tokens, so that no prefix cache can help."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from calibration.errors import PlanError
from sizing.workload import Lengths

ENOUGH_WORDS = 8192
BLOCK = 64
ATTEMPTS = 8


@dataclass(frozen=True, slots=True)
class Request:
    """One request: a prompt of `isl` tokens (or words) and the `osl` tokens asked in answer.

    `token_ids` are the prompt's, None where no tokenizer is known.
    """

    prompt: str
    isl: int
    osl: int
    token_ids: tuple[int, ...] | None = None


class Encoder(Protocol):
    """What prompts are made of (`words`) and how the server will count them (`encode`)."""

    words: Sequence[str]

    def encode(self, text: str) -> tuple[int, ...] | None:
        """Token ids of `text`, None if tokens are not known."""


class WordCounter:
    """Stands in where no tokenizer is known: ISL is then a number of words.

    >>> WordCounter().encode("no tokens known") is None
    True
    """

    words: Sequence[str] = tuple(f"{a}{b}{c}" for a in "bdfgklmnprst" for b in "aeiou" for c in "bdfgklmnprst")

    def encode(self, text: str) -> None:
        return None


class TokenizerFile:
    """The tokenizer in a tokenizer.json. `words` are those that stay one token each wherever they stand.

    `add_special_tokens`: as the server's preprocessing does it. Raises PlanError if the file is missing or unusable.
    """

    def __init__(self, path: Path, add_special_tokens: bool = False) -> None:
        self._path = path
        self._special = add_special_tokens
        self._tokenizer = _load(path)
        self.words: Sequence[str] = self._single_token_words()

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=self._special).ids)

    def _single_token_words(self) -> list[str]:
        texts = {self._tokenizer.decode([number]).strip() for number in self._tokenizer.get_vocab().values()}
        candidates = sorted(text for text in texts if text.isascii() and text.isalnum())
        found: list[str] = []
        for start in range(0, len(candidates), ENOUGH_WORDS):
            block = candidates[start : start + ENOUGH_WORDS]
            pairs = self._tokenizer.encode_batch([f"{word} {word}" for word in block], add_special_tokens=False)
            found += [word for word, pair in zip(block, pairs, strict=True) if len(pair.ids) == 2]
            if len(found) >= ENOUGH_WORDS:
                break
        if len(found) < 2:
            raise PlanError(
                f"{self._path}: no words of one token each in this tokenizer; set tokenizer: none in the plan"
            )
        return found


def _load(path: Path) -> Tokenizer:
    try:
        text = path.read_text(encoding="utf-8")
        json.loads(text)
    except FileNotFoundError:
        raise PlanError(f"{path}: no such tokenizer.json; correct tokenizer in the plan, or set it to none") from None
    except (OSError, ValueError) as error:
        raise PlanError(f"{path}: cannot be read as a tokenizer.json ({error})") from None
    try:
        return Tokenizer.from_str(text)
    except Exception as error:  # the tokenizers library raises nothing narrower
        raise PlanError(f"{path}: not a tokenizer ({error})") from None


def requests(lengths: Lengths, encoder: Encoder, rng: np.random.Generator) -> Iterator[Request]:
    """Endless requests: lengths drawn from `lengths`, words from `encoder`, all from `rng`.

    Each prompt opens with its number written in base len(words), lowest digit first: neighbours differ in the first
    token and all differ within the first few. Raises PlanError if some length cannot be met exactly.
    """
    order = rng.permutation(len(encoder.words))
    number = 0
    while True:
        for isl, osl in zip(*lengths.sample(BLOCK, rng), strict=True):
            yield _request(int(isl), int(osl), _digits(number, order), encoder, rng)
            number += 1


def _digits(number: int, order: NDArray[np.int64]) -> list[int]:
    digits = []
    while True:
        number, digit = divmod(number, len(order))
        digits.append(int(order[digit]))
        if not number:
            return digits


def _request(isl: int, osl: int, opening: list[int], encoder: Encoder, rng: np.random.Generator) -> Request:
    """Words are added or dropped until the tokens are exactly `isl`: a tokenizer may add special ones or join words."""
    numbers = [*opening, *rng.integers(len(encoder.words), size=max(0, isl - len(opening))).tolist()]
    count = isl
    for _ in range(ATTEMPTS):
        prompt = " ".join(encoder.words[number] for number in numbers[:count])
        ids = encoder.encode(prompt)
        if ids is None or len(ids) == isl:
            return Request(prompt, isl, osl, ids)
        count += isl - len(ids)
        if count < 1:
            break
        numbers += rng.integers(len(encoder.words), size=max(0, count - len(numbers))).tolist()
    raise PlanError(f"no prompt of exactly {isl} tokens can be made with this tokenizer; choose a longer isl")
