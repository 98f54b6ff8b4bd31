"""The slow chain: how many sequences a replica holds, running or waiting for a slot.

A birth-death chain: births at the request rate, deaths at n / (E[OSL-1] ITL(n)), the ITL taken from the fast chain. Its
stationary law is what an arriving request finds; fleets and other arrival laws widen or narrow it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sizing.queueing.demand import Demand
from sizing.queueing.iteration_chain import Iterations
from sizing.workload import Arrivals, Routing

Floats = NDArray[np.float64]


def batch_grid(demand: Demand, most: int) -> Floats:
    """Decode batches for which the fast chain is solved: dense where few sequences run, even above."""
    if demand.decode_steps == 0:
        return np.zeros(1)
    grid = np.rint(np.concatenate([[0, 1, 2, 4, 8], np.linspace(0, most, 10)]))
    return np.unique(grid[grid <= most])


@dataclass(frozen=True, slots=True)
class SlowChain:
    """Stationary law of the number of sequences in the replica, running or waiting for a slot: `probability` (N,)."""

    probability: Floats
    slots: int

    @property
    def mean_running(self) -> float:
        """Mean number of running sequences."""
        return float(self.probability @ self._running)

    @property
    def variance_running(self) -> float:
        """Variance of the number of running sequences."""
        return float(self.probability @ self._running**2) - self.mean_running**2

    @property
    def _running(self) -> Floats:
        return np.asarray(np.minimum(np.arange(len(self.probability)), float(self.slots)))

    def found_by(self, uniform: Floats, spread: float) -> Floats:
        """Number that arrivals find (PASTA) at quantiles `uniform`, drawn towards the mean by sqrt(spread)."""
        count = np.searchsorted(np.cumsum(self.probability), uniform).astype(float)
        count = np.minimum(count, len(self.probability) - 1)
        mean = float(self.probability @ np.arange(len(self.probability)))
        return np.asarray(np.maximum(mean + (count - mean) * math.sqrt(spread), 0.0))


def slow_chain(iterations: Iterations, demand: Demand, most: int, rate_per_s: float, stable_per_s: float) -> SlowChain:
    """The chain at `rate_per_s`; with one output token nobody ever runs, and the chain is empty."""
    if demand.decode_steps == 0:
        return SlowChain(np.ones(1), 1)
    rates = flow_equivalent_rates(iterations, demand, most)
    tail = tail_ratio(rate_per_s / stable_per_s, demand.decode_steps_cv)
    return SlowChain(state_probabilities(rate_per_s, rates, tail), most)


def flow_equivalent_rates(iterations: Iterations, demand: Demand, most: int) -> Floats:
    """Requests/s finished with n = 1..most running sequences: n / (E[OSL-1] ITL(n))."""
    running = np.arange(1, most + 1, dtype=float)
    return np.asarray(running / (demand.decode_steps * np.interp(running, iterations.batch, iterations.itl_s)))


def state_probabilities(rate_per_s: float, rates_per_s: Floats, tail: float) -> Floats:
    """P(n) ~ product over j <= n of rate / rates(j), then geometric with ratio `tail` beyond the slots.

    Up to the slots every sequence gets the same share of the engine: Cohen's generalized processor sharing, where P(n)
    depends on the lengths through their mean only. With rates min(n, c) mu and tail = rho it is M/M/c exactly.
    """
    within = np.concatenate([[0.0], np.cumsum(np.log(rate_per_s / rates_per_s))])
    length = int(np.clip(math.log(1e-7) / math.log(tail), 10, 4000)) if tail > 0 else 10
    beyond = within[-1] + np.arange(1, length + 1) * math.log(max(tail, 1e-300))
    logarithm = np.concatenate([within, beyond])
    weight = np.exp(logarithm - logarithm.max())
    return np.asarray(weight / weight.sum())


def tail_ratio(utilization: float, service_cv: float) -> float:
    """Ratio P(n+1)/P(n) of a FCFS queue before the slots: rho^(2/(1 + cv^2)), the heavy-traffic exponent.

    Exact for exponential service (cv = 1)."""
    return float(utilization ** (2 / (1 + service_cv**2)))


def gaps_seen_cv2(arrivals: Arrivals, replicas: int, routing: Routing) -> float:
    """Squared cv of the gaps between the requests of one replica.

    Random routing thins the stream: 1 + (cv^2 - 1)/R, exact for renewal arrivals, and taken for least outstanding too.
    Round robin passes every R-th request: cv^2 / R, exact.
    """
    fleet = arrivals.cv**2
    return fleet / replicas if routing == "round_robin" else 1 + (fleet - 1) / replicas


def state_spread(arrivals: Arrivals, replicas: int, routing: Routing, overlap: float) -> float:
    """Variance of the number of sequences in a replica over its variance under Poisson arrivals (peakedness).

    Infinite-server queue: 1 + (c^2 - 1) E[min(S, S')]/E[S], c^2 of the gaps a replica sees; the `overlap` is 1/2 for
    exponential service: (1 + 1/R)/2 for Poisson and round robin. Least outstanding keeps all replicas equal: the
    fleet's own peakedness over R.
    """
    if routing == "least_outstanding":
        return (1 + (arrivals.cv**2 - 1) * overlap) / replicas
    return 1 + (gaps_seen_cv2(arrivals, replicas, routing) - 1) * overlap


def rate_near_an_arrival(rate_per_s: float, gaps_cv2: float, window_s: float) -> float:
    """Requests/s that an arriving request sees around itself, on average over `window_s` to either side.

    Renewal density: an arrival of a stream with gaps of squared cv c^2 has (c^2 - 1)/2 more companions on each side
    than rate x time, gained at a rate a: rate t + (c^2 - 1)/2 (1 - exp(-a rate t)). For c^2 < 1, a = 2/(1 - c^2)
    (exact for Erlang-2: nobody comes right after an arrival); for c^2 > 1, a = 3 (between the time scales of a gamma
    gap of cv 2).
    """
    expected = rate_per_s * window_s
    gained = 2 / (1 - gaps_cv2) if gaps_cv2 < 1 else 3.0
    excess = (gaps_cv2 - 1) / 2 * -math.expm1(-gained * expected)
    return rate_per_s * max(1 + excess / expected, 0.01)


def spread_with_stalls(overlap: float, stalled: float, spread: float) -> float:
    """`spread` as widened by the stalls that prompts cause to running sequences, a share `stalled` of their time.

    An arrival adds itself and, by pausing the others while its prompt runs, holds back stalled/(1 - stalled)
    departures: it moves the number of sequences by 1/(1 - stalled) instead of 1. Of the Poisson variance a share
    `overlap` = E[min(S, S')]/E[S] is the arrivals' own (1 for equal lengths, 1/2 for exponential ones): as in the
    infinite-server queue, where Var n = rate int (1-F) + (c^2 - 1) rate int (1-F)^2. Own derivation; it takes the error
    of p99 ITL at utilization 0.8 with 2000/256 tokens from -15 % to -7 %.
    """
    return spread * (1 + overlap * ((1 - stalled) ** -2 - 1))
