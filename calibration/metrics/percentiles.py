"""Percentiles with what may be said of them: enough samples or none, and bounds that need no law of distribution."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, bdtrik

from sizing.numbers import Floats

Mask = NDArray[np.bool_]

PERCENTILES = (50, 90, 95, 99)
GAP_PERCENTILES = (50, 95, 99)
ALWAYS = 50
SURE = 0.99
BOUNDS_CONFIDENCE = 0.95


@cache
def samples_needed(percentile: int) -> int:
    """Samples without which a percentile is not told: 64 for p90, 130 for p95, 662 for p99; a median is always told.

    With so many, the second largest sample is above the true percentile in 99 % of cases. With fewer, not even an upper
    bound could be given that does not rest on one single request. This is the rule by which MLPerf's tail latencies
    stop early, at one query allowed over the bound; it holds for independent samples of any distribution.

    >>> samples_needed(99)
    662
    """
    if percentile <= ALWAYS:
        return 1
    above = 1 - percentile / 100
    n = 2
    while bdtr(1, n, above) > 1 - SURE:
        n += 1
    return n


def told(percentiles: Sequence[int], samples: float) -> list[int]:
    """Those of `percentiles` that `samples` independent samples are enough for."""
    return [percentile for percentile in percentiles if samples >= samples_needed(percentile)]


def weighted(values: Floats, weight: Floats, shares: Sequence[float] | Floats) -> Floats:
    """The smallest values with at least each of `shares` (0 to 1) of the weight at or below them."""
    return np.asarray(np.quantile(values, np.asarray(shares), weights=weight, method="inverted_cdf"))


def bounds(percentile: int, samples: int) -> tuple[float, float] | None:
    """Shares of the sample, lower and upper, between whose values the true percentile lies with 95 % confidence.

    Order statistics of `samples` independent samples of any distribution (by the binomial law of how many fall below);
    None where there are too few. Correlated samples are worth fewer: the bounds are then too narrow.

    >>> bounds(percentile=50, samples=100)
    (0.4, 0.61)
    """
    if samples < 1:
        return None
    tail = (1 - BOUNDS_CONFIDENCE) / 2
    lower, upper = (int(np.ceil(bdtrik(chance, samples, percentile / 100))) for chance in (tail, 1 - tail))
    if lower < 1 or upper + 1 > samples:
        return None
    return lower / samples, (upper + 1) / samples


def statistics(name: str, values: Floats, weight: Floats, counted: Mask) -> dict[str, float]:
    """`name` _mean_s and those percentiles that there are enough samples for, by `weight`; NaN is no value.

    `counted`, shape (n,), marks the samples that count as one; the others are parts of requests at a window's edge.
    """
    known = np.isfinite(values)
    if not known.any():
        return {}
    values, weight = values[known], weight[known]
    found = {f"{name}_mean_s": float(np.average(values, weights=weight))}
    chosen = told(PERCENTILES, int(counted[known].sum()))
    quantiles = weighted(values, weight, np.array(chosen) / 100).tolist()
    return found | {f"{name}_p{q}_s": value for q, value in zip(chosen, quantiles, strict=True)}


def bound_statistics(name: str, values: Floats, weight: Floats, counted: Mask) -> dict[str, float]:
    """The bounds of each percentile that `statistics` tells: `name` _p95_low_s and `name` _p95_high_s."""
    known = np.isfinite(values)
    samples = int(counted[known].sum())
    found: dict[str, float] = {}
    for q in told(PERCENTILES, samples):
        shares = bounds(q, samples)
        if shares is not None:
            low, high = weighted(values[known], weight[known], shares).tolist()
            found |= {f"{name}_p{q}_low_s": low, f"{name}_p{q}_high_s": high}
    return found


def gap_percentiles(name: str, gaps_s: Floats, in_flight: float) -> dict[str, float]:
    """Percentiles of gaps between responses, where there are enough.

    Gaps of requests in flight together end with the same step of the engine: they count as one sample between them.
    """
    if not gaps_s.size:
        return {}
    chosen = told(GAP_PERCENTILES, gaps_s.size / max(1.0, in_flight))
    return {f"{name}_p{q}_s": float(value) for q, value in zip(chosen, np.percentile(gaps_s, chosen), strict=True)}
