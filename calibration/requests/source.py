"""Requests of planned lengths: each follows from its number, and each prompt is unique from its first token."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calibration.errors import PlanError
from calibration.requests.lengths import Drawn, LengthsPlan, LengthsTrace, SessionsPlan, Texts
from calibration.requests.tokens import AS_TOKENIZED, Encoder, ServerCount, TokenIds, encoder_of
from sizing.workload import Lengths, Tokens, Turns

ATTEMPTS = 8
LIFTED = 1.03
"""Ratio of the mean prompt sent to the law's mean from which the measurement is no longer that of the law."""
EVEN_STEPS = math.sqrt(2), (math.sqrt(5) - 1) / 2
"""The fractional parts of multiples of irrational numbers fill the unit square evenly (Weyl 1916), and those of the
golden ratio the unit interval (Niederreiter 1978, Bull. Amer. Math. Soc. 84:957). The golden ratio is for OSL, which
determines how long a request takes."""


@dataclass(frozen=True, slots=True)
class PromptRequest:
    """One request: a prompt of `isl` tokens (or words), and `osl` tokens requested as the answer.

    `token_ids` are the prompt's, None if no tokenizer is known. In a session, `turn` is its number, from 0, and `then`
    derives what follows from the token ids of the answer; None after the last turn.
    """

    prompt: str
    isl: int
    osl: int
    token_ids: TokenIds | None = None
    turn: int = 0
    then: Callable[[TokenIds], tuple[float, PromptRequest]] | None = None
    """Think time in seconds, and the next turn."""


@dataclass(frozen=True, slots=True)
class RequestSource:
    """The requests of one level; the same `seed` gives the same requests.

    `lengths`: with an absolute path of its file, if any. `tokenizer`: a tokenizer.json, None to count words;
    `add_special_tokens` as in the server's preprocessing. `seen`: how the server was observed to count. `evenly`: any
    few requests in a row have nearly the law's mean lengths, for loads that measure means; otherwise each is drawn
    independently, as for random arrivals. `replayed`: a trace's requests come in the order of the file.
    """

    lengths: LengthsPlan
    tokenizer: Path | None
    add_special_tokens: bool
    seed: tuple[int, ...]
    seen: ServerCount = AS_TOKENIZED
    evenly: bool = False
    replayed: bool = False

    def requests(self, shard: int = 0, shards: int = 1) -> Iterator[PromptRequest]:
        """Every `shards`-th request from number `shard` on, without end except for a trace; of sessions, first turns.

        A request depends on its number and the seed only, not on `shards`. Raises PlanError if a length cannot be met
        exactly, FileError if a file cannot be used.
        """
        encoder = self._encoder()
        talk = self.lengths.sessions
        prefix_tokens = self.lengths.shared_prefix if talk is None else talk.system_tokens
        opening = _Opening.drawn(encoder, prefix_tokens, self.seed)
        numbers = count(shard, shards)
        if talk is not None:
            return self._from_sessions(numbers, encoder, opening, talk)
        if self.lengths.dataset is not None:
            return self._from_texts(numbers, encoder, opening)
        return self._from_words(numbers, encoder, opening)

    def summary(self) -> Lengths:
        """Means and coefficients of variation of the lengths. Raises as `requests` does."""
        return self.lengths.summary(self._encoder())

    def texts(self) -> Texts:
        """The texts of a data set, counted as by the server. Raises as `requests` does."""
        return self.lengths.texts(self._encoder())

    def _encoder(self) -> Encoder:
        return encoder_of(self.tokenizer, self.add_special_tokens, self.seen)

    def _from_words(self, numbers: Iterator[int], encoder: Encoder, opening: _Opening) -> Iterator[PromptRequest]:
        law = self.lengths.law_of_pairs()
        added, fewest = self.seen.added, 1
        if isinstance(law, Drawn) and law.isl.cv > 0:  # exact lengths of the plan or a file are sent or refused
            fewest = _fewest_tokens(encoder) + added
            if added and law.isl.least_mean(fewest) > LIFTED * law.isl.mean:
                raise PlanError(
                    f"too many prompts of {law.isl.mean:g} tokens on average are shorter than the {added} tokens that "
                    "the server puts around each: choose a longer isl, or isl_cv: 0"
                )
        elif isinstance(law, LengthsTrace) and not self.replayed:
            law = law.taken(self._order(law.osl))
        start = np.random.default_rng(self.seed).random(2)
        for number in numbers:
            # + 1, as a seed (7, 0) would give the same numbers as the seed (7,)
            rng = np.random.default_rng([*self.seed, number + 1])
            at = (start + number * np.array(EVEN_STEPS)) % 1.0 if self.evenly else rng.random(2)
            pair = law.pair(number, (float(at[0]), float(at[1])))
            if pair is None:
                return
            isl, osl = pair
            own = max(isl, fewest) - added
            if own < 1:
                raise PlanError(
                    f"no prompt can have {isl} tokens: the server adds {added} to each; choose a longer isl"
                )
            made = _of_words(own, osl, opening.words(number, encoder.words_in(own)), encoder, rng)
            yield replace(made, isl=own + added) if added else made

    def _order(self, osl: Tokens) -> NDArray[np.int64]:
        """An order of a file's rows, whose answers have lengths `osl`: drawn by the seed, or such that any few in a row
        have nearly the mean answer."""
        rng = np.random.default_rng(self.seed)
        if not self.evenly:
            return rng.permutation(len(osl))
        places = (rng.random() + np.arange(len(osl)) * EVEN_STEPS[1]) % 1.0
        ranks = np.empty(len(osl), np.int64)
        ranks[np.argsort(places)] = np.arange(len(osl))
        return np.argsort(osl, kind="stable")[ranks]

    def _from_sessions(
        self, numbers: Iterator[int], encoder: Encoder, opening: _Opening, talk: SessionsPlan
    ) -> Iterator[PromptRequest]:
        """Sessions whose first turn fits into the context."""
        sessions = talk.started_at(1.0)
        for number in numbers:
            turns = sessions.drawn(1, [*self.seed, number + 1])
            if not len(turns.isl):
                continue
            rng = np.random.default_rng([*self.seed, number + 1])
            first = sessions.system_tokens + int(turns.new[0])
            made = [_of_words(first, 1, opening.words(number, first), encoder, rng)]
            made += [_of_words(new, 1, [], encoder, rng) for new in turns.new[1:].tolist()]
            own = [request.token_ids for request in made]
            if None in own:
                raise PlanError("sessions need prompts of token ids: name the tokenizer of the model as tokenizer")
            yield _turn(0, (), [ids for ids in own if ids is not None], turns)

    def _from_texts(self, numbers: Iterator[int], encoder: Encoder, opening: _Opening) -> Iterator[PromptRequest]:
        texts = self.lengths.texts(encoder)
        order = self._order(texts.osl)
        for number in numbers:
            row = int(order[number % len(order)])
            prompt = texts.prompts[row]
            if self.lengths.unique:
                prompt = " ".join([*(encoder.words[word] for word in opening.digits(number)), prompt])
            ids = encoder.encode(prompt)
            isl = self.seen.added + (encoder.count(prompt) if ids is None else len(ids))
            yield PromptRequest(prompt, isl, int(texts.osl[row]), ids)


def _turn(number: int, said: TokenIds, own: Sequence[TokenIds], turns: Turns) -> PromptRequest:
    """Turn `number` of a session: the tokens `said` before, and its `own` tokens."""
    ids = said + own[number]

    def then(answer: TokenIds) -> tuple[float, PromptRequest]:
        return float(turns.think_s[number + 1]), _turn(number + 1, ids + answer, own, turns)

    is_last = number + 1 == len(own)
    return PromptRequest("", len(ids), int(turns.osl[number]), ids, number, None if is_last else then)


@dataclass(frozen=True, slots=True)
class _Opening:
    """The start of prompts, as numbers of words: `prefix`, the same for all, followed by the request's own number.

    The number is written in base len(order), lowest digit first: neighbours differ in the first token after the prefix,
    and all prompts differ within the first few.
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
        """The opening of a prompt of `isl` tokens; if it is too short, the prefix is cut."""
        digits = self.digits(number)
        return [*self.prefix[: max(0, isl - len(digits))], *digits]


def _fewest_tokens(encoder: Encoder) -> int:
    """Tokens of the shortest prompt: one word with the special tokens around it."""
    return len(encoder.encode(encoder.words[0]) or (0,))


def _of_words(isl: int, osl: int, opening: list[int], encoder: Encoder, rng: np.random.Generator) -> PromptRequest:
    """A prompt of exactly `isl` tokens: words are added or dropped until it fits, as tokenizers may join words."""
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
