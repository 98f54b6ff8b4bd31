"""The question a planner asks and the answer it gets: values only, no arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from sizing.bounds import check_gaps, check_margins, check_peak_factor, check_price, check_rate
from sizing.prediction import Prediction
from sizing.replica import Replica
from sizing.workload import Limit, Routing, Sla, Workload

NEAR_STABLE = 0.97
"""Share of the stable rate from which stability, not a limit, is said to bind: percentiles explode beyond."""

Basis = Literal["measured", "fitted", "extrapolated", "estimated", "what-if"]


@dataclass(frozen=True, slots=True)
class Question:
    """How many GPUs for this workload under this SLA?

    `headroom`: each working replica is planned at (1 - headroom) of the rate at which the SLA first fails.
    `spare`: idle replicas kept beside the working ones. `price_per_gpu_hour`: any currency, None = not asked; `prices`
    are (GPU, price) pairs that go before it. `workload.rate_per_s` is the load planned for: the peak, `peak_factor`
    times the mean.
    """

    model: str
    workload: Workload
    sla: Sla
    routing: Routing = "random"
    headroom: float = 0.2
    spare: int = 1
    price_per_gpu_hour: float | None = None
    prices: tuple[tuple[str, float], ...] = ()
    peak_factor: float = 1.0

    def __post_init__(self) -> None:
        check_rate(self.workload.rate_per_s)
        check_margins(self.headroom, self.spare)
        check_gaps(self.workload.lengths, self.sla)
        if self.price_per_gpu_hour is not None:
            check_price("price per GPU-hour", self.price_per_gpu_hour)
        for gpu, price in self.prices:
            check_price(f"price of a {gpu}-hour", price)
        check_peak_factor(self.peak_factor)

    def price_of(self, gpu: str) -> float | None:
        """Price of an hour of this GPU, None = not known."""
        return dict(self.prices).get(gpu, self.price_per_gpu_hour)

    @property
    def mean_rate_per_s(self) -> float:
        """Requests/s on average over a day, of which `workload.rate_per_s` is the peak."""
        return self.workload.rate_per_s / self.peak_factor


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to serve the model: `tp` GPUs a replica, with the law of that replica and where the law comes from.

    `basis` holds up to `calibrated_in_flight` requests at once in a replica; beyond, the law is extrapolated.
    `relative_sigma` is the standard error of the law's times as a share. `variants`, where a fit gives them, are
    pairs of replicas one standard error to either side along each direction that the data leave open.
    """

    model: str
    gpu: str
    tp: int
    precision: str
    replica: Replica
    basis: Basis
    source: str
    relative_sigma: float
    pp: int = 1
    calibrated_in_flight: float = math.inf
    variants: tuple[tuple[Replica, Replica], ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def gpus(self) -> int:
        """GPUs of one replica, idle ones included."""
        return self.tp * self.pp

    @property
    def label(self) -> str:
        """For tables: ``h200_sxm TP2 bf16``."""
        return f"{self.gpu} TP{self.tp} {self.precision}"


def basis_of(candidate: Candidate, in_flight: float) -> Basis:
    """The candidate's basis, or "extrapolated" where a replica holds more requests at once than were measured."""
    return "extrapolated" if in_flight > candidate.calibrated_in_flight else candidate.basis


def beyond_measured(candidate: Candidate, in_flight: float) -> tuple[str, ...]:
    """The warning that goes with an extrapolated load; none within what was measured."""
    most = candidate.calibrated_in_flight
    if in_flight <= most:
        return ()
    return (
        f"a replica would hold {in_flight:.0f} requests at once, measured were at most {most:.0f}: "
        "calibrate at or above the planned concurrency",
    )


@dataclass(frozen=True, slots=True)
class Rejection:
    """A candidate left out, and why; "too_few": the GPUs that exist do not make up a replica.

    `nearest_s` / `limit`: how near the best load came to the limit that failed.
    """

    gpu: str
    tp: int
    precision: str
    kind: Literal["memory", "sla", "no_data", "cost", "too_few"]
    why: str
    limit: Limit | None = None
    nearest_s: float | None = None


@dataclass(frozen=True, slots=True)
class Fleet:
    """The answer for one candidate.

    `working` replicas carry the load, `load_per_s` requests/s each; `spare` ones stand by. `capacity_per_s`: requests/s
    of one working replica at which the SLA is about to fail; `requests_per_s_per_replica` = capacity x (1 - headroom),
    what it is planned for. `working_low`, `working_high`: the count at the ends of the 90 % band of the law; high is
    None when the SLA cannot be met at the slow end. `predicted`: latencies at the planned load spread over the working
    replicas; `binding`: the limit with the least room there. `stable_per_s`: requests/s above which a replica's queue
    grows without end, whatever the SLA. `notes`: what the planner found worth saying.
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
    notes: tuple[str, ...] = ()

    @property
    def stability_binds(self) -> bool:
        """True when the replica saturates before it reaches a limit: `NEAR_STABLE` of the stable rate meets the SLA."""
        return self.capacity_per_s >= NEAR_STABLE * self.stable_per_s

    @property
    def binding_name(self) -> str:
        """What keeps a replica from carrying more: "stable rate", or the limit with the least room."""
        return "stable rate" if self.stability_binds else str(self.binding)

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
    def warnings(self) -> tuple[str, ...]:
        """What the reader must know: of the law, of the prediction, and of the distance from what was measured."""
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
        """GPUs at the slow end of the band; None when no number of them would do."""
        return None if self.working_high is None else (self.working_high + self.spare) * self.candidate.gpus

    @property
    def requests_per_s_per_gpu(self) -> float:
        """Planned requests/s of a working replica over its GPUs."""
        return self.requests_per_s_per_replica / self.candidate.gpus


@dataclass(frozen=True, slots=True)
class MeanBased:
    """What sizing by mean latency would buy: `gpus` at `tp`, what users would see there, and that in words."""

    gpus: int
    tp: int
    predicted: Prediction
    text: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Fleets that meet the SLA, fewest GPUs (or, with prices, cheapest) first: the first is the answer; and the rest.

    `mean_based`: the count by the rule of means on the answer's GPU, for comparison; never part of the answer.
    """

    question: Question
    fleets: tuple[Fleet, ...]
    rejected: tuple[Rejection, ...]
    mean_based: MeanBased | None = None

    @property
    def answer(self) -> Fleet:
        """The fleet with the fewest GPUs, or the cheapest where prices differ by GPU."""
        return self.fleets[0]
