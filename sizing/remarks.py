"""What a planner should say beside a count: where more GPUs do not help, where formula and simulation disagree."""

from __future__ import annotations

from collections.abc import Iterator

from sizing.capacity import Setting, load_response, predict_at
from sizing.numbers import milliseconds
from sizing.plan import Candidate
from sizing.prediction import Prediction
from sizing.queueing.agreement import disagreement
from sizing.rejections import idle_name

NEAR_FLOOR = 1.25
"""A limit within this factor of its value on an idle replica leaves queueing next to nothing."""

CAUSE = {
    "ttft": "its prompt's length, not the queue",
    "itl": "the time of one decode step, not the queue",
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
