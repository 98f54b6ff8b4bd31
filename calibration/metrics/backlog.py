"""Do requests of an open loop leave as they come, or does the queue grow beyond what chance would do?"""

from __future__ import annotations

import math

import numpy as np

from calibration.metrics.student import t_quantile
from calibration.metrics.trends import Change
from calibration.metrics.window import Sample, failed_inside, over_s
from calibration.records import Load

SERVED_SHARE = 0.98
CONFIDENCE = 0.95
STEPS = 20


def fell_behind(load: Load, sample: Sample) -> bool:
    """True where fewer than 98 % of the requests that fell due in the window, failed ones included, left in it.

    Those that the client never came to send count as due.
    """
    came, left = _came_and_left(load, sample)
    return left < SERVED_SHARE * came


def behind(load: Load, sample: Sample) -> str:
    """By how much, in words."""
    came, left = _came_and_left(load, sample)
    return (
        f"{left / load.duration_s:.4g} requests/s finished where {came / load.duration_s:.4g} came, {left / came:.1%}, "
        f"needed are {SERVED_SHARE:.0%}"
    )


def _came_and_left(load: Load, sample: Sample) -> tuple[int, int]:
    return load.issued, sample.completed + int(failed_inside(load).sum())


def growth(load: Load) -> Change:
    """Growth of the requests in flight over the window, with the one-sided half width of a 95 % interval.

    The steps of a queue at exactly its capacity are independent, so that their mean has Student's t interval; below
    capacity steps up are followed by steps down and the growth is smaller than that allows.
    """
    edges_s = np.linspace(load.start_s, load.stop_s, STEPS + 1)
    came = np.searchsorted(np.sort(load.log.intended_s), edges_s)
    left = np.searchsorted(np.sort(over_s(load.log)), edges_s)
    steps = np.diff(came - left)
    reach = t_quantile(STEPS - 1, CONFIDENCE) * float(steps.std(ddof=1)) * math.sqrt(STEPS)
    return Change(float(steps.sum()), reach)
