"""Logs of requests made by hand, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Sequence

from calibration.records import RequestLog, Timing


def log_of(sent_s: Sequence[float], latency_s: Sequence[float], osl: int = 4, failed: Sequence[int] = ()) -> RequestLog:
    """Requests of 10 input and `osl` output tokens; those numbered in `failed` got an error and no token."""
    return RequestLog.of(
        Timing(
            intended_s=at_s,
            sent_s=at_s,
            end_s=at_s + took_s,
            tokens=() if number in failed else ((at_s + took_s, osl),),
            isl=10,
            osl=osl,
            error="out of blocks" if number in failed else "",
        )
        for number, (at_s, took_s) in enumerate(zip(sent_s, latency_s, strict=True))
    )
