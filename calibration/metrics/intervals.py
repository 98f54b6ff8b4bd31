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

from sizing.numbers import Floats

FEWEST_BATCHES = 8
MOST_BATCHES = 20


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
