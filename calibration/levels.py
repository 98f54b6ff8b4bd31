"""Levels to be measured: how long each takes, which load it puts on the server, and which of them comes next."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from calibration.errors import PlanError
from calibration.load.loops import Job, schedule_times
from calibration.plan import Level, SweepPlan
from calibration.records import MOST_REQUESTS
from calibration.target import Target
from sizing.errors import ScenarioError
from sizing.numbers import minutes, significant, with_unit
from sizing.points import Deployment, Point
from sizing.question import Question
from sizing.workload import METRICS, Arrivals, Lengths, Seconds

if TYPE_CHECKING:
    from calibration.adapt import Adaptive

MADE_AHEAD = 1.5
NORMAL_95 = 1.96
E2E_VARIANCE = 0.05
CHECKS_AND_BATCHES = 1.5
MOST_MADE_AHEAD = 20_000
LITTLE_LESS = 0.999
Says = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Pace:
    """Latest observed speed for requests of `lengths`: mean E2E of `e2e_s` with `users` in flight.

    `ttft_s` and `itl_s` are those of a single request on the idle server.
    """

    lengths: Lengths
    users: float
    e2e_s: float
    ttft_s: float = 0.0
    itl_s: float = 0.0

    def after(self, point: Point) -> Pace:
        """The pace observed at `point`."""
        return replace(self, users=point.mean_in_flight or self.users, e2e_s=point.e2e_mean_s or self.e2e_s)

    def e2e_at_s(self, users: float) -> float:
        """E2E at another load, good enough for progress bars: it is taken to grow with the square root of the users."""
        return self.e2e_s * math.sqrt(max(1.0, users / self.users))

    def alone_s(self, lengths: Lengths) -> float:
        """Estimated E2E of a single request of other lengths on an idle server; the effect of ISL is ignored."""
        return self.ttft_s + max(0.0, lengths.osl - 1) * self.itl_s or self.e2e_s

    def expected_s(self, plan: SweepPlan, level: Level) -> float:
        """Seconds that `level` will take: ramp and warm-up, measuring, and the last requests."""
        if level.kind in ("schedule", "trace"):
            return float(arrivals_of(plan, level, self)[-1]) + self.e2e_s
        alone_s = self.alone_s(level.lengths)
        if level.closed:
            alone_s *= self.e2e_at_s(level.value) / self.alone_s(self.lengths)
        whole_s = session_s(plan, level, alone_s)
        per_s = level.value / whole_s if level.closed else level.value
        warm_up_s = (plan.warm_up + 1) * whole_s if level.closed else warm_up_arrivals(plan, level, self) / level.value
        return warm_up_s + self._measuring_s(plan, level, per_s * turns_of(plan, level)) + alone_s

    def _measuring_s(self, plan: SweepPlan, level: Level, per_s: float) -> float:
        budget_s = plan.until_of(level).budget_s or math.inf
        return min(expected_requests(plan, level) / per_s, budget_s)

    def streams(self, plan: SweepPlan, level: Level) -> int:
        """Requests in flight at the level, for an open loop by Little's law at the idle server's pace, doubled."""
        users = level.value if level.closed else 2 * _peak_per_s(plan, level) * self.e2e_s
        return max(1, math.ceil(users))

    def tokens_per_s(self, plan: SweepPlan, level: Level) -> float:
        """Estimated output tokens/s of the level on the loaded server."""
        if not level.closed:
            return _peak_per_s(plan, level) * level.lengths.osl
        return level.value * level.lengths.osl / self.e2e_at_s(level.value)


def _peak_per_s(plan: SweepPlan, level: Level) -> float:
    """The highest rate of an open loop over a second or more."""
    if level.kind == "schedule":
        return max(stage.rate for stage in plan.schedule)
    if level.kind == "trace":
        times_s = arrivals_of(plan, level, Pace(level.lengths, 1.0, 1.0))
        return float(np.bincount((times_s - times_s[0]).astype(np.int64)).max())
    return level.value * turns_of(plan, level)


def turns_of(plan: SweepPlan, level: Level) -> float:
    """Mean requests of one arrival, or of one round of a user: the turns of a session, else 1."""
    talk = plan.lengths[level.entry].sessions
    return 1.0 if talk is None else talk.mean_turns


def session_s(plan: SweepPlan, level: Level, e2e_s: float) -> float:
    """Mean time of a session whose turns take `e2e_s`, think time included; without sessions, of a request."""
    talk = plan.lengths[level.entry].sessions
    return e2e_s if talk is None else e2e_s + (turns_of(plan, level) - 1) * (e2e_s + talk.started_at(1.0).think_s)


def expected_requests(plan: SweepPlan, level: Level) -> int:
    """Estimated requests of a level, ignoring its time budget.

    A mean of n values with coefficient of variation c is known to ±1.96 c / √n. Most of the variation is in the output
    length, and E2E adds about 20 %. Half as many again are needed because answers are correlated and intervals are
    checked in steps.
    """
    until = plan.until_of(level)
    if until.requests_max is not None:
        return until.requests_max
    variance = level.lengths.osl_cv**2 + E2E_VARIANCE
    wanted = CHECKS_AND_BATCHES * variance * (NORMAL_95 / until.half_width) ** 2
    return max(until.requests_min or level.requests, math.ceil(wanted))


def warm_up_arrivals(plan: SweepPlan, level: Level, pace: Pace) -> int:
    """Arrivals excluded as warm-up in an open loop: `warm_up` per request or session in flight, by Little's law."""
    return plan.warm_up * max(1, math.ceil(level.value * session_s(plan, level, pace.e2e_s)))


def job_of(target: Target, level: Level, pace: Pace) -> Job:
    """The load of `level`, as the load generator's processes receive it."""
    plan = target.plan
    requests = target.source(level.entry, target.seed(level), evenly=level.closed, replayed=level.kind == "trace")
    if level.closed:
        users, whole_s = round(level.value), session_s(plan, level, pace.e2e_at_s(level.value))
        ramp_s = session_s(plan, level, pace.e2e_s) if plan.ramp_s is None else plan.ramp_s
        ahead = _ahead(plan, level, users / whole_s) + (plan.warm_up + 1) * users
        return Job(
            plan.server, target.contract, requests, users=users, warm_up=plan.warm_up, ramp_s=ramp_s, ahead=ahead
        )
    arrivals_s = arrivals_of(plan, level, pace)
    warm_up = 0 if level.kind in ("schedule", "trace") else warm_up_arrivals(plan, level, pace)
    return Job(
        plan.server,
        target.contract,
        requests,
        arrivals_s=arrivals_s,
        warm_up=warm_up,
        ahead=min(len(arrivals_s), MOST_MADE_AHEAD),
    )


def _ahead(plan: SweepPlan, level: Level, per_s: float) -> int:
    """Prompts prepared before the load starts, so that preparing them does not slow it down."""
    budget_s = plan.until_of(level).budget_s or math.inf
    wanted = min(MADE_AHEAD * expected_requests(plan, level) / turns_of(plan, level), 2 * per_s * budget_s)
    return min(MOST_MADE_AHEAD, math.ceil(wanted))


def arrivals_of(plan: SweepPlan, level: Level, pace: Pace) -> Seconds:
    """Due times of the requests of an open loop, or of first turns, in seconds from its start, warm-up first.

    At most MOST_REQUESTS, since no more can be stored."""
    rng = np.random.default_rng([plan.seed, level.index])
    law = Arrivals.parse(plan.arrivals)
    if level.kind == "schedule":
        return schedule_times([(stage.for_s, stage.rate) for stage in plan.schedule], law, rng)
    if level.kind == "trace":
        times_s = plan.lengths[level.entry].arrivals_s
        assert times_s is not None, "a level of kind trace has lengths that are a trace"
        rate_per_s = (len(times_s) - 1) / float(times_s[-1] - times_s[0])
        return np.asarray((times_s - times_s[0]) * (rate_per_s / level.value))
    wanted = warm_up_arrivals(plan, level, pace) + arrivals_wanted(plan, level) + 1
    return law.times(min(wanted, MOST_REQUESTS), level.value, rng)


def arrivals_wanted(plan: SweepPlan, level: Level) -> int:
    """Requests, or first turns, that come to an open loop at a rate after its warm-up, if nothing ends it earlier."""
    until = plan.until_of(level)
    requests = (until.requests_max or level.requests) / turns_of(plan, level)
    longest = 0 if until.requests_max else math.ceil(level.value * (until.budget_s or 0.0))
    return max(math.ceil(requests), longest)


class Order(Protocol):
    """Chooses the next level and estimates how long the rest will take."""

    def next(self, points: Sequence[Point]) -> Level | None:
        """The level to measure after `points`, the run's points so far; None when the run is complete."""

    def skip(self, level: Level) -> None:
        """Do not choose `level`, the last one chosen, again: it has no point and will get none."""

    def expected_s(self, pace: Pace) -> tuple[float, float]:
        """Estimated seconds for the last level chosen, and for the remaining levels."""


def order_of(target: Target, levels: Sequence[Level], pace: Pace, says: Says) -> Order:
    """The plan's order of `levels`, those without a point. `says` receives a line on the time that they may take."""
    plan = target.plan
    if plan.adaptive is not None:
        return AsNeeded(target, levels, pace, says)
    order = ThenRandomArrivals(target, levels) if plan.check_loads else Grid(target, levels)
    expected_s = sum(pace.expected_s(plan, level) for level in levels)
    checks = f", then {plan.check_loads} with random arrivals" if plan.check_loads else ""
    says(f"{with_unit(str(len(levels)), 'levels')}, about {minutes(expected_s)}{checks}")
    return order


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
        """A level at the first of the lengths that has only closed-loop points."""
        plan, levels = self._target.plan, self._target.levels
        for entry, lengths in enumerate(plan.lengths):
            if entry in self._skipped or lengths.concurrency is not None or lengths.sessions is not None:
                continue
            level = next(level for level in levels if level.entry == entry)
            alike = [point for point in points if point.lengths == level.lengths]
            best_per_s = max((point.requests_per_s for point in alike if not point.void), default=0.0)
            if best_per_s and all(point.closed for point in alike):
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
    """The closed-loop levels that the plan's question needs, every open-loop level, then the one that verifies."""

    def __init__(self, target: Target, levels: Sequence[Level], pace: Pace, says: Says) -> None:
        self._says = says
        self._target = target
        plan = target.plan
        self._adaptive = adaptive_of(plan, target.levels, target.replica, lambda level: pace.expected_s(plan, level))
        self._choosing = True
        self._after = Grid(target, [level for level in levels if level.kind != "concurrency"])
        assert plan.adaptive is not None
        self._verify_s = 60 * plan.adaptive.verify_minutes
        self._verifying: Level | None = None
        wanted = self._adaptive.question.workload.lengths
        self._asked = next((level for level in target.levels if level.lengths.is_like(wanted)), None)
        says(self._adaptive.before)
        if self._verify_s and self._asked is None:
            self._verify_s = 0.0
            says("no verification at the end: none of the plan's lengths are those that its question is about")

    def skip(self, level: Level) -> None:
        """The choice depends on the points alone: without a new one the same level would be chosen again."""
        self._choosing = False

    def next(self, points: Sequence[Point]) -> Level | None:
        if self._choosing:
            level = self._adaptive.next(points)
            self._says(self._adaptive.why)
            if level is not None:
                return self._target.levels[level.index]
            self._says(str(self._adaptive.summary(points)))
            self._choosing = False
        return self._after.next(points) or self._verify(points)

    def _verify(self, points: Sequence[Point]) -> Level | None:
        """The planned load of a replica, once; None if there is no plan, or if that load was measured already."""
        if not self._verify_s or self._verifying is not None:
            return None
        planned_per_s, plan, asked = self._adaptive.planned_per_s(points), self._target.plan, self._asked
        if planned_per_s is None or asked is None:
            return None
        rate_per_s = untried(planned_per_s, points, self._adaptive.question)
        if any(is_at(point, rate_per_s, self._adaptive.question) for point in points):
            return None
        self._says(f"verifying: {significant(rate_per_s)} requests/s at random for {minutes(self._verify_s)}")
        place, least = len(self._target.levels), plan.requests_per_level or 100
        self._verifying = Level(place, asked.lengths, plan.rate_kind, rate_per_s, least, asked.entry, verifies=True)
        return self._verifying

    def expected_s(self, pace: Pace) -> tuple[float, float]:
        if self._verifying is not None:
            return pace.expected_s(self._target.plan, self._verifying), 0.0
        if not self._choosing:
            first_s, after_s = self._after.expected_s(pace)
            return first_s, after_s + self._verify_s
        after_s = max(0.0, self._adaptive.remaining_s - self._adaptive.expected_s) + self._verify_s
        return self._adaptive.expected_s, after_s + self._after.total_s(pace)


def untried(planned_per_s: float, points: Sequence[Point], question: Question) -> float:
    """The load at which to verify, in three digits. A run measures a level only once: after an inconclusive
    verification it is a little less."""
    rate_per_s = float(f"{planned_per_s:.3g}")
    while any(is_at(point, rate_per_s, question) and not _tells(point, question) for point in points):
        rate_per_s = float(f"{LITTLE_LESS * rate_per_s:.4g}")
    return rate_per_s


def is_at(point: Point, rate_per_s: float, question: Question) -> bool:
    """True for a point of random arrivals at this rate, with the question's lengths."""
    at_rate = point.load_kind == "poisson_rate" and point.load_value == rate_per_s
    return at_rate and point.lengths.is_like(question.workload.lengths)


def _tells(point: Point, question: Question) -> bool:
    """Whether the point is conclusive: the server was overloaded, or steady with enough requests for every percentile
    that is limited."""
    limited = (f"{limit.metric}_p{limit.percentile:g}_s" for limit in question.sla.limits if limit.metric in METRICS)
    enough = all(getattr(point, name, 0.0) is not None for name in limited)
    return point.verdict == "overloaded" or (point.verdict == "steady" and enough)


def adaptive_of(
    plan: SweepPlan, levels: Sequence[Level], replica: Deployment, guess_s: Callable[[Level], float]
) -> Adaptive:
    """The adaptive choice among the closed loops of `levels` for the plan's question. Raises PlanError."""
    from calibration.adapt import Adaptive  # loads scipy and numba, which a plain sweep does not need

    assert plan.adaptive is not None
    try:
        question = plan.adaptive.question(replica.model, levels[0].lengths)
    except ScenarioError as error:
        raise PlanError(f"adaptive: {error}") from None
    closed = [
        replace(level, requests=expected_requests(plan, level)) for level in levels if level.kind == "concurrency"
    ]
    longest = (plan.until_of(level).budget_s for level in closed)
    return Adaptive(
        closed,
        question,
        plan.adaptive.budget_s(replica.tp * replica.pp),
        guess_s,
        warm_up=plan.warm_up,
        limit_s=max((limit_s or math.inf for limit_s in longest), default=math.inf),
        band=plan.adaptive.band,
    )
