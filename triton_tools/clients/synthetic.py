"""Prompts of random token ids whose lengths are drawn from normal distributions: the clients' `token_norm_dist`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from calibration.errors import PlanError
from calibration.records import Ints
from calibration.requests.source import PromptRequest


@dataclass(frozen=True, slots=True)
class NormalLengths:
    """Mean and standard deviation, in tokens, of prompts and answers; a deviation of 0 makes all lengths equal."""

    input_mean: float
    input_stdev: float
    output_mean: float
    output_stdev: float

    def sample(self, n: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
        """Input and output tokens of `n` requests, two arrays of shape (n,).

        As in the clients, draws are rounded up and at least 1, so the mean comes out half a token higher.
        """
        return _tokens(self.input_mean, self.input_stdev, n, rng), _tokens(self.output_mean, self.output_stdev, n, rng)


def _tokens(mean: float, stdev: float, n: int, rng: np.random.Generator) -> Ints:
    return np.maximum(1, np.ceil(rng.normal(mean, stdev, n))).astype(np.int64)


@dataclass(frozen=True, slots=True)
class RandomPrompts:
    """A source of prompts of random ids below `vocabulary`, with the lengths `isl` and `osl`, each of shape (n,).

    The ids of a prompt depend only on `seed` and its number, however the requests are divided over processes.
    """

    isl: tuple[int, ...]
    osl: tuple[int, ...]
    vocabulary: int
    seed: int

    def __len__(self) -> int:
        return len(self.isl)

    def requests(self, shard: int = 0, shards: int = 1) -> Iterator[PromptRequest]:
        """Every `shards`-th request, from number `shard` on."""
        for number in range(shard, len(self), shards):
            ids = np.random.default_rng([self.seed, number]).integers(self.vocabulary, size=self.isl[number])
            yield PromptRequest("", self.isl[number], self.osl[number], tuple(ids.tolist()))


def random_prompts(
    lengths: NormalLengths, n: int, *, vocabulary: int, max_input_len: int | None = None, seed: int = 0
) -> RandomPrompts:
    """`n` prompts drawn with `seed`, without those longer than `max_input_len`.

    Raises PlanError if none is left.
    """
    isl, osl = lengths.sample(n, np.random.default_rng(seed))
    kept = np.full(n, True) if max_input_len is None else isl <= max_input_len
    if not kept.any():
        raise PlanError(f"--input_mean {lengths.input_mean:g}: no prompt is within --max_input_len {max_input_len}")
    return RandomPrompts(tuple(isl[kept].tolist()), tuple(osl[kept].tolist()), vocabulary, seed)
