"""The largest rate at which something holds, by bisection: slow, plain, and not the planner's own search."""

from __future__ import annotations

import math
from collections.abc import Callable

TOLERANCE = 0.004
"""Relative width at which the search stops."""
IDLE = 0.01


def largest(holds: Callable[[float], bool], guess: float, ceiling: float) -> float:
    """The largest x up to `ceiling` that `holds`, to `TOLERANCE`; 0 when not even a hundredth of the guess does.

    `holds` must be true below some x and false above it.

    >>> round(largest(lambda x: x <= 3.0, guess=1.0, ceiling=100.0), 1)
    3.0
    """
    low = high = min(guess, ceiling)
    step = 1.04
    if holds(low):
        while holds(high := min(low * step, ceiling)):
            if high == ceiling:
                return ceiling
            low, step = high, step**2
    else:
        while not holds(low := high / step):
            if low < IDLE * guess:
                return 0.0
            high, step = low, step**2
    while high / low - 1 > TOLERANCE:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
