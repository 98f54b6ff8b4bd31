"""The load generator's own pulse: how late an event loop wakes, and what CPU time its process takes, moment by moment.

It is told with time stamps, because what counts is the window of a level, which the worker does not know.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from calibration.load.alarm import Alarm
from calibration.records import Floats

BEAT_S = 0.05


@dataclass(frozen=True, slots=True, eq=False)
class Pulse:
    """One process over a level, times in seconds of `time.perf_counter`.

    Beats were due at `due_s` and came `lag_s` late, shape (beats,). By `read_s` the process had used `cpu_s` of CPU
    time, all its threads together, shape (readings,), at least one.
    """

    due_s: Floats
    lag_s: Floats
    read_s: Floats
    cpu_s: Floats

    def lags_s(self, start_s: float, stop_s: float) -> Floats:
        """How late the beats came that were due in [start_s, stop_s), shape (beats in it,)."""
        return np.asarray(self.lag_s[(start_s <= self.due_s) & (self.due_s < stop_s)])

    def cores(self, start_s: float, stop_s: float) -> float:
        """Cores used on average from `start_s` to `stop_s`, which is later.

        Between two readings the use is taken as even; before the first and after the last as none, since a process
        whose share of a level is over does nothing.
        """
        before_s, after_s = np.interp([start_s, stop_s], self.read_s, self.cpu_s).tolist()
        return float(after_s - before_s) / (stop_s - start_s)


class Heartbeat:
    """Takes the pulse of this process: `beat` runs beside the load, `pulse` is asked for in the end.

    Beats are due on a fixed schedule, and each that a stall swallows is written down with its own lateness. Timed from
    one waking to the next, a stall of a second would be one late beat among hundreds in time (coordinated omission).
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
        """What was seen until now."""
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
