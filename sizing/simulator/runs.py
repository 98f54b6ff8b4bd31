"""Discrete-event simulation of replicas under load: what every single request would see.

Three questions: a workload offered to a fleet (`simulate`), given arrivals and lengths (`simulate_trace`), and a fixed
number of users who each wait for their answer (`simulate_closed`), which is how calibration measures. The scheduler is
in iterations.py; it is exact for the law it is given: tests hold it against queueing theory, and against a naive
simulator written sequence by sequence.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from sizing.errors import ScenarioError
from sizing.replica import Replica
from sizing.simulator.heap import MAX_REQUESTS
from sizing.simulator.loops import measured_rounds, run_least_outstanding, run_stream, run_users
from sizing.simulator.records import Requests, engine_of, idle_states, requests_of, work_space
from sizing.simulator.simulated import Simulated, open_loop, simulated
from sizing.workload import ROUTINGS, Arrivals, Lengths, Routing, Seconds, Tokens, Workload

__all__ = [
    "Simulated",
    "backlog_rate_per_s",
    "simulate",
    "simulate_closed",
    "simulate_trace",
    "stable_rate_per_s",
]

MOST_REPLICAS = 32
"""Least-outstanding routing over more replicas than this behaves as over this many, at the same load for each."""


def simulate(
    replica: Replica,
    workload: Workload,
    *,
    replicas: int = 1,
    routing: Routing = "random",
    requests: int = 100_000,
    seed: int = 0,
    warmup: float = 0.1,
) -> Simulated:
    """Offer a workload to a fleet: open loop, `requests` requests, of which the first share `warmup` is not measured.

    The cost does not grow with the fleet. Behind *random* routing one replica sees the thinned stream, behind
    *round_robin* every R-th request: one replica stands for all, exactly. *least_outstanding* simulates up to 32
    replicas at the load each would have. Two runs with one seed at two rates use the same random numbers, so that
    their difference is the load's.

    Raises ScenarioError for a request longer than the KV cache, and for numbers out of range.

    >>> from sizing.steptime import StepLaw
    >>> law = StepLaw(weights_s=4.8e-3, overhead_s=1e-3, token_s=20e-6, sequence_s=10e-6, kv_token_s=49e-9)
    >>> run = simulate(Replica(law), Workload(Lengths(isl=1000, osl=100), rate_per_s=10), requests=5000)
    >>> run.saturated, round(run.utilization, 1)
    (False, 0.3)
    """
    _check_question(replicas, routing, requests, warmup)
    rng = np.random.default_rng(seed)
    isl, osl = workload.lengths.sample(requests, rng)
    together = min(replicas, MOST_REPLICAS) if routing == "least_outstanding" else 1
    rate_per_s = workload.rate_per_s * together / replicas
    if routing == "random":
        gaps_s = thinned_gaps(workload.arrivals, requests, workload.rate_per_s, replicas, rng)
    else:
        merged = replicas if routing == "round_robin" else 1
        gaps_s = workload.arrivals.gaps(requests, rate_per_s * merged, rng, merged)
    run = checked_requests(replica, isl, osl, np.cumsum(gaps_s))
    engine = engine_of(replica)
    space = work_space(replica, together)
    if together == 1:
        run_stream(engine, idle_states(1), space, run)
    else:
        run_least_outstanding(engine, idle_states(together), space, run, rng.integers(0, together, requests))
    utilization = rate_per_s / together / stable_rate_per_s(replica, workload.lengths)
    result = open_loop(run, replica, int(warmup * requests), utilization)
    fleet = replicas / together
    return replace(
        result,
        requests_per_s=result.requests_per_s * fleet,
        mean_in_flight=result.mean_in_flight * fleet,
        warnings=_herding(workload.lengths) if together > 1 else (),
    )


def simulate_trace(replica: Replica, arrival_s: Seconds, isl: Tokens, osl: Tokens) -> Simulated:
    """One replica serves requests that arrive at `arrival_s` (ascending seconds) with these lengths; all are measured.

    Raises ScenarioError if the arrays do not match, times fall, or a request is longer than the KV cache.
    """
    arrivals = np.ascontiguousarray(arrival_s, np.float64)
    if arrivals.shape != np.shape(isl) or not np.all(np.isfinite(arrivals)) or np.any(np.diff(arrivals) < 0):
        raise ScenarioError("arrival_s must hold one finite time per request, in ascending order")
    run = checked_requests(replica, isl, osl, arrivals)
    engine = engine_of(replica)
    run_stream(engine, idle_states(1), work_space(replica, 1), run)
    gaps_s = arrivals[-1] - arrivals[0]
    if len(run) == 1:
        return open_loop(run, replica, 0, 0.0, drain=False)
    utilization = (len(run) - 1) / gaps_s / backlog_rate_per_s(replica, run["isl"], run["osl"]) if gaps_s else np.inf
    return open_loop(run, replica, 0, utilization, drain=False)


def simulate_closed(replica: Replica, concurrency: int, isl: Tokens, osl: Tokens, ramp_s: float = 0.0) -> Simulated:
    """`concurrency` users, each sending the next request of the list as soon as its last answer is complete.

    The users start together, or one after the other over `ramp_s` seconds. Measured are the requests from the third
    round on (2 x concurrency) to the last but one: give a multiple of the concurrency, 4 rounds or more. Users who
    start together with equal lengths stay in lockstep: their prompts queue behind each other round after round.

    Raises ScenarioError for a request longer than the KV cache, or numbers out of range.
    """
    if concurrency < 1 or ramp_s < 0:
        raise ScenarioError(f"concurrency must be 1 or more and ramp_s 0 or more, got {concurrency} and {ramp_s:g}")
    if len(isl) <= 3 * concurrency:
        raise ScenarioError(
            f"a closed loop of {concurrency} users needs more than {3 * concurrency} requests, got {len(isl)}"
        )
    run = closed_loop(replica, concurrency, isl, osl, ramp_s)
    first, last = measured_rounds(len(run), concurrency)
    sent_s = run["arrival_s"] - replica.law.request_s
    requests_per_s = (last - first) / (sent_s[last] - sent_s[first])
    utilization = requests_per_s / backlog_rate_per_s(replica, run["isl"], run["osl"])
    return simulated(run, sent_s, replica.law.request_s, slice(first, last), float(requests_per_s), utilization, False)


def closed_loop(replica: Replica, concurrency: int, isl: Tokens, osl: Tokens, ramp_s: float = 0.0) -> Requests:
    """The records of a closed loop (see simulate_closed), every request in order of its start."""
    users = min(concurrency, len(isl))
    run = checked_requests(replica, isl, osl, np.zeros(len(isl)))
    run["arrival_s"][:users] = replica.law.request_s + ramp_s * np.arange(users) / users
    engine = engine_of(replica)
    run_users(engine, idle_states(1), work_space(replica, 1), run, users)
    return run


def thinned_gaps(arrivals: Arrivals, n: int, rate_per_s: float, replicas: int, rng: np.random.Generator) -> Seconds:
    """Gaps seen by one of `replicas` replicas that each take a request with equal chance; `rate_per_s` is the fleet's.

    A gap spans a geometric number of the stream's gaps. A thinned Poisson stream is a Poisson stream.
    """
    if replicas == 1 or arrivals.kind == "poisson":
        return arrivals.gaps(n, rate_per_s / replicas, rng)
    spanned = rng.geometric(1 / replicas, n)
    if arrivals.kind == "constant":
        return spanned / rate_per_s
    shape = 1 / arrivals.cv**2
    return rng.gamma(shape * spanned, 1 / (shape * rate_per_s))


@lru_cache(maxsize=256)
def stable_rate_per_s(replica: Replica, lengths: Lengths) -> float:
    """The highest rate one replica can carry in steady state: its throughput with a line always waiting.

    From 20,000 requests with a fixed seed, or 8 per slot: within about 1 % for lengths that vary by 80 %.
    """
    requests = max(20_000, 8 * replica.batching.max_batch_size)
    return backlog_rate_per_s(replica, *lengths.sample(requests, np.random.default_rng(0)))


def backlog_rate_per_s(replica: Replica, isl: Tokens, osl: Tokens) -> float:
    """Requests/s of one replica that serves these requests, over and over, with a line always waiting.

    The users start over about the time of one request, so that equal requests do not stay in lockstep.
    """
    slots = replica.batching.max_batch_size
    requests = max(len(isl), 8 * slots)
    mean_isl, mean_osl = float(np.mean(isl)), float(np.mean(osl))
    together = min(slots, replica.batching.kv_tokens / (mean_isl + mean_osl))
    request_s = mean_osl * replica.law.decode_s(together, together * (mean_isl + mean_osl / 2))
    run = closed_loop(replica, 2 * slots, np.resize(isl, requests), np.resize(osl, requests), 2 * request_s)
    done_s = np.sort(run["done_s"])
    first, last = requests // 4, requests - 2 * slots
    return float((last - first) / (done_s[last] - done_s[first]))


def _check_question(replicas: int, routing: str, requests: int, warmup: float) -> None:
    if replicas < 1:
        raise ScenarioError(f"replicas must be 1 or more, got {replicas}")
    if routing not in ROUTINGS:
        raise ScenarioError(f"routing {routing!r} is not one of {', '.join(ROUTINGS)}")
    if requests < 10:
        raise ScenarioError(f"requests to simulate must be 10 or more, got {requests}")
    if not 0 <= warmup < 1:
        raise ScenarioError(f"warmup must be a share from 0 to below 1, got {warmup:g}")


def checked_requests(replica: Replica, isl: Tokens, osl: Tokens, arrival_s: Seconds) -> Requests:
    """Requests ready to run, if the engine can run them at all."""
    if not 0 < len(isl) == len(osl) < MAX_REQUESTS:
        raise ScenarioError(f"isl and osl must have one entry per request, 1 to {MAX_REQUESTS - 1} of them")
    if np.min(isl) < 1 or np.min(osl) < 1:
        raise ScenarioError("every request needs at least 1 input and 1 output token")
    longest = int(np.max(np.add(isl, osl)))
    if longest > replica.batching.kv_tokens:
        raise ScenarioError(
            f"a request of {longest} tokens (prompt and output) never fits in a KV cache of "
            f"{replica.batching.kv_tokens} tokens: shorten the lengths or give the cache more memory"
        )
    return requests_of(isl, osl, arrival_s)


def _herding(lengths: Lengths) -> tuple[str, ...]:
    if not lengths.fixed:
        return ()
    return (
        "least_outstanding with equal lengths can herd: replicas whose requests finish together attract the next "
        "burst; round_robin, or lengths that vary, show what the fleet can do",
    )
