"""One configuration of the dynamic batcher tried under a load: its latency, its batches, and the largest rate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sizing.workload import Limit
from triton_tools.batcher.config import DynamicBatching, ModelBatching
from triton_tools.batcher.dynamic import ServiceTime, simulate
from triton_tools.batcher.outcome import Outcome, percentile
from triton_tools.batcher.requests import Requests

TRIAL_REQUESTS = 3000
FINAL_REQUESTS = 20_000
STABLE = 0.98
"""Fraction of the capacity up to which a load is tried: beyond, the queue still grows when the run ends."""
CLOSE = 1.01
"""How far the largest rate within the budget may be above the one that is found."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a tuner tunes for: Poisson arrivals at `rate_per_s`, and the budget for the latency in the server (queue and
    execution). `seed` draws the arrivals, which are the same in every trial.
    """

    rate_per_s: float
    budget: Limit
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Setting:
    """What a tuner varies: instances, maximum batch size, delay, and preferred sizes (none: the maximum)."""

    instances: int
    max_batch_size: int
    delay_us: int = 0
    preferred: tuple[int, ...] = ()

    def model(self) -> ModelBatching:
        """The configuration, with all other settings at their defaults."""
        batching = DynamicBatching(preferred=self.preferred, delay_us=self.delay_us)
        return ModelBatching("tuned", self.max_batch_size, self.instances, batching)

    def __str__(self) -> str:
        delay = f"delay {self.delay_us / 1000:g} ms"
        preferred = f", preferred {list(self.preferred)}" if self.preferred else ""
        plural = "s" if self.instances > 1 else ""
        return f"{self.instances} instance{plural}, max_batch_size {self.max_batch_size}, {delay}{preferred}"


@dataclass(frozen=True, slots=True)
class Trial:
    """A setting under the load. `largest_rate_per_s`: the largest rate within the budget; None if it was not computed.

    `latency_s` is the budget's percentile; infinite if the load exceeds the capacity.
    """

    setting: Setting
    latency_s: float
    mean_batch: float
    utilization: float
    capacity_per_s: float
    largest_rate_per_s: float | None = None

    def meets(self, budget: Limit) -> bool:
        return self.latency_s <= budget.limit_s


def capacity_per_s(setting: Setting, service: ServiceTime) -> float:
    """Rows per second of the instances if they always execute the batch size that is fastest per row."""
    return setting.instances * max(size / service(size) for size in range(1, setting.max_batch_size + 1))


def attempt(setting: Setting, service: ServiceTime, load: Load, requests: int = TRIAL_REQUESTS) -> Trial:
    """Simulate the setting at the load."""
    capacity = capacity_per_s(setting, service)
    if load.rate_per_s >= capacity:
        return Trial(setting, float("inf"), float(setting.max_batch_size), 1.0, capacity)
    outcome = run(setting, service, load.rate_per_s, requests, load.seed)
    latency = percentile(outcome.latency_s, load.budget.percentile)
    return Trial(setting, latency, outcome.counters.mean_batch, outcome.utilization, capacity)


def run(setting: Setting, service: ServiceTime, rate_per_s: float, requests: int, seed: int) -> Outcome:
    """The setting under Poisson arrivals."""
    arrivals = Requests.poisson(rate_per_s, requests, np.random.default_rng(seed))
    return simulate(setting.model(), service, arrivals)


def largest_rate(setting: Setting, service: ServiceTime, load: Load, meets_at: float) -> float:
    """The largest rate within the budget, to 1 % or better and at most 98 % of the capacity.

    It is found by bisection from `meets_at`, a rate at which the budget is met. In ratios, because it may be far below
    the capacity.
    """
    low, high = meets_at, STABLE * capacity_per_s(setting, service)
    while high > CLOSE * low:
        middle = (low * high) ** 0.5
        outcome = run(setting, service, middle, TRIAL_REQUESTS, load.seed)
        if percentile(outcome.latency_s, load.budget.percentile) <= load.budget.limit_s:
            low = middle
        else:
            high = middle
    return low
