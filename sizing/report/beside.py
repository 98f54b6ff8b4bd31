"""From the planner's values to what stands beside count and latencies: sensitivities, cost, ways out, the day."""

from __future__ import annotations

from collections.abc import Iterable

from sizing.cost import cost_of, energy_of
from sizing.fleets.daily import HOURS, Daily
from sizing.numbers import percent, significant
from sizing.plan import Fleet, Plan, Question
from sizing.relax import Relaxation, Together
from sizing.report.model_beside import CostRow, Day, Effect, Loosened, SensitivityRow, WayOut
from sizing.report.quantity import Basis, Series, Unit, number
from sizing.sensitivity import Sensitivity
from sizing.workload import Limit


def sensitivity_row(row: Sensitivity, basis: Basis) -> SensitivityRow:
    """One input and the counts with it changed."""
    effects = tuple(
        Effect(
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


def ways_out(alone: Iterable[Relaxation]) -> tuple[WayOut, ...]:
    """What each limit would have to give alone."""
    return tuple(map(way_out, alone))


def way_out(way: Relaxation) -> WayOut:
    """One limit loosened alone; without a value where none helps."""
    limit, candidate, lower = way.limit, way.candidate, way.percentile
    basis = candidate.basis if candidate else "estimated"

    def value_s(found: Limit | None) -> float | None:
        return found.limit_s if found else None

    return WayOut(
        metric=limit.metric,
        percentile=limit.percentile,
        limit=number(limit.limit_s, "s", "given"),
        smallest=number(value_s(way.smallest), "s", basis),
        roomy=number(value_s(way.roomy), "s", basis),
        configuration=candidate.label if candidate else "",
        kept_at=lower.percentile if lower else None,
        kept_by=way.percentile_candidate.label if way.percentile_candidate else "",
    )


def loosened(asked: Iterable[Limit], alone: Iterable[Relaxation], found: Together | None) -> tuple[Loosened, ...]:
    """All limits that must give; none where one alone will do, or where one is all that is missed."""
    if found is None or len(found.limits) < 2 or any(way.smallest for way in alone):
        return ()
    needed = {(limit.metric, limit.percentile): limit.limit_s for limit in found.limits}
    label, basis = found.candidate.label, found.candidate.basis
    return tuple(
        Loosened(
            limit.metric,
            limit.percentile,
            number(limit.limit_s, "s", "given"),
            number(needed[limit.metric, limit.percentile], "s", basis),
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
        load=Series("requests/s", "given", tuple(hour.rate_per_s for hour in daily.hours)),
        replicas=Series("replicas", basis, tuple(hour.replicas for hour in daily.hours)),
        gpus=Series("GPUs", basis, tuple(hour.gpus for hour in daily.hours)),
        constant_gpus=number(daily.constant_gpus, "GPUs", basis),
        gpu_hours=number(daily.gpu_hours, "GPU-hours", basis),
        constant_gpu_hours=number(daily.constant_gpu_hours, "GPU-hours", basis),
        saved=number(daily.saved, "share", basis),
        price=number(price, "per GPU-hour", "given"),
        cost=number(cost(daily.gpu_hours), "per day", basis),
        constant_cost=number(cost(daily.constant_gpu_hours), "per day", basis),
    )


def day_sentence(plan: Plan, daily: Daily) -> str:
    """For instance: You need 3 to 9 × h200_sxm over the day to serve up to 20 requests/s of Qwen/Qwen3-32B."""
    fewest, most = min(hour.gpus for hour in daily.hours), max(hour.gpus for hour in daily.hours)
    count = f"{fewest:,} to {most:,}" if fewest < most else f"{most:,}"
    candidate, rate = plan.answer.candidate, significant(plan.question.workload.rate_per_s)
    return f"You need {count} × {candidate.gpu} over the day to serve up to {rate} requests/s of {candidate.model}"


def day_working(plan: Plan, daily: Daily) -> str:
    """What following the load saves, and of what the hours are made."""
    candidate, spare = plan.answer.candidate, plan.answer.spare
    kept = f", {spare} spare at all hours" if spare else ""
    return (
        f"{daily.gpu_hours:,} GPU-hours a day in replicas of {candidate.gpus} GPU{'s' if candidate.gpus > 1 else ''} "
        f"(TP{candidate.tp}, {candidate.precision}){kept}; the peak's fleet all day: {daily.constant_gpus:,} GPUs × "
        f"{HOURS} h = {daily.constant_gpu_hours:,}, so {percent(daily.saved)} saved"
    )
