"""The gaps between tokens, as every reader of a stream sees them: a histogram of all gaps of a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sizing.compiled import compiled, compiled_apart
from sizing.prediction import Quantiles
from sizing.simulator.state import GAP_BINS
from sizing.workload import PERCENTILES

LEAST_GAP_S = 1e-5
PARTS = 128
"""Bins from a gap to twice that gap, of equal width (as in HdrHistogram): 0.4 to 0.8 % of the gaps in them. They
start at 10 us and end beyond 1000 s; gaps outside fall into the first or last bin."""
EDGES_S = LEAST_GAP_S * np.ldexp(1 + np.arange(GAP_BINS + 1) % PARTS / PARTS, np.arange(GAP_BINS + 1) // PARTS)
Counts = NDArray[np.int64]


@compiled
def bin_of(gap_s: float) -> int:
    """The bin of a gap; the exponent of a binary number is its logarithm, ready made."""
    if gap_s <= LEAST_GAP_S:
        return 0
    share, exponent = math.frexp(gap_s / LEAST_GAP_S)
    return min((exponent - 1) * PARTS + int((2 * share - 1) * PARTS), GAP_BINS - 1)


@compiled_apart
def count_gaps(counts: Counts, gap_s: float, growth_s: float, steps: int, lanes: int) -> None:
    """Count the gaps of `steps` decode steps of `lanes` sequences, each step `growth_s` longer than the one before.

    Exact: of each bin the steps are counted that end below its upper edge.
    """
    while steps > 0:
        place = bin_of(gap_s)
        inside = steps
        if steps > 1 and growth_s > 0 and place < len(counts) - 1:
            room_s = EDGES_S[place + 1] - gap_s
            if growth_s * (steps - 1) >= room_s:
                inside = min(max(math.ceil(room_s / growth_s), 1), steps)
        counts[place] += inside * lanes
        gap_s += inside * growth_s
        steps -= inside


def no_gaps(*, counted: bool) -> Counts:
    """An empty histogram of the gaps of one run; of no length where they are not counted."""
    return np.zeros(GAP_BINS if counted else 0, np.int64)


@compiled
def percentile_s(counts: Counts, percentile: float) -> float:
    """One percentile of the gaps of a run, as `gap_quantiles` has it: a scan of the bins in use."""
    total = counts.sum()
    if total == 0:
        return math.nan
    wanted, below, place = percentile / 100 * total, 0, 0
    while below + counts[place] < wanted:
        below += counts[place]
        place += 1
    share = (wanted - below) / max(counts[place], 1)
    return float(EDGES_S[place] + (EDGES_S[place + 1] - EDGES_S[place]) * share)


def gap_quantiles(counts: Counts, percentiles: Sequence[float]) -> NDArray[np.float64]:
    """Percentiles (0 to 100) in seconds of the gaps counted, shape (percentiles,); NaN if there are none.

    Counts of several replicas may be given, shape (replicas, bins): they are added. Off by less than a bin, 0.8 %.
    """
    total = np.cumsum(np.reshape(counts, (-1, GAP_BINS)).sum(axis=0))
    if total[-1] == 0:
        return np.full(len(percentiles), np.nan)
    wanted = np.clip(np.asarray(percentiles, float) / 100, 0, 1) * total[-1]
    place = np.minimum(np.searchsorted(total, wanted), GAP_BINS - 1)
    below = np.where(place > 0, total[place - 1], 0)
    share = (wanted - below) / np.maximum(total[place] - below, 1)
    return np.asarray(EDGES_S[place] + (EDGES_S[place + 1] - EDGES_S[place]) * share, float)


@dataclass(frozen=True, slots=True, eq=False)
class TokenGaps:
    """Every gap between two tokens in the measured part of a run, those of all requests pooled; within 0.8 %.

    `counts`: shape (windows, bins), windows of equally many arrivals one after the other. `lost`: gaps of requests that
    were not served; each of them is beyond every limit.
    """

    counts: Counts
    lost: int = 0

    @property
    def total(self) -> int:
        """Gaps in all, those that never ended included."""
        return int(self.counts.sum()) + self.lost

    def quantiles(self) -> Quantiles:
        """Of the gaps that ended; NaN if there is none."""
        pooled = self.counts.sum(axis=0)
        seen = int(pooled.sum())
        mean_s = float(pooled @ (EDGES_S[1:] + EDGES_S[:-1])) / 2 / seen if seen else math.nan
        return Quantiles(mean_s, *map(float, gap_quantiles(pooled, PERCENTILES)))

    def share_above(self, limit_s: float) -> float:
        """Share of the gaps that are longer than `limit_s`; 0 where there are none."""
        return (float(above(self.counts.sum(axis=0), limit_s)) + self.lost) / self.total if self.total else 0.0

    def upper_s(self, percentile: float, sure: float) -> float:
        """Upper end of a percentile, `sure` standard errors up; infinite where nothing was measured, or much was lost.

        Gaps near each other in time share their iterations: the error of the share beyond the percentile comes from the
        differences between windows.
        """
        value_s = self._quantile_s(percentile / 100)
        if not math.isfinite(value_s):
            return math.inf
        counted = self.counts[self.counts.sum(axis=1) > 0]
        beyond = above(counted, value_s) / counted.sum(axis=1)
        error = float(beyond.std(ddof=1)) / math.sqrt(len(counted)) if len(counted) > 1 else 1.0
        return self._quantile_s(min(percentile / 100 + sure * error, 1.0))

    def _quantile_s(self, share: float) -> float:
        """The gap that this share of all stays at or below; infinite where it reaches into the lost."""
        seen = self.total - self.lost
        if seen == 0 or share * self.total > seen:
            return math.inf
        # A share that falls on a whole number of gaps must not be rounded up to the next one.
        return float(gap_quantiles(self.counts, (100 * share * self.total / seen * (1 - 1e-12),))[0])


def above(counts: Counts, limit_s: float) -> NDArray[np.float64]:
    """Gaps longer than `limit_s`, of histograms along the last axis; those of the bin it falls in are spread evenly."""
    place = int(np.clip(np.searchsorted(EDGES_S, limit_s, side="right") - 1, 0, GAP_BINS - 1))
    part = min(max((EDGES_S[place + 1] - limit_s) / (EDGES_S[place + 1] - EDGES_S[place]), 0.0), 1.0)
    return np.asarray(counts[..., place + 1 :].sum(axis=-1) + part * counts[..., place], float)
