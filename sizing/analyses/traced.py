"""How many GPUs for recorded traffic: fleets found by the formula at the busiest hour's rate, sized by replaying."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from sizing.analyses.relax import Ways
from sizing.analyses.sensitivity import resized
from sizing.analyses.sharing import Share, named_pairs, workloads_ways_out
from sizing.candidates import KV_BLOCK_TOKENS
from sizing.demand_model import correlation_of, rank_correlation
from sizing.edge import FINE, SlaMissed, capacity_band, least
from sizing.errors import ScenarioError, quoted
from sizing.explain import distance_from_sla, mean_based, sla_rejection
from sizing.memory_use import caching
from sizing.planner import cheapest, cost, survey
from sizing.plans import Candidate, Fleet, NoFeasiblePlan, Plan, Rejection
from sizing.prediction import Prediction
from sizing.question import PEAK_FACTOR, Question, check_priced
from sizing.queueing import stable_rate_per_s
from sizing.simulator.recorded import Replayed, judged, limits_on_requests, replay
from sizing.simulator.token_gaps import Counts
from sizing.token_law import TokenLaw
from sizing.trace import DAY_S, HOUR_S, Trace, TraceError, busiest_hour, hours
from sizing.workload import LIMITED, METRICS, OF_REQUESTS, Lengths, Limit, Prefix, Sla

FARTHEST = 64
"""The search ends at this many times the replicas that the formula gives."""
PACE = 0.05
"""Relative error of the pace up to which a fleet serves a trace."""
DRAWS = 2000
FEWEST_BLOCKS = 8
BAND = (0.05, 0.95)
NO_LIMIT = "none"
"""In place of a limit: the class has none on this metric."""

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Sampling:
    """Working replicas that are enough for 5 % and for 95 % of the resampled traces, each of `blocks` hours or days
    (`of`). `high` is None if no fleet within reach serves that many of them."""

    low: int
    high: int | None
    blocks: int
    of: str


@dataclass(frozen=True, slots=True, eq=False)
class TracePlan:
    """The fleets for a trace. `sla`: as it was asked for; where classes have limits of their own, the question of
    `plan` has the `loosest` in its place. `replayed`: the answer at the trace's own pace; `needed`: the working
    replicas of each hour, by formula in proportion; `sampling`: None where the trace has too few hours to tell;
    `notes`: on how its file was read."""

    plan: Plan
    sla: Sla
    trace: Trace
    replayed: Replayed
    needed: tuple[int, ...]
    sampling: Sampling | None
    notes: tuple[str, ...] = ()

    @property
    def question(self) -> Question:
        """The question of the plan with the SLA that was asked for."""
        return replace(self.plan.question, sla=self.sla)

    @property
    def worst_hour(self) -> int:
        """The hour in which the largest share of requests misses a limit."""
        return self.replayed.worst_hour

    @property
    def binding(self) -> tuple[Replayed, Limit]:
        """The limit with the least room, and the requests it speaks of: those of a class, or all."""
        return least_room(self.replayed)

    @property
    def gpu_hours(self) -> float:
        """GPU-hours over the trace where the fleet follows the rate of each hour; the spares run all the time."""
        answer = self.plan.answer
        working_s = sum(needed * lasts_s for needed, lasts_s in zip(self.needed, lasting_s(self.trace), strict=True))
        return (working_s + answer.spare * self.trace.span_s) / HOUR_S * answer.candidate.gpus

    @property
    def constant_gpu_hours(self) -> float:
        """GPU-hours over the trace of the whole fleet."""
        return self.plan.answer.gpus * self.trace.span_s / HOUR_S


def lengths_of(trace: Trace, which: slice | NDArray[np.bool_] = slice(None)) -> Lengths:
    """The lengths of a trace, or of some of its requests, as laws: those recorded, and how they go together."""
    isl, osl = TokenLaw.of(trace.isl[which]), TokenLaw.of(trace.osl[which])
    correlation = correlation_of(isl, osl, rank_correlation(trace.isl[which], trace.osl[which]), seed=0)
    return Lengths(isl.mean, osl.mean, isl.cv, osl.cv, correlation, isl, osl)


def busiest_rate_per_s(trace: Trace) -> float:
    """Requests/s of the busiest 60 minutes; for a trace shorter than an hour its mean. Raises TraceError if all
    requests arrive at once, which is no rate."""
    if not trace.span_s:
        raise TraceError("all requests of the trace arrive at once, which is no rate to size for: check its times")
    if trace.span_s < HOUR_S:
        return trace.rate_per_s
    hour = busiest_hour(trace)
    return max((hour.last - hour.first) / HOUR_S, trace.rate_per_s)


def peak_factor(trace: Trace) -> float:
    """The rate of the busiest hour over the mean, within the range of a question's peak factor."""
    return float(min(max(busiest_rate_per_s(trace) / trace.rate_per_s, 1.0), PEAK_FACTOR.high))


def class_slas(trace: Trace, sla: Sla, given: Sequence[str]) -> tuple[Sla, ...]:
    """The SLA of each class of a trace: `sla`, with the limits of ``NAME:ttft=p95:300ms,itl=none`` in place of its own.

    None where the trace has no classes. Raises ScenarioError for a class that the trace does not have, or twice.
    """
    own = dict.fromkeys(trace.classes, sla)
    seen = set[str]()
    for text in given:
        name, pairs = named_pairs("class", text, "NAME:ttft=p95:300ms,itl=none with a class of the trace")
        if name not in own:
            has = f"has {', '.join(map(quoted, own))}" if own else "names no classes"
            raise ScenarioError(f"class {quoted(name)}: the trace {has}")
        if name in seen:
            raise ScenarioError(f"class {quoted(name)} is there twice: put its limits into one")
        if unknown := [metric for metric in pairs if metric not in METRICS]:
            raise ScenarioError(f"class {quoted(name)}: {quoted(unknown[0])} is not one of {', '.join(METRICS)}")
        seen.add(name)
        limited = [metric for metric in METRICS if pairs.get(metric, NO_LIMIT) != NO_LIMIT]
        try:
            changed = [Limit.parse(metric, pairs[metric]) for metric in limited]
            own[name] = Sla(*(limit for limit in sla.given if limit.metric not in pairs), *changed)
        except ScenarioError as error:
            raise ScenarioError(f"class {quoted(name)}: {str(error).removeprefix('--')}") from None
    return tuple(own.values())


def loosest(slas: Sequence[Sla]) -> Sla:
    """The SLA that all requests together meet if each class meets its own: the loosest limit on each metric that every
    class limits.

    If a share p of every class is within L, so is p of all requests. The same holds of goodput, judged by the limits
    that every class has. Raises ScenarioError if no metric is limited in every class.
    """
    common = []
    for metric in LIMITED:
        limits = [limit for sla in slas if (limit := sla.on(metric))]
        if len(limits) == len(slas):
            lowest, longest_s = min(limit.percentile for limit in limits), max(limit.limit_s for limit in limits)
            common.append(Limit(metric, lowest, longest_s))
    if not (all(sla.goodput for sla in slas) and any(limit.metric in OF_REQUESTS for limit in common)):
        common = [limit for limit in common if limit.percentile and limit.metric != "goodput"]
    if not common:
        raise ScenarioError("the classes have no limit in common: give all of them one, for instance e2e=p95:600s")
    return Sla(*common)


def class_ways_out(
    rejected: Sequence[Rejection],
    question: Question,
    trace: Trace,
    slas: Sequence[Sla],
    candidates: Sequence[Candidate],
) -> tuple[tuple[str, Ways], ...]:
    """What the limits of each class (`slas`) would have to be, by its name, with the lengths of its own requests. A
    class without requests in the window is left out, and so are ITL and gaps of a class whose answers have one
    token."""
    shares = []
    for number, (name, sla) in enumerate(zip(trace.classes, slas, strict=True)):
        if (own := trace.of_class == number).any():
            lengths = lengths_of(trace, own)
            kept = [each for each in sla.given if not (lengths.without_gaps and each.metric in ("itl", "gap"))]
            if any(each.metric != "goodput" for each in kept):
                shares.append(Share(name, replace(question.workload, lengths=lengths), Sla(*kept)))
    return workloads_ways_out(rejected, question.model, shares, candidates, question.routing)


def plan_trace(
    question: Question,
    trace: Trace,
    candidates: Sequence[Candidate],
    rejected: Sequence[Rejection] = (),
    *,
    slas: Sequence[Sla] = (),
    prefix_cache: bool = False,
    seed: int = 0,
    progress: Progress = lambda _: None,
) -> TracePlan:
    """The fleets that meet the SLA over all requests of a trace, fewest GPUs first; the answer is replayed.

    `question` has the trace's lengths and the rate of its busiest hour (`lengths_of`, `busiest_rate_per_s`). Headroom h
    means that the fleet meets the SLA with the trace 1/(1 - h) times as fast. Candidates are surveyed by formula under
    Poisson arrivals at the rate at which the formula gives the best one what its replays say; then replayed, best
    first, until the fleet with the fewest GPUs is a replayed one.

    `slas`: those of the trace's classes (`class_slas`), all of which the replay must keep; the question then gets the
    `loosest` of the classes that have requests. Without them its own holds for all requests together.

    `prefix_cache`: engines keep the blocks of past turns, and prompts that repeat the turns before them find what is
    left of these (`replay`). The formula takes the tokens that an unbounded cache would hold as found; in the answer's
    question stand those that the replay found.

    Raises NoFeasiblePlan as `plan` does, and ScenarioError where only some GPUs have a price.
    """
    check_priced(question, (candidate.gpu for candidate in candidates))
    there = [own for number, own in enumerate(slas) if (trace.of_class == number).any()]
    sla, question = question.sla, replace(question, sla=loosest(there)) if slas else question
    left_out = list(rejected)
    if prefix_cache:
        trace = trace.continued()
        repeated = trace.repeated_tokens(KV_BLOCK_TOKENS)
        question = finding(question, repeated / int(trace.isl.sum(dtype=np.int64)))
        candidates, without = caching(candidates)
        left_out += without
    fitting, too_small = by_memory(trace, candidates)
    left_out += too_small
    replayed: dict[int, Fleet | Rejection] = {}  # by the candidate's identity: candidates have arrays and no hash

    def surveyed(rate_per_s: float) -> list[Fleet | Rejection]:
        workload = replace(question.workload, rate_per_s=rate_per_s)
        each = survey(replace(question, workload=workload), fitting)
        others = [one for one in each if isinstance(one, Rejection) or id(one.candidate) not in replayed]
        return [*(_at_rate(one, question.workload.rate_per_s, rate_per_s) for one in others), *replayed.values()]

    rate_per_s = question.workload.rate_per_s
    sized = surveyed(rate_per_s)
    runs: dict[int, Replays] = {}
    while (best := cheapest(question, sized)) and id(best.candidate) not in replayed:
        own = runs[id(best.candidate)] = Replays(question, trace, best.candidate, slas, seed, progress)
        seen = replayed[id(best.candidate)] = of_trace(own, best.working)
        sized[sized.index(best)] = seen
        if len(replayed) == 1 and isinstance(seen, Fleet) and seen.working != best.working:
            sized = surveyed(rate_per_s * seen.working / best.working)
    fleets = sorted((each for each in sized if isinstance(each, Fleet)), key=lambda fleet: cost(question, fleet))
    misses = sorted((*(miss for miss in sized if isinstance(miss, Rejection)), *left_out), key=distance_from_sla)
    if not fleets:
        asked = "the SLA of every class" if slas else str(question.sla)
        raise NoFeasiblePlan(f"no configuration meets {asked}", tuple(misses))
    answer = fleets[0]
    own = runs[id(answer.candidate)]
    final = own.at(answer.working, speed=1.0)
    question = finding(question, final.hit_rate()) if prefix_cache else question
    same_gpu = [candidate for candidate in fitting if candidate.gpu == answer.candidate.gpu]

    def seen_by_means(candidate: Candidate, replicas: int) -> Prediction:
        own = runs.get(id(candidate)) or Replays(question, trace, candidate, slas, seed, progress)
        return own.predicted(replicas)

    means = mean_based(question, same_gpu, seen_by_means)
    plan = Plan(question, tuple(fleets), tuple(misses), means)
    return TracePlan(plan, sla, trace, final, by_hour(question, trace, answer), sampling(own, answer.working))


def _at_rate(found: Fleet | Rejection, rate_per_s: float, surveyed_per_s: float) -> Fleet | Rejection:
    """A fleet that was surveyed at another rate, because Poisson arrivals at that one are as demanding as the trace."""
    if isinstance(found, Rejection):
        return found
    share = rate_per_s / surveyed_per_s
    rates = ("load_per_s", "capacity_per_s", "requests_per_s_per_replica")
    return replace(found, **{name: share * getattr(found, name) for name in rates})


def finding(question: Question, hit_rate: float) -> Question:
    """The question for prompts of which this share of the tokens is found in the prefix cache."""
    tokens = int(hit_rate * question.workload.lengths.isl)
    return replace(question, workload=replace(question.workload, prefix=Prefix(tokens, 1.0) if tokens else Prefix()))


def by_memory(trace: Trace, candidates: Sequence[Candidate]) -> tuple[list[Candidate], list[Rejection]]:
    """Candidates whose KV cache holds the longest request, and the others."""
    longest = int(np.max(np.add(trace.isl, trace.osl, dtype=np.int64)))
    fitting, others = [], []
    for each in candidates:
        rule = each.replica.batching
        blocks = -(-longest // rule.kv_block_tokens) * rule.kv_block_tokens
        if blocks <= rule.kv_tokens:
            fitting.append(each)
        else:
            why = f"the longest request of the trace has {longest:,} tokens, the KV cache {rule.kv_tokens:,}"
            others.append(Rejection.of(each, "memory", why))
    return fitting, others


@dataclass(slots=True)
class Replays:
    """Replays of one candidate's fleets, each done once."""

    question: Question
    trace: Trace
    candidate: Candidate
    slas: Sequence[Sla]
    seed: int
    progress: Progress
    done: dict[tuple[int, float], Replayed] = field(default_factory=dict)

    @property
    def speed(self) -> float:
        """Speed of the replays that a fleet must pass, for its headroom."""
        return 1 / (1 - self.question.headroom)

    def at(self, replicas: int, *, speed: float | None = None, to_the_end: bool = True) -> Replayed:
        """The replay on this many replicas; without `to_the_end` it may be unfinished."""
        pace = self.speed if speed is None else speed
        known = self.done.get((replicas, pace))
        if known is None or (to_the_end and not known.whole):
            workload = self.question.workload
            self.progress(f"replaying {len(self.trace):,} requests on {replicas} x {self.candidate.label}")
            known = self.done[replicas, pace] = replay(
                self.candidate.replica,
                self.trace,
                replace(workload, prefix=Prefix()) if self.candidate.replica.batching.prefix_cache else workload,
                self.question.sla,
                replicas=replicas,
                routing=self.question.routing,
                speed=pace,
                seed=self.seed,
                to_the_end=to_the_end,
                class_slas=self.slas,
            )
        return known

    def meets(self, replicas: int) -> bool:
        """True if the fleet passes with its headroom."""
        return self.at(replicas, to_the_end=False).meets

    @property
    def stable_per_s(self) -> float:
        """Requests/s up to which the formula has a steady state on one replica."""
        workload = self.question.workload
        return stable_rate_per_s(self.candidate.replica, workload.lengths, workload.prefix)

    def predicted(self, replicas: int) -> Prediction:
        """What users see at the trace's own pace."""
        return self.at(replicas, speed=1.0).prediction(self.question.workload.rate_per_s / replicas / self.stable_per_s)

    def fastest(self, replicas: int, fails_at: float) -> float:
        """The highest speed at which a fleet that `meets` passes, within `PACE`; it is known to fail at `fails_at`."""
        passes_at = self.speed
        while fails_at > (1 + PACE) * passes_at:
            speed = math.sqrt(passes_at * fails_at)
            if self.at(replicas, speed=speed, to_the_end=False).meets:
                passes_at = speed
            else:
                fails_at = speed
        return passes_at


def of_trace(runs: Replays, start: int) -> Fleet | Rejection:
    """The smallest fleet of a candidate whose replay meets the SLA, searched from `start` replicas."""
    question, candidate = runs.question, runs.candidate
    working = smallest(runs.meets, start)
    while working and not runs.at(working, speed=1.0).meets:  # slower, other requests share an iteration
        working = working + max(1, working // FINE) if working < FARTHEST * start else None
    if working is None:
        most = runs.at(start * FARTHEST, to_the_end=False)
        seen, limit = max(
            ((part, one) for part in most.parts for one in part.sla.limits),
            key=lambda pair: pair[0].exceeding_share(pair[1]) / pair[1].may_exceed,
        )
        miss = SlaMissed(limit, seen.value_s(limit), simulated=True)
        refused = sla_rejection(candidate, miss, question.workload.lengths)
        return replace(refused, why=f"{seen.name}: {refused.why}") if seen.name else refused
    rate_per_s, stable_per_s = question.workload.rate_per_s, runs.stable_per_s
    predicted = runs.predicted(working)
    low, high = capacity_band(candidate, question.setting(working))
    one_fewer_fails_at = runs.speed * working / (working - 1) if working > 1 else math.inf
    speed = runs.fastest(working, min(one_fewer_fails_at, stable_per_s * working / rate_per_s))
    capacity_per_s = rate_per_s * speed / working
    seen, limit = least_room(runs.at(working, speed=1.0))
    return Fleet(
        candidate=candidate,
        working=working,
        spare=question.spare,
        load_per_s=rate_per_s / working,
        capacity_per_s=capacity_per_s,
        requests_per_s_per_replica=capacity_per_s * (1 - question.headroom),
        predicted=predicted,
        binding=limit,
        of_class=(seen.name, seen.prediction(predicted.utilization)) if seen.name else None,
        working_low=min(question.replicas_at(capacity_per_s * high), working),
        working_high=max(question.replicas_at(capacity_per_s * low), working) if low > 0 else None,
        stable_per_s=stable_per_s,
    )


def least_room(found: Replayed) -> tuple[Replayed, Limit]:
    """The limit that a replay comes nearest to, and the requests it speaks of: those of a class, or all."""
    each = ((seen, limit) for seen in found.parts for limit in seen.sla.limits)
    return max(each, key=lambda one: one[0].value_s(one[1]) / one[1].limit_s)


def smallest(meets: Callable[[int], bool], start: int) -> int | None:
    """The least count that meets, if more never do worse; within one part in `FINE`; None up to `FARTHEST` x start.

    >>> smallest(lambda count: count >= 37, 20), smallest(lambda count: count >= 1, 9), smallest(lambda _: False, 2)
    (37, 1, None)
    """
    return least(meets, start, FARTHEST * start, FINE)


def by_hour(question: Question, trace: Trace, fleet: Fleet) -> tuple[int, ...]:
    """Working replicas that the rate of each hour needs, by formula; the busiest hour needs all. Rates are relative to
    that hour's: the busiest 60 minutes, for which the fleet is sized, may lie in two hours and be busier."""
    planned = question.workload
    rates = [
        (hour.last - hour.first) / max(lasts_s, 60.0)
        for hour, lasts_s in zip(hours(trace), lasting_s(trace), strict=True)
    ]
    most_per_s = min(max(rates), planned.rate_per_s)

    def needed(rate_per_s: float) -> int:
        if rate_per_s >= most_per_s:
            return fleet.working
        then = replace(planned, rate_per_s=planned.rate_per_s * rate_per_s / most_per_s)
        return min(resized(replace(question, workload=then), question, fleet)[0], fleet.working)

    return tuple(map(needed, rates))


def lasting_s(trace: Trace) -> tuple[float, ...]:
    """Seconds of each hour between the first request of the trace and the last."""
    first_s, last_s = float(trace.arrival_s[0]), float(trace.arrival_s[-1])
    return tuple(min(hour.until_s, last_s) - max(hour.from_s, first_s) for hour in hours(trace))


def sampling(runs: Replays, working: int) -> Sampling | None:
    """Working replicas for other traffic of the kind: hours, or days where there are enough, drawn with replacement.

    The block bootstrap (Kuensch 1989, Annals of Statistics 17): requests of one block go together, blocks are taken as
    independent. None for limits on gaps alone and traces of fewer than `FEWEST_BLOCKS` hours.
    """
    from_s = np.array([hour.from_s for hour in hours(runs.trace)])
    days = np.floor((from_s - from_s[0]) / DAY_S).astype(np.int64)
    of_day = days[-1] + 1 >= FEWEST_BLOCKS
    block = days if of_day else np.arange(len(from_s))
    blocks = int(block[-1]) + 1
    limits = [limit for part in runs.at(working).parts for limit in limits_on_requests(part.sla)]
    if blocks < FEWEST_BLOCKS or not limits:
        return None
    drawn = np.random.default_rng(runs.seed).multinomial(blocks, [1 / blocks] * blocks, DRAWS)
    allowed = np.array([limit.may_exceed for limit in limits])

    def serves(share: float, replicas: int) -> bool:
        """True if a fleet serves this share of the resampled traces."""
        each = [judged(part.tally, part.sla) for part in runs.at(replicas).parts]
        beyond, counted = (summed(np.hstack(of), block, blocks) for of in zip(*each, strict=True))
        return bool(np.mean(np.all(drawn @ beyond <= drawn @ counted * allowed + 1e-9, axis=1)) >= share)

    low, high = (smallest(partial(serves, share), working) for share in BAND)
    return Sampling(low or working, high, blocks, "days" if of_day else "hours")


def summed(of_hours: Counts, block: Counts, blocks: int) -> Counts:
    """Rows of hours, added by block; shape (blocks, columns)."""
    total = np.zeros((blocks, of_hours.shape[1]), np.int64)
    np.add.at(total, block, of_hours)
    return total
