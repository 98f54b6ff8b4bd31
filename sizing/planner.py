"""How many GPUs: from a question and its candidates to the smallest fleet that meets the SLA. Start reading here."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence

from sizing.band import capacity_band
from sizing.capacity import BY_FORMULA, BY_SIMULATION, Method, Setting, SlaMissed
from sizing.errors import NoFeasiblePlan
from sizing.mean_rule import mean_based
from sizing.numbers import milliseconds
from sizing.plan import Candidate, Fleet, Plan, Question, Rejection
from sizing.prediction import Prediction


def plan(question: Question, candidates: Sequence[Candidate], rejected: Sequence[Rejection] = ()) -> Plan:
    """The fleets that meet the SLA, fewest GPUs first; the first, the answer, is verified by simulation.

    Every candidate is sized by formula; then the best is sized again by simulation, until the fleet with the fewest
    GPUs is a simulated one. Raises NoFeasiblePlan, carrying every rejection, when no fleet meets the SLA.
    """
    sized = [size(question, candidate, BY_FORMULA) for candidate in candidates]
    while (best := cheapest(sized)) and not best.verified:
        sized[sized.index(best)] = size(question, best.candidate, BY_SIMULATION)
    fleets = sorted((fleet for fleet in sized if isinstance(fleet, Fleet)), key=cost)
    left_out = sorted((*(miss for miss in sized if isinstance(miss, Rejection)), *rejected), key=distance_from_sla)
    if not fleets:
        raise NoFeasiblePlan(f"no configuration meets {question.sla}", tuple(left_out))
    same_gpu = [candidate for candidate in candidates if candidate.gpu == fleets[0].candidate.gpu]
    return Plan(question, tuple(fleets), tuple(left_out), mean_based(question, same_gpu))


def size(question: Question, candidate: Candidate, method: Method) -> Fleet | Rejection:
    """The smallest fleet of one candidate by one method, or why there is none."""
    try:
        working, capacity_per_s = smallest_fleet(question, lambda s: method.capacity_per_s(candidate.replica, s))
    except SlaMissed as missed:
        return sla_rejection(candidate, missed)
    working, predicted = settle(question, candidate, method, working)
    if not predicted.meets(question.sla):
        return jump_rejection(question, candidate, working, predicted)
    low, high = capacity_band(candidate, setting_of(question, working))
    return Fleet(
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
    )


def smallest_fleet(question: Question, capacity_per_s: Callable[[Setting], float]) -> tuple[int, float]:
    """Working replicas, and the requests/s each could carry under the SLA in a fleet of that size.

    A replica's capacity may grow with the fleet (balanced routing evens out the load): the smallest fleet is the least
    R that is at least the replicas needed at the capacity which holds in a fleet of R.
    """
    known: dict[Setting, float] = {}

    def capacity(replicas: int) -> float:
        setting = setting_of(question, replicas)
        if setting not in known:
            known[setting] = capacity_per_s(setting)
        return known[setting]

    def needed(replicas: int) -> int:
        return replicas_for(question, capacity(replicas))

    most = needed(1)
    sizes = range(needed(most), most + 1)
    smallest = sizes[bisect_left(sizes, True, key=lambda replicas: replicas >= needed(replicas))]
    return smallest, capacity(smallest)


def settle(question: Question, candidate: Candidate, method: Method, working: int) -> tuple[int, Prediction]:
    """From `working` replicas up, the first count whose latencies meet the SLA at the planned load, and these.

    Nearly always the first. But latencies may jump at some load (a prompt that just fills the token budget, evenly
    spaced arrivals that fall into step with the engine) and be over the limit below the load at which they were within.
    """
    most = 2 * working + 1
    for replicas in range(working, most + 1):
        load_per_s = question.workload.rate_per_s / replicas
        predicted = method.predict(candidate.replica, setting_of(question, replicas), load_per_s)
        if predicted.meets(question.sla):
            break
    return replicas, predicted


def replicas_for(question: Question, capacity_per_s: float) -> int:
    """Working replicas when each is planned at (1 - headroom) of `capacity_per_s`."""
    return math.ceil(question.workload.rate_per_s / (capacity_per_s * (1 - question.headroom)) * (1 - 1e-9))


def setting_of(question: Question, replicas: int) -> Setting:
    """The setting of one replica in a fleet of `replicas` working ones.

    Random routing of Poisson arrivals leaves every replica a Poisson stream of its own: then one stands for all.
    """
    alone = question.routing == "random" and question.workload.arrivals.kind == "poisson"
    return Setting(question.workload, question.sla, question.routing, 1 if alone else replicas)


def cheapest(sized: Sequence[Fleet | Rejection]) -> Fleet | None:
    """The fleet with the fewest GPUs; None when all were rejected."""
    return min((fleet for fleet in sized if isinstance(fleet, Fleet)), key=cost, default=None)


def cost(fleet: Fleet) -> tuple[int, float]:
    """Fewest GPUs first; among equals, the one with the most room."""
    return fleet.gpus, -fleet.requests_per_s_per_gpu


def sla_rejection(candidate: Candidate, missed: SlaMissed) -> Rejection:
    """A candidate whose replica misses a limit even without load."""
    limit = missed.limit
    why = (
        f"misses {limit.metric.upper()} even alone: p{limit.percentile} is {milliseconds(missed.alone_s)} on an idle "
        f"replica, the limit is {milliseconds(limit.limit_s)}"
    )
    return Rejection(candidate.gpu, candidate.tp, candidate.precision, "sla", why, limit, missed.alone_s)


def jump_rejection(question: Question, candidate: Candidate, replicas: int, predicted: Prediction) -> Rejection:
    """A candidate over a limit at the planned load, although it is within it at some higher load."""
    limit = predicted.binding(question.sla)
    value = predicted.value_s(limit)
    why = (
        f"unsteady: p{limit.percentile} {limit.metric.upper()} is {milliseconds(value)} with {replicas} replicas, the "
        f"limit is {milliseconds(limit.limit_s)}"
    )
    return Rejection(candidate.gpu, candidate.tp, candidate.precision, "sla", why, limit, value)


def distance_from_sla(rejection: Rejection) -> tuple[bool, float]:
    """Nearest miss of the SLA first, then what could not be sized at all."""
    if rejection.limit is None or rejection.nearest_s is None:
        return True, 0.0
    return False, rejection.nearest_s / rejection.limit.limit_s
