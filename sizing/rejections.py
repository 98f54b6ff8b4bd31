"""Candidates left out because of the SLA: in words, and how near they came."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from sizing.capacity import BY_FORMULA, BY_SIMULATION, NEAR, Method, SlaMissed
from sizing.numbers import milliseconds
from sizing.plan import Candidate, Question, Rejection
from sizing.prediction import Prediction
from sizing.workload import Lengths, Limit, metric_name

Sized = TypeVar("Sized")


def sla_rejection(candidate: Candidate, missed: SlaMissed, lengths: Lengths) -> Rejection:
    """A candidate whose replica misses a limit even without load."""
    limit = missed.limit
    why = (
        f"misses {metric_name(limit.metric)} even alone: {idle_name(limit, lengths)} is {milliseconds(missed.alone_s)} "
        f"on an idle replica, the limit is {milliseconds(limit.limit_s)}"
    )
    return Rejection(candidate.gpu, candidate.tp, candidate.precision, "sla", why, limit, missed.alone_s)


def idle_name(limit: Limit, lengths: Lengths) -> str:
    """What a limit speaks of on an idle replica: where lengths are equal all requests but the rarest take as long."""
    alike = lengths.fixed and limit.percentile < 99 and limit.metric != "gap"
    return metric_name(limit.metric) if alike else limit.name


def jump_rejection(question: Question, candidate: Candidate, replicas: int, predicted: Prediction) -> Rejection:
    """A candidate over a limit at the planned load, although it is within it at some higher load."""
    limit = predicted.binding(question.sla)
    value = predicted.value_s(limit)
    why = (
        f"unsteady: {limit.name} is {milliseconds(value)} with {replicas} replicas, the "
        f"limit is {milliseconds(limit.limit_s)}"
    )
    return Rejection(candidate.gpu, candidate.tp, candidate.precision, "sla", why, limit, value)


def cost_rejection(candidate: Candidate, least: int, best: float) -> Rejection:
    """A candidate that cannot win: it needs `least` GPUs at its stable rate, another fleet of its GPU needs `best`."""
    why = (
        f"needs at least {least} GPUs, headroom and spares included, to carry the load at all; "
        f"{best:.0f} of the same GPU meet the SLA"
    )
    return Rejection(candidate.gpu, candidate.tp, candidate.precision, "cost", why)


def first_look(size: Callable[[Method], Sized | Rejection]) -> Sized | Rejection:
    """What `size` finds by formula; by simulation where the formula puts an idle replica just over a limit."""
    sized = size(BY_FORMULA)
    return size(BY_SIMULATION) if isinstance(sized, Rejection) and near_miss(sized) else sized


def near_miss(rejection: Rejection) -> bool:
    """True when the formula may have been wrong to reject."""
    over, near_enough = distance_from_sla(rejection)
    return not over and near_enough < NEAR


def distance_from_sla(rejection: Rejection) -> tuple[bool, float]:
    """Nearest miss of the SLA first, then what could not be sized at all."""
    if rejection.limit is None or rejection.nearest_s is None:
        return True, 0.0
    return False, rejection.nearest_s / rejection.limit.limit_s
