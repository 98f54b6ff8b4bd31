"""Sequences that decode: how one begins, and what leaves the replica with it; compiled by numba."""

from __future__ import annotations

from sizing.simulator.gaps import count_one
from sizing.simulator.heap import compiled, push
from sizing.simulator.kv_cache import memory_when_admitted, own_prompt_tokens, reservation, tokens_per_step
from sizing.simulator.records import NOBODY, STATIC, Engine, Requests, State, Work


@compiled
def start_decoding(engine: Engine, state: State, work: Work, requests: Requests, request: int) -> None:
    """The prompt is in the cache: the next token is out, and the sequence decodes from the next step on.

    Of a request that was paused, the prompt and the tokens it had are in the cache now, and this is a step of it.
    """
    if requests[request].generated == 0:
        requests[request].first_token_s = state.clock_s
    else:
        requests[request].done_steps += 1
        if len(work.gaps) > 0:
            count_one(work, requests, request, state.clock_s - requests[request].token_s)
    requests[request].token_s = state.clock_s
    more_steps = requests[request].steps - requests[request].done_steps
    if more_steps == 0:
        leave(engine, state, requests, request, memory_when_admitted(requests, request))
        return
    push(work.heap, state.running, state.decode_step + more_steps, request)
    state.running += 1
    state.lanes += 1
    growth_tokens = tokens_per_step(requests, request)
    grown = requests[request].done_steps * growth_tokens
    state.growth_tokens += growth_tokens
    state.context_tokens += requests[request].isl + grown
    state.used_tokens += grown - requests[request].generated


@compiled
def drop_lane(engine: Engine, state: State, requests: Requests, request: int, grown: float) -> float:
    """A sequence decodes no more, `grown` tokens after its first; returns the KV tokens that it held.

    In a static batch its lane is computed on, until the last one has finished, and no memory is free before.
    """
    if engine.policy == STATIC:
        return 0.0
    state.lanes -= 1
    state.growth_tokens -= tokens_per_step(requests, request)
    state.context_tokens -= requests[request].isl + grown
    return float(own_prompt_tokens(requests, request) + grown)


@compiled
def clear_lanes(state: State) -> None:
    """Nobody decodes: no lane of a static batch is left either, and no rounding."""
    state.lanes = 0
    state.context_tokens, state.growth_tokens = 0.0, 0.0


@compiled
def leave(engine: Engine, state: State, requests: Requests, request: int, memory_tokens: float) -> None:
    """The last token is out."""
    requests[request].done_s = state.clock_s
    let_go(engine, state, requests, request, memory_tokens)


@compiled
def let_go(engine: Engine, state: State, requests: Requests, request: int, memory_tokens: float) -> None:
    """An admitted request leaves, `done_s` is set: slot and KV cache are free."""
    state.left += 1
    note_gone(state, requests, request)
    release(engine, state, requests, request, memory_tokens)


@compiled
def release(engine: Engine, state: State, requests: Requests, request: int, memory_tokens: float) -> None:
    """Give back the slot and the KV cache of a request."""
    state.admitted -= 1
    state.reserved_tokens -= reservation(engine, requests, request)
    state.used_tokens -= memory_tokens
    if state.admitted == 0:
        state.used_tokens = 0.0


@compiled
def note_gone(state: State, requests: Requests, request: int) -> None:
    """Enter a request in the list of those who left in this step, in order of `done_s`."""
    requests[request].behind = NOBODY
    if state.first_gone == NOBODY:
        state.first_gone = state.last_gone = request
    elif requests[request].done_s >= requests[state.last_gone].done_s:
        requests[state.last_gone].behind = request
        state.last_gone = request
    elif requests[request].done_s < requests[state.first_gone].done_s:
        requests[request].behind = state.first_gone
        state.first_gone = request
    else:
        before = state.first_gone
        while requests[requests[before].behind].done_s <= requests[request].done_s:
            before = requests[before].behind
        requests[request].behind = requests[before].behind
        requests[before].behind = request
