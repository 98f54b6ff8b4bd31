"""Explanations of a count: candidates left out and how near they came, cautions, and the rule of means."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

import numpy as np

from sizing import catalog
from sizing.edge import BY_FORMULA, BY_SIMULATION, IDLE, NEAR, Method, SlaMissed, load_response, predict_at, run_at
from sizing.engine import Replica
from sizing.errors import CatalogueError, RequestTooLong
from sizing.numbers import gpus, percent
from sizing.plans import Candidate, Fleet, MeanBased, Rejection
from sizing.prediction import Caution, CautionKind, Prediction
from sizing.question import Question, Setting
from sizing.queueing import disagreement, stable_rate_per_s
from sizing.simulator import Simulated, measure_closed
from sizing.simulator.sampling import cached_tokens
from sizing.workload import METRICS, Lengths, Limit, Metric, Prefix, Sla, metric_name

Sized = TypeVar("Sized")


NOT_IN_POINTS: Mapping[CautionKind, tuple[str, tuple[Metric, ...]]] = {
    "no_ttft": ("no TTFT was measured", ("ttft", "e2e")),
    "all_queued": ("users waited at every level measured", ("ttft", "e2e")),
    "unmeasured_isl": ("no such prompts were measured", ("ttft", "e2e")),
    "no_itl": ("only answers of one token were measured", ("itl", "gap", "e2e")),
}
"""Why points barely constrain a latency, and which, by the caution of a fit that says more."""


def sla_rejection(candidate: Candidate, missed: SlaMissed, lengths: Lengths) -> Rejection:
    """A candidate whose replica misses a limit even with hardly any load; and why its points may not tell."""
    limit, by = missed.limit, "simulation" if missed.simulated else "formula"
    why = (
        f"misses {metric_name(limit.metric)} even at {percent(IDLE)} of the load that it carries: "
        f"{idle_name(limit, lengths)} is {limit.said(missed.alone)} by {by}, the limit is {limit.said(limit.limit_s)}"
    )
    told = [NOT_IN_POINTS[each.kind] for each in candidate.warnings if each.kind in NOT_IN_POINTS]
    doubts = [f"hardly known, as {doubt}" for doubt, metrics in told if limit.metric in metrics]
    return Rejection.of(candidate, "sla", "; ".join([why, *doubts]), limit, missed.alone)


def idle_name(limit: Limit, lengths: Lengths) -> str:
    """What a limit refers to on an idle replica: requests of equal lengths take equally long there, so no percentile is
    named below p99."""
    alike = lengths.fixed and limit.percentile < 99 and limit.metric != "gap"
    return metric_name(limit.metric) if alike else limit.name


def jump_rejection(question: Question, candidate: Candidate, replicas: int, predicted: Prediction) -> Rejection:
    """A candidate that exceeds a limit at the planned load, although it meets it at some higher load."""
    limit = predicted.binding(question.sla)
    value = predicted.value_s(limit)
    why = f"unsteady: {limit.name} is {predicted.said(limit)} with {replicas} replicas, the limit is {limit.allowed}"
    return Rejection.of(candidate, "sla", why, limit, value)


def cost_rejection(candidate: Candidate, least: int, best: float) -> Rejection:
    """A candidate that cannot win: it needs `least` GPUs at its stable rate, another fleet of its GPU needs `best`."""
    why = (
        f"needs at least {gpus(least)}, headroom and spares included, just to carry the load; "
        f"{best:,.0f} of the same GPU meet the SLA by formula"
    )
    return Rejection.of(candidate, "cost", why)


def engine_rejection(candidate: Candidate, faster: str) -> Rejection:
    """An engine that is slower than another, on a configuration that is not the best of its GPU."""
    why = f"not sized: {faster} takes less time on this configuration by its kernel timings; choose {candidate.engine}"
    return Rejection.of(candidate, "engine", f"{why} to size it")


def first_look(size: Callable[[Method], Sized | Rejection]) -> Sized | Rejection:
    """The result of `size` by formula; by simulation if the formula puts an idle replica just over a limit."""
    sized = size(BY_FORMULA)
    return size(BY_SIMULATION) if isinstance(sized, Rejection) and near_miss(sized) else sized


def near_miss(rejection: Rejection) -> bool:
    """True when the formula may have been wrong to reject."""
    over, near_enough = distance_from_sla(rejection)
    return not over and near_enough < NEAR


def distance_from_sla(rejection: Rejection) -> tuple[bool, float]:
    """Nearest miss of the SLA first, then what could not be sized at all."""
    if rejection.limit is None or rejection.nearest_s is None:
        return True, 0.0
    return False, rejection.nearest_s / rejection.limit.limit_s


NEAR_FLOOR = 1.25
"""A limit within this factor of its value on an idle replica leaves almost no room for queueing."""


def remarks(
    candidate: Candidate, setting: Setting, load_per_s: float, predicted: Prediction, stability_binds: bool
) -> Iterator[Caution]:
    """No cautions if all is well; `predicted` holds at `load_per_s` requests/s per replica.

    Cautions: a limit near the latency of an idle replica, which no number of replicas lowers; requests longer than the
    model accepts; a TTFT of which the server's front end, outside the GPUs, takes a large share; formula and simulation
    that contradict each other, so that neither is to be trusted blindly.
    """
    limit = predicted.binding(setting.sla)
    floor_s = load_response(candidate.replica, setting).idle.value_s(limit)
    if limit.limit_s <= NEAR_FLOOR * floor_s and not stability_binds and limit.metric != "goodput":
        name = idle_name(limit, setting.workload.lengths)
        times_s = {"limit_s": limit.limit_s, "floor_s": floor_s}
        yield Caution("near_floor", {"limit": name, "metric": limit.metric, **times_s})
    yield from beyond_context(candidate.model, setting.workload.lengths)
    yield from front_end(candidate.replica, setting.workload.lengths, load_per_s, predicted)
    if predicted.method == "simulation":
        by_formula = predict_at(candidate.replica, setting, load_per_s)
        if found := disagreement(by_formula, predicted):
            yield found


LEAST_BEYOND, SAMPLED = 0.001, 20_000
"""Share of requests longer than the model's context from which a caution is given; requests sampled."""


def beyond_context(model: str, lengths: Lengths) -> Iterator[Caution]:
    """Whether lengths that vary exceed the context of the catalogue's model."""
    try:
        tokens = catalog.model(model).max_context_tokens or math.inf
    except CatalogueError:
        return
    isl, osl = lengths.sample(1 if lengths.fixed else SAMPLED, np.random.default_rng(0))
    longer = isl + osl > tokens
    if longer.mean() >= LEAST_BEYOND:
        facts = {"share": float(longer.mean()), "of_tokens": float(isl[longer].sum() / isl.sum()), "tokens": tokens}
        yield Caution("beyond_context", facts)


SENDING_SHARE = 0.2
"""Share of the mean TTFT spent in the front end from which a caution is given."""


def front_end(replica: Replica, lengths: Lengths, load_per_s: float, predicted: Prediction) -> Iterator[Caution]:
    """The front end's share of the mean TTFT at this load, if it is large."""
    ttft_s, decoding_s = predicted.ttft.mean_s, predicted.e2e.mean_s - predicted.ttft.mean_s
    tokens_per_s = load_per_s * lengths.osl
    sending_s = float(replica.law.sending_s(load_per_s * decoding_s + 1, tokens_per_s))
    if SENDING_SHARE * ttft_s <= sending_s < math.inf:
        yield Caution("front_end", {"sending_s": sending_s, "ttft_s": ttft_s, "tokens_per_s": tokens_per_s})


LONGER = 1.25
"""Factor on the output tokens at which longer answers are checked for needing fewer GPUs."""
MUCH = 0.1
"""Share of the time that a limit allows all gaps of an answer: if one prompt's stall is less, it does not matter."""


def dilution(fleet: Fleet, setting: Setting, working_for: Callable[[float], int]) -> Iterator[Caution]:
    """Whether longer answers would need fewer GPUs, by formula: a limit on means over tokens, or on a share of them,
    then allows longer stalls. `working_for`: working replicas at a capacity in requests/s.

    Checked only if the stall of one prompt is at least `MUCH` of that time: for outputs of a few tokens.
    """
    limit, lengths = fleet.binding, setting.workload.lengths
    stall_s = fleet.candidate.replica.law.prefill_alone_s(lengths.isl)
    if limit.metric not in ("itl", "gap") or fleet.stability_binds:
        return
    if stall_s < MUCH * limit.limit_s * (lengths.osl - 1):
        return
    longer = math.ceil(LONGER * lengths.osl)
    workload = replace(setting.workload, lengths=replace(lengths, osl=longer))
    responses = [
        load_response(fleet.candidate.replica, each) for each in (setting, replace(setting, workload=workload))
    ]
    as_it_is, then = (response.rate_per_s(0.0) for response in responses)
    if as_it_is == 0 or then <= as_it_is:
        return
    gpus = (working_for(fleet.capacity_per_s * then / as_it_is) + fleet.spare) * fleet.candidate.gpus
    if gpus < fleet.gpus:
        counts = {"osl": lengths.osl, "gpus": fleet.gpus, "longer_osl": longer, "longer_gpus": gpus}
        yield Caution("diluted", {"metric": limit.metric, "gap_limited": setting.sla.gap is not None, **counts})


# --- What sizing by mean latency would buy, and what its users would see: the usual rule, shown beside our answer

REQUESTS_PER_USER = 12
SEEN_REQUESTS = 60_000
"""Requests of the run that shows what users would see: it is a comparison and decides nothing."""


BEYOND_STABLE = 1.1
"""Factor on the stable rate that no closed loop exceeds: candidates that need more GPUs even so are not simulated."""


def mean_based(
    question: Question, candidates: Iterable[Candidate], replayed: Callable[[Candidate, int], Prediction] | None = None
) -> MeanBased | None:
    """The fewest GPUs by the rule "requests/s at the highest concurrency whose mean latencies meet the limits".

    The rule treats percentile limits, and the limits behind goodput, as limits on means, and random arrivals as users
    that wait for each other (closed loop), and keeps neither headroom nor spares; it ignores single gaps, so a limit on
    these becomes one on the mean ITL. None when no candidate meets the limits even at one user, or none has a KV cache
    for the longest request.

    `replayed`: what a trace sees on so many replicas of a candidate; else the question's arrivals are simulated.
    """
    rate_per_s = question.workload.rate_per_s

    def at_least(candidate: Candidate) -> float:
        stable_per_s = stable_rate_per_s(candidate.replica, question.workload.lengths, question.workload.prefix)
        return rate_per_s / (BEYOND_STABLE * stable_per_s) * candidate.gpus

    counts: list[tuple[int, int, int, Candidate]] = []
    for place, candidate in sorted(enumerate(candidates), key=lambda each: at_least(each[1])):
        if counts and at_least(candidate) > min(counts)[0]:
            break
        if count := fewest(question, candidate):
            counts.append((count[0] * candidate.gpus, place, *count))
    for *_, replicas, candidate in sorted(counts, key=lambda count: count[:2]):
        setting = Setting(question.workload, question.sla, question.routing, replicas)
        bought = replicas * candidate.gpus, replicas, candidate.layout
        if replayed:
            return MeanBased(*bought, replayed(candidate, replicas), replayed=True)
        with suppress(RequestTooLong):
            seen = run_at(candidate.replica, setting, rate_per_s / replicas, SEEN_REQUESTS)
            return MeanBased(*bought, seen.prediction(question.sla.within))
    return None


def fewest(question: Question, candidate: Candidate) -> tuple[int, Candidate] | None:
    """Replicas of one candidate by the rule of means; None when even one user exceeds a limit, or the longest request
    exceeds the KV cache."""
    workload = question.workload
    try:
        rate_per_s = most_per_s(candidate.replica, workload.lengths, workload.prefix, question.sla)
    except RequestTooLong:
        return None
    return (math.ceil(question.workload.rate_per_s / rate_per_s), candidate) if rate_per_s else None


@lru_cache(maxsize=1024)
def most_per_s(replica: Replica, lengths: Lengths, prefix: Prefix, sla: Sla) -> float:
    """Requests/s at the highest concurrency whose means meet the limits; 0 when those of one user do not."""

    def loop(users: int) -> Simulated:
        return closed_loop(replica, lengths, prefix, users)

    levels = range(1, replica.batching.max_batch_size + 1)
    fits = bisect_left(levels, True, key=lambda users: not means_meet(loop(users), sla))
    return loop(levels[fits - 1]).requests_per_s if fits else 0.0


def closed_loop(replica: Replica, lengths: Lengths, prefix: Prefix, users: int) -> Simulated:
    """`users` that each send a request when the last is answered, with starts spread over one request's time."""
    rng = np.random.default_rng(0)
    isl, osl = lengths.sample(REQUESTS_PER_USER * users, rng)
    law = replica.law
    alone_s = law.prefill_alone_s(lengths.isl) + lengths.osl * law.decode_s(1, lengths.isl)
    cached = cached_tokens(prefix, isl, rng) if prefix.tokens else None
    return measure_closed(replica, users, isl, osl, ramp_s=alone_s, cached=cached)


def means_meet(run: Simulated, sla: Sla) -> bool:
    """True when the mean of every metric is within the limit meant for its percentile; of gaps it is the mean ITL."""
    prediction = run.prediction()
    on = ((metric, sla.on(metric)) for metric in METRICS)
    return all(
        limit is None or prediction.of("itl" if metric == "gap" else metric).mean_s <= limit.limit_s
        for metric, limit in on
    )
