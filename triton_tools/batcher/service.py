"""The service-time curve: the time of one execution by batch size."""

from __future__ import annotations

import csv
import math
import os
import re
from bisect import bisect_left
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

from sizing.errors import PointsError, ScenarioError
from sizing.workload import parse_seconds

UNITS = {"service_time_s": 1.0, "service_time_ms": 1e-3, "service_time_us": 1e-6}


@dataclass(frozen=True, slots=True)
class ServiceTimes:
    """Seconds of one execution of n rows: a law a + b·n, or measured points with straight lines between them.

    A measured curve ends at the largest measured size; below the smallest, an execution takes as long as that one.
    """

    fixed_s: float = 0.0
    per_row_s: float = 0.0
    points: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        for value in (self.fixed_s, self.per_row_s, *(seconds for _, seconds in self.points)):
            if not (math.isfinite(value) and value >= 0):
                raise ScenarioError(f"a service time must be a finite time of 0 s or more, got {value:g}")
        if not self.points and self.fixed_s + self.per_row_s <= 0:
            raise ScenarioError("the service time of one row must be above 0 s")
        if any(seconds <= 0 for _, seconds in self.points):
            raise ScenarioError("every measured service time must be above 0 s")

    @property
    def largest(self) -> int | None:
        """The largest measured batch size; None for a law, which has no end."""
        return self.points[-1][0] if self.points else None

    def __call__(self, rows: int) -> float:
        """Seconds of one execution of `rows`. Raises ScenarioError beyond the measured sizes."""
        if not self.points:
            return self.fixed_s + self.per_row_s * rows
        if rows > self.points[-1][0]:
            raise ScenarioError(
                f"no service time for {rows} rows: the largest batch size measured is {self.points[-1][0]}; "
                "measure larger ones, or lower max_batch_size"
            )
        place = bisect_left(self.points, rows, key=itemgetter(0))
        if not place:
            return self.points[0][1]
        (below, below_s), (above, above_s) = self.points[place - 1 : place + 1]
        return below_s + (rows - below) / (above - below) * (above_s - below_s)


@dataclass(frozen=True, slots=True)
class Measured:
    """Service-time curves by the number of instances at work together; 0 if the table does not say how many."""

    curves: tuple[tuple[int, ServiceTimes], ...]

    @property
    def instances(self) -> tuple[int, ...]:
        """The measured instance counts; empty if the table does not have them."""
        return tuple(count for count, _ in self.curves if count)

    def of(self, instances: int) -> ServiceTimes:
        """The curve for so many instances; one without a count holds for any. Raises ScenarioError if there is none."""
        found = dict(self.curves)
        if instances in found or 0 in found:
            return found[instances if instances in found else 0]
        raise ScenarioError(
            f"no service times for {instances} instances: the measured counts are {', '.join(map(str, sorted(found)))}"
        )


def parse_service_times(text: str) -> Measured:
    """A law such as ``8ms+1.5ms*n``, or the path of a CSV table (see read_service_times).

    >>> parse_service_times("8ms+1.5ms*n").of(1)(4)
    0.014
    """
    law = re.fullmatch(r"\s*([^+*,]+?s)\s*(?:\+\s*([^+*,]+?s)\s*\*\s*n\s*)?", text.strip())
    if law and re.match(r"[0-9.]", law[1]) and not os.path.exists(text):
        per_row = parse_seconds("--service-times", law[2]) if law[2] else 0.0
        return Measured(((0, ServiceTimes(parse_seconds("--service-times", law[1]), per_row)),))
    return read_service_times(Path(text))


def read_service_times(path: Path) -> Measured:
    """The curves in a CSV with the columns batch_size and one of service_time_s, _ms, _us, and perhaps instances.

    Raises:
        PointsError: the file cannot be read, lacks a column, or has a wrong value (its line is named).
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            columns = reader.fieldnames or []
            unit = next((name for name in UNITS if name in columns), None)
            if "batch_size" not in columns or unit is None:
                raise PointsError(f"{path}: needs the columns batch_size and {', '.join(UNITS)} (one of them)")
            rows = [_row(path, reader.line_num, row, unit) for row in reader]
    except (OSError, ValueError, csv.Error) as error:
        raise PointsError(
            f"--service-times {path}: neither a file that can be read nor a law such as 8ms+1.5ms*n "
            f"({getattr(error, 'strerror', None) or error})"
        ) from error
    if not rows:
        raise PointsError(f"{path}: has no rows")
    curves: dict[int, dict[int, float]] = {}
    for instances, size, seconds in rows:
        if size in curves.setdefault(instances, {}):
            raise PointsError(f"{path}: batch size {size} is there twice")
        curves[instances][size] = seconds
    return Measured(
        tuple((count, ServiceTimes(points=tuple(sorted(curves[count].items())))) for count in sorted(curves))
    )


def _row(path: Path, line: int, row: dict[str, str], unit: str) -> tuple[int, int, float]:
    try:
        instances, size = int(row.get("instances") or 0), int(row["batch_size"])
        seconds = float(row[unit]) * UNITS[unit]
    except (TypeError, ValueError, OverflowError):
        raise PointsError(f"{path}, line {line}: batch_size and instances are whole numbers, {unit} a number") from None
    if size < 1 or instances < 0 or not (math.isfinite(seconds) and seconds > 0):
        raise PointsError(f"{path}, line {line}: batch_size must be at least 1 and {unit} above 0")
    return instances, size, seconds
