"""Closed loops: a fixed number of users who wait for their answers, as in calibration; and the highest stable rates,
which are the throughput of a closed loop whose queue is never empty."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from sizing.budget import checkpoint
from sizing.compiled import compiled
from sizing.engine import Replica
from sizing.errors import ScenarioError
from sizing.simulator.result import Simulated, Watched, gap_percentiles_s, simulated, tallied
from sizing.simulator.sampling import cached_tokens, checked_requests, draw_steps, prefixes_found
from sizing.simulator.scheduler import step, work_of
from sizing.simulator.state import (
    NO_PREFIXES,
    NOBODY,
    Engine,
    Requests,
    States,
    Workspace,
    borrowed,
    engine_of,
    idle_states,
    work_space,
)
from sizing.simulator.token_gaps import Counts, no_gaps
from sizing.simulator.waiting import enqueue, expire, idle
from sizing.workload import NO_PREFIX, Lengths, Prefix, Routing, Tokens

REJECTED_USER_WAITS_S = 0.01
"""Least wait of a user before retrying after an immediate rejection; otherwise a closed loop might never end."""


def simulate_closed(
    replica: Replica,
    concurrency: int,
    isl: Tokens,
    osl: Tokens,
    ramp_s: float = 0.0,
    *,
    token_gaps: bool = False,
) -> Simulated:
    """`concurrency` users, each sending the next request of the list as soon as its last answer is complete.

    The users start together, or one after the other over `ramp_s` seconds. The measured requests are those from the
    third round on (2 x concurrency) to the last but one: give a multiple of the concurrency, 4 rounds or more. Users
    who start together with equal lengths stay in lockstep: their prompts queue behind each other round after round.
    `token_gaps`: count every gap between tokens from the third round on, see `Watched`.

    Raises ScenarioError for a request longer than the KV cache, or numbers out of range.
    """
    result = measure_closed(replica, concurrency, isl, osl, ramp_s, token_gaps=token_gaps)
    return replace(result, utilization=result.requests_per_s / backlog_rate_per_s(replica, isl, osl))


def measure_closed(
    replica: Replica,
    concurrency: int,
    isl: Tokens,
    osl: Tokens,
    ramp_s: float = 0.0,
    seed: int = 0,
    *,
    cached: Tokens | None = None,
    token_gaps: bool = False,
) -> Simulated:
    """The same with a utilization of NaN: the saturated throughput is not simulated for it. `seed` matters only to a
    replica that speculates; `cached`: as in `closed_loop`."""
    if concurrency < 1 or ramp_s < 0:
        raise ScenarioError(f"concurrency must be 1 or more and ramp_s 0 or more, got {concurrency} and {ramp_s:g}")
    if len(isl) <= 3 * concurrency:
        raise ScenarioError(
            f"a closed loop of {concurrency} users needs more than {3 * concurrency} requests, got {len(isl)}"
        )
    gaps = no_gaps(counted=token_gaps)
    run = closed_loop(replica, concurrency, isl, osl, ramp_s, cached=cached, seed=seed, gaps=gaps)
    first, last = measured_rounds(len(run), concurrency)
    requests_per_s = (last - first) / (run["arrival_s"][last] - run["arrival_s"][first])
    tally = tallied(run, slice(first, last), early_s=replica.law.request_s)
    result = simulated(tally, float(requests_per_s), math.nan, False)
    return replace(result, watched=Watched(0, *gap_percentiles_s(gaps)))


def closed_loop(
    replica: Replica,
    concurrency: int,
    isl: Tokens,
    osl: Tokens,
    ramp_s: float = 0.0,
    *,
    cached: Tokens | None = None,
    seed: int = 0,
    gaps: Counts | None = None,
) -> Requests:
    """The records of a closed loop (see simulate_closed), every request in order of its start.

    `cached`: prompt tokens of each request that are found in the prefix cache (none: 0). `gaps` takes
    the token gaps from the third round on (see `no_gaps`).
    """
    checkpoint("closed loop")
    users = min(concurrency, len(isl))
    run = checked_requests(replica, isl, osl, np.zeros(len(isl)))
    if cached is not None:
        run["cached_tokens"] = cached
    draw_steps(replica, run, np.random.default_rng(seed))
    run["arrival_s"][:users] = replica.law.request_s + ramp_s * np.arange(users) / users
    engine = engine_of(replica)
    counts = no_gaps(counted=False) if gaps is None else gaps
    shared = NO_PREFIXES if cached is None else prefixes_found(run)
    space = work_space(replica, 1, gaps=len(counts) > 0, prefixes=shared)
    run_users(engine, idle_states(1), space, run, users, measured_rounds(len(run), users)[0], counts)
    return run


@compiled
def run_users(
    engine: Engine, states: States, work: Workspace, requests: Requests, users: int, begin: int, gaps: Counts
) -> None:
    """`users` users each send their next request as soon as the last answer is complete (closed loop).

    A user whose request is cancelled, timed out or rejected also sends the next one, at least 10 ms after a rejection.
    `arrival_s` holds the starts of the users, ascending, in its first `users` entries; the rest is filled.
    A request reaches the engine `request_s` after it is sent. Where `work` counts token gaps, those from the sending of
    request `begin` to that of the last, without ramp and drain, are added to `gaps`; of no length if they are not
    counted. From the first request on (`begin` 0) they are those of the whole run, ramp and drain included.
    """
    state = states[0]
    mine, requests = work_of(work, 0), borrowed(requests)
    if begin == 0:
        mine.gaps[:] = 0
    sent = users
    arrived = 0
    while arrived < len(requests) or not idle(state):
        next_s = requests[arrived].arrival_s if arrived < sent else math.inf
        if state.next_deadline_s <= min(next_s, state.clock_s):
            request = expire(state, requests, min(next_s, state.clock_s))
            if request != NOBODY:
                sent = send(requests, sent, requests[request].done_s + engine.request_s)
            continue
        if arrived < sent and (idle(state) or state.clock_s >= next_s):
            if not enqueue(engine, state, mine, requests, arrived, next_s):
                sent = send(requests, sent, next_s + max(engine.request_s, REJECTED_USER_WAITS_S))
            arrived += 1
            if arrived == begin:
                mine.gaps[:] = 0
            if arrived == len(requests) and begin > 0:
                gaps += mine.gaps
            continue
        step(engine, state, mine, requests, next_s)
        gone = state.first_gone
        while gone != NOBODY:
            sent = send(requests, sent, requests[gone].done_s + requests[gone].outside_s)
            gone = requests[gone].behind
    if begin == 0:
        gaps += mine.gaps


@compiled
def send(requests: Requests, sent: int, time_s: float) -> int:
    """Insert an arrival, if requests are left, into the ascending list of `sent` ones; returns the new number sent.

    Users who have not started yet may arrive after it.
    """
    if sent == len(requests):
        return sent
    place = sent
    while place > 0 and requests[place - 1].arrival_s > time_s:
        requests[place].arrival_s = requests[place - 1].arrival_s
        place -= 1
    requests[place].arrival_s = time_s
    return sent + 1


@compiled
def measured_rounds(requests: int, users: int) -> tuple[int, int]:
    """First request measured in a closed loop, and the one after the last: without ramp and drain."""
    return min(2 * users, requests - users - 1), requests - users


@lru_cache(maxsize=256)
def simulated_stable_rate_per_s(replica: Replica, lengths: Lengths, prefix: Prefix = NO_PREFIX) -> float:
    """The highest rate one replica can carry in steady state: its throughput when its queue is never empty.

    From 20,000 requests with a fixed seed, or 8 per slot: within about 1 % for lengths that vary by 80 %.
    """
    requests = max(20_000, 8 * replica.batching.max_batch_size)
    rng = np.random.default_rng(0)
    isl, osl = lengths.sample(requests, rng)
    return backlog_rate_per_s(replica, isl, osl, cached_tokens(prefix, isl, rng) if prefix.hit_rate > 0 else None)


def backlog_rate_per_s(replica: Replica, isl: Tokens, osl: Tokens, cached: Tokens | None = None) -> float:
    """Requests/s of one replica that serves these requests over and over, with a queue that is never empty or full.

    User starts are spread over the duration of one request, so that equal requests do not stay in lockstep.
    """
    slots = replica.batching.max_batch_size
    requests = max(len(isl), 8 * slots)
    mean_isl, mean_osl = float(np.mean(isl)), float(np.mean(osl))
    together = min(slots, replica.batching.kv_tokens / (mean_isl + mean_osl))
    request_s = mean_osl * replica.law.decode_s(together, together * (mean_isl + mean_osl / 2))
    patient = replace(replica, batching=replace(replica.batching, max_waiting=0))
    again = None if cached is None else np.resize(cached, requests)
    run = closed_loop(
        patient, 2 * slots, np.resize(isl, requests), np.resize(osl, requests), 2 * request_s, cached=again
    )
    done_s = np.sort(run["done_s"])
    first, last = requests // 4, requests - 2 * slots
    return float((last - first) / (done_s[last] - done_s[first]))


def fleet_utilization(rate_per_s: float, stable_per_s: Sequence[float], routing: Routing) -> float:
    """Load of a fleet divided by its highest stable load, for replicas that are stable up to `stable_per_s`.

    A set of replicas is overloaded if the requests that cannot go elsewhere exceed its capacity; the slowest
    m are the first. A share m/R of the requests is bound to them at random or in turn, m(m-1) / (R(R-1)) when both
    choices of two fall among them, and only everything (m = R) if the router compares all (Foss & Chernova 1998).
    """
    replicas = len(stable_per_s)
    slowest = np.cumsum(np.sort(np.asarray(stable_per_s, float)))
    m = np.arange(1, replicas + 1)
    bound = m / replicas
    if routing == "power_of_two" and replicas > 1:
        bound = bound * (m - 1) / (replicas - 1)
    elif routing == "least_outstanding":
        bound = np.where(m == replicas, 1.0, 0.0)
    return float(np.max(rate_per_s * bound / slowest))
