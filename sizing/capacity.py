"""The highest rate at which one replica of a fleet still meets the SLA: by formula, and by simulation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from sizing.edge import CLIFF, NEARBY, edge_rate, upper_excess
from sizing.prediction import Method as MethodName
from sizing.prediction import Prediction
from sizing.queueing import predict, stable_rate_per_s
from sizing.replica import Replica
from sizing.response import LoadResponse, log_excess
from sizing.simulator import Simulated, Watch, simulate, simulated_replicas
from sizing.workload import Limit, Routing, Sla, Workload

IDLE = 0.01
"""Share of the stable rate taken as "alone": an SLA missed here is missed at any load."""

LOADS = (IDLE, 0.15, 0.35, 0.55, 0.72, 0.85, 0.94, 0.995)
"""Shares of the stable rate at which the formula is asked; beyond the last, percentiles have no finite meaning."""

ENOUGH = 1.0
"""Excess over the SLA (log) from which higher loads are not asked for: no band and no what-if reaches there."""

BETWEEN = (1 / 3, 2 / 3)
"""Shares of the interval in which the SLA is passed where the formula is asked again."""

HALVINGS = 6
"""Times that an interval in which the SLA is passed steeply is halved at most."""

REQUESTS = 240_000
"""Requests of a run that decides; the Monte-Carlo error of a capacity is then 0.5-1 %."""

BALANCED_REQUESTS = 160_000
HERDING_REQUESTS = 800_000
HERDING_RUNS = 3
"""Runs that decide where equal requests may fall into step: when they do is chance, and one run sees it happen a few
times only, so that its own standard error says too little."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a replica works in: the workload's lengths and arrivals, the SLA, and the fleet it shares the load with."""

    workload: Workload
    sla: Sla
    routing: Routing
    replicas: int = 1

    @property
    def herds(self) -> bool:
        """True where equal requests go to the least busy of several replicas and may fall into step."""
        return self.replicas > 1 and self.routing == "least_outstanding" and self.workload.lengths.fixed

    def at(self, rate_per_replica_per_s: float) -> Workload:
        """The workload that gives every replica this many requests/s."""
        return replace(self.workload, rate_per_s=rate_per_replica_per_s * self.replicas)


NEAR = 1.1
"""The formula's percentiles may be this far off: a miss within it is looked at by simulation."""


class SlaMissed(Exception):
    """Even an idle replica misses `limit`: it needs `alone_s` seconds. The planner turns this into a rejection."""

    def __init__(self, limit: Limit, alone_s: float) -> None:
        super().__init__(f"{limit}: {alone_s * 1000:.3g} ms on an idle replica")
        self.limit = limit
        self.alone_s = alone_s

    @property
    def near(self) -> bool:
        """True when the formula may have been wrong to reject."""
        return self.alone_s < NEAR * self.limit.limit_s


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
    return _known_at(replica, setting.at(rate_per_s), setting.routing, setting.replicas, setting.sla.gap is not None)


def analytic_capacity_per_s(replica: Replica, setting: Setting) -> float:
    """Requests/s of one replica at which the first limit of the SLA is reached, by formula.

    Raises SlaMissed when a replica without load is over a limit.
    """
    response = load_response(replica, setting)
    capacity_per_s = response.rate_per_s(0.0)
    if capacity_per_s == 0:
        limit = response.idle.binding(setting.sla)
        raise SlaMissed(limit, response.idle.value_s(limit))
    return capacity_per_s


@lru_cache(maxsize=1024)
def load_response(replica: Replica, setting: Setting) -> LoadResponse:
    """How the SLA is used up from no load on, by formula, at the shares `LOADS` of the stable rate.

    Where the SLA is passed the formula is asked more closely, far beyond it no more. Kept for a while: the capacity and
    the band around it are read off the same response.
    """
    stable_per_s = stable_rate_per_s(replica, setting.workload.lengths, setting.workload.prefix)
    known: dict[float, Prediction] = {}

    def excess_at(share: float) -> float:
        known[share] = predict_at(replica, setting, share * stable_per_s)
        return log_excess(known[share], setting.sla)

    below = LOADS[0]
    for share in LOADS:
        excess = excess_at(share)
        if excess <= 0:
            below = share
        if excess > ENOUGH:
            break
    above = min((share for share in known if share > below), default=below)
    passed = log_excess(known[below], setting.sla) <= 0 < log_excess(known[above], setting.sla)
    for part in BETWEEN if passed else ():
        excess_at(below + part * (above - below))
    if passed and setting.sla.gap:
        _halve_cliff(known, setting.sla, excess_at)
    return LoadResponse.of(known, stable_per_s, setting.sla)


def _halve_cliff(known: dict[float, Prediction], sla: Sla, excess_at: Callable[[float], float]) -> None:
    """Ask where the SLA is passed until the rise is small: percentiles of gaps jump at the load from which on the share
    of gaps with a prompt in them is larger than the percentile leaves."""
    for _ in range(HALVINGS):
        below = max((share for share in known if log_excess(known[share], sla) <= 0), default=LOADS[0])
        above = min((share for share in known if share > below), default=below)
        if log_excess(known[above], sla) - log_excess(known[below], sla) < CLIFF or above / below < 1 + NEARBY:
            return
        excess_at(math.sqrt(below * above))


@lru_cache(maxsize=8192)
def _known_at(replica: Replica, workload: Workload, routing: Routing, replicas: int, gaps: bool) -> Prediction:
    """Percentiles by formula, kept: another SLA asks for most of the same loads again, of each law of a band, and a
    chart of latency against load shows the same ones for every load of the fleet."""
    return predict(replica, workload, replicas=replicas, routing=routing, gaps=gaps)


def requests_for(setting: Setting) -> int:
    """Requests of a run that decides: fewer where 32 replicas are simulated, whose load is steadier.

    More where equal requests may fall into step behind the least busy replica, which takes them long.
    """
    if setting.replicas == 1 or setting.routing not in ("power_of_two", "least_outstanding"):
        return REQUESTS
    return HERDING_REQUESTS if setting.herds else BALANCED_REQUESTS


def run_at(replica: Replica, setting: Setting, rate_per_s: float, requests: int, seed: int = 0) -> Simulated:
    """A simulated run in which every replica gets `rate_per_s` requests/s; the same seed whatever the rate."""
    return simulate(
        replica,
        setting.at(rate_per_s),
        replicas=setting.replicas,
        routing=setting.routing,
        requests=requests,
        seed=seed,
        watch=Watch(token_gaps=setting.sla.gap is not None),
    )


def simulate_at(replica: Replica, setting: Setting, rate_per_s: float) -> Prediction:
    """Percentiles by simulation when every replica gets `rate_per_s` requests/s; where requests may fall into step, of
    several runs the one that comes worst."""
    seeds, requests = range(HERDING_RUNS if setting.herds else 1), requests_for(setting)
    runs = (run_at(replica, setting, rate_per_s, requests, seed) for seed in seeds)
    return max((run.prediction() for run in runs), key=lambda seen: log_excess(seen, setting.sla))


def simulated_capacity_per_s(replica: Replica, setting: Setting) -> float:
    """The same rate by discrete-event simulation; the search begins at the formula's answer.

    The same random numbers serve every rate, so that the search sees a smooth function. Raises SlaMissed when a
    replica without load is over a limit.
    """
    return _searched_per_s(replica, replace(setting, replicas=simulated_replicas(setting.replicas, setting.routing)))


@lru_cache(maxsize=512)
def _searched_per_s(replica: Replica, setting: Setting) -> float:
    """The same, for a fleet of as many replicas as the simulator takes for one of that size."""
    response, requests = load_response(replica, setting), requests_for(setting)
    by_formula_per_s = response.rate_per_s(0.0)
    guess_per_s = by_formula_per_s or float(response.rates_per_s[0])
    if by_formula_per_s == 0:
        # Where the simulation too rejects an idle replica, this one run tells; the search comes down step by step.
        idle = run_at(replica, setting, IDLE * guess_per_s, requests)
        if upper_excess(idle, setting.sla) > 0:
            raise _missed(idle, setting.sla)

    def excess(rate_per_s: float, requests: int) -> float:
        return upper_excess(run_at(replica, setting, rate_per_s, requests), setting.sla)

    ceiling_per_s = LOADS[-1] * stable_rate_per_s(replica, setting.workload.lengths, setting.workload.prefix)
    found = edge_rate(excess, response, guess_per_s, ceiling_per_s, requests)
    if found == 0:
        raise _missed(run_at(replica, setting, IDLE * guess_per_s, requests), setting.sla)
    return found


def _missed(idle: Simulated, sla: Sla) -> SlaMissed:
    """What a replica without load misses."""
    prediction = idle.prediction()
    limit = prediction.binding(sla)
    return SlaMissed(limit, prediction.value_s(limit))


BY_FORMULA = Method("analytic", analytic_capacity_per_s, predict_at)
BY_SIMULATION = Method("simulation", simulated_capacity_per_s, simulate_at)


def first_capacity_per_s(replica: Replica, setting: Setting) -> float:
    """Requests/s of one replica by formula; by simulation where the formula puts an idle one just over a limit."""
    try:
        return analytic_capacity_per_s(replica, setting)
    except SlaMissed as missed:
        if not missed.near:
            raise
        return simulated_capacity_per_s(replica, setting)
