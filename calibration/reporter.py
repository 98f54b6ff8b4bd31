"""How a run tells what it does: to the person who waits for it, and to the store for all who watch."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

from calibration.plan import Level
from calibration.records import Measurement
from calibration.store.text import clean

LINES = 40
"""Of what a run says, the store has the last so many."""
LONGEST_LINE = 300


class Progress:
    """Hears of the progress of a run, always from the thread that called `run`; on its own it tells nobody."""

    def started(self, run_id: int) -> None:
        """The run is in the store."""

    def says(self, text: str) -> None:
        """A line for the person who waits."""

    def expects(self, level: Level, seconds: float, after_s: float) -> None:
        """`level` comes next and is thought to take `seconds`, what follows it `after_s`."""

    def share(self, done: float) -> None:
        """So much of the present level is over, 0 to 1."""

    def measured(self, level: Level, found: Measurement) -> None:
        """The point of `level` is in the store."""


class Reporter(Progress):
    """Progress that keeps what the store is told with each heartbeat, and hands everything on to `listener`."""

    def __init__(self, run_id: int, listener: Progress) -> None:
        self._listener = listener
        self._lock = threading.Lock()  # `news` is asked for by the thread of the heartbeat
        self._lines: deque[str] = deque(maxlen=LINES)
        self._note(phase="checking the load generator")
        listener.started(run_id)

    def news(self) -> Mapping[str, Any]:
        """Columns of the table of runs: phase, share of the present level, seconds left, last lines."""
        with self._lock:
            left_s = (1 - self._share) * self._level_s + self._after_s
            log = "\n".join(map(clean, self._lines))
            return {"phase": self._phase, "share": self._share, "left_s": left_s or None, "log": log}

    def says(self, text: str) -> None:
        with self._lock:
            self._lines.append(text[:LONGEST_LINE])
        self._listener.says(text)

    def expects(self, level: Level, seconds: float, after_s: float) -> None:
        self._listener.expects(level, seconds, after_s)
        self._note(phase=level.label, level_s=seconds, after_s=after_s)

    def share(self, done: float) -> None:
        with self._lock:
            self._share = min(1.0, done)
        self._listener.share(done)

    def measured(self, level: Level, found: Measurement) -> None:
        point = found.point
        verdict = f", {point.verdict}" if point.verdict else ""
        with self._lock:
            self._lines.append(f"{level.label}: {point.requests_per_s:.3g} requests/s{verdict}")
        self._note(phase="between two levels", after_s=self._after_s)
        self._listener.measured(level, found)

    def _note(self, *, phase: str, level_s: float = 0.0, after_s: float = 0.0) -> None:
        with self._lock:
            self._phase, self._share, self._level_s, self._after_s = phase, 0.0, level_s, after_s
