"""When requests of an open loop fall due: at random or evenly, at one rate or along a schedule of rates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sizing.workload import Arrivals, Seconds


def arrival_times(arrivals: Arrivals, rate_per_s: float, n: int, rng: np.random.Generator) -> Seconds:
    """Times in seconds from the start, shape (n,), of `n` arrivals, the last at exactly ``n / rate_per_s``.

    For Poisson arrivals this is a Poisson stream given its count in that time: gaps are as random as ever, but the rate
    of the run is the one asked for. Left to chance, the rate of 600 arrivals would be off by 4 %, and latencies near
    saturation by far more.

    >>> arrival_times(Arrivals.parse("constant"), 4.0, 4, np.random.default_rng(0))
    array([0.25, 0.5 , 0.75, 1.  ])
    """
    if n == 0:
        return np.empty(0)
    times_s = np.cumsum(arrivals.gaps(n, rate_per_s, rng))
    return np.asarray(times_s * (n / rate_per_s / times_s[-1]))


def schedule_times(stages: Sequence[tuple[float, float]], arrivals: Arrivals, rng: np.random.Generator) -> Seconds:
    """Arrivals along `stages`, pairs (for seconds, requests/s) one after another; a rate of 0 is a pause.

    Gaps of mean 1 are drawn once and stretched by the rate of the moment, so that a gap across two stages is right in
    both; the whole schedule has its expected number of arrivals, rounded down.

    >>> schedule_times([(1.0, 2.0), (1.0, 0.0), (1.0, 4.0)], Arrivals.parse("constant"), np.random.default_rng(0))
    array([0.5 , 1.  , 2.25, 2.5 , 2.75, 3.  ])
    """
    lasts_s, rates_per_s = np.array(stages, np.float64).reshape(-1, 2).T
    ends_s = np.concatenate([[0.0], np.cumsum(lasts_s)])
    expected = np.concatenate([[0.0], np.cumsum(lasts_s * rates_per_s)])
    n = int(expected[-1] * (1 + 1e-12))
    counts = arrival_times(arrivals, 1.0, n, rng) * (1 - 1e-12)  # the last of a stage is not to wait for the next stage
    stage = np.clip(np.searchsorted(expected, counts) - 1, 0, None)
    with np.errstate(divide="ignore", invalid="ignore"):
        into_s = np.where(rates_per_s[stage] > 0, (counts - expected[stage]) / rates_per_s[stage], 0.0)
    return np.asarray(ends_s[stage] + into_s)
