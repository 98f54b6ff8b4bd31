"""What a planner chooses from and what it answers: candidates, rejections, fleets, plans; cost, energy and servers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Self

from sizing import catalog
from sizing.catalog import Layout
from sizing.engine import Replica
from sizing.errors import ScenarioError, SizingError
from sizing.numbers import significant
from sizing.points import UNTOLD, Point, Protocol
from sizing.prediction import Caution, Prediction
from sizing.question import Question
from sizing.workload import Limit

NEAR_STABLE = 0.97
"""Share of the stable rate from which stability, not a limit, counts as binding: percentiles explode beyond it."""
Why = Literal["memory", "sla", "no_data", "cost", "engine", "too_few"]
Basis = Literal["measured", "fitted", "extrapolated", "estimated", "what-if"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to serve the model: GPUs in a layout, with the law of that replica and the source of the law.

    `basis` applies up to `calibrated_in_flight` requests at once in a replica, and down to half of `calibrated_from`;
    outside, the law is extrapolated.
    `relative_sigma` is the standard error of the law's times as a share. `variants`, if a fit gives them, are pairs of
    replicas one standard error to either side along each direction that the data leave open. `fitted_to`: the points
    that the law was fitted to, measured by `protocol`. `open_loops`: levels of random arrivals measured on this same
    engine, including void ones. `engine`: the server's software, empty if it is unknown: of an estimate without kernel
    timings, the one asked for.
    """

    model: str
    gpu: str
    layout: Layout
    precision: str
    replica: Replica
    basis: Basis
    source: str
    relative_sigma: float
    engine: str = ""
    calibrated_in_flight: float = math.inf
    calibrated_from: float = 0.0
    variants: tuple[tuple[Replica, Replica], ...] = ()
    warnings: tuple[Caution, ...] = ()
    fitted_to: tuple[Point, ...] = ()
    protocol: Protocol = UNTOLD
    open_loops: tuple[Point, ...] = ()

    @property
    def unmeasured(self) -> bool:
        """True for an estimate that no measured point has scaled."""
        return self.basis == "estimated" and not self.variants

    @property
    def gpus(self) -> int:
        """GPUs of one replica, idle ones included."""
        return self.layout.gpus

    @property
    def label(self) -> str:
        """See `label_of`."""
        return label_of(self.gpu, self.layout, self.precision, self.engine)


def basis_of(candidate: Candidate, in_flight: float) -> Basis:
    """The candidate's basis, or "extrapolated" at a load of which `beyond_measured` warns; an estimate stays one at any
    load."""
    estimated = candidate.basis == "estimated"
    return candidate.basis if estimated or not beyond_measured(candidate, in_flight) else "extrapolated"


def beyond_measured(candidate: Candidate, in_flight: float) -> tuple[Caution, ...]:
    """The caution for an extrapolated load: more requests at once in a replica than were measured, or fewer than half
    of the fewest, where an estimate that one level scales warns by itself; none within the measured range."""
    most, fewest = candidate.calibrated_in_flight, candidate.calibrated_from
    if in_flight > most:
        return (Caution("beyond_measured", {"in_flight": in_flight, "most": most}),)
    if max(in_flight, 1.0) < fewest / 2 and candidate.basis != "estimated":
        return (Caution("below_measured", {"in_flight": in_flight, "fewest": fewest}),)
    return ()


@dataclass(frozen=True, slots=True)
class Rejection:
    """A candidate left out, and why; "too_few": the existing GPUs do not make up a replica.

    `nearest_s` / `limit`: how near the best load came to the limit that failed.
    """

    gpu: str
    layout: Layout
    precision: str
    kind: Why
    why: str
    limit: Limit | None = None
    nearest_s: float | None = None
    engine: str = ""

    @classmethod
    def of(
        cls, candidate: Candidate, kind: Why, why: str, limit: Limit | None = None, nearest_s: float | None = None
    ) -> Self:
        """The rejection of a candidate."""
        one = candidate
        return cls(one.gpu, one.layout, one.precision, kind, why, limit, nearest_s, one.engine)

    @property
    def label(self) -> str:
        """See `label_of`."""
        return label_of(self.gpu, self.layout, self.precision, self.engine)


def label_of(gpu: str, layout: Layout, precision: str, engine: str) -> str:
    """A configuration for tables and sentences: ``h200_sxm TP2 bf16 vllm``."""
    return " ".join(filter(None, (gpu, str(layout), precision, engine)))


class NoFeasiblePlan(SizingError):
    """No configuration meets the SLA. ``rejected`` says why, configuration by configuration, nearest miss first."""

    exit_code = 3

    def __init__(self, message: str, rejected: tuple[Rejection, ...]) -> None:
        super().__init__(message)
        self.rejected = rejected


@dataclass(frozen=True, slots=True)
class Fleet:
    """The answer for one candidate.

    `working` replicas carry the load, `load_per_s` requests/s each; `spare` ones stand by. `capacity_per_s`: requests/s
    of one working replica at which the SLA is about to fail; `requests_per_s_per_replica` = capacity x (1 - headroom),
    the rate it is planned for. `working_low`, `working_high`: the count at the ends of the 90 % band of the law; high
    is None when the SLA cannot be met at the slow end. `predicted`: latencies at the planned load spread over the
    working replicas; `binding`: the limit that a rising load reaches first. `stable_per_s`: requests/s above which a
    replica's queue grows without end, whatever the SLA. `notes`: cautions about this size of fleet. `of_class`: the
    class of requests that `binding` is a limit of, and what these see; None where it is one on all requests.
    """

    candidate: Candidate
    working: int
    spare: int
    load_per_s: float
    capacity_per_s: float
    requests_per_s_per_replica: float
    predicted: Prediction
    binding: Limit
    working_low: int
    working_high: int | None
    stable_per_s: float = math.inf
    notes: tuple[Caution, ...] = ()
    of_class: tuple[str, Prediction] | None = None

    @property
    def room(self) -> float:
        """The share of the binding limit that the planned load leaves free."""
        _, seen = self.of_class or ("", self.predicted)
        return 1 - seen.used(self.binding)

    @property
    def stability_binds(self) -> bool:
        """True when the replica saturates before it reaches a limit: `NEAR_STABLE` of the stable rate meets the SLA."""
        return self.capacity_per_s >= NEAR_STABLE * self.stable_per_s

    @property
    def binding_name(self) -> str:
        """What keeps a replica from carrying more: "stable rate", or the limit with the least room and its class."""
        return "stable rate" if self.stability_binds else self.with_class(str(self.binding))

    def with_class(self, limit: str) -> str:
        """The binding `limit`, named, and the class of requests that it is one of: ``p95 TTFT (chat)``."""
        return f"{limit} ({self.of_class[0]})" if self.of_class else limit

    @property
    def verified(self) -> bool:
        """True when the count and the latencies come from the simulator."""
        return self.predicted.method == "simulation"

    @property
    def in_flight(self) -> float:
        """Requests in a working replica at once, on average at the planned load (Little's law)."""
        return self.load_per_s * self.predicted.e2e.mean_s

    @property
    def basis(self) -> Basis:
        """Where the numbers come from at the planned load."""
        return basis_of(self.candidate, self.in_flight)

    @property
    def warnings(self) -> tuple[Caution, ...]:
        """Cautions about the law, the prediction, the distance from what was measured, and the fleet."""
        far = beyond_measured(self.candidate, self.in_flight)
        return (*self.candidate.warnings, *self.predicted.warnings, *far, *self.notes)

    @property
    def replicas(self) -> int:
        """Replicas to own, spares included."""
        return self.working + self.spare

    @property
    def gpus(self) -> int:
        """GPUs to own: all replicas times the GPUs of each."""
        return self.replicas * self.candidate.gpus

    @property
    def gpus_low(self) -> int:
        """GPUs at the fast end of the band."""
        return (self.working_low + self.spare) * self.candidate.gpus

    @property
    def gpus_high(self) -> int | None:
        """GPUs at the slow end of the band; None when no number of them is enough."""
        return None if self.working_high is None else (self.working_high + self.spare) * self.candidate.gpus

    @property
    def requests_per_s_per_gpu(self) -> float:
        """Planned requests/s of a working replica over its GPUs."""
        return self.requests_per_s_per_replica / self.candidate.gpus


@dataclass(frozen=True, slots=True)
class MeanBased:
    """What sizing by mean latency would buy: `replicas` in a layout, `gpus` in all; and what users would see there,
    under the arrivals of the question or, `replayed`, of a trace."""

    gpus: int
    replicas: int
    layout: Layout
    predicted: Prediction
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """Fleets that meet the SLA, fewest GPUs (or, with prices, cheapest) first, so the first is the answer; and the
    rest.

    `mean_based`: the count by the rule of means on the answer's GPU, for comparison; never part of the answer.
    `serves`: the load in words, as "for 400 users", if it was not given as requests/s.
    """

    question: Question
    fleets: tuple[Fleet, ...]
    rejected: tuple[Rejection, ...]
    mean_based: MeanBased | None = None
    serves: str = ""

    @property
    def answer(self) -> Fleet:
        """The fleet with the fewest GPUs, or the cheapest if prices differ by GPU."""
        return self.fleets[0]


# --- What a fleet costs and draws: per hour, per month, per million tokens, per 1,000 requests

HOURS_A_MONTH = 730.0
"""Hours of a year divided by 12."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Price of the whole fleet, spares included, in the currency of the GPU-hour.

    The shares per token and per request are at the mean load: a fleet bought for a peak is paid for all day.
    """

    per_hour: float
    per_million_output_tokens: float
    per_1000_requests: float

    @property
    def per_month(self) -> float:
        """Price of 730 hours."""
        return self.per_hour * HOURS_A_MONTH

    def as_dict(self) -> dict[str, float]:
        """The keys of JSON answers."""
        names = ("per_hour", "per_month", "per_million_output_tokens", "per_1000_requests")
        return {f"cost_{name}": getattr(self, name) for name in names}

    @property
    def sentence(self) -> str:
        """The four figures in words."""
        return (
            f"{significant(self.per_hour)} per hour, {significant(self.per_month)} per month, "
            f"{significant(self.per_million_output_tokens)} per million output tokens, "
            f"{significant(self.per_1000_requests)} per 1,000 requests"
        )


@dataclass(frozen=True, slots=True)
class Energy:
    """Upper bounds on the power drawn by the fleet's GPUs: all of them, spares too, at their thermal design power.

    Excludes servers' fans, processors and the cooling of the data hall.
    """

    power_kw: float
    kwh_per_million_output_tokens: float


def cost_of(question: Question, fleet: Fleet) -> Cost | None:
    """The cost of the fleet; None without a price for its GPU.

    The arithmetic: 12 GPUs at 2.50 an hour are 30 an hour; at 20 requests/s of 250 output tokens that is 18 million
    tokens an hour, so 1.67 per million.
    """
    price = question.price_of(fleet.candidate.gpu)
    tokens_per_s = question.mean_rate_per_s * question.workload.lengths.osl
    return None if price is None else cost_at(price * fleet.gpus, question.mean_rate_per_s, tokens_per_s)


def cost_at(per_hour: float, requests_per_s: float, output_tokens_per_s: float) -> Cost:
    """The cost of a fleet from its price per hour and the average load it serves."""
    return Cost(per_hour, per_hour / (output_tokens_per_s * 3600) * 1e6, per_hour / (requests_per_s * 3600) * 1000)


def energy_of(question: Question, fleet: Fleet) -> Energy | None:
    """The most power the fleet draws; None for a GPU whose power is not in the catalogue."""
    gpu = catalog.known_gpu(fleet.candidate.gpu)
    if gpu is None or gpu.power_w is None:
        return None
    power_kw = gpu.power_w * fleet.gpus / 1000
    tokens_per_hour = question.mean_rate_per_s * question.workload.lengths.osl * 3600
    return Energy(power_kw, power_kw / tokens_per_hour * 1e6)


# --- How many servers a fleet of replicas fills: a replica's GPUs are in one server where they fit into one


def servers(replicas: int, gpus_per_replica: int, gpus_per_server: int) -> int:
    """Servers of `gpus_per_server` GPUs for this many replicas, each in as few servers as can hold it.

    GPUs left over in a server that are too few for a replica stay idle; a server that holds part of a large replica
    holds nothing else.

    >>> servers(9, gpus_per_replica=1, gpus_per_server=8), servers(3, 4, 8), servers(2, 16, 8), servers(3, 6, 8)
    (2, 2, 4, 3)
    """
    if min(gpus_per_replica, gpus_per_server) < 1 or replicas < 0:
        raise ScenarioError(
            f"servers need 1 GPU or more each and per replica, got {gpus_per_server} and {gpus_per_replica}"
        )
    if gpus_per_replica > gpus_per_server:
        return replicas * -(-gpus_per_replica // gpus_per_server)
    return -(-replicas // (gpus_per_server // gpus_per_replica))


def usual_server(gpu: str) -> int | None:
    """GPUs per server in which this GPU is usually sold; None for a GPU that is not in the catalogue."""
    known = catalog.known_gpu(gpu)
    return known.gpus_per_server if known else None
