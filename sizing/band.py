"""How sure the answer is: the 90 % band of a replica's capacity, from what the law's data leave open."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from sizing.edge import LoadResponse, SlaMissed, analytic_capacity_per_s, load_response, log_excess, predict_at
from sizing.engine import Replica
from sizing.plans import Candidate
from sizing.question import Setting
from sizing.queueing import stable_rate_per_s

Z90 = 1.645
MONTE_CARLO_SIGMA = 0.015
"""Standard error of a simulated capacity at the number of requests the planner uses: 0.4 to 1.2 % over four questions
with sixteen seeds each, more where an SLA lies close to the idle latency."""
CLOSE, SHORT, STEPS = 0.02, 0.004, 4
"""Log of latency over limit, and of a step in the rate, from which no further step is taken; most steps."""


@lru_cache(maxsize=512)
def capacity_band(candidate: Candidate, setting: Setting) -> tuple[float, float]:
    """The 90 % band of a replica's capacity under the SLA as factors of it: (low, high).

    Low is 0 when, at the slow end, the SLA cannot be met at all. A fitted law brings pairs of laws one standard error
    apart along each eigenvector of its covariance: the changes of log capacity along them add in quadrature (sigma
    points). A law without covariance is made slower and faster by its relative error. Kept: it is the same for every
    load, and for the fleet by formula and the one by simulation.
    """
    if candidate.variants:
        middle = Middle.of(candidate.replica, setting)
        sigma = math.hypot(MONTE_CARLO_SIGMA, *(_half_change(pair, setting, middle) for pair in candidate.variants))
        return math.exp(-Z90 * sigma), math.exp(Z90 * sigma)
    low, high = scaled_capacities(candidate.replica, setting, math.exp(Z90 * candidate.relative_sigma))
    return low, high


def scaled_capacities(replica: Replica, setting: Setting, factor: float) -> tuple[float, float]:
    """Capacity of an engine `factor` times slower and of one as much faster, over that of `replica`; interpolated.

    An engine `factor` times slower under rate r is this engine under rate r factor, in slower time: its latencies meet
    the SLA where this engine's are `factor` below it. So both ends are read off one curve of the excess over the SLA.
    Where the formula puts even the faster engine over a limit that the simulation found kept, the band ends at 1.
    """
    response = load_response(replica, setting)
    middle = response.rate_per_s(0.0) or float(response.rates_per_s[0])
    step = math.log(factor)
    return response.rate_per_s(-step) / factor / middle, max(1.0, response.rate_per_s(step) * factor / middle)


class Middle(NamedTuple):
    """The law amid the pairs: its response to load, its stable rate, and the level of the response at its own edge,
    which is not quite 0 because the response is interpolated."""

    response: LoadResponse
    stable_per_s: float
    level: float

    @classmethod
    def of(cls, replica: Replica, setting: Setting) -> Middle:
        """By formula."""
        roughly = cls(load_response(replica, setting), _stable_per_s(replica, setting), 0.0)
        return roughly._replace(level=_level(replica, setting, roughly) or 0.0)

    def rate_per_s(self, level: float) -> float:
        """The rate at which the response reaches a level; the lowest rate where it is above it already."""
        return self.response.rate_per_s(level) or float(self.response.rates_per_s[0])


def _half_change(pair: tuple[Replica, Replica], setting: Setting, middle: Middle) -> float:
    """Half the change of log capacity between two laws; a law that fails alone counts as a hundredth of the middle."""
    least_per_s = middle.rate_per_s(middle.level) / 100
    one, other = (max(_capacity(replica, setting, middle), least_per_s) for replica in pair)
    return math.log(one / other) / 2


def _capacity(replica: Replica, setting: Setting, middle: Middle) -> float:
    """Capacity by formula of a replica much like the middle one; 0 when the SLA is missed without load.

    A whole response of its own takes ten times as long; it is asked for where steps along the middle's do not settle.
    """
    level = _level(replica, setting, middle)
    if level is not None:
        return _stable_per_s(replica, setting) / middle.stable_per_s * middle.rate_per_s(level)
    try:
        return analytic_capacity_per_s(replica, setting)
    except SlaMissed:
        return 0.0


def _level(replica: Replica, setting: Setting, middle: Middle) -> float | None:
    """Level of the middle's response at the share of the stable rate where this replica's edge is; None if not found.

    At equal shares of their stable rates the two use up the SLA alike, up to a constant, which is learned by asking
    the formula where the middle's edge is, and again where the constant leads. Mostly once is enough.
    """
    level, scale = middle.level, _stable_per_s(replica, setting) / middle.stable_per_s
    rate_per_s = scale * middle.rate_per_s(level)
    for _ in range(STEPS):
        over = log_excess(predict_at(replica, setting, rate_per_s), setting.sla)
        level -= over
        step_per_s = scale * middle.response.rate_per_s(level)
        if step_per_s == 0:
            return None
        if abs(over) <= CLOSE or abs(math.log(step_per_s / rate_per_s)) <= SHORT:
            return level
        rate_per_s = step_per_s
    return None


def _stable_per_s(replica: Replica, setting: Setting) -> float:
    return stable_rate_per_s(replica, setting.workload.lengths, setting.workload.prefix)
