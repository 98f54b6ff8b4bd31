"""A day's load hour by hour: GPUs that must run in each, against a fleet that is sized for the busiest hour all day."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sizing.errors import ScenarioError
from sizing.plan import Fleet, Question
from sizing.sensitivity import resized

HOURS = 24


@dataclass(frozen=True, slots=True)
class Hour:
    """Requests/s in the hour that begins at `hour`:00, and replicas and GPUs to run, spares included."""

    hour: int
    rate_per_s: float
    replicas: int
    gpus: int


@dataclass(frozen=True, slots=True)
class Daily:
    """A fleet that follows the load: 24 hours, its GPU-hours a day, and those of a constant fleet for the peak.

    Replicas are taken to start and stop at once; a fleet that needs minutes to load weights must start them as much
    earlier.
    """

    hours: tuple[Hour, ...]
    constant_gpus: int

    @property
    def gpu_hours(self) -> int:
        """GPU-hours a day when the fleet follows the load."""
        return sum(hour.gpus for hour in self.hours)

    @property
    def constant_gpu_hours(self) -> int:
        """GPU-hours a day of the fleet for the busiest hour."""
        return self.constant_gpus * len(self.hours)

    @property
    def saved(self) -> float:
        """Share of the constant fleet's GPU-hours that following the load saves."""
        return 1 - self.gpu_hours / self.constant_gpu_hours


def daily_rates(text: str) -> tuple[float, ...]:
    """Twenty-four requests/s, from midnight on, out of a comma-separated list; at least one above 0."""
    try:
        rates = tuple(float(word) for word in text.split(","))
    except ValueError:
        raise ScenarioError(f"--daily {text!r}: give 24 numbers with commas between them") from None
    if len(rates) != HOURS or not all(0 <= rate < float("inf") for rate in rates) or max(rates) == 0:
        raise ScenarioError(
            f"--daily needs 24 hourly rates (requests/s) of 0 or more, not all 0; got {len(rates)} in {text!r}"
        )
    return rates


def gpus_by_hour(question: Question, fleet: Fleet, rates_per_s: Sequence[float]) -> Daily:
    """The fleet's candidate sized for every hour; the fleet itself is sized for the busiest.

    Each hour by formula, times what the peak fleet's capacity (simulated, where it is) differs from the formula's. An
    hour without load keeps the spares.
    """
    hours = []
    for hour, rate_per_s in enumerate(rates_per_s):
        working = 0
        if rate_per_s > 0:
            then = replace(question, workload=replace(question.workload, rate_per_s=rate_per_s))
            working = min(resized(then, question, fleet)[0], fleet.working)
        replicas = working + fleet.spare
        hours.append(Hour(hour, rate_per_s, replicas, replicas * fleet.candidate.gpus))
    return Daily(tuple(hours), fleet.gpus)
