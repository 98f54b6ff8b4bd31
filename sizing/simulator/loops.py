"""Requests reach a replica from a given stream or a closed loop of users; queries for the router; compiled."""

from __future__ import annotations

import math

from sizing.simulator.scheduler import Counts, growth_s, iteration_s, step, steps_ahead, stretch_s, work_of
from sizing.simulator.state import NOBODY, Engine, Requests, State, States, Workspace, borrowed, compiled
from sizing.simulator.waiting import enqueue, expire, expire_all, idle

REJECTED_USER_WAITS_S = 0.01
"""Least wait of a user before retrying after an immediate rejection; otherwise a closed loop might never end."""


@compiled
def run_stream(engine: Engine, states: States, work: Workspace, requests: Requests) -> None:
    """One replica serves requests that arrive when `arrival_s` says."""
    run_part(engine, states, work, requests, 0, len(requests))


@compiled
def run_part(engine: Engine, states: States, work: Workspace, requests: Requests, first: int, last: int) -> None:
    """The same for requests `first` to `last - 1`, after the earlier ones; after the very last, to the end."""
    state = states[0]
    mine, requests = work_of(work, 0), borrowed(requests)
    for request in range(first, last):
        advance(engine, state, mine, requests, requests[request].arrival_s)
        enqueue(engine, state, mine, requests, request, requests[request].arrival_s)
    if last == len(requests):
        advance(engine, state, mine, requests, math.inf)


@compiled
def advance(engine: Engine, state: State, work: Workspace, requests: Requests, until_s: float) -> None:
    """Run every iteration that starts before `until_s`; the last may end later. Requests past their deadline leave."""
    while state.clock_s < until_s and not idle(state):
        step(engine, state, work, requests, until_s)
    if state.next_deadline_s <= until_s:
        expire_all(state, requests, until_s)


@compiled
def run_users(
    engine: Engine, states: States, work: Workspace, requests: Requests, users: int, begin: int, gaps: Counts
) -> None:
    """`users` users each send their next request as soon as the last answer is complete (closed loop).

    A user whose request is cancelled, timed out or rejected also sends the next one, at least 10 ms after a rejection.
    `arrival_s` holds the starts of the users, ascending, in its first `users` entries; the rest is filled.
    A request reaches the engine `request_s` after it is sent. Where `work` counts token gaps, those from the sending of
    request `begin` to that of the last, without ramp and drain, are added to `gaps`; of no length if they are not
    counted.
    """
    state = states[0]
    mine, requests = work_of(work, 0), borrowed(requests)
    if begin == 0:
        mine.gaps[:] = 0
    sent = users
    arrived = 0
    while arrived < len(requests) or not idle(state):
        next_s = requests[arrived].arrival_s if arrived < sent else math.inf
        if state.next_deadline_s <= min(next_s, state.clock_s):
            request = expire(state, requests, min(next_s, state.clock_s))
            if request != NOBODY:
                sent = send(requests, sent, requests[request].done_s + engine.request_s)
            continue
        if arrived < sent and (idle(state) or state.clock_s >= next_s):
            if not enqueue(engine, state, mine, requests, arrived, next_s):
                sent = send(requests, sent, next_s + max(engine.request_s, REJECTED_USER_WAITS_S))
            arrived += 1
            if arrived == begin:
                mine.gaps[:] = 0
            if arrived == len(requests):
                gaps += mine.gaps
            continue
        step(engine, state, mine, requests, next_s)
        gone = state.first_gone
        while gone != NOBODY:
            sent = send(requests, sent, requests[gone].done_s + engine.request_s)
            gone = requests[gone].behind


@compiled
def send(requests: Requests, sent: int, time_s: float) -> int:
    """Insert an arrival, if requests are left, into the ascending list of `sent` ones; returns the new number sent.

    Users who have not started yet may arrive after it.
    """
    if sent == len(requests):
        return sent
    place = sent
    while place > 0 and requests[place - 1].arrival_s > time_s:
        requests[place].arrival_s = requests[place - 1].arrival_s
        place -= 1
    requests[place].arrival_s = time_s
    return sent + 1


@compiled
def measured_rounds(requests: int, users: int) -> tuple[int, int]:
    """First request measured in a closed loop, and the one after the last: without ramp and drain."""
    return min(2 * users, requests - users - 1), requests - users


@compiled
def outstanding(state: State, now_s: float) -> int:
    """Requests in the replica at `now_s`; those that leave at the end of the iteration in progress still count."""
    unfinished = state.waiting + state.admitted
    if state.clock_s > now_s:
        unfinished += state.left
    return unfinished


@compiled
def next_departure_s(engine: Engine, state: State, work: Workspace, now_s: float) -> float:
    """A time before which the number of requests in the replica cannot fall."""
    if idle(state) and state.clock_s <= now_s:
        return math.inf
    if state.waiting > 0 or state.prefilling != NOBODY or (state.clock_s > now_s and state.left > 0):
        return min(state.clock_s, state.next_deadline_s)
    if engine.jitter > 0 or state.running == 0:
        return state.clock_s
    step_s = iteration_s(engine, work.matrices_s, state.lanes, state.context_tokens, 0, 0.0, 0)
    end_s = state.clock_s + stretch_s(step_s, growth_s(engine, state), steps_ahead(engine, state, work))
    return min(end_s, state.next_cancel_s)
