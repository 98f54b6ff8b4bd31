"""Synthetic loads of known truth: closed loops and queues written down as the log that a perfect client would keep."""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np

from calibration.plan import Level
from calibration.records import ClientHealth, Load, RequestLog
from sizing.numbers import Floats
from sizing.points import Deployment, LoadKind
from sizing.workload import Lengths

Lasting = Callable[[float, int], float]
DEPLOYMENT = Deployment("toy", "fp32", "cpu", 1, 1, "mock", "", "in_flight", 8)


def level(value: float = 1, kind: LoadKind = "concurrency", requests: int = 1) -> Level:
    return Level(0, Lengths(4, 2), kind, value, requests)


def two_token_log(due_s: Floats, ttft_s: Floats, e2e_s: Floats, late_s: Floats | float = 0.0) -> RequestLog:
    """Requests of two tokens, one a chunk."""
    n = len(due_s)
    return RequestLog(
        intended_s=due_s,
        sent_s=due_s + late_s,
        end_s=due_s + e2e_s,
        isl=np.full(n, 4),
        osl=np.full(n, 2),
        error=("",) * n,
        chunks=np.full(n, 2),
        chunk_at_s=np.stack([due_s + ttft_s, due_s + e2e_s], axis=1).ravel(),
        chunk_tokens=np.ones(2 * n, np.int64),
    )


def closed_loop(users: int, each: int, lasting: Lasting, *, spread_s: float = 1.0, idle_s: float = 0.0) -> Load:
    """Users back to back, `idle_s` between answer and next request; request k, sent at t, takes lasting(t, k).

    The window opens when every user has had two answers and shuts when the first user stops.
    """
    waiting = [(spread_s * user / users, user) for user in range(users)]
    left, due_s, e2e_s, owner = [each] * users, [], [], []
    while waiting:
        now_s, user = heapq.heappop(waiting)
        took_s = lasting(now_s, len(due_s))
        due_s.append(now_s)
        e2e_s.append(took_s)
        owner.append(user)
        left[user] -= 1
        if left[user]:
            heapq.heappush(waiting, (now_s + took_s + idle_s, user))
    starts_s, times_s, owners = np.array(due_s), np.array(e2e_s), np.array(owner)
    starts = [starts_s[owners == user] for user in range(users)]
    stop_s = min(own[-1] for own in starts)
    log = two_token_log(starts_s, 0.2 * times_s, times_s)
    return Load(log, max(own[2] for own in starts), float(stop_s), len(starts_s), "count")


def queue(rng: np.random.Generator, n: int, load: float, servers: int = 1, *, settle: int = 1000) -> Load:
    """An open loop on M/M/servers with mean service 1 s at utilisation `load`: TTFT is the queueing plus 0.1 s.

    `settle` arrivals are before the window, which holds `n`; requests under way at its end are finished after it.
    """
    due_s = np.cumsum(rng.exponential(1 / (load * servers), settle + 2 * n))
    service_s = rng.exponential(1.0, len(due_s))
    free_s, begun_s = [0.0] * servers, np.empty_like(due_s)
    for number, (at_s, takes_s) in enumerate(zip(due_s.tolist(), service_s.tolist(), strict=True)):
        begun_s[number] = max(at_s, heapq.heappop(free_s))
        heapq.heappush(free_s, begun_s[number] + takes_s)
    waited_s = begun_s - due_s
    log = two_token_log(due_s, waited_s + np.minimum(0.1, service_s), waited_s + service_s)
    return Load(log, float(due_s[settle]), float(due_s[settle + n]), n, "schedule", ClientHealth(), load * servers)
