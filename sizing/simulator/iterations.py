"""One replica, iteration by iteration: the scheduler of a batching engine, exact and compiled by numba.

An iteration is formed when the one before has ended: `admit` takes prompts from the waiting line as the policy, the
slots, the token budget and the KV cache allow; the law says how long the iteration lasts; every running sequence then
has one token more. While nothing is admitted only decode steps follow one another, each longer than the last by the
same amount (the contexts grow by a token each), so `decode_stretch` takes them all at once, in closed form.
"""

from __future__ import annotations

import math

from sizing.replica import POLICIES
from sizing.simulator.heap import compiled, first_step, pop, push
from sizing.simulator.records import NOBODY, Engine, Requests, State, Work

CHUNKED = POLICIES.index("chunked")
PREFILL_FIRST = POLICIES.index("prefill_first")
STATIC = POLICIES.index("static")


@compiled
def iteration_s(engine: Engine, lanes: int, context_tokens: int, prompt_tokens: int, attention: float) -> float:
    """StepLaw.decode_s and StepLaw.mixed_s; the knee is k = 4, so two square roots stand for the power."""
    dense_s = engine.token_s * (lanes + prompt_tokens)
    knee_s = math.sqrt(math.sqrt(engine.weights_s**4 + dense_s**4))
    time_s = engine.overhead_s + knee_s + engine.sequence_s * lanes + engine.kv_token_s * context_tokens
    if prompt_tokens > 0:
        time_s += engine.attention_s * attention + engine.prefill_s
    return time_s


@compiled
def work_of(fleet: Work, replica: int) -> Work:
    """The arrays of one replica of a fleet."""
    return Work(fleet.heap[replica], fleet.joining[replica])


@compiled
def idle(state: State) -> bool:
    """True when the replica has nothing to do."""
    return state.running == 0 and state.waiting == 0 and state.prefilling == NOBODY


@compiled
def enqueue(state: State, requests: Requests, request: int, time_s: float) -> None:
    """Put a request at the end of the waiting line; an idle replica wakes up at its arrival."""
    if idle(state):
        state.clock_s = max(state.clock_s, time_s)
    if state.waiting == 0:
        state.first_waiting = request
    else:
        requests[state.last_waiting].behind = request
    state.last_waiting = request
    state.waiting += 1


@compiled
def step(engine: Engine, state: State, work: Work, requests: Requests, until_s: float) -> None:
    """Run one iteration with prompt tokens, or all decode steps up to the next change.

    A stretch of decode steps ends with the first that finishes a sequence, or the first that ends at or after
    `until_s`, when somebody arrives.
    """
    state.left = 0
    state.joining = 0
    if state.waiting == 0 and state.prefilling == NOBODY:
        decode_stretch(engine, state, work, requests, until_s)
        return
    if engine.policy == STATIC:
        prompt_tokens, attention = admit_batch(engine, state, work, requests)
    else:
        prompt_tokens, attention = admit(engine, state, work, requests)
    if prompt_tokens > 0:
        prefill_iteration(engine, state, work, requests, prompt_tokens, attention)
    else:
        decode_stretch(engine, state, work, requests, until_s)


@compiled
def admit(engine: Engine, state: State, work: Work, requests: Requests) -> tuple[int, float]:
    """In-flight batching: give the room that decodes leave in the token budget to prompts, first come first served.

    Returns the prompt tokens of the iteration and the sum of p (s + p/2) over its chunks (see StepLaw).
    """
    room = engine.token_budget
    if engine.policy != PREFILL_FIRST:
        room -= state.running
    prompt_tokens, attention = 0, 0.0
    if state.prefilling != NOBODY and room > 0:
        prompt_tokens, attention = continue_prompt(state, work, requests, room)
    while state.waiting > 0 and state.admitted < engine.max_batch_size and prompt_tokens < room:
        request = state.first_waiting
        isl = requests[request].isl
        chunk = isl
        if chunk > room - prompt_tokens:
            if engine.policy == CHUNKED:
                chunk = room - prompt_tokens
            elif prompt_tokens > 0:
                break
        if state.reserved_tokens + isl + requests[request].osl > engine.kv_tokens:
            break
        take_first_waiting(state, requests)
        prompt_tokens += chunk
        attention += 0.5 * chunk * chunk
        if chunk == isl:
            join(state, work, request)
        else:
            state.prefilling, state.prefilled_tokens = request, chunk
    return prompt_tokens, attention


@compiled
def continue_prompt(state: State, work: Work, requests: Requests, room: int) -> tuple[int, float]:
    """The next chunk, at most `room` tokens, of the prompt that is cut in chunks."""
    request = state.prefilling
    chunk = min(requests[request].isl - state.prefilled_tokens, room)
    attention = chunk * (state.prefilled_tokens + 0.5 * chunk)
    state.prefilled_tokens += chunk
    if state.prefilled_tokens == requests[request].isl:
        state.prefilling = NOBODY
        join(state, work, request)
    return chunk, attention


@compiled
def admit_batch(engine: Engine, state: State, work: Work, requests: Requests) -> tuple[int, float]:
    """Static batching: once the last batch has finished, admit a new one, its prompts padded to the longest.

    The KV cache must hold every lane padded to the longest prompt and the longest output. The token budget does not
    apply: the engine prefills the padded batch in one iteration.
    """
    longest, most_output = 0, 0
    while state.running == 0 and state.waiting > 0 and state.joining < engine.max_batch_size:
        request = state.first_waiting
        isl, osl = max(longest, requests[request].isl), max(most_output, requests[request].osl)
        if (state.joining + 1) * (isl + osl) > engine.kv_tokens:
            break
        longest, most_output = isl, osl
        take_first_waiting(state, requests)
        join(state, work, request)
    return longest * state.joining, 0.5 * longest * longest * state.joining


@compiled
def take_first_waiting(state: State, requests: Requests) -> None:
    """Admit the head of the waiting line: it has a slot and its KV cache from now on."""
    request = state.first_waiting
    state.first_waiting = requests[request].behind
    state.waiting -= 1
    state.admitted += 1
    state.reserved_tokens += requests[request].isl + requests[request].osl
    requests[request].scheduled_s = state.clock_s


@compiled
def join(state: State, work: Work, request: int) -> None:
    """Note that the iteration being formed completes this prompt."""
    work.joining[state.joining] = request
    state.joining += 1


@compiled
def prefill_iteration(
    engine: Engine,
    state: State,
    work: Work,
    requests: Requests,
    prompt_tokens: int,
    attention: float,
) -> None:
    """One iteration that holds prompt tokens; unless the policy runs prompts alone, every lane decodes along."""
    if state.lanes > 0 and engine.policy != PREFILL_FIRST:
        state.clock_s += iteration_s(engine, state.lanes, state.context_tokens, prompt_tokens, attention)
        decode(engine, state, work, requests, 1)
    else:
        state.clock_s += iteration_s(engine, 0, 0, prompt_tokens, attention)
    for place in range(state.joining):
        first_token(state, work, requests, work.joining[place])
    if engine.policy == STATIC and state.running > 0:
        state.lanes, state.context_tokens = state.joining, prompt_tokens


@compiled
def first_token(state: State, work: Work, requests: Requests, request: int) -> None:
    """A prompt is complete: its first token is out, and it decodes from the next iteration on."""
    requests[request].first_token_s = state.clock_s
    more_tokens = requests[request].osl - 1
    if more_tokens == 0:
        leave(state, requests, request)
        return
    push(work.heap, state.running, state.decode_step + more_tokens, request)
    state.running += 1
    state.lanes += 1
    state.context_tokens += requests[request].isl


@compiled
def decode_stretch(engine: Engine, state: State, work: Work, requests: Requests, until_s: float) -> None:
    """Decode steps up to the first that finishes a sequence or ends at or after `until_s`."""
    step_s = iteration_s(engine, state.lanes, state.context_tokens, 0, 0.0)
    growth_s = engine.kv_token_s * state.lanes
    steps = first_step(work.heap) - state.decode_step
    if stretch_s(step_s, growth_s, steps) > until_s - state.clock_s:
        steps = steps_to(step_s, growth_s, until_s - state.clock_s)
    state.clock_s += stretch_s(step_s, growth_s, steps)
    decode(engine, state, work, requests, steps)


@compiled
def stretch_s(step_s: float, growth_s: float, steps: int) -> float:
    """Seconds of `steps` steps, the first of `step_s` seconds and each `growth_s` longer than the one before."""
    return step_s * steps + 0.5 * growth_s * steps * (steps - 1)


@compiled
def steps_to(step_s: float, growth_s: float, wait_s: float) -> int:
    """The fewest steps (at least one) that last `wait_s` seconds or more: the root of stretch_s, rounded up."""
    linear_s = step_s - 0.5 * growth_s
    root = 2 * wait_s / (linear_s + math.sqrt(linear_s * linear_s + 2 * growth_s * wait_s))
    steps = max(math.ceil(root), 1)
    if steps > 1 and stretch_s(step_s, growth_s, steps - 1) >= wait_s:
        return steps - 1
    if stretch_s(step_s, growth_s, steps) < wait_s:
        return steps + 1
    return steps


@compiled
def decode(engine: Engine, state: State, work: Work, requests: Requests, steps: int) -> None:
    """Give every lane `steps` tokens more, and let go the sequences that are complete."""
    state.decode_step += steps
    state.context_tokens += steps * state.lanes
    while state.running > 0 and first_step(work.heap) <= state.decode_step:
        request = pop(work.heap, state.running)
        state.running -= 1
        leave(state, requests, request)
        if engine.policy != STATIC:
            state.lanes -= 1
            state.context_tokens -= requests[request].isl + requests[request].osl - 1
    if state.running == 0:
        state.lanes, state.context_tokens = 0, 0


@compiled
def leave(state: State, requests: Requests, request: int) -> None:
    """The last token is out: slot and KV cache are free."""
    requests[request].done_s = state.clock_s
    state.left += 1
    state.admitted -= 1
    state.reserved_tokens -= requests[request].isl + requests[request].osl
