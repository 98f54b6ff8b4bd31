"""From the planner's own values to a report: nothing is computed twice, every number gets its unit and basis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sizing import answer
from sizing.curves import Point
from sizing.fleets.daily import Daily
from sizing.loadcurve import LoadCurve
from sizing.numbers import significant
from sizing.plan import Fleet, Plan, Question, Rejection
from sizing.relax import Relaxation, Together
from sizing.report import model
from sizing.report.accuracy import accuracy, evidence
from sizing.report.beside import cost_rows, day_of, loosened, sensitivity_row, ways_out
from sizing.report.inputs import inputs
from sizing.report.latency_band import latency_band
from sizing.report.model import Report
from sizing.report.quantity import MOST_ROWS, Quantity, Series, Unit, number
from sizing.report.sources import program, source_of
from sizing.report.terms import BATCHING, EXCLUDES, assumptions, includes
from sizing.sensitivity import Sensitivity
from sizing.workload import METRICS, Limit, Metric


@dataclass(frozen=True, slots=True)
class Cover:
    """What goes on a report beside its numbers. `made_at`: ISO 8601 in UTC. An empty title gets the usual one."""

    made_at: str
    title: str = ""
    author: str = ""
    notes: str = ""
    link: str = ""


def report_of(
    plan: Plan,
    curve: LoadCurve,
    sensitivity: Sequence[Sensitivity],
    cover: Cover,
    points: Sequence[Point] = (),
    daily: Daily | None = None,
) -> Report:
    """The report of a plan. `curve`, `sensitivity` and `daily` are of its answer, `points` all measured points to hand;
    without a `daily` there is no section on the day."""
    question, fleet = plan.question, plan.answer
    return Report(
        title=cover.title or usual_title(question),
        author=cover.author,
        notes=cover.notes,
        made_at=cover.made_at,
        program=program(),
        link=cover.link,
        model=fleet.candidate.model,
        sentence=answer.sentence(plan),
        reason="",
        working=answer.working(plan),
        inputs=inputs(question),
        limits=limit_rows(question, fleet),
        curves=load_curves(question, fleet, curve),
        configurations=tuple(configuration(question, each) for each in plan.fleets[:MOST_ROWS]),
        left_out=tuple(map(left_out, plan.rejected[:MOST_ROWS])),
        sensitivity=tuple(sensitivity_row(row, fleet.basis) for row in sensitivity),
        cost=cost_rows(question, fleet),
        remarks=remarks(plan),
        warnings=fleet.warnings,
        includes=tuple(includes(question, fleet)),
        excludes=EXCLUDES,
        assumptions=tuple(assumptions(question, fleet)),
        sources=tuple(source_of(each, points) for each in plan.fleets[:MOST_ROWS]),
        accuracy=accuracy(fleet),
        evidence=evidence(),
        day=day_of(plan, daily) if daily else None,
    )


def refusal_of(
    question: Question | None,
    title: str,
    reason: str,
    rejected: Sequence[Rejection],
    cover: Cover,
    alone: Sequence[Relaxation] = (),
    together: Together | None = None,
) -> Report:
    """The report that says why there is no answer: no count of GPUs stands in it. `title` says it in a few words.

    `alone` and `together` are the ways out of an SLA that nothing meets, as far as they were asked for.
    """
    return Report(
        title=cover.title or (usual_title(question) if question else "GPU sizing"),
        author=cover.author,
        notes=cover.notes,
        made_at=cover.made_at,
        program=program(),
        link=cover.link,
        model=question.model if question else "",
        sentence=title,
        reason=reason,
        working="",
        inputs=inputs(question) if question else (),
        left_out=tuple(map(left_out_unanswered, rejected[:MOST_ROWS])),
        ways_out=ways_out(alone),
        together=loosened(question.sla.limits, alone, together) if question else (),
    )


def usual_title(question: Question) -> str:
    """The title of a report that was given none."""
    return f"GPUs for {question.model} at {significant(question.workload.rate_per_s)} requests/s"


def remarks(plan: Plan) -> tuple[str, ...]:
    """What binds, the band and why it is wide, higher loads, the peak, the price, and sizing by means."""
    fleet = plan.answer
    lines = (
        f"Bound by {answer.binding(fleet)}",
        answer.band(fleet),
        answer.why_wide(fleet),
        answer.sensitivity(plan),
        answer.peak(plan.question),
        answer.cost_line(plan),
        plan.mean_based.text if plan.mean_based else None,
    )
    return tuple(f"{line.rstrip('.')}." for line in lines if line)


def limit_rows(question: Question, fleet: Fleet) -> tuple[model.LimitRow, ...]:
    """Each limit against its prediction and the band of that."""
    band = latency_band(question, fleet)
    return tuple(limit_row(fleet, limit, *band(limit)) for limit in question.sla.limits)


def limit_row(fleet: Fleet, limit: Limit, low: float, high: float) -> model.LimitRow:
    """One limit, with the ends of the band as factors of what is predicted."""
    value_s = fleet.predicted.value_s(limit)
    return model.LimitRow(
        metric=limit.metric,
        percentile=limit.percentile,
        limit=number(limit.limit_s, "s", "given"),
        predicted=number(value_s, "s", fleet.basis),
        low=number(value_s * low, "s", fleet.basis),
        high=number(value_s * high, "s", fleet.basis),
        room=number(1 - value_s / limit.limit_s, "share", fleet.basis),
        kept=value_s <= limit.limit_s,
    )


def load_curves(question: Question, fleet: Fleet, curve: LoadCurve) -> model.LoadCurves:
    """Each limited latency over the loads of the curve."""
    basis = fleet.basis
    curves = (
        model.LimitCurve(
            limit.metric,
            limit.percentile,
            limit.limit_s,
            number(fleet.predicted.value_s(limit), "s", basis).value,
            Series("s", basis, tuple(number(each.value_s(limit), "s", basis).value for each in curve.predictions)),
        )
        for limit in question.sla.limits
    )
    load = Series("requests/s per replica", "given", curve.rates_per_s)
    return model.LoadCurves(load, curve.planned_per_s, curve.capacity_per_s, question.headroom, tuple(curves))


def configuration(question: Question, fleet: Fleet) -> model.Configuration:
    """One fleet with all its numbers."""
    basis, candidate, limit = fleet.basis, fleet.candidate, fleet.binding
    price = question.price_of(candidate.gpu)
    by_division = math.ceil(question.workload.rate_per_s / fleet.requests_per_s_per_replica * (1 - 1e-9))

    def of(value: float | None, unit: Unit) -> Quantity:
        return number(value, unit, basis)

    return model.Configuration(
        gpu=candidate.gpu,
        tp=candidate.tp,
        pp=candidate.pp,
        precision=candidate.precision,
        gpus=of(fleet.gpus, "GPUs"),
        gpus_low=of(fleet.gpus_low, "GPUs"),
        gpus_high=of(fleet.gpus_high, "GPUs"),
        working=of(fleet.working, "replicas"),
        spare=number(fleet.spare, "replicas", "given"),
        extra_working=max(0, fleet.working - by_division),
        capacity_per_replica=of(fleet.capacity_per_s, "requests/s"),
        planned_per_replica=of(fleet.requests_per_s_per_replica, "requests/s"),
        planned_per_gpu=of(fleet.requests_per_s_per_gpu, "requests/s per GPU"),
        in_flight=of(fleet.in_flight, "requests"),
        utilization=of(fleet.predicted.utilization, "share"),
        room=of(1 - fleet.predicted.value_s(limit) / limit.limit_s, "share"),
        price=number(price, "per GPU-hour", "given"),
        cost_per_hour=of(None if price is None else price * fleet.gpus, "per hour"),
        binding=fleet.binding_name,
        basis=basis,
        source=candidate.source,
        execution=BATCHING[candidate.replica.batching.policy],
        verified_by=fleet.predicted.method,
        latencies=tuple(latency(fleet, metric) for metric in METRICS if metric != "gap" or fleet.predicted.gap.known),
        warnings=fleet.warnings,
    )


def latency(fleet: Fleet, metric: Metric) -> model.Latency:
    """Mean and percentiles of one metric of a fleet."""
    found = fleet.predicted.of(metric)
    values = (found.mean_s, found.p50_s, found.p90_s, found.p95_s, found.p99_s)
    return model.Latency(metric, *(number(value, "s", fleet.basis) for value in values))


def left_out(rejection: Rejection) -> model.LeftOut:
    """A configuration left out."""
    return model.LeftOut(rejection.gpu, rejection.tp, rejection.precision, rejection.kind, rejection.why)


def left_out_unanswered(rejection: Rejection) -> model.LeftOut:
    """The same where nothing meets the SLA: a count that beat this one was found wanting, so it is not repeated."""
    why = "not sized: it cannot do with fewer GPUs than a configuration that misses the SLA"
    text = why if rejection.kind == "cost" else rejection.why
    return model.LeftOut(rejection.gpu, rejection.tp, rejection.precision, rejection.kind, text)
