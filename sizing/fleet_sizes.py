"""GPUs against load: the steps that a fleet takes as its load grows, and the ends of the band around them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sizing.band import capacity_band
from sizing.errors import ScenarioError
from sizing.plan import Fleet, Question
from sizing.planner import setting_of

MOST_STEPS = 300
"""Steps that are told one by one; of larger fleets so many evenly spaced loads are."""


@dataclass(frozen=True, slots=True)
class FleetSizes:
    """GPUs to own at rising load, spares included.

    `gpus[i]` hold from `rates_per_s[i]` to `rates_per_s[i + 1]`, the last also beyond. `low` and `high` are the ends of
    the 90 % band at the same loads; high is None where no number of GPUs meets the SLA at the slow end.
    """

    rates_per_s: tuple[float, ...]
    gpus: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...] | None


def gpus_for(question: Question, fleet: Fleet, rate_per_s: float, factor: float = 1.0) -> int:
    """GPUs for a load, spares included, when a replica carries `factor` times what it was found to carry.

    The fleet's own capacity is kept: exact for Poisson arrivals routed at random, else within the little that a
    replica's capacity changes with the size of its fleet.
    """
    working = math.ceil(rate_per_s / (fleet.requests_per_s_per_replica * factor) * (1 - 1e-9))
    return (max(working, 1) + question.spare) * fleet.candidate.gpus


def fleet_sizes(question: Question, fleet: Fleet, low_per_s: float, high_per_s: float) -> FleetSizes:
    """The steps from one load to another, in requests/s of the whole fleet.

    Raises ScenarioError unless 0 <= low_per_s < high_per_s.
    """
    if not 0 <= low_per_s < high_per_s < math.inf:
        raise ScenarioError(f"loads must rise from 0 or more, got {low_per_s:g} to {high_per_s:g} requests/s")
    slow, fast = capacity_band(fleet.candidate, setting_of(question, fleet.working))
    factors = [factor for factor in (1.0, fast, slow) if factor > 0]
    rates = _corners(fleet.requests_per_s_per_replica, factors, low_per_s, high_per_s)
    # Just above a corner the next replica is needed: what holds from a load on is asked a hair beyond it.
    beyond = [rate * (1 + 1e-6) + 1e-12 for rate in rates]
    counts = [tuple(gpus_for(question, fleet, rate, factor) for rate in beyond) for factor in factors]
    return FleetSizes(tuple(rates), counts[0], counts[1], counts[2] if len(counts) > 2 else None)


def _corners(per_replica_per_s: float, factors: list[float], low_per_s: float, high_per_s: float) -> list[float]:
    """Loads at which a replica is added at any of the factors on its capacity; evenly spaced ones where too many."""
    counts = [(high_per_s - low_per_s) / (per_replica_per_s * factor) for factor in factors]
    if sum(counts) > MOST_STEPS:
        return [float(rate) for rate in np.linspace(low_per_s, high_per_s, MOST_STEPS)]
    corners = {low_per_s}
    for factor in factors:
        each = per_replica_per_s * factor
        first, last = math.floor(low_per_s / each) + 1, math.ceil(high_per_s / each)
        corners.update(number * each for number in range(first, last))
    return sorted(corner for corner in corners if low_per_s <= corner < high_per_s)
