"""How much faster one model is than another, from repeated runs of both, and how certain that is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sizing.stats import mean_half_width
from triton_tools.clients.stats import Stats

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times better B is than A: the geometric mean over pairs of runs, and its 95 % interval."""

    mean: float
    low: float
    high: float

    @property
    def sure(self) -> bool:
        """Whether the interval excludes 1, which is no difference."""
        return not self.low <= 1 <= self.high

    def __str__(self) -> str:
        doubt = "" if self.sure else "; it includes 1: no difference shown"
        return f"{self.mean:.2f}x (95 % interval {self.low:.2f} to {self.high:.2f}{doubt})"


def ratio(above: Sequence[float], below: Sequence[float]) -> Ratio:
    """``above / below`` pair by pair, of two pairs or more; all numbers are positive. The interval is Student's on the
    logarithms of the pairs' ratios.

    Pairs are compared rather than the means of each side, because what slows the machine down for a while slows both
    runs of a pair.

    >>> ratio([30.0, 30.0], [10.0, 10.0])
    Ratio(mean=3.0, low=3.0, high=3.0)
    """
    logs = np.log(np.array(above, float)) - np.log(np.array(below, float))
    mean = float(logs.mean())
    half = mean_half_width(logs, CONFIDENCE)
    return Ratio(_rounded(mean), _rounded(mean - half), _rounded(mean + half))


def _rounded(log: float) -> float:
    """exp(log), rounded to the digits that logarithms leave right."""
    return float(f"{math.exp(log):.12g}")


@dataclass(frozen=True, slots=True)
class SpeedUp:
    """B compared with A: above 1, B answers more requests/s, gives more tokens/s, or has the shorter mean latency."""

    requests_per_s: Ratio
    output_tokens_per_s: Ratio
    latency: Ratio


def speed_up(a: Sequence[Stats], b: Sequence[Stats]) -> SpeedUp:
    """B's runs compared with A's, where ``a[i]`` and ``b[i]`` are a pair, on the same prompts."""
    return SpeedUp(
        requests_per_s=ratio([run.requests_per_s for run in b], [run.requests_per_s for run in a]),
        output_tokens_per_s=ratio([run.output_tokens_per_s for run in b], [run.output_tokens_per_s for run in a]),
        latency=ratio([run.latency_mean_s for run in a], [run.latency_mean_s for run in b]),
    )
