"""Processes that compute answers: cheap questions first, each question once, and none lost with a process.

An answer takes a core from some milliseconds to a minute, and nobody can tell beforehand which. So every question first
gets little time; one that needs more is asked again in the slow lane, which leaves a process to the others (the two
lowest levels of a multilevel feedback queue; Corbato, Merwin-Daggett, Daley 1962).
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import pickle
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from loky.process_executor import ProcessPoolExecutor, TerminatedWorkerError

from sizing.__main__ import OBJECTS_BETWEEN_COLLECTIONS
from sizing.compiled import has_compiled
from sizing.errors import NotComputed, TimeLimitReached

QUICK_S = 2.0
"""CPU seconds of a question in the quick lane: most answers take less, once a process is warm."""
LIVES = 2
"""Times that a question is computed whose process dies: one that needs too much memory must not end them all."""
MOST_WAITING = 256
"""Questions under way at a time: the last of them would wait for minutes."""
KEPT_BYTES = 8 << 20
"""Of answers that are remembered, packed: of some seven hundred questions, each a tenth of what it takes unpacked."""
PARENT_EVERY_S = 1.0
"""Seconds between two looks of a process at whether the server still lives."""


class Job(Hashable, Protocol):
    """A question that another process can answer; equal ones are the same question."""

    @property
    def kept_as(self) -> Hashable:
        """What its answer is kept under: equal for equal questions alone, and without what only computing needs."""

    def answer(self, limit_s: float) -> Any:
        """The answer; raises TimeLimitReached if it takes more than `limit_s` seconds of CPU."""


class Full(NotComputed):
    """Too many questions are under way."""

    def __init__(self) -> None:
        super().__init__("too many questions are under way: try again in a few seconds")


class Lost(NotComputed):
    """The process of a question died, every time."""

    def __init__(self) -> None:
        super().__init__("the process that computed the answer died, twice: too little memory? Ask for less at once")


def begin(parent: int) -> None:
    """Set this process up to compute for the server `parent`."""
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    end_with(parent)


class Packed(NamedTuple):
    """An answer, compressed, and whether the process that computed it is better replaced: it has compiled, and holds
    370 MB for it that a new one, which loads what was compiled, does without."""

    answer: bytes
    worn: bool


def packed(job: Job, limit_s: float) -> Packed:
    """The answer of a job; unpacked by `unpacked`."""
    try:
        return Packed(zlib.compress(pickle.dumps(job.answer(limit_s)), level=1), has_compiled())
    finally:
        give_back_memory()


def give_back_memory() -> None:
    """Return memory that nothing uses any more to the system, where the C library can: of arrays that were simulated,
    glibc keeps 60 MB in each process. Takes a millisecond."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


def unpacked(answer: bytes) -> Any:
    """What `packed` packed, in a process of our own: a copy for each who asks."""
    return pickle.loads(zlib.decompress(answer))


def end_with(parent: int) -> None:
    """End this process soon after its `parent`, whatever it computes then.

    A server that is killed cannot end its processes, and they would wait for questions for ever.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_EVERY_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="end with the server").start()


class Process:
    """One process, in an executor of its own: its death, or its end by our hand, is that of one question."""

    def __init__(self) -> None:
        self._pool: Any = None

    async def answer(self, job: Job, limit_s: float) -> bytes:
        """Answered there, packed. The process starts when it is first needed, and anew after its end; Lost if it dies.

        A caller that is cancelled takes the process with it: nothing else stops what it computes.
        """
        if self._pool is None:
            self._pool = ProcessPoolExecutor(max_workers=1, initializer=begin, initargs=(os.getpid(),))
        try:
            found: Packed = await asyncio.wrap_future(self._pool.submit(packed, job, limit_s))
        except asyncio.CancelledError:
            self.end()
            raise
        except TerminatedWorkerError:
            self.end()
            raise Lost from None
        if found.worn:
            self.end()
        return found.answer

    @property
    def runs(self) -> bool:
        """False before it is needed and after its end: then it takes seconds to start."""
        return self._pool is not None

    def end(self, *, wait: bool = False) -> None:
        """End it, whatever it does; with `wait` it is gone on return."""
        if self._pool is not None:
            self._pool.shutdown(wait=wait, kill_workers=True)
            self._pool = None


@dataclass(eq=False, slots=True)
class UnderWay:
    """A question that is being computed, how many wait for it, and whether it ends by itself within `quick_s`."""

    task: asyncio.Task[bytes] = field(init=False)
    waiting: int = 0
    ends_soon: bool = False


class Workers:
    """Answers jobs in `processes` processes, each job within `limit_s` seconds of CPU.

    Of several who ask the same, one is computed for. When the last of them leaves, it is given up, except while it runs
    in the quick lane: its process is free sooner than a new one would have started, and the answer is kept. The slow
    lane never takes the last process, if there are several. To be used from one event loop. `processes`: those that
    compute.
    """

    def __init__(self, processes: int, limit_s: float, quick_s: float = QUICK_S) -> None:
        self.limit_s, self.quick_s = limit_s, min(quick_s, limit_s)
        self.processes = [Process() for _ in range(processes)]
        self._idle = list(self.processes)
        self._free = asyncio.Semaphore(processes)
        self._slow = asyncio.Semaphore(max(1, processes - 1))
        self._under_way: dict[Job, UnderWay] = {}
        self._known: OrderedDict[Hashable, bytes] = OrderedDict()
        self._known_bytes = 0

    async def answer(self, job: Job) -> Any:
        """The answer, kept for the next who asks. Raises Full, Lost, TimeLimitReached, and what the job itself does."""
        if job.kept_as in self._known:
            self._known.move_to_end(job.kept_as)
            return unpacked(self._known[job.kept_as])
        asked = self._under_way.get(job) or self._begun(job)
        asked.waiting += 1
        try:
            return unpacked(await asyncio.shield(asked.task))
        finally:
            asked.waiting -= 1
            if asked.waiting == 0 and not asked.ends_soon:
                asked.task.cancel()  # of no effect once it is done
                self._forget(job, asked)

    def _begun(self, job: Job) -> UnderWay:
        if len(self._under_way) >= MOST_WAITING:
            raise Full
        asked = self._under_way[job] = UnderWay()
        asked.task = asyncio.create_task(self._computed(job, asked))
        asked.task.add_done_callback(lambda task: task.cancelled() or task.exception())  # perhaps nobody waits for it
        return asked

    def _forget(self, job: Job, asked: UnderWay) -> None:
        if self._under_way.get(job) is asked:  # another may have begun since
            del self._under_way[job]

    async def _computed(self, job: Job, asked: UnderWay) -> bytes:
        try:
            found = await self._in_lanes(job, asked)
        finally:
            self._forget(job, asked)
        self._keep(job, found)
        return found

    def _keep(self, job: Job, found: bytes) -> None:
        self._known_bytes += len(found) - len(self._known.pop(job.kept_as, b""))
        self._known[job.kept_as] = found
        while self._known_bytes > KEPT_BYTES:
            _, oldest = self._known.popitem(last=False)
            self._known_bytes -= len(oldest)

    async def _in_lanes(self, job: Job, asked: UnderWay) -> bytes:
        try:
            return await self._in_lane(job, self.quick_s, asked)
        except TimeLimitReached:
            if self.limit_s <= self.quick_s or not asked.waiting:
                raise
        async with self._slow:
            return await self._in_lane(job, self.limit_s)

    async def _in_lane(self, job: Job, limit_s: float, quick: UnderWay | None = None) -> bytes:
        for life in range(LIVES):
            async with self._free:
                process = self._idle.pop()
                if quick:
                    quick.ends_soon = limit_s > 0  # 0 is no limit
                try:
                    return await process.answer(job, limit_s)
                except Lost:
                    if life == LIVES - 1:
                        raise
                finally:
                    if quick:
                        quick.ends_soon = False
                    self._idle.insert(len(self._idle) if process.runs else 0, process)  # the last is taken first
        raise AssertionError

    def end(self) -> None:
        """End all processes and return their semaphores, of which loky complains when a server ends by a signal."""
        for process in self.processes:
            process.end(wait=True)
        gc.collect()
