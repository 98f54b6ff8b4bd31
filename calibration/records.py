"""What a client saw of each request, as columns: the log that metrics are computed from, kept as Parquet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sizing.numbers import Floats
from sizing.points import Point

Ended = Literal["precise", "count", "budget", "schedule", "failing"]
"""Why measuring ended: the confidence intervals are narrow enough, the planned number of requests was answered, the
time is used up, no arrivals or requests are left, or more requests failed than were answered.
"""

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
MOST_REQUESTS = 5_000_000
"""Most requests of one level, so that its log fits in memory and on disk."""


@dataclass(frozen=True, slots=True)
class RequestLog:
    """Requests as the client saw them, as columns, arrays of shape (n,), in seconds of one monotonic clock.

    `intended_s` is when a request was due; in a closed loop that is `sent_s`. `end_s` is when it was over, including an
    empty final response. `isl` and `osl` are the lengths requested. `error`, if not empty, is what went wrong. `chunks`
    is the number of each request's responses with tokens; `chunk_at_s` and `chunk_tokens`, shape (chunks.sum(),), hold
    those responses, one request after another. `turn` is the number of a request in its session, from 0; 0 without
    sessions.
    """

    intended_s: Floats
    sent_s: Floats
    end_s: Floats
    isl: Ints
    osl: Ints
    error: tuple[str, ...]
    chunks: Ints
    chunk_at_s: Floats
    chunk_tokens: Ints
    turn: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    def __post_init__(self) -> None:
        if not len(self.turn):
            object.__setattr__(self, "turn", np.zeros(len(self.sent_s), np.int64))

    def __len__(self) -> int:
        return len(self.sent_s)

    @classmethod
    def joined(cls, logs: Sequence[RequestLog]) -> RequestLog:
        """One log of the requests of all `logs`, at least one, one log after another."""
        columns = {
            column.name: np.concatenate([getattr(log, column.name) for log in logs])
            for column in fields(cls)
            if column.name != "error"
        }
        return cls(error=tuple(error for log in logs for error in log.error), **columns)

    def where(self, chosen: Mask) -> RequestLog:
        """The log of the requests that `chosen`, shape (n,), marks."""
        columns = ("intended_s", "sent_s", "end_s", "isl", "osl", "chunks", "turn")
        rows = {name: getattr(self, name)[chosen] for name in columns}
        of_rows = np.repeat(chosen, self.chunks)
        error = tuple(error for error, take in zip(self.error, chosen, strict=True) if take)
        return RequestLog(
            error=error, chunk_at_s=self.chunk_at_s[of_rows], chunk_tokens=self.chunk_tokens[of_rows], **rows
        )

    def due_within(self, start_s: float, stop_s: float) -> Mask:
        """True for the requests that were due from `start_s` on, before `stop_s`."""
        return np.asarray((self.intended_s >= start_s) & (self.intended_s < stop_s))

    @property
    def failed(self) -> Mask:
        """True for the requests with an error."""
        return np.array([bool(error) for error in self.error], bool)

    @property
    def tokens(self) -> Ints:
        """Output tokens received, per request."""
        owner = np.repeat(np.arange(len(self)), self.chunks)
        return np.bincount(owner, weights=self.chunk_tokens, minlength=len(self)).astype(np.int64)

    @property
    def first_chunk_tokens(self) -> Ints:
        """Tokens in the first response with tokens; 0 if there was none."""
        return self._at(self.chunk_tokens, self._starts, 0).astype(np.int64)

    @property
    def first_token_s(self) -> Floats:
        """When the first token came; NaN if none did."""
        return self._at(self.chunk_at_s, self._starts, np.nan)

    @property
    def last_token_s(self) -> Floats:
        """When the last token came; NaN if none did."""
        return self._at(self.chunk_at_s, self._starts + np.maximum(0, self.chunks - 1), np.nan)

    @property
    def begins(self) -> Mask:
        """True for the first response of each request, shape (chunks.sum(),)."""
        found = np.zeros(len(self.chunk_at_s), bool)
        found[self._starts[self.chunks > 0]] = True
        return found

    @property
    def _starts(self) -> Ints:
        return np.asarray(np.cumsum(self.chunks) - self.chunks)

    def _at(self, column: Floats | Ints, index: Ints, absent: float) -> Floats:
        found = np.full(len(self), absent, np.float64)
        some = self.chunks > 0
        found[some] = column[index[some]]
        return found


@dataclass(frozen=True, slots=True)
class ClientHealth:
    """The load generator's own state during a level, within its window.

    `cpu_cores`: cores that its `processes` used together; `busiest_core`: the fraction of one core that the busiest of
    them used. `loop_lag_p99_s`: p99 lateness of timers in their event loops.
    """

    processes: int = 1
    cpu_cores: float = 0.0
    busiest_core: float = 0.0
    loop_lag_p99_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Load:
    """All requests of one level, warm-up and drain included, and the window of full load: [start_s, stop_s).

    `issued` requests fell due inside the window; `offered_per_s`, in an open loop, is their planned rate. `served`: by
    how many requests, of all clients, the server's own counters rose during the level; None if that is unknown.
    `counts_tokens`: False if no token is counted, and the responses of an answer stand for its tokens.
    """

    log: RequestLog
    start_s: float
    stop_s: float
    issued: int
    ended: Ended
    client: ClientHealth = ClientHealth()
    offered_per_s: float | None = None
    served: int | None = None
    counts_tokens: bool = True

    @property
    def of_others(self) -> int:
        """Requests of other clients that the server answered; 0 if that is unknown."""
        return 0 if self.served is None else max(0, self.served - len(self.log))

    @property
    def duration_s(self) -> float:
        """Length of the window in seconds."""
        return self.stop_s - self.start_s


@dataclass(frozen=True, slots=True)
class Measurement:
    """A point with the figures and requests behind it.

    `facts` are figures without a column in the points table, by name with unit, such as ``late_p99_s``; `server` are
    the server's own metrics during the level. `log` holds the requests; the window is in the facts ``window_start_s``
    and ``window_stop_s``, on the log's clock.
    """

    point: Point
    facts: Mapping[str, float] = field(default_factory=dict)
    server: Mapping[str, float] = field(default_factory=dict)
    log: RequestLog | None = None
