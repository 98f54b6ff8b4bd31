"""The two ways to load a server: a closed loop of N users, and an open loop in which requests arrive at random."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import numpy as np

from calibration.requests import Request
from calibration.triton import Reply
from sizing.workload import Arrivals, Seconds

Infer = Callable[[Request], Awaitable[Reply]]
OnDone = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Timing:
    """One request as the client saw it, in seconds of one monotonic clock.

    `intended_s` is when it should have been sent: in an open loop latencies start there, so that a late client cannot
    hide waiting; in a closed loop it is `sent_s`. `tokens` are (time, new tokens) of each non-empty response. `isl` and
    `osl` were asked for.
    """

    intended_s: float
    sent_s: float
    end_s: float
    tokens: tuple[tuple[float, int], ...]
    isl: int
    osl: int
    error: str = ""

    @property
    def last_token_s(self) -> float:
        """When the answer was complete for its reader; the end of the request where it failed."""
        return self.end_s if self.error else self.tokens[-1][0]


@dataclass(frozen=True, slots=True)
class Load:
    """All requests of one level, warm-up included, and the window in which the load was steady: [start_s, stop_s).

    `issued` requests were sent inside the window. `client_cpu` is the share of one core that this process used.
    """

    timings: tuple[Timing, ...]
    start_s: float
    stop_s: float
    issued: int
    client_cpu: float


async def closed_loop(
    users: Sequence[Infer],
    requests: Iterator[Request],
    *,
    measured: int,
    warm_up: int,
    ramp_s: float = 0.0,
    budget_s: float | None = None,
    on_done: OnDone = lambda done: None,
) -> Load:
    """Each user sends its next request as soon as the answer to the last is complete: ``len(users)`` are in flight.

    Users start spread over `ramp_s`. The window opens when every user has had `warm_up` answers and shuts when
    `measured` more requests have been sent, or `budget_s` seconds later, and a user would stop; what is then in flight
    is waited for. `on_done(n)` is called after the n-th answer inside the window.
    """
    loop = _ClosedLoop(len(users), measured, budget_s, on_done)
    cpu = _CpuShare()
    async with _together() as group:
        for number, infer in enumerate(users):
            group.create_task(loop.user(infer, requests, warm_up, ramp_s * number / len(users)))
    return Load(tuple(loop.timings), loop.start_s, loop.stop_s, loop.issued, cpu.share())


class _ClosedLoop:
    """What the users of one closed loop share: who is warm, how many requests are left, what was seen."""

    def __init__(self, users: int, measured: int, budget_s: float | None, on_done: OnDone) -> None:
        self.timings: list[Timing] = []
        self.start_s = self.stop_s = float("inf")
        self.issued = 0
        self._cold = users
        self._measured = measured
        self._budget_s = float("inf") if budget_s is None else budget_s
        self._on_done = on_done
        self._done = 0

    async def user(self, infer: Infer, requests: Iterator[Request], warm_up: int, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        for answers in itertools.count():
            if answers == warm_up:
                self._warm()
            if not self._may_send():
                return
            request = next(requests)
            reply = await infer(request)
            self.timings.append(_timing(reply.sent_s, request, reply))
            if reply.end_s >= self.start_s:
                self._done += 1
                self._on_done(min(self._done, self._measured))

    def _warm(self) -> None:
        self._cold -= 1
        if self._cold == 0:
            self.start_s = time.perf_counter()

    def _may_send(self) -> bool:
        """Counts the request if it is let through. The first refusal shuts the window."""
        if self._cold:
            return True
        now_s = time.perf_counter()
        if self.issued < self._measured and now_s < self.start_s + self._budget_s:
            self.issued += 1
            return True
        self.stop_s = min(self.stop_s, now_s)
        return False


def arrival_times(rate_per_s: float, n: int, rng: np.random.Generator) -> Seconds:
    """Times in seconds from the start, shape (n,), of `n` Poisson arrivals, the last at exactly ``n / rate_per_s``.

    A Poisson stream given its count in that time: gaps are as random as ever, but the rate of the run is the one asked
    for. Left to chance, the rate of 600 arrivals would be off by 4 %, and latencies near saturation by far more.
    """
    times_s = np.cumsum(Arrivals("poisson").gaps(n, rate_per_s, rng))
    return np.asarray(times_s * (n / rate_per_s / times_s[-1]))


async def open_loop(
    infer: Infer,
    requests: Iterator[Request],
    *,
    arrivals_s: Seconds,
    warm_up: int,
    budget_s: float | None = None,
    on_done: OnDone = lambda done: None,
) -> Load:
    """Requests are sent at `arrivals_s` (from the start of the loop), however many are still unanswered.

    The first `warm_up` arrivals are left out: the window opens at the next one and shuts at the last, so that at least
    two more are needed. `budget_s` cuts the arrivals that long after the window's opening.
    """
    timings: list[Timing] = []
    origin_s = time.perf_counter()
    planned = list(_within(origin_s + arrivals_s, warm_up, budget_s))
    cpu = _CpuShare()

    async def one(intended_s: float) -> None:
        request = next(requests)
        reply = await infer(request)
        timings.append(_timing(intended_s, request, reply))
        on_done(max(0, len(timings) - warm_up))

    async with _together() as group:
        for intended_s in planned:
            await asyncio.sleep(intended_s - time.perf_counter())
            group.create_task(one(intended_s))
    return Load(tuple(timings), planned[warm_up], planned[-1], len(planned) - warm_up - 1, cpu.share())


def _within(times_s: Seconds, warm_up: int, budget_s: float | None) -> Iterator[float]:
    """The arrivals up to `budget_s` after the first measured one, and the one after that, which shuts the window."""
    limit_s = float("inf") if budget_s is None else times_s[warm_up] + budget_s
    for number, at_s in enumerate(times_s.tolist()):
        yield at_s
        if at_s > limit_s and number > warm_up:
            return


def _timing(intended_s: float, request: Request, reply: Reply) -> Timing:
    return Timing(intended_s, reply.sent_s, reply.end_s, reply.tokens, request.isl, request.osl, reply.error)


@asynccontextmanager
async def _together() -> AsyncIterator[asyncio.TaskGroup]:
    """A task group that raises the first failure itself, not a group of them."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None


class _CpuShare:
    """Share of one core used by this process since this was made."""

    def __init__(self) -> None:
        self._wall_s, self._cpu_s = time.perf_counter(), time.process_time()

    def share(self) -> float:
        return (time.process_time() - self._cpu_s) / max(1e-9, time.perf_counter() - self._wall_s)
