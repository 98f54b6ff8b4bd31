"""Does a series change over its window beyond its noise? t-intervals of a drift and of a settling, which allow for
neighbours that are correlated.

The noise is widened by the correlation of neighbouring residuals, as that of a mean is (`intervals.half_width`): the
slow wandering of a queue is not to be taken for a change.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibration.metrics.intervals import inflation
from calibration.metrics.student import t_quantile

Floats = NDArray[np.float64]


class Change(NamedTuple):
    """By how much a series ends higher than it began, and the half width of the interval of that, in its unit."""

    amount: float
    half_width: float

    @property
    def least(self) -> float:
        """The smallest change, with its sign, that the interval allows; 0 where it allows none at all."""
        return math.copysign(max(0.0, abs(self.amount) - self.half_width), self.amount)


def drift(series: Floats, confidence: float) -> Change:
    """The change of `series`, shape (n,) with n >= 4, equally spaced, from its first value to its last along a line.

    Degrees of freedom are not reduced for correlation: what is left of a change that is no straight line looks
    correlated too, and it must not excuse itself.
    """
    n = len(series)
    at = np.linspace(-0.5, 0.5, n)
    spread = float(at @ at)
    slope = float(at @ series) / spread
    residuals = series - series.mean() - slope * at
    error = math.sqrt(float(residuals @ residuals) / (n - 2) / spread * inflation(residuals, fitted=2))
    return Change(slope, _reach(n - 2, confidence) * error)


def settling(series: Floats, first: int, confidence: float) -> Change:
    """From the mean of the `first` values of `series` to that of the rest, at least 4: a warm-up that was not over.

    After Geweke (1992); the noise is that of the rest, which a warm-up has not touched.
    """
    begun, rest = series[:first], series[first:]
    residuals = rest - rest.mean()
    factor = inflation(residuals, fitted=1)
    error = math.sqrt(float(residuals @ residuals) / (len(rest) - 1) * factor * (1 / first + 1 / len(rest)))
    freedom = max(1.0, (len(rest) - 1) / factor)
    return Change(float(rest.mean() - begun.mean()), _reach(freedom, confidence) * error)


def _reach(freedom: float, confidence: float) -> float:
    return t_quantile(freedom, (1 + confidence) / 2)
