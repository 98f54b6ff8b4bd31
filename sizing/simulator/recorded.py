"""A fleet under recorded traffic, part by part: memory does not grow with the length of the trace.

The latencies of each hour's requests are counted as they leave: those that exceed a limit exactly, percentiles within
0.8 %. The requests that are in a replica at the end of a part move on to the next, so that the parts are one run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sizing.budget import checkpoint
from sizing.compiled import compiled
from sizing.engine import Replica
from sizing.errors import ScenarioError
from sizing.numbers import Floats
from sizing.prediction import NOT_COUNTED, TENTHS, Caution, Joint, Prediction, Quantiles
from sizing.simulator.fleet import ROUTER, RoutedFleet, give, on_replicas, run_to
from sizing.simulator.sampling import checked_requests, prepare, shared_prefixes
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
    engine_of,
    idle_states,
    request_at,
    step_at,
    work_space,
)
from sizing.simulator.token_gaps import Counts, TokenGaps, bin_of, gap_quantiles
from sizing.simulator.waiting import insert_deadline
from sizing.trace import Hour, Trace, hours
from sizing.workload import (
    OF_REQUESTS,
    PERCENTILES,
    ROUTINGS,
    Limit,
    RequestMetric,
    Routing,
    Seconds,
    Sla,
    Tokens,
    Workload,
)

PART = 1 << 18
"""Requests fed at once."""
USED_UP = len(OF_REQUESTS)
"""In addition to the metrics, the largest share of a limit that each request uses up."""
NO_METRIC = -1
LARGEST_TABLES_ROWS = 1 << 24
"""Rows for sessions in the prefix caches of all replicas: 200 MB."""
HOPELESS = 3.0
"""Factor on the requests that an SLA lets exceed a limit: a replay with more than that need not be finished."""


class Tally(NamedTuple):
    """The results of each hour's requests, by the hour of their arrival; metrics in the order of `OF_REQUESTS`.

    While a trace is replayed the arrays have a leading axis: all requests, then each class by itself.
    """

    bins: NDArray[np.int32]  # (hours, 4, GAP_BINS): the served, by seconds, and by the share of their limits used up
    sums_s: Floats  # (hours, 4): of the served
    beyond: Counts  # (hours, limits): requests beyond a limit, which includes those not served
    counted: Counts  # (hours, limits): requests that have the metric
    good: Counts  # (hours,): requests within all limits
    lost: Counts  # (hours,): requests not served
    gone: Counts  # (hours,): all that have left
    lost_gaps: Counts  # (1,): gaps between tokens that requests not served never had
    prompt_tokens: Counts  # (hours,): of the served
    found_tokens: Counts  # (hours,): of these, in the prefix cache


@dataclass(frozen=True, slots=True, eq=False)
class Replayed:
    """A trace served by `replicas` replicas, at `speed` times its own pace.

    `hours`: those of the trace, by its own times. `whole`: False if the replay was not finished because far too many
    requests exceeded a limit. `gaps`: between tokens, those of all hours; None if they were not counted. `classes`: the
    results of each class that has requests, by its `name` and under its own SLA; a request is good if it is within the
    limits of its class.
    """

    replicas: int
    speed: float
    sla: Sla
    hours: tuple[Hour, ...]
    tally: Tally
    whole: bool
    gaps: TokenGaps | None = None
    name: str = ""
    classes: tuple[Replayed, ...] = ()

    @property
    def parts(self) -> tuple[Replayed, ...]:
        """The groups of requests that the SLA refers to: those of each class, or all."""
        return self.classes or (self,)

    @property
    def meets(self) -> bool:
        """True when at most 1 - p of the requests, or of those of each class, exceed each limit."""
        if not all(each.meets for each in self.classes):
            return False
        return self.whole and all(limit.allows(self.exceeding_share(limit)) for limit in self.sla.limits)

    def exceeding_share(self, limit: Limit, hour: int | None = None) -> float:
        """Share of the requests (of one hour) beyond a limit of the SLA; for a limit on gaps, that of all gaps."""
        if limit.metric == "gap":
            return self.gaps.share_above(limit.limit_s) if self.gaps else math.nan
        beyond, counted = judged(self.tally, self.sla)
        place, of = limits_on_requests(self.sla).index(limit), _rows(hour)
        return float(beyond[of, place].sum() / max(counted[of, place].sum(), 1))

    @property
    def worst_hour(self) -> int:
        """The hour in which the largest share of requests misses a limit, among those with at least a tenth of the
        usual requests."""
        requests = self.tally.gone
        usual = np.flatnonzero(requests >= 0.1 * requests.mean())
        return min(map(int, usual), key=lambda hour: (self.goodput(hour), -requests[hour]))

    def goodput(self, hour: int | None = None) -> float:
        """Share of the requests (of one hour) that are served within all limits on requests."""
        of = _rows(hour)
        return float(self.tally.good[of].sum() / max(self.tally.gone[of].sum(), 1))

    def value_s(self, limit: Limit, hour: int | None = None) -> float:
        """The value that a limit of this SLA refers to; for one hour only of TTFT, ITL or E2E, NaN for others."""
        if hour is None:
            return self.prediction(0.0).value_s(limit)
        return self.quantiles(limit.metric, hour).at(limit.percentile) if limit.metric in OF_REQUESTS else math.nan

    def hit_rate(self, hour: int | None = None) -> float:
        """Share of the prompt tokens of the served (of one hour) that the prefix cache held; 0 without one."""
        of = _rows(hour)
        return float(self.tally.found_tokens[of].sum() / max(self.tally.prompt_tokens[of].sum(), 1))

    def quantiles(self, metric: RequestMetric, hour: int | None = None) -> Quantiles:
        """Mean, and percentiles within 0.8 %, over the served (of one hour); NaN if there are none."""
        place, of = OF_REQUESTS.index(metric), _rows(hour)
        counts = self.tally.bins[of, place].sum(axis=0, dtype=np.int64)
        seen = int(counts.sum())
        mean_s = float(self.tally.sums_s[of, place].sum()) / seen if seen else math.nan
        return Quantiles(mean_s, *map(float, gap_quantiles(counts, PERCENTILES)))

    def prediction(self, utilization: float) -> Prediction:
        """All hours as one prediction, for a fleet with this average utilization, which a replay does not give."""
        lost, gone = int(self.tally.lost.sum()), int(self.tally.gone.sum())
        warnings = (Caution("lost_requests", {"share": lost / gone}),) if lost else ()
        gap = self.gaps.quantiles() if self.gaps else NOT_COUNTED
        ttft, itl, e2e = (self._counted(metric) for metric in OF_REQUESTS)
        joint = self._joint(self.sla.goodput) if self.sla.goodput else None
        return Prediction(ttft, itl, e2e, False, utilization, "simulation", warnings, gap, joint, lost / gone)

    def _joint(self, limit: Limit) -> Joint:
        """Shares of their limits that requests use up, within 0.8 %; on the side of the limit where they count."""
        counts = self.tally.bins[:, USED_UP].sum(axis=0, dtype=np.int64)
        served = counts.sum() / max(self.tally.gone.sum(), 1)
        known = served >= TENTHS
        used = np.full(len(TENTHS), math.inf)
        if served:
            used[known] = gap_quantiles(counts, tuple(100 * TENTHS[known] / served))
        kept = self.goodput() + 1e-9 >= TENTHS
        used = np.where(kept, np.minimum(used, 1.0), np.maximum(used, math.nextafter(1.0, 2.0)))
        return Joint(limit.within, self.goodput(), used)

    def _counted(self, metric: RequestMetric) -> Quantiles:
        """Its percentiles, on the side of each limit on which the count of requests puts them: bins have a width."""
        found = self.quantiles(metric)
        for limit in limits_on_latencies(self.sla):
            if limit.metric == metric:
                within = limit.allows(self.exceeding_share(limit))
                value_s = found.at(limit.percentile)
                value_s = min(value_s, limit.limit_s) if within else max(value_s, math.nextafter(limit.limit_s, 9e9))
                found = replace(found, **{f"p{limit.percentile}_s": value_s})
        return found


def _rows(hour: int | None) -> slice:
    """The rows of one hour, or of all."""
    return slice(None) if hour is None else slice(hour, hour + 1)


def limits_on_requests(sla: Sla) -> tuple[Limit, ...]:
    """Its limits except the one on gaps between tokens, which do not belong to a single request."""
    return tuple(limit for limit in sla.limits if limit.metric != "gap")


def limits_on_latencies(sla: Sla) -> tuple[Limit, ...]:
    """Its limits on TTFT, ITL and E2E."""
    return tuple(limit for limit in sla.limits if limit.metric in OF_REQUESTS)


def judged(tally: Tally, sla: Sla) -> tuple[Counts, Counts]:
    """Requests beyond each of the `limits_on_requests`, and those that count there; both shape (hours, limits)."""
    columns = []
    for place, limit in enumerate(limits_on_requests(sla)):
        if limit.metric == "goodput":
            columns.append((tally.gone - tally.good, tally.gone))
        elif limit.metric == "rejected":
            columns.append((tally.lost, tally.gone))
        else:
            columns.append((tally.beyond[:, place], tally.counted[:, place]))
    beyond, counted = zip(*columns, strict=True) if columns else ((), ())
    shape = len(tally.gone), len(columns)
    return np.reshape(np.transpose(beyond), shape), np.reshape(np.transpose(counted), shape)


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
    class_slas: Sequence[Sla] = (),
) -> Replayed:
    """Serve the requests of a trace by a fleet of equal replicas, every one simulated, and judge them by an SLA.

    `workload` provides the prefix, the queue's limits and the clients' patience, not the lengths and the rate. `speed`
    1.25 offers the requests in four fifths of the time. `part`: requests in memory in addition to those in the
    replicas; the result does not depend on it. `class_slas`: the SLAs of the trace's classes, in their order; none:
    `sla` holds for all requests together. Without `to_the_end`, a replay ends early if it exceeds a limit `HOPELESS`
    times too often.

    On an engine with a prefix cache, a request finds what its session left in the cache of its replica, and all
    requests of a session go to the replica of the first, which `routing` chooses. Every request arrives at its own
    time, even if the previous answer is not complete: it does not find what that one still holds.

    Raises ScenarioError for a request longer than the KV cache, and if millions of requests wait.
    """
    replica, by_hour, slas = replica.with_queue(workload.queue_limit), tuple(hours(trace)), (sla, *class_slas)
    if len(class_slas) not in (0, len(trace.classes)):
        raise ScenarioError(f"an SLA each for {len(trace.classes)} classes is needed, or none: got {len(class_slas)}")
    metrics, limits_s = bounds(slas)
    hopeless = [HOPELESS * allowed(trace, each, group) for group, each in enumerate(slas)]
    tally = nothing_seen(len(slas), len(by_hour), metrics.shape[1])
    ends_s = np.array([hour.until_s / speed for hour in by_hour])
    routes, hits, steps = (np.random.default_rng([seed, number]) for number in range(3))
    gaps_counted, streams = any(each.gap for each in slas), max(1, len(class_slas))
    shared = np.repeat(shared_prefixes(workload), streams)
    states = idle_states(replicas, seed)
    work = work_space(replica, replicas, gaps=gaps_counted, streams=streams, prefixes=shared)
    sessions = int(trace.session.max()) + 1 if replica.batching.prefix_cache and len(trace.session) else 0
    if sessions:
        work = work._replace(cached=one_place_each(sessions, replicas))
    engines = np.repeat(np.array([engine_of(replica)]), replicas)
    router = np.array((ROUTINGS.index(routing), replicas, 0), ROUTER)[()]
    rest = (router, np.arange(replicas), np.full(replicas, math.inf), np.full(sessions, NOBODY))
    whole, held = True, np.empty(0)
    for first in range(0, len(trace), part):
        checkpoint(f"replay of {len(trace):,} requests{on_replicas(replicas, routing)}")
        now = slice(first, first + part)
        isl, osl = (lengths[now].astype(np.int64) for lengths in (trace.isl, trace.osl))
        run = checked_requests(replica, isl, osl, trace.arrival_s[now] / speed)
        prepare(replica, workload, run, hits, steps)
        if sessions:
            run["session"] = trace.session[now]
        if class_slas:
            run["stream"] = trace.of_class[now]
        if len(held):
            run = np.concatenate([held, run])
        fleet = RoutedFleet(engines, states, work, run, *rest)
        give(fleet, np.arange(len(held), len(run)), 0.0, routes)
        if first + part >= len(trace):
            run_to(fleet, 0, replicas, math.inf)
        held = np.empty(count_gone(run, ends_s, metrics, limits_s, tally), run.dtype)
        if len(held) + part >= MAX_REQUESTS:
            raise ScenarioError(
                f"{len(held):,} requests wait at {trace.clock(trace.arrival_s[now][-1])}: too many to hold"
            )
        move_on(states, work, run, held)
        seen = [judged(of_group(tally, group), each)[0].sum(axis=0) for group, each in enumerate(slas)]
        if not to_the_end and any(np.any(beyond > most) for beyond, most in zip(seen, hopeless, strict=True)):
            whole = first + part >= len(trace)
            break
    tally.good[0] = tally.good[1:].sum(axis=0) if class_slas else tally.good[0]
    of_streams = work.gaps.sum(axis=0).reshape(-1, GAP_BINS)
    gaps = [of_streams.sum(axis=0), *of_streams]

    def part_of(group: int, name: str = "", classes: tuple[Replayed, ...] = ()) -> Replayed:
        """The results of one group."""
        own = slas[group]
        seen, places = of_group(tally, group), slice(len(counted_limits(own)))
        seen = seen._replace(beyond=seen.beyond[:, places], counted=seen.counted[:, places])
        counted = TokenGaps(gaps[group][None], int(seen.lost_gaps[0])) if own.gap else None
        return Replayed(replicas, speed, own, by_hour, seen, whole, counted, name, classes)

    each = (part_of(number, name) for number, name in enumerate(trace.classes if class_slas else (), 1))
    return part_of(0, classes=tuple(one for one in each if one.tally.gone.any()))


def nothing_seen(groups: int, hours: int, limits: int) -> Tally:
    """Counts before the first request has left, for each group of requests."""
    by_hour = (groups, hours)
    return Tally(
        np.zeros((*by_hour, USED_UP + 1, GAP_BINS), np.int32),
        np.zeros((*by_hour, USED_UP + 1)),
        *(np.zeros((*by_hour, limits), np.int64), np.zeros((*by_hour, limits), np.int64)),
        good=np.zeros(by_hour, np.int64),
        lost=np.zeros(by_hour, np.int64),
        gone=np.zeros(by_hour, np.int64),
        lost_gaps=np.zeros((groups, 1), np.int64),
        prompt_tokens=np.zeros(by_hour, np.int64),
        found_tokens=np.zeros(by_hour, np.int64),
    )


def one_place_each(sessions: int, replicas: int) -> NDArray[np.int32]:
    """`Workspace.cached` of replicas that share no session. If separate tables would be large, all see the same rows:
    memory is then that of one, at the price of separate machine code, which takes a minute to compile once."""
    if sessions * replicas <= LARGEST_TABLES_ROWS:
        return np.zeros((replicas, sessions, 3), np.int32)
    rows = np.zeros((sessions, 3), np.int32)
    return np.lib.stride_tricks.as_strided(rows, (replicas, sessions, 3), (0, *rows.strides))


def counted_limits(sla: Sla) -> tuple[Limit, ...]:
    """The limits and thresholds on TTFT, ITL and E2E: those by which single requests are counted."""
    return (*limits_on_latencies(sla), *sla.thresholds)


def bounds(slas: Sequence[Sla]) -> tuple[Tokens, Seconds]:
    """Metric and seconds of the `counted_limits` of each group.

    Arrays of shape (groups, limits); the rows of groups with fewer limits end in metrics of -1.
    """
    of_groups = [counted_limits(sla) for sla in slas]
    metrics = np.full((len(slas), max(map(len, of_groups))), NO_METRIC)
    limits_s = np.full(metrics.shape, math.inf)
    for group, limits in enumerate(of_groups):
        for place, limit in enumerate(limits):
            metrics[group, place], limits_s[group, place] = OF_REQUESTS.index(limit.metric), limit.limit_s
    return metrics, limits_s


def of_group(tally: Tally, group: int) -> Tally:
    """The results of one group, from a tally with an axis of groups."""
    return Tally(*(array[group] for array in tally))


def allowed(trace: Trace, sla: Sla, group: int) -> Floats:
    """Requests of a group (0: all, else a class) that an SLA lets exceed each of its limits on requests."""
    osl = trace.osl if group == 0 else trace.osl[trace.of_class == group - 1]
    with_gaps = int(np.count_nonzero(osl > 1))
    return np.array(
        [(with_gaps if limit.metric == "itl" else len(osl)) * limit.may_exceed for limit in limits_on_requests(sla)]
    )


# --- At the end of a part: what those that left have seen is counted, the others move on; compiled by numba


@compiled
def has_left(requests: Requests, request: int) -> bool:
    """True of a request that was given to a replica and is no longer there."""
    return bool(requests[request].stage == OUTSIDE or requests[request].done_s > 0)


@compiled
def count_gone(requests: Requests, ends_s: Seconds, metrics: Tokens, limits_s: Seconds, tally: Tally) -> int:
    """Count the requests that have left in the hours they arrived in, which end at `ends_s`; returns the others.

    Each is counted among all and, where there are classes, by the limits of its own.
    """
    bins, sums_s, beyond, counted, good, lost, gone, lost_gaps, prompt_tokens, found_tokens = tally
    groups = len(gone)
    seconds = np.empty(3)
    hour, held = 0, 0
    for number in range(len(requests)):
        if not has_left(requests, number):
            held += 1
            continue
        request = requests[number]
        while hour + 1 < len(ends_s) and request.arrival_s >= ends_s[hour]:
            hour += 1
        served = request.outcome == SERVED
        gaps = request.osl - 1
        if served:
            seconds[0] = request.first_token_s - request.arrival_s + request.outside_s
            seconds[1] = (request.done_s - request.first_token_s) / gaps if gaps > 0 else 0.0
            seconds[2] = request.done_s - request.arrival_s + request.outside_s
        for member in range(1 if groups == 1 else 2):
            group = member * (1 + request.stream)
            gone[group, hour] += 1
            if served:
                prompt_tokens[group, hour] += request.isl
                found_tokens[group, hour] += request.found_tokens
                for metric in range(3):
                    if metric != 1 or gaps > 0:
                        bins[group, hour, metric, bin_of(seconds[metric])] += 1
                        sums_s[group, hour, metric] += seconds[metric]
            else:
                lost[group, hour] += 1
                lost_gaps[group, 0] += gaps
            within, used_up = served, 0.0
            for limit in range(metrics.shape[1]):
                metric = metrics[group, limit]
                if metric == NO_METRIC:
                    break
                if served and metric == 1 and gaps == 0:
                    continue
                counted[group, hour, limit] += 1
                if not served or seconds[metric] > limits_s[group, limit]:
                    beyond[group, hour, limit] += 1
                    within = False
                if served:
                    used_up = max(used_up, seconds[metric] / limits_s[group, limit])
            good[group, hour] += int(within)
            if served:
                bins[group, hour, USED_UP, bin_of(used_up)] += 1
                sums_s[group, hour, USED_UP] += used_up
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
