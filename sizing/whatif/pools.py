"""What if prompts were computed by one pool of replicas and tokens by another: each pool sized apart.

Disaggregated serving (DistServe, arXiv 2401.09670; Splitwise, arXiv 2311.18677): prompts no longer stall the tokens of
others, TTFT is the first pool's and ITL the second's; the KV cache of a prompt travels between them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sizing.capacity import BY_FORMULA, BY_SIMULATION, Method
from sizing.errors import ScenarioError
from sizing.numbers import percent
from sizing.plan import Candidate, Fleet, Question, Rejection
from sizing.planner import size
from sizing.prediction import Method as MethodName
from sizing.prediction import Prediction
from sizing.replica import Replica
from sizing.whatif.joint_pools import Pool, enlarged
from sizing.whatif.setup import UNLIMITED, Setup, sheet_of
from sizing.whatif.weights import LINK_SHARE
from sizing.workload import Limit, Prefix, Sla

POOLS_SIGMA = 0.10


@dataclass(frozen=True, slots=True)
class Pools:
    """The two fleets, each with its own spares, and what they rest on.

    `predicted`: what users see of both together at the planned load; None when the pools were only sized apart, by
    formula.
    """

    prefill: Fleet
    decode: Fleet
    transfer_s: float
    assumptions: tuple[str, ...]
    predicted: Prediction | None = None

    @property
    def gpus(self) -> int:
        """GPUs to own in both pools."""
        return self.prefill.gpus + self.decode.gpus

    @property
    def verified_by(self) -> MethodName:
        """How the counts were found."""
        return "simulation" if self.predicted else "analytic"


def disaggregate(setup: Setup, method: Method = BY_SIMULATION) -> Pools | Rejection:
    """The smallest pools of the setup's replica, or why one of them cannot meet its limit.

    By formula each pool is sized apart. By simulation both are then run together, and enlarged until the SLA holds.
    Raises ScenarioError without a TTFT limit, which the prefill pool is sized by, without tokens to decode, and for a
    limit on gaps.
    """
    question, transfer_s = setup.question, _transfer_s(setup)
    if question.sla.ttft is None or question.workload.lengths.osl < 2:
        raise ScenarioError(
            "disaggregated: give a TTFT limit for the prefill pool and OSL of 2 or more for the decodes"
        )
    if question.sla.gap is not None:
        raise ScenarioError(
            "disaggregated: gaps between tokens are not simulated over two pools: limit ITL in place of --gap"
        )
    apart = setup.changed(
        f"prompts in a pool of their own, sized by TTFT; their KV cache travels {transfer_s * 1e3:.3g} ms a prompt, at "
        f"{percent(LINK_SHARE)} of the link's bandwidth, and no other traffic slows it down",
        sigma=POOLS_SIGMA,
    )
    sized = _sized_apart(question, apart.candidate, transfer_s)
    if isinstance(sized, Rejection):
        return sized
    prefill, decode = sized
    if method is BY_FORMULA:
        return Pools(prefill.fleet, decode.fleet, transfer_s, apart.assumptions)
    joint = enlarged(question, apart.candidate.replica, prefill, decode, transfer_s)
    if isinstance(joint, Rejection):
        return joint
    return Pools(joint.prefill.fleet, joint.decode.fleet, transfer_s, apart.assumptions, joint.predicted)


def _sized_apart(question: Question, candidate: Candidate, transfer_s: float) -> tuple[Pool, Pool] | Rejection:
    """Both pools by formula; the decode pool as if all prompts had the mean length."""
    of_prefill = prefill_question(question)
    prefill = size(of_prefill, candidate, BY_FORMULA)
    if isinstance(prefill, Rejection):
        return prefill
    ttft_s = prefill.predicted.value_s(of_prefill.sla.limits[0])
    of_decode = decode_question(question, ttft_s, transfer_s)
    decode = size(of_decode, replace(candidate, replica=decode_only(candidate.replica, question)), BY_FORMULA)
    return decode if isinstance(decode, Rejection) else (Pool(of_prefill, prefill), Pool(of_decode, decode))


def prefill_question(question: Question) -> Question:
    """Requests that end with their first token, under the TTFT limit alone."""
    lengths = replace(question.workload.lengths, osl=1.0, osl_cv=0.0, correlation=0.0)
    return replace(question, workload=replace(question.workload, lengths=lengths), sla=Sla(ttft=question.sla.ttft))


def decode_question(question: Question, ttft_s: float, transfer_s: float) -> Question:
    """Requests whose prompt is one token long, under what the prefill and the transfer leave of ITL and E2E.

    ITL = (E2E - TTFT) / (OSL - 1): the transfer takes its share of every gap.
    """
    lengths, sla = question.workload.lengths, question.sla
    gaps = lengths.osl - 1
    limits: dict[str, Limit] = {}
    for metric, limit, taken_s in (("itl", sla.itl, transfer_s / gaps), ("e2e", sla.e2e, ttft_s + transfer_s)):
        if limit is not None:
            if limit.limit_s <= taken_s:
                raise ScenarioError(f"disaggregated: prefill and transfer alone exceed {limit}")
            limits[metric] = replace(limit, limit_s=limit.limit_s - taken_s)
    if not limits:
        raise ScenarioError("disaggregated: the decode pool needs a limit on ITL or E2E")
    short = replace(lengths, isl=1.0, isl_cv=0.0, correlation=0.0)
    workload = replace(question.workload, lengths=short, prefix=Prefix())
    return replace(question, workload=workload, sla=Sla(**limits))


def decode_only(replica: Replica, question: Question) -> Replica:
    """The replica as sequences meet it that arrive with `isl` tokens cached, told as prompts of one token.

    Those tokens are attended to at every step (a cost per sequence) and hold their place in the cache (which holds
    fewer, shorter sequences); the prefill of the one token is free.
    """
    lengths, law, batching = question.workload.lengths, replica.law, replica.batching
    cached = lengths.isl - 1
    alike = law.with_values(sequence_s=law.sequence_s + law.kv_token_s * cached, attention_s=0.0, prefill_s=0.0)
    shorter = (lengths.osl + 1) / (lengths.isl + lengths.osl)
    known = batching.kv_tokens < UNLIMITED
    kv_tokens = max(1, int(batching.kv_tokens * shorter)) if known else batching.kv_tokens
    return replace(replica, law=alike, batching=replace(batching, kv_tokens=kv_tokens))


def _transfer_s(setup: Setup) -> float:
    """Seconds to move one prompt's KV cache, every GPU of a replica sending its part."""
    sheet = sheet_of(setup.candidate)
    isl = setup.question.workload.lengths.isl
    return isl * sheet.token_bytes / (sheet.gpu.link_bytes_per_s * LINK_SHARE)
