"""What a change of one input does to the answer: lengths, rate, limits and headroom, 10 and 25 % up and down."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from sizing.catalog import Layout
from sizing.edge import BY_SIMULATION, SlaMissed, load_response
from sizing.engine import Batching, Replica
from sizing.errors import ScenarioError
from sizing.planner import size, smallest_fleet
from sizing.plans import Candidate, Fleet, Rejection
from sizing.question import Question, Setting
from sizing.trace import Trace
from sizing.workload import METRICS, OF_REQUESTS, Lengths, Limit, Sla

CHANGES = (-0.25, -0.10, 0.10, 0.25)
Unit = Literal["tokens", "requests/s", "s", "share"]


@dataclass(frozen=True, slots=True)
class Effect:
    """With the input at `value`, `change` away from its own: GPUs and a replica's capacity; None = the SLA fails."""

    change: float
    value: float
    gpus: int | None
    capacity_per_s: float | None


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """The effects of one input, `value` in `unit` as asked, everything else kept."""

    name: str
    unit: Unit
    value: float
    effects: tuple[Effect, ...]


def sensitivities(question: Question, fleet: Fleet, trace: Trace | None = None) -> tuple[Sensitivity, ...]:
    """One row per input; `trace`: that the fleet was sized for.

    By formula, scaled by the fleet's own capacity over the formula's. Limits by simulation where the formula has
    another one fail first, as its times would then move what does not bind, and that on rejected requests, of which it
    has none. Of a trace, which is not replayed for each, limits have no rows there, nor where each class has its own.

    A headroom of 0 stays 0 whatever its change. Lengths below 1 token and limits the SLA cannot meet give no count.
    """
    alike = binds_alike(question, fleet)
    without = trace is not None and (not alike or bool(trace.classes))
    rows = []
    for name, unit, value in inputs(question):
        of_limit = name in map(limit_name, question.sla.limits)
        if of_limit and without:
            continue
        changes = ((change, value * (1 + change)) for change in CHANGES)
        effects = tuple(effect(question, fleet, name, *each, not alike and of_limit) for each in changes)
        rows.append(Sensitivity(name, unit, value, effects))
    return tuple(rows)


def binds_alike(question: Question, fleet: Fleet) -> bool:
    """True if by formula the same limit fails first as the fleet has it."""
    response = load_response(fleet.candidate.replica, question.setting(fleet.working))
    return response.reached(response.rate_per_s(0.0) or fleet.capacity_per_s, question.sla) == fleet.binding


def inputs(question: Question) -> Iterator[tuple[str, Unit, float]]:
    """Name, unit and value of every input that is varied."""
    yield "ISL", "tokens", question.workload.lengths.isl
    yield "OSL", "tokens", question.workload.lengths.osl
    yield "rate", "requests/s", question.workload.rate_per_s
    for limit in question.sla.limits:
        yield limit_name(limit), "s" if limit.metric in METRICS else "share", limit.limit_s
    yield "headroom", "share", question.headroom


def limit_name(limit: Limit) -> str:
    """For instance: p95 TTFT limit; of goodput all the limits that it judges by, taken together."""
    return f"limits of {limit.name}" if limit.metric == "goodput" else f"{limit.name} limit"


def effect(
    question: Question, fleet: Fleet, name: str, change: float, value: float, by_simulation: bool = False
) -> Effect:
    """GPUs and capacity with the input `name` at `value`."""
    try:
        changed = with_input(question, name, value)
        if by_simulation or changed.sla.rejected != question.sla.rejected:
            found = size(changed, fleet.candidate, BY_SIMULATION)
            seen = (found.gpus, found.capacity_per_s) if isinstance(found, Fleet) else (None, None)
            return Effect(change, value, *seen)
        replicas, capacity_per_s = resized(changed, question, fleet)
    except (SlaMissed, ScenarioError):
        return Effect(change, value, None, None)
    gpus = (replicas + fleet.spare) * fleet.candidate.gpus
    if name not in ("ISL", "OSL"):  # beside a limit that jumps, the curve alone may say that less takes more
        harder = (change > 0) == (name in ("rate", "headroom"))
        gpus = max(gpus, fleet.gpus) if harder else min(gpus, fleet.gpus)
    return Effect(change, value, gpus, capacity_per_s)


def at_lengths(question: Question, lengths: Lengths) -> Question:
    """The question at other lengths; of prompts shorter than the shared prefix all is shared."""
    workload = question.workload
    prefix = replace(workload.prefix, tokens=min(workload.prefix.tokens, int(lengths.isl)))
    return replace(question, workload=replace(workload, lengths=lengths, prefix=prefix))


def with_input(question: Question, name: str, value: float) -> Question:
    """The question with one input replaced."""
    if name in ("ISL", "OSL"):
        lengths = question.workload.lengths
        return at_lengths(question, replace(lengths, isl=value) if name == "ISL" else replace(lengths, osl=value))
    if name == "rate":
        return replace(question, workload=replace(question.workload, rate_per_s=value))
    if name == "headroom":
        return replace(question, headroom=value)
    limits = (replace(limit, limit_s=value) for limit in question.sla.limits if limit_name(limit) == name)
    return replace(question, sla=question.sla.with_limits(*limits))


def capacity_beside(question: Question, fleet: Fleet) -> Callable[[Replica, Setting], float]:
    """The formula's requests/s of a replica under another question, corrected by the ratio that holds for the fleet's
    own; 0 where the SLA is missed even alone.

    Where the formula puts even an idle replica of the fleet over a limit that the simulation found met, the excess that
    it gives at the fleet's own capacity counts as met, unless it finds a capacity under the other question by itself.
    """
    as_it_was = load_response(fleet.candidate.replica, question.setting(fleet.working))
    if as_it_was.rate_per_s(0.0):
        correction = fleet.capacity_per_s / as_it_was.rate_per_s(0.0)
        return lambda replica, setting: correction * load_response(replica, setting).rate_per_s(0.0)
    kept = as_it_was.excess_at(fleet.capacity_per_s)
    correction = fleet.capacity_per_s / as_it_was.rate_per_s(kept)

    def near_miss(replica: Replica, setting: Setting) -> float:
        response = load_response(replica, setting, (kept,))
        return response.rate_per_s(0.0) or correction * response.rate_per_s(kept)

    return near_miss


def resized(changed: Question, question: Question, fleet: Fleet) -> tuple[int, float]:
    """Working replicas and capacity of the fleet's candidate under a changed question, see `capacity_beside`."""
    replica, beside = fleet.candidate.replica, capacity_beside(question, fleet)

    def capacity_per_s(setting: Setting) -> float:
        found = beside(replica, setting)
        if found == 0:
            raise load_response(replica, setting).missed_alone(setting.sla)
        return found

    return smallest_fleet(changed, capacity_per_s, fleet.working)


# --- What the last per cent of the requests costs: GPUs at rising goodput

GOODPUTS = (90.0, 95.0, 99.0, 99.9)


@dataclass(frozen=True, slots=True)
class GoodputPrice:
    """The fleet of one configuration whose requests keep all limits at once for `percent` per cent of them; None where
    no number of replicas does."""

    percent: float
    fleet: Fleet | None


def goodput_prices(
    question: Question, candidate: Candidate, percents: Sequence[float] = GOODPUTS
) -> tuple[GoodputPrice, ...]:
    """A row for each goodput, by simulation; and for the one that the question asks for, if it does.

    The limits on TTFT, ITL and E2E are judged all at once, whatever their own percentiles; other limits stay. Raises
    ScenarioError where there are none.
    """
    sla = question.sla
    asked = sorted({*percents, *([sla.goodput.percentile] if sla.goodput else [])})
    judged = [replace(limit, percentile=0) for limit in sla.given if limit.metric in OF_REQUESTS]
    others = [limit for limit in sla.limits if limit.metric in ("gap", "rejected")]

    def price(percent: float) -> GoodputPrice:
        wanted = replace(question, sla=Sla(*judged, *others, Limit.goodput(percent)))
        found = size(wanted, candidate, BY_SIMULATION)
        return GoodputPrice(percent, found if isinstance(found, Fleet) else None)

    return tuple(map(price, asked))


# --- The batch limit and the chunk size that need the fewest GPUs: powers of two, by formula, then by simulation

BATCH_LIMITS = (8, 16, 32, 64, 128, 256, 512)
TOKEN_BUDGETS = (512, 1024, 2048, 4096, 8192, 16384)
WORTH = 0.01
"""Gain in capacity below which the present settings stay: it is within the simulation's error."""


@dataclass(frozen=True, slots=True)
class TriedSetting:
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
    tried: tuple[TriedSetting, ...]

    @property
    def batching(self) -> Batching:
        """The settings found."""
        return self.candidate.replica.batching


def tune(question: Question, candidate: Candidate) -> Tuned:
    """The batch limit and token budget (chunk size) with which the candidate needs the fewest replicas.

    First the batch limit, then the token budget at the best batch limit, then the batch limit again: every power of
    two by formula; the best is verified by simulation and kept only if the simulation finds it better by `WORTH`. What
    is tried is the setting of a rank or stage, of which the replica has the sum. The memory for the KV cache is kept as
    it is: a token budget far above the given one may cost some of it. A batch limit beyond what was measured is
    extrapolated, and the fleet's warnings say so.
    """
    before = size(question, candidate, BY_SIMULATION)
    setting = question.setting(before.working if isinstance(before, Fleet) else 1)
    tried: dict[Batching, float] = {}
    best = candidate.replica.batching
    for ways in (batch_limits, token_budgets, batch_limits):
        best = better(candidate, setting, [best, *ways(best, candidate.layout)], tried)
    trials = tuple(TriedSetting(batching, rate) for batching, rate in tried.items())
    changed = with_batching(candidate, best)
    after = before if best == candidate.replica.batching else size(question, changed, BY_SIMULATION)
    gain = gain_of(before, after)
    if gain < WORTH:
        return Tuned(candidate, before, before, 0.0, trials)
    return Tuned(changed, after, before, gain, trials)


def batch_limits(batching: Batching, layout: Layout) -> Iterator[Batching]:
    """The same rule with every batch limit."""
    for limit in BATCH_LIMITS:
        yield replace(batching, max_batch_size=limit * layout.dp)


def token_budgets(batching: Batching, layout: Layout) -> Iterator[Batching]:
    """The same rule with every token budget; none where the policy has no budget that matters."""
    if batching.policy != "static":
        for budget in TOKEN_BUDGETS:
            yield replace(batching, token_budget=budget * layout.lanes)


def better(candidate: Candidate, setting: Setting, ways: Sequence[Batching], tried: dict[Batching, float]) -> Batching:
    """The rule with the highest capacity by formula; the first of equals, which is the one as it is."""
    for batching in ways:
        if batching not in tried:
            tried[batching] = load_response(with_batching(candidate, batching).replica, setting).rate_per_s(0.0)
    return max(dict.fromkeys(ways), key=lambda batching: round(tried[batching], 12))


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
    return after.capacity_per_s / before.capacity_per_s - 1 if isinstance(before, Fleet) else math.inf
