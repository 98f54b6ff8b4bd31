"""How sure the predicted latencies are: their 90 % band at the planned load, from what the law's data leave open."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from sizing.band import Z90
from sizing.capacity import predict_at
from sizing.plan import Fleet, Question
from sizing.planner import setting_of
from sizing.prediction import Prediction
from sizing.replica import Replica
from sizing.workload import Limit

Factors = Callable[[Limit], tuple[float, float]]


def latency_band(question: Question, fleet: Fleet) -> Factors:
    """For a limit, the ends of the 90 % band of its latency as factors of the prediction: (low, high).

    At the planned load, by formula. A fitted law brings pairs of laws one standard error apart: the changes of log
    latency along them add in quadrature. A law without them is made slower and faster by its relative error. High is
    infinite where the slow end cannot carry the load at all.
    """
    candidate, setting = fleet.candidate, setting_of(question, fleet.working)

    def at_planned_load(replica: Replica) -> Prediction:
        return predict_at(replica, setting, fleet.load_per_s)

    if candidate.variants:
        pairs = [(at_planned_load(one), at_planned_load(other)) for one, other in candidate.variants]
        return lambda limit: spread(math.hypot(*(half_change(one, other, limit) for one, other in pairs)))
    factor = math.exp(Z90 * candidate.relative_sigma)
    fast, middle, slow = (
        at_planned_load(replace(candidate.replica, law=candidate.replica.law.scaled(scale)))
        for scale in (1 / factor, 1.0, factor)
    )
    return lambda limit: (ratio(fast, middle, limit), ratio(slow, middle, limit))


def spread(sigma: float) -> tuple[float, float]:
    """The band of a value whose logarithm has this standard error."""
    return math.exp(-Z90 * sigma), math.exp(Z90 * sigma)


def half_change(one: Prediction, other: Prediction, limit: Limit) -> float:
    """Half the change of log latency between two laws; infinite where one of them cannot carry the load."""
    values = one.value_s(limit), other.value_s(limit)
    if not all(math.isfinite(value) and value > 0 for value in values):
        return math.inf
    return math.log(values[0] / values[1]) / 2


def ratio(changed: Prediction, middle: Prediction, limit: Limit) -> float:
    """A changed prediction over the one as it is; 1 where there is none to compare with."""
    value, base = changed.value_s(limit), middle.value_s(limit)
    if not math.isfinite(base) or base <= 0 or math.isnan(value):
        return 1.0
    return value / base
