"""What a measurement of a closed loop shows beside the engine's iterations: how its tool counts, and whom users meet.

Two things of a closed loop follow from no iteration time. A tool's requests/s may hold the ramp and the drain of its
window; and its mean TTFT holds who happens to meet whom in a batch, or a burst of the start inside the window. Both are
smooth in the users where they are anything, so they are carried over from the measured levels next to the one asked.
Nothing of this concerns requests that arrive at random.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sizing.engine import Batching
from sizing.fitting.levels import concurrency, counting_log
from sizing.numbers import Floats
from sizing.points import Point

CLOSED_TTFT_SIGMA = 0.10
"""Relative scatter of a mean TTFT about a smooth curve over the users, in published closed loops: it tells of the start
of each run as much as of the engine."""
ELSEWHERE_TTFT_SIGMA = 0.6
"""The same at lengths that were not measured, and beyond the users that were: published servers' mean TTFT at one ISL
differs by a factor of two and more between output lengths, which no iteration explains."""
ALIKE = 0.05
"""Lengths within this, in logarithms, are the same."""


def levels_at(levels: Sequence[Point], point: Point) -> list[Point]:
    """The closed-loop levels of the same mean lengths, by ascending users."""
    same = [
        level
        for level in levels
        if level.load_kind == "concurrency"
        and max(abs(math.log(level.isl / point.isl)), abs(math.log(level.osl / point.osl))) < ALIKE
    ]
    return sorted(same, key=concurrency)


def between(levels: Sequence[Point], users: float, value_of: str) -> float | None:
    """A figure of the levels at so many users, on straight lines in logarithms; None outside them or where untold."""
    known = [(concurrency(level), getattr(level, value_of)) for level in levels if getattr(level, value_of)]
    if len({level for level, _ in known}) < 2 or not known[0][0] <= users <= known[-1][0]:
        return None
    logs = np.log(np.array(known, float))
    return math.exp(float(np.interp(math.log(users), logs[:, 0], logs[:, 1])))


def ttft_sigma(levels: Sequence[Point], point: Point) -> float:
    """Relative scatter of a closed loop's mean TTFT about what is carried over from the measured levels."""
    users = [concurrency(level) for level in levels_at(levels, point)]
    inside = bool(users) and users[0] <= concurrency(point) <= users[-1]
    return CLOSED_TTFT_SIGMA if inside else ELSEWHERE_TTFT_SIGMA


def as_counted(
    levels: Sequence[Point],
    points: Sequence[Point],
    means: Floats,
    batching: Batching,
    otherwise: bool,
    ttft_over: float = 0.0,
) -> tuple[Floats, Floats]:
    """Requests/s, TTFT and ITL of closed-loop `points` as a tool would show them, from the engine's `means`: shape
    (points, 3). Then how far, in logarithms, TTFT was moved for it, shape (points,).

    `levels`: what was measured; `otherwise`: its tool does not count in a steady window, so requests/s are those of
    Little's law times what its counting made of them at the levels. TTFT between measured levels of the same lengths is
    the geometric mean of the engine's and of the line through the levels, unless users wait for slots or memory: a
    queue begins at one level, and no line between two knows where. `ttft_over`: ln of TTFT measured over the engine's
    at the only level; half of it is moved likewise wherever there is no line.
    """
    seen, moved = means[:, :3].copy(), np.zeros(len(points))
    for row, point in enumerate(points):
        if point.load_kind != "concurrency":
            continue
        same = levels_at(levels, point)
        waits = concurrency(point) > batching.max_batch_size
        waits = waits or concurrency(point) * (point.isl + point.osl) > batching.kv_tokens
        line_s = None if waits else between(same, concurrency(point), "ttft_mean_s")
        if line_s is not None:
            moved[row] = (math.log(line_s) - math.log(seen[row, 1])) / 2
        elif not waits:
            moved[row] = ttft_over / 2
        seen[row, 1] *= math.exp(moved[row])
        if otherwise:
            itl_s = seen[row, 2] if round(point.osl) > 1 else 0.0
            little_per_s = concurrency(point) / (seen[row, 1] + (point.osl - 1) * itl_s)
            seen[row, 0] = little_per_s * math.exp(_counting(same or levels, concurrency(point), bool(same)))
    return seen, moved


def _counting(levels: Sequence[Point], users: int, same: bool) -> float:
    """ln of what the tool counts over Little's law at so many users; of other lengths their median."""
    logs = [counting_log(level) for level in levels]
    if not same:
        return float(np.median(logs))
    return float(np.interp(math.log(users), np.log([concurrency(level) for level in levels]), logs))
