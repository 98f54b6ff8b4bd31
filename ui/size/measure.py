"""Which lengths and load levels to measure so that an answer no longer stands outside what was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sizing.curves import Point
from sizing.plan import Candidate
from sizing.workload import Lengths

LEVELS = 4
"""Load levels asked for: from one request at a time to a quarter more than planned."""
BEYOND = 1.25


def to_measure(candidate: Candidate, lengths: Lengths, in_flight: float, points: Sequence[Point]) -> str:
    """What to measure of a candidate, in a sentence: its lengths, and concurrency levels up to beyond the plan's.

    `in_flight`: requests at once in a replica at the planned load; `points`: all to hand.
    """
    levels = " and ".join(", ".join(map(str, levels_to(in_flight))).rsplit(", ", 1))
    have = sorted({(p.isl, p.osl) for p in points if _of(candidate, p) and not p.void})
    known = ", ".join(f"{isl:,g} in / {osl:,g} out" for isl, osl in have)
    measured = f" Measured so far: {known} tokens, up to {candidate.calibrated_in_flight:,.0f} requests at once."
    return (
        f"To measure: {candidate.label} with {lengths.isl:,g} tokens in and {lengths.osl:,g} out, "
        f"at concurrency {levels}.{measured if have else ''}"
    )


def levels_to(in_flight: float) -> list[int]:
    """Whole concurrency levels in equal ratios from 1 to a quarter above `in_flight`.

    >>> levels_to(12.5)
    [1, 3, 6, 16]
    """
    top = max(2, math.ceil(BEYOND * in_flight))
    return sorted({round(top ** (step / (LEVELS - 1))) for step in range(LEVELS)})


def _of(candidate: Candidate, point: Point) -> bool:
    have = (point.model.lower(), point.gpu.lower(), point.precision.lower(), point.tp)
    return have == (candidate.model.lower(), candidate.gpu.lower(), candidate.precision.lower(), candidate.tp)
