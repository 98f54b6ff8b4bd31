"""The laws by which lengths are drawn: fixed, lognormal, normal, or any whole number of a window."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sizing.workload import Lengths

Law = Literal["lognormal", "normal"]
Window = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Side:
    """The law of one of the two lengths: `low` to `high` equally often, or by `law` with mean `mean` and `cv`."""

    mean: float
    cv: float
    law: Literal["lognormal", "normal", "uniform"]
    low: int = 1
    high: int = 1

    def draw(self, rng: np.random.Generator) -> int:
        """A length in tokens, at least 1."""
        if self.law == "uniform":
            return int(rng.integers(self.low, self.high, endpoint=True))
        if self.cv == 0:
            return max(1, round(self.mean))
        if self.law == "normal":
            return max(1, round(rng.normal(self.mean, self.cv * self.mean)))
        sigma = math.sqrt(math.log1p(self.cv**2))
        return max(1, round(self.mean * math.exp(sigma * rng.standard_normal() - sigma**2 / 2)))

    def mean_and_cv(self) -> tuple[float, float]:
        """Mean and coefficient of variation of what is drawn; of the lognormal before it is rounded to tokens."""
        if self.law == "normal" and self.cv:
            return _normal_from_one(self.mean, self.cv * self.mean)
        return self.mean, self.cv


def side(length: float | Window, cv: float, law: Law) -> Side:
    """The law of lengths with mean `length` and coefficient of variation `cv`, or of those in the window `length`."""
    if not isinstance(length, tuple):
        return Side(length, cv, law)
    low, high = length
    mean = (low + high) / 2
    return Side(mean, math.sqrt(((high - low + 1) ** 2 - 1) / 12) / mean, "uniform", low, high)


def _normal_from_one(mean: float, sd: float) -> tuple[float, float]:
    """Mean and cv of max(1, X), X normal: E = Φ(a) + mean·(1-Φ(a)) + sd·φ(a), a = (1-mean)/sd; E² alike."""
    a = (1 - mean) / sd
    below = (1 + math.erf(a / math.sqrt(2))) / 2
    density = math.exp(-a * a / 2) / math.sqrt(2 * math.pi)
    first = below + mean * (1 - below) + sd * density
    second = below + (mean**2 + sd**2) * (1 - below) + sd * (mean + 1) * density
    return first, math.sqrt(max(0.0, second - first**2)) / first


@dataclass(frozen=True, slots=True)
class Drawn:
    """Input and output lengths, each drawn by a law of its own."""

    isl: Side
    osl: Side

    def pair(self, number: int, rng: np.random.Generator) -> tuple[int, int]:
        """(ISL, OSL) of a request, drawn from `rng`."""
        return self.isl.draw(rng), self.osl.draw(rng)

    def summary(self) -> Lengths:
        """Means and coefficients of variation of the laws."""
        isl_mean, isl_cv = self.isl.mean_and_cv()
        osl_mean, osl_cv = self.osl.mean_and_cv()
        return Lengths(isl_mean, osl_mean, isl_cv, osl_cv)
