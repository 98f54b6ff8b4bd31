"""The batch limit and the chunk size that need the fewest GPUs: powers of two, by formula, then by simulation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from sizing.capacity import BY_FORMULA, BY_SIMULATION, Setting, SlaMissed
from sizing.plan import Candidate, Fleet, Question, Rejection
from sizing.planner import setting_of, size
from sizing.replica import Batching

BATCH_LIMITS = (8, 16, 32, 64, 128, 256, 512)
TOKEN_BUDGETS = (512, 1024, 2048, 4096, 8192, 16384)
WORTH = 0.01
"""Gain in capacity below which the settings as they are are kept: it is within the error of the simulation."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One setting tried and requests/s of a replica under it by formula; 0 = the SLA fails without load."""

    batching: Batching
    capacity_per_s: float


@dataclass(frozen=True, slots=True)
class Tuned:
    """The best settings of a candidate, `gain` in a replica's capacity over the settings it came with (simulated).

    `fleet` is sized with them; `before` is the fleet, or its rejection, without. `gain` is infinite where the settings
    as they were could not meet the SLA at all, and 0 where nothing better was found.
    """

    candidate: Candidate
    fleet: Fleet | Rejection
    before: Fleet | Rejection
    gain: float
    tried: tuple[Trial, ...]

    @property
    def batching(self) -> Batching:
        """The settings found."""
        return self.candidate.replica.batching


def tune(question: Question, candidate: Candidate) -> Tuned:
    """The batch limit and token budget (chunk size) with which the candidate needs the fewest replicas.

    First the batch limit, then the token budget at the best batch limit, then the batch limit again: every power of
    two by formula; the best is verified by simulation and kept only if the simulation finds it better by `WORTH`. The
    memory for the KV cache is kept as it is: a token budget far above the given one may cost some of it. A batch limit
    beyond what was measured is extrapolated, and the fleet's warnings say so.
    """
    before = size(question, candidate, BY_SIMULATION)
    setting = setting_of(question, before.working if isinstance(before, Fleet) else 1)
    tried: dict[Batching, float] = {}
    best = candidate.replica.batching
    for ways in (batch_limits, token_budgets, batch_limits):
        best = better(candidate, setting, [best, *ways(best)], tried)
    trials = tuple(Trial(batching, rate) for batching, rate in tried.items())
    changed = with_batching(candidate, best)
    after = before if best == candidate.replica.batching else size(question, changed, BY_SIMULATION)
    gain = gain_of(before, after)
    if gain < WORTH:
        return Tuned(candidate, before, before, 0.0, trials)
    return Tuned(changed, after, before, gain, trials)


def batch_limits(batching: Batching) -> Iterator[Batching]:
    """The same rule with every batch limit."""
    for limit in BATCH_LIMITS:
        yield replace(batching, max_batch_size=limit)


def token_budgets(batching: Batching) -> Iterator[Batching]:
    """The same rule with every token budget; none where the policy has no budget that matters."""
    if batching.policy != "static":
        for budget in TOKEN_BUDGETS:
            yield replace(batching, token_budget=budget)


def better(candidate: Candidate, setting: Setting, ways: Sequence[Batching], tried: dict[Batching, float]) -> Batching:
    """The rule with the highest capacity by formula; the first of equals, which is the one as it is."""
    for batching in ways:
        if batching not in tried:
            tried[batching] = capacity_of(with_batching(candidate, batching), setting)
    return max(dict.fromkeys(ways), key=lambda batching: round(tried[batching], 12))


def capacity_of(candidate: Candidate, setting: Setting) -> float:
    """Capacity by formula, 0 when the SLA is missed without load."""
    try:
        return BY_FORMULA.capacity_per_s(candidate.replica, setting)
    except SlaMissed:
        return 0.0


def with_batching(candidate: Candidate, batching: Batching) -> Candidate:
    """The candidate, and the variants of its law, under another batching rule."""
    variants = tuple(
        (replace(faster, batching=batching), replace(slower, batching=batching))
        for faster, slower in candidate.variants
    )
    return replace(candidate, replica=replace(candidate.replica, batching=batching), variants=variants)


def gain_of(before: Fleet | Rejection, after: Fleet | Rejection) -> float:
    """Relative gain in a replica's capacity; infinite from nothing to something, 0 to nothing."""
    if isinstance(after, Rejection):
        return 0.0
    return after.capacity_per_s / before.capacity_per_s - 1 if isinstance(before, Fleet) else float("inf")
