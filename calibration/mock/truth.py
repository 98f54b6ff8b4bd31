"""What the mock really did, request by request, on the clock of the clients beside it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
NEVER = float("nan")


class Record:
    """One request while it is served; what has not happened yet is NaN."""

    __slots__ = ("final_sent_s", "first_sent_s", "first_tokens", "last_sent_s", "received_s", "tokens")

    def __init__(self, received_s: float) -> None:
        self.received_s = received_s
        self.first_sent_s = self.last_sent_s = self.final_sent_s = NEVER
        self.first_tokens = self.tokens = 0


@dataclass(frozen=True, slots=True)
class Truth:
    """Requests as columns, arrays of shape (n,) in the order in which they came; NaN: it did not come to that.

    Times are seconds of CLOCK_MONOTONIC (`time.perf_counter` on Linux) at which the mock had read the request, and gave
    the response with its first tokens, its last tokens, its end, to the operating system. `first_tokens` came with
    the first of them, `tokens` in all. `responses` and `cpu_s` (seconds of one core) are of the mock as a whole.
    """

    received_s: Floats
    first_sent_s: Floats
    last_sent_s: Floats
    final_sent_s: Floats
    first_tokens: Ints
    tokens: Ints
    responses: int = 0
    cpu_s: float = 0.0

    def __len__(self) -> int:
        return len(self.received_s)

    @classmethod
    def of(cls, records: list[Record], *, responses: int, cpu_s: float) -> Truth:
        """The columns of `records`."""
        columns: dict[str, Any] = {
            name: np.array([getattr(record, name) for record in records], kind) for name, kind in _COLUMNS.items()
        }
        return cls(responses=responses, cpu_s=cpu_s, **columns)

    @property
    def ttft_s(self) -> Floats:
        """Time to the first tokens of each request, waiting for a slot included."""
        return np.asarray(self.first_sent_s - self.received_s)

    @property
    def itl_s(self) -> Floats:
        """Mean gap of each request's tokens after those of its first response; NaN where there are none."""
        after = self.tokens - self.first_tokens
        gaps: Floats = np.divide(
            self.last_sent_s - self.first_sent_s, after, out=np.full(len(self), np.nan), where=after > 0
        )
        return gaps

    def between(self, start_s: float, stop_s: float) -> Truth:
        """The requests that came in [start_s, stop_s) and were answered to the end."""
        chosen = (self.received_s >= start_s) & (self.received_s < stop_s) & ~np.isnan(self.last_sent_s)
        return replace(self, **{name: getattr(self, name)[chosen] for name in _COLUMNS})

    def save(self, path: Path) -> None:
        """Write the truth to `path`, for `load`."""
        columns = {name: getattr(self, name) for name in _COLUMNS}
        with path.open("wb") as file:
            np.savez(file, totals=np.array([self.responses, self.cpu_s]), **columns)

    @classmethod
    def load(cls, path: Path) -> Truth:
        """What `save` wrote to `path`."""
        with np.load(path) as stored:
            responses, cpu_s = stored["totals"].tolist()
            columns: dict[str, Any] = {name: stored[name] for name in _COLUMNS}
        return cls(responses=round(responses), cpu_s=cpu_s, **columns)


_COLUMNS: dict[str, type] = {
    "received_s": np.float64,
    "first_sent_s": np.float64,
    "last_sent_s": np.float64,
    "final_sent_s": np.float64,
    "first_tokens": np.int64,
    "tokens": np.int64,
}
