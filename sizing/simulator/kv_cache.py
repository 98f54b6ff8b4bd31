"""Memory of the KV cache: what a request reserves, when it fits, how far decoding can go; compiled by numba."""

from __future__ import annotations

from sizing.simulator.heap import compiled
from sizing.simulator.records import MAX_UTILIZATION, STATIC, Engine, Requests, State


@compiled
def prompt_tokens_of(requests: Requests, request: int) -> int:
    """Tokens to compute before the next token comes: the prompt not found in the cache, and what a pause threw away."""
    return int(requests[request].isl - requests[request].cached_tokens + requests[request].generated)


@compiled
def own_prompt_tokens(requests: Requests, request: int) -> int:
    """Prompt tokens in memory of a request's own: all but the shared prefix; all of one prefilled elsewhere."""
    if requests[request].cached_tokens == requests[request].isl:
        return int(requests[request].isl)
    return int(requests[request].isl - requests[request].cached_tokens)


@compiled
def memory_when_admitted(requests: Requests, request: int) -> int:
    """KV tokens of a request before its next token: its own prompt, and what it had when it was paused."""
    return int(own_prompt_tokens(requests, request) + requests[request].generated)


@compiled
def tokens_per_step(requests: Requests, request: int) -> float:
    """Tokens by which one decode step lengthens a sequence: 1, or with speculation the mean over its output."""
    if requests[request].steps == 0:
        return 1.0
    return float((requests[request].osl - 1) / requests[request].steps)


@compiled
def reservation(engine: Engine, requests: Requests, request: int) -> int:
    """KV tokens that guaranteed_no_evict keeps for a request, in blocks: its own prompt, the most it may generate."""
    most_output = max(requests[request].osl, engine.max_tokens)
    tokens = own_prompt_tokens(requests, request) + most_output
    if engine.kv_block_tokens > 1:
        tokens = -(-tokens // engine.kv_block_tokens) * engine.kv_block_tokens
    return int(tokens)


@compiled
def fits(engine: Engine, state: State, requests: Requests, request: int) -> bool:
    """True when the KV cache has room to admit one request more (in-flight batching)."""
    if engine.kv_policy != MAX_UTILIZATION:
        return bool(state.reserved_tokens + reservation(engine, requests, request) <= engine.kv_tokens)
    # What the running sequences take in this step, and the new one in its first.
    step_tokens = state.growth_tokens + tokens_per_step(requests, request)
    needed = state.used_tokens + memory_when_admitted(requests, request) + step_tokens
    return bool(needed <= engine.kv_tokens or state.admitted == 0)


@compiled
def never_fits(engine: Engine, requests: Requests, request: int) -> bool:
    """True when even an empty KV cache is too small."""
    if engine.policy == STATIC:
        return bool(requests[request].isl + requests[request].osl > engine.kv_tokens)
    return bool(engine.kv_policy != MAX_UTILIZATION and reservation(engine, requests, request) > engine.kv_tokens)


@compiled
def overflows(engine: Engine, state: State, steps: int) -> bool:
    """True when `steps` decode steps more would fill the KV cache beyond its size."""
    return bool(state.used_tokens + steps * state.growth_tokens > engine.kv_tokens)


@compiled
def steps_to_full(engine: Engine, state: State, most: int) -> int:
    """Decode steps, 1 to `most`, that can be formed before somebody must be paused."""
    if state.running <= 1:
        return most
    steps = int((engine.kv_tokens - state.used_tokens) / state.growth_tokens)
    if overflows(engine, state, steps):
        steps -= 1
    elif not overflows(engine, state, steps + 1):
        steps += 1
    return max(1, min(most, steps))
