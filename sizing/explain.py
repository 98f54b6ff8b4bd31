"""Candidates left out because of the SLA: in words, and how near they came."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

from sizing.edge import BY_FORMULA, BY_SIMULATION, NEAR, Method, SlaMissed, load_response, predict_at
from sizing.numbers import milliseconds
from sizing.plans import Candidate, Fleet, Rejection
from sizing.prediction import Prediction
from sizing.question import Question, Setting
from sizing.queueing.percentiles import disagreement
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
        f"needs at least {least} GPUs, headroom and spares included, just to carry the load; "
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


# --- What a planner should say beside a count: where more GPUs do not help, where formula and simulation disagree

NEAR_FLOOR = 1.25
"""A limit within this factor of its value on an idle replica leaves queueing next to nothing."""
CAUSE = {
    "ttft": "its prompt's length, not the queue",
    "itl": "the time of one decode step, not the queue",
    "gap": "the time of one decode step, not the queue",
    "e2e": "its own length, not the queue",
}


def remarks(
    candidate: Candidate, setting: Setting, load_per_s: float, predicted: Prediction, stability_binds: bool
) -> tuple[str, ...]:
    """Lines for the reader, none where all is well; `predicted` holds at `load_per_s` requests/s per replica."""
    floor = () if stability_binds else floor_remarks(candidate, setting, predicted)
    return (*floor, *cross_check(candidate, setting, load_per_s, predicted))


def cross_check(candidate: Candidate, setting: Setting, load_per_s: float, predicted: Prediction) -> Iterator[str]:
    """Where the formula contradicts a fleet that was simulated: neither is then to be trusted blindly."""
    if predicted.method == "simulation":
        by_formula = predict_at(candidate.replica, setting, load_per_s)
        if line := disagreement(by_formula, predicted):
            yield line


def floor_remarks(candidate: Candidate, setting: Setting, predicted: Prediction) -> Iterator[str]:
    """A limit near its floor: the latency of an idle replica, which no number of replicas lowers."""
    limit = predicted.binding(setting.sla)
    floor_s = load_response(candidate.replica, setting).idle.value_s(limit)
    if limit.limit_s <= NEAR_FLOOR * floor_s:
        name = idle_name(limit, setting.workload.lengths)
        # Above the limit only where the simulation, which counts, found it kept.
        by_formula = " by formula" if floor_s > limit.limit_s else ""
        yield (
            f"more GPUs will not help: {name} is {milliseconds(floor_s)}{by_formula} on an idle replica, of "
            f"{milliseconds(limit.limit_s)} allowed; what makes a request slow is {CAUSE[limit.metric]}"
        )


LONGER = 1.25
"""Times the output tokens at which it is asked whether a longer answer needs fewer GPUs."""
MUCH = 0.1
"""Share of what a limit allows all gaps of an answer: where one prompt's stall is less, it is no matter."""
DILUTES = {
    "itl": "ITL is the mean over an answer's tokens, so longer answers dilute a stall",
    "gap": "Gaps are counted over all tokens, so longer answers dilute the stalls among them",
}


def dilution(fleet: Fleet, setting: Setting, working_for: Callable[[float], int]) -> Iterator[str]:
    """Where longer answers would need fewer GPUs, by formula: a limit on means over tokens, or on a share of them, then
    allows longer stalls. `working_for`: working replicas at a capacity in requests/s.

    Asked only where the stall of one prompt is `MUCH` against the limit: for outputs of a few tokens.
    """
    limit, lengths = fleet.binding, setting.workload.lengths
    stall_s = fleet.candidate.replica.law.prefill_alone_s(lengths.isl)
    if limit.metric not in DILUTES or fleet.stability_binds:
        return
    if stall_s < MUCH * limit.limit_s * (lengths.osl - 1):
        return
    longer = math.ceil(LONGER * lengths.osl)
    workload = replace(setting.workload, lengths=replace(lengths, osl=longer))
    responses = [
        load_response(fleet.candidate.replica, each) for each in (setting, replace(setting, workload=workload))
    ]
    as_it_is, then = (response.rate_per_s(0.0) for response in responses)
    if as_it_is == 0 or then <= as_it_is:
        return
    gpus = (working_for(fleet.capacity_per_s * then / as_it_is) + fleet.spare) * fleet.candidate.gpus
    if gpus < fleet.gpus:
        stalls = "; if single stalls matter, limit the gap between tokens (--gap p99:100ms)"
        yield (
            f"{DILUTES[limit.metric]}: with {longer:,} output tokens instead of {lengths.osl:g}, {gpus} GPUs would do "
            f"(by formula), fewer than {fleet.gpus}{stalls if setting.sla.gap is None else ''}"
        )
