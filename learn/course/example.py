"""The course's worked example, a call centre: from calls a year to servers, on its published measurements."""

from __future__ import annotations

from functools import cache

from learn.course.demand import per_second
from learn.course.fleet import CourseSizing, size
from learn.course.throughput import Goal, best
from sizing.files import resource
from sizing.points import Point, read_points

FILE = resource("data/course/h100-llama3-8b-2000-200.csv")
CALLS_PER_YEAR = 30e6
MINUTES_PER_CALL = 10
REQUESTS_PER_MINUTE = 3
PEAK_FACTOR = 7
LIMITS = ("300ms", "500ms")
"""Two limits on mean TTFT, sized one after the other."""


def mean_per_s() -> float:
    """Requests/s on average: 9e8 a year, 28.54/s."""
    return per_second(CALLS_PER_YEAR * MINUTES_PER_CALL * REQUESTS_PER_MINUTE)


def peak_per_s() -> float:
    """Seven times the average: 199.77/s."""
    return PEAK_FACTOR * mean_per_s()


@cache
def measured() -> tuple[Point, ...]:
    """Published closed-loop means of Llama3-8B on an H100, 2,000 tokens in and 200 out, fp16 and fp8.

    Raises PointsError when the file is missing.
    """
    return tuple(read_points(FILE))


def sizings() -> tuple[CourseSizing, ...]:
    """The example under its two limits."""
    return tuple(size(best(measured(), [Goal.parse("ttft", limit)]), peak_per_s()) for limit in LIMITS)
