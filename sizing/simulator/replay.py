"""Measured runs repeated on the simulator, law after law: the forward model of the fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sizing.replica import Replica
from sizing.simulator.heap import compiled
from sizing.simulator.loops import measured_rounds, run_stream, run_users
from sizing.simulator.records import Engine, Requests, States, Work, engine_of, idle_states, work_space
from sizing.simulator.runs import checked_requests
from sizing.workload import Seconds, Tokens

Floats = NDArray[np.float64]

MEASURES = ("requests_per_s", "ttft_mean_s", "itl_mean_s", "e2e_mean_s", "ttft_p50_s", "ttft_p95_s")
"""Columns of what a replay gives; the last three only of open loops (in closed ones E2E follows from the others)."""


class Run(NamedTuple):
    """One run to repeat: what the clients did.

    `isl`, `osl`, `arrival_s`: shape (requests,). A closed loop has `users` who start at the first `users` of
    `arrival_s` and each send their next request after an answer; `users` 0 is an open loop. `windows`: rows (begin,
    end, row) of the requests measured, in order of arrival, and the row of the result they belong to.
    """

    users: int
    isl: Tokens
    osl: Tokens
    arrival_s: Seconds
    windows: tuple[tuple[int, int, int], ...]


def closed_run(row: int, users: int, isl: Tokens, osl: Tokens, ramp_s: float) -> Run:
    """Users who start one after the other over `ramp_s`; measured are the rounds without ramp and drain."""
    starts_s = np.zeros(len(isl))
    starts_s[:users] = ramp_s * np.arange(users) / users
    begin, end = measured_rounds(len(isl), users)
    return Run(users, isl, osl, starts_s, ((begin, end, row),))


class Replay:
    """Runs that give the rows of a result, ready to be simulated again and again with other laws.

    A row is the mean over its windows. The engines of one replay may differ in everything but `max_batch_size`.
    """

    def __init__(self, runs: Sequence[Run], replica: Replica) -> None:
        self.rows = 1 + max(window[2] for run in runs for window in run.windows)
        self._users = np.array([run.users for run in runs], np.int64)
        self._first = np.concatenate([[0], np.cumsum([len(run.isl) for run in runs])])
        isl, osl, arrival_s = (np.concatenate([getattr(run, name) for run in runs]) for name in _PER_REQUEST)
        self._requests = checked_requests(replica, isl, osl, arrival_s)
        self._fresh = self._requests.copy()
        windows = [(run, *window) for run, one in enumerate(runs) for window in one.windows]
        self._windows = np.array(windows, np.int64)
        self._weights = 1 / np.maximum(1, np.bincount(self._windows[:, 3], minlength=self.rows))
        self._space = work_space(replica, 1)

    def means(self, replica: Replica) -> Floats:
        """What each row measures on this engine, shape (rows, 6), columns `MEASURES`.

        NaN: ITL with one output token; E2E and percentiles of closed loops.
        """
        means = np.zeros((self.rows, len(MEASURES)))
        run_all(
            engine_of(replica),
            (idle_states(1), idle_states(1)),
            self._space,
            (self._fresh, self._requests),
            self._first,
            self._users,
            self._windows,
            self._weights,
            means,
        )
        return means


_PER_REQUEST = ("isl", "osl", "arrival_s")


@compiled
def run_all(
    engine: Engine,
    states: tuple[States, States],
    work: Work,
    requests: tuple[Requests, Requests],
    first: Tokens,
    users: Tokens,
    windows: Tokens,
    weights: Floats,
    means: Floats,
) -> None:
    """Simulate every run and add its windows (run, begin, end, row; by run) to their rows of `means`.

    `states` and `requests` are pairs: as they are before a run, and those that the run works on.
    """
    place = 0
    for number in range(len(users)):
        run = requests[1][first[number] : first[number + 1]]
        run[:] = requests[0][first[number] : first[number + 1]]
        states[1][:] = states[0]
        if users[number] > 0:
            for user in range(users[number]):
                run[user].arrival_s += engine.request_s
            run_users(engine, states[1], work, run, users[number])
        else:
            run_stream(engine, states[1], work, run)
        while place < len(windows) and windows[place, 0] == number:
            row = windows[place, 3]
            add_window(
                run, windows[place, 1], windows[place, 2], users[number], engine.request_s, weights[row], means[row]
            )
            place += 1


@compiled
def add_window(run: Requests, begin: int, end: int, users: int, request_s: float, weight: float, means: Floats) -> None:
    """Add `weight` times the measures of the requests from `begin` to before `end`."""
    ttft_s, itl_s, e2e_s, with_gaps = 0.0, 0.0, 0.0, 0
    for place in range(begin, end):
        request = run[place]
        ttft_s += request.first_token_s - request.arrival_s + request_s
        e2e_s += request.done_s - request.arrival_s + request_s
        if request.osl > 1:
            itl_s += (request.done_s - request.first_token_s) / (request.osl - 1)
            with_gaps += 1
    means[1] += weight * ttft_s / (end - begin)
    means[2] += weight * itl_s / with_gaps if with_gaps > 0 else np.nan
    if users > 0:
        means[0] += weight * (end - begin) / (run[end].arrival_s - run[begin].arrival_s)
        means[3:] = np.nan
        return
    means[3] += weight * e2e_s / (end - begin)
    add_stream(run, begin, end, request_s, weight, means)


@compiled
def add_stream(run: Requests, begin: int, end: int, request_s: float, weight: float, means: Floats) -> None:
    """What only an open loop tells: requests completed a second while the window's arrive, median and p95 of TTFT."""
    ttft_s = np.empty(end - begin)
    done = 0
    start_s, end_s = run[begin].arrival_s, run[end - 1].arrival_s
    for place in range(end):
        if start_s < run[place].done_s <= end_s:
            done += 1
    for place in range(begin, end):
        ttft_s[place - begin] = run[place].first_token_s - run[place].arrival_s + request_s
    means[0] += weight * done / (end_s - start_s)
    means[4] += weight * np.percentile(ttft_s, 50)
    means[5] += weight * np.percentile(ttft_s, 95)
