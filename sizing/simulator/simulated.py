"""The requests of a simulated run and what they add up to: latencies, rate, load, whether there is a steady state."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sizing.prediction import Prediction, Quantiles, saturated
from sizing.replica import Replica
from sizing.simulator.records import Requests
from sizing.workload import Metric, Seconds, Sla


@dataclass(frozen=True, slots=True, eq=False)
class Simulated:
    """The measured requests of a run, by arrival, and what they add up to.

    Arrays of shape (n,), seconds: `queue_s` from arrival to the first iteration with some of the prompt, `itl_s` the
    mean gap of a request (NaN with one output token). Requests of the warm-up and of the end, when arrivals have
    stopped, are left out. `requests_per_s` and `mean_in_flight` (time average of the requests begun and not complete)
    speak of the whole fleet. `saturated`: there is no steady state; the load is above the highest stable rate, or the
    queue grew all along. `utilization`: load over that rate, which is the throughput with a line always waiting.
    """

    arrival_s: Seconds
    queue_s: Seconds
    ttft_s: Seconds
    itl_s: Seconds
    e2e_s: Seconds
    requests_per_s: float
    mean_in_flight: float
    saturated: bool
    utilization: float
    warnings: tuple[str, ...] = ()

    def of(self, metric: Metric) -> Seconds:
        """The seconds of every request for one metric."""
        return {"ttft": self.ttft_s, "itl": self.itl_s, "e2e": self.e2e_s}[metric]

    def meets(self, sla: Sla) -> bool:
        """True when the load is stable and at most 1 - p of the requests exceed each limit; counts, does not sort."""
        return not self.saturated and all(
            np.count_nonzero(self.of(limit.metric) > limit.limit_s)
            <= (1 - limit.percentile / 100) * np.count_nonzero(np.isfinite(self.of(limit.metric)))
            for limit in sla.limits
        )

    def prediction(self) -> Prediction:
        """Mean and percentiles; infinite where the load is saturated."""
        if self.saturated:
            return replace(saturated(self.utilization, "simulation"), warnings=self.warnings)
        ttft, itl, e2e = Quantiles.of(self.ttft_s), Quantiles.of(self.itl_s), Quantiles.of(self.e2e_s)
        return Prediction(ttft, itl, e2e, False, self.utilization, "simulation", self.warnings)


def open_loop(run: Requests, replica: Replica, first: int, utilization: float, *, drain: bool = True) -> Simulated:
    """The measured part of an open-loop run. With `drain`, those who lived on after the last arrival are left out."""
    arrival_s = np.ascontiguousarray(run["arrival_s"])
    alive = int(np.count_nonzero(run["done_s"] > arrival_s[-1]))
    last = len(run) - (min(alive, len(run) // 10) if drain else 0)
    first = min(first, last - 1)
    start_s, end_s = arrival_s[first], arrival_s[last - 1]
    done = np.count_nonzero((run["done_s"] > start_s) & (run["done_s"] <= end_s))
    requests_per_s = done / (end_s - start_s) if done else len(run) / (run["done_s"].max() - arrival_s[0])
    stuck = utilization >= 1 or _queue_grows(run[first:last])
    measured = slice(first, last)
    return simulated(run, arrival_s, replica.law.request_s, measured, float(requests_per_s), utilization, stuck)


def _queue_grows(run: Requests) -> bool:
    """True when later requests wait over twice as long as earlier ones, and longer than they then take to be served.

    A queue that grows steadily makes the second half wait 3 times as long as the first (2.4 times after 10 % warm-up).
    """
    half = len(run) // 2
    waits_s = run["scheduled_s"] - run["arrival_s"]
    served_s = float(np.mean(run["done_s"] - run["scheduled_s"]))
    early_s, late_s = float(np.mean(waits_s[:half])) if half else 0.0, float(np.mean(waits_s[half:]))
    return half > 0 and late_s > 2 * early_s and late_s > served_s


def simulated(
    run: Requests,
    sent_s: Seconds,
    request_s: float,
    measured: slice,
    requests_per_s: float,
    utilization: float,
    stuck: bool,
) -> Simulated:
    """The result of a run: clients sent their requests at `sent_s`; the slice `measured` of them counts."""
    received_s = run["done_s"] - run["arrival_s"] + request_s + sent_s
    start_s, end_s = sent_s[measured][0], sent_s[measured][-1]
    inside_s = np.clip(received_s, start_s, end_s) - np.clip(sent_s, start_s, end_s)
    in_flight = float(inside_s.sum() / (end_s - start_s)) if end_s > start_s else 0.0
    part = run[measured]
    gaps = part["osl"] - 1
    decoding_s = part["done_s"] - part["first_token_s"]
    return Simulated(
        arrival_s=sent_s[measured],
        queue_s=part["scheduled_s"] - part["arrival_s"],
        ttft_s=part["first_token_s"] - part["arrival_s"] + request_s,
        itl_s=np.divide(decoding_s, gaps, out=np.full(len(part), np.nan), where=gaps > 0),
        e2e_s=part["done_s"] - part["arrival_s"] + request_s,
        requests_per_s=requests_per_s,
        mean_in_flight=in_flight,
        saturated=stuck,
        utilization=float(utilization),
    )
