"""How far the law itself is off: the scatter of the misfits beyond what the errors of the measurement explain.

No engine follows eight coefficients exactly. Without an allowance for that, levels measured precisely outweigh levels
that are not, though the law is as wrong at both, and a fit moves with small changes of the errors granted.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sizing.fitting.minimize import root

Floats = NDArray[np.float64]

LEAST_FIGURES = 4
"""Figures of a kind from which its error is told."""


class LawError(NamedTuple):
    """Relative error of the law, one standard deviation, in requests/s, in TTFT, in ITL and E2E, and in the percentiles
    of the gaps between tokens; 0: not seen."""

    requests_per_s: float = 0.0
    ttft: float = 0.0
    itl: float = 0.0
    gap: float = 0.0

    @property
    def by_measure(self) -> Floats:
        """One for each of `sizing.simulator.replay.MEASURES`, shape (8,)."""
        return np.array([self.requests_per_s, self.ttft, *[self.itl] * 2, *[self.ttft] * 2, *[self.gap] * 2])


EXACT = LawError()
KINDS = ([0], [1, 4, 5], [2, 3], [6, 7])
"""Columns of MEASURES that share an error."""


def law_error(misfits: Floats, errors: Floats) -> LawError:
    """The law's error behind `misfits` (logs of predicted over measured, NaN: not measured) beyond the measurement's
    relative standard `errors`; both of shape (points, 8)."""
    found = []
    for columns in KINDS:
        known = np.isfinite(misfits[:, columns])
        found.append(excess(misfits[:, columns][known], errors[:, columns][known]))
    return LawError(*found)


def excess(misfits: Floats, errors: Floats) -> float:
    """The t >= 0 at which the mean of misfit^2 / (error^2 + t^2) is 1 (Paule and Mandel 1982), or 0 where it is below 1
    without it. The numbers fitted are not counted off the mean, so that few points do not make a law look wrong.

    >>> round(excess(np.array([0.05, -0.05, 0.05, -0.05]), np.full(4, 0.03)), 3)
    0.04
    """

    def too_much(error: float) -> float:
        return float(np.mean(misfits**2 / (errors**2 + error**2))) - 1

    if len(misfits) < LEAST_FIGURES or too_much(0.0) <= 0:
        return 0.0
    # With t^2 the sum of the squares each term is at most its share of the sum: the mean is below 1.
    return float(root(too_much, 0.0, float(np.linalg.norm(misfits)), xtol=1e-4))
