"""Seconds that people wait, in one line: median, 95th percentile, worst."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence


def p95(values: Sequence[float]) -> float:
    """The smallest value that 95 of 100 do not exceed."""
    return sorted(values)[math.ceil(0.95 * len(values)) - 1]


def in_a_line(name: str, seconds: Sequence[float]) -> str:
    """Name and figures, for instance "change of the load   0.12 s median, 0.20 s p95, 0.31 s worst of 10"."""
    if not seconds:
        return f"{name:36s} none"
    median, most = statistics.median(seconds), max(seconds)
    return f"{name:36s} {median:7.3f} s median, {p95(seconds):.3f} s p95, {most:.3f} s worst of {len(seconds)}"
