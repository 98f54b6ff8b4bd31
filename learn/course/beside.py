"""Our planner's answer to the question that the usual method was asked, from the same measured points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from learn.course.fleet import CourseSizing
from learn.course.throughput import Goal
from sizing import planner
from sizing.candidates import Choice, find
from sizing.errors import ScenarioError
from sizing.numbers import percent
from sizing.plans import NoFeasiblePlan, Plan
from sizing.points import Point
from sizing.question import Question
from sizing.workload import PERCENTILES, Limit, Sla, Workload


@dataclass(frozen=True, slots=True)
class Terms:
    """Margins that our planner keeps and the usual method does not; `percentile` stands in for a limit on a mean."""

    percentile: int = 95
    headroom: float = 0.2
    spare: int = 1

    def __post_init__(self) -> None:
        if self.percentile not in PERCENTILES:
            raise ScenarioError(f"percentile {self.percentile} is not one of {', '.join(map(str, PERCENTILES))}")


def ours(points: Sequence[Point], sizing: CourseSizing, goals: Sequence[Goal], terms: Terms) -> Plan:
    """The plan for the same model, GPU, precision and TP, lengths, peak and limits, from a law fitted to `points`.

    Raises NoFeasiblePlan when the limits cannot be met, or no law can be fitted to the points.
    """
    point = sizing.throughput.point
    lengths = point.lengths
    limits = {goal.metric: Limit(goal.metric, percentile_of(goal, terms), goal.limit_s) for goal in goals}
    workload = Workload(lengths, sizing.peak_per_s)
    question = Question(point.model, workload, Sla(*limits.values()), headroom=terms.headroom, spare=terms.spare)
    choice = Choice((point.gpu,), (point.precision,), (point.tp,), "measured")
    found, rejected = find(point.model, lengths, choice, points)
    if not found:
        raise NoFeasiblePlan(rejected[0].why if rejected else "no law can be fitted to these points", tuple(rejected))
    return planner.plan(question, found, rejected)


def percentile_of(goal: Goal, terms: Terms) -> int:
    """The percentile of a limit; the terms' own where the limit is on a mean."""
    return terms.percentile if goal.statistic == "mean" else int(goal.statistic[1:])


def compared(sizing: CourseSizing, plan: Plan, terms: Terms) -> str:
    """The two counts in a sentence, and what explains the difference."""
    fleet = plan.answer
    margins = (
        f"{percent(terms.headroom)} headroom and {terms.spare} spare" if terms.headroom or terms.spare else "no margin"
    )
    most = f"{fleet.gpus_high} GPUs" if fleet.gpus_high is not None else "more"
    return (
        f"The course's method: {sizing.gpus} GPUs. Our planner: {fleet.gpus} GPUs ({fleet.gpus_low} to {most} in its "
        f"90 % band) with {margins}, for {plan.question.sla} at random arrivals"
    )
