"""The highest rate at which one replica of a fleet still meets the SLA: by formula, and by simulation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import PchipInterpolator

from sizing.prediction import Method as MethodName
from sizing.prediction import Prediction
from sizing.queueing import predict, stable_rate_per_s
from sizing.replica import Replica
from sizing.simulator import Simulated, simulate
from sizing.workload import Limit, Routing, Sla, Workload

Floats = NDArray[np.float64]

IDLE = 0.01
"""Share of the stable rate taken as "alone": an SLA missed here is missed at any load."""

LOADS = np.array([IDLE, 0.05, 0.15, 0.35, 0.55, 0.7, 0.82, 0.91, 0.97, 0.995])
"""Shares of the stable rate at which the formula is asked; beyond the last, percentiles have no finite meaning."""

TOLERANCE = 0.004
"""Relative width at which the search by simulation stops; its Monte-Carlo error is 1-2 %."""

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

    Raises SlaMissed when a replica without load is over a limit.
    """
    response = load_response(replica, setting)
    capacity_per_s = response.rate_per_s(0.0)
    if capacity_per_s == 0:
        idle = predict_at(replica, setting, float(response.rates_per_s[0]))
        limit = idle.binding(setting.sla)
        raise SlaMissed(limit, idle.value_s(limit))
    return capacity_per_s


@dataclass(frozen=True, slots=True, eq=False)
class LoadResponse:
    """Excess over the SLA (see `log_excess`) at rising requests/s per replica, both shape (n,), excess rising."""

    rates_per_s: Floats
    excess: Floats

    def rate_per_s(self, level: float) -> float:
        """The rate at which the excess reaches `level`, interpolated monotonically in log rate; within 1 %.

        0 when the excess is higher even at the lowest rate; the highest rate when it is never reached.
        """
        rising, kept = np.unique(self.excess, return_index=True)
        if level < rising[0]:
            return 0.0
        if level >= rising[-1]:
            return float(self.rates_per_s[-1])
        return math.exp(float(PchipInterpolator(rising, np.log(self.rates_per_s[kept]))(level)))


@lru_cache(maxsize=64)
def load_response(replica: Replica, setting: Setting) -> LoadResponse:
    """How the SLA is used up from no load to saturation, by formula, at the shares `LOADS` of the stable rate.

    Kept for a while: the capacity and the band around it are read off the same response.
    """
    rates = LOADS * stable_rate_per_s(replica, setting.workload.lengths)
    excess = [log_excess(predict_at(replica, setting, float(rate)), setting.sla) for rate in rates]
    return LoadResponse(rates, np.maximum.accumulate(excess))


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
