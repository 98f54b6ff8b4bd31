"""The slow chain: how many sequences a replica holds, running or waiting for a slot.

A birth-death chain: births at the request rate, deaths at n / (E[OSL-1] ITL(n)), the ITL taken from the fast chain. Its
stationary law is what an arriving request finds; fleets and other arrival laws widen or narrow it (`Fluctuation`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from sizing.numbers import Floats
from sizing.queueing.demand import Demand
from sizing.queueing.iteration_chain import Iterations
from sizing.workload import Arrivals, Routing


def batch_grid(demand: Demand, most: int) -> Floats:
    """Decode batches for which the fast chain is solved: dense for small batches, evenly spaced above."""
    if demand.decode_steps == 0:
        return np.zeros(1)
    batches = {0, 1, 2, 4, 8, *(round(ninth * most / 9) for ninth in range(10))}
    return np.array(sorted(each for each in batches if each <= most), float)


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
    def waiting(self) -> float:
        """Probability that an arrival finds all slots taken (PASTA)."""
        return float(self.probability[self.slots :].sum())

    @property
    def variance_running(self) -> float:
        """Variance of the number of running sequences."""
        return float(self.probability @ self._running**2) - self.mean_running**2

    @property
    def _running(self) -> Floats:
        return np.asarray(np.minimum(np.arange(len(self.probability)), float(self.slots)))

    def found_by(self, uniform: Floats) -> Floats:
        """Number that arrivals find (PASTA) at quantiles `uniform`, ascending."""
        ends = np.searchsorted(uniform, np.cumsum(self.probability[:-1]), side="right")
        return np.repeat(np.arange(float(len(self.probability))), np.diff(ends, prepend=0, append=len(uniform)))


LEAST_RATIO = 1e-300
"""Replaces a ratio that is effectively zero where its logarithm is taken."""

LEAST_DISPERSION = 0.02
"""Evenly spaced arrivals of equal requests have no randomness, for which the state distribution has no limit."""


@dataclass(frozen=True, slots=True)
class Fluctuation:
    """How much the number of sequences in a replica fluctuates, compared with Poisson arrivals at one replica.

    `spread`: variance of the number that run over that under Poisson arrivals (peakedness). `dispersion`: of the
    arrivals' counts, variance over mean. `pooled`: replicas that share one queue, as routing by load nearly achieves.
    """

    spread: float = 1.0
    dispersion: float = 1.0
    pooled: int = 1

    @classmethod
    def of(cls, arrivals: Arrivals, replicas: int, routing: Routing, overlap: float) -> Fluctuation:
        """Infinite-server queue: 1 + (dispersion - 1) E[min(S, S')]/E[S]; the `overlap` is 1/2 for exponential service.

        Random routing leaves 1 + (c^2 - 1)/R of the fleet's dispersion c^2, round robin c^2/R, both exact. Routing by
        load keeps all replicas equal: the fleet's own peakedness over R. Two choices come so close to it that the
        simulation barely distinguishes them (largest rates 1-2 % apart).
        """
        fleet = float(arrivals.size) if arrivals.kind == "batch" else arrivals.cv**2
        if routing == "random" or replicas == 1:
            dispersion = max(1 + (fleet - 1) / replicas, LEAST_DISPERSION)
            return cls(1 + (dispersion - 1) * overlap, dispersion)
        fleet = max(fleet, LEAST_DISPERSION)
        if routing == "round_robin":
            return cls(1 + (fleet / replicas - 1) * overlap, fleet / replicas)
        return cls((1 + (fleet - 1) * overlap) / replicas, fleet / replicas, replicas)

    def with_stalls(self, overlap: float, stalled: float, prompt_cv: float) -> Fluctuation:
        """As widened by the stalls that prompts cause to running sequences, a share `stalled` of their time.

        An arrival adds itself and, by pausing the others while its prompt runs, holds back stalled/(1 - stalled)
        departures: it moves the number of sequences by 1/(1 - stalled) instead of 1, more or less as its prompt is
        longer or shorter than the mean (`prompt_cv`). Of the Poisson variance a share
        `overlap` = E[min(S, S')]/E[S] is the arrivals' own (1 for equal lengths, 1/2 for exponential ones): as in the
        infinite-server queue, where Var n = rate int (1-F) + (c^2 - 1) rate int (1-F)^2. Own derivation; it takes the
        error of p99 ITL at utilization 0.8 with 2000/256 tokens from -15 % to -7 %.
        """
        moved = (1 - stalled) ** -2 + (stalled / (1 - stalled) * prompt_cv) ** 2
        return replace(self, spread=self.spread * (1 + overlap * (moved - 1)))

    def tail_ratio(self, utilization: float, service_cv: float) -> float:
        """P(n+1)/P(n) of a FCFS queue before the slots: rho^(2 R/(R c_a^2 + c_s^2)), the heavy-traffic exponent.

        Exact for M/M/c; R of pooled replicas, c_a^2 the `dispersion` at one of them.
        """
        return float(utilization ** (2 * self.pooled / (self.pooled * self.dispersion + service_cv**2)))


@dataclass(frozen=True, slots=True)
class Places:
    """What sequences wait for: `number` of slots, or of mean sequences that the KV cache holds.

    `size_cv` of the places that running sequences take (0: one slot each). `work_cv` of the engine's time that a
    request takes when all places are taken: its prompt, and its share of the decode steps, places x steps / number.
    """

    number: int
    size_cv: float
    work_cv: float

    @classmethod
    def of(cls, demand: Demand, number: int, slots: int, prompt_share: float) -> Places:
        """Of an engine with so many `slots`, when `number` sequences run at once: fewer where memory is the limit.

        `prompt_share` of the saturated engine's time goes into prompts.
        """
        if number < slots:
            return cls(number, demand.memory_cv, demand.memory_work.cv(prompt_share))
        return cls(number, 0.0, demand.slot_work.cv(prompt_share))


def slow_chain(
    iterations: Iterations,
    demand: Demand,
    places: Places,
    rate_per_s: float,
    stable_per_s: float,
    fluctuation: Fluctuation,
) -> SlowChain:
    """The chain at `rate_per_s`; with one output token no sequence ever decodes, and the chain is empty."""
    if demand.decode_steps == 0:
        return SlowChain(np.ones(1), 1)
    rates = flow_equivalent_rates(iterations, demand, places.number)
    utilization = rate_per_s / stable_per_s
    tail = fluctuation.tail_ratio(utilization, places.work_cv)
    shared = fluctuation.tail_ratio(utilization, demand.decode_steps_cv)
    waiting = waiting_chance(rate_per_s, rates, utilization, shared, fluctuation.spread + places.size_cv**2)
    return SlowChain(state_probabilities(rate_per_s, rates, tail, waiting, fluctuation.spread), places.number)


def settled_batch(rates_per_s: Floats, rate_per_s: float) -> float:
    """Running sequences at which as many requests finish as arrive."""
    return float(min(1 + int(np.searchsorted(rates_per_s, rate_per_s)), len(rates_per_s)))


def flow_equivalent_rates(iterations: Iterations, demand: Demand, most: int) -> Floats:
    """Requests/s finished with n = 1..most running sequences: n / (E[OSL-1] ITL(n))."""
    running = np.arange(1, most + 1, dtype=float)
    return np.asarray(running / (demand.decode_steps * np.interp(running, iterations.batch, iterations.itl_s)))


def waiting_chance(
    rate_per_s: float, rates_per_s: Floats, utilization: float, shared: float, spread: float = 1.0
) -> float:
    """P(all places are taken): P(n) at the last place over 1 - the ratio by which it falls from there on.

    Where every place brings its own rate (many servers) the chance hardly depends on the lengths: Erlang's delay
    formula, ratio rho; stretched by `spread`, rho^(1/spread), as in Whitt's diffusion for G/GI/c (2004), where the
    chance depends on the peakedness alone. Sequences of different sizes make a compound Poisson number of places, of
    spread + size_cv^2. Where the places share one rate (processor sharing) the ratio is that of the work, `shared`.
    An engine is between the two: the logarithms are averaged, by a weight half-way from the elasticity of the rates to
    1; the whole way to either side, TTFT beyond the first waits comes out 10-20 % too low or too high.
    """
    within = _logarithm_within(rate_per_s, rates_per_s, spread)
    weight = np.exp(within - within.max())
    most = len(rates_per_s)
    fewer = max(round(0.8 * most), 1)
    elasticity = math.log(rates_per_s[-1] / rates_per_s[fewer - 1]) / math.log(most / fewer) if most > fewer else 1.0
    erlang = (1 + min(max(elasticity, 0.0), 1.0)) / 2
    ratio = erlang * math.log(utilization) / spread + (1 - erlang) * math.log(max(shared, LEAST_RATIO))
    full = weight[-1] / -math.expm1(ratio)
    return float(full / (full + weight[:-1].sum()))


def state_probabilities(
    rate_per_s: float, rates_per_s: Floats, tail: float, waiting: float, spread: float = 1.0
) -> Floats:
    """P(n) ~ product over j <= n of rate / rates(j) below the slots; from there on `waiting` in all, ratio `tail`.

    Up to the slots every sequence gets the same share of the engine: Cohen's generalized processor sharing, where P(n)
    depends on the lengths through their mean only. With rates min(n, c) mu, tail = rho and the `waiting_chance` it is
    M/M/c exactly. `spread` z other than 1 stretches the law as in a diffusion, whose density is exp(int 2 drift /
    variance): the logarithm over z; the factor rates(n)^-(1 - 1/z)/2 keeps the mean, exactly to first order in 1/mean.
    """
    within = _logarithm_within(rate_per_s, rates_per_s, spread)[:-1]
    below = np.exp(within - within.max())
    length = int(np.clip(math.log(1e-7) / math.log(tail), 10, 4000)) if tail > 0 else 1
    beyond = tail ** np.arange(length) if tail > 0 else np.ones(1)
    return np.concatenate([(1 - waiting) * below / below.sum(), waiting * beyond / beyond.sum()])


def _logarithm_within(rate_per_s: float, rates_per_s: Floats, spread: float) -> Floats:
    """Log P(n), n = 0..slots, up to a constant."""
    steps = np.log(rate_per_s / rates_per_s)
    within = np.concatenate([[0.0], np.cumsum(steps)]) / spread
    if spread != 1:
        within -= (1 - 1 / spread) / 2 * np.log(np.concatenate([rates_per_s[:1] / 2, rates_per_s]))
    return within
