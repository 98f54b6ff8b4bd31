"""One replica, iteration by iteration: the scheduler of a batching engine, exact and compiled by numba.

An iteration is formed when the one before has ended: who has waited too long leaves, `make_room` pauses sequences when
the KV cache is full, `admit` takes prompts from the waiting line as the policy, the slots, the token budget and the KV
cache allow; the law says how long the iteration lasts; every running sequence then has one token more. While nothing is
admitted only decode steps follow one another, each longer than the last by the same amount (the contexts grow by a
token each), so `decode_stretch` takes them all at once, in closed form. docs/simulator.md has the rules in words.
"""

from __future__ import annotations

from sizing.simulator.borrowing import borrowed
from sizing.simulator.departures import cancel
from sizing.simulator.durations import growth_s, iteration_s, jitter_factor, steps_to, stretch_s
from sizing.simulator.gaps import count_all_but_last, count_last, count_stretch
from sizing.simulator.heap import compiled, first_step, pop
from sizing.simulator.kv_cache import (
    fits,
    memory_when_admitted,
    prompt_tokens_of,
    reservation,
    steps_to_full,
    tokens_per_step,
)
from sizing.simulator.lanes import clear_lanes, drop_lane, leave, start_decoding
from sizing.simulator.pausing import make_room
from sizing.simulator.records import (
    CHUNKED,
    MAX_UTILIZATION,
    NOBODY,
    PREFILL_FIRST,
    STATIC,
    Engine,
    Requests,
    State,
    Work,
)
from sizing.simulator.series import sample
from sizing.simulator.waiting import expire_all, first_in_line, take_first


@compiled
def work_of(fleet: Work, replica: int) -> Work:
    """The arrays of one replica of a fleet, borrowed."""
    return Work(
        borrowed(fleet.heap[replica]),
        borrowed(fleet.joining[replica]),
        borrowed(fleet.lines[replica]),
        borrowed(fleet.gaps[replica]),
        borrowed(fleet.series[replica]),
        borrowed(fleet.matrices_s[replica]),
    )


@compiled
def step(engine: Engine, state: State, work: Work, requests: Requests, until_s: float) -> None:
    """Run one iteration with prompt tokens, or all decode steps up to the next change.

    A stretch of decode steps ends with the first that finishes a sequence or fills the KV cache, or the first that ends
    at or after `until_s`, when somebody arrives, or a deadline. No time passes when all have left.
    """
    state.joining = 0
    state.first_gone = NOBODY
    if state.next_deadline_s <= state.clock_s:
        expire_all(state, requests, state.clock_s)
    if state.next_sample_s <= state.clock_s:
        sample(state, work)
    short = False
    if engine.kv_policy == MAX_UTILIZATION and engine.policy != STATIC:
        short = make_room(engine, state, work, requests)
    prompt_tokens, attention = 0, 0.0
    if state.waiting > 0 or state.prefilling != NOBODY:
        if engine.policy == STATIC:
            prompt_tokens, attention = admit_batch(engine, state, work, requests)
        else:
            prompt_tokens, attention = admit(engine, state, work, requests, short)
    state.left = 0
    if prompt_tokens > 0:
        prefill_iteration(engine, state, work, requests, prompt_tokens, attention)
    elif state.running > 0:
        # Who was paused may find room after one step.
        decode_stretch(engine, state, work, requests, state.clock_s if short else until_s)
    if state.next_cancel_s <= state.clock_s:
        state.joining = 0
        cancel(engine, state, work, requests, True)


@compiled
def admit(engine: Engine, state: State, work: Work, requests: Requests, short: bool) -> tuple[int, float]:
    """In-flight batching: give the room that decodes leave in the token budget to prompts, in order of the line.

    Returns the prompt tokens of the iteration and the sum of p (s + p/2) over its chunks (see StepLaw). When memory is
    `short` nobody is admitted, and only the prompt in progress goes on.
    """
    room = engine.token_budget
    if engine.policy != PREFILL_FIRST:
        room -= state.running * engine.lane_tokens
    prompt_tokens, attention = 0, 0.0
    if state.prefilling != NOBODY and room > 0:
        prompt_tokens, attention = continue_prompt(state, work, requests, room)
    while state.waiting > 0 and state.admitted < engine.max_batch_size and not short:
        request = first_in_line(work, requests)
        tokens = prompt_tokens_of(requests, request)
        chunk = tokens
        if tokens > 0 and prompt_tokens >= room:
            break
        if chunk > room - prompt_tokens and tokens > 0:
            if engine.policy == CHUNKED:
                chunk = room - prompt_tokens
            elif prompt_tokens > 0:
                break
        if not fits(engine, state, requests, request):
            break
        take_first(state, work, requests, request)
        take_memory(engine, state, requests, request, memory_when_admitted(requests, request))
        prompt_tokens += chunk
        attention += chunk * (requests[request].cached_tokens + 0.5 * chunk)
        if chunk < tokens:
            state.prefilling, state.prefilled_tokens = request, chunk
        elif tokens > 0:
            join(state, work, request)
        else:
            start_decoding(engine, state, work, requests, request)
    return prompt_tokens, attention


@compiled
def take_memory(engine: Engine, state: State, requests: Requests, request: int, memory_tokens: int) -> None:
    """An admitted request takes its slot and its KV cache; from now on only its client's patience can end."""
    state.admitted += 1
    state.admissions += 1
    requests[request].admission = state.admissions
    state.reserved_tokens += reservation(engine, requests, request)
    state.used_tokens += memory_tokens
    state.next_cancel_s = min(state.next_cancel_s, requests[request].arrival_s + requests[request].cancel_s)


@compiled
def continue_prompt(state: State, work: Work, requests: Requests, room: int) -> tuple[int, float]:
    """The next chunk, at most `room` tokens, of the prompt that is cut in chunks."""
    request = state.prefilling
    tokens = prompt_tokens_of(requests, request)
    chunk = min(tokens - state.prefilled_tokens, room)
    attention = chunk * (requests[request].cached_tokens + state.prefilled_tokens + 0.5 * chunk)
    state.prefilled_tokens += chunk
    if state.prefilled_tokens == tokens:
        state.prefilling = NOBODY
        join(state, work, request)
    return chunk, attention


@compiled
def admit_batch(engine: Engine, state: State, work: Work, requests: Requests) -> tuple[int, float]:
    """Static batching: once the last batch has finished, admit a new one.

    The KV cache must hold every lane to the longest output of the batch, after its own prompt if prompts are packed, or
    after the longest if they are padded to it. Neither the token budget nor the prefix cache applies: the engine
    prefills the batch in one iteration.
    """
    longest, most_output, prompts, squares = 0, 0, 0, 0.0
    while state.running == 0 and state.waiting > 0 and state.joining < engine.max_batch_size:
        request = first_in_line(work, requests)
        own, lanes = requests[request].isl, state.joining + 1
        isl, osl = max(longest, own), max(most_output, requests[request].osl)
        held_tokens = lanes * isl if engine.padded else prompts + own
        if held_tokens + lanes * osl > engine.kv_tokens:
            break
        longest, most_output = isl, osl
        prompts += own
        squares += float(own) * own
        take_first(state, work, requests, request)
        take_memory(engine, state, requests, request, own)
        join(state, work, request)
    if engine.padded:
        return longest * state.joining, 0.5 * longest * longest * state.joining
    return prompts, 0.5 * squares


@compiled
def join(state: State, work: Work, request: int) -> None:
    """The iteration being formed completes this prompt."""
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
    factor = jitter_factor(engine, state) if engine.jitter > 0 else 1.0
    lanes_of_batch, batch_growth_tokens = state.joining, 0.0
    if engine.policy == STATIC:  # lanes of clients who give up during the prompts grow like the others
        for place in range(state.joining):
            batch_growth_tokens += tokens_per_step(requests, work.joining[place])
    if state.lanes > 0 and engine.policy != PREFILL_FIRST:
        step_s = factor * iteration_s(
            engine, work.matrices_s, state.lanes, state.context_tokens, prompt_tokens, attention
        )
        state.clock_s += step_s
        decode(engine, state, work, requests, 1, step_s, 0.0)
    else:
        state.clock_s += factor * iteration_s(engine, work.matrices_s, 0, 0.0, prompt_tokens, attention)
        state.stalled = int(state.running > 0)
        if state.next_cancel_s < state.clock_s:
            cancel(engine, state, work, requests, False)
    for place in range(state.joining):
        start_decoding(engine, state, work, requests, work.joining[place])
    if engine.policy == STATIC and state.running > 0:
        state.growth_tokens = batch_growth_tokens
        state.lanes, state.context_tokens = lanes_of_batch, prompt_tokens
        state.used_tokens = prompt_tokens


@compiled
def decode_stretch(engine: Engine, state: State, work: Work, requests: Requests, until_s: float) -> None:
    """Decode steps up to the first that finishes a sequence or fills the cache, or ends at or after `until_s`."""
    step_s = iteration_s(engine, work.matrices_s, state.lanes, state.context_tokens, 0, 0.0)
    longer_s = growth_s(engine, state)
    if engine.jitter > 0:
        step_s *= jitter_factor(engine, state)
        steps = 1
    else:
        steps = steps_ahead(engine, state, work)
        until_s = min(until_s, state.next_cancel_s, state.next_sample_s)
        if state.waiting > 0:
            until_s = min(until_s, state.next_deadline_s)
        if stretch_s(step_s, longer_s, steps) > until_s - state.clock_s:
            steps = steps_to(step_s, longer_s, until_s - state.clock_s)
    state.clock_s += stretch_s(step_s, longer_s, steps)
    decode(engine, state, work, requests, steps, step_s, longer_s)


@compiled
def steps_ahead(engine: Engine, state: State, work: Work) -> int:
    """Decode steps until the first that finishes a sequence, or before somebody must be paused."""
    steps = first_step(work.heap) - state.decode_step
    if engine.kv_policy == MAX_UTILIZATION and engine.policy != STATIC:
        return steps_to_full(engine, state, steps)
    return steps


@compiled
def decode(
    engine: Engine, state: State, work: Work, requests: Requests, steps: int, step_s: float, longer_s: float
) -> None:
    """Give every lane `steps` tokens more, and let go the sequences that are complete or whose clients have gone.

    The first step lasted `step_s` seconds, each `longer_s` more than the one before; the clock is at the end already.
    """
    counted = len(work.gaps) > 0
    if counted and state.next_cancel_s >= state.clock_s:
        count_stretch(state, work, requests, steps, step_s, longer_s)
        counted = False
    if counted and steps > 1:
        count_all_but_last(state, work, requests, steps, step_s, longer_s)
    state.decode_step += steps
    state.context_tokens += steps * state.growth_tokens
    state.used_tokens += steps * state.growth_tokens
    if state.next_cancel_s < state.clock_s:
        cancel(engine, state, work, requests, False)
    if counted:
        count_last(state, work, requests, step_s + (steps - 1) * longer_s)
    while state.running > 0 and first_step(work.heap) <= state.decode_step:
        request = pop(work.heap, state.running)
        state.running -= 1
        grown = requests[request].osl - 1
        leave(engine, state, requests, request, drop_lane(engine, state, requests, request, grown))
    if state.running == 0:
        clear_lanes(state)
