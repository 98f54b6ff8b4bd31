"""Waking an event loop at a given time, to about 50 µs.

Event loops wait in whole milliseconds and may therefore send 1 ms late: at a TTFT of 20 ms, that is the 5 % at which a
point is void. On Linux a kernel timer wakes the loop through a file descriptor instead. Spinning during the last
millisecond would be as precise, but takes half a core at 1,000 requests/s, and shows as load on the client.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Self

_CLOCK_MONOTONIC = 1
_ABSOLUTE = 1
_NONBLOCK_CLOEXEC = 0o2004000


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Timer(ctypes.Structure):
    _fields_ = (("every", _Time), ("first", _Time))


class Alarm:
    """One sleeper at a time: ``async with Alarm() as alarm: await alarm.sleep_until(at_s)``.

    On systems other than Linux, which have no such timers, it sleeps as the event loop does.
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None) if sys.platform == "linux" else None
        self._fd = -1
        self._rings: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        if self._libc is not None:
            self._fd = self._libc.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK_CLOEXEC)
        if self._fd >= 0:
            asyncio.get_running_loop().add_reader(self._fd, self._rang)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._fd >= 0:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)

    async def sleep_until(self, at_s: float) -> None:
        """Return at `at_s` of `time.perf_counter`; if that is past, after one turn of the event loop."""
        if at_s <= time.perf_counter():
            await asyncio.sleep(0)
            return
        if self._fd < 0 or self._libc is None:
            await asyncio.sleep(at_s - time.perf_counter())
            return
        at_ns = round(at_s * 1e9)
        timer = _Timer(first=_Time(at_ns // 10**9, at_ns % 10**9))
        self._rings = asyncio.get_running_loop().create_future()
        self._libc.timerfd_settime(self._fd, _ABSOLUTE, ctypes.byref(timer), None)
        await self._rings

    def _rang(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:  # the timer was set again meanwhile
            return
        if self._rings is not None and not self._rings.done():
            self._rings.set_result(None)


# --- Cores: on a machine without a GPU the engine's cores are the device, and nothing else may compute on them
#
# When they were shared, the local server gave up to a third fewer requests/s, and its ITL varied by half between runs.


def usable() -> set[int]:
    """The cores that this process may use; empty on systems other than Linux."""
    return set(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else set()


def of_engine(threads: int) -> tuple[int, ...]:
    """The last `threads` usable cores, for the engine alone; none if that would leave no core for the rest."""
    cores = sorted(usable())
    return tuple(cores[-threads:]) if len(cores) > threads else ()


def stay_on(cores: Iterable[int]) -> None:
    """Bind every thread of this process, and those they start, to `cores`; with no cores, do nothing."""
    if wanted := set(cores):
        for thread in os.listdir("/proc/self/task"):
            with suppress(ProcessLookupError):  # the thread has ended
                os.sched_setaffinity(int(thread), wanted)


@contextmanager
def kept_off(cores: Iterable[int]) -> Iterator[None]:
    """Keep this process off `cores` for the duration, if it has others."""
    before = usable()
    stay_on(before - set(cores))
    try:
        yield
    finally:
        stay_on(before)


def written(cores: Iterable[int]) -> str:
    """Cores as text for a parameter: ``1,2``."""
    return ",".join(map(str, cores))


def read(text: str) -> tuple[int, ...]:
    """Cores from the text of a parameter; none if it is not a list of numbers.

    >>> read("1,2"), read("${engine_cores}")
    ((1, 2), ())
    """
    parts = text.split(",")
    return tuple(map(int, parts)) if all(part.strip().isdecimal() for part in parts) else ()
