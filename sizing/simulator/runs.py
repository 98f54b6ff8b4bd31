"""Discrete-event simulation of replicas under load: what each request would experience.

Open loops: a workload offered to a fleet of equal replicas (`simulate`) or of different ones (`simulate_fleet`), and
given arrivals and lengths (`simulate_trace`); several workloads on one fleet; closed.py has the closed loop. The
scheduler is in scheduler.py; it is exact for the law it is given: tests compare it with queueing theory and a naive
simulator that works sequence by sequence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sizing.engine import Replica
from sizing.errors import ScenarioError
from sizing.prediction import Caution
from sizing.simulator.closed import backlog_rate_per_s, fleet_utilization, simulated_stable_rate_per_s
from sizing.simulator.fleet import UNWATCHED, Failure, serve
from sizing.simulator.result import Simulated, Watch, open_loop
from sizing.simulator.sampling import (
    checked_requests,
    draw_steps,
    prefixes_found,
    prepare,
    sample_requests,
    shared_prefixes,
)
from sizing.simulator.state import CANCELLED, MAX_REQUESTS, NO_PREFIXES, SERVED, Requests, requests_of
from sizing.workload import ROUTINGS, Routing, Seconds, Tokens, Workload

MOST_REPLICAS = 32
"""A counting router over more replicas than this behaves as over this many, at the same load for each."""
COUNTING: tuple[Routing, ...] = ("power_of_two", "least_outstanding")


def simulate(
    replica: Replica,
    workload: Workload,
    *,
    replicas: int = 1,
    routing: Routing = "random",
    requests: int = 100_000,
    seed: int = 0,
    warmup: float = 0.1,
    watch: Watch = UNWATCHED,
) -> Simulated:
    """Offer a workload to a fleet: open loop, `requests` requests, excluding the first share `warmup` from the results.

    The cost does not grow with the fleet. Behind *random* routing one replica sees the thinned stream (Poisson stays
    Poisson), behind *round_robin* every R-th request (Poisson becomes Erlang-R): one replica stands for all, exactly.
    *power_of_two* and *least_outstanding* simulate up to 32 replicas at the load each would have; a larger fleet
    smooths bursts a little more. Two runs with one seed at two rates use the same random numbers, so that their
    difference is the load's.

    Raises ScenarioError for a request longer than the KV cache, and for numbers out of range.

    >>> from sizing.engine import StepLaw
    >>> from sizing.workload import Lengths
    >>> law = StepLaw(weights_s=4.8e-3, overhead_s=1e-3, token_s=20e-6, sequence_s=10e-6, kv_token_s=49e-9)
    >>> run = simulate(Replica(law), Workload(Lengths(isl=1000, osl=100), rate_per_s=10), requests=5000)
    >>> run.saturated, round(run.utilization, 1)
    (False, 0.3)
    """
    check_question(replicas, routing, requests, warmup)
    rng = np.random.default_rng(seed)
    replica = replica.with_queue(workload.queue_limit)
    together = run_together(replicas, routing)
    run = sample_requests(replica, workload, requests, rng, replicas=replicas, together=together, routing=routing)
    shared = shared_prefixes(workload)
    seen = serve([replica] * together, run, routing, rng, watch=watch, warmup=warmup, prefixes=shared)
    utilization = (
        workload.rate_per_s / replicas / simulated_stable_rate_per_s(replica, workload.lengths, workload.prefix)
    )
    result = replace(open_loop(run, utilization, warmup=warmup), watched=seen)
    return whole_fleet(result, replicas / together, herding(routing, together, workload.lengths.alike))


def simulate_fleet(
    replicas: Sequence[Replica],
    workload: Workload,
    *,
    routing: Routing = "random",
    failures: Sequence[Failure] = (),
    requests: int = 100_000,
    seed: int = 0,
    warmup: float = 0.1,
    watch: Watch = UNWATCHED,
) -> Simulated:
    """Offer a workload to replicas that may differ and may fail; every one is simulated.

    A request whose replica fails restarts on another, chosen by the routing; its latency counts from its first arrival;
    while all replicas are down the router holds requests. `utilization` ignores failures, see `fleet_utilization`.

    Raises ScenarioError for a request that one of the replicas never fits, for replicas that speculate or end outputs
    differently (a request's work would depend on the replica it is routed to), and for impossible failures.

    >>> from sizing.engine import StepLaw
    >>> from sizing.workload import Lengths
    >>> law = StepLaw(weights_s=4.8e-3, overhead_s=1e-3, token_s=20e-6, sequence_s=10e-6, kv_token_s=49e-9)
    >>> fleet = [Replica(law), Replica(law), Replica(law.scaled(1.5))]
    >>> load = Workload(Lengths(isl=1000, osl=100), rate_per_s=20)
    >>> even = simulate_fleet(fleet, load, routing="least_outstanding", requests=5000)
    >>> hit = simulate_fleet(fleet, load, routing="least_outstanding", failures=[Failure(0, 60, 120)], requests=5000)
    >>> bool(even.e2e_s.mean() < hit.e2e_s.mean())
    True
    """
    check_question(len(replicas), routing, requests, warmup)
    rng = np.random.default_rng(seed)
    if len({(member.speculation, member.batching.max_tokens) for member in replicas}) > 1:
        raise ScenarioError("the replicas of a fleet must have the same speculation and the same max_tokens")
    tightest = min(replicas, key=lambda member: member.batching.kv_tokens)
    run = sample_requests(tightest, workload, requests, rng)
    queued, shared = [member.with_queue(workload.queue_limit) for member in replicas], shared_prefixes(workload)
    seen = serve(queued, run, routing, rng, failures, watch, warmup=warmup, prefixes=shared)
    stable_per_s = [simulated_stable_rate_per_s(member, workload.lengths, workload.prefix) for member in replicas]
    utilization = fleet_utilization(workload.rate_per_s, stable_per_s, routing)
    result = open_loop(run, utilization, warmup=warmup)
    return replace(result, warnings=herding(routing, len(replicas), workload.lengths.alike), watched=seen)


def simulate_trace(
    replica: Replica,
    arrival_s: Seconds,
    isl: Tokens,
    osl: Tokens,
    *,
    replicas: int = 1,
    routing: Routing = "random",
    workload: Workload | None = None,
    seed: int = 0,
    watch: Watch = UNWATCHED,
) -> Simulated:
    """A fleet serves requests that arrive at `arrival_s` (ascending seconds) with these lengths; all are measured.

    Every replica is simulated. `workload`: provides the prefix that requests find, their patience and the limit of the
    queue; none by default. `seed` matters to a routing that draws, to prefixes found by chance, and to speculation.
    Raises ScenarioError if the arrays do not match, times decrease, or a request is longer than the KV cache.
    """
    check_question(replicas, routing)
    arrivals = np.ascontiguousarray(arrival_s, np.float64)
    if arrivals.shape != np.shape(isl) or not np.all(np.isfinite(arrivals)) or np.any(np.diff(arrivals) < 0):
        raise ScenarioError("arrival_s must hold one finite time per request, in ascending order")
    rng = np.random.default_rng(seed)
    run, shared = checked_requests(replica, isl, osl, arrivals), NO_PREFIXES
    if workload is None:
        draw_steps(replica, run, rng)
    else:
        replica = replica.with_queue(workload.queue_limit)
        prepare(replica, workload, run, rng, rng)
        shared = shared_prefixes(workload)
    seen = serve([replica] * replicas, run, routing, rng, watch=watch, prefixes=shared)
    span_s = arrivals[-1] - arrivals[0]
    utilization = 0.0
    if len(run) > 1:
        stable_per_s = replicas * backlog_rate_per_s(replica, run["isl"], run["osl"], run["cached_tokens"])
        utilization = (len(run) - 1) / span_s / stable_per_s if span_s else np.inf
    return replace(open_loop(run, utilization, drain=False), watched=seen)


def run_together(replicas: int, routing: Routing) -> int:
    """Replicas that `simulate` runs: a router that counts needs several, behind others one stands for all."""
    return min(replicas, MOST_REPLICAS) if routing in COUNTING else 1


def simulated_replicas(replicas: int, routing: Routing) -> int:
    """Size of the simulated fleet that represents `replicas` replicas."""
    return min(replicas, MOST_REPLICAS) if routing in COUNTING else replicas


def check_question(replicas: int, routing: str, requests: int = 10, warmup: float = 0.0) -> None:
    """Raise ScenarioError for numbers out of range."""
    if replicas < 1:
        raise ScenarioError(f"replicas must be 1 or more, got {replicas}")
    if routing not in ROUTINGS:
        raise ScenarioError(f"routing {routing!r} is not one of {', '.join(ROUTINGS)}")
    if requests < 10:
        raise ScenarioError(f"requests to simulate must be 10 or more, got {requests}")
    if requests >= MAX_REQUESTS:
        raise ScenarioError(
            f"{requests:,} requests are more than one run can hold ({MAX_REQUESTS - 1:,}): simulate fewer"
        )
    if not 0 <= warmup < 1:
        raise ScenarioError(f"warmup must be a share from 0 to below 1, got {warmup:g}")


def whole_fleet(result: Simulated, times: float, warnings: tuple[Caution, ...]) -> Simulated:
    """The result of a fleet `times` as large as the part that was simulated."""
    return replace(
        result,
        requests_per_s=result.requests_per_s * times,
        mean_in_flight=result.mean_in_flight * times,
        warnings=warnings,
    )


def herding(routing: Routing, replicas: int, equal_answers: bool) -> tuple[Caution, ...]:
    """A caution for the routing that can do worse although it knows more."""
    herds = routing == "least_outstanding" and replicas > 1 and equal_answers
    return (Caution("herding"),) if herds else ()


# --- Several workloads on one fleet: interactive users beside a batch job, short questions beside long documents


@dataclass(frozen=True, slots=True)
class Stream:
    """One of several workloads on a fleet; among waiting requests, those of priority 0 are served first, then 1, ..."""

    workload: Workload
    priority: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.priority <= 15:
            raise ScenarioError(f"priority must be from 0 (first) to 15, got {self.priority}")
        if self.workload.queue_limit:
            raise ScenarioError("several workloads share one queue: set max_waiting of the replica, not queue_limit")


def simulate_streams(
    replica: Replica,
    streams: Sequence[Stream],
    *,
    replicas: int = 1,
    routing: Routing = "random",
    requests: int = 100_000,
    seed: int = 0,
    warmup: float = 0.1,
    watch: Watch = UNWATCHED,
) -> tuple[Simulated, ...]:
    """Offer several workloads to one fleet of equal replicas; a result for each, in the order given.

    `requests` in all, shared in proportion to the rates, over the time for which all streams last. Behind *random*
    routing one replica stands for all: a sum of thinned streams is the thinned sum. Other routings simulate up to 32
    replicas at the load each would have. One seed at all rates times a factor uses the same random numbers.
    Rate and requests in flight are the stream's own; `utilization` counts the streams that go before it or with it,
    because lower priorities barely affect it: an overloaded fleet may still be steady for its first priorities.

    Raises ScenarioError as `simulate` does, and for a stream so rare that fewer than 10 of the requests are its own.

    >>> from sizing.engine import StepLaw
    >>> from sizing.workload import Lengths
    >>> law = StepLaw(weights_s=4.8e-3, overhead_s=1e-3, token_s=20e-6, sequence_s=10e-6, kv_token_s=49e-9)
    >>> chat, summaries = Workload(Lengths(300, 200), rate_per_s=6), Workload(Lengths(8000, 100), rate_per_s=2)
    >>> first, second = simulate_streams(Replica(law), [Stream(chat), Stream(summaries, priority=1)], requests=8000)
    >>> bool(first.ttft_s.mean() < second.ttft_s.mean())
    True
    """
    check_question(replicas, routing, requests, warmup)
    if not streams:
        raise ScenarioError("give at least one stream")
    together = 1 if routing == "random" else min(replicas, MOST_REPLICAS)
    run, stream_of = _merged(replica, streams, requests, replicas, together, seed)
    rng = np.random.default_rng([seed, len(streams)])
    run["stream"] = stream_of
    seen = serve(
        [replica] * together,
        run,
        routing,
        rng,
        watch=watch,
        warmup=warmup,
        streams=len(streams),
        prefixes=shared_prefixes(*(stream.workload for stream in streams)),
        by_priority=len({stream.priority for stream in streams}) > 1,
    )
    lengths = {stream.workload.lengths for stream in streams}
    alike = all(each.alike for each in lengths) and len({each.osl for each in lengths}) == 1
    warnings = herding(routing, together, alike)
    stable_of = {}
    for priority in {stream.priority for stream in streams}:
        ahead = run["priority"] <= priority
        isl, osl, cached = (run[name][ahead] for name in ("isl", "osl", "cached_tokens"))
        stable_of[priority] = backlog_rate_per_s(replica, isl, osl, cached)
    results = []
    for number, stream in enumerate(streams):
        rate_per_s = sum(other.workload.rate_per_s for other in streams if other.priority <= stream.priority)
        utilization = rate_per_s / replicas / stable_of[stream.priority]
        result = open_loop(run.take(np.flatnonzero(stream_of == number)), utilization, warmup=warmup)
        own_gaps = seen.measured_gaps[number : number + 1]
        result = replace(result, watched=replace(seen, measured_gaps=own_gaps))
        results.append(whole_fleet(result, replicas / together, warnings))
    return tuple(results)


FEWEST_OF_STREAM = 10
"""Requests of a stream, of several that are simulated together, whose latencies can be measured at all."""


def _merged(
    replica: Replica, streams: Sequence[Stream], requests: int, replicas: int, together: int, seed: int
) -> tuple[Requests, Tokens]:
    """All streams, as `together` of `replicas` replicas see them, by time up to the end of the first that ends; and the
    number of the stream that each request belongs to."""
    rate_per_s = sum(stream.workload.rate_per_s for stream in streams)
    parts = []
    for number, stream in enumerate(streams):
        own = int(requests * stream.workload.rate_per_s / rate_per_s)
        if own < FEWEST_OF_STREAM:
            raise ScenarioError(
                f"stream {number} is {own} of {requests} requests, too few to measure: simulate more requests"
            )
        rng = np.random.default_rng([seed, number])
        part = sample_requests(replica, stream.workload, own, rng, replicas=replicas, together=together)
        part["priority"] = stream.priority
        parts.append(part)
    end_s = min(part["arrival_s"][-1] for part in parts)
    run = np.concatenate(parts)
    stream_of = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    order = np.argsort(run["arrival_s"], kind="stable")
    order = order[run["arrival_s"][order] <= end_s]
    return run.take(order), stream_of[order]  # an index in brackets copies field by field, ten times slower


# --- Disaggregated serving: one pool of replicas computes the prompts, another the tokens after the first
#
# The KV cache of a prompt travels between them. Prompts no longer stall the tokens of others, so that TTFT and ITL
# are sized apart (DistServe, Zhong et al. 2024, arXiv 2401.09670; Splitwise, Patel et al. 2024, arXiv 2311.18677).


def simulate_disaggregated(
    prefill: Replica,
    decode: Replica,
    workload: Workload,
    *,
    prefill_replicas: int = 1,
    decode_replicas: int = 1,
    transfer_token_s: float = 0.0,
    routing: Routing = "random",
    requests: int = 100_000,
    seed: int = 0,
    warmup: float = 0.1,
) -> Simulated:
    """Offer a workload to a pool of prefill replicas that passes every sequence to a pool of decode replicas.

    A prompt is served as a request with one token, which ends its TTFT; `transfer_token_s` for each
    prompt token later its sequence asks the decode pool for a slot and KV memory, and decodes from the next iteration
    on. Transfer and that wait are inside ITL and E2E. Both pools route alike. What a request pays outside the
    iterations is the prefill replica's.
    `queue_limit` and `queue_timeout_s` guard the prefill line only, `cancel_s` counts from the first arrival. `queue_s`
    is the wait for the prefill. `utilization` is the busier pool's.

    Pools beyond 32 replicas are simulated in the same proportion at up to 32, where they have a common divisor.

    Raises ScenarioError as `simulate` does, for a transfer time that is negative or infinite, and for a decode pool
    with static batching.
    """
    check_question(prefill_replicas, routing, requests, warmup)
    check_question(decode_replicas, routing, requests, warmup)
    if not 0 <= transfer_token_s < math.inf:
        raise ScenarioError(f"transfer_token_s must be 0 or more and finite, got {transfer_token_s:g}")
    if decode.batching.policy == "static":
        raise ScenarioError("static batching cannot take sequences that were prefilled elsewhere: use another policy")
    scale = _scale(prefill_replicas, decode_replicas)
    rng = np.random.default_rng(seed)
    run = sample_requests(decode, replace(workload, rate_per_s=workload.rate_per_s * scale), requests, rng)
    first = prefill.with_queue(workload.queue_limit)
    _prefill_all([first] * round(prefill_replicas * scale), run, routing, rng)
    handed_over_s = run["first_token_s"] + transfer_token_s * run["isl"]
    _decode_all([decode] * round(decode_replicas * scale), run, handed_over_s, routing, rng)
    one_token = np.ones(requests, np.int64)
    goes_on = run["osl"] > 1
    busy = workload.rate_per_s / backlog_rate_per_s(prefill, run["isl"], one_token, run["cached_tokens"])
    utilization = busy / prefill_replicas
    if np.any(goes_on):
        isl, osl = run["isl"][goes_on], run["osl"][goes_on]
        busy = workload.rate_per_s * float(goes_on.mean()) / backlog_rate_per_s(decode, isl, osl, isl)
        utilization = max(utilization, busy / decode_replicas)
    result = open_loop(run, utilization, warmup=warmup)
    widest = round(max(prefill_replicas, decode_replicas) * scale)
    return whole_fleet(result, 1 / scale, herding(routing, widest, workload.lengths.alike))


def _scale(prefill_replicas: int, decode_replicas: int) -> float:
    """The share of both pools that is simulated: whole replicas in the same proportion, at most 32 of a kind."""
    units = math.gcd(prefill_replicas, decode_replicas)
    largest = max(prefill_replicas, decode_replicas) // units
    return min(units, max(1, MOST_REPLICAS // largest)) / units


def _prefill_all(pool: list[Replica], run: Requests, routing: Routing, rng: np.random.Generator) -> None:
    """Serve every prompt as a request with one token; fills times and outcomes."""
    prompts = checked_requests(pool[0], run["isl"], np.ones(len(run), np.int64), run["arrival_s"])
    for field in ("cached_tokens", "queue_timeout_s", "cancel_s"):
        prompts[field] = run[field]
    serve(pool, prompts, routing, rng, prefixes=prefixes_found(prompts))
    for field in ("scheduled_s", "first_token_s", "done_s", "outcome", "outside_s"):
        run[field] = prompts[field]


def _decode_all(
    pool: list[Replica], run: Requests, handed_over_s: Seconds, routing: Routing, rng: np.random.Generator
) -> None:
    """Decode, from `handed_over_s` on, the sequences with tokens to come whose clients still wait; fills their ends."""
    goes_on = (run["outcome"] == SERVED) & (run["osl"] > 1)
    patience_s = run["arrival_s"] + run["cancel_s"] - handed_over_s
    gone = goes_on & (patience_s <= 0)
    run["outcome"][gone] = CANCELLED
    run["done_s"][gone] = (run["arrival_s"] + run["cancel_s"])[gone]
    who = np.flatnonzero(goes_on & ~gone)
    if not len(who):
        return
    who = who[np.argsort(handed_over_s[who], kind="stable")]
    sequences = requests_of(run["isl"][who], run["osl"][who], handed_over_s[who])
    sequences["steps"], sequences["cancel_s"] = run["steps"][who], patience_s[who]
    sequences["cached_tokens"] = run["isl"][who]
    serve(pool, sequences, routing, rng)
    run["done_s"][who], run["outcome"][who] = sequences["done_s"], sequences["outcome"]
