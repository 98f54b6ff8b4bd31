"""The inverse question: how many requests/s a fleet that exists can carry under the SLA."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from sizing.edge import BY_SIMULATION, Method, SlaMissed, capacity_band
from sizing.errors import RequestTooLong, ScenarioError
from sizing.explain import distance_from_sla, engine_rejection, first_look, jump_rejection, remarks, sla_rejection
from sizing.numbers import count_of
from sizing.planner import fastest_engines
from sizing.plans import NEAR_STABLE, Basis, Candidate, NoFeasiblePlan, Rejection, basis_of, beyond_measured
from sizing.prediction import Caution, Prediction
from sizing.question import Question, Setting
from sizing.queueing import stable_rate_per_s
from sizing.workload import Limit

SHARES = (1.0, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5)
"""Shares of the planned rate to try where latencies jump at some load and miss the SLA below a rate that meets it."""


@dataclass(frozen=True, slots=True)
class Existing:
    """What `gpus` GPUs carry as `working` replicas and `spare` idle ones; `unused` GPUs do not make up a replica.

    `rate_per_s`: requests/s to plan for, headroom kept; the fleet's SLA is about to fail at `limit_per_s`. `low`,
    `high`: `rate_per_s` at the ends of the 90 % band of the law; low is 0 when the SLA fails at the slow end.
    `predicted`: latencies at `rate_per_s`; `binding`: the limit that a rising load reaches first, or "stable rate".
    `notes`: cautions about this size of fleet.
    """

    candidate: Candidate
    gpus: int
    working: int
    spare: int
    unused: int
    rate_per_s: float
    limit_per_s: float
    low: float
    high: float
    binding: str
    limit: Limit
    predicted: Prediction
    notes: tuple[Caution, ...] = ()

    @property
    def in_flight(self) -> float:
        """Requests in a working replica at once, on average (Little's law)."""
        return self.rate_per_s / self.working * self.predicted.e2e.mean_s

    @property
    def basis(self) -> Basis:
        """Where the numbers come from at the rate planned for."""
        return basis_of(self.candidate, self.in_flight)

    @property
    def warnings(self) -> tuple[Caution, ...]:
        """Cautions about the law, the prediction, the distance from what was measured, and the fleet."""
        far = beyond_measured(self.candidate, self.in_flight)
        return (*self.candidate.warnings, *self.predicted.warnings, *far, *self.notes)

    @property
    def requests_per_s_per_gpu(self) -> float:
        """Planned requests/s over the GPUs of the working replicas."""
        return self.rate_per_s / (self.working * self.candidate.gpus)


def largest_rate(
    question: Question, candidate: Candidate, gpus: int, method: Method = BY_SIMULATION
) -> Existing | Rejection:
    """The largest rate that `gpus` GPUs serve as this candidate; the rate of the question does not matter.

    Headroom and spares are applied: (1 - headroom) x working replicas x the capacity of one. A Rejection says why none
    can be carried. Raises ScenarioError for fewer than 1 GPU.
    """
    try:
        return _largest_rate(question, candidate, gpus, method)
    except RequestTooLong as error:
        return Rejection.of(candidate, "memory", str(error))


def _largest_rate(question: Question, candidate: Candidate, gpus: int, method: Method) -> Existing | Rejection:
    if gpus < 1:
        raise ScenarioError(f"the fleet must have 1 GPU or more, got {gpus}")
    replicas = gpus // candidate.gpus
    working = replicas - question.spare
    if working < 1:
        return too_small(question, candidate, gpus)
    setting = question.setting(working)
    try:
        capacity_per_s = method.capacity_per_s(candidate.replica, setting)
    except SlaMissed as missed:
        return sla_rejection(candidate, missed, question.workload.lengths)
    planned_per_s, predicted = settle_down(question, candidate, method, setting, capacity_per_s)
    if not predicted.meets(question.sla):
        return jump_rejection(question, candidate, working, predicted)
    low, high = capacity_band(candidate, setting)
    stable_per_s = stable_rate_per_s(candidate.replica, question.workload.lengths, question.workload.prefix)
    limit = method.reached(candidate.replica, setting, capacity_per_s)
    stability_binds = capacity_per_s >= NEAR_STABLE * stable_per_s
    return Existing(
        candidate=candidate,
        gpus=gpus,
        working=working,
        spare=question.spare,
        unused=gpus - replicas * candidate.gpus,
        rate_per_s=planned_per_s * working,
        limit_per_s=capacity_per_s * working,
        low=planned_per_s * working * low,
        high=planned_per_s * working * high,
        binding="stable rate" if stability_binds else str(limit),
        limit=limit,
        predicted=predicted,
        notes=tuple(remarks(candidate, setting, planned_per_s, predicted, stability_binds)),
    )


def best_first(
    question: Question, candidates: Sequence[Candidate], gpus: int, rejected: Sequence[Rejection] = ()
) -> tuple[list[Existing], list[Rejection]]:
    """What each candidate carries, most first, the first by simulation, the rest by formula; and those that cannot,
    with those `rejected` before, nearest miss first. Raises NoFeasiblePlan, carrying these, when none carries anything.

    Of engines estimated side by side the fastest is sized, and the others on the configuration that wins, or where
    none carries anything.
    """

    def look(candidate: Candidate) -> Existing | Rejection:
        return first_look(partial(largest_rate, question, candidate, gpus))

    first, slower = fastest_engines(candidates, question.workload.lengths, question.workload.prefix)
    sized = [look(candidate) for candidate in first]
    while True:
        carry = sorted((fleet for fleet in sized if isinstance(fleet, Existing)), key=lambda fleet: -fleet.rate_per_s)
        if carry and carry[0].predicted.method != "simulation":
            sized[sized.index(carry[0])] = largest_rate(question, carry[0].candidate, gpus)
            continue
        beside = [each for each, faster in slower if not carry or faster is carry[0].candidate]
        if not beside:
            break
        slower = [pair for pair in slower if pair[0] not in beside]
        sized += map(look, beside)
    misses = [fleet for fleet in sized if isinstance(fleet, Rejection)]
    misses += [engine_rejection(candidate, faster.engine) for candidate, faster in slower]
    left_out = sorted([*misses, *rejected], key=distance_from_sla)
    if not carry:
        raise NoFeasiblePlan(_why_none(question, gpus, left_out), tuple(left_out))
    return carry, left_out


def _why_none(question: Question, gpus: int, left_out: Sequence[Rejection]) -> str:
    """Why the GPUs carry nothing as any candidate."""
    if any(each.kind != "too_few" for each in left_out):
        return f"{count_of(gpus, 'GPU')} cannot carry any load under {question.sla}"
    if question.spare:
        return f"no working replica is left of {count_of(gpus, 'GPU')} beside {question.spare} spare: set --spare"
    return f"no replica fits on {count_of(gpus, 'GPU')}"


def settle_down(
    question: Question, candidate: Candidate, method: Method, setting: Setting, capacity_per_s: float
) -> tuple[float, Prediction]:
    """The highest share of a replica's planned rate whose latencies meet the SLA, and these; nearly always all of it.

    The last of `SHARES` where none of them does.
    """
    for share in SHARES:
        rate_per_s = share * capacity_per_s * (1 - question.headroom)
        predicted = method.predict(candidate.replica, setting, rate_per_s)
        if predicted.meets(question.sla):
            break
    return rate_per_s, predicted


def too_small(question: Question, candidate: Candidate, gpus: int) -> Rejection:
    """A fleet with no working replica left once its spares are set aside."""
    needed = (question.spare + 1) * candidate.gpus
    few = f"{count_of(gpus, 'GPU')} {'is' if gpus == 1 else 'are'} too few"
    why = f"{few}: a replica of {candidate.gpus} and {question.spare} spare need {needed}"
    return Rejection.of(candidate, "too_few", why)
