"""One process of the load generator: it receives a job over a pipe, puts its share of the load on the server and
reports.

It shares neither event loop nor GIL with progress bars, stores and anything else that runs during a sweep.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import math
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

import numpy as np

from calibration.errors import CalibrationError
from calibration.load import system
from calibration.load.exchange import Prepared
from calibration.load.loops import Client, Job, Lines, LoadTally, client, closed_loop, open_loop
from calibration.load.system import Alarm
from calibration.metrics.precision import Done
from calibration.records import RequestLog
from sizing.numbers import Floats

# --- The load generator's own pulse: how late an event loop wakes, and the CPU time of its process
#
# It has time stamps, because only the window of a level counts, which the worker does not know.

BEAT_S = 0.05


@dataclass(frozen=True, slots=True, eq=False)
class Pulse:
    """One process over a level, times in seconds of `time.perf_counter`.

    Beats were due at `due_s` and came `lag_s` late, shape (beats,). By `read_s` all threads of the process had used
    `cpu_s` of CPU time, shape (readings,), at least one.
    """

    due_s: Floats
    lag_s: Floats
    read_s: Floats
    cpu_s: Floats

    def lags_s(self, start_s: float, stop_s: float) -> Floats:
        """Lateness of the beats due in [start_s, stop_s), shape (beats in it,)."""
        return np.asarray(self.lag_s[(start_s <= self.due_s) & (self.due_s < stop_s)])

    def cores(self, start_s: float, stop_s: float) -> float:
        """Cores used on average from `start_s` to `stop_s`, which is later.

        Between two readings the use counts as even; before the first and after the last as none, since a process that
        has finished its share of a level does nothing.
        """
        before_s, after_s = np.interp([start_s, stop_s], self.read_s, self.cpu_s).tolist()
        return float(after_s - before_s) / (stop_s - start_s)


class Heartbeat:
    """Takes the pulse of this process: `beat` runs alongside the load, `pulse` is read at the end.

    Beats are due on a fixed schedule, and each one missed during a stall is recorded with its own lateness. Timed from
    one beat to the next, a stall of a second would be one late beat among hundreds on time (coordinated omission).
    """

    def __init__(self) -> None:
        self._next_s = time.perf_counter() + BEAT_S
        self._beats: list[tuple[float, float]] = []
        self._readings = [(time.perf_counter(), time.process_time())]

    async def beat(self) -> None:
        """Beat until cancelled."""
        async with Alarm() as alarm:
            while True:
                await alarm.sleep_until(self._next_s)
                self._catch_up()

    def pulse(self) -> Pulse:
        """The pulse so far."""
        self._catch_up()
        beats = np.array(self._beats, np.float64).reshape(-1, 2)
        readings = np.array(self._readings, np.float64)
        return Pulse(beats[:, 0], beats[:, 1], readings[:, 0], readings[:, 1])

    def _catch_up(self) -> None:
        now_s = time.perf_counter()
        self._readings.append((now_s, time.process_time()))
        while self._next_s <= now_s:
            self._beats.append((self._next_s, now_s - self._next_s))
            self._next_s += BEAT_S


NEWS_EVERY_S = 0.1
PRIORITY = -10
MADE_AT_ONCE = 16
FEWEST_LINES = 64
MOST_LINES = 512
STOP: Literal["stop"] = "stop"


@dataclass(frozen=True, slots=True)
class Begin:
    """Order: prepare share `shard` of `shards` of the job, on the parent's `cores`."""

    job: Job
    shard: int
    shards: int
    cores: frozenset[int]


@dataclass(frozen=True, slots=True)
class Go:
    """Order: start; the job's times count from `origin_s` of `time.perf_counter`."""

    origin_s: float


@dataclass(frozen=True, slots=True)
class Ready:
    """Report: requests are prepared and connections open."""


@dataclass(frozen=True, slots=True)
class News:
    """Report: requests answered and failed since the last report; when the last user became warm, if all are."""

    done: list[Done]
    failed: int
    warm_s: float | None


@dataclass(frozen=True, slots=True)
class Finished:
    """Report: everything is answered; `pulse` is that of this process during the level.

    Nothing was sent from `stopped_s` on, by order or because requests had run out; None if every arrival had one.
    """

    log: RequestLog
    warm_s: float | None
    stopped_s: float | None
    pulse: Pulse


@dataclass(frozen=True, slots=True)
class Broken:
    """Report: the level failed with `error`."""

    error: CalibrationError


def main() -> None:
    """Serve the pipe whose file descriptor is the program's first argument."""
    be_woken_first()
    serve(Connection(int(sys.argv[1])))


def serve(pipe: Connection[Any, Any]) -> None:
    """The life of a worker: one level after another, until the parent closes the pipe or is gone."""
    _allow_many_connections()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner, suppress(BrokenPipeError):
        while True:
            try:
                begin = pipe.recv()
            except (EOFError, OSError):
                return
            if not isinstance(begin, Begin):
                continue  # a stop that crossed the end of its level
            system.stay_on(begin.cores)
            pipe.send(_outcome(runner, begin, pipe))


def _outcome(runner: asyncio.Runner, begin: Begin, pipe: Connection[Any, Any]) -> Finished | Broken:
    try:
        return runner.run(_ShareOfLevel(begin, pipe).run())
    except CalibrationError as error:
        return Broken(error)


def be_woken_first() -> None:
    """Raise the priority over a server on the same cores, if the system allows it: as root, or with CAP_SYS_NICE.

    A client uses little of a core, but its time stamps are right only if it is woken at once: behind the threads of an
    engine it stamps responses milliseconds late. Linux may schedule sessions before the processes in them (autogroups),
    and a worker has a session of its own, so both are set.
    """
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(PRIORITY))


def _allow_many_connections() -> None:
    """Raise the limit on open files, usually 1,024, since each connection is one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # the limit of macOS is lower than it reports
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, if it is installed: it receives with half the CPU time of asyncio's own loop."""
    try:
        import uvloop
    except ImportError:  # Windows
        return None
    return uvloop.new_event_loop


class _ShareOfLevel:
    """One job in this process, from the first prompt to the log."""

    def __init__(self, begin: Begin, pipe: Connection[Any, Any]) -> None:
        self._job = begin.job
        self._shard, self._shards = begin.shard, begin.shards
        self._pipe = pipe

    async def run(self) -> Finished:
        loop = asyncio.get_running_loop()
        self._go: asyncio.Future[float] = loop.create_future()
        async with client(self._job.server) as target:
            self._tally = LoadTally(target.reader(self._job.contract), cold=self._lines())
            loop.add_reader(self._pipe.fileno(), self._told)
            os.set_blocking(
                self._pipe.fileno(), True
            )  # uvloop makes it non-blocking, but a log is larger than a pipe's buffer
            try:
                requests = await self._requests(target)
                await target.connect(self._lines())
                with _no_garbage_collection():  # the last collection, of all prompts, is over before the start
                    self._pipe.send(Ready())
                    return await self._load(target, requests, await self._go)
            finally:
                loop.remove_reader(self._pipe.fileno())

    def _told(self) -> None:
        try:
            order = self._pipe.recv()
        except (EOFError, OSError):
            os._exit(1)  # the parent is gone
        if isinstance(order, Go):
            self._go.set_result(order.origin_s)
        elif order == STOP:
            self._tally.stop()

    def _lines(self) -> int:
        """Lines to open before the start: one per user; in an open loop twice the expected requests in flight."""
        if self._job.users is not None:
            return len(range(self._shard, self._job.users, self._shards))
        return math.ceil(min(MOST_LINES, max(FEWEST_LINES, self._job.warm_up)) / self._shards)

    async def _requests(self, target: Client) -> Iterator[Prepared]:
        """This share of the requests as bytes: some prepared before the start, the others as they are needed."""
        job = self._job
        source = (target.prepare(job.contract, request) for request in job.source.requests(self._shard, self._shards))
        made: list[Prepared] = []
        while len(made) < job.ahead / self._shards:
            some = list(itertools.islice(source, MADE_AT_ONCE))
            if not some:
                break
            made += some
            await asyncio.sleep(0)  # so that orders are received
        return itertools.chain(made, source)

    async def _load(self, target: Client, requests: Iterator[Prepared], origin_s: float) -> Finished:
        heart = Heartbeat()
        beside = [asyncio.create_task(work) for work in (self._report(), heart.beat())]
        try:
            await self._loop(target, requests, origin_s)
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
        self._send_news()
        tally, pulse = self._tally, heart.pulse()
        return Finished(tally.answers.log(), tally.warm_s, tally.stopped_s, pulse)

    async def _loop(self, target: Client, requests: Iterator[Prepared], origin_s: float) -> None:
        job, tally = self._job, self._tally
        if job.arrivals_s is not None:
            due_s = (origin_s + job.arrivals_s[self._shard :: self._shards]).tolist()
            until_s = origin_s + float(job.arrivals_s[-1])
            async with Lines(target, job.contract) as lines:
                await open_loop(lines.exchange, requests, tally, due_s=due_s, until_s=until_s)
            return
        numbers = range(self._shard, job.users or 0, self._shards)
        users = [target.stream(job.contract).exchange for _ in numbers]
        starts_s = [origin_s + job.ramp_s * number / (job.users or 1) for number in numbers]
        await closed_loop(users, requests, tally, warm_up=job.warm_up, starts_s=starts_s)

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(NEWS_EVERY_S)
            self._send_news()

    def _send_news(self) -> None:
        done, failed = self._tally.news()
        if done or failed:
            self._pipe.send(News(done, failed, self._tally.warm_s))


@contextmanager
def _no_garbage_collection() -> Iterator[Any]:
    """A collection stops the loop for tens of milliseconds once 100,000 responses are kept, and frees nothing."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
