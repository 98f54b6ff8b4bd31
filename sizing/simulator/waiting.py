"""The waiting line of a replica: by priority, of limited length, left by those who have waited too long; compiled.

A request that gives up stays linked in its line, out of the count, until it comes to the head.
"""

from __future__ import annotations

import math

from sizing.simulator.deadlines import insert_deadline, pop_deadline
from sizing.simulator.heap import compiled, compiled_apart
from sizing.simulator.kv_cache import never_fits
from sizing.simulator.records import (
    ADMITTED,
    CANCELLED,
    NOBODY,
    OUTSIDE,
    PAUSED,
    PRIORITIES,
    REJECTED,
    SERVED,
    TIMED_OUT,
    WAITING,
    Engine,
    Requests,
    State,
    Work,
)


@compiled
def idle(state: State) -> bool:
    """True when the replica has nothing to do."""
    return state.running == 0 and state.waiting == 0 and state.prefilling == NOBODY


@compiled
def enqueue(engine: Engine, state: State, work: Work, requests: Requests, request: int, time_s: float) -> bool:
    """Put a request at the end of the line of its priority, at `time_s`; an idle replica wakes up.

    The queue timeout counts from now: a request whose first replica has died waits anew. Its client does not.
    False when it is rejected: the line is full, or the KV cache could never hold it.
    """
    if state.next_deadline_s <= time_s:
        expire_all(state, requests, time_s)
    if idle(state):
        state.clock_s = max(state.clock_s, time_s)
        if state.first_deadline != NOBODY:
            forget_line(state, work)
    if 0 < engine.max_waiting <= state.waiting or never_fits(engine, requests, request):
        turn_away(requests, request, REJECTED, time_s)
        return False
    requests[request].outcome = SERVED
    requests[request].stage = WAITING
    requests[request].generated = 0
    requests[request].done_steps = 0
    cancelled_s = requests[request].arrival_s + requests[request].cancel_s
    insert_deadline(state, requests, request, min(time_s + requests[request].queue_timeout_s, cancelled_s))
    line = line_of(requests, request)
    requests[request].behind = NOBODY
    if work.lines[line, 0] == NOBODY:
        work.lines[line, 0] = request
    else:
        requests[work.lines[line, 1]].behind = request
    work.lines[line, 1] = request
    state.waiting += 1
    return True


@compiled
def line_of(requests: Requests, request: int) -> int:
    """The line a request waits in: its priority, kept inside the lines there are."""
    return int(min(max(requests[request].priority, 0), PRIORITIES - 1))


@compiled
def turn_away(requests: Requests, request: int, outcome: int, time_s: float) -> None:
    """A request that never started leaves."""
    requests[request].outcome = outcome
    requests[request].stage = OUTSIDE
    requests[request].done_s = time_s
    requests[request].scheduled_s = math.nan
    requests[request].first_token_s = math.nan


@compiled
def first_in_line(work: Work, requests: Requests) -> int:
    """The request to be admitted next, while somebody waits: the oldest of the first priority that has one."""
    for line in range(PRIORITIES):
        request = work.lines[line, 0]
        while request != NOBODY and requests[request].stage == OUTSIDE:
            request = requests[request].behind
        work.lines[line, 0] = request
        if request != NOBODY:
            return int(request)
    return NOBODY


@compiled
def take_first(state: State, work: Work, requests: Requests, request: int) -> None:
    """The request at the head of the line leaves it, to be computed from now on."""
    work.lines[line_of(requests, request), 0] = requests[request].behind
    state.waiting -= 1
    if requests[request].stage == WAITING:
        requests[request].scheduled_s = state.clock_s
    requests[request].stage = ADMITTED


@compiled
def put_back(state: State, work: Work, requests: Requests, request: int) -> None:
    """A paused request waits again, before all others of its priority, and at most until its client gives up."""
    line = line_of(requests, request)
    requests[request].stage = PAUSED
    requests[request].behind = work.lines[line, 0]
    if work.lines[line, 0] == NOBODY:
        work.lines[line, 1] = request
    work.lines[line, 0] = request
    state.waiting += 1
    if requests[request].deadline_s == math.inf:
        insert_deadline(state, requests, request, requests[request].arrival_s + requests[request].cancel_s)


@compiled_apart
def expire(state: State, requests: Requests, until_s: float) -> int:
    """The next request that gives up waiting, at `until_s` at the latest, leaves the line; NOBODY if there is none."""
    while state.first_deadline != NOBODY and state.next_deadline_s <= until_s:
        deadline_s = state.next_deadline_s
        request = pop_deadline(state, requests)
        cancelled_s = requests[request].arrival_s + requests[request].cancel_s
        if requests[request].stage == PAUSED and cancelled_s > deadline_s:
            insert_deadline(state, requests, request, cancelled_s)
        elif requests[request].stage == PAUSED:
            requests[request].outcome = CANCELLED
            requests[request].stage = OUTSIDE
            requests[request].done_s = cancelled_s
            state.waiting -= 1
            return request
        elif requests[request].stage == WAITING:
            turn_away(requests, request, CANCELLED if cancelled_s <= deadline_s else TIMED_OUT, deadline_s)
            state.waiting -= 1
            return request
    return NOBODY


@compiled_apart
def expire_all(state: State, requests: Requests, until_s: float) -> None:
    """Everybody whose patience ends at `until_s` or before leaves the line."""
    while expire(state, requests, until_s) != NOBODY:
        pass


@compiled_apart
def forget_line(state: State, work: Work) -> None:
    """Nobody waits: clear what is left of those who gave up."""
    work.lines[:, :] = NOBODY
    state.waiting = 0
    state.first_deadline = NOBODY
    state.next_deadline_s = math.inf
