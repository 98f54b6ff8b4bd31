"""How many GPUs: from a question and its candidates to the smallest fleet that meets the SLA. Start reading here."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from sizing.band import capacity_band
from sizing.edge import BY_FORMULA, BY_SIMULATION, Method, Setting, SlaMissed, least
from sizing.explain import (
    cost_rejection,
    dilution,
    distance_from_sla,
    first_look,
    jump_rejection,
    remarks,
    sla_rejection,
)
from sizing.mean_rule import mean_based
from sizing.plans import Candidate, Fleet, NoFeasiblePlan, Plan, Question, Rejection
from sizing.prediction import Prediction
from sizing.queueing import stable_rate_per_s
from sizing.workload import check_priced

HOPELESS = 1.5
"""Times the GPUs of the best fleet of the same GPU: what needs more is not sized at all."""

FEW = 16
"""Fleets of more replicas than this are told apart in steps of an eighth: a replica hardly notices."""

FINE = 256
"""Fleets of more replicas than this are settled to within one part of so many, less than the search's tolerance."""


def plan(question: Question, candidates: Sequence[Candidate], rejected: Sequence[Rejection] = ()) -> Plan:
    """The fleets that meet the SLA, fewest GPUs first; the first, the answer, is verified by simulation.

    Every candidate that can win is sized by formula; then the best is sized again by simulation, until the fleet with
    the fewest GPUs is a simulated one. Where prices differ by GPU the cheapest comes first. Raises NoFeasiblePlan,
    carrying every rejection, when no fleet meets the SLA; ScenarioError where some GPUs have a price and others not.
    """
    check_priced(question.prices, question.price_per_gpu_hour, (candidate.gpu for candidate in candidates))
    sized = survey(question, candidates)
    while (best := cheapest(question, sized)) and not best.verified:
        sized[sized.index(best)] = size(question, best.candidate, BY_SIMULATION)
    fleets = sorted((fleet for fleet in sized if isinstance(fleet, Fleet)), key=lambda fleet: cost(question, fleet))
    left_out = sorted((*(miss for miss in sized if isinstance(miss, Rejection)), *rejected), key=distance_from_sla)
    if not fleets:
        raise NoFeasiblePlan(f"no configuration meets {question.sla}", tuple(left_out))
    same_gpu = [candidate for candidate in candidates if candidate.gpu == fleets[0].candidate.gpu]
    return Plan(question, tuple(fleets), tuple(left_out), mean_based(question, same_gpu))


def survey(question: Question, candidates: Sequence[Candidate]) -> list[Fleet | Rejection]:
    """Every candidate by formula, those that may need the fewest GPUs first.

    Left out unsized is what needs `HOPELESS` times the GPUs of a fleet of the same GPU even at its stable rate.
    """
    sized: list[Fleet | Rejection] = []
    fewest: dict[str, float] = {}
    for candidate in sorted(candidates, key=lambda each: least_gpus(question, each)):
        gpus, best = least_gpus(question, candidate), fewest.get(candidate.gpu, math.inf)
        hopeless = gpus > HOPELESS * best
        found = cost_rejection(candidate, gpus, best) if hopeless else first_size(question, candidate)
        sized.append(found)
        if isinstance(found, Fleet):
            fewest[candidate.gpu] = min(best, found.gpus)
    return sized


def least_gpus(question: Question, candidate: Candidate) -> int:
    """GPUs that a candidate needs at least: those that carry the load at all, whatever the latency."""
    return (least_working(question, candidate) + question.spare) * candidate.gpus


def least_working(question: Question, candidate: Candidate) -> int:
    """Working replicas that carry the load at all: no SLA is met by fewer, so the search begins there."""
    workload = question.workload
    return replicas_for(question, stable_rate_per_s(candidate.replica, workload.lengths, workload.prefix))


def first_size(question: Question, candidate: Candidate) -> Fleet | Rejection:
    """The fleet by formula; by simulation where the formula puts an idle replica just over a limit."""
    return first_look(lambda method: size(question, candidate, method))


def size(question: Question, candidate: Candidate, method: Method) -> Fleet | Rejection:
    """The smallest fleet of one candidate by one method, or why there is none."""
    try:
        start = (least_working if method is BY_FORMULA else by_formula)(question, candidate)
        working, capacity_per_s = smallest_fleet(question, lambda s: method.capacity_per_s(candidate.replica, s), start)
    except SlaMissed as missed:
        return sla_rejection(candidate, missed, question.workload.lengths)
    working, predicted = settle(question, candidate, method, working)
    if not predicted.meets(question.sla):
        return jump_rejection(question, candidate, working, predicted)
    low, high = capacity_band(candidate, setting_of(question, working))
    fleet = Fleet(
        candidate=candidate,
        working=working,
        spare=question.spare,
        load_per_s=question.workload.rate_per_s / working,
        capacity_per_s=capacity_per_s,
        requests_per_s_per_replica=capacity_per_s * (1 - question.headroom),
        predicted=predicted,
        binding=predicted.binding(question.sla),
        working_low=replicas_for(question, capacity_per_s * high),
        working_high=replicas_for(question, capacity_per_s * low) if low > 0 else None,
        stable_per_s=stable_rate_per_s(candidate.replica, question.workload.lengths, question.workload.prefix),
    )
    said = remarks(candidate, setting_of(question, working), fleet.load_per_s, predicted, fleet.stability_binds)
    if method is BY_SIMULATION:
        said += tuple(dilution(fleet, setting_of(question, working), partial(replicas_for, question)))
    return replace(fleet, notes=said)


def by_formula(question: Question, candidate: Candidate) -> int:
    """Working replicas by formula, where the simulation begins; 1 when the formula finds none."""
    try:
        start = least_working(question, candidate)
        return smallest_fleet(question, lambda s: BY_FORMULA.capacity_per_s(candidate.replica, s), start)[0]
    except SlaMissed:
        return 1


def smallest_fleet(question: Question, capacity_per_s: Callable[[Setting], float], start: int = 1) -> tuple[int, float]:
    """Working replicas, and the requests/s each could carry under the SLA in a fleet of that size.

    The smallest fleet is the least R that is at least the replicas needed at the capacity which holds in a fleet of R.
    As a rule capacity grows with the fleet (balanced routing evens out the load), so that needed falls as R rises:
    asking it again and again, from `start` on, closes in on that R from both sides, and an R that needs just itself is
    the least. Where capacity falls with the fleet (`falls_with_fleet`) a smaller R may need just itself too, and the
    search goes on below. Where bursts are spread over the fleet, an R below one that is enough may miss the SLA even
    without load: then it is too few. Raises SlaMissed where the first R does.
    """
    falling = falls_with_fleet(question)
    too_few, enough, replicas = 0, math.inf, start
    while too_few + 1 < enough:
        try:
            capacity = capacity_per_s(setting_of(question, replicas))
        except SlaMissed:
            if enough == math.inf:
                raise
            too_few, replicas = replicas, (replicas + int(enough)) // 2
            continue
        needed = replicas_for(question, capacity)
        if needed == replicas and not falling:
            return replicas, capacity
        if needed <= replicas:
            enough, replicas = replicas, max(min(needed, replicas - 1), too_few + 1)
        else:
            too_few, replicas = replicas, int(min(needed, enough - 1))
    return int(enough), capacity_per_s(setting_of(question, int(enough)))


def settle(question: Question, candidate: Candidate, method: Method, working: int) -> tuple[int, Prediction]:
    """From `working` replicas up, the least count whose latencies meet the SLA at the planned load, and these.

    Nearly always `working` itself. But latencies may jump at some load (a prompt that just fills the token budget,
    evenly spaced arrivals that fall into step with the engine) and be over the limit below the load at which they were
    within. More replicas are tried in growing steps, of large fleets in multiples of 1/`FINE` of them: one by one,
    a fleet of a million would be tried ten thousand times for 1 % more.
    """
    grain = max(1, working // FINE)
    tried: dict[int, Prediction] = {}

    def meets(steps: int) -> bool:
        replicas = working + steps * grain
        load_per_s = question.workload.rate_per_s / replicas
        tried[steps] = method.predict(candidate.replica, setting_of(question, replicas), load_per_s)
        return tried[steps].meets(question.sla)

    most = working // grain + 1
    steps = 0 if meets(0) else least(meets, 1, most) or most
    return working + steps * grain, tried[steps]


def replicas_for(question: Question, capacity_per_s: float) -> int:
    """Working replicas when each is planned at (1 - headroom) of `capacity_per_s`."""
    return math.ceil(question.workload.rate_per_s / (capacity_per_s * (1 - question.headroom)) * (1 - 1e-9))


def setting_of(question: Question, replicas: int) -> Setting:
    """The setting of one replica in a fleet of `replicas` working ones, without the fleet's rate.

    Random routing of Poisson arrivals leaves every replica a Poisson stream of its own: then one stands for all. Large
    fleets are counted to three binary digits, so that fleets of about a size share one answer: down where fewer
    replicas carry less each, up where they carry more.
    """
    alone = question.routing == "random" and question.workload.arrivals.kind == "poisson"
    step = 2 ** max(0, replicas.bit_length() - 3) if replicas > FEW else 1
    counted = math.ceil(replicas / step) if falls_with_fleet(question) else replicas // step
    of_rate_1 = replace(question.workload, rate_per_s=1.0)
    return Setting(of_rate_1, question.sla, question.routing, 1 if alone else counted * step)


def falls_with_fleet(question: Question) -> bool:
    """True where a replica carries less in a larger fleet.

    Arrivals more even than Poisson's lose their evenness when they are routed at random among more replicas; equal
    requests that go to the least busy replica fall into step (2.956 requests/s with 13 replicas, 2.927 with 14).
    """
    thinned = question.routing == "random" and question.workload.arrivals.cv < 1
    return thinned or (question.routing == "least_outstanding" and question.workload.lengths.fixed)


def cheapest(question: Question, sized: Sequence[Fleet | Rejection]) -> Fleet | None:
    """The fleet with the fewest GPUs (or the lowest price); None when all were rejected."""
    fleets = (fleet for fleet in sized if isinstance(fleet, Fleet))
    return min(fleets, key=lambda fleet: cost(question, fleet), default=None)


def cost(question: Question, fleet: Fleet) -> tuple[float, float]:
    """Fewest GPUs first, or lowest price where GPUs have their own; among equals, the one with the most room."""
    price = (question.price_of(fleet.candidate.gpu) or 0.0) if question.prices else 1.0
    return fleet.gpus * price, -fleet.requests_per_s_per_gpu
