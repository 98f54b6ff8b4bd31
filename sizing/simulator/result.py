"""Results of a simulated run: latencies, losses, rate, load, and whether it is steady."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sizing.compiled import compiled
from sizing.errors import ScenarioError
from sizing.numbers import Floats
from sizing.prediction import NOT_COUNTED, Caution, Joint, Prediction, Quantiles, saturated, used_up
from sizing.simulator.state import CANCELLED, REJECTED, SERVED, TIMED_OUT, Requests, States, Workspace
from sizing.simulator.token_gaps import Counts, TokenGaps, gap_quantiles
from sizing.stats import quantile_interval
from sizing.workload import GAP_PERCENTILES, OF_REQUESTS, Limit, Metric, RequestMetric, Seconds, Sla, Within

# --- Totals of a finished run, in one pass through its request records; compiled by numba

SENT, WAIT, TTFT, ITL, E2E = range(5)
ROWS = 5


class Tally(NamedTuple):
    """The measured requests of a run, by arrival, and two sums.

    `seconds`: shape (ROWS, measured). The wait of a request that was not served is its whole stay in the replica, its
    other latencies are meaningless; ITL is NaN with one output token. `outcome`: shape (measured,). `in_flight_s`: the
    time that all requests, measured or not, spent from their sending to their end between the first and the last
    measured sending. `answers`: complete in that time.
    """

    seconds: Seconds
    outcome: NDArray[np.int8]
    in_flight_s: float
    answers: int


def tallied(run: Requests, part: slice, early_s: float = 0.0) -> Tally:
    """The requests of the slice `part`, which clients sent `early_s` before they reached the replica."""
    seconds, outcome = np.empty((ROWS, part.stop - part.start)), np.empty(part.stop - part.start, np.int8)
    return Tally(seconds, outcome, *_tally(run, part.start, early_s, seconds, outcome))


@compiled
def _tally(run: Requests, first: int, early_s: float, seconds: Seconds, outcome: NDArray[np.int8]) -> tuple[float, int]:
    """Fill `seconds` and `outcome` from request number `first` on; returns the two sums."""
    measured = len(outcome)
    from_s, until_s = run[first].arrival_s - early_s, run[first + measured - 1].arrival_s - early_s
    in_flight_s, answers = 0.0, 0
    for number in range(len(run)):
        request = run[number]
        sent_s = request.arrival_s - early_s
        stay_s = request.done_s - request.arrival_s + request.outside_s
        served = request.outcome == SERVED
        in_flight_s += min(max(sent_s + stay_s, from_s), until_s) - min(max(sent_s, from_s), until_s)
        answers += int(served and from_s < request.done_s <= until_s)
        place = number - first
        if 0 <= place < measured:
            outcome[place] = request.outcome
            gaps = request.osl - 1
            seconds[SENT, place] = sent_s
            seconds[WAIT, place] = (request.scheduled_s if served else request.done_s) - request.arrival_s
            seconds[TTFT, place] = request.first_token_s - request.arrival_s + request.outside_s
            seconds[ITL, place] = (request.done_s - request.first_token_s) / gaps if gaps > 0 else np.nan
            seconds[E2E, place] = stay_s
    return in_flight_s, answers


@compiled
def alive_at(run: Requests, time_s: float) -> int:
    """Requests of a finished run that left after a time."""
    alive = 0
    for request in run:
        alive += int(request.done_s > time_s)
    return alive


# --- Steady state and confidence: which requests count, whether there is a steady state, the error of a share


def measured_part(run: Requests, warmup: float, *, drain: bool) -> slice:
    """The requests that count, by arrival, excluding the first share `warmup`.

    `drain` also excludes those still present after the last arrival, at most a tenth: they met less traffic.
    """
    last = len(run)
    if drain:
        alive = alive_at(run, run["arrival_s"][-1])
        last -= min(alive, len(run) // 10)
    return slice(min(int(warmup * len(run)), last - 1), last)


def queue_grows(waits_s: Seconds, served_s: float) -> bool:
    """True when later requests wait over twice as long as earlier ones, and longer than `served_s`.

    That is the mean time from the end of the wait to the last token. A queue that grows steadily makes the second half
    wait 3 times as long as the first (2.4 times after 10 % warm-up). `waits_s`: by arrival; requests that were never
    served waited as long as they stayed.
    """
    half = len(waits_s) // 2
    if half == 0:
        return False
    early_s, late_s = float(np.mean(waits_s[:half])), float(np.mean(waits_s[half:]))
    return late_s > 2 * early_s and late_s > served_s


# --- What a run records beyond request latencies: token gaps, pauses, and the state of replicas over time

MOST_SAMPLES = 4096
"""Samples kept of a replica; a longer run is sampled half as often, again and again."""


@dataclass(frozen=True, slots=True)
class Watch:
    """What to record: every gap between tokens, and the replicas' state each `sample_every_s` seconds (inf: never)."""

    token_gaps: bool = False
    sample_every_s: float = math.inf

    def __post_init__(self) -> None:
        if not self.sample_every_s > 0:
            raise ScenarioError(f"sample_every_s must be above 0 s, got {self.sample_every_s:g}")

    @property
    def samples(self) -> int:
        """Rows to keep for a replica."""
        return MOST_SAMPLES if math.isfinite(self.sample_every_s) else 0


@dataclass(frozen=True, slots=True, eq=False)
class TimeSeries:
    """The contents of one replica, at the first iteration formed after each sampling time; arrays of shape (samples,).

    Sequences `running`, requests `waiting`, whether a prompt cut in chunks was in progress (0 or 1), KV tokens held by
    admitted requests, and pauses since the start.
    """

    time_s: Seconds
    running: Seconds
    waiting: Seconds
    prefilling: Seconds
    kv_tokens: Seconds
    paused: Seconds


@dataclass(frozen=True, slots=True, eq=False)
class Watched:
    """Records of the whole run, for the requests simulated: those of one replica or of up to 32 if these represent a
    larger fleet. `pauses`: times that a sequence lost its KV cache to others.

    Token gaps are as the reader of a stream sees them, stalls in full (the ITL of a request is only their mean); NaN if
    they were not requested. Within 0.8 %. `measured_gaps`: those between the first and the last measured arrival, for
    each stream of requests; none if not requested. `series`: one for each replica simulated, none if not requested.
    """

    pauses: int = 0
    gap_p50_s: float = math.nan
    gap_p95_s: float = math.nan
    gap_p99_s: float = math.nan
    series: tuple[TimeSeries, ...] = ()
    measured_gaps: tuple[TokenGaps, ...] = ()


def watched(states: States, work: Workspace, watch: Watch, measured_gaps: tuple[TokenGaps, ...] = ()) -> Watched:
    """What the replicas recorded in such a run."""
    series: tuple[TimeSeries, ...] = ()
    if watch.samples:
        series = tuple(TimeSeries(*rows[: state["samples"]].T) for rows, state in zip(work.series, states, strict=True))
    return Watched(int(states["paused"].sum()), *gap_percentiles_s(work.gaps), series, measured_gaps)


def gap_percentiles_s(counts: Counts) -> tuple[float, float, float]:
    """p50, p95 and p99 of the gaps counted; NaN if they were not."""
    gaps_s = gap_quantiles(counts, GAP_PERCENTILES) if counts.size else np.full(3, math.nan)
    p50_s, p95_s, p99_s = (float(gap_s) for gap_s in gaps_s)
    return p50_s, p95_s, p99_s


NOTHING_WATCHED = Watched()


@dataclass(frozen=True, slots=True, eq=False)
class Simulated:
    """The measured requests of a run, by arrival, and their totals.

    Arrays of shape (n,), seconds: `queue_s` from arrival to the first iteration with some of the prompt, `itl_s` the
    mean gap of a request (NaN with one output token). `outcome` is SERVED, REJECTED, TIMED_OUT or CANCELLED; all
    latencies are of served requests, NaN for others. Requests of the warm-up and the drain after the last arrival
    are excluded. `requests_per_s` (complete answers) and `mean_in_flight` (time average of started requests that have
    not left) cover the whole fleet. `saturated`: there is no steady state; the load is above the highest stable rate
    although no request is rejected, or the queue kept growing. `utilization`: load divided by that rate, which is the
    throughput with a queue that is never empty. `watched`: pauses, and requested token gaps and time series.
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
    warnings: tuple[Caution, ...] = ()
    watched: Watched = NOTHING_WATCHED

    @property
    def rejected(self) -> int:
        """Requests that found the queue full."""
        return int(np.count_nonzero(self.outcome == REJECTED))

    @property
    def timed_out(self) -> int:
        """Requests that the server dropped from the queue."""
        return int(np.count_nonzero(self.outcome == TIMED_OUT))

    @property
    def cancelled(self) -> int:
        """Requests that clients cancelled."""
        return int(np.count_nonzero(self.outcome == CANCELLED))

    @property
    def lost(self) -> int:
        """Requests without a complete answer."""
        return int(np.count_nonzero(self.outcome != SERVED))

    @property
    def losses(self) -> dict[str, float]:
        """Shares of the requests that had no complete answer, by the reason."""
        reasons = ("rejected", "timed_out", "cancelled")
        return {f"{name}_share": getattr(self, name) / len(self.outcome) for name in reasons}

    def of(self, metric: RequestMetric) -> Seconds:
        """The seconds of every request for one metric; NaN for those not served."""
        return {"ttft": self.ttft_s, "itl": self.itl_s, "e2e": self.e2e_s}[metric]

    @property
    def turned_away(self) -> NDArray[np.bool_]:
        """For every request, whether it was rejected or timed out in the queue."""
        return np.asarray((self.outcome == REJECTED) | (self.outcome == TIMED_OUT))

    def used_up(self, within: Within) -> Floats:
        """For every request, the largest share of these limits that it uses up; infinite if it was not served."""
        return np.where(self.outcome == SERVED, used_up(within, self.of), math.inf)

    @property
    def gaps(self) -> TokenGaps:
        """The measured gaps between tokens. Raises ScenarioError if the run did not count them."""
        if not self.watched.measured_gaps:
            raise ScenarioError("this run did not count the gaps between tokens: ask for them, Watch(token_gaps=True)")
        return self.watched.measured_gaps[0]

    def quantiles(self, metric: Metric) -> Quantiles:
        """Mean and percentiles of one metric over the served; NaN for gaps that were not counted."""
        if metric == "gap":
            return self.gaps.quantiles() if self.watched.measured_gaps else NOT_COUNTED
        return Quantiles.of(self.of(metric))

    def exceeding_share(self, limit: Limit) -> float:
        """Share of the requests beyond a limit; a request that was not served is beyond every limit.

        Requests with a single token have no ITL and do not count there. For a limit on gaps, the share of all gaps; for
        one on rejected requests, the share of these.
        """
        if limit.metric == "gap":
            return self.gaps.share_above(limit.limit_s)
        if limit.metric == "rejected":
            return float(np.mean(self.turned_away))
        if limit.metric == "goodput":
            return float(np.mean(self.used_up(limit.within) > limit.limit_s))
        seconds = self.of(limit.metric)
        counted = np.count_nonzero(np.isfinite(seconds)) + self.lost
        return (np.count_nonzero(seconds > limit.limit_s) + self.lost) / counted if counted else 0.0

    def meets(self, sla: Sla) -> bool:
        """True when the load is stable and at most 1 - p of the requests exceed each limit; counts, does not sort."""
        return not self.saturated and all(limit.allows(self.exceeding_share(limit)) for limit in sla.limits)

    def goodput(self, sla: Sla) -> float:
        """Share of all requests offered that are served within every limit, whatever the percentile it is set for.

        Raises ScenarioError for a limit on gaps, which are counted over all tokens and not request by request.
        """
        good = self.outcome == SERVED
        for limit in sla.given:
            if limit.metric == "gap":
                raise ScenarioError(f"{limit}: gaps are counted over all tokens, so no request is good or bad by them")
            if limit.metric in OF_REQUESTS:
                good &= ~(self.of(limit.metric) > limit.limit_s)
        return float(np.mean(good))

    def interval(self, metric: RequestMetric, percentile: float) -> tuple[float, float]:
        """90 % confidence interval of a percentile, seconds: how far another run of this length may differ.

        By batch means, see `steady`. Raises ScenarioError when fewer than 40 requests have the metric.
        """
        seconds = self.of(metric)
        return quantile_interval(seconds[np.isfinite(seconds)], percentile)

    def prediction(self, within: Within = ()) -> Prediction:
        """Mean and percentiles of the served requests; infinite if the load is saturated. `within`: limits by which
        goodput is to judge all requests."""
        warnings = self.warnings
        if self.lost:
            warnings += (Caution("lost_requests", {"share": self.lost / len(self.outcome)}),)
        if self.saturated:
            return replace(saturated(self.utilization, "simulation"), warnings=warnings)
        ttft, itl, e2e = Quantiles.of(self.ttft_s), Quantiles.of(self.itl_s), Quantiles.of(self.e2e_s)
        gap = self.quantiles("gap")
        joint = Joint.of(within, self.used_up(within)) if within else None
        rejected = float(np.mean(self.turned_away))
        return Prediction(ttft, itl, e2e, False, self.utilization, "simulation", warnings, gap, joint, rejected)


def open_loop(run: Requests, utilization: float, *, warmup: float = 0.0, drain: bool = True) -> Simulated:
    """The measured part of an open-loop run."""
    part = measured_part(run, warmup, drain=drain)
    tally = tallied(run, part)
    sent_s, wait_s, _, _, e2e_s = tally.seconds
    if tally.answers:
        requests_per_s = tally.answers / (sent_s[-1] - sent_s[0])
    else:
        done_s = run["done_s"][run["outcome"] == SERVED]
        requests_per_s = len(done_s) / (done_s.max() - run["arrival_s"][0]) if len(done_s) else 0.0
    overloaded = utilization >= 1 and not np.any(tally.outcome)
    served_s = float(np.mean(e2e_s) - np.mean(wait_s) - np.mean(run["outside_s"][part]))
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
