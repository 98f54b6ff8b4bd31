"""Requests that leave an engine before their last token: clients that give up, replicas that die; compiled by numba."""

from __future__ import annotations

import math

from sizing.simulator.heap import compiled, compiled_apart, push, request_at, step_at
from sizing.simulator.kv_cache import memory_when_admitted, tokens_per_step
from sizing.simulator.lanes import clear_lanes, drop_lane, let_go
from sizing.simulator.records import CANCELLED, NOBODY, OUTSIDE, Engine, Requests, State, Work
from sizing.simulator.waiting import first_in_line, forget_line, take_first


@compiled_apart
def cancel(engine: Engine, state: State, work: Work, requests: Requests, on_time: bool) -> None:
    """At the end of an iteration, let go the admitted requests whose clients have given up before it.

    Called before the tokens of the iteration are given out, and with `on_time` once more after it, for clients that
    give up at that very time and had their token still. Not needed before `next_cancel_s`.
    """
    state.next_cancel_s = math.inf
    kept = 0
    for place in range(state.running):
        request, finish = request_at(work.heap, place), step_at(work.heap, place)
        if stays(state, requests, request, on_time):
            push(work.heap, kept, finish, request)
            kept += 1
        else:
            done_steps = requests[request].steps - (finish - state.decode_step)
            grown = done_steps * tokens_per_step(requests, request)
            give_up(engine, state, requests, request, drop_lane(engine, state, requests, request, grown))
    state.running = kept
    if kept == 0:
        clear_lanes(state)
    cancel_prompts(engine, state, work, requests, on_time)


@compiled
def cancel_prompts(engine: Engine, state: State, work: Work, requests: Requests, on_time: bool) -> None:
    """The same for prompts that the iteration completes, and the one that is cut in chunks."""
    kept = 0
    for place in range(state.joining):
        request = work.joining[place]
        if stays(state, requests, request, on_time):
            work.joining[kept] = request
            kept += 1
        else:
            give_up_prompt(engine, state, requests, request)
    state.joining = kept
    request = state.prefilling
    if request != NOBODY and not stays(state, requests, request, on_time):
        state.prefilling = NOBODY
        give_up_prompt(engine, state, requests, request)


@compiled
def stays(state: State, requests: Requests, request: int, on_time: bool) -> bool:
    """True unless the client has given up; the next time somebody does is kept."""
    deadline_s = requests[request].arrival_s + requests[request].cancel_s
    if deadline_s < state.clock_s or (on_time and deadline_s == state.clock_s):
        return False
    state.next_cancel_s = min(state.next_cancel_s, deadline_s)
    return True


@compiled
def give_up_prompt(engine: Engine, state: State, requests: Requests, request: int) -> None:
    """The client gives up during the prompt: there is no first token, unless the request had been paused after it."""
    if requests[request].generated == 0:
        requests[request].first_token_s = math.nan
    give_up(engine, state, requests, request, memory_when_admitted(requests, request))


@compiled
def give_up(engine: Engine, state: State, requests: Requests, request: int, memory_tokens: float) -> None:
    """The client gives up at its deadline; the engine lets the request go."""
    requests[request].outcome = CANCELLED
    requests[request].done_s = requests[request].arrival_s + requests[request].cancel_s
    let_go(engine, state, requests, request, memory_tokens)


@compiled_apart
def fail(engine: Engine, state: State, work: Work, requests: Requests) -> int:
    """The replica dies: its requests lose all progress and belong to NOBODY; returns how many. The replica is idle.

    It dies at the end of the iteration in progress (`clock_s`): requests whose last token this brings are served. Those
    who gave up waiting before are taken out by `advance` to the time of the failure, which is to be called first.
    """
    lost = 0
    for place in range(state.running):
        lose(requests, request_at(work.heap, place))
        lost += 1
    if state.prefilling != NOBODY:
        lose(requests, state.prefilling)
        lost += 1
    while state.waiting > 0:
        request = first_in_line(work, requests)
        take_first(state, work, requests, request)
        lose(requests, request)
        lost += 1
    forget_line(state, work)
    state.running, state.admitted, state.reserved_tokens = 0, 0, 0
    state.prefilling, state.prefilled_tokens, state.used_tokens = NOBODY, 0, 0.0
    state.next_cancel_s, state.stalled = math.inf, 0
    clear_lanes(state)
    return lost


@compiled
def lose(requests: Requests, request: int) -> None:
    """A request forgets that it ever was in a replica."""
    requests[request].replica = NOBODY
    requests[request].stage = OUTSIDE
    requests[request].generated = 0
    requests[request].done_steps = 0
    requests[request].scheduled_s = 0.0
    requests[request].first_token_s = 0.0
