"""Several workloads on one fleet, each with its own SLA: the smallest fleet on which all of them hold at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from sizing.capacity import REQUESTS, Setting, SlaMissed, analytic_capacity_per_s
from sizing.edge import upper_excess
from sizing.errors import ScenarioError
from sizing.plan import Candidate, Rejection
from sizing.prediction import Prediction
from sizing.rejections import sla_rejection
from sizing.replica import Replica
from sizing.simulator import Simulated
from sizing.workload import Limit, Routing, Sla, Workload

MOST = 8
"""Fleets of more than this many times what the workloads need one by one are not looked at."""


@dataclass(frozen=True, slots=True)
class Share:
    """One workload of the fleet with its SLA; of the waiting requests those of `priority` 0 go first, then 1, ..."""

    name: str
    workload: Workload
    sla: Sla
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Terms:
    """What all workloads of the fleet have in common; `headroom` and `spare` as in a Question."""

    routing: Routing = "random"
    headroom: float = 0.2
    spare: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.headroom < 1 or self.spare < 0:
            raise ScenarioError(f"headroom must be from 0 to below 1 and spare 0 or more, got {self}")


class SimulateStreams(Protocol):
    """The simulator of several streams on one fleet: one result per stream, in their order."""

    def __call__(
        self,
        replica: Replica,
        streams: Sequence[Share],
        *,
        replicas: int,
        routing: Routing,
        requests: int,
        seed: int,
    ) -> tuple[Simulated, ...]: ...


@dataclass(frozen=True, slots=True)
class Served:
    """One workload on the shared fleet: latencies at the planned load, the limit with the least room."""

    share: Share
    predicted: Prediction
    binding: Limit


@dataclass(frozen=True, slots=True)
class SharedFleet:
    """The smallest fleet of one candidate for all workloads.

    `apart` is the number of working replicas that fleets of their own would need by formula, one for each workload.
    """

    candidate: Candidate
    working: int
    spare: int
    served: tuple[Served, ...]
    apart: int

    @property
    def replicas(self) -> int:
        """Replicas to own, spares included."""
        return self.working + self.spare

    @property
    def gpus(self) -> int:
        """GPUs to own."""
        return self.replicas * self.candidate.gpus

    @property
    def tightest(self) -> Served:
        """The workload with the least room to one of its limits."""
        return max(self.served, key=lambda served: served.predicted.value_s(served.binding) / served.binding.limit_s)


def shared_fleet(
    shares: Sequence[Share], candidate: Candidate, terms: Terms, simulate: SimulateStreams
) -> SharedFleet | Rejection:
    """The least number of replicas that carries all workloads, each over (1 - headroom), with every SLA kept.

    By simulation of the merged streams; the search begins at the sum of what the workloads need one by one. A
    Rejection when a workload misses its SLA without load, or even on `MOST` times that number.
    """
    if not shares:
        raise ScenarioError("a shared fleet needs at least one workload")
    try:
        needs = [alone(share, candidate, terms) for share in shares]
    except SlaMissed as missed:
        return sla_rejection(candidate, missed)

    def runs(replicas: int, load: float) -> tuple[Simulated, ...]:
        streams = [replace(share, workload=scaled(share.workload, load)) for share in shares]
        return simulate(candidate.replica, streams, replicas=replicas, routing=terms.routing, requests=REQUESTS, seed=0)

    def holds(replicas: int) -> bool:
        results = runs(replicas, 1 / (1 - terms.headroom))
        return all(upper_excess(run, share.sla) <= 0 for run, share in zip(results, shares, strict=True))

    start = max(1, math.ceil(sum(needs)))
    working = least(holds, start, MOST * start)
    if working is None:
        why = f"the workloads disturb each other: not even {MOST * start} replicas keep every SLA"
        return Rejection(candidate.gpu, candidate.tp, candidate.precision, "sla", why)
    predictions = [run.prediction() for run in runs(working, 1.0)]
    served = tuple(
        Served(share, predicted, predicted.binding(share.sla))
        for share, predicted in zip(shares, predictions, strict=True)
    )
    return SharedFleet(candidate, working, terms.spare, served, sum(math.ceil(need) for need in needs))


def least_gpus(
    shares: Sequence[Share], candidates: Sequence[Candidate], terms: Terms, simulate: SimulateStreams
) -> tuple[list[SharedFleet], list[Rejection]]:
    """The shared fleets of the candidates, fewest GPUs first, and the candidates that have none.

    Candidates go by the GPUs they need by formula; one that needs half as many again as the best found is left alone.
    """
    fleets: list[SharedFleet] = []
    rejected: list[Rejection] = []
    for candidate in sorted(candidates, key=lambda each: formula_gpus(shares, each, terms)):
        best = min((fleet.gpus for fleet in fleets), default=math.inf)
        if fleets and formula_gpus(shares, candidate, terms) > 1.5 * best:
            break
        found = shared_fleet(shares, candidate, terms, simulate)
        if isinstance(found, SharedFleet):
            fleets.append(found)
        else:
            rejected.append(found)
    return sorted(fleets, key=lambda fleet: fleet.gpus), rejected


def formula_gpus(shares: Sequence[Share], candidate: Candidate, terms: Terms) -> float:
    """GPUs for the sum of what the workloads need one by one; infinite when one misses its SLA without load."""
    try:
        working = math.ceil(sum(alone(share, candidate, terms) for share in shares))
    except SlaMissed:
        return math.inf
    return float((working + terms.spare) * candidate.gpus)


def alone(share: Share, candidate: Candidate, terms: Terms) -> float:
    """Working replicas, a fraction, that one workload needs by formula on a fleet of its own; raises SlaMissed."""
    setting = Setting(replace(share.workload, rate_per_s=1.0), share.sla, "random")
    capacity_per_s = analytic_capacity_per_s(candidate.replica, setting)
    return share.workload.rate_per_s / (capacity_per_s * (1 - terms.headroom))


def scaled(workload: Workload, load: float) -> Workload:
    """The same workload at `load` times its rate."""
    return replace(workload, rate_per_s=load * workload.rate_per_s)


def least(holds: Callable[[int], bool], start: int, most: int) -> int | None:
    """The least whole number from 1 that `holds`, searched from `start` in growing steps; None if none up to `most`.

    `holds` must be false below some number and true above it.

    >>> least(lambda n: n >= 37, start=20, most=1000)
    37
    """
    low, high = 0, start
    step = max(1, start // 16)
    if holds(start):
        while high - step > 0 and holds(high - step):
            high, step = high - step, 2 * step
        low = max(0, high - step)
    else:
        low = start
        while not holds(high := min(low + step, most)):
            if high == most:
                return None
            low, step = high, 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
