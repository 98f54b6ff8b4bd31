"""How sure the answer is: the 90 % band of a replica's capacity, from what the law's data leave open."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sizing.capacity import BETWEEN, ENOUGH, LOADS, Setting, load_response, predict_at
from sizing.plan import Candidate
from sizing.prediction import Prediction
from sizing.queueing import stable_rate_per_s
from sizing.replica import Replica
from sizing.response import LoadResponse, log_excess

Z90 = 1.645
MONTE_CARLO_SIGMA = 0.015
"""Standard error of a simulated capacity at the number of requests the planner uses: 0.4 to 1.2 % over four questions
with sixteen seeds each, more where an SLA lies close to the idle latency."""
NEAR, CLOSE, STEPS, JUMP = 0.3, 0.02, 4, 0.05
"""Log of latency over limit within which a law is near the middle one, and from which a last step arrives; steps; and
from where on it says, at the middle capacity, that latencies jump there."""
STEEP = 0.25
"""Change of log rate with that logarithm below which an engine is near saturation, where latencies explode."""


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


@dataclass(frozen=True, slots=True)
class Middle:
    """The law amid the pairs, by formula: its `response` to load, its capacity as read off it, the log of latency over
    limit there, and the change of log rate with it; 0 where latencies jump, so that no steps along it arrive."""

    response: LoadResponse
    rate_per_s: float
    stable_per_s: float
    over: float
    slope: float

    @classmethod
    def of(cls, replica: Replica, setting: Setting) -> Middle:
        """Eleven predictions or so, kept by `load_response`, and one."""
        response = load_response(replica, setting)
        rate_per_s = response.rate_per_s(0.0) or float(response.rates_per_s[0])
        below_per_s, above_per_s = response.rate_per_s(-NEAR), response.rate_per_s(NEAR)
        over = log_excess(predict_at(replica, setting, rate_per_s), setting.sla)
        smooth = abs(over) <= JUMP and 0 < below_per_s < above_per_s
        slope = math.log(above_per_s / below_per_s) / (2 * NEAR) if smooth else 0.0
        return cls(response, rate_per_s, _stable_per_s(replica, setting), over, slope)

    @property
    def steep(self) -> bool:
        """True near saturation."""
        return self.slope < STEEP


def _half_change(pair: tuple[Replica, Replica], setting: Setting, middle: Middle) -> float:
    """Half the change of log capacity between two laws; a law that fails alone counts as a hundredth of the middle."""
    one, other = (max(_capacity(replica, setting, middle), middle.rate_per_s / 100) for replica in pair)
    return math.log(one / other) / 2


def _capacity(replica: Replica, setting: Setting, middle: Middle) -> float:
    """Capacity by formula of a replica much like the `middle` one, sought from there; 0 when the SLA is missed without
    load. Its own curve takes several times as long; it is drawn where steps along the middle one do not arrive.

    Near saturation the capacity is a share of the stable rate, much the same for both; later steps go by the secant.
    """
    rate_per_s, slope, step, before = middle.rate_per_s, middle.slope, 0.0, 0.0
    if middle.steep:
        faster = _stable_per_s(replica, setting) / middle.stable_per_s
        rate_per_s *= faster * math.exp(-middle.over * slope)
    for _ in range(STEPS if slope else 0):
        over = log_excess(predict_at(replica, setting, rate_per_s), setting.sla)
        if abs(over) > NEAR:
            break
        if middle.steep and step * (over - before) > 0:
            slope = step / (over - before)
        step, before = -over * slope, over
        rate_per_s *= math.exp(step)
        if abs(over) <= CLOSE:
            return rate_per_s
    return _capacity_by_curve(replica, setting, middle.response)


def _capacity_by_curve(replica: Replica, setting: Setting, alike: LoadResponse) -> float:
    """The same, off the part of the replica's `load_response` where it passes the SLA: a third of its loads.

    The two shares of LOADS between which it does are sought from those of the curve `alike`.
    """
    stable_per_s = _stable_per_s(replica, setting)
    known: dict[float, Prediction] = {}

    def excess(share: float) -> float:
        if share not in known:
            known[share] = predict_at(replica, setting, share * stable_per_s)
        return log_excess(known[share], setting.sla)

    shares = alike.rates_per_s / alike.rates_per_s[0] * LOADS[0]
    place = int(np.clip(np.searchsorted(LOADS, shares[alike.excess <= 0].max(initial=0.0)), 0, len(LOADS) - 1))
    while place > 0 and excess(LOADS[place]) > 0:
        place -= 1
    while place + 1 < len(LOADS) and excess(LOADS[place + 1]) <= 0:
        place += 1
    if place + 1 < len(LOADS) and excess(LOADS[place]) <= 0:
        first, last = (LOADS[place] + part * (LOADS[place + 1] - LOADS[place]) for part in BETWEEN)
        if excess(first) > 0 and place > 0:
            excess(LOADS[place - 1])
        if excess(last) <= 0 and place + 2 < len(LOADS) and excess(LOADS[place + 1]) <= ENOUGH:
            excess(LOADS[place + 2])
    return LoadResponse.of(known, stable_per_s, setting.sla).rate_per_s(0.0)


def _stable_per_s(replica: Replica, setting: Setting) -> float:
    return stable_rate_per_s(replica, setting.workload.lengths, setting.workload.prefix)
