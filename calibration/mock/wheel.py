"""A timer wheel: many thousand due times a second, by one timer of the event loop."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
TICKS_PER_S = 1000.0  # event loops count in milliseconds


class Wheel(Generic[T]):
    """Items and when they are due, rounded to the nearest millisecond; those due together are handed over as one list.

    Nothing wakes the loop while nothing is due. Items that a busy loop makes late come late; none is left out.
    """

    def __init__(self, on_due: Callable[[list[T]], None]) -> None:
        self._on_due = on_due
        self._buckets: dict[int, list[T]] = {}
        self._ticks: list[int] = []
        self._timer: asyncio.TimerHandle | None = None
        self._armed = 0
        self._loop = asyncio.get_running_loop()

    def at(self, due_s: float, item: T) -> None:
        """Hand `item` over at `due_s` of `time.perf_counter`."""
        tick = round(due_s * TICKS_PER_S)
        bucket = self._buckets.get(tick)
        if bucket is not None:
            bucket.append(item)
            return
        self._buckets[tick] = [item]
        heapq.heappush(self._ticks, tick)
        if self._timer is None or tick < self._armed:
            self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed = self._ticks[0]
        self._timer = self._loop.call_later(max(0.0, self._armed / TICKS_PER_S - time.perf_counter()), self._turn)

    def _turn(self) -> None:
        self._timer = None
        # by rounding, a timer that comes half a tick early still finds its items: the loop never spins for them
        now = round(time.perf_counter() * TICKS_PER_S)
        while self._ticks and self._ticks[0] <= now:
            self._on_due(self._buckets.pop(heapq.heappop(self._ticks)))
        if self._ticks:
            self._arm()
