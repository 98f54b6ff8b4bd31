"""The inverse question: how many requests/s a fleet that exists can carry under the SLA."""

from __future__ import annotations

from dataclasses import dataclass

from sizing.band import capacity_band
from sizing.capacity import BY_SIMULATION, Method, SlaMissed
from sizing.errors import ScenarioError
from sizing.plan import NEAR_STABLE, Candidate, Question, Rejection
from sizing.planner import setting_of
from sizing.prediction import Prediction
from sizing.queueing import stable_rate_per_s
from sizing.rejections import sla_rejection
from sizing.workload import Limit


@dataclass(frozen=True, slots=True)
class Existing:
    """What `gpus` GPUs carry as `working` replicas and `spare` idle ones; `unused` GPUs do not make up a replica.

    `rate_per_s`: requests/s to plan for, headroom kept; the fleet's SLA is about to fail at `limit_per_s`. `low`,
    `high`: `rate_per_s` at the ends of the 90 % band of the law; low is 0 when the SLA fails at the slow end.
    `predicted`: latencies at `rate_per_s`; `binding`: the limit with the least room, or "stable rate".
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
    if gpus < 1:
        raise ScenarioError(f"the fleet must have 1 GPU or more, got {gpus}")
    replicas = gpus // candidate.gpus
    working = replicas - question.spare
    if working < 1:
        return too_small(question, candidate, gpus)
    setting = setting_of(question, working)
    try:
        capacity_per_s = method.capacity_per_s(candidate.replica, setting)
    except SlaMissed as missed:
        return sla_rejection(candidate, missed)
    planned_per_s = capacity_per_s * (1 - question.headroom)
    predicted = method.predict(candidate.replica, setting, planned_per_s)
    low, high = capacity_band(candidate, setting)
    stable_per_s = stable_rate_per_s(candidate.replica, question.workload.lengths, question.workload.prefix)
    limit = predicted.binding(question.sla)
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
        binding="stable rate" if capacity_per_s >= NEAR_STABLE * stable_per_s else str(limit),
        limit=limit,
        predicted=predicted,
    )


def too_small(question: Question, candidate: Candidate, gpus: int) -> Rejection:
    """A fleet that has no working replica left beside its spares."""
    needed = (question.spare + 1) * candidate.gpus
    why = f"{gpus} GPUs are too few: a replica of {candidate.gpus} and {question.spare} spare need {needed}"
    return Rejection(candidate.gpu, candidate.tp, candidate.precision, "memory", why)
