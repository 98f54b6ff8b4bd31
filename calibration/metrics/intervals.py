"""How sure a mean over a window is: confidence intervals by batch means, for latencies and for rates.

Requests of one window are not independent: those in flight together share the engine's steps and its queue. Means of
long enough batches nearly are. A batch here is a whole number of *waves*, a wave being as many requests as are in
flight on average: it lasts one mean E2E, and in a lockstep closed loop it holds every place of the queue once. What
correlation is left between neighbours widens the interval, as in Skart (Tafazzoli and Wilson 2011); it never narrows
it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# --- Student's t, from scipy, which is loaded when the first quantile is asked for
#
# Importing scipy.special takes a third of a second: the processes of the load generator import this and never ask.


def t_quantile(degrees: float, share: float) -> float:
    """The value below which a t-distributed variable of `degrees` degrees of freedom lies with probability `share`.

    >>> round(t_quantile(10, 0.975), 3)
    2.228
    """
    from scipy.special import stdtrit

    return float(stdtrit(degrees, share))


Floats = NDArray[np.float64]
FEWEST_BATCHES = 8
MOST_BATCHES = 20
MOST_CORRELATION = 0.9


@dataclass(frozen=True, slots=True)
class BatchMeans:
    """`count` batches of `size` requests each."""

    count: int
    size: int


def batches(requests: int, in_flight: float) -> BatchMeans | None:
    """How to cut `requests` into 8 to 20 batches of whole waves of `in_flight` requests; None where they are too few.

    >>> batches(requests=1000, in_flight=32.0)
    BatchMeans(count=15, size=64)
    """
    wave = max(1, round(in_flight))
    waves = requests // wave
    if waves < FEWEST_BATCHES:
        return None
    waves_per_batch = math.ceil(waves / MOST_BATCHES)
    return BatchMeans(waves // waves_per_batch, waves_per_batch * wave)


def batch_means(values: Floats, cut: BatchMeans) -> Floats:
    """Means of the batches, shape (count,), of `values` in their order; the last values, left over, are dropped."""
    return np.asarray(values[: cut.count * cut.size].reshape(cut.count, cut.size).mean(axis=1))


def done_by(start_s: Floats, end_s: Floats, at_s: Floats) -> Floats:
    """Requests done by each time of `at_s`, shape (times,), where one under way counts by the share of its time gone.

    Differences are rates that do not jump when a whole wave of a lockstep loop ends at once.
    """
    lasting_s = np.maximum(end_s - start_s, np.finfo(float).tiny)
    return np.array([np.clip((now_s - start_s) / lasting_s, 0, 1).sum() for now_s in at_s.tolist()])


def batch_rates(start_s: Floats, end_s: Floats, window_s: tuple[float, float], count: int) -> Floats:
    """Requests/s in each of `count` equal parts of the window, shape (count,), by shares as `done_by` counts them."""
    edges_s = np.linspace(*window_s, count + 1)
    return np.asarray(np.diff(done_by(start_s, end_s, edges_s)) / np.diff(edges_s))


def inflation(residuals: Floats, fitted: int) -> float:
    """By how much correlation r of neighbours inflates the variance of what was fitted: (1 + r)/(1 - r), from 1 to 19.

    r is the lag-1 correlation of `residuals`, corrected for its bias: fitting `fitted` coefficients makes neighbours
    look opposed by about (fitted + 4 r)/n (Kendall 1954). Opposed neighbours count as independent.
    """
    spread = float(residuals @ residuals)
    if spread == 0:
        return 1.0
    raw = float(residuals[1:] @ residuals[:-1]) / spread
    corrected = raw + (fitted + 4 * max(0.0, raw)) / len(residuals)
    correlation = min(MOST_CORRELATION, max(0.0, corrected))
    return (1 + correlation) / (1 - correlation)


def half_width(means: Floats, confidence: float) -> float:
    """Half width of the confidence interval of the mean of batch `means`, in their unit.

    Student's t on the batch means; what correlation is left between neighbours inflates the variance and takes from the
    degrees of freedom alike.
    """
    n = len(means)
    residuals = means - means.mean()
    factor = inflation(residuals, fitted=1)
    freedom = max(1.0, (n - 1) / factor)
    error = math.sqrt(float(residuals @ residuals) / (n - 1) / n * factor)
    return t_quantile(freedom, (1 + confidence) / 2) * error
