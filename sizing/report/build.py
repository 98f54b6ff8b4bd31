"""From the planner's own values to a report: nothing is computed twice, every number gets its unit and basis."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from sizing import text as answer
from sizing.analyses.curves import LoadCurve
from sizing.analyses.daily import Daily
from sizing.analyses.relax import Relaxation, Together
from sizing.analyses.sensitivity import GoodputPrice, Sensitivity
from sizing.analyses.session_plan import OWN, Seen, SessionLoad, SessionPlan
from sizing.analyses.traced import TracePlan
from sizing.catalog import CATALOG
from sizing.edge import latency_band
from sizing.files import resource, version
from sizing.numbers import per_second
from sizing.plans import Fleet, Plan, Rejection, cost_of, energy_of
from sizing.points import Point
from sizing.question import Question, replicas_for
from sizing.report import model
from sizing.report.model import (
    DIGEST,
    MOST_ROWS,
    ChartSeries,
    ClassLimit,
    CostRow,
    Day,
    EffectRow,
    Evidence,
    FigureBasis,
    InputRow,
    Loosened,
    Quantity,
    Report,
    SensitivityRow,
    SessionRow,
    SourceRow,
    Talks,
    Traffic,
    TrafficHour,
    Unit,
    WayOut,
    number,
)
from sizing.report.sections import inputs, session_inputs
from sizing.simulator.recorded import limits_on_latencies
from sizing.text import BATCHING, EXCLUDES, Extras, accuracy, assumptions, day_sentence, day_working, includes
from sizing.workload import METRICS, OF_REQUESTS, Limit, Metric

# --- From the planner's values to what stands beside count and latencies: sensitivities, cost, ways out, the day


def sensitivity_row(row: Sensitivity, basis: FigureBasis) -> SensitivityRow:
    """One input and the counts with it changed."""
    effects = tuple(
        EffectRow(
            effect.change,
            number(effect.value, row.unit, "given"),
            number(effect.gpus, "GPUs", basis),
            number(effect.capacity_per_s, "requests/s", basis),
        )
        for effect in row.effects
    )
    return SensitivityRow(row.name, number(row.value, row.unit, "given"), effects)


def cost_rows(question: Question, fleet: Fleet) -> tuple[CostRow, ...]:
    """Cost and energy of the answer, as far as they are known."""
    cost, energy = cost_of(question, fleet), energy_of(question, fleet)
    figures: list[tuple[str, float, Unit]] = []
    if cost:
        figures += [
            ("Cost per hour", cost.per_hour, "per hour"),
            ("Cost per month of 730 hours", cost.per_month, "per month"),
            ("Cost per million output tokens", cost.per_million_output_tokens, "per million output tokens"),
            ("Cost per 1,000 requests", cost.per_1000_requests, "per 1,000 requests"),
        ]
    if energy:
        figures += [
            ("Power of the GPUs, at most", energy.power_kw, "kW"),
            ("Energy, at most", energy.kwh_per_million_output_tokens, "kWh per million output tokens"),
        ]
    return tuple(CostRow(name, number(value, unit, fleet.basis)) for name, value, unit in figures)


def way_out(way: Relaxation) -> WayOut:
    """One limit loosened alone; without a value where none helps."""
    limit, candidate, lower = way.limit, way.candidate, way.percentile
    basis = candidate.basis if candidate else "estimated"

    def value_s(found: Limit | None) -> float | None:
        return found.limit_s if found else None

    return WayOut(
        metric=limit.metric,
        percentile=limit.percentile,
        limit=number(limit.limit_s, unit_of(limit), "given"),
        smallest=number(value_s(way.smallest), unit_of(limit), basis),
        roomy=number(value_s(way.roomy), unit_of(limit), basis),
        configuration=candidate.label if candidate else "",
        kept_at=lower.percentile if lower else None,
        kept_by=way.percentile_candidate.label if way.percentile_candidate else "",
    )


def loosened(asked: Iterable[Limit], found: Together | None) -> tuple[Loosened, ...]:
    """All limits that must be relaxed together, as asked and as needed."""
    if found is None:
        return ()
    needed = {(limit.metric, limit.percentile): limit.limit_s for limit in found.limits}
    label, basis = found.candidate.label, found.candidate.basis
    return tuple(
        Loosened(
            limit.metric,
            limit.percentile,
            number(limit.limit_s, unit_of(limit), "given"),
            number(needed[limit.metric, limit.percentile], unit_of(limit), basis),
            label,
        )
        for limit in asked
        if (limit.metric, limit.percentile) in needed
    )


def day_of(plan: Plan, daily: Daily) -> Day:
    """The answer's fleet over a day, its busiest hour at the planned load."""
    fleet = plan.answer
    basis, price = fleet.basis, plan.question.price_of(fleet.candidate.gpu)

    def cost(gpu_hours: int) -> float | None:
        return None if price is None else price * gpu_hours

    return Day(
        sentence=day_sentence(plan, daily),
        working=day_working(plan, daily),
        load=ChartSeries("requests/s", "given", tuple(hour.rate_per_s for hour in daily.hours)),
        replicas=ChartSeries("replicas", basis, tuple(hour.replicas for hour in daily.hours)),
        gpus=ChartSeries("GPUs", basis, tuple(hour.gpus for hour in daily.hours)),
        constant_gpus=number(daily.constant_gpus, "GPUs", basis),
        gpu_hours=number(daily.gpu_hours, "GPU-hours", basis),
        constant_gpu_hours=number(daily.constant_gpu_hours, "GPU-hours", basis),
        saved=number(daily.saved, "share", basis),
        price=number(price, "per GPU-hour", "given"),
        cost=number(cost(daily.gpu_hours), "per day", basis),
        constant_cost=number(cost(daily.constant_gpu_hours), "per day", basis),
    )


def traffic_of(found: TracePlan) -> Traffic:
    """What was replayed on the answer's fleet, hour by hour."""
    fleet, seen = found.plan.answer, found.replayed
    basis = fleet.basis
    limits = limits_on_latencies(seen.sla)
    rows = [row for row in limit_rows(found.plan.question, fleet) if row.metric in OF_REQUESTS]
    worst_first = sorted(range(len(seen.hours)), key=seen.goodput)
    hours = tuple(
        TrafficHour(
            clock=found.trace.clock(seen.hours[place].from_s),
            requests=number(float(seen.tally.gone[place]), "requests", "given"),
            inside=number(seen.goodput(place), "share", basis),
            seconds=tuple(number(seen.value_s(of, place), "s", basis) for of in limits),
            gpus=number((found.needed[place] + fleet.spare) * fleet.candidate.gpus, "GPUs", basis),
        )
        for place in sorted(worst_first[:MOST_ROWS])
    )
    lines, gpus = answer.trace_lines(found), number(fleet.gpus, "GPUs", basis)
    if len(hours) < len(seen.hours):
        lines += (f"Of {len(seen.hours):,} hours the {len(hours):,} in which most requests miss a limit are listed",)
    return Traffic(lines, tuple(rows), hours, gpus, tuple(class_limits(found)))


def class_limits(found: TracePlan) -> Iterator[ClassLimit]:
    """Each limit of each class of requests, and what these saw."""
    basis = found.plan.answer.basis
    for seen in found.replayed.classes:
        worst = seen.worst_hour
        for limit in seen.sla.limits:
            value_s = seen.value_s(limit)
            yield ClassLimit(
                metric=limit.metric,
                percentile=limit.percentile,
                of=seen.name,
                requests=number(float(seen.tally.gone.sum()), "requests", "given"),
                limit=number(limit.limit_s, unit_of(limit), "given"),
                replayed=number(value_s, unit_of(limit), basis),
                room=number(1 - value_s / limit.limit_s, "share", basis),
                inside=number(seen.goodput(), "share", basis),
                worst_hour=found.trace.clock(seen.hours[worst].from_s),
                worst_inside=number(seen.goodput(worst), "share", basis),
            )


def talks_of(found: SessionPlan) -> Talks:
    """Sessions on the answer's fleet, with every routing and under rising loads."""
    basis, planned = found.plan.answer.basis, found.seen.rate_per_s

    def of(name: str, seen: Seen) -> SessionRow:
        steady = not seen.saturated
        p95 = {part: seen.predicted.parts[part].p95_s if steady else None for part in OWN}
        return SessionRow(
            name=name,
            in_flight=number(seen.in_flight if steady else None, "sessions", basis),
            hit_rate=number(seen.hit_rate, "share", basis),
            filled=number(found.filled(seen) if steady else None, "share", basis),
            first_ttft=number(p95["first_ttft"], "s", basis),
            later_ttft=number(p95["later_ttft"], "s", basis),
            session=number(p95["session"], "s", basis),
            kept=seen.meets,
        )

    return Talks(
        lines=answer.sessions_lines(found),
        routings=tuple(of(name, seen) for name, seen in found.routings),
        rising=tuple(of(answer.share_of_load(seen.rate_per_s / planned), seen) for seen in found.curve),
        planned=min(range(len(found.curve)), key=lambda row: abs(found.curve[row].rate_per_s - planned)),
    )


# --- Provenance: where each configuration's numbers come from, with engine versions, dates and digests of the data


def source_of(fleet: Fleet) -> SourceRow:
    """The provenance of one fleet."""
    candidate = fleet.candidate
    used = () if candidate.basis == "what-if" else candidate.fitted_to
    dates = sorted(point.measured_at for point in used if point.measured_at)
    return SourceRow(
        configuration=candidate.label,
        basis=fleet.basis,
        source=candidate.source,
        points=len(used),
        engine=engine_of(used[0]) if used else "",
        measured_from=dates[0] if dates else "",
        measured_to=dates[-1] if dates else "",
        digest=digest_of("\n".join(map(identity_of, used)).encode()) if used else catalogue_digest(),
        error=Quantity(candidate.relative_sigma, "share", fleet.basis),
    )


def engine_of(point: Point) -> str:
    """Engine and version, as in a fitted candidate's source."""
    return f"{point.engine} {point.engine_version}".strip()


def identity_of(point: Point) -> str:
    """All that a point says. A column that came later and is empty is left out: the same file keeps its digest."""
    return repr(point).replace(", kv_tokens=None", "").replace(", prefix_tokens=None, prefix_hit=None", "")


def digest_of(data: bytes) -> str:
    """First characters of the SHA-256 of some data."""
    return hashlib.sha256(data).hexdigest()[:DIGEST]


@cache
def catalogue_digest() -> str:
    """Digest of the catalogue files of GPUs and models, which estimates read."""
    return digest_of(b"".join(path.read_bytes() for path in sorted(CATALOG.glob("*.yaml"))))


def program() -> str:
    """Name and version of this program."""
    return f"sizing {version()}"


# --- How well this planner predicts, as its table of evidence (docs/accuracy.md) has it: read there, never typed in

TABLE = resource("docs/accuracy.md")
CHOSEN = (
    "systems with exact answers",
    "largest rate, fit and simulation",
    "largest rate, long prompts and long answers measured",
    "largest rate, fit and formula",
    "replicas, planned with the true law",
    "dense servers, other loads",
    "mixtures of experts, other loads",
    "two highest rates, fitted to all mixes",
    "second half of a trace",
    "static batches",
)
"""Claims that speak of answers such as a report's."""
COLUMNS = 9


@cache
def evidence(path: Path = TABLE) -> tuple[Evidence, ...]:
    """The chosen rows of the table of evidence, in its order, missed goals included; none where the file is missing."""
    if not path.is_file():
        return ()
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = [cells(line) for line in lines if line.startswith("| ")]
    return tuple(Evidence(*row[:COLUMNS]) for row in rows if len(row) > COLUMNS and row[0] in CHOSEN)


def cells(line: str) -> list[str]:
    """The cells of a row of a markdown table, in which a bar may be written ``\\|``."""
    parts = line.replace("\\|", "\0").strip().strip("|").split("|")
    return [part.strip().replace("\0", "|") for part in parts]


# --- The report itself: its cover, what binds, and the figures of an answer


@dataclass(frozen=True, slots=True)
class Cover:
    """What goes on a report beside its numbers, by the names of `Report`. `made_at`: ISO 8601 in UTC. An empty title
    gets the usual one."""

    made_at: str
    title: str = ""
    author: str = ""
    notes: str = ""
    link: str = ""


SECTIONS: Mapping[str, Callable[[Any, Plan], Mapping[str, Any]]] = {
    "sensitivity": lambda rows, plan: {"sensitivity": tuple(sensitivity_row(row, plan.answer.basis) for row in rows)},
    "daily": lambda found, plan: {"day": day_of(plan, found)},
    "trace": lambda found, _: {"traffic": traffic_of(found)},
    "goodput_prices": lambda prices, _: {"goodput": tuple(map(goodput_row, prices))},
    "sessions": lambda found, _: {"sessions": talks_of(found)},
}
"""What of a `Report` each of these fields of `Extras` fills."""
REMARKS = ("verification", "pools", "mix", "tuned")
"""Fields of `Extras` that are told in remarks."""


def report_of(plan: Plan, curve: LoadCurve | None, extras: Extras, cover: Cover) -> Report:
    """The report of a plan. `curve` and `extras` are of its answer; the plan is that of `extras.trace` or of
    `extras.sessions` where there is one. No formula draws latencies of sessions: `curve` is then None."""
    question, fleet, sessions, traced = plan.question, plan.answer, extras.sessions, extras.trace
    load, sections = sessions.load if sessions else None, dict[str, Any]()
    for name, fill in SECTIONS.items():
        if value := getattr(extras, name):
            sections |= fill(value, plan)
    return Report(
        **asdict(replace(cover, title=cover.title or usual_title(question, load))),
        program=program(),
        model=fleet.candidate.model,
        sentence=answer.sentence(plan),
        reason="",
        working=answer.working(plan),
        inputs=asked_of(traced.question if traced else question, load, replayed=traced is not None),
        limits=session_limit_rows(question, fleet) if sessions else limit_rows(question, fleet),
        curves=load_curves(question, fleet, curve) if curve else None,
        configurations=tuple(configuration(question, each) for each in plan.fleets[:MOST_ROWS]),
        left_out=tuple(map(left_out, plan.rejected[:MOST_ROWS])),
        cost=cost_rows(question, fleet),
        remarks=remarks(plan, extras),
        warnings=tuple(answer.cautions(fleet.warnings)),
        includes=tuple(includes(question, fleet)),
        excludes=EXCLUDES,
        assumptions=tuple(
            answer.session_assumptions(sessions)
            if sessions
            else assumptions(question, fleet, replayed=traced is not None)
        ),
        sources=tuple(source_of(each) for each in plan.fleets[:MOST_ROWS]),
        accuracy=accuracy(fleet),
        evidence=evidence(),
        **sections,
    )


def goodput_row(price: GoodputPrice) -> model.GoodputRow:
    """What one goodput takes."""
    fleet = price.fleet
    basis: FigureBasis = fleet.basis if fleet else "estimated"
    return model.GoodputRow(
        number(round(price.percent / 100, 6), "share", "given"),
        number(fleet.gpus if fleet else None, "GPUs", basis),
        number(fleet.replicas if fleet else None, "replicas", basis),
        number(fleet.requests_per_s_per_gpu if fleet else None, "requests/s per GPU", basis),
    )


def refusal_of(
    question: Question | None,
    title: str,
    reason: str,
    rejected: Sequence[Rejection],
    cover: Cover,
    alone: Sequence[Relaxation] = (),
    together: Together | None = None,
    load: SessionLoad | None = None,
    replayed: bool = False,
    told: Sequence[str] = (),
    beside: Sequence[InputRow] = (),
) -> Report:
    """The report that says why there is no answer: no count of GPUs stands in it. `title` says it in a few words.

    `load`: the sessions that were asked about, None for requests. `replayed`: the requests of a recorded trace.

    `alone` and `together` are the ways out of an SLA that nothing meets, as far as they were asked for; `told`: those
    of sessions and of classes of requests, in sentences without full stops. `beside`: what was asked beside the
    question: limits of classes, the hours of a day.
    """
    return Report(
        **asdict(replace(cover, title=cover.title or (usual_title(question, load) if question else "GPU sizing"))),
        program=program(),
        model=question.model if question else "",
        sentence=title,
        reason=reason,
        working="",
        inputs=(*asked_of(question, load, replayed), *beside) if question else (),
        left_out=tuple(map(left_out_unanswered, rejected[:MOST_ROWS])),
        remarks=tuple(f"{line}." for line in told),
        ways_out=tuple(map(way_out, alone)),
        together=loosened(question.sla.limits, together) if question else (),
    )


def asked_of(question: Question, load: SessionLoad | None, replayed: bool = False) -> tuple[InputRow, ...]:
    """One row for everything asked."""
    return session_inputs(question, load) if load else inputs(question, replayed)


def usual_title(question: Question, load: SessionLoad | None) -> str:
    """The title of a report that was given none."""
    if load is not None:
        return f"GPUs {load.words} of {question.model}"
    return f"GPUs for {question.model} at {per_second(question.workload.rate_per_s)}"


def remarks(plan: Plan, extras: Extras) -> tuple[str, ...]:
    """What binds, what the server showed, the band and why it is wide, higher loads, the peak, the price, the means,
    then other fleets and engine settings."""
    fleet = plan.answer
    told = {name: answer.LINES[name](value, plan) for name in REMARKS if (value := getattr(extras, name))}
    lines = (
        f"Bound by {answer.binding(fleet, extras.trace)}",
        *told.pop("verification", ()),
        answer.band(fleet),
        answer.why_wide(fleet),
        answer.sensitivity(plan),
        *answer.on_all_requests(plan.question),
        answer.peak(plan.question),
        answer.cost_line(plan),
        answer.sizing_by_means(plan),
        *(line for others in told.values() for line in others),
    )
    return tuple(f"{line.rstrip('.')}." for line in lines if line)


def limit_rows(question: Question, fleet: Fleet) -> tuple[model.LimitRow, ...]:
    """Each limit against its prediction and the band of that."""
    band, none = latency_band(fleet.candidate, question.setting(fleet.working), fleet.load_per_s), (math.nan, math.nan)
    return tuple(
        limit_row(fleet, limit, *(none if limit.metric == "rejected" else band(limit)))  # the formula rejects nobody
        for limit in question.sla.limits
    )


def unit_of(limit: Limit) -> Unit:
    """Of what is limited: a time, or a share of the requests or of their limits."""
    return "s" if limit.metric in METRICS else "share"


def session_limit_rows(question: Question, fleet: Fleet) -> tuple[model.LimitRow, ...]:
    """Each limit against what was simulated; without a band: a formula knows no sessions."""
    rows = ((limit, limit_row(fleet, limit, math.nan, math.nan)) for limit in question.sla.limits)
    return tuple(replace(row, subject=limit.subject) for limit, row in rows)


def limit_row(fleet: Fleet, limit: Limit, low: float, high: float) -> model.LimitRow:
    """One limit, with the ends of the band as factors of what is predicted."""
    value_s = fleet.predicted.value_s(limit)
    return model.LimitRow(
        metric=limit.metric,
        percentile=limit.percentile,
        limit=number(limit.limit_s, unit_of(limit), "given"),
        predicted=number(value_s, unit_of(limit), fleet.basis),
        low=number(value_s * low, unit_of(limit), fleet.basis),
        high=number(value_s * high, unit_of(limit), fleet.basis),
        room=number(1 - fleet.predicted.used(limit), "share", fleet.basis),
        kept=fleet.predicted.used(limit) <= 1,
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
            ChartSeries(
                unit, basis, tuple(number(each.value_s(limit), unit, basis).value for each in curve.predictions)
            ),
        )
        for limit in question.sla.latencies
        for unit in [unit_of(limit)]
    )
    load = ChartSeries("requests/s per replica", "given", curve.rates_per_s)
    return model.LoadCurves(load, curve.planned_per_s, curve.capacity_per_s, question.headroom, tuple(curves))


def configuration(question: Question, fleet: Fleet) -> model.Configuration:
    """One fleet with all its numbers."""
    basis, candidate = fleet.basis, fleet.candidate
    price = question.price_of(candidate.gpu)
    by_division = replicas_for(question.workload.rate_per_s, fleet.requests_per_s_per_replica)

    def of(value: float | None, unit: Unit) -> Quantity:
        return number(value, unit, basis)

    return model.Configuration(
        gpu=candidate.gpu,
        **candidate.layout.as_dict(),
        precision=candidate.precision,
        engine=candidate.engine,
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
        room=of(fleet.room, "share"),
        price=number(price, "per GPU-hour", "given"),
        cost_per_hour=of(None if price is None else price * fleet.gpus, "per hour"),
        binding=fleet.binding_name,
        basis=basis,
        source=candidate.source,
        execution=BATCHING[candidate.replica.batching.policy],
        verified_by=fleet.predicted.method,
        latencies=tuple(latency(fleet, metric) for metric in METRICS if metric != "gap" or fleet.predicted.gap.known),
        warnings=tuple(answer.cautions(fleet.warnings)),
    )


def latency(fleet: Fleet, metric: Metric) -> model.LatencyRow:
    """Mean and percentiles of one metric of a fleet."""
    values_s = astuple(fleet.predicted.of(metric))
    return model.LatencyRow(metric, *(number(value_s, "s", fleet.basis) for value_s in values_s))


def left_out(rejection: Rejection) -> model.LeftOut:
    """A configuration left out."""
    one = rejection
    return model.LeftOut(one.gpu, one.layout.tp, one.precision, one.kind, one.why, one.engine, str(one.layout))


def left_out_unanswered(rejection: Rejection) -> model.LeftOut:
    """The same where nothing meets the SLA: a count that beat this one was found wanting, so it is not repeated."""
    why = "not sized: it needs at least as many GPUs as a configuration that misses the SLA"
    return left_out(replace(rejection, why=why) if rejection.kind == "cost" else rejection)
