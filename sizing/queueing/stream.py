"""The stream of requests at one replica: how many requests surround an arrival, and how bursty the stream is.

Two time scales matter. Over the life of a request only the variance of the counts counts (`dispersion`). Within an
iteration it is the company of a single arrival: the renewal function (`companions`). Streams more regular than Poisson
are then taken as Poisson with the lower rate that an arrival sees around itself; burstier ones as groups that arrive
at random and together (`groups_within`), which for batch arrivals is exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import gammainc, gammaln

from sizing.numbers import Floats
from sizing.workload import Arrivals, Routing

MOST_REGULAR = {"power_of_two": 1.0, "least_outstanding": 1.25}
"""Shape of the gaps that routing by load makes of Poisson arrivals, whatever the fleet: fits the simulated TTFT best
among 1, 1.25, 1.5, 2, 3. Departures call for the next request, so that chance returns as the fleet grows."""

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)


@dataclass(frozen=True, slots=True)
class Groups:
    """Requests that arrive together: `mean` of them, geometric in number, or always as many (`equal`)."""

    mean: float = 1.0
    equal: bool = False

    @property
    def variance(self) -> float:
        """Of the number in a group."""
        return 0.0 if self.equal else self.mean * (self.mean - 1)

    def sums(self, groups: int, most: int) -> Floats:
        """P(k groups are j requests), shape (groups, most); the last column holds all beyond."""
        k, j = np.arange(groups)[:, None], np.arange(most)[None, :]
        if self.equal or self.mean == 1:
            law = (j == np.rint(k * self.mean)).astype(float)
        else:
            ways = gammaln(np.maximum(j, 1)) - gammaln(np.maximum(k, 1)) - gammaln(np.maximum(j - k, 0) + 1)
            later = np.log1p(-1 / self.mean) * (j - k)
            law = np.where((j >= k) & (k > 0), np.exp(ways + later - k * np.log(self.mean)), (j == k).astype(float))
        law[:, -1] += np.maximum(0.0, 1 - law.sum(axis=1))
        return np.asarray(law)

    def companions(self, before: Floats, after: Floats) -> tuple[Floats, Floats]:
        """Requests of its own group before and after a request, at two uniform deviates."""
        if self.mean == 1:
            return 0 * before, 0 * after
        if self.equal:
            ahead = np.floor(before * self.mean)
            return ahead, np.maximum(self.mean - 1 - ahead, 0.0)
        more = math.log(1 - 1 / self.mean)
        return np.floor(np.log1p(-before) / more), np.floor(np.log1p(-after) / more)


@dataclass(frozen=True, slots=True)
class ArrivalStream:
    """Arrivals at one replica: `rate_per_s`; of a stream that is one in `thinned` at random of groups of `group`
    requests with gamma gaps of shape `shape` (1 = Poisson, infinite = constant) between the groups.
    """

    rate_per_s: float
    shape: float = 1.0
    group: float = 1.0
    thinned: float = 1.0

    @property
    def poisson(self) -> bool:
        """True for single requests at random."""
        return self.shape == 1 and self.group == 1

    @property
    def dispersion(self) -> float:
        """Variance of the count over its mean in a long time: 1 for Poisson, below for regular streams."""
        return 1 + (self.group / self.shape - 1) / self.thinned

    def companions(self, window_s: float) -> float:
        """Expected arrivals within `window_s` after an arrival: rate x window for Poisson; exact here."""
        groups = renewals(self.shape, self.rate_per_s * self.thinned / self.group * window_s)
        return ((self.group - 1) / 2 + self.group * groups) / self.thinned

    def excess_within(self, window_s: float) -> float:
        """Arrivals within `window_s` after an arrival beyond rate x window; in a long window (dispersion - 1)/2.

        Of constant gaps the smooth course of it: windows of different requests end anywhere between two arrivals.
        """
        if math.isinf(self.shape):
            expected = self.rate_per_s * self.thinned / self.group * window_s
            return ((self.group - 1) / 2 - self.group * min(expected, 0.5)) / self.thinned
        return self.companions(window_s) - self.rate_per_s * window_s

    def dispersion_within(self, window_s: float) -> float:
        """Variance over mean of the count in a window: 1 + (2/w) int (companions(u) - rate u) du (Cox, 1962)."""
        times = window_s * (1 + _NODES) / 2
        excess = np.array([self.companions(time) - self.rate_per_s * time for time in times])
        return max(1 + float(_WEIGHTS @ excess), 0.0)

    def rate_around(self, window_s: float) -> float:
        """Requests/s that an arrival sees around itself, at least 1 % of the rate."""
        return max(self.companions(window_s) / window_s, 0.01 * self.rate_per_s)

    def groups_within(self, window_s: float) -> Groups:
        """The groups that show the same variance of counts in `window_s`; single requests for regular streams."""
        if self.thinned == 1 and self.shape == 1:
            return Groups(self.group, equal=True)
        return Groups(max((1 + self.dispersion_within(window_s)) / 2, 1.0))


@lru_cache(maxsize=4096)
def renewals(shape: float, expected: float) -> float:
    """Expected gamma gaps completed within a time after an arrival in which `expected` come on average.

    The renewal function, sum over n of P(Gamma(n shape) <= shape expected), exact; beyond 60 its asymptote
    expected + (1/shape - 1)/2, infinite shape being constant gaps.
    """
    if shape == 1:
        return expected
    if math.isinf(shape):
        return float(math.floor(expected + 1e-9))
    if expected > 60:
        return expected + (1 / shape - 1) / 2
    most = int(expected + 10 * math.sqrt((expected + 1) / shape) + 10 / shape + 10)
    return float(gammainc(shape * np.arange(1, most + 1), shape * expected).sum())


def stream_of(arrivals: Arrivals, rate_per_s: float, replicas: int, routing: Routing) -> ArrivalStream:
    """What one of `replicas` sees of the fleet's arrivals; `rate_per_s` is its own.

    Random routing thins the stream, round robin passes every R-th request: both exact, but for batches smaller than
    the fleet under round robin, whose gaps are taken as gamma. Routing by load is nearly random on this time scale
    (`MOST_REGULAR`); what it does over the life of a request, `sizing.queueing.slow_chain.Fluctuation` says.
    """
    shape = {"constant": math.inf, "gamma": arrivals.cv**-2 if arrivals.cv else math.inf}.get(arrivals.kind, 1.0)
    group = float(arrivals.size)
    if routing == "random" or replicas == 1:
        return ArrivalStream(rate_per_s, shape, group, replicas if shape != 1 or group != 1 else 1)
    if group > replicas:
        return ArrivalStream(rate_per_s, 1.0, group / replicas)
    regular = shape * replicas / group
    return ArrivalStream(rate_per_s, min(regular, MOST_REGULAR.get(routing, math.inf)))
