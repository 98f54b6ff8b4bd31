"""How sure the answer is: the 90 % band of a replica's capacity, from what the law's data leave open."""

from __future__ import annotations

import math
from functools import lru_cache

from sizing.capacity import Setting, SlaMissed, analytic_capacity_per_s, load_response, predict_at
from sizing.plan import Candidate
from sizing.queueing import stable_rate_per_s
from sizing.replica import Replica
from sizing.response import log_excess

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
        changes = (_half_change(pair, setting, candidate.replica) for pair in candidate.variants)
        sigma = math.hypot(MONTE_CARLO_SIGMA, *changes)
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
    middle = response.rate_per_s(0.0) or _idle_per_s(replica, setting)
    step = math.log(factor)
    return response.rate_per_s(-step) / factor / middle, max(1.0, response.rate_per_s(step) * factor / middle)


def _half_change(pair: tuple[Replica, Replica], setting: Setting, middle: Replica) -> float:
    """Half the change of log capacity between two laws; one that fails alone counts as a hundredth of `middle`."""
    least_per_s = (load_response(middle, setting).rate_per_s(0.0) or _idle_per_s(middle, setting)) / 100
    one, other = (max(_capacity(replica, setting, middle), least_per_s) for replica in pair)
    return math.log(one / other) / 2


def _capacity(replica: Replica, setting: Setting, alike: Replica) -> float:
    """Capacity by formula of a replica much `alike` another; 0 when the SLA is missed without load.

    At equal shares of their stable rates the two use up the SLA alike, up to a constant, which is learned by asking
    the formula where the other's capacity would be, and again where the constant leads. Mostly once is enough. A whole
    response of its own takes ten times as long; it is asked for where that does not settle.
    """
    response, level = load_response(alike, setting), 0.0
    scale = _stable_per_s(replica, setting) / _stable_per_s(alike, setting)
    rate_per_s = scale * (response.rate_per_s(level) or _idle_per_s(alike, setting))
    for _ in range(STEPS):
        over = log_excess(predict_at(replica, setting, rate_per_s), setting.sla)
        level -= over
        step_per_s = scale * response.rate_per_s(level)
        if step_per_s == 0:
            break
        if abs(over) <= CLOSE or abs(math.log(step_per_s / rate_per_s)) <= SHORT:
            return step_per_s
        rate_per_s = step_per_s
    try:
        return analytic_capacity_per_s(replica, setting)
    except SlaMissed:
        return 0.0


def _stable_per_s(replica: Replica, setting: Setting) -> float:
    return stable_rate_per_s(replica, setting.workload.lengths, setting.workload.prefix)


def _idle_per_s(replica: Replica, setting: Setting) -> float:
    """The lowest rate of a replica's response."""
    return float(load_response(replica, setting).rates_per_s[0])
