"""A fleet under recorded traffic, part by part: memory does not grow with the length of the trace.

What each hour's requests saw is counted as they leave: how many exceed a limit exactly, percentiles within 0.8 %. The
requests that are in a replica at the end of a part move on to the next, so that the parts are one run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sizing.budget import checkpoint
from sizing.engine import Replica
from sizing.errors import ScenarioError
from sizing.numbers import Floats
from sizing.prediction import NOT_COUNTED, Caution, Prediction, Quantiles
from sizing.simulator.fleet import ROUTER, RoutedFleet, give, on_replicas, run_to
from sizing.simulator.sampling import checked_requests, prepare, shared_prefixes
from sizing.simulator.scheduler import Counts, TokenGaps, bin_of, gap_quantiles
from sizing.simulator.state import (
    GAP_BINS,
    MAX_REQUESTS,
    NOBODY,
    OUTSIDE,
    PAUSED,
    PRIORITIES,
    REQUEST_BITS,
    SERVED,
    WAITING,
    Requests,
    States,
    Workspace,
    compiled,
    engine_of,
    idle_states,
    request_at,
    step_at,
    work_space,
)
from sizing.simulator.waiting import insert_deadline
from sizing.trace import Hour, Trace, hours
from sizing.workload import ROUTINGS, Limit, Metric, Routing, Seconds, Sla, Tokens, Workload

PART = 1 << 18
"""Requests fed at once."""
METRICS: tuple[Metric, ...] = ("ttft", "itl", "e2e")
PERCENTILES = (50, 90, 95, 99)
HOPELESS = 3.0
"""Times the requests that an SLA lets exceed a limit: a replay that has so many need not be finished."""


class Tally(NamedTuple):
    """What the requests of each hour saw, by the hour of their arrival; metrics in the order of `METRICS`."""

    bins: NDArray[np.int32]  # (hours, 3, GAP_BINS): the served, by seconds
    sums_s: Floats  # (hours, 3): of the served
    beyond: Counts  # (hours, limits): requests beyond a limit, which those not served are
    counted: Counts  # (hours, limits): requests that have the metric
    good: Counts  # (hours,): requests within all limits
    lost: Counts  # (hours,): requests not served
    gone: Counts  # (hours,): all that have left
    lost_gaps: Counts  # (1,): gaps between tokens that requests not served did not live to see


@dataclass(frozen=True, slots=True, eq=False)
class Replayed:
    """A trace served by `replicas` replicas, at `speed` times its own pace.

    `hours`: those of the trace, by its own times. `whole`: False where the replay was not finished because far too many
    requests exceeded a limit. `gaps`: between tokens, those of all hours; None if they were not counted.
    """

    replicas: int
    speed: float
    sla: Sla
    hours: tuple[Hour, ...]
    tally: Tally
    whole: bool
    gaps: TokenGaps | None = None

    @property
    def meets(self) -> bool:
        """True when at most 1 - p of the requests exceed each limit."""
        return self.whole and all(
            limit.percentile + 100 * self.exceeding_share(limit) <= 100 + 1e-9 for limit in self.sla.limits
        )

    def exceeding_share(self, limit: Limit, hour: int | None = None) -> float:
        """Share of the requests (of one hour) beyond a limit of the SLA; of a limit on gaps that of all gaps."""
        if limit.metric == "gap":
            return self.gaps.share_above(limit.limit_s) if self.gaps else math.nan
        place, of = limits_on_requests(self.sla).index(limit), slice(None) if hour is None else slice(hour, hour + 1)
        return float(self.tally.beyond[of, place].sum() / max(self.tally.counted[of, place].sum(), 1))

    def goodput(self, hour: int | None = None) -> float:
        """Share of the requests (of one hour) that are served within all limits on requests."""
        of = slice(None) if hour is None else slice(hour, hour + 1)
        return float(self.tally.good[of].sum() / max(self.tally.gone[of].sum(), 1))

    def quantiles(self, metric: Metric, hour: int | None = None) -> Quantiles:
        """Mean, and percentiles within 0.8 %, over the served (of one hour); NaN where there are none."""
        place, of = METRICS.index(metric), slice(None) if hour is None else slice(hour, hour + 1)
        counts = self.tally.bins[of, place].sum(axis=0, dtype=np.int64)
        seen = int(counts.sum())
        mean_s = float(self.tally.sums_s[of, place].sum()) / seen if seen else math.nan
        return Quantiles(mean_s, *map(float, gap_quantiles(counts, PERCENTILES)))

    def prediction(self, utilization: float) -> Prediction:
        """All hours as one prediction, for a fleet so busy on average, which a replay does not tell."""
        lost, gone = int(self.tally.lost.sum()), int(self.tally.gone.sum())
        warnings = (Caution("lost_requests", {"share": lost / gone}),) if lost else ()
        gap = self.gaps.quantiles() if self.gaps else NOT_COUNTED
        ttft, itl, e2e = (self._counted(metric) for metric in METRICS)
        return Prediction(ttft, itl, e2e, False, utilization, "simulation", warnings, gap)

    def _counted(self, metric: Metric) -> Quantiles:
        """Its percentiles, on the side of each limit on which the count of requests puts them: bins have a width."""
        found = self.quantiles(metric)
        for limit in limits_on_requests(self.sla):
            if limit.metric == metric:
                within = limit.percentile + 100 * self.exceeding_share(limit) <= 100 + 1e-9
                value_s = found.at(limit.percentile)
                value_s = min(value_s, limit.limit_s) if within else max(value_s, math.nextafter(limit.limit_s, 9e9))
                found = replace(found, **{f"p{limit.percentile}_s": value_s})
        return found


def limits_on_requests(sla: Sla) -> tuple[Limit, ...]:
    """Its limits but the one on gaps between tokens, which are not any one request's."""
    return tuple(limit for limit in sla.limits if limit.metric != "gap")


def replay(
    replica: Replica,
    trace: Trace,
    workload: Workload,
    sla: Sla,
    *,
    replicas: int = 1,
    routing: Routing = "random",
    speed: float = 1.0,
    seed: int = 0,
    part: int = PART,
    to_the_end: bool = True,
) -> Replayed:
    """Serve the requests of a trace by a fleet of equal replicas, every one simulated, and judge them by an SLA.

    Of `workload` the prefix and the clients' patience count, not its lengths and its rate. `speed` 1.25 offers the
    requests in four fifths of the time. `part`: requests in memory beside those in the replicas; the result does not
    depend on it. Without `to_the_end` a replay ends early where it exceeds a limit `HOPELESS` times too often.

    Raises ScenarioError for a request longer than the KV cache, and where millions of requests wait.
    """
    limits, by_hour = limits_on_requests(sla), tuple(hours(trace))
    tally = nothing_seen(len(by_hour), len(limits))
    ends_s = np.array([hour.until_s / speed for hour in by_hour])
    metrics, limits_s = (
        np.array([METRICS.index(limit.metric) for limit in limits], np.int64),
        np.array([limit.limit_s for limit in limits], np.float64),
    )
    hopeless = HOPELESS * allowed(trace, limits)
    routes, hits, steps = (np.random.default_rng([seed, number]) for number in range(3))
    states = idle_states(replicas, seed)
    work = work_space(replica, replicas, gaps=sla.gap is not None, prefixes=shared_prefixes(workload))
    engines = np.repeat(np.array([engine_of(replica)]), replicas)
    router = np.array((ROUTINGS.index(routing), replicas, 0), ROUTER)[()]
    rest = (router, np.arange(replicas), np.full(replicas, math.inf))
    whole, held = True, np.empty(0)
    for first in range(0, len(trace), part):
        checkpoint(f"replay of {len(trace):,} requests{on_replicas(replicas, routing)}")
        now = slice(first, first + part)
        isl, osl = (lengths[now].astype(np.int64) for lengths in (trace.isl, trace.osl))
        run = checked_requests(replica, isl, osl, trace.arrival_s[now] / speed)
        prepare(replica, workload, run, hits, steps)
        if len(held):
            run = np.concatenate([held, run])
        fleet = RoutedFleet(engines, states, work, run, *rest)
        give(fleet, np.arange(len(held), len(run)), 0.0, routes)
        if first + part >= len(trace):
            for number in range(replicas):
                run_to(fleet, number, math.inf)
        held = np.empty(count_gone(run, replica.law.request_s, ends_s, metrics, limits_s, tally), run.dtype)
        if len(held) + part >= MAX_REQUESTS:
            raise ScenarioError(
                f"{len(held):,} requests wait at {trace.clock(trace.arrival_s[now][-1])}: too many to hold"
            )
        move_on(states, work, run, held)
        if not to_the_end and np.any(tally.beyond.sum(axis=0) > hopeless):
            whole = first + part >= len(trace)
            break
    gaps = TokenGaps(work.gaps.sum(axis=0)[None], int(tally.lost_gaps[0])) if sla.gap is not None else None
    return Replayed(replicas, speed, sla, by_hour, tally, whole, gaps)


def nothing_seen(hours: int, limits: int) -> Tally:
    """Counts before the first request has left."""
    return Tally(
        np.zeros((hours, len(METRICS), GAP_BINS), np.int32),
        np.zeros((hours, len(METRICS))),
        *(np.zeros((hours, limits), np.int64), np.zeros((hours, limits), np.int64)),
        good=np.zeros(hours, np.int64),
        lost=np.zeros(hours, np.int64),
        gone=np.zeros(hours, np.int64),
        lost_gaps=np.zeros(1, np.int64),
    )


def allowed(trace: Trace, limits: tuple[Limit, ...]) -> Floats:
    """Requests of a trace that an SLA lets exceed each of its limits."""
    with_gaps = int(np.count_nonzero(trace.osl > 1))
    return np.array(
        [(with_gaps if limit.metric == "itl" else len(trace)) * (1 - limit.percentile / 100) for limit in limits]
    )


# --- At the end of a part: what those that left have seen is counted, the others move on; compiled by numba


@compiled
def has_left(requests: Requests, request: int) -> bool:
    """True of a request that was given to a replica and is no longer there."""
    return bool(requests[request].stage == OUTSIDE or requests[request].done_s > 0)


@compiled
def count_gone(
    requests: Requests, request_s: float, ends_s: Seconds, metrics: Tokens, limits_s: Seconds, tally: Tally
) -> int:
    """Count the requests that have left in the hours they arrived in, which end at `ends_s`; returns the others."""
    bins, sums_s, beyond, counted, good, lost, gone, lost_gaps = tally
    seconds = np.empty(3)
    hour, held = 0, 0
    for number in range(len(requests)):
        if not has_left(requests, number):
            held += 1
            continue
        request = requests[number]
        while hour + 1 < len(ends_s) and request.arrival_s >= ends_s[hour]:
            hour += 1
        gone[hour] += 1
        served = request.outcome == SERVED
        gaps = request.osl - 1
        if served:
            seconds[0] = request.first_token_s - request.arrival_s + request_s
            seconds[1] = (request.done_s - request.first_token_s) / gaps if gaps > 0 else 0.0
            seconds[2] = request.done_s - request.arrival_s + request_s
            for metric in range(3):
                if metric != 1 or gaps > 0:
                    bins[hour, metric, bin_of(seconds[metric])] += 1
                    sums_s[hour, metric] += seconds[metric]
        else:
            lost[hour] += 1
            lost_gaps[0] += gaps
        within = served
        for limit in range(len(limits_s)):
            if served and metrics[limit] == 1 and gaps == 0:
                continue
            counted[hour, limit] += 1
            if not served or seconds[metrics[limit]] > limits_s[limit]:
                beyond[hour, limit] += 1
                within = False
        good[hour] += int(within)
    return held


@compiled
def move_on(states: States, work: Workspace, old: Requests, new: Requests) -> None:
    """Copy the requests that have not left, in their order, and let the replicas know them by their new numbers."""
    new_of = np.full(len(old), NOBODY)
    held = 0
    for request in range(len(old)):
        if not has_left(old, request):
            new[held] = old[request]
            new_of[request] = held
            held += 1
    for replica in range(len(states)):
        state, heap, lines = states[replica], work.heap[replica], work.lines[replica]
        for place in range(state.running):  # in order as before: requests keep their order, and steps theirs
            heap[place] = (step_at(heap, place) << REQUEST_BITS) | new_of[request_at(heap, place)]
        if state.prefilling != NOBODY:
            state.prefilling = new_of[state.prefilling]
        state.joining = 0
        state.first_gone = NOBODY
        state.first_deadline = NOBODY
        state.next_deadline_s = math.inf
        for line in range(PRIORITIES):
            request, last = lines[line, 0], NOBODY
            lines[line, 0] = NOBODY
            while request != NOBODY:
                if not has_left(old, request):
                    moved = new_of[request]
                    if last == NOBODY:
                        lines[line, 0] = moved
                    else:
                        new[last].behind = moved
                    new[moved].behind = NOBODY
                    lines[line, 1] = last = moved
                request = old[request].behind
    for request in range(held):
        stage, deadline_s = new[request].stage, new[request].deadline_s
        new[request].deadline_s = math.inf
        if stage in (WAITING, PAUSED):
            insert_deadline(states[new[request].replica], new, request, deadline_s)
