"""In which order levels are measured: a plain grid as the plan has it, or those that a question needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from calibration.levels import Level
from calibration.measure import Pace, Target, expected_requests
from sizing.curves import Point

if TYPE_CHECKING:
    from calibration.adapt import Adaptive

Says = Callable[[str], None]


class Sweep(Protocol):
    """Names the next level, and tells how long the rest will take."""

    def next(self, points: Sequence[Point]) -> Level | None:
        """The level to measure after `points`, those the run has so far; None when there is no more to do."""

    def skip(self, level: Level) -> None:
        """`level`, named last, has no point and will have none: do not name it again."""

    def expected_s(self, pace: Pace) -> tuple[float, float]:
        """Seconds for the level named last, and for all that is thought to follow it."""


def sweep_of(target: Target, levels: Sequence[Level], pace: Pace, says: Says) -> Sweep:
    """The sweep that the plan asks for over `levels`, those without a point. `says` is told the time it may take."""
    if target.plan.adaptive is None:
        expected_s = sum(pace.expected_s(target.plan, level) for level in levels)
        checks = f", then {target.plan.check_loads} with random arrivals" if target.plan.check_loads else ""
        says(f"{len(levels)} levels, about {minutes(expected_s)}{checks}")
        return ThenRandomArrivals(target, levels) if target.plan.check_loads else Grid(target, levels)
    return AsNeeded(target, levels, pace, says)


class Grid:
    """One level after another."""

    def __init__(self, target: Target, levels: Sequence[Level]) -> None:
        self._plan = target.plan
        self._left = list(levels)
        self._named = 0

    def next(self, points: Sequence[Point]) -> Level | None:
        self._left = self._left[self._named :]
        self._named = 1
        return self._left[0] if self._left else None

    def skip(self, level: Level) -> None: ...

    def total_s(self, pace: Pace) -> float:
        """Seconds for all levels not measured yet."""
        return sum(pace.expected_s(self._plan, level) for level in self._left[self._named :])

    def expected_s(self, pace: Pace) -> tuple[float, float]:
        first_s, *after_s = [pace.expected_s(self._plan, level) for level in self._left]
        return first_s, sum(after_s)


class ThenRandomArrivals:
    """One level after another, then random arrivals at a share of the highest requests/s found."""

    def __init__(self, target: Target, levels: Sequence[Level]) -> None:
        self._target = target
        self._grid = Grid(target, levels)
        self._level: Level | None = None
        self._skipped: set[int] = set()

    def next(self, points: Sequence[Point]) -> Level | None:
        self._level = self._grid.next(points) or self._check(points)
        return self._level

    def _check(self, points: Sequence[Point]) -> Level | None:
        """The first of the lengths that has closed-loop points and no other."""
        plan, levels = self._target.plan, self._target.levels
        for entry in set(range(len(plan.lengths))) - self._skipped:
            level = next(level for level in levels if level.entry == entry)
            alike = [point for point in points if point.lengths == level.lengths]
            best_per_s = max((point.requests_per_s for point in alike if not point.void), default=0.0)
            if best_per_s and all(point.load_kind == "concurrency" for point in alike):
                rate = float(f"{plan.check_load * best_per_s:.2g}")
                requests = plan.requests_per_level or 100
                return replace(level, index=len(levels) + entry, kind=plan.rate_kind, value=rate, requests=requests)
        return None

    def skip(self, level: Level) -> None:
        if level.kind != "concurrency":
            self._skipped.add(level.entry)

    def expected_s(self, pace: Pace) -> tuple[float, float]:
        if self._level is None or self._level.kind == "concurrency":
            return self._grid.expected_s(pace)
        return pace.expected_s(self._target.plan, self._level), 0.0


class AsNeeded:
    """The closed-loop levels that the plan's question needs, then every open-loop level."""

    def __init__(self, target: Target, levels: Sequence[Level], pace: Pace, says: Says) -> None:
        self._says = says
        self._levels = target.levels
        self._adaptive: Adaptive | None = _adaptive(target, pace)
        self._after = Grid(target, [level for level in levels if level.kind != "concurrency"])
        says(self._adaptive.before)

    def skip(self, level: Level) -> None:
        """The choice follows from the points alone: without one it would be the same level for ever."""
        self._adaptive = None

    def next(self, points: Sequence[Point]) -> Level | None:
        if self._adaptive is not None:
            level = self._adaptive.next(points)
            self._says(self._adaptive.why)
            if level is not None:
                return self._levels[level.index]
            self._says(str(self._adaptive.summary(points)))
            self._adaptive = None
        return self._after.next(points)

    def expected_s(self, pace: Pace) -> tuple[float, float]:
        if self._adaptive is None:
            return self._after.expected_s(pace)
        after_s = max(0.0, self._adaptive.remaining_s - self._adaptive.expected_s)
        return self._adaptive.expected_s, after_s + self._after.total_s(pace)


def _adaptive(target: Target, pace: Pace) -> Adaptive:
    from calibration.adapt import Adaptive, question_of  # costs scipy and numba, which a plain sweep does without

    plan, replica = target.plan, target.replica
    assert plan.adaptive is not None
    levels = [level for level in target.levels if level.kind == "concurrency"]
    closed = [replace(level, requests=expected_requests(plan, level)) for level in levels]
    longest = (plan.until_of(level).budget_s for level in closed)
    return Adaptive(
        closed,
        question_of(plan.adaptive, replica.model, target.levels[0].lengths),
        plan.adaptive.budget_s(replica.tp * replica.pp),
        lambda level: pace.expected_s(plan, level),
        warm_up=plan.warm_up,
        limit_s=max((limit_s or math.inf for limit_s in longest), default=math.inf),
        band=plan.adaptive.band,
    )


def minutes(seconds: float) -> str:
    """For people: ``45 s``, ``3.2 minutes``."""
    return f"{seconds:.0f} s" if seconds < 60 else f"{seconds / 60:.1f} minutes"
