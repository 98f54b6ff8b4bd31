"""Logs of requests made by hand, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Sequence

from calibration.load.exchange import Exchange, Reader
from calibration.records import RequestLog
from tests.calibration.timings import Timing, logged

READER = Reader(len, exact=True)


def log_of(
    sent_s: Sequence[float],
    latency_s: Sequence[float],
    osl: int = 4,
    failed: Sequence[int] = (),
    short: Sequence[int] = (),
) -> RequestLog:
    """Requests of 10 input and `osl` output tokens.

    Those numbered in `failed` got an error and no token, those in `short` an answer that lacks one token.
    """

    def timing(number: int, at_s: float, took_s: float) -> Timing:
        count = osl - (number in short)
        tokens = () if number in failed else ((at_s + took_s, count),)
        error = "out of blocks" if number in failed else length_fault(count, osl)
        return Timing(at_s, at_s, at_s + took_s, tokens, 10, osl, error)

    return logged(timing(i, *times) for i, times in enumerate(zip(sent_s, latency_s, strict=True)))


def length_fault(tokens: int, osl: int) -> str:
    """What the load generator itself says of an answer of `tokens` tokens where `osl` were asked for."""
    return READER.fault(Exchange(10, osl, 0), tokens)
