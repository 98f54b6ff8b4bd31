"""What a change of one input does to the answer: lengths, rate, limits and headroom, 10 and 25 % up and down."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from sizing.capacity import Setting, SlaMissed, load_response
from sizing.errors import ScenarioError
from sizing.plan import Fleet, Question
from sizing.planner import setting_of, smallest_fleet
from sizing.workload import Limit

CHANGES = (-0.25, -0.10, 0.10, 0.25)
Unit = Literal["tokens", "requests/s", "s", "share"]


@dataclass(frozen=True, slots=True)
class Effect:
    """With the input at `value`, `change` away from its own: GPUs and a replica's capacity; None = the SLA fails."""

    change: float
    value: float
    gpus: int | None
    capacity_per_s: float | None


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """The effects of one input, `value` in `unit` as asked, everything else kept."""

    name: str
    unit: Unit
    value: float
    effects: tuple[Effect, ...]


def sensitivities(question: Question, fleet: Fleet, changes: tuple[float, ...] = CHANGES) -> tuple[Sensitivity, ...]:
    """One row per input. By formula, times what the fleet's own capacity differs from the formula's.

    A headroom of 0 stays 0 whatever its change. Lengths below 1 token and limits the SLA cannot meet give no count.
    """
    rows = []
    for name, unit, value in inputs(question):
        effects = tuple(effect(question, fleet, name, change, value * (1 + change)) for change in changes)
        rows.append(Sensitivity(name, unit, value, effects))
    return tuple(rows)


def inputs(question: Question) -> Iterator[tuple[str, Unit, float]]:
    """Name, unit and value of every input that is varied."""
    yield "ISL", "tokens", question.workload.lengths.isl
    yield "OSL", "tokens", question.workload.lengths.osl
    yield "rate", "requests/s", question.workload.rate_per_s
    for limit in question.sla.limits:
        yield limit_name(limit), "s", limit.limit_s
    yield "headroom", "share", question.headroom


def limit_name(limit: Limit) -> str:
    """For instance: p95 TTFT limit."""
    return f"{limit.name} limit"


def effect(question: Question, fleet: Fleet, name: str, change: float, value: float) -> Effect:
    """GPUs and capacity with the input `name` at `value`."""
    try:
        changed = with_input(question, name, value)
        replicas, capacity_per_s = resized(changed, question, fleet)
    except (SlaMissed, ScenarioError):
        return Effect(change, value, None, None)
    return Effect(change, value, (replicas + fleet.spare) * fleet.candidate.gpus, capacity_per_s)


def with_input(question: Question, name: str, value: float) -> Question:
    """The question with one input replaced."""
    if name in ("ISL", "OSL"):
        lengths = replace(question.workload.lengths, **{name.lower(): value})
        return replace(question, workload=replace(question.workload, lengths=lengths))
    if name == "rate":
        return replace(question, workload=replace(question.workload, rate_per_s=value))
    if name == "headroom":
        return replace(question, headroom=value)
    limits = {limit.metric: replace(limit, limit_s=value) for limit in question.sla.limits if limit_name(limit) == name}
    return replace(question, sla=replace(question.sla, **limits))


def resized(changed: Question, question: Question, fleet: Fleet) -> tuple[int, float]:
    """Working replicas and capacity of the fleet's candidate under a changed question.

    The formula's capacity, corrected by the ratio that holds for the question as it was. Where the formula puts even
    an idle replica over a limit that the simulation found kept, as much excess as it gives the fleet's own capacity is
    taken for kept. The formula is not asked again where only a limit has changed: the latencies at each load are the
    same.
    """
    replica = fleet.candidate.replica
    as_it_was = load_response(replica, setting_of(question, fleet.working))
    kept = 0.0 if as_it_was.rate_per_s(0.0) else as_it_was.excess_at(fleet.capacity_per_s)
    correction = fleet.capacity_per_s / as_it_was.rate_per_s(kept)

    def capacity_per_s(setting: Setting) -> float:
        same_load = load_response(replica, replace(setting, sla=question.sla)).under(setting.sla)
        rate_per_s = same_load.rate_per_s(kept)
        if rate_per_s == 0:
            limit = same_load.idle.binding(setting.sla)
            raise SlaMissed(limit, same_load.idle.value_s(limit))
        return rate_per_s * correction

    return smallest_fleet(changed, capacity_per_s, fleet.working)
