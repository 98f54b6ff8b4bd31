"""A day's load hour by hour: GPUs that must run in each, against a fleet that is sized for the busiest hour all day."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from sizing.analyses.sensitivity import resized
from sizing.errors import ScenarioError
from sizing.plans import Fleet
from sizing.question import RATE, Question

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

    Replicas are assumed to start and stop instantly; a fleet that needs minutes to load weights must start them that
    much earlier.
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
    words = text.split(",")
    if len(words) != HOURS:
        raise ScenarioError(f"--daily needs 24 hourly rates (requests/s) with commas between them, got {len(words)}")
    rates = tuple(rate_of_hour(hour, word) for hour, word in enumerate(words))
    if max(rates) == 0:
        raise ScenarioError("--daily: of the 24 hourly rates at least one must be above 0")
    return rates


def peak_over_mean(rates: Sequence[float]) -> float:
    """The busiest hour over the mean of all: the peak factor of a question about the peak.

    >>> peak_over_mean([0.1] * 24), peak_over_mean([1.0, 3.0])
    (1.0, 1.5)
    """
    return max(1.0, max(rates) / fmean(rates))


def rate_of_hour(hour: int, word: str) -> float:
    """Requests/s of one hour, 0 or in RATE; raises ScenarioError, naming the hour, for anything else."""
    try:
        rate = float(word)
    except ValueError:
        rate = math.nan
    if rate and rate not in RATE:
        raise ScenarioError(
            f"--daily, hour {hour} of 0 to 23 (of 24 rates): {word.strip()!r} is not a number {RATE}, and not 0"
        )
    return rate


def gpus_by_hour(question: Question, fleet: Fleet, rates_per_s: Sequence[float]) -> Daily:
    """The fleet's candidate sized for every hour; the busiest has the fleet itself, which is sized for it.

    Each other by formula, scaled by the peak fleet's own capacity (simulated where it was verified) over the formula's.
    An hour without load keeps the spares.
    """
    hours = []
    for hour, rate_per_s in enumerate(rates_per_s):
        working = fleet.working if rate_per_s else 0
        if 0 < rate_per_s < max(rates_per_s):
            then = replace(question, workload=replace(question.workload, rate_per_s=rate_per_s))
            working = min(resized(then, question, fleet)[0], working)
        replicas = working + fleet.spare
        hours.append(Hour(hour, rate_per_s, replicas, replicas * fleet.candidate.gpus))
    return Daily(tuple(hours), fleet.gpus)
