"""What a planner should say beside a count: where more GPUs do not help, where formula and simulation disagree."""

from __future__ import annotations

from collections.abc import Iterator

from sizing.capacity import Setting, load_response, predict_at
from sizing.numbers import milliseconds
from sizing.plan import Fleet
from sizing.queueing.agreement import disagreement

NEAR_FLOOR = 1.25
"""A limit within this factor of its value on an idle replica leaves queueing next to nothing."""

CAUSE = {
    "ttft": "its prompt's length, not the queue",
    "itl": "the time of one decode step, not the queue",
    "e2e": "its own length, not the queue",
}


def remarks(fleet: Fleet, setting: Setting) -> tuple[str, ...]:
    """Lines for the reader, none where all is well."""
    return (*floor_remarks(fleet, setting), *cross_check(fleet, setting))


def cross_check(fleet: Fleet, setting: Setting) -> Iterator[str]:
    """Where the formula contradicts a fleet that was simulated: neither is then to be trusted blindly."""
    if fleet.verified:
        by_formula = predict_at(fleet.candidate.replica, setting, fleet.load_per_s)
        if line := disagreement(by_formula, fleet.predicted):
            yield line


def floor_remarks(fleet: Fleet, setting: Setting) -> Iterator[str]:
    """A limit near its floor: the latency of an idle replica, which no number of replicas lowers."""
    limit = fleet.binding
    floor_s = load_response(fleet.candidate.replica, setting).idle.value_s(limit)
    if limit.limit_s <= NEAR_FLOOR * floor_s and not fleet.stability_binds:
        name = f"p{limit.percentile} {limit.metric.upper()}"
        yield (
            f"more GPUs will not help: {name} is {milliseconds(floor_s)} on an idle replica, of "
            f"{milliseconds(limit.limit_s)} allowed; what makes a request slow is {CAUSE[limit.metric]}"
        )
