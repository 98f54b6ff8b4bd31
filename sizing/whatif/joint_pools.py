"""A prefill and a decode pool run together in simulation, and enlarged until the SLA holds there."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sizing.numbers import milliseconds
from sizing.plan import Fleet, Question, Rejection
from sizing.prediction import Prediction
from sizing.queueing import predict
from sizing.replica import Replica
from sizing.simulator import Simulated, simulate_disaggregated

REQUESTS = 60_000
MOST = 2.0
"""Times the formula's replicas that are tried; what needs more has another cause than the formula's error."""
GROWTH = 0.05


@dataclass(frozen=True, slots=True)
class Pool:
    """One pool: what it is asked apart from the other, and its fleet."""

    question: Question
    fleet: Fleet

    def enlarged(self) -> Pool:
        """With a replica more, or 5 % more."""
        return self.of(self.fleet.working + max(1, round(GROWTH * self.fleet.working)))

    def of(self, working: int) -> Pool:
        """With so many working replicas; the ends of the band move along, latencies are those by formula."""
        fleet, workload = self.fleet, self.question.workload
        added = working - fleet.working
        planned_per_s = workload.rate_per_s / working
        predicted = predict(fleet.candidate.replica, workload, replicas=working, routing=self.question.routing)
        changed = replace(
            fleet,
            working=working,
            load_per_s=planned_per_s,
            capacity_per_s=planned_per_s / (1 - self.question.headroom),
            requests_per_s_per_replica=planned_per_s,
            predicted=predicted,
            working_low=fleet.working_low + added,
            working_high=None if fleet.working_high is None else fleet.working_high + added,
        )
        return replace(self, fleet=changed)

    @property
    def busy(self) -> float:
        """Load over the pool's stable rate."""
        return self.question.workload.rate_per_s / self.fleet.working / self.fleet.stable_per_s


@dataclass(frozen=True, slots=True)
class Joint:
    """Both pools, and what users see of them together at the planned load."""

    prefill: Pool
    decode: Pool
    predicted: Prediction


def run_together(
    question: Question, replica: Replica, prefill: Pool, decode: Pool, transfer_s: float, rate_per_s: float
) -> Simulated:
    """Both pools of `replica` in simulation; a prompt of mean length travels `transfer_s`, others in proportion."""
    return simulate_disaggregated(
        replica,
        replica,
        replace(question.workload, rate_per_s=rate_per_s),
        prefill_replicas=prefill.fleet.working,
        decode_replicas=decode.fleet.working,
        transfer_token_s=transfer_s / question.workload.lengths.isl,
        routing=question.routing,
        requests=REQUESTS,
    )


def enlarged(question: Question, replica: Replica, prefill: Pool, decode: Pool, transfer_s: float) -> Joint | Rejection:
    """The pools, enlarged until the SLA holds in simulation at the planned load over (1 - headroom).

    Over the TTFT limit the prefill pool grows, over another the decode pool; without a steady state the busier one.
    """
    rate_per_s = question.workload.rate_per_s
    most = MOST * (prefill.fleet.working + decode.fleet.working) + 2
    while True:
        run = run_together(question, replica, prefill, decode, transfer_s, rate_per_s / (1 - question.headroom))
        if run.meets(question.sla):
            break
        if prefill.fleet.working + decode.fleet.working >= most:
            return _out_of_reach(question, decode, run.prediction())
        if _prompts_are_late(question, prefill, decode, run):
            prefill = prefill.enlarged()
        else:
            decode = decode.enlarged()
    planned = run_together(question, replica, prefill, decode, transfer_s, rate_per_s).prediction()
    return Joint(prefill, decode, planned)


def _prompts_are_late(question: Question, prefill: Pool, decode: Pool, run: Simulated) -> bool:
    ttft = question.sla.ttft
    if run.saturated or ttft is None:
        return prefill.busy > decode.busy
    return run.exceeding_share(ttft) > 1 - ttft.percentile / 100


def _out_of_reach(question: Question, decode: Pool, predicted: Prediction) -> Rejection:
    candidate, limit = decode.fleet.candidate, predicted.binding(question.sla)
    found = milliseconds(predicted.value_s(limit))
    why = f"two pools miss {limit} in simulation at twice the replicas that the formula asks for: {found}"
    return Rejection(candidate.gpu, candidate.tp, candidate.precision, "sla", why, limit, predicted.value_s(limit))
