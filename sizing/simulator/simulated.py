"""The requests of a simulated run and what they add up to: latencies, losses, rate, load, whether it is steady."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sizing.errors import ScenarioError
from sizing.numbers import percent
from sizing.prediction import NOT_COUNTED, Prediction, Quantiles, saturated
from sizing.simulator.gaps import TokenGaps
from sizing.simulator.records import CANCELLED, REJECTED, SERVED, TIMED_OUT, Requests
from sizing.simulator.steady import measured_part, quantile_interval, queue_grows, share_error
from sizing.simulator.tally import Tally, tallied
from sizing.simulator.watch import Watched
from sizing.workload import Limit, Metric, RequestMetric, Seconds, Sla

NOTHING_WATCHED = Watched()


@dataclass(frozen=True, slots=True, eq=False)
class Simulated:
    """The measured requests of a run, by arrival, and what they add up to.

    Arrays of shape (n,), seconds: `queue_s` from arrival to the first iteration with some of the prompt, `itl_s` the
    mean gap of a request (NaN with one output token). `outcome` is SERVED, REJECTED, TIMED_OUT or CANCELLED; all
    latencies are of the served, NaN of the others. Requests of the warm-up and of the end, when arrivals have stopped,
    are left out. `requests_per_s` (answers complete) and `mean_in_flight` (time average of the requests begun that have
    not left) speak of the whole fleet. `saturated`: there is no steady state; the load is above the highest stable rate
    though nobody is turned away, or the queue grew all along. `utilization`: load over that rate, which is the
    throughput with a line always waiting. `watched`: pauses, and the token gaps and time series that were asked for.
    """

    arrival_s: Seconds
    queue_s: Seconds
    ttft_s: Seconds
    itl_s: Seconds
    e2e_s: Seconds
    outcome: NDArray[np.int8]
    requests_per_s: float
    mean_in_flight: float
    saturated: bool
    utilization: float
    warnings: tuple[str, ...] = ()
    watched: Watched = NOTHING_WATCHED

    @property
    def rejected(self) -> int:
        """Requests that found the waiting line full."""
        return int(np.count_nonzero(self.outcome == REJECTED))

    @property
    def timed_out(self) -> int:
        """Requests that the server dropped from the waiting line."""
        return int(np.count_nonzero(self.outcome == TIMED_OUT))

    @property
    def cancelled(self) -> int:
        """Requests whose clients gave up."""
        return int(np.count_nonzero(self.outcome == CANCELLED))

    @property
    def lost(self) -> int:
        """Requests without a complete answer."""
        return int(np.count_nonzero(self.outcome != SERVED))

    def of(self, metric: RequestMetric) -> Seconds:
        """The seconds of every request for one metric; NaN for those not served."""
        return {"ttft": self.ttft_s, "itl": self.itl_s, "e2e": self.e2e_s}[metric]

    @property
    def gaps(self) -> TokenGaps:
        """The measured gaps between tokens. Raises ScenarioError where the run did not count them."""
        if not self.watched.measured_gaps:
            raise ScenarioError("this run did not count the gaps between tokens: ask for them, Watch(token_gaps=True)")
        return self.watched.measured_gaps[0]

    def quantiles(self, metric: Metric) -> Quantiles:
        """Mean and percentiles of one metric over the served; NaN of gaps that were not counted."""
        if metric == "gap":
            return self.gaps.quantiles() if self.watched.measured_gaps else NOT_COUNTED
        return Quantiles.of(self.of(metric))

    def exceeding_share(self, limit: Limit) -> float:
        """Share of the requests beyond a limit; a request that was not served is beyond every limit.

        Requests with a single token have no ITL and do not count there. Of a limit on gaps the share of all gaps.
        """
        if limit.metric == "gap":
            return self.gaps.share_above(limit.limit_s)
        seconds = self.of(limit.metric)
        counted = np.count_nonzero(np.isfinite(seconds)) + self.lost
        return (np.count_nonzero(seconds > limit.limit_s) + self.lost) / counted if counted else 0.0

    def meets(self, sla: Sla) -> bool:
        """True when the load is stable and at most 1 - p of the requests exceed each limit; counts, does not sort."""
        return not self.saturated and all(
            limit.percentile + 100 * self.exceeding_share(limit) <= 100 + 1e-9  # exactly 1 - p may round to above it
            for limit in sla.limits
        )

    def goodput(self, sla: Sla) -> float:
        """Share of all requests offered that are served within every limit, whatever the percentile it is set for.

        Raises ScenarioError for a limit on gaps, which are counted over all tokens and not request by request.
        """
        good = self.outcome == SERVED
        for limit in sla.limits:
            if limit.metric == "gap":
                raise ScenarioError(f"{limit}: gaps are counted over all tokens, so no request is good or bad by them")
            good &= ~(self.of(limit.metric) > limit.limit_s)
        return float(np.mean(good))

    def interval(self, metric: RequestMetric, percentile: float) -> tuple[float, float]:
        """90 % confidence interval of a percentile, seconds: how much another run of this length may differ.

        By batch means, see `steady`. Raises ScenarioError when fewer than 40 requests have the metric.
        """
        seconds = self.of(metric)
        return quantile_interval(seconds[np.isfinite(seconds)], percentile)

    def exceeding_interval(self, limit: Limit) -> tuple[float, float]:
        """90 % confidence interval of `exceeding_share`, by batch means; of a limit on requests, not on gaps."""
        if limit.metric == "gap":
            raise ScenarioError(f"{limit}: there is no interval of a share of gaps")
        seconds = self.of(limit.metric)
        lost = self.outcome != SERVED
        error = share_error(((seconds > limit.limit_s) | lost)[np.isfinite(seconds) | lost])
        share = self.exceeding_share(limit)
        return max(share - error, 0.0), min(share + error, 1.0)

    def prediction(self) -> Prediction:
        """Mean and percentiles of the served requests; infinite where the load is saturated."""
        warnings = self.warnings
        if self.lost:
            warnings += (
                f"{percent(self.lost / len(self.outcome), 1)} of the requests were rejected, timed out or cancelled: "
                "the latencies are those of the others",
            )
        if self.saturated:
            return replace(saturated(self.utilization, "simulation"), warnings=warnings)
        ttft, itl, e2e = Quantiles.of(self.ttft_s), Quantiles.of(self.itl_s), Quantiles.of(self.e2e_s)
        gap = self.quantiles("gap")
        return Prediction(ttft, itl, e2e, False, self.utilization, "simulation", warnings, gap)


def open_loop(
    run: Requests,
    request_s: float | Seconds,
    utilization: float,
    *,
    warmup: float = 0.0,
    drain: bool = True,
) -> Simulated:
    """The measured part of an open-loop run; `request_s` is what a request pays outside the engine, one or for each."""
    part = measured_part(run, warmup, drain=drain)
    tally = tallied(run, part, request_s)
    sent_s, wait_s, _, _, e2e_s = tally.seconds
    if tally.answers:
        requests_per_s = tally.answers / (sent_s[-1] - sent_s[0])
    else:
        done_s = run["done_s"][run["outcome"] == SERVED]
        requests_per_s = len(done_s) / (done_s.max() - run["arrival_s"][0]) if len(done_s) else 0.0
    overloaded = utilization >= 1 and not np.any(tally.outcome)
    outside_s = request_s if isinstance(request_s, float) else request_s[part]
    served_s = float(np.mean(e2e_s) - np.mean(wait_s) - np.mean(outside_s))
    stuck = bool(overloaded or queue_grows(wait_s, served_s))
    return simulated(tally, float(requests_per_s), utilization, stuck)


def simulated(tally: Tally, requests_per_s: float, utilization: float, stuck: bool) -> Simulated:
    """The result of a run whose measured requests are these."""
    if np.any(lost := tally.outcome != SERVED):
        tally.seconds[1:, lost] = np.nan
    sent_s, queue_s, ttft_s, itl_s, e2e_s = tally.seconds
    span_s = sent_s[-1] - sent_s[0]
    return Simulated(
        arrival_s=sent_s,
        queue_s=queue_s,
        ttft_s=ttft_s,
        itl_s=itl_s,
        e2e_s=e2e_s,
        outcome=tally.outcome,
        requests_per_s=requests_per_s,
        mean_in_flight=float(tally.in_flight_s / span_s) if span_s > 0 else 0.0,
        saturated=stuck,
        utilization=float(utilization),
    )
