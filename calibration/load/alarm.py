"""Waking up an event loop at a given time, to some 50 µs.

Event loops wait in whole milliseconds, and so send up to one late: at a TTFT of 20 ms that is the 5 % at which a point
is void. On Linux a timer of the kernel wakes the loop through a file descriptor instead. Spinning over the last
millisecond would be as exact, but takes half a core at 1,000 requests/s, and shows as load on the client.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time
from types import TracebackType
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

    Where the system has no such timers (it is not Linux) it sleeps as the event loop does.
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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._fd >= 0:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)

    async def sleep_until(self, at_s: float) -> None:
        """Return at `at_s` of `time.perf_counter`; if that is past, as soon as others have had their turn."""
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
        except BlockingIOError:  # set anew meanwhile
            return
        if self._rings is not None and not self._rings.done():
            self._rings.set_result(None)
