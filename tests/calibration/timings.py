"""Requests written down one by one, and the log they make."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from calibration.records import RequestLog


@dataclass(frozen=True, slots=True)
class Timing:
    """One request as the client saw it, in seconds of one monotonic clock.

    `intended_s` is when it was due: in a closed loop that is `sent_s`. `tokens` are (time, new tokens) of each response
    that carried tokens. `end_s` is when the request was over, an empty final response included. `isl` and `osl` were
    asked for. `error`, if not empty, is what went wrong. `turn` is its number in a session.
    """

    intended_s: float
    sent_s: float
    end_s: float
    tokens: tuple[tuple[float, int], ...]
    isl: int
    osl: int
    error: str = ""
    turn: int = 0


def logged(timings: Iterable[Timing]) -> RequestLog:
    """The log of `timings`, in their order."""
    rows = list(timings)
    chunks = [chunk for row in rows for chunk in row.tokens]
    return RequestLog(
        intended_s=np.array([row.intended_s for row in rows], np.float64),
        sent_s=np.array([row.sent_s for row in rows], np.float64),
        end_s=np.array([row.end_s for row in rows], np.float64),
        isl=np.array([row.isl for row in rows], np.int64),
        osl=np.array([row.osl for row in rows], np.int64),
        error=tuple(row.error for row in rows),
        chunks=np.array([len(row.tokens) for row in rows], np.int64),
        chunk_at_s=np.array([at_s for at_s, _ in chunks], np.float64),
        chunk_tokens=np.array([tokens for _, tokens in chunks], np.int64),
        turn=np.array([row.turn for row in rows], np.int64),
    )
