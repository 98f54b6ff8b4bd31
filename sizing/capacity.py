"""The highest rate at which one replica of a fleet still meets the SLA: by formula, and by simulation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from scipy.optimize import brentq

from sizing.prediction import Method as MethodName
from sizing.prediction import Prediction
from sizing.queueing import predict, stable_rate_per_s
from sizing.replica import Replica
from sizing.simulator import Simulated, simulate
from sizing.workload import Limit, Routing, Sla, Workload

IDLE = 0.01
"""Share of the stable rate taken as "alone": an SLA missed here is missed at any load."""

FULL = 0.995
"""Share of the stable rate up to which the capacity is sought; beyond it percentiles have no finite meaning."""

TOLERANCE = 0.004
FORMULA_TOLERANCE = 0.008
"""Relative widths at which the search for a rate stops: by simulation, whose Monte-Carlo error is 1-2 %, and by
formula, whose model error is larger."""

REQUESTS = 60_000


@dataclass(frozen=True, slots=True)
class Setting:
    """What a replica works in: the workload's lengths and arrivals, the SLA, and the fleet it shares the load with."""

    workload: Workload
    sla: Sla
    routing: Routing
    replicas: int = 1

    def at(self, rate_per_replica_per_s: float) -> Workload:
        """The workload that gives every replica this many requests/s."""
        return replace(self.workload, rate_per_s=rate_per_replica_per_s * self.replicas)


class SlaMissed(Exception):
    """Even an idle replica misses `limit`: it needs `alone_s` seconds. The planner turns this into a rejection."""

    def __init__(self, limit: Limit, alone_s: float) -> None:
        super().__init__(f"{limit}: {alone_s * 1000:.3g} ms on an idle replica")
        self.limit = limit
        self.alone_s = alone_s


@dataclass(frozen=True, slots=True)
class Method:
    """A way to answer both questions about a replica in its setting: how much can it carry, what do users see.

    `capacity_per_s(replica, setting)`: requests/s of one replica at which the SLA is about to fail; raises SlaMissed
    if it fails without load. `predict(replica, setting, rate_per_s)`: percentiles when every replica gets that rate.
    """

    name: MethodName
    capacity_per_s: Callable[[Replica, Setting], float]
    predict: Callable[[Replica, Setting, float], Prediction]


def predict_at(replica: Replica, setting: Setting, rate_per_s: float) -> Prediction:
    """Percentiles by formula when every replica gets `rate_per_s` requests/s."""
    return predict(replica, setting.at(rate_per_s), replicas=setting.replicas, routing=setting.routing)


def analytic_capacity_per_s(replica: Replica, setting: Setting) -> float:
    """Requests/s of one replica at which the first limit of the SLA is reached, by formula.

    Latencies rise with the load, so there is one root between idle and saturation.
    """
    stable_per_s = stable_rate_per_s(replica, setting.workload.lengths)
    idle = predict_at(replica, setting, IDLE * stable_per_s)
    if not idle.meets(setting.sla):
        limit = idle.binding(setting.sla)
        raise SlaMissed(limit, idle.value_s(limit))

    def excess(log_rate: float) -> float:
        return log_excess(predict_at(replica, setting, math.exp(log_rate)), setting.sla)

    low, high = math.log(IDLE * stable_per_s), math.log(FULL * stable_per_s)
    if excess(high) <= 0:
        return FULL * stable_per_s
    return math.exp(brentq(excess, low, high, xtol=FORMULA_TOLERANCE))


def log_excess(prediction: Prediction, sla: Sla) -> float:
    """Log of predicted over allowed for the tightest limit; bounded, so that a root finder can work with it."""
    if prediction.saturated:
        return 3.0
    limit = prediction.binding(sla)
    return min(3.0, math.log(prediction.value_s(limit) / limit.limit_s))


def run_at(replica: Replica, setting: Setting, rate_per_s: float) -> Simulated:
    """A simulated run in which every replica gets `rate_per_s` requests/s; the same seed whatever the rate."""
    workload = setting.at(rate_per_s)
    return simulate(replica, workload, replicas=setting.replicas, routing=setting.routing, requests=REQUESTS, seed=0)


def simulate_at(replica: Replica, setting: Setting, rate_per_s: float) -> Prediction:
    """Percentiles by simulation when every replica gets `rate_per_s` requests/s."""
    return run_at(replica, setting, rate_per_s).prediction()


def simulated_capacity_per_s(replica: Replica, setting: Setting) -> float:
    """The same rate by discrete-event simulation; the search begins at the formula's answer.

    The same random numbers serve every rate, so that the search sees a smooth function.
    """
    guess_per_s = analytic_capacity_per_s(replica, setting)
    ceiling_per_s = stable_rate_per_s(replica, setting.workload.lengths)
    found = largest(lambda rate: run_at(replica, setting, rate).meets(setting.sla), guess_per_s, ceiling_per_s)
    if found == 0:
        idle = simulate_at(replica, setting, IDLE * guess_per_s)
        limit = idle.binding(setting.sla)
        raise SlaMissed(limit, idle.value_s(limit))
    return found


def largest(holds: Callable[[float], bool], guess: float, ceiling: float) -> float:
    """The largest x up to `ceiling` that `holds`, to `TOLERANCE`; 0 when not even a hundredth of the guess does.

    `holds` must be true below some x and false above it.

    >>> round(largest(lambda x: x <= 3.0, guess=1.0, ceiling=100.0), 1)
    3.0
    """
    low = high = min(guess, ceiling)
    step = 1.04
    if holds(low):
        while holds(high := min(low * step, ceiling)):
            if high == ceiling:
                return ceiling
            low, step = high, step**2
    else:
        while not holds(low := high / step):
            if low < IDLE * guess:
                return 0.0
            high, step = low, step**2
    while high / low - 1 > TOLERANCE:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


BY_FORMULA = Method("analytic", analytic_capacity_per_s, predict_at)
BY_SIMULATION = Method("simulation", simulated_capacity_per_s, simulate_at)
