"""Predicted latency percentiles of a replica or a fleet at a load, from the queue or from the simulator."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sizing.errors import ScenarioError
from sizing.numbers import Floats
from sizing.selection import order_statistics
from sizing.stats import weighted_quantiles
from sizing.workload import METRICS, MOST_GOODPUT, PERCENTILES, Limit, Metric, RequestMetric, Sla, Within, of_requests

Method = Literal["analytic", "simulation"]
CautionKind = Literal[  # noqa: RUF041 - grouped by where they come from
    Literal["approximate_arrivals", "unseen_herding", "not_modelled", "crowded", "wide_prompts"],  # of the formula
    Literal["herding", "lost_requests"],  # of the simulation
    Literal["saturation_disputed", "methods_differ"],  # of both, where they contradict each other
    Literal["beyond_measured", "below_measured", "beyond_context", "near_floor", "front_end", "diluted"],  # of a fleet
    Literal["poor_fit", "distrusted_point"],  # of a fit
    Literal["fitted_kv_tokens", "estimated_kv_tokens", "fitted_slots", "fitted_budget"],
    Literal["fitted_lookahead", "fitted_unread", "fitted_experts", "fitted_dense"],
    Literal["refuted_kv_tokens", "refuted_slots", "unknown_kv_tokens", "no_ttft", "no_itl"],  # of what its points say
    Literal[
        "lockstep", "all_queued", "one_level", "few_points", "one_isl", "unmeasured_isl", "fell_behind", "unused_points"
    ],  # of its points
    Literal["no_timings", "scaled_law", "other_engine", "moe_on_blackwell"],  # of an estimate
    Literal["slower_than_bf16", "rough_timings"],  # of its timings
]


@dataclass(frozen=True, slots=True)
class Caution:
    """Something a reader must know before relying on an answer: its kind, and the figures and names that go with it.

    Times are seconds. `sizing.text.caution` puts it into words.
    """

    kind: CautionKind
    facts: Mapping[str, float | str | tuple[str, ...]] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Mean and percentiles of one latency, in seconds."""

    mean_s: float
    p50_s: float
    p90_s: float
    p95_s: float
    p99_s: float

    @classmethod
    def of(cls, seconds: NDArray[np.float64]) -> Quantiles:
        """Quantiles of a sample of times from 0 on, by linear interpolation.

        Non-finite values are left out; NaN if nothing is left.
        """
        total = float(seconds.sum())
        sample = seconds if math.isfinite(total) else seconds[np.isfinite(seconds)]
        if not sample.size:
            return cls(*(float("nan"),) * 5)
        place = np.array(PERCENTILES) / 100 * (len(sample) - 1)
        low = place.astype(np.int64)
        ordered = order_statistics(sample, np.concatenate([low, np.minimum(low + 1, len(sample) - 1)]))
        below, above = ordered[: len(low)], ordered[len(low) :]
        found = below + (place - low) * (above - below)
        return cls(float(sample.mean()), *map(float, found))

    @classmethod
    def weighted(cls, seconds: NDArray[np.float64], weight: NDArray[np.float64]) -> Quantiles:
        """Quantiles of a sample of times that count by their `weight`, shape (n,): see `weighted_quantiles`.

        Non-finite values are left out; NaN if no weight is left.
        """
        counts = np.isfinite(seconds) & (weight > 0)
        if not counts.any():
            return NOT_COUNTED
        sample, own = seconds[counts], weight[counts]
        found = weighted_quantiles(sample, own, np.array(PERCENTILES) / 100)
        return cls(float(np.average(sample, weights=own)), *map(float, found))

    def at(self, percentile: float) -> float:
        """Seconds at p50, p90, p95 or p99."""
        return float(getattr(self, f"p{percentile}_s"))

    @property
    def known(self) -> bool:
        """False if there is nothing to take the quantiles of."""
        return not math.isnan(self.mean_s)


NOT_COUNTED = Quantiles(*(float("nan"),) * 5)
"""For gaps between tokens that were not requested."""


def used_up(within: Within, seconds_of: Callable[[RequestMetric], Floats]) -> Floats:
    """For each request, the largest share of a limit that it uses up, shape (n,); at most 1 if it meets them all.

    A request without an ITL uses up nothing of that limit.
    """
    shares = [seconds_of(metric) / limit_s for metric, limit_s in within]
    return np.asarray(np.fmax(np.fmax.reduce(shares), 0.0))


@dataclass(frozen=True, slots=True)
class Joint:
    """Requests judged by the limits `within` all at once. `goodput`: the share of all requests that meet them.

    `used`: the largest share of a limit that a request uses up (see `used_up`) at every tenth of a percentile, shape
    (1000,); infinite for requests that are not served.
    """

    within: Within
    goodput: float
    used: Floats = field(repr=False, compare=False)

    @classmethod
    def of(cls, within: Within, used: Floats) -> Joint:
        """From the shares used up by each request, shape (n,); by linear interpolation, as in `Quantiles`."""
        ordered = np.sort(used)
        place = TENTHS * (len(ordered) - 1)
        low = place.astype(np.int64)
        below, above, part = ordered[low], ordered[np.minimum(low + 1, len(ordered) - 1)], place - low
        rise = np.subtract(above, below, out=np.zeros(len(TENTHS)), where=(part > 0) & np.isfinite(below))
        return cls(within, float(np.mean(used <= 1)), below + rise * np.where(part > 0, part, 1.0))

    def at(self, percentile: float) -> float:
        """The share of its limits that all but 100 - `percentile` per cent of the requests stay below."""
        return float(self.used[round(10 * percentile)])


TENTHS = np.arange(round(10 * MOST_GOODPUT) + 1) / 1000
"""Shares of the requests at which `Joint` is known."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What users would see. `saturated`: the load exceeds what the fleet can carry, so that queues grow without end and
    the percentiles are meaningless. `utilization` is load over the highest stable rate. `gap`: quantiles of single gaps
    between tokens, pooled over all requests; `joint`: limits met at once; both known if requested. `rejected`: share of
    the requests that are rejected or time out; formulas have none."""

    ttft: Quantiles
    itl: Quantiles
    e2e: Quantiles
    saturated: bool
    utilization: float
    method: Method
    warnings: tuple[Caution, ...] = ()
    gap: Quantiles = NOT_COUNTED
    joint: Joint | None = None
    rejected: float = 0.0

    def of(self, metric: Metric) -> Quantiles:
        """The quantiles of one metric."""
        return {"ttft": self.ttft, "itl": self.itl, "gap": self.gap, "e2e": self.e2e}[metric]

    def value_s(self, limit: Limit) -> float:
        """Seconds predicted for the metric and percentile that `limit` refers to; for goodput, the share of the limits
        that is used up; for rejected requests, their share.

        Raises ScenarioError if gaps, or goodput within these limits, were not predicted: a limit must not be assumed
        met.
        """
        if limit.metric == "rejected":
            return self.rejected
        if limit.metric == "goodput":
            if self.saturated:
                return math.inf
            if self.joint is None or self.joint.within != limit.within:
                raise ScenarioError(f"{limit}: goodput is not known here, so it cannot be checked")
            return self.joint.at(limit.percentile)
        found = self.of(limit.metric)
        if limit.metric == "gap" and not found.known:
            raise ScenarioError(f"{limit}: the gaps between tokens are not known here, so it cannot be checked")
        return found.at(limit.percentile)

    def said(self, limit: Limit) -> str:
        """The value for people: a time, or the share of the requests that meet their limits or are turned away."""
        if limit.metric == "goodput" and self.joint is not None:
            return of_requests(self.joint.goodput)
        return limit.said(self.value_s(limit))

    def meets(self, sla: Sla) -> bool:
        """True when the load is stable and every limit holds."""
        return not self.saturated and all(self.used(limit) <= 1 for limit in sla.limits)

    def used(self, limit: Limit) -> float:
        """How much of the limit is used up, 1 = all of it. Requests that are turned away exceed every limit on
        latencies, and use up what its percentile leaves."""
        used, beyond = self.value_s(limit) / limit.limit_s, self.beyond(limit)
        return max(used, beyond / limit.may_exceed) if beyond else used

    def beyond(self, limit: Limit) -> float:
        """The share of the requests that exceed a limit on latencies because they are turned away."""
        return self.rejected if limit.metric in ("ttft", "itl", "e2e") else 0.0

    def binding(self, sla: Sla) -> Limit:
        """The limit with the least room left, as a share of itself."""
        return max(sla.limits, key=self.used)

    def as_dict(self) -> dict[str, dict[str, float]]:
        """The JSON shape of the CLI contract: metric -> {mean_s, p50_s, p90_s, p95_s, p99_s}; gap only where known."""
        return {metric: asdict(self.of(metric)) for metric in METRICS if metric != "gap" or self.gap.known}


def saturated(utilization: float, method: Method) -> Prediction:
    """The prediction for a load that no steady state can carry."""
    nothing = Quantiles(*(float("inf"),) * 5)
    return Prediction(nothing, nothing, nothing, True, utilization, method, gap=nothing)
