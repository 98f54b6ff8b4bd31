"""How many GPUs: from a question and its candidates to the smallest fleet that meets the SLA. Start reading here."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from sizing.catalog import Layout
from sizing.edge import BY_FORMULA, BY_SIMULATION, FINE, Method, SlaMissed, ample_replicas, capacity_band, least
from sizing.errors import RequestTooLong
from sizing.explain import (
    cost_rejection,
    dilution,
    distance_from_sla,
    engine_rejection,
    first_look,
    jump_rejection,
    mean_based,
    remarks,
    sla_rejection,
)
from sizing.plans import Candidate, Fleet, NoFeasiblePlan, Plan, Rejection
from sizing.prediction import Prediction
from sizing.question import Question, Setting, check_priced, weight_of
from sizing.queueing import stable_rate_per_s
from sizing.workload import NO_PREFIX, Lengths, Prefix

HOPELESS = 1.5
"""Factor on the GPUs of the best fleet of the same GPU: candidates that need more are skipped."""


def plan(question: Question, candidates: Sequence[Candidate], rejected: Sequence[Rejection] = ()) -> Plan:
    """The fleets that meet the SLA, fewest GPUs first; the first, the answer, is verified by simulation.

    Size every candidate that can win by formula, then size the best one again by simulation, until the fleet with
    the fewest GPUs is a simulated one. If prices differ by GPU, the cheapest comes first. Raises NoFeasiblePlan,
    carrying every rejection, when no fleet meets the SLA; ScenarioError if only some GPUs have a price.
    """
    check_priced(question, (candidate.gpu for candidate in candidates))
    sized, failed = survey(question, candidates), list[tuple[Candidate, Rejection]]()
    while (best := cheapest(question, sized)) and not best.verified:
        found = size(question, best.candidate, BY_SIMULATION)
        if isinstance(found, Fleet):
            sized[sized.index(best)] = found
        else:
            failed.append((best.candidate, found))
        if isinstance(found, Rejection) or _skipped_for(question, candidates, best, found):
            sized = _look_again(question, candidates, sized, failed, best)
    fleets = sorted((fleet for fleet in sized if isinstance(fleet, Fleet)), key=lambda fleet: cost(question, fleet))
    misses = [*(miss for miss in sized if isinstance(miss, Rejection)), *(miss for _, miss in failed)]
    left_out = sorted((*misses, *rejected), key=distance_from_sla)
    if not fleets:
        raise NoFeasiblePlan(f"no configuration meets {question.sla}", tuple(left_out))
    same_gpu = [candidate for candidate in candidates if candidate.gpu == fleets[0].candidate.gpu]
    return Plan(question, tuple(fleets), tuple(left_out), mean_based(question, same_gpu))


def survey(question: Question, candidates: Sequence[Candidate]) -> list[Fleet | Rejection]:
    """Every candidate by formula, those that may need the fewest GPUs first.

    Skips candidates that need `HOPELESS` times the GPUs of a fleet of the same GPU even at their stable rate. Among
    engines estimated side by side, it sizes the fastest, and the others where that makes the best fleet of a GPU.
    """
    first, slower = fastest_engines(candidates, question.workload.lengths, question.workload.prefix)
    sized: list[Fleet | Rejection] = []
    best: dict[str, Fleet] = {}
    for candidate in sorted(first, key=lambda each: least_gpus(question, each)):
        gpus, fewest = least_gpus(question, candidate), best.get(candidate.gpu)
        hopeless = fewest is not None and gpus > HOPELESS * fewest.gpus
        by_method = partial(size, question, candidate)
        found = cost_rejection(candidate, gpus, fewest.gpus) if fewest and hopeless else first_look(by_method)
        sized.append(found)
        if isinstance(found, Fleet):
            best[candidate.gpu] = min(fewest or found, found, key=lambda fleet: cost(question, fleet))
    beside = {configuration(fleet.candidate) for fleet in best.values()}
    for candidate, faster in slower:
        wins = not best or configuration(candidate) in beside
        sized.append(
            first_look(partial(size, question, candidate)) if wins else engine_rejection(candidate, faster.engine)
        )
    return sized


def _skipped_for(question: Question, candidates: Sequence[Candidate], best: Fleet, found: Fleet) -> bool:
    """True if candidates of the GPU were skipped for the fleet that the formula found `best`, and may need fewer GPUs
    than the simulation `found` for it."""
    needs = (least_gpus(question, each) for each in candidates if each.gpu == best.candidate.gpu)
    return any(HOPELESS * best.gpus < gpus < found.gpus for gpus in needs)


def _look_again(
    question: Question,
    candidates: Sequence[Candidate],
    sized: Sequence[Fleet | Rejection],
    failed: Sequence[tuple[Candidate, Rejection]],
    best: Fleet,
) -> list[Fleet | Rejection]:
    """The remaining fleets once the `best` by formula failed or grew: whatever it beat on its GPU may win now."""
    gpu = best.candidate.gpu
    kept = [each for each in sized if _gpu(each) != gpu or (isinstance(each, Fleet) and each.verified)]
    known = [candidate for candidate, _ in failed] + [each.candidate for each in kept if isinstance(each, Fleet)]
    return kept + survey(question, [each for each in candidates if each.gpu == gpu and each not in known])


def _gpu(sized: Fleet | Rejection) -> str:
    return sized.gpu if isinstance(sized, Rejection) else sized.candidate.gpu


SCREENED_AT = 32
"""Requests in flight at which engines are compared before any is sized."""


Configuration = tuple[str, str, Layout]


def configuration(candidate: Candidate) -> Configuration:
    """The key within which engines are compared."""
    return candidate.gpu, candidate.precision, candidate.layout


def fastest_engines(
    candidates: Sequence[Candidate], lengths: Lengths, prefix: Prefix = NO_PREFIX
) -> tuple[list[Candidate], list[tuple[Candidate, Candidate]]]:
    """Measured candidates and, for each estimated configuration, the engine whose iterations take the least time per
    request at `SCREENED_AT` in flight; then the slower engines, each with the one that beat it.

    A prompt costs what the prefix cache does not hold of it, and beside decodes only what it adds to their iteration.
    """
    isl, new_tokens = lengths.isl, lengths.isl - prefix.found_tokens(lengths.isl, lengths.isl_cv)
    prompt = new_tokens, new_tokens * (isl - new_tokens / 2)

    def busy_s(candidate: Candidate) -> float:
        law = candidate.replica.law
        decoding = SCREENED_AT, SCREENED_AT * (isl + lengths.osl / 2)
        decode_s = law.decode_s(*decoding)
        apart = candidate.replica.batching.policy == "prefill_first"
        prompt_s = law.mixed_s(0, 0, *prompt) if apart else law.mixed_s(*decoding, *prompt) - decode_s
        return prompt_s + lengths.osl * decode_s / SCREENED_AT

    fastest: dict[Configuration, Candidate] = {}
    for candidate in candidates:
        if candidate.unmeasured:
            rival = fastest.setdefault(configuration(candidate), candidate)
            fastest[configuration(candidate)] = min(rival, candidate, key=busy_s)
    first, slower = list[Candidate](), list[tuple[Candidate, Candidate]]()
    for candidate in candidates:
        best = fastest[configuration(candidate)] if candidate.unmeasured else candidate
        if best is candidate:
            first.append(candidate)
        else:
            slower.append((candidate, best))
    return first, slower


def least_gpus(question: Question, candidate: Candidate) -> int:
    """Lower bound on a candidate's GPUs: enough to carry the load at all, whatever the latency."""
    return (least_working(question, candidate) + question.spare) * candidate.gpus


def least_working(question: Question, candidate: Candidate) -> int:
    """Working replicas that carry the load at all: fewer meet no SLA, so the search starts there."""
    workload = question.workload
    return question.replicas_at(stable_rate_per_s(candidate.replica, workload.lengths, workload.prefix))


def size(question: Question, candidate: Candidate, method: Method) -> Fleet | Rejection:
    """The smallest fleet of one candidate by one method, or the reason that there is none."""
    try:
        return _sized(question, candidate, method)
    except RequestTooLong as error:  # with lengths that vary, a simulation draws some far above their mean
        return Rejection.of(candidate, "memory", str(error))


def _sized(question: Question, candidate: Candidate, method: Method) -> Fleet | Rejection:
    try:
        start = (least_working if method is BY_FORMULA else by_formula)(question, candidate)
        working, capacity_per_s = smallest_fleet(question, lambda s: method.capacity_per_s(candidate.replica, s), start)
    except SlaMissed as missed:
        return sla_rejection(candidate, missed, question.workload.lengths)
    working, predicted = settle(question, candidate, method, working)
    if not predicted.meets(question.sla):
        return jump_rejection(question, candidate, working, predicted)
    working_low, working_high = working_band(question, candidate, working, capacity_per_s)
    setting = question.setting(working)
    fleet = Fleet(
        candidate=candidate,
        working=working,
        spare=question.spare,
        load_per_s=question.workload.rate_per_s / working,
        capacity_per_s=capacity_per_s,
        requests_per_s_per_replica=capacity_per_s * (1 - question.headroom),
        predicted=predicted,
        binding=method.reached(candidate.replica, setting, capacity_per_s),
        working_low=working_low,
        working_high=working_high,
        stable_per_s=stable_rate_per_s(candidate.replica, question.workload.lengths, question.workload.prefix),
    )
    notes = list(remarks(candidate, setting, fleet.load_per_s, predicted, fleet.stability_binds))
    if method is BY_SIMULATION:
        notes += dilution(fleet, setting, question.replicas_at)
    return replace(fleet, notes=tuple(notes))


def working_band(
    question: Question, candidate: Candidate, working: int, capacity_per_s: float
) -> tuple[int, int | None]:
    """The 90 % band of the working replicas, around `working` of a capacity each; None if the slow end misses the SLA
    with any number.

    If bursts spread over the fleet, a slower engine needs few more replicas, because these thin the bursts too: then
    each end is a smallest fleet of its own, by the formula's capacity, corrected by its error at `working`.
    """
    setting = question.setting(working)
    low, high = capacity_band(candidate, setting)
    fixed = question.replicas_at(capacity_per_s * high), question.replicas_at(capacity_per_s * low) if low > 0 else None
    if question.workload.arrivals.thin_among == 1:
        return fixed
    try:
        correction = capacity_per_s / BY_FORMULA.capacity_per_s(candidate.replica, setting)
    except SlaMissed:  # the simulation found it met
        correction = 1.0

    def end(place: int) -> int | None:
        def capacity(setting: Setting) -> float:
            factor = capacity_band(candidate, setting)[place]
            if not factor:
                raise SlaMissed(question.sla.limits[0], math.inf)
            return correction * factor * BY_FORMULA.capacity_per_s(candidate.replica, setting)

        try:
            return smallest_fleet(question, capacity, working)[0]
        except SlaMissed:
            return None

    return min(end(1) or working, working), max(slow, working) if (slow := end(0)) else None


def by_formula(question: Question, candidate: Candidate) -> int:
    """Working replicas by formula, where the simulation starts; 1 if the formula finds none."""
    try:
        start = least_working(question, candidate)
        return smallest_fleet(question, lambda s: BY_FORMULA.capacity_per_s(candidate.replica, s), start)[0]
    except SlaMissed:
        return 1


def smallest_fleet(question: Question, capacity_per_s: Callable[[Setting], float], start: int) -> tuple[int, float]:
    """Working replicas, and the requests/s each could carry under the SLA in a fleet of that size.

    The smallest fleet is the least R that is at least the replicas needed at the capacity which holds in a fleet of R.
    Usually capacity grows with the fleet (balanced routing evens out the load), so the need falls as R rises: iterating
    from `start` brackets that R from both sides, and an R that needs exactly itself is the least. If
    `Question.falls_with_fleet`, a smaller R may be self-consistent too, and the search continues below. If bursts
    spread over the fleet or its router keeps requests apart, an R below a sufficient one may miss the SLA even without
    load: then it is too small. Raises SlaMissed if even `ample_replicas` miss it.
    """
    falling, ample = question.falls_with_fleet, ample_replicas(question.workload.arrivals, question.routing)
    too_few, enough, replicas = 0, math.inf, start
    while too_few + 1 < enough:
        try:
            capacity = capacity_per_s(question.setting(replicas))
        except SlaMissed:
            if enough == math.inf and replicas >= ample:
                raise
            further = min(2 * replicas, ample) if enough == math.inf else (replicas + int(enough)) // 2
            too_few, replicas = replicas, further
            continue
        needed = question.replicas_at(capacity)
        if needed == replicas and not falling:
            return replicas, capacity
        if needed <= replicas:
            enough, replicas = replicas, max(min(needed, replicas - 1), too_few + 1)
        else:
            too_few, replicas = replicas, int(min(needed, enough - 1))
    return int(enough), capacity_per_s(question.setting(int(enough)))


def settle(question: Question, candidate: Candidate, method: Method, working: int) -> tuple[int, Prediction]:
    """From `working` replicas up, the least count whose latencies meet the SLA at the planned load, and those
    latencies.

    Nearly always `working` itself. But latencies may jump at some load (a prompt that exactly fills the token budget,
    evenly spaced arrivals that synchronize with the engine) and exceed the limit below a load at which they met it.
    More replicas are tried in growing steps, for large fleets in multiples of 1/`FINE`: one by one, a fleet of a
    million would be tried ten thousand times for 1 % more.
    """
    grain = max(1, working // FINE)
    tried: dict[int, Prediction] = {}

    def meets(steps: int) -> bool:
        replicas = working + steps * grain
        load_per_s = question.workload.rate_per_s / replicas
        tried[steps] = method.predict(candidate.replica, question.setting(replicas), load_per_s)
        return tried[steps].meets(question.sla)

    most = working // grain + 1
    steps = 0 if meets(0) else least(meets, 1, most) or most
    return working + steps * grain, tried[steps]


def cheapest(question: Question, sized: Sequence[Fleet | Rejection]) -> Fleet | None:
    """The fleet with the fewest GPUs (or the lowest price); None when all were rejected."""
    fleets = (fleet for fleet in sized if isinstance(fleet, Fleet))
    return min(fleets, key=lambda fleet: cost(question, fleet), default=None)


def cost(question: Question, fleet: Fleet) -> tuple[float, bool, float]:
    """Fewest GPUs first, or lowest price where GPUs have their own; among equals what was measured before what is
    estimated, then the fleet with the most room."""
    one = fleet.candidate
    return fleet.gpus * weight_of(question, one.gpu), one.basis == "estimated", -fleet.requests_per_s_per_gpu
