"""A throughput with the parameters it was measured at, per instance and per GPU; and the choice of the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from sizing.errors import ScenarioError
from sizing.numbers import milliseconds, significant
from sizing.plans import NoFeasiblePlan
from sizing.points import Point
from sizing.workload import OF_REQUESTS, RequestMetric, finite, parse_seconds

Statistic = Literal["mean", "p50", "p90", "p95", "p99"]
STATISTICS: tuple[Statistic, ...] = get_args(Statistic)
SIX = ("model", "precision", "isl", "osl", "concurrency", "tp")
"""A throughput means nothing without these: each one alone can change it several times over."""


@dataclass(frozen=True, slots=True)
class Throughput:
    """Requests/s of one instance, with the six parameters it holds for and the point it was measured at.

    >>> from sizing.points import Point
    >>> measured = throughput(Point(model="M", precision="fp8", gpu="H100", tp=2, isl=2000, osl=200,
    ...     load_kind="concurrency", load_value=10, requests_per_s=6.0))
    >>> measured.per_gpu, measured.per_gpus(8), measured.concurrency_per_gpus(8)
    (3.0, 24.0, 40.0)
    """

    point: Point
    concurrency: float

    @property
    def per_instance(self) -> float:
        """Requests/s of one instance: the unit to measure in."""
        return self.point.requests_per_s

    @property
    def per_gpu(self) -> float:
        """Requests/s over the GPUs of the instance: the unit to size in."""
        return self.per_instance / self.point.gpus

    def per_gpus(self, gpus: int = 8) -> float:
        """Requests/s of this many GPUs filled with instances."""
        return self.per_gpu * gpus

    def concurrency_per_gpus(self, gpus: int = 8) -> float:
        """Requests in flight on this many GPUs filled with instances."""
        return self.concurrency * gpus / self.point.gpus

    @property
    def label(self) -> str:
        """The six parameters and the GPU on one line."""
        point = self.point
        return (
            f"{point.model} {point.precision}, {point.gpu} TP{point.tp}, {point.isl:g} in, {point.osl:g} out, "
            f"concurrency {self.concurrency:g}"
        )


def throughput(point: Point) -> Throughput:
    """The throughput of a measured point; ScenarioError for an open-loop point, which has no concurrency."""
    if not point.closed:
        raise ScenarioError(
            f"{point.model}: a point at {point.load_kind} {point.load_value:g} has no concurrency; by this method "
            "throughput is measured in a closed loop"
        )
    return Throughput(point, point.load_value)


@dataclass(frozen=True, slots=True)
class Goal:
    """A limit on a statistic of a latency, in seconds: by this method usually the mean.

    >>> str(Goal.parse("ttft", "300ms")), str(Goal.parse("e2e", "p95:2s"))
    ('mean TTFT <= 300 ms', 'p95 E2E <= 2,000 ms')
    """

    metric: RequestMetric
    statistic: Statistic
    limit_s: float

    def __post_init__(self) -> None:
        finite(f"{self.metric.upper()} limit", self.limit_s, unit=" s")

    @classmethod
    def parse(cls, metric: RequestMetric, text: str) -> Goal:
        """Read ``300ms``, ``mean:300ms`` or ``p95:2s``."""
        before, colon, time = text.strip().rpartition(":")
        for statistic in STATISTICS:
            if before == statistic or not colon:
                return cls(metric, statistic, parse_seconds(f"--{metric}", time))
        raise ScenarioError(f"--{metric} {text!r}: write a time, or one of {', '.join(STATISTICS)} before it: p95:2s")

    def value_s(self, point: Point) -> float | None:
        """The measured value at a point; None where it was not measured."""
        value: float | None = getattr(point, f"{self.metric}_{self.statistic}_s")
        return value

    def keeps(self, point: Point) -> bool:
        """True if the value was measured and is within the limit."""
        value = self.value_s(point)
        return value is not None and value <= self.limit_s

    def __str__(self) -> str:
        return f"{self.statistic} {self.metric.upper()} <= {milliseconds(self.limit_s)}"


def goals_of(**texts: str | None) -> tuple[Goal, ...]:
    """The limits that are given, by metric. ScenarioError when there is none."""
    goals = tuple(Goal.parse(metric, text) for metric in OF_REQUESTS if (text := texts.get(metric)))
    if not goals:
        raise ScenarioError("give at least one limit on TTFT, ITL or E2E, for instance --ttft 300ms")
    return goals


def best(points: Sequence[Point], goals: Sequence[Goal]) -> Throughput:
    """The usable closed-loop point with the most requests/s per GPU among those that meet every limit.

    Raises NoFeasiblePlan, naming the nearest miss, when none meets them; ScenarioError when there is no such point.
    """
    closed = [throughput(point) for point in points if point.closed and not point.void]
    if not closed:
        raise ScenarioError("no point of a closed loop that is fit for use: measure some, or widen what may be used")
    keeping = [each for each in closed if all(goal.keeps(each.point) for goal in goals)]
    if not keeping:
        raise NoFeasiblePlan(f"no measured point keeps {' and '.join(map(str, goals))}; {nearest(closed, goals)}", ())
    return max(keeping, key=lambda each: each.per_gpu)


def nearest(measured: Sequence[Throughput], goals: Sequence[Goal]) -> str:
    """The point that comes nearest to the limits, in words."""

    def worst(each: Throughput) -> tuple[float, Goal]:
        over = [((goal.value_s(each.point) or float("inf")) / goal.limit_s, goal) for goal in goals]
        return max(over, key=lambda ratio: ratio[0])

    found = min(measured, key=lambda each: worst(each)[0])
    ratio, goal = worst(found)
    if ratio == float("inf"):
        return f"{goal.statistic} {goal.metric.upper()} was not measured"
    return f"nearest is {found.label} with {milliseconds(ratio * goal.limit_s)} ({significant(ratio)} x the limit)"
