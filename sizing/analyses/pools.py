"""What if prompts were computed by one pool of replicas and tokens by another: each pool sized apart.

Disaggregated serving (DistServe, arXiv 2401.09670; Splitwise, arXiv 2311.18677): prompts no longer stall the tokens of
others, TTFT is the first pool's and ITL the second's; the KV cache of a prompt travels between them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sizing.analyses.whatif import LINK_SHARE, Setup, sheet_of
from sizing.edge import BY_FORMULA, BY_SIMULATION, Method, SlaMissed
from sizing.engine import UNLIMITED_KV_TOKENS, Replica
from sizing.errors import RequestTooLong, ScenarioError
from sizing.explain import distance_from_sla
from sizing.numbers import gpus, milliseconds, percent
from sizing.planner import cheapest, survey
from sizing.plans import Candidate, Fleet, Rejection
from sizing.prediction import Method as MethodName
from sizing.prediction import Prediction
from sizing.question import Question, weight_of
from sizing.queueing import predict
from sizing.simulator import Simulated, simulate_disaggregated
from sizing.simulator.sampling import sample_requests
from sizing.workload import Prefix, Sla

# --- A prefill and a decode pool run together in simulation, enlarged until the SLA holds there and no larger

REQUESTS = 60_000
MOST = 2.0
"""Times the formula's replicas that are tried; a need for more has another cause than the formula's error."""
GROWTH = 0.05


@dataclass(frozen=True, slots=True)
class Pool:
    """One pool: what it is asked apart from the other, its fleet, and the replica that both pools' simulation runs."""

    question: Question
    fleet: Fleet
    replica: Replica

    def by(self, steps: int) -> Pool:
        """With so many steps more, each of a replica or of 5 % of them."""
        return self.of(self.fleet.working + steps * max(1, round(GROWTH * self.fleet.working)))

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
            working_low=max(fleet.working_low + added, 1),
            working_high=None if fleet.working_high is None else fleet.working_high + added,
        )
        return replace(self, fleet=changed)

    @property
    def busy(self) -> float:
        """Load over the pool's stable rate."""
        return self.question.workload.rate_per_s / self.fleet.working / self.fleet.stable_per_s


@dataclass(frozen=True, slots=True)
class Pair:
    """Both pools, and the time that the KV cache of a mean prompt travels from one to the other."""

    prefill: Pool
    decode: Pool
    transfer_s: float

    @property
    def gpus(self) -> int:
        """GPUs to own in both pools."""
        return self.prefill.fleet.gpus + self.decode.fleet.gpus

    @property
    def working(self) -> int:
        """Working replicas in both pools."""
        return self.prefill.fleet.working + self.decode.fleet.working

    def with_prefill(self, steps: int) -> Pair:
        """With a prefill pool that is larger by so many steps, or smaller."""
        return replace(self, prefill=self.prefill.by(steps))

    def with_decode(self, steps: int) -> Pair:
        """With such a decode pool."""
        return replace(self, decode=self.decode.by(steps))


def run_together(question: Question, pair: Pair, rate_per_s: float) -> Simulated:
    """Both pools in simulation; a prompt of mean length travels `transfer_s`, others in proportion."""
    return simulate_disaggregated(
        pair.prefill.replica,
        pair.decode.replica,
        replace(question.workload, rate_per_s=rate_per_s),
        prefill_replicas=pair.prefill.fleet.working,
        decode_replicas=pair.decode.fleet.working,
        transfer_token_s=pair.transfer_s / question.workload.lengths.isl,
        routing=question.routing,
        requests=REQUESTS,
    )


def enlarged(question: Question, pair: Pair) -> Pair | Rejection:
    """The pools, enlarged until the SLA holds in simulation at the planned load over (1 - headroom).

    Over the TTFT limit the prefill pool grows, over the one on ITL the decode pool, over the one on E2E alone the pool
    that shortens it more for its GPUs; without a steady state the busier one.
    """
    most = MOST * pair.working + 2
    while not (run := run_together(question, pair, planned_for_per_s(question))).meets(question.sla):
        if pair.working >= most:
            return _out_of_reach(question, pair.decode, run.prediction())
        pair = pair.with_prefill(1) if _prompts_are_late(question, pair, run) else pair.with_decode(1)
    return pair


def reduced(question: Question, pair: Pair) -> Pair:
    """The pools, which hold the SLA, as small as they can be for that in simulation: by formula they may be too large.

    First the pool that gives back more GPUs at a time.
    """
    while True:
        smaller = [pair.with_prefill(-1)] if pair.prefill.fleet.working > 1 else []
        smaller += [pair.with_decode(-1)] if pair.decode.fleet.working > 1 else []
        for fewer in sorted(smaller, key=lambda fewer: fewer.gpus):
            if run_together(question, fewer, planned_for_per_s(question)).meets(question.sla):
                pair = fewer
                break
        else:
            return pair


def planned_for_per_s(question: Question) -> float:
    """Requests/s at which both pools must hold the SLA: headroom is kept."""
    return question.workload.rate_per_s / (1 - question.headroom)


def _prompts_are_late(question: Question, pair: Pair, run: Simulated) -> bool:
    sla = question.sla
    if run.saturated or sla.ttft is None:
        return pair.prefill.busy > pair.decode.busy
    if sla.e2e is None or any(not run.meets(Sla(limit)) for limit in (sla.ttft, sla.itl) if limit):
        return not run.meets(Sla(sla.ttft))
    e2e, e2e_s = sla.e2e, run.prediction().value_s(sla.e2e)

    def shorter_s_per_gpu(grown: Pair) -> float:
        then = run_together(question, grown, planned_for_per_s(question)).prediction()
        return (e2e_s - then.value_s(e2e)) / (grown.gpus - pair.gpus)

    return shorter_s_per_gpu(pair.with_prefill(1)) > shorter_s_per_gpu(pair.with_decode(1))


def _out_of_reach(question: Question, decode: Pool, predicted: Prediction) -> Rejection:
    candidate, limit = decode.fleet.candidate, predicted.binding(question.sla)
    found = milliseconds(predicted.value_s(limit))
    why = f"two pools miss {limit} in simulation at twice the replicas that the formula asks for: {found}"
    return Rejection.of(candidate, "sla", why, limit, predicted.value_s(limit))


POOLS_SIGMA = 0.10
NETWORK_BYTES_PER_S = 50e9
"""Of a GPU to those of other servers: an adapter of 400 Gbit/s each, as DGX H100, H200 and B200 have them."""


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
    def gpus_low(self) -> int:
        """GPUs at the fast end of the band of both laws."""
        return self.prefill.gpus_low + self.decode.gpus_low

    @property
    def gpus_high(self) -> int | None:
        """GPUs at the slow end of the band of both laws; None when no number of them would do."""
        high = self.prefill.gpus_high, self.decode.gpus_high
        return None if high[0] is None or high[1] is None else high[0] + high[1]

    @property
    def verified_by(self) -> MethodName:
        """How the counts were found."""
        return "simulation" if self.predicted else "analytic"


def disaggregate(setup: Setup, method: Method = BY_SIMULATION) -> Pools | Rejection:
    """The smallest pools of the setup's replica, or why one of them cannot meet its limit. Raises as `pools_of`."""
    found = pools_of(setup.question, [setup.candidate], method)
    if isinstance(found, Rejection):
        return found
    return replace(found, assumptions=(*setup.assumptions, *found.assumptions))


def pools_of(question: Question, candidates: Sequence[Candidate], method: Method = BY_SIMULATION) -> Pools | Rejection:
    """The fewest GPUs (or, with prices, the cheapest) in two pools, each in the layout that suits it best, both of the
    same GPU, precision and engine; or why there are none.

    By formula each pool is sized apart. By simulation both are then run together, and enlarged until the SLA holds; the
    cheapest pair gives back what it does not need for that.
    Raises ScenarioError without a TTFT limit, which the prefill pool is sized by, without tokens to decode, and for a
    limit on gaps.
    """
    if question.sla.ttft is None or question.workload.lengths.osl < 2:
        raise ScenarioError(
            "disaggregated: give a TTFT limit for the prefill pool and OSL of 2 or more for the decodes"
        )
    if question.sla.goodput or question.sla.rejected:
        raise ScenarioError(
            "disaggregated: pools are sized by TTFT and ITL apart: give limits with percentiles, none on goodput and "
            "rejected requests"
        )
    if question.sla.gap is not None:
        raise ScenarioError("disaggregated: gaps between tokens are not simulated over two pools: limit ITL instead")
    groups: dict[tuple[str, str, str], list[Candidate]] = {}
    rejected: list[Rejection] = []
    for candidate in candidates:
        try:
            if method is BY_SIMULATION:  # with lengths that vary, it draws some far above their mean
                sample_requests(candidate.replica, question.workload, REQUESTS, np.random.default_rng(0))
        except RequestTooLong as error:
            rejected.append(Rejection.of(candidate, "memory", str(error)))
        else:
            groups.setdefault((candidate.gpu, candidate.precision, candidate.engine), []).append(candidate)
    sized = [_sized_apart(question, members) for members in groups.values()]

    def cost(pair: Pair) -> float:
        return pair.gpus * weight_of(question, pair.decode.fleet.candidate.gpu)

    pairs = sorted((pair for found in sized if not isinstance(found, Rejection) for pair in found), key=cost)
    rejected += [miss for miss in sized if isinstance(miss, Rejection)]
    best: Pair | None = None
    for pair in pairs:
        if best is not None and cost(pair) >= cost(best):
            break
        held = pair if method is BY_FORMULA else enlarged(question, pair)
        if isinstance(held, Rejection):
            rejected.append(held)
        elif best is None or cost(held) < cost(best):
            best = held
    if best is None:
        return min(rejected, key=distance_from_sla)
    if method is BY_SIMULATION:
        best = reduced(question, best)
    said = (
        f"prompts in a pool of their own, sized by TTFT; their KV cache travels {best.transfer_s * 1e3:.3g} ms a "
        f"prompt, at {percent(LINK_SHARE)} of the network's bandwidth, and no other traffic slows it down",
        f"the bands are widened for this by {percent(POOLS_SIGMA)} of the step times",
    )
    seen = None if method is BY_FORMULA else run_together(question, best, question.workload.rate_per_s).prediction()
    candidate = replace(best.decode.fleet.candidate, replica=best.decode.replica)  # as it runs, not as it was sized
    return Pools(best.prefill.fleet, replace(best.decode.fleet, candidate=candidate), best.transfer_s, said, seen)


def pools_within(
    question: Question, candidates: Sequence[Candidate], available: Mapping[str, int]
) -> Pools | Rejection:
    """The same of GPUs of which there are enough."""
    while True:
        pools = pools_of(question, candidates)
        if isinstance(pools, Rejection):
            return pools
        one = pools.decode.candidate
        if pools.gpus <= (most := available.get(one.gpu, pools.gpus)):
            return pools
        candidates = [each for each in candidates if each.gpu != one.gpu]
        if not candidates:
            return Rejection.of(one, "too_few", f"needs {gpus(pools.gpus)}, {most:,} available")


TIGHTER, TIGHTER_BY = 12, 0.93
"""Times that the prefill pool is made faster, and by what each time, where a limit on E2E is to be kept as well: what
prompts take is missing when the answer is decoded."""


def _sized_apart(question: Question, candidates: Sequence[Candidate]) -> list[Pair] | Rejection:
    """Pairs by formula, each pool of the candidate that needs the fewest GPUs; the decode pool as if all prompts had
    the mean length. A Rejection where no pair keeps the limits."""
    wider = [
        replace(each, relative_sigma=math.hypot(each.relative_sigma, POOLS_SIGMA), variants=(), open_loops=())
        for each in candidates
    ]
    served = {decode_only(each.replica, question): each.replica for each in candidates}
    pairs: dict[tuple[Candidate, int, Candidate, int], Pair] = {}
    misses: list[Rejection] = []
    of_prefill = prefill_question(question)
    for _ in range(TIGHTER if question.sla.e2e else 1):
        prefill = _fewest(of_prefill, wider)
        if isinstance(prefill, Rejection):
            misses.append(prefill)
            break
        (limit,) = of_prefill.sla.limits
        ttft_s, travel_s = prefill.predicted.value_s(limit), transfer_s(prefill.candidate, question)
        try:
            of_decode = decode_question(question, ttft_s, travel_s)
        except SlaMissed as missed:
            why = f"prefill and transfer alone exceed {missed.limit}"
            misses.append(Rejection.of(prefill.candidate, "sla", why, missed.limit, missed.alone))
        else:
            decode = _fewest(of_decode, [replace(each, replica=decode_only(each.replica, question)) for each in wider])
            if isinstance(decode, Rejection):
                misses.append(decode)
            else:
                prompts = Pool(of_prefill, prefill, prefill.candidate.replica)
                pair = Pair(prompts, Pool(of_decode, decode, served[decode.candidate.replica]), travel_s)
                pairs.setdefault((prefill.candidate, prefill.working, decode.candidate, decode.working), pair)
        of_prefill = replace(of_prefill, sla=Sla(replace(limit, limit_s=TIGHTER_BY * ttft_s)))
    return list(pairs.values()) or misses[0]


def _fewest(question: Question, candidates: Sequence[Candidate]) -> Fleet | Rejection:
    """The smallest fleet of these candidates by formula, or the nearest miss."""
    sized = survey(question, candidates)
    fleet = cheapest(question, sized)
    return fleet or min((miss for miss in sized if isinstance(miss, Rejection)), key=distance_from_sla)


def prefill_question(question: Question) -> Question:
    """Requests that end with their first token, under the TTFT limit alone."""
    lengths = replace(question.workload.lengths, osl=1.0, osl_cv=0.0, osl_law=None, correlation=0.0)
    return replace(question, workload=replace(question.workload, lengths=lengths), sla=Sla(question.sla.ttft))


def decode_question(question: Question, ttft_s: float, transfer_s: float) -> Question:
    """Requests whose prompt is one token long, under what the prefill and the transfer leave of ITL and E2E.

    ITL = (E2E - TTFT) / (OSL - 1): the transfer takes its share of every gap. Raises SlaMissed where nothing is left.
    """
    lengths, sla = question.workload.lengths, question.sla
    gaps = lengths.osl - 1
    limits = []
    for limit, taken_s in ((sla.itl, transfer_s / gaps), (sla.e2e, ttft_s + transfer_s)):
        if limit is not None:
            if limit.limit_s <= taken_s:
                raise SlaMissed(limit, taken_s)
            limits.append(replace(limit, limit_s=limit.limit_s - taken_s))
    if not limits:
        raise ScenarioError("disaggregated: the decode pool needs a limit on ITL or E2E")
    short = replace(lengths, isl=1.0, isl_cv=0.0, isl_law=None, correlation=0.0)
    workload = replace(question.workload, lengths=short, prefix=Prefix())
    return replace(question, workload=workload, sla=Sla(*limits))


def decode_only(replica: Replica, question: Question) -> Replica:
    """The replica as seen by sequences that arrive with `isl` tokens cached, represented as prompts of one token.

    Those tokens are attended to at every step (a cost per sequence) and keep their place in the cache (which holds
    fewer, shorter sequences); the prefill of the one token is free.
    """
    lengths, law, batching = question.workload.lengths, replica.law, replica.batching
    cached = lengths.isl - 1
    alike = law.with_values(sequence_s=law.sequence_s + law.kv_token_s * cached, attention_s=0.0, prefill_s=0.0)
    shorter = (lengths.osl + 1) / (lengths.isl + lengths.osl)
    known = batching.kv_tokens < UNLIMITED_KV_TOKENS
    kv_tokens = max(1, int(batching.kv_tokens * shorter)) if known else batching.kv_tokens
    return replace(replica, law=alike, batching=replace(batching, kv_tokens=kv_tokens))


def transfer_s(candidate: Candidate, question: Question) -> float:
    """Seconds to move one prompt's KV cache to another server, every GPU that holds a part of it sending its own."""
    sheet = sheet_of(candidate)
    network = min(sheet.gpu.link_bytes_per_s, NETWORK_BYTES_PER_S)
    return question.workload.lengths.isl * sheet.token_bytes / (network * LINK_SHARE)
