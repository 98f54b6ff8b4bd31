"""The least whole number for which something holds, where each trial is dear: searched from a good guess."""

from __future__ import annotations

from collections.abc import Callable


def least(holds: Callable[[int], bool], start: int, most: int) -> int | None:
    """The least whole number from 1 that `holds`, searched from `start` in growing steps; None if none up to `most`.

    `holds` must be false below some number and true above it.

    >>> least(lambda n: n >= 37, start=20, most=1000)
    37
    """
    low, high = 0, start
    step = max(1, start // 16)
    if holds(start):
        while high - step > 0 and holds(high - step):
            high, step = high - step, 2 * step
        low = max(0, high - step)
    else:
        low = start
        while not holds(high := min(low + step, most)):
            if high == most:
                return None
            low, step = high, 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
