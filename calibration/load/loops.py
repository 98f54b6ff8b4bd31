"""The two ways to load a server from one process: a closed loop of users, and an open loop of given arrivals."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np

from calibration.errors import CalibrationError
from calibration.load.contract import Contract
from calibration.load.exchange import Exchange, Exchanges, Prepared, Reader, log_of
from calibration.load.grpc import GrpcClient
from calibration.load.http import HttpClient
from calibration.load.openai import OpenAiClient
from calibration.load.openai_contract import OpenAiContract
from calibration.load.system import Alarm
from calibration.metrics.precision import Done
from calibration.plan import ServerPlan
from calibration.records import RequestLog
from calibration.requests.source import PromptRequest, RequestSource
from sizing.workload import Arrivals, Seconds

STOPS_WITHIN_S = 0.1
AnyContract = Contract | OpenAiContract
Infer = Callable[[Prepared], Awaitable[Exchange]]


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One load level, as each process of the load generator receives it.

    Closed loop: `users`, who start one after the other over `ramp_s` and are warm after `warm_up` answers. Open loop:
    requests at `arrivals_s`, seconds from the loop's start, of which the first `warm_up` are left out. `ahead` requests
    in all are prepared before the start. If requests begin sessions, users, arrivals, `warm_up` and `ahead` are those
    of sessions.
    """

    server: ServerPlan
    contract: AnyContract
    source: RequestSource
    users: int | None = None
    arrivals_s: Seconds | None = None
    warm_up: int = 2
    ramp_s: float = 0.0
    ahead: int = 0


class RequestLine(Protocol):
    """Carries one request at a time: a gRPC stream or an HTTP connection."""

    @property
    def is_open(self) -> bool:
        """Whether a request could leave at once."""

    async def open(self) -> object:
        """Open it, if that is not done. Raises ServerError and ConnectionError."""

    async def exchange(self, prepared: Prepared) -> Exchange:
        """Send a request and wait for the end of the answer. Raises ServerError if the server is gone."""

    def close(self) -> None:
        """Close the line; the next request opens it again."""


class Client(Protocol):
    """The interface of all protocols. Each has contracts of its own."""

    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *error: Any) -> None: ...
    async def connect(self, streams: int) -> None: ...
    def stream(self, contract: Any) -> RequestLine: ...
    def prepare(self, contract: Any, request: PromptRequest) -> Prepared: ...
    def reader(self, contract: Any) -> Reader: ...
    async def model_config(self, name: str) -> Any: ...
    async def check_ready(self) -> None: ...


CLIENTS: dict[str, Callable[[ServerPlan], Client]] = {"grpc": GrpcClient, "http": HttpClient, "openai": OpenAiClient}


def client(server: ServerPlan) -> Client:
    """A client of the protocol that the plan names."""
    return CLIENTS[server.protocol](server)


async def ask(server: ServerPlan, contract: AnyContract, requests: Iterable[PromptRequest]) -> RequestLog:
    """Send `requests` one after another, up to the first that fails, as a probe.

    Raises ServerError if the server is not there or is lost.
    """
    exchanges: list[Exchange] = []
    async with client(server) as target:
        line = target.stream(contract)
        for request in requests:
            exchanges.append(await line.exchange(target.prepare(contract, request)))
            if exchanges[-1].error:
                break
    return log_of(exchanges, target.reader(contract))


SPARE_LINES = 4
"""Idle lines that an open loop keeps open. To a server far away a connection takes as long as a short answer, and
servers close those that are idle for some seconds: if one were opened when a request is due, this would be late."""


class Lines:
    """Lines of an open loop: a request uses an idle one, or a new one if none is idle; the next ones are opened
    meanwhile. Used as a context, which ends what is being opened."""

    def __init__(self, target: Client, contract: AnyContract) -> None:
        self._target = target
        self._contract = contract
        self._idle: list[RequestLine] = []
        self._opening: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._open_ahead()
        await asyncio.gather(*self._opening)
        return self

    async def __aexit__(self, *error: Any) -> None:
        for task in self._opening:
            task.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)

    async def exchange(self, prepared: Prepared) -> Exchange:
        """As `RequestLine.exchange`; any number of calls may run at once."""
        line = self._taken(is_open=True) or self._taken(is_open=False) or self._target.stream(self._contract)
        self._open_ahead()
        try:
            return await line.exchange(prepared)
        finally:
            self._idle.append(line)

    def _taken(self, is_open: bool) -> RequestLine | None:
        """An idle line, the last used first; None if none is like that."""
        for place in reversed(range(len(self._idle))):
            if self._idle[place].is_open == is_open:
                return self._idle.pop(place)
        return None

    def _open_ahead(self) -> None:
        ready = sum(line.is_open for line in self._idle[-SPARE_LINES:]) + len(self._opening)
        for _ in range(SPARE_LINES - ready):
            task = asyncio.create_task(self._opened(self._taken(is_open=False) or self._target.stream(self._contract)))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _opened(self, line: RequestLine) -> None:
        with suppress(CalibrationError, ConnectionError):  # the request that needs it says why
            await line.open()
        self._idle.append(line)


class LoadTally:
    """The results of a loop while it runs, and its stop signal.

    `cold` users have not had their warm-up answers yet; `warm_s` is when the last of them had. `stopped_s`: no request
    is sent from then on.
    """

    def __init__(self, reader: Reader, cold: int = 0) -> None:
        self.cold = cold
        self.warm_s: float | None = None
        self.stopped_s: float | None = None
        self.answers = Exchanges(reader)
        self._reader = reader
        self._done: list[Done] = []
        self._failed = 0

    def stop(self, at_s: float | None = None) -> None:
        """Send nothing from now or from `at_s` on, and wait for what is in flight. Only the first stop counts."""
        if self.stopped_s is None:
            self.stopped_s = time.perf_counter() if at_s is None else at_s

    def stopped_by(self, at_s: float) -> bool:
        """Whether requests due at `at_s` are no longer sent."""
        return self.stopped_s is not None and self.stopped_s <= at_s

    def warm(self) -> None:
        """Count one more user as warm."""
        self.cold -= 1
        if self.cold == 0:
            self.warm_s = time.perf_counter()

    def add(self, exchange: Exchange) -> None:
        """Keep a finished exchange."""
        seen = self._reader.glance(exchange)
        if seen is None:
            self._failed += 1
        else:
            self._done.append(_done(exchange, *seen))
        self.answers.add(exchange)

    def news(self) -> tuple[list[Done], int]:
        """Requests answered since the last call, and the number of those that failed."""
        done, failed = self._done, self._failed
        self._done, self._failed = [], 0
        return done, failed


def _done(exchange: Exchange, first_ns: int, last_ns: int, first_tokens: int) -> Done:
    after_first = exchange.osl - first_tokens
    itl_s = (last_ns - first_ns) / after_first / 1e9 if after_first > 0 else float("nan")
    due_ns = exchange.due_ns()
    return Done(last_ns / 1e9, (first_ns - due_ns) / 1e9, itl_s, (last_ns - due_ns) / 1e9)


async def closed_loop(
    users: Sequence[Infer], requests: Iterator[Prepared], tally: LoadTally, *, warm_up: int, starts_s: Sequence[float]
) -> None:
    """Each user sends its next request as soon as the answer to the last is complete: ``len(users)`` are in flight.

    User i starts at ``starts_s[i]`` of `time.perf_counter`, is warm after `warm_up` answers, and continues until
    `tally.stop`, or until there are no more requests. If requests begin sessions, a user finishes a session before the
    next, and `warm_up` counts sessions. Raises what a user raises.
    """

    async def user(infer: Infer, start_s: float) -> None:
        await asyncio.sleep(start_s - time.perf_counter())
        for answers in itertools.count():
            if answers == warm_up:
                tally.warm()
            if tally.stopped_s is not None or (prepared := next(requests, None)) is None:
                return tally.stop()
            await _had(infer, prepared, tally)

    async with _together() as group:
        for infer, start_s in zip(users, starts_s, strict=True):
            group.create_task(user(infer, start_s))


async def open_loop(
    infer: Infer,
    requests: Iterator[Prepared],
    tally: LoadTally,
    *,
    due_s: Sequence[float],
    until_s: float = math.inf,
) -> None:
    """Requests are sent at the times `due_s` of `time.perf_counter`, however many are still unanswered.

    Ends when all are answered; `tally.stop` drops the remaining arrivals. If `requests` end first, the load stops at
    the time of the first arrival without one. If requests begin sessions, turns that are due after `until_s` are not
    sent. Raises what a request raises.
    """

    async with _together() as group, Alarm() as alarm:
        for intended_s in due_s:
            prepared = next(requests, None)
            if not await _came(intended_s, tally, alarm):
                return
            if prepared is None:
                return tally.stop(intended_s)
            group.create_task(_had(infer, prepared, tally, intended_s, until_s))


async def _had(
    infer: Infer, prepared: Prepared, tally: LoadTally, due_s: float | None = None, until_s: float = math.inf
) -> None:
    """Send a request and, if it begins a session, the turns that follow, each after its think time.

    A session ends early at a turn that fails, at `tally.stop`, and at the first turn that is due after `until_s`. Think
    time begins when the next turn is ready to be sent, so that preparing it does not count as the server's delay.
    """
    while True:
        exchange = await infer(prepared)
        exchange.intended_ns = None if due_s is None else round(due_s * 1e9)
        following = None if prepared.then is None else prepared.then(exchange)
        tally.add(exchange)
        if following is None:
            return
        think_s, prepared = following
        due_s = time.perf_counter() + think_s
        if due_s > until_s:
            return
        async with Alarm() as alarm:
            if not await _came(due_s, tally, alarm):
                return


async def _came(intended_s: float, tally: LoadTally, alarm: Alarm) -> bool:
    """Wait for the arrival at `intended_s`; False if the load was stopped before it.

    If the stop comes during the wait, an arrival due before it is still sent: the stop is the end of the window, and
    everything due inside belongs in the log.
    """
    while tally.stopped_s is None and intended_s - time.perf_counter() > 2 * STOPS_WITHIN_S:
        await asyncio.sleep(STOPS_WITHIN_S)
    if tally.stopped_s is not None:
        return False
    await alarm.sleep_until(intended_s)
    return not tally.stopped_by(intended_s)


@asynccontextmanager
async def _together() -> AsyncIterator[asyncio.TaskGroup]:
    """A task group that raises the first failure itself, instead of a group."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None


# --- When requests of an open loop are due: at random or evenly, at one rate or along a schedule of rates


def schedule_times(stages: Sequence[tuple[float, float]], arrivals: Arrivals, rng: np.random.Generator) -> Seconds:
    """Arrivals along `stages`, pairs (for seconds, requests/s) one after another; a rate of 0 is a pause.

    Gaps of mean 1 are drawn once and stretched by the rate of the moment, so that a gap across two stages is right in
    both; the whole schedule has its expected number of arrivals, rounded down.

    >>> schedule_times([(1.0, 2.0), (1.0, 0.0), (1.0, 4.0)], Arrivals.parse("constant"), np.random.default_rng(0))
    array([0.5 , 1.  , 2.25, 2.5 , 2.75, 3.  ])
    """
    lasts_s, rates_per_s = np.array(stages, np.float64).reshape(-1, 2).T
    ends_s = np.concatenate([[0.0], np.cumsum(lasts_s)])
    expected = np.concatenate([[0.0], np.cumsum(lasts_s * rates_per_s)])
    n = int(expected[-1] * (1 + 1e-12))
    counts = arrivals.times(n, 1.0, rng) * (1 - 1e-12)  # so that the last of a stage does not fall into the next stage
    stage = np.clip(np.searchsorted(expected, counts) - 1, 0, None)
    with np.errstate(divide="ignore", invalid="ignore"):
        into_s = np.where(rates_per_s[stage] > 0, (counts - expected[stage]) / rates_per_s[stage], 0.0)
    return np.asarray(ends_s[stage] + into_s)
