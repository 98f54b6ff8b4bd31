"""How sure the answer is: the 90 % band of a replica's capacity, from what the law's data leave open."""

from __future__ import annotations

import math

from sizing.capacity import Setting, SlaMissed, analytic_capacity_per_s
from sizing.plan import Candidate
from sizing.replica import Replica

Z90 = 1.645
MONTE_CARLO_SIGMA = 0.015
"""Standard error of a simulated capacity at the number of requests the planner uses."""


def capacity_band(candidate: Candidate, setting: Setting) -> tuple[float, float]:
    """The 90 % band of a replica's capacity under the SLA as factors of it: (low, high).

    Low is 0 when, at the slow end, the SLA cannot be met at all.

    A fitted law brings pairs of laws one standard error apart along each eigenvector of its covariance; the changes of
    log capacity along them add in quadrature (sigma points). A law without covariance is made slower and faster by its
    relative error.
    """
    middle = formula(candidate.replica, setting)
    if candidate.variants:
        sigma = math.hypot(MONTE_CARLO_SIGMA, *(_half_change(pair, setting, middle) for pair in candidate.variants))
        return math.exp(-Z90 * sigma), math.exp(Z90 * sigma)
    spread = math.exp(Z90 * candidate.relative_sigma)
    slow, fast = (formula(_scaled(candidate.replica, factor), setting) for factor in (spread, 1 / spread))
    return slow / middle, fast / middle


def formula(replica: Replica, setting: Setting) -> float:
    """Capacity by formula, 0 when the SLA is missed without load."""
    try:
        return analytic_capacity_per_s(replica, setting)
    except SlaMissed:
        return 0.0


def _half_change(pair: tuple[Replica, Replica], setting: Setting, middle: float) -> float:
    """Half the change of log capacity between two laws; a law that fails alone counts as a hundredth of the middle."""
    one, other = (max(formula(replica, setting), middle / 100) for replica in pair)
    return math.log(one / other) / 2


def _scaled(replica: Replica, factor: float) -> Replica:
    return Replica(replica.law.scaled(factor), replica.batching)
