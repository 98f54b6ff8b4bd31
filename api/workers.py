"""Processes that compute answers: cheap questions first, each question once, and none lost with a process.

An answer takes a core between milliseconds and a minute, and it is not known in advance which. So every question first
gets little time; one that needs more is asked again in the slow lane, which leaves a process to the others (the two
lowest levels of a multilevel feedback queue; Corbato, Merwin-Daggett, Daley 1962).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from api.forked import ForkServer, Job, Lost, Process, unpacked
from sizing.errors import NotComputed, TimeLimitReached

QUICK_S = 2.0
"""CPU seconds of a question in the quick lane; most answers take less in a warm process."""
LIVES = 2
"""Times that a question is tried if its process dies: one that needs too much memory must not end all processes."""
MOST_WAITING = 256
"""Most questions in progress at a time: the last of them would wait for minutes."""
KEPT_BYTES = 8 << 20
"""Size of the cache of packed answers: some seven hundred, each a tenth of its unpacked size."""


class Full(NotComputed):
    """Too many questions are in progress."""

    def __init__(self) -> None:
        super().__init__("too many questions are in progress: try again in a few seconds")


@dataclass(eq=False, slots=True)
class UnderWay:
    """A question in progress: how many callers wait for it, and whether it ends by itself within `quick_s`."""

    task: asyncio.Task[bytes] = field(init=False)
    waiting: int = 0
    ends_soon: bool = False


class Workers:
    """Answers jobs in `processes` processes, each job within `limit_s` seconds of CPU.

    A question that several callers ask is computed once. When the last of them leaves, it is given up, unless it is in
    the quick lane: then its process will soon be free, and the answer is cached. The slow lane never takes the last
    process if there are several. To be used from one event loop. `load`: functions of modules that load what all
    processes share; they are called before the first process starts.
    """

    def __init__(
        self, processes: int, limit_s: float, quick_s: float = QUICK_S, *, load: Sequence[Callable[[], object]] = ()
    ) -> None:
        self.limit_s, self.quick_s = limit_s, min(quick_s, limit_s)
        self._forks = ForkServer(load)
        self._processes = [Process(self._forks) for _ in range(processes)]
        self._idle = list(self._processes)
        self._free = asyncio.Semaphore(processes)
        self._slow = asyncio.Semaphore(max(1, processes - 1))
        self._under_way: dict[Job, UnderWay] = {}
        self._known: OrderedDict[Hashable, bytes] = OrderedDict()
        self._known_bytes = 0

    async def answer(self, job: Job) -> Any:
        """The answer, which is then cached. Raises Full, Lost, TimeLimitReached, and what the job itself raises."""
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
                    self._idle.append(process)
        raise AssertionError

    def end(self) -> None:
        """End all processes."""
        self._forks.end()
        for process in self._processes:
            process.end()
