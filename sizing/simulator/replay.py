"""Replays measured runs on the simulator with one law after another: the forward model of the fit."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sizing.compiled import compiled
from sizing.engine import Replica
from sizing.numbers import Floats
from sizing.simulator.closed import measured_rounds, run_users
from sizing.simulator.fleet import run_stream
from sizing.simulator.sampling import checked_requests, prefixes_found
from sizing.simulator.state import (
    PREFIX_TOKENS,
    Engine,
    Requests,
    States,
    Workspace,
    engine_of,
    idle_states,
    work_space,
)
from sizing.simulator.token_gaps import gap_quantiles, percentile_s
from sizing.workload import Seconds, Tokens

GAPS = ("gap_p50_s", "gap_p95_s")
MEASURES = ("requests_per_s", "ttft_mean_s", "itl_mean_s", "e2e_mean_s", "ttft_p50_s", "ttft_p95_s", *GAPS)
"""Columns of a replay's result: E2E and TTFT percentiles only for open loops (in closed ones E2E follows from the
others), percentiles of token gaps only for closed ones."""
OPEN_ONLY = slice(3, 6)


class ReplayRun(NamedTuple):
    """One run to replay: what the clients did.

    `isl`, `osl`, `arrival_s`: shape (requests,). A closed loop has `users` who start at the first `users` of
    `arrival_s` and each send their next request after an answer; `users` 0 is an open loop. `windows`: rows (begin,
    end, row) of the requests measured, in order of arrival, and the row of the result they belong to; of an open loop
    only those complete at `until_s`, when the measurement ended. `cached`, shape (requests,): prompt tokens found in
    the prefix cache (None: none). `judged`, shape (requests,): whether what a request saw is known (None: of all); the
    others load the server, and no latency counts them.
    """

    users: int
    isl: Tokens
    osl: Tokens
    arrival_s: Seconds
    windows: tuple[tuple[int, int, int], ...]
    until_s: float = np.inf
    cached: Tokens | None = None
    judged: NDArray[np.bool_] | None = None


def closed_run(row: int, users: int, isl: Tokens, osl: Tokens, ramp_s: float, *, whole: bool = False) -> ReplayRun:
    """Users start one after the other over `ramp_s`; the rounds without ramp and drain are measured, or all."""
    starts_s = np.zeros(len(isl))
    starts_s[:users] = ramp_s * np.arange(users) / users
    begin, end = (0, len(isl)) if whole else measured_rounds(len(isl), users)
    return ReplayRun(users, isl, osl, starts_s, ((begin, end, row),))


class Replay:
    """Runs that produce the rows of a result, ready to be simulated repeatedly with other laws.

    A row is the mean over its windows; its token gaps are those of all its runs. The engines of one replay may differ
    in everything but `max_batch_size`. `token_gaps`: count them, which adds about half to the time.
    Large replays are split over the cores by whole rows: the figures are identical to the last bit.
    """

    def __init__(self, runs: Sequence[ReplayRun], replica: Replica, *, token_gaps: bool = False) -> None:
        self.rows = 1 + max(window[2] for run in runs for window in run.windows)
        counts = np.bincount([window[2] for run in runs for window in run.windows], minlength=self.rows)
        weights = 1 / np.maximum(1, counts)
        self._parts = [_RunsOfThread(part, replica, weights, token_gaps) for part in shared_out(runs, cores())]

    def means(self, replica: Replica) -> Floats:
        """What each row measures on this engine, shape (rows, 8), columns `MEASURES`.

        NaN: ITL and gaps with one output token; E2E and percentiles of closed loops; gaps of open ones.
        """
        means: Floats = self.means_of([replica])[0]
        return means

    def means_of(self, replicas: Sequence[Replica]) -> Floats:
        """The same on each of these engines, shape (engines, rows, 8): the threads meet once for all of them."""
        means = np.zeros((len(replicas), self.rows, len(MEASURES)))
        engines = [engine_of(replica) for replica in replicas]
        others = [threads().submit(part.run, engines, means) for part in self._parts[1:]]
        self._parts[0].run(engines, means)
        for other in others:
            other.result()
        return means

    def measured(self, replica: Replica) -> list[Requests]:
        """The requests in the windows of each row as this engine serves them, whether complete in time or not."""
        self.means(replica)
        return [np.concatenate([part.measured(row) for part in self._parts]) for row in range(self.rows)]

    def gap_quantiles_s(self, replica: Replica, percentiles: Sequence[float]) -> Floats:
        """Percentiles (0 to 100) of the token gaps of each row, shape (rows, percentiles); NaN where none count."""
        self.means(replica)
        gaps = np.sum([part.gaps for part in self._parts], axis=0)
        return np.array([gap_quantiles(counts, percentiles) for counts in gaps])


class _RunsOfThread:
    """A subset of the runs, with the arrays of one thread."""

    def __init__(self, runs: Sequence[ReplayRun], replica: Replica, weights: Floats, token_gaps: bool) -> None:
        self._users = np.array([run.users for run in runs], np.int64)
        self._first = np.concatenate([[0], np.cumsum([len(run.isl) for run in runs])])
        isl, osl, arrival_s = (np.concatenate([getattr(run, name) for run in runs]) for name in _PER_REQUEST)
        self._requests = checked_requests(replica, isl, osl, arrival_s)
        for run, first in zip(runs, self._first, strict=False):
            if run.cached is not None:
                self._requests["cached_tokens"][first : first + len(run.isl)] = run.cached
        known = [np.ones(len(run.isl), np.bool_) if run.judged is None else run.judged for run in runs]
        self._judged = np.concatenate(known)
        self._fresh = self._requests.copy()
        self._until_s = np.array([run.until_s for run in runs])
        self._windows = np.array([(run, *window) for run, one in enumerate(runs) for window in one.windows], np.int64)
        self._weights = weights
        self._rows = np.unique(self._windows[:, 3])
        self._states = idle_states(1), idle_states(1)
        self._prefixes = np.zeros(len(runs), np.int64)
        for number, (first, last) in enumerate(pairwise(self._first)):
            if runs[number].cached is not None:
                self._prefixes[number] = prefixes_found(self._requests[first:last]).max(initial=0)
        self._space = work_space(replica, 1, gaps=token_gaps, prefixes=self._prefixes[:1])
        self.gaps = np.zeros((len(weights), self._space.gaps.shape[1]), np.int64)  # of each row, of the last engine

    def measured(self, row: int) -> Requests:
        """The requests in the windows of a row, as the last engine served them."""
        places = [
            np.arange(self._first[run] + begin, self._first[run] + end)
            for run, begin, end, own in self._windows
            if own == row
        ]
        found: Requests = self._requests[np.concatenate([np.empty(0, np.int64), *places])]
        return found

    def run(self, engines: Sequence[Engine], means: Floats) -> None:
        """Fill the rows that these runs belong to, for each of the engines."""
        for engine, found in zip(engines, means, strict=True):
            run_all(
                engine,
                self._states,
                self._space,
                (self._fresh, self._requests),
                self._judged,
                self._first,
                self._users,
                self._prefixes,
                self._until_s,
                self._windows,
                self._weights,
                self._rows,
                found,
                self.gaps,
            )


WORTH_SHARING = 4000
"""Requests of a replay above which a second thread pays off."""


def shared_out(runs: Sequence[ReplayRun], most: int) -> list[list[ReplayRun]]:
    """The runs in at most `most` parts of about as many requests; runs that share a row stay together, in order."""
    if most < 2 or sum(len(run.isl) for run in runs) < WORTH_SHARING or any(len(run.windows) > 1 for run in runs):
        return [list(runs)]
    rows: dict[int, list[ReplayRun]] = {}
    for run in runs:
        rows.setdefault(run.windows[0][2], []).append(run)
    parts: list[list[ReplayRun]] = [[] for _ in range(most)]
    loads = [0] * most
    for group in sorted(rows.values(), key=lambda group: -sum(len(run.isl) for run in group)):
        least = loads.index(min(loads))
        parts[least] += group
        loads[least] += sum(len(run.isl) for run in group)
    return [part for part in parts if part]


@cache
def cores() -> int:
    """Cores that this process may use, at most four: replays of a few milliseconds gain nothing from more."""
    return min(4, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


@cache
def threads() -> ThreadPoolExecutor:
    """The worker threads of this process; numba releases the interpreter lock while it simulates."""
    return ThreadPoolExecutor(max_workers=max(1, cores() - 1), thread_name_prefix="replay")


if hasattr(os, "register_at_fork"):  # a forked process has the pool, and none of its threads
    os.register_at_fork(after_in_child=threads.cache_clear)


_PER_REQUEST = ("isl", "osl", "arrival_s")


@compiled
def run_all(
    engine: Engine,
    states: tuple[States, States],
    work: Workspace,
    requests: tuple[Requests, Requests],
    judged: NDArray[np.bool_],
    first: Tokens,
    users: Tokens,
    prefixes: Tokens,
    until_s: Seconds,
    windows: Tokens,
    weights: Floats,
    rows: Tokens,
    means: Floats,
    gaps: Tokens,
) -> None:
    """Simulate every run and add its windows (run, begin, end, row; by run) to their rows of `means`; fill those `rows`
    of `gaps` with the token gaps of closed loops.

    `prefixes`: tokens of the prefix that the requests of each run share. `states` and `requests` are pairs: as they
    are before a run, and those that the run works on.
    """
    place = 0
    for row in rows:
        gaps[row] = 0
    work.matrices_s[:], work.bends[:] = 0, 0  # of the engine before
    for number in range(len(users)):
        run = requests[1][first[number] : first[number + 1]]
        run[:] = requests[0][first[number] : first[number + 1]]
        known = judged[first[number] : first[number + 1]]
        states[1][:] = states[0]
        work.prefixes[0, 0, PREFIX_TOKENS] = prefixes[number]
        if users[number] > 0:
            for user in range(users[number]):
                run[user].arrival_s += engine.request_s
            run_users(engine, states[1], work, run, users[number], windows[place, 1], gaps[windows[place, 3]])
        else:
            run_stream(engine, states[1], work, run)
        while place < len(windows) and windows[place, 0] == number:
            begin, end, row = windows[place, 1], windows[place, 2], windows[place, 3]
            if users[number] > 0:
                add_latencies(run, known, begin, end, np.inf, weights[row], means[row])
                add_closed_rate(run, users[number], begin, end, engine.request_s, weights[row], means[row])
            else:
                limit_s = until_s[number]
                add_latencies(run, known, begin, end, limit_s, weights[row], means[row])
                add_stream(run, known, begin, end, limit_s, weights[row], means[row])
            place += 1
    for row in rows:
        means[row, 6] = percentile_s(gaps[row], 50.0)
        means[row, 7] = percentile_s(gaps[row], 95.0)


@compiled
def add_latencies(
    run: Requests,
    known: NDArray[np.bool_],
    begin: int,
    end: int,
    until_s: float,
    weight: float,
    means: Floats,
) -> None:
    """Add `weight` times mean TTFT, ITL and E2E of the requests from `begin` to before `end` that are `known` and
    complete."""
    ttft_s, itl_s, e2e_s, with_gaps, count = 0.0, 0.0, 0.0, 0, 0
    for place in range(begin, end):
        request = run[place]
        if request.done_s > until_s or not known[place]:
            continue
        count += 1
        ttft_s += request.first_token_s - request.arrival_s + request.outside_s
        e2e_s += request.done_s - request.arrival_s + request.outside_s
        if request.osl > 1:
            itl_s += (request.done_s - request.first_token_s) / (request.osl - 1)
            with_gaps += 1
    means[1] += weight * ttft_s / count if count > 0 else np.nan
    means[2] += weight * itl_s / with_gaps if with_gaps > 0 else np.nan
    means[3] += weight * e2e_s / count if count > 0 else np.nan


@compiled
def add_closed_rate(
    run: Requests, users: int, begin: int, end: int, request_s: float, weight: float, means: Floats
) -> None:
    """Requests/s of a closed loop: users over mean E2E (Little's law; as balanced as the lengths in the window), or of
    a whole run, ramp and drain included, by the time it took. The first request was sent `request_s` before it reached
    the engine."""
    if end < len(run):
        e2e_s = 0.0
        for place in range(begin, end):
            e2e_s += run[place].done_s - run[place].arrival_s + run[place].outside_s
        means[0] += weight * users * (end - begin) / e2e_s
    else:
        end_s = run[0].done_s + run[0].outside_s
        for place in range(end):
            end_s = max(end_s, run[place].done_s + run[place].outside_s)
        means[0] += weight * end / (end_s - run[0].arrival_s + request_s)
    means[3:6] = np.nan


@compiled
def add_stream(
    run: Requests,
    known: NDArray[np.bool_],
    begin: int,
    end: int,
    until_s: float,
    weight: float,
    means: Floats,
) -> None:
    """Figures of open loops only: requests completed per second during the window's arrivals, TTFT median and p95."""
    ttft_s = np.empty(end - begin)
    done, count = 0, 0
    start_s, end_s = run[begin].arrival_s, run[end - 1].arrival_s
    for place in range(end):
        if start_s < run[place].done_s <= end_s:
            done += 1
    for place in range(begin, end):
        if run[place].done_s <= until_s and known[place]:
            ttft_s[count] = run[place].first_token_s - run[place].arrival_s + run[place].outside_s
            count += 1
    means[0] += weight * done / (end_s - start_s)
    means[4] += weight * np.percentile(ttft_s[:count], 50) if count > 0 else np.nan
    means[5] += weight * np.percentile(ttft_s[:count], 95) if count > 0 else np.nan
