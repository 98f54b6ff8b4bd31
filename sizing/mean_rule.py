"""What sizing by mean latency would buy, and what its users would see: the usual rule, shown beside our answer."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from sizing.edge import run_at
from sizing.engine import Replica
from sizing.numbers import milliseconds
from sizing.plans import Candidate, MeanBased
from sizing.prediction import Prediction
from sizing.question import Question, Setting
from sizing.simulator import Simulated, measure_closed
from sizing.workload import Lengths, Sla

REQUESTS_PER_USER = 12
SEEN_REQUESTS = 60_000
"""Requests of the run that shows what users would see: it is a comparison and decides nothing."""


def mean_based(question: Question, candidates: Iterable[Candidate]) -> MeanBased | None:
    """The fewest GPUs by the rule "requests/s at the highest concurrency whose mean latencies meet the limits".

    The rule takes percentile limits for limits on means, users that wait for each other (closed loop) for random
    arrivals, and keeps neither headroom nor spares; it knows no single gaps, so that a limit on these is one on the
    mean ITL to it. None when no candidate meets the limits even at one user.
    """
    counts = [count for candidate in candidates if (count := fewest(question, candidate))]
    if not counts:
        return None
    replicas, candidate = min(counts, key=lambda count: count[0] * count[1].gpus)
    gpus = replicas * candidate.gpus
    setting = Setting(question.workload, question.sla, question.routing, replicas)
    load_per_s = question.workload.rate_per_s / replicas
    seen = run_at(candidate.replica, setting, load_per_s, SEEN_REQUESTS).prediction()
    start = f"Sizing by mean latency gives {gpus} GPUs ({replicas} × TP{candidate.tp}, no headroom or spare):"
    blind = " The rule sees no single gaps: it takes the limit on them for one on the mean ITL."
    told = f"{start} {what_users_see(question, seen)}.{blind if question.sla.gap else ''}"
    return MeanBased(gpus, candidate.tp, seen, told)


def what_users_see(question: Question, seen: Prediction) -> str:
    """What becomes of the SLA in a fleet bought by the rule, in a few words."""
    if seen.meets(question.sla):
        return "they meet the SLA"
    arrivals = {"poisson": "Poisson", "gamma": "bursty"}.get(question.workload.arrivals.kind, "evenly spaced")
    if seen.saturated:
        return f"with {arrivals} arrivals their queues grow without end"
    limit = seen.binding(question.sla)
    routing, name = question.routing.replace("_", " "), limit.name
    value, allowed = milliseconds(seen.value_s(limit)), milliseconds(limit.limit_s)
    return f"with {arrivals} arrivals and {routing} routing {name} would be {value}, the limit is {allowed}"


def fewest(question: Question, candidate: Candidate) -> tuple[int, Candidate] | None:
    """Replicas of one candidate by the rule of means; None when one user alone is over a limit."""
    rate_per_s = most_per_s(candidate.replica, question.workload.lengths, question.sla)
    return (math.ceil(question.workload.rate_per_s / rate_per_s), candidate) if rate_per_s else None


@lru_cache(maxsize=1024)
def most_per_s(replica: Replica, lengths: Lengths, sla: Sla) -> float:
    """Requests/s at the highest concurrency whose means meet the limits; 0 when those of one user do not."""
    levels = range(1, replica.batching.max_batch_size + 1)
    fits = bisect_left(levels, True, key=lambda users: not means_meet(closed_loop(replica, lengths, users), sla))
    return closed_loop(replica, lengths, levels[fits - 1]).requests_per_s if fits else 0.0


def closed_loop(replica: Replica, lengths: Lengths, users: int) -> Simulated:
    """`users` that each send a request when the last is answered, started over one request's time."""
    isl, osl = lengths.sample(REQUESTS_PER_USER * users, np.random.default_rng(0))
    law = replica.law
    alone_s = law.prefill_alone_s(lengths.isl) + lengths.osl * law.decode_s(1, lengths.isl)
    return measure_closed(replica, users, isl, osl, ramp_s=alone_s)


def means_meet(run: Simulated, sla: Sla) -> bool:
    """True when the mean of every metric is within the limit meant for its percentile; of gaps it is the mean ITL."""
    prediction = run.prediction()
    return all(
        prediction.of("itl" if limit.metric == "gap" else limit.metric).mean_s <= limit.limit_s for limit in sla.limits
    )
