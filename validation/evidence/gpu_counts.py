"""The number of GPUs: the planner's count for random scenarios against the fewest replicas in long simulations.

Each scenario draws an engine within a factor of about two of real ones, lengths, limits in proportion to the unloaded
engine, a rate for 1 to 60 replicas, arrivals and routing. Neither headroom nor spares: the bare count is judged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.random import Generator, SeedSequence

from sizing import planner
from sizing.catalog import Layout
from sizing.engine import FREE, Batching, Policy, Replica
from sizing.numbers import percent
from sizing.plans import Candidate, NoFeasiblePlan
from sizing.question import Question
from sizing.simulator import simulate, simulated_stable_rate_per_s
from sizing.workload import PERCENTILES, ROUTINGS, Arrivals, Lengths, Limit, Sla, Workload
from validation.evidence.claim import Claim, Setup
from validation.evidence.server import whole_number
from validation.evidence.table import ENOUGH, EvidenceRow, missing

IN_FLIGHT_POLICIES: tuple[Policy, ...] = ("chunked", "prefill_first", "whole_prompt")
ARRIVALS = (*(Arrivals(),) * 6, Arrivals("constant", 0.0), Arrivals("gamma", 2.0))
LAW_RANGES = {
    "weights_s": (2e-3, 12e-3),
    "overhead_s": (0.3e-3, 2e-3),
    "token_s": (8e-6, 60e-6),
    "sequence_s": (3e-6, 20e-6),
    "kv_token_s": (15e-9, 150e-9),
    "attention_s": (0.3e-9, 3e-9),
    "prefill_s": (0.1e-3, 1.5e-3),
    "request_s": (1e-3, 5e-3),
}
HERDING = 3
"""Times the requests where equal ones may fall into step behind the least busy replica: that takes them long."""
LARGE_FLEET = 0.03
"""Share of the exact count by which a count may be off where that is more than one replica."""
GOAL_RIGHT, GOAL_TOO_SMALL = 0.95, 0.01


@dataclass(frozen=True, slots=True)
class Case:
    """One scenario, to be checked with runs of `requests` requests; its numbers are drawn by `scenario`."""

    number: int
    requests: int


class Answer(NamedTuple):
    """Replicas: the planner's count and the exact one; None where the SLA cannot be met."""

    planned: int | None
    exact: int | None


def cases(setup: Setup) -> list[Case]:
    """300 scenarios, quick 8."""
    return [Case(number, 60_000 if setup.quick else 400_000) for number in range(8 if setup.quick else 300)]


def answer(case: Case, seed: SeedSequence) -> Answer:
    """Plan the scenario, then look for the fewest replicas around the plan that fresh random numbers allow."""
    of_scenario, of_truth = seed.spawn(2)
    question, replica = scenario(np.random.default_rng(of_scenario))
    candidate = Candidate("synthetic", "synthetic", Layout(), "bf16", replica, "fitted", "its own law", 0.0)
    try:
        planned = planner.plan(question, [candidate]).answer.working
    except NoFeasiblePlan:
        planned = None
    busy = question.workload.rate_per_s / simulated_stable_rate_per_s(replica, question.workload.lengths)
    most = 2 * (planned or 0) + 4 * math.ceil(busy) + 60
    number, requests = whole_number(of_truth), case.requests * (HERDING if herds(question) else 1)

    def meets(replicas: int) -> bool:
        run = simulate(
            replica,
            question.workload,
            replicas=replicas,
            routing=question.routing,
            requests=requests,
            seed=number,
        )
        return run.meets(question.sla)

    return Answer(planned, fewest(meets, planned or most, most))


def scenario(rng: Generator) -> tuple[Question, Replica]:
    """An engine and a question about it."""
    law = FREE.with_values(**{name: between(rng, *ends) for name, ends in LAW_RANGES.items()})
    batching = Batching(
        IN_FLIGHT_POLICIES[rng.integers(3)],
        max_batch_size=int(rng.choice([64, 128, 256, 512])),
        token_budget=int(rng.choice([2048, 8192])),
        kv_tokens=int(between(rng, 200e3, 1e6)),
    )
    replica = Replica(law, batching)
    spread = (0.5, 0.8) if rng.random() < 0.5 else (0.0, 0.0)
    lengths = Lengths(round(between(rng, 100, 4000)), round(between(rng, 50, 1000)), *spread)
    percentile = PERCENTILES[int(rng.integers(1, 4))]
    sla = Sla(
        Limit("ttft", percentile, law.prefill_alone_s(lengths.isl * (1 + 2 * spread[0])) * between(rng, 3, 30)),
        Limit("itl", percentile, law.decode_s(1, lengths.isl + lengths.osl / 2) * between(rng, 1.3, 4)),
    )
    rate_per_s = between(rng, 1, 60) * simulated_stable_rate_per_s(replica, lengths) * 0.7
    workload = Workload(lengths, rate_per_s, ARRIVALS[rng.integers(len(ARRIVALS))])
    routing = ROUTINGS[rng.integers(len(ROUTINGS))]
    return Question("synthetic", workload, sla, routing, headroom=0.0, spare=0), replica


def herds(question: Question) -> bool:
    """True where equal requests go to the least busy replica."""
    return question.routing == "least_outstanding" and question.workload.lengths.fixed


def between(rng: Generator, low: float, high: float) -> float:
    """Log-uniform."""
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def fewest(meets: Callable[[int], bool], guess: int, most: int) -> int | None:
    """The least count up to `most` that `meets`, found from a guess in widening steps, then by halving.

    `meets` must be false below some count and true from it on.

    >>> fewest(lambda count: count >= 7, guess=5, most=99), fewest(lambda count: False, guess=5, most=99)
    (7, None)
    """
    step = 1
    if meets(min(guess, most)):
        high, low = min(guess, most), max(0, guess - 1)
        while low > 0 and meets(low):
            high, step = low, 2 * step
            low = max(0, low - step)
    else:
        low, high = min(guess, most), min(guess + 1, most)
        while not meets(high):
            if high == most:
                return None
            low, step = high, 2 * step
            high = min(high + step, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if meets(middle) else (middle, high)
    return high


def rows(cases: Sequence[Case], answers: Sequence[Answer]) -> list[EvidenceRow]:
    """One row: errors of the count, the share that is right, and the share too small by more than that."""
    name, data, metric = "replicas, planned with the true law", "long simulations", "count of replicas"
    pairs = [(one.planned, one.exact) for one in answers if one.planned is not None and one.exact is not None]
    if not pairs:
        return [missing(name, data, metric, "no scenario meets its SLA")]
    planned, exact = np.array(pairs).T
    off = planned - exact
    allowed = np.maximum(1, LARGE_FLEET * exact)
    hopeful = sum(one.exact is None and one.planned is not None for one in answers)
    strict = sum(one.planned is None and one.exact is not None for one in answers)
    judged = len(pairs) + hopeful + strict
    right = np.count_nonzero(np.abs(off) <= allowed) / judged
    too_small = (np.count_nonzero(off < 0) + hopeful) / judged
    size = np.abs(off / exact)
    note = (
        f"right {percent(right, 1)} (exact {percent(float(np.mean(off == 0)))}), too small {percent(too_small, 1)} "
        f"(by more than one replica or 3 %: {percent(float(np.mean(off < -allowed)), 1)}); "
        f"not met by either: {len(answers) - judged}, wrongly called feasible: {hopeful}, infeasible: {strict}"
    )
    goal = f"exact or one off (3 % of large fleets) ≥ {percent(GOAL_RIGHT)}, too small ≤ {percent(GOAL_TOO_SMALL)}"
    holds = bool(right >= GOAL_RIGHT and too_small <= GOAL_TOO_SMALL) if judged >= ENOUGH else None
    ends = float(np.median(size)), float(np.quantile(size, 0.9)), float(size.max())
    return [EvidenceRow(name, data, judged, metric, *ends, goal, holds, note)]


GPU_COUNTS = Claim("gpu_counts", cases, answer, rows)
