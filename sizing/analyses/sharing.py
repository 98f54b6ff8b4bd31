"""Several workloads on one fleet, each with its own SLA: the smallest fleet on which all of them hold at once."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, field_validator

from sizing.analyses.relax import Ways, ways_out
from sizing.edge import BY_SIMULATION, REQUESTS, SlaMissed, ample_replicas, first_capacity_per_s, least, upper_excess
from sizing.errors import RequestTooLong, ScenarioError, first_fault, quoted
from sizing.explain import cost_rejection, sla_rejection
from sizing.files import read_yaml
from sizing.planner import HOPELESS, by_formula, size
from sizing.plans import Basis, Candidate, Fleet, Rejection, basis_of, beyond_measured
from sizing.prediction import Caution, Prediction
from sizing.question import (
    FIELDS,
    Margins,
    Question,
    Setting,
    check_load,
    check_priced,
    check_terms,
    replicas_for,
    sla_of,
    weight_of,
    with_laws,
    workload_of,
)
from sizing.queueing import stable_rate_per_s
from sizing.simulator import Simulated, Watch
from sizing.simulator.runs import FEWEST_OF_STREAM, Stream, simulate_streams
from sizing.workload import Limit, Routing, Sla, Workload

MOST = 8
"""Fleets larger than this many times what the workloads need one by one are not considered."""


@dataclass(frozen=True, slots=True)
class Share:
    """One workload of the fleet with its SLA; of the waiting requests those of `priority` 0 go first, then 1, ..."""

    name: str
    workload: Workload
    sla: Sla
    priority: int = 0

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise ScenarioError("a workload needs a name")
        check_load(self.workload, self.sla)
        Stream(self.workload, self.priority)  # checks the priority


@dataclass(frozen=True, slots=True)
class Terms(Margins):
    """What all workloads of the fleet have in common; margins and prices as in a Question."""

    routing: Routing = "random"
    headroom: float = 0.2
    spare: int = 1
    price_per_gpu_hour: float | None = None
    prices: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        check_terms(self)


@dataclass(frozen=True, slots=True)
class ServedWorkload:
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
    served: tuple[ServedWorkload, ...]
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
    def tightest(self) -> ServedWorkload:
        """The workload with the least room to one of its limits."""
        return max(self.served, key=lambda served: served.predicted.used(served.binding))

    @property
    def rate_per_s(self) -> float:
        """Requests/s of all workloads."""
        return sum(served.share.workload.rate_per_s for served in self.served)

    @property
    def output_tokens_per_s(self) -> float:
        """Output tokens/s of all workloads."""
        return sum(served.share.workload.rate_per_s * served.share.workload.lengths.osl for served in self.served)

    @property
    def requests_per_s_per_gpu(self) -> float:
        """The load over the GPUs of the working replicas."""
        return self.rate_per_s / (self.working * self.candidate.gpus)

    @property
    def utilization(self) -> float:
        """Load over the highest stable rate; that of the last in priority, which counts all before it."""
        return max(served.predicted.utilization for served in self.served)

    @property
    def in_flight(self) -> float:
        """Requests in a working replica at once, on average (Little's law)."""
        held = sum(served.share.workload.rate_per_s * served.predicted.e2e.mean_s for served in self.served)
        return held / self.working

    @property
    def basis(self) -> Basis:
        """Where the numbers come from at the planned load."""
        return basis_of(self.candidate, self.in_flight)

    @property
    def warnings(self) -> tuple[Caution, ...]:
        """Cautions about the whole fleet; each workload's prediction has its own."""
        return (*self.candidate.warnings, *beyond_measured(self.candidate, self.in_flight))


def shared_fleet(shares: Sequence[Share], candidate: Candidate, terms: Terms) -> SharedFleet | Rejection:
    """As `_shared_fleet`, or a Rejection where a request that was drawn never fits."""
    try:
        return _shared_fleet(shares, candidate, terms)
    except RequestTooLong as error:
        return Rejection.of(candidate, "memory", str(error))


def _shared_fleet(shares: Sequence[Share], candidate: Candidate, terms: Terms) -> SharedFleet | Rejection:
    """The least number of replicas that carries all workloads, each over (1 - headroom), with every SLA kept.

    By simulation of the merged streams; the search begins at the sum of what the workloads need one by one. A
    Rejection when a workload misses its SLA without load, or even on `MOST` times that number.
    """
    if not shares:
        raise ScenarioError("a shared fleet needs at least one workload")
    needs = []
    total_per_s = sum(share.workload.rate_per_s for share in shares)
    for share in shares:
        own_per_s = share.workload.rate_per_s
        if own_per_s * REQUESTS < FEWEST_OF_STREAM * total_per_s:
            raise ScenarioError(
                f"{share.name}: {own_per_s:g} of all {total_per_s:g} requests/s are too few to be judged: leave this "
                "workload out, or size it alone"
            )
        try:
            needs.append(alone(share, candidate, terms))
        except SlaMissed as missed:
            return sla_rejection(candidate, missed, share.workload.lengths)

    watch = Watch(token_gaps=any(share.sla.gap for share in shares))

    def runs(replicas: int, load: float) -> tuple[Simulated, ...]:
        streams = [Stream(scaled(share.workload, load), share.priority) for share in shares]
        return simulate_streams(
            candidate.replica, streams, replicas=replicas, routing=terms.routing, requests=REQUESTS, watch=watch
        )

    def holds(replicas: int) -> bool:
        results = runs(replicas, 1 / (1 - terms.headroom))
        return all(upper_excess(run, share.sla) <= 0 for run, share in zip(results, shares, strict=True))

    start = max(1, math.ceil(sum(needs)))
    apart = sum(own_fleet(each, candidate, terms) for each in shares)  # bursts need many, however low their rate
    most = MOST * max(start, apart)
    working = least(holds, start, most)
    if working is None:
        why = f"the workloads disturb each other: not even {most} replicas keep every SLA"
        return Rejection.of(candidate, "sla", why)
    predictions = [run.prediction(share.sla.within) for run, share in zip(runs(working, 1.0), shares, strict=True)]
    pairs = list(zip(shares, predictions, strict=True))
    unsteady = next((share.name for share, predicted in pairs if not predicted.meets(share.sla)), None)
    if unsteady is not None:
        why = f"unsteady: {unsteady} misses its SLA with {working} replicas, although it keeps it at a higher load"
        return Rejection.of(candidate, "sla", why)
    served = tuple(ServedWorkload(share, predicted, predicted.binding(share.sla)) for share, predicted in pairs)
    return SharedFleet(candidate, working, terms.spare, served, apart)


def least_gpus(
    shares: Sequence[Share], candidates: Sequence[Candidate], terms: Terms
) -> tuple[list[SharedFleet], list[Rejection]]:
    """The shared fleets of the candidates, fewest GPUs (or lowest price) first, and the candidates that have none.

    Candidates go by the GPUs that carry the load at all; one that needs `HOPELESS` times those of the best found of the
    same GPU is left out unsized. Raises ScenarioError where some GPUs have a price and others not.
    """
    check_priced(terms, (candidate.gpu for candidate in candidates))
    fleets: list[SharedFleet] = []
    rejected: list[Rejection] = []
    fewest: dict[str, float] = {}
    needs = [(carrying_gpus(shares, candidate, terms), candidate) for candidate in candidates]
    for needed, candidate in sorted(needs, key=lambda need: need[0]):
        best = fewest.get(candidate.gpu, math.inf)
        if needed > HOPELESS * best:
            rejected.append(cost_rejection(candidate, needed, best))
            continue
        found = shared_fleet(shares, candidate, terms)
        if isinstance(found, SharedFleet):
            fleets.append(found)
            fewest[candidate.gpu] = min(best, found.gpus)
        else:
            rejected.append(found)
    return sorted(fleets, key=lambda fleet: cost(fleet, terms)), rejected


def workloads_ways_out(
    rejected: Sequence[Rejection],
    model: str,
    shares: Sequence[Share],
    candidates: Sequence[Candidate],
    routing: Routing,
) -> tuple[tuple[str, Ways], ...]:
    """What the limits of each workload would have to be that no candidate keeps even alone, by its name."""
    found = (
        (share.name, ways_out(rejected, Question(model, share.workload, share.sla, routing), candidates))
        for share in shares
    )
    return tuple(
        (name, (alone, together))
        for name, (alone, together) in found
        if any(way.smallest is None or way.smallest.limit_s > way.limit.limit_s for way in alone)
    )


def cost(fleet: SharedFleet, terms: Terms) -> float:
    """GPUs, or the price of an hour where GPUs have their own."""
    return fleet.gpus * weight_of(terms, fleet.candidate.gpu)


def carrying_gpus(shares: Sequence[Share], candidate: Candidate, terms: Terms) -> int:
    """Lower bound on a candidate's GPUs: enough to carry all workloads at all, whatever the latency.

    What the workloads need one by one is none: a limit that one keeps at a low load only leaves room for the others.
    """
    busy = 0.0
    for workload in (share.workload for share in shares):
        busy += workload.rate_per_s / stable_rate_per_s(candidate.replica, workload.lengths, workload.prefix)
    return (replicas_for(busy, 1 - terms.headroom) + terms.spare) * candidate.gpus


def alone(share: Share, candidate: Candidate, terms: Terms) -> float:
    """Working replicas, a fraction, that one workload needs by formula on a fleet of its own, over which its bursts
    spread, and so large that a router that is not random keeps requests apart; raises SlaMissed."""
    many = ample_replicas(share.workload.arrivals, terms.routing)
    setting = Setting(replace(share.workload, rate_per_s=1.0), share.sla, terms.routing, many)
    capacity_per_s = first_capacity_per_s(candidate.replica, setting)
    return share.workload.rate_per_s / (capacity_per_s * (1 - terms.headroom))


def own_fleet(share: Share, candidate: Candidate, terms: Terms) -> int:
    """Working replicas of a fleet for one workload alone, with the routing that all have: by formula, which is rough
    where arrivals are not random, so that those are simulated."""
    question = Question(candidate.model, share.workload, share.sla, terms.routing, terms.headroom, terms.spare)
    if share.workload.arrivals.kind != "poisson":
        found = size(question, candidate, BY_SIMULATION)
        if isinstance(found, Fleet):
            return found.working
    return by_formula(question, candidate)


def scaled(workload: Workload, load: float) -> Workload:
    """The same workload at `load` times its rate."""
    return replace(workload, rate_per_s=load * workload.rate_per_s)


# --- Several workloads as people write them: a YAML file, or `--workload name:isl=...,osl=...,rate=...` several times

STRICT = ConfigDict(extra="forbid", frozen=True)


STREAM = (
    "isl osl rate isl_cv osl_cv isl_law osl_law correlation arrivals prefix_tokens prefix_hit ttft itl gap e2e goodput "
    "rejected queue_timeout".split()
)
StreamFile = create_model(
    "StreamFile",
    __config__=STRICT,
    name=(str, ...),
    priority=(int, 0),
    **{name: FIELDS[name].entry for name in STREAM},  # type: ignore[call-overload]
)
"""One workload of a scenario: fields of the question, limits as on the command line, for instance ``ttft: p95:1s``."""


def share_of(stream: BaseModel) -> Share:
    """The workload and SLA that a `StreamFile` describes; ScenarioError, with its name, for what they cannot be."""
    given = stream.model_dump()
    try:
        return Share(given["name"], workload_of(given), sla_of(given), given["priority"])
    except ScenarioError as error:
        raise ScenarioError(f"workload {quoted(given['name'])}: {error}") from None


class ScenarioFile(BaseModel):
    """A fleet that several workloads share: what may be bought, the terms, the workloads."""

    model_config = STRICT

    model: str
    gpu: list[str] = Field(default_factory=list)
    precision: list[str] = Field(default_factory=list)
    tp: list[int] = Field(default_factory=list)
    routing: Routing = "random"
    headroom: float = 0.2
    spare: int = 1
    workloads: list[StreamFile] = Field(min_length=1)

    @field_validator("workloads")
    @classmethod
    def _each_by_its_name(cls, workloads: list[Any]) -> list[Any]:
        names = [each.name for each in workloads]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"two are named {quoted(twice)}: give each a name of its own")
        return workloads

    @property
    def terms(self) -> Terms:
        """What all workloads have in common."""
        return Terms(self.routing, self.headroom, self.spare)


def read_scenario(path: Path | str) -> ScenarioFile:
    """The scenario of a YAML file. Raises ScenarioError, one line with file and key, for anything that is not one."""
    return scenario_of(read_yaml(path, "scenario file"), str(path), Path(path).parent)


def scenario_of(content: Any, where: str, folder: Path | str = "") -> ScenarioFile:
    """A checked scenario out of a mapping; `where` begins the message of the ScenarioError it may raise.

    `folder`: where the paths of histograms start.
    """
    if not isinstance(content, dict):
        raise ScenarioError(f"{where}: expected a mapping with model and workloads{'' if content else ': it is empty'}")
    streams = content.get("workloads")
    try:
        if isinstance(streams, list):
            streams = [with_laws(stream, folder) if isinstance(stream, dict) else stream for stream in streams]
            content = content | {"workloads": streams}
        return ScenarioFile.model_validate(content)
    except ValidationError as error:
        raise ScenarioError(f"{where}, {first_fault(error)}") from None
    except ScenarioError as error:
        raise ScenarioError(f"{where}: {error}") from None


NEXT_KEY = r",(?=[^,=]*=)|,$"
"""A comma before the next ``key=``: the laws of lengths have commas of their own."""


def parse_workload(text: str) -> dict[str, str]:
    """The keys of one ``--workload``.

    >>> parse_workload("chat:isl=1000,osl=200,rate=5,ttft=p95:1s")
    {'name': 'chat', 'isl': '1000', 'osl': '200', 'rate': '5', 'ttft': 'p95:1s'}
    """
    name, pairs = named_pairs("--workload", text, "NAME:isl=1000,osl=200,rate=5,ttft=p95:1s with a name of your own")
    return {"name": name} | pairs


def named_pairs(option: str, text: str, example: str) -> tuple[str, dict[str, str]]:
    """The name, which may have colons, and the keys of ``NAME:key=value,key=value``. Raises ScenarioError with the
    `example`.

    >>> named_pairs("--class", "team:a:ttft=p95:1s,itl=none", "NAME:ttft=p95:1s")
    ('team:a', {'ttft': 'p95:1s', 'itl': 'none'})
    """
    name, colon, _ = text.partition("=")[0].rpartition(":")
    pairs = [word.partition("=") for word in re.split(NEXT_KEY, text[len(name) + len(colon) :])]
    if not colon or not name or not all(equals for _, equals, _ in pairs):
        raise ScenarioError(f"{option} {text!r}: write it as {example}")
    return name.strip(), {key.strip(): value.strip() for key, _, value in pairs}
