"""Pauses under max_utilization: when the KV cache is full, the sequence admitted last makes room; compiled by numba."""

from __future__ import annotations

from sizing.simulator.heap import compiled, compiled_apart, remove, request_at, step_at
from sizing.simulator.kv_cache import overflows, tokens_per_step
from sizing.simulator.lanes import drop_lane, release
from sizing.simulator.records import Engine, Requests, State, Work
from sizing.simulator.waiting import put_back


@compiled_apart
def make_room(engine: Engine, state: State, work: Work, requests: Requests) -> bool:
    """Pause sequences until the others can take one decode step, or one is alone; True when somebody was paused."""
    before = state.paused
    while state.running > 1 and overflows(engine, state, 1):
        pause(engine, state, work, requests, latest(state, work, requests))
    return state.paused > before


@compiled
def latest(state: State, work: Work, requests: Requests) -> int:
    """The place in the heap of the running sequence admitted last."""
    last = 0
    for place in range(1, state.running):
        if requests[request_at(work.heap, place)].admission > requests[request_at(work.heap, last)].admission:
            last = place
    return last


@compiled
def pause(engine: Engine, state: State, work: Work, requests: Requests, place: int) -> None:
    """A running sequence gives up slot and memory and waits, with the tokens it has, to be computed again."""
    request = request_at(work.heap, place)
    done_steps = requests[request].steps - (step_at(work.heap, place) - state.decode_step)
    remove(work.heap, state.running, place)
    state.running -= 1
    grown = done_steps * tokens_per_step(requests, request)
    release(engine, state, requests, request, drop_lane(engine, state, requests, request, grown))
    if requests[request].cached_tokens == requests[request].isl:
        requests[request].cached_tokens = 0  # what was prefilled elsewhere is lost here: it is all computed again
    requests[request].done_steps = done_steps
    requests[request].generated = 1 + int(grown + 1e-9)
    requests[request].token_s = max(requests[request].token_s, state.decoded_s)
    put_back(state, work, requests, request)
    state.paused += 1
