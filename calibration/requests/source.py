"""Requests of planned lengths: each known by its number alone, each prompt unique from its first token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import numpy as np

from calibration.errors import PlanError
from calibration.requests.lengths import Drawn, LengthsPlan, Texts
from calibration.requests.tokens import (
    AS_TOKENIZED,
    Encoder,
    ServerCount,
    TokenIds,
    TokenizerFile,
    WordCounter,
    encoder_of,
)
from sizing.workload import Lengths

__all__ = ["Encoder", "PromptRequest", "RequestSource", "TokenizerFile", "WordCounter"]

ATTEMPTS = 8


@dataclass(frozen=True, slots=True)
class PromptRequest:
    """One request: a prompt of `isl` tokens (or words) and the `osl` tokens asked in answer.

    `token_ids` are the prompt's, None where no tokenizer is known.
    """

    prompt: str
    isl: int
    osl: int
    token_ids: TokenIds | None = None


@dataclass(frozen=True, slots=True)
class RequestSource:
    """The requests of one level, the same again for the same `seed`.

    `lengths`: with the path of its file, if any, absolute. `tokenizer`: a tokenizer.json, None to count words;
    `add_special_tokens` as the server's preprocessing does it. `seen`: what the server itself told of its counting.
    """

    lengths: LengthsPlan
    tokenizer: Path | None
    add_special_tokens: bool
    seed: tuple[int, ...]
    seen: ServerCount = AS_TOKENIZED

    def requests(self, shard: int = 0, shards: int = 1) -> Iterator[PromptRequest]:
        """Every `shards`-th request, from number `shard` on; endless, but for a trace.

        A request follows from its number and the seed, whatever `shards` is. Raises PlanError if some length cannot be
        met exactly, FileError if a file cannot be used.
        """
        encoder = self._encoder()
        opening = _Opening.drawn(encoder, self.lengths.shared_prefix, self.seed)
        numbers = count(shard, shards)
        if self.lengths.dataset is not None:
            return self._from_texts(numbers, encoder, opening)
        return self._from_words(numbers, encoder, opening)

    def summary(self) -> Lengths:
        """Means and coefficients of variation of the lengths. Raises as `requests` does."""
        return self.lengths.summary(self._encoder())

    def texts(self) -> Texts:
        """The texts of a data set as the server counts them. Raises as `requests` does."""
        return self.lengths.texts(self._encoder())

    def _encoder(self) -> Encoder:
        return encoder_of(self.tokenizer, self.add_special_tokens, self.seen)

    def _from_words(self, numbers: Iterator[int], encoder: Encoder, opening: _Opening) -> Iterator[PromptRequest]:
        law = self.lengths.law_of_pairs()
        drawn = isinstance(law, Drawn) and law.isl.cv > 0  # what the plan or a file says is sent or refused
        added = self.seen.added
        fewest = _fewest_tokens(encoder) + added if drawn else 1
        for number in numbers:
            # + 1, as a seed (7, 0) would give the same numbers as the seed (7,)
            rng = np.random.default_rng([*self.seed, number + 1])
            pair = law.pair(number, rng)
            if pair is None:
                return
            isl, osl = pair
            own = max(isl, fewest) - added
            if own < 1:
                raise PlanError(f"no prompt of {isl} tokens: the server puts {added} around each; choose a longer isl")
            made = _of_words(own, osl, opening.words(number, encoder.words_in(own)), encoder, rng)
            yield replace(made, isl=own + added) if added else made

    def _from_texts(self, numbers: Iterator[int], encoder: Encoder, opening: _Opening) -> Iterator[PromptRequest]:
        texts = self.lengths.texts(encoder)
        for number in numbers:
            row = number % len(texts.prompts)
            prompt = texts.prompts[row]
            if self.lengths.unique:
                prompt = " ".join([*(encoder.words[word] for word in opening.digits(number)), prompt])
            ids = encoder.encode(prompt)
            isl = self.seen.added + (encoder.count(prompt) if ids is None else len(ids))
            yield PromptRequest(prompt, isl, int(texts.osl[row]), ids)


@dataclass(frozen=True, slots=True)
class _Opening:
    """How prompts open, as numbers of words: with `prefix`, the same for all, and then with the request's own number.

    The number is written in base len(order), lowest digit first: neighbours differ in the first token after the prefix
    and all differ within the first few.
    """

    prefix: tuple[int, ...]
    order: tuple[int, ...]

    @classmethod
    def drawn(cls, encoder: Encoder, prefix_tokens: int, seed: Sequence[int]) -> _Opening:
        rng = np.random.default_rng(seed)
        order = rng.permutation(len(encoder.words)).tolist()
        return cls(tuple(rng.integers(len(order), size=prefix_tokens).tolist()), tuple(order))

    def digits(self, number: int) -> list[int]:
        found = []
        while True:
            number, digit = divmod(number, len(self.order))
            found.append(self.order[digit])
            if not number:
                return found

    def words(self, number: int, isl: int) -> list[int]:
        """In a prompt too short for both, the prefix is cut and the number kept."""
        digits = self.digits(number)
        return [*self.prefix[: max(0, isl - len(digits))], *digits]


def _fewest_tokens(encoder: Encoder) -> int:
    """Tokens of the shortest prompt: one word, and the special tokens around it."""
    return len(encoder.encode(encoder.words[0]) or (0,))


def _of_words(isl: int, osl: int, opening: list[int], encoder: Encoder, rng: np.random.Generator) -> PromptRequest:
    """Words are added or dropped until the tokens are exactly `isl`: a tokenizer may add special ones or join words."""
    length = encoder.words_in(isl)
    numbers = [*opening, *rng.integers(len(encoder.words), size=max(0, length - len(opening))).tolist()]
    for _ in range(ATTEMPTS):
        prompt, ids = encoder.prompt(numbers[:length])
        if ids is None or len(ids) == isl:
            return PromptRequest(prompt, isl, osl, ids)
        length += isl - len(ids)
        if length < 1:
            break
        numbers += rng.integers(len(encoder.words), size=max(0, length - len(numbers))).tolist()
    raise PlanError(f"no prompt of exactly {isl} tokens can be made with this tokenizer; choose a longer isl")
