"""One replica, iteration by iteration: the scheduler of a batching engine, exact and compiled by numba.

An iteration is formed when the previous one ends: requests past their deadline leave, `make_room` pauses sequences if
the KV cache is full, `admit` takes prompts from the queue as the policy, the slots, the token budget and the KV
cache allow; the law gives the duration; every running sequence then has one more token. While nothing is
admitted, only decode steps follow, each longer than the previous one by the same amount (contexts grow by a
token each), so `decode_stretch` computes them all at once, in closed form. docs/simulator.md has the rules.
"""

from __future__ import annotations

import math

import numpy as np

from sizing.compiled import compiled, compiled_apart
from sizing.engine import KNEE, MOST_BUSY
from sizing.simulator.prefix_cache import forget_all, hold, keep, look_up
from sizing.simulator.state import (
    CANCELLED,
    GAP_BINS,
    HOLDERS,
    MAX_UTILIZATION,
    NOBODY,
    OUTSIDE,
    PREFILL_FIRST,
    STATIC,
    Engine,
    Requests,
    State,
    Workspace,
    borrowed,
    first_step,
    pop,
    push,
    remove,
    request_at,
    step_at,
)
from sizing.simulator.token_gaps import bin_of, count_gaps
from sizing.simulator.waiting import (
    awaits_others,
    chunk_of,
    expire_all,
    first_in_line,
    fits,
    forget_line,
    hold_prefix,
    let_prefix_go,
    look,
    memory_when_admitted,
    next_seen,
    overflows,
    own_prompt_tokens,
    prompt_tokens_of,
    put_back,
    reservation,
    shares_prefix,
    steps_to_full,
    steps_unseen,
    take_first,
    tokens_per_step,
    unfilled_tokens,
    was_fixed,
)
from sizing.workload import Seconds

# --- Gaps between tokens, counted as sequences decode; compiled by numba


@compiled
def count_stretch(
    state: State, work: Workspace, requests: Requests, steps: int, step_s: float, growth_s: float
) -> None:
    """Count the gaps of a stretch of decode steps that ends now, in which sequences leave only at its end."""
    if state.stalled:
        if steps > 1:
            count_all_but_last(state, work, requests, steps, step_s, growth_s)
        count_last(state, work, requests, step_s + (steps - 1) * growth_s)
    else:
        count_running(state, work, requests, step_s, growth_s, steps)
        state.decoded_s = state.clock_s


@compiled_apart
def count_all_but_last(
    state: State, work: Workspace, requests: Requests, steps: int, step_s: float, growth_s: float
) -> None:
    """Count the gaps of a stretch of two decode steps or more that ends at `clock_s`, without its last step."""
    if state.stalled:
        later_s = (steps - 1) * step_s + 0.5 * growth_s * steps * (steps - 1)
        count_stalled(state, work, requests, state.clock_s - later_s)
        step_s += growth_s
        steps -= 1
    count_running(state, work, requests, step_s, growth_s, steps - 1)


@compiled_apart
def count_last(state: State, work: Workspace, requests: Requests, step_s: float) -> None:
    """Count the gaps that end now, of requests whose clients are still there."""
    if state.stalled:
        count_stalled(state, work, requests, state.clock_s)
    else:
        count_running(state, work, requests, step_s, 0.0, 1)
    state.decoded_s = state.clock_s


@compiled
def count_running(state: State, work: Workspace, requests: Requests, gap_s: float, growth_s: float, steps: int) -> None:
    """Count the gaps of `steps` decode steps of all running sequences."""
    if len(work.gaps) == GAP_BINS:
        count_gaps(work.gaps, gap_s, growth_s, steps, state.running)
    else:
        count_by_stream(state, work, requests, gap_s, growth_s, steps)


@compiled_apart
def count_by_stream(
    state: State, work: Workspace, requests: Requests, gap_s: float, growth_s: float, steps: int
) -> None:
    """The same, with a separate histogram for each stream of requests."""
    for stream in range(len(work.gaps) // GAP_BINS):
        lanes = 0
        for place in range(state.running):
            lanes += int(requests[request_at(work.heap, place)].stream == stream)
        if lanes > 0:
            count_gaps(work.gaps[stream * GAP_BINS : (stream + 1) * GAP_BINS], gap_s, growth_s, steps, lanes)


@compiled
def count_one(work: Workspace, requests: Requests, request: int, gap_s: float) -> None:
    """Count one gap of a request."""
    work.gaps[requests[request].stream * GAP_BINS + bin_of(gap_s)] += 1


@compiled
def count_stalled(state: State, work: Workspace, requests: Requests, end_s: float) -> None:
    """Count the gaps that end at `end_s` of sequences that had to wait while prompts ran alone, each from its start."""
    for place in range(state.running):
        request = request_at(work.heap, place)
        count_one(work, requests, request, end_s - max(requests[request].token_s, state.decoded_s))
    state.stalled = 0


# --- Decoding sequences: how one starts, and what it frees when it leaves; compiled by numba


@compiled
def start_decoding(engine: Engine, state: State, work: Workspace, requests: Requests, request: int) -> None:
    """The prompt is in the cache: the next token is produced, and the sequence decodes from the next step on.

    For a paused request, its prompt and earlier tokens are in the cache again, and this counts as a decode step.
    """
    if requests[request].generated == 0:
        requests[request].first_token_s = state.clock_s
        if engine.send_s > 0:
            requests[request].outside_s += sending_s(engine, state)
    else:
        requests[request].done_steps += 1
        if len(work.gaps) > 0:
            count_one(work, requests, request, state.clock_s - requests[request].token_s)
    requests[request].token_s = state.clock_s
    more_steps = requests[request].steps - requests[request].done_steps
    if more_steps == 0:
        leave(engine, state, work, requests, request, memory_when_admitted(engine, requests, request))
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
def sending_s(engine: Engine, state: State) -> float:
    """Seconds that the sequence about to run loses in the front end, see `StepLaw.sending_s`."""
    return float(engine.send_s * (state.running + 1) / (1 - min(engine.send_s * state.sent_per_s, MOST_BUSY)))


SENT_OVER_S = 1.0
"""Over how long the tokens that a front end sends are averaged."""


@compiled
def note_sent(state: State, tokens: int) -> None:
    """Average in the tokens that came since the last call, until `clock_s`."""
    seconds = state.clock_s - state.sent_s
    if seconds > 0:
        kept = math.exp(-seconds / SENT_OVER_S)
        state.sent_per_s = kept * state.sent_per_s + (1 - kept) * tokens / seconds
        state.sent_s = state.clock_s


@compiled
def drop_lane(engine: Engine, state: State, requests: Requests, request: int, grown: float) -> float:
    """A sequence stops decoding, `grown` tokens after its first; returns the KV tokens that it held.

    In a static batch its lane is computed until the last one has finished, and no memory is freed before.
    """
    if engine.policy == STATIC:
        return 0.0
    state.lanes -= 1
    state.growth_tokens -= tokens_per_step(requests, request)
    state.context_tokens -= requests[request].isl + grown
    return float(own_prompt_tokens(engine, requests, request) + grown)


@compiled
def clear_lanes(state: State) -> None:
    """No sequence decodes: clear the lanes of a static batch and any rounding error."""
    state.lanes = 0
    state.context_tokens, state.growth_tokens = 0.0, 0.0


@compiled
def leave(
    engine: Engine, state: State, work: Workspace, requests: Requests, request: int, memory_tokens: float
) -> None:
    """The last token has been produced."""
    requests[request].done_s = state.clock_s
    let_go(engine, state, work, requests, request, memory_tokens)


@compiled
def let_go(
    engine: Engine, state: State, work: Workspace, requests: Requests, request: int, memory_tokens: float
) -> None:
    """An admitted request leaves, `done_s` is set: slot and KV cache are free."""
    state.left += 1
    if engine.kv_policy == MAX_UTILIZATION:
        state.left_tokens += memory_tokens + unfilled_tokens(engine, 1)
    else:
        state.left_tokens += reservation(engine, requests, request)
    note_gone(state, requests, request)
    release(engine, state, work, requests, request, memory_tokens)


@compiled
def release(
    engine: Engine, state: State, work: Workspace, requests: Requests, request: int, memory_tokens: float
) -> None:
    """Free the slot and the KV cache of a request."""
    if engine.prefix_cache:
        keep(engine, state, work, requests, request, memory_tokens)
    if shares_prefix(engine, work, requests, request):
        let_prefix_go(engine, state, work, requests, request)
    state.admitted -= 1
    state.reserved_tokens -= reservation(engine, requests, request)
    state.used_tokens -= memory_tokens
    if state.admitted == 0:
        state.used_tokens = 0.0


@compiled
def note_gone(state: State, requests: Requests, request: int) -> None:
    """Insert a request into the list of departures of this step, in order of `done_s`."""
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


# --- Pauses under max_utilization: if the KV cache is full, a sequence is paused; compiled by numba


@compiled_apart
def make_room(engine: Engine, state: State, work: Workspace, requests: Requests) -> bool:
    """Pause sequences until the others can take one decode step, or only one is left; True if any was paused."""
    before = state.paused
    while state.running > 1 and overflows(engine, state, 1):
        pause(engine, state, work, requests, victim(engine, state, work, requests))
    return state.paused > before


@compiled
def victim(engine: Engine, state: State, work: Workspace, requests: Requests) -> int:
    """The place in the heap of the running sequence to pause: the one admitted last; with priorities, the latest
    arrival of the lowest priority, as in vLLM's two scheduling policies."""
    last = 0
    for place in range(1, state.running):
        one, other = requests[request_at(work.heap, place)], requests[request_at(work.heap, last)]
        if not engine.by_priority:
            later = one.admission > other.admission
        elif one.priority != other.priority:
            later = one.priority > other.priority
        elif one.arrival_s != other.arrival_s:
            later = one.arrival_s > other.arrival_s
        else:
            later = request_at(work.heap, place) > request_at(work.heap, last)
        if later:
            last = place
    return last


@compiled
def pause(engine: Engine, state: State, work: Workspace, requests: Requests, place: int) -> None:
    """A running sequence gives up slot and memory and waits, with the tokens it has, to be computed again."""
    request = request_at(work.heap, place)
    done_steps = requests[request].steps - (step_at(work.heap, place) - state.decode_step)
    remove(work.heap, state.running, place)
    state.running -= 1
    grown = done_steps * tokens_per_step(requests, request)
    release(engine, state, work, requests, request, drop_lane(engine, state, requests, request, grown))
    if requests[request].cached_tokens == requests[request].isl:
        requests[request].cached_tokens = 0  # a context prefilled elsewhere is lost: all is recomputed
    requests[request].done_steps = done_steps
    requests[request].generated = 1 + int(grown + 1e-9)
    requests[request].token_s = max(requests[request].token_s, state.decoded_s)
    put_back(state, work, requests, request)
    state.paused += 1


# --- Requests that leave before their last token: client cancellations, failed replicas; compiled by numba


@compiled_apart
def cancel(engine: Engine, state: State, work: Workspace, requests: Requests, on_time: bool) -> None:
    """At the end of an iteration, drop admitted requests whose clients cancelled before it.

    Called before the tokens of the iteration are delivered, and with `on_time` once more after it, for clients that
    cancel at exactly that time and still got their token. Not needed before `next_cancel_s`.
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
            give_up(engine, state, work, requests, request, drop_lane(engine, state, requests, request, grown))
    state.running = kept
    if kept == 0:
        clear_lanes(state)
    cancel_prompts(engine, state, work, requests, on_time)


@compiled
def cancel_prompts(engine: Engine, state: State, work: Workspace, requests: Requests, on_time: bool) -> None:
    """The same for prompts that the iteration completes, and the one that is cut in chunks."""
    kept = 0
    for place in range(state.joining):
        request = work.joining[place]
        if stays(state, requests, request, on_time):
            work.joining[kept] = request
            kept += 1
        else:
            give_up_prompt(engine, state, work, requests, request)
    state.joining = kept
    request = state.prefilling
    if request != NOBODY and not stays(state, requests, request, on_time):
        give_up_prompt(engine, state, work, requests, request)
        state.prefilling = NOBODY


@compiled
def stays(state: State, requests: Requests, request: int, on_time: bool) -> bool:
    """True unless the client has cancelled; records the time of the next cancellation."""
    deadline_s = requests[request].arrival_s + requests[request].cancel_s
    if deadline_s < state.clock_s or (on_time and deadline_s == state.clock_s):
        return False
    state.next_cancel_s = min(state.next_cancel_s, deadline_s)
    return True


@compiled
def give_up_prompt(engine: Engine, state: State, work: Workspace, requests: Requests, request: int) -> None:
    """The client cancels during the prompt: there is no first token, unless the request was paused after it."""
    if requests[request].generated == 0:
        requests[request].first_token_s = math.nan
    give_up(engine, state, work, requests, request, memory_when_admitted(engine, requests, request))


@compiled
def give_up(
    engine: Engine, state: State, work: Workspace, requests: Requests, request: int, memory_tokens: float
) -> None:
    """The client cancels at its deadline; the engine drops the request."""
    requests[request].outcome = CANCELLED
    requests[request].done_s = requests[request].arrival_s + requests[request].cancel_s
    let_go(engine, state, work, requests, request, memory_tokens)


@compiled_apart
def fail(engine: Engine, state: State, work: Workspace, requests: Requests) -> int:
    """The replica fails: its requests lose all progress and belong to NOBODY; returns how many. The replica is idle.

    It fails at the end of the iteration in progress (`clock_s`): requests that this completes are served. Those
    that timed out before are removed by `advance` to the time of the failure, which must be called first.
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
    forget_all(state, work)
    work.prefixes[:, HOLDERS] = 0
    state.running, state.admitted, state.reserved_tokens = 0, 0, 0
    state.prefilling, state.prefilled_tokens, state.used_tokens = NOBODY, 0, 0.0
    state.next_cancel_s, state.stalled = math.inf, 0
    clear_lanes(state)
    return lost


@compiled
def lose(requests: Requests, request: int) -> None:
    """Reset a request as if it had never been in a replica."""
    requests[request].replica = NOBODY
    requests[request].stage = OUTSIDE
    requests[request].generated = 0
    requests[request].done_steps = 0
    requests[request].scheduled_s = 0.0
    requests[request].first_token_s = 0.0


# --- Duration of one iteration by the law and the engine's departures from it, and of a stretch of them; compiled

_GOLDEN, _MIX_1, _MIX_2 = map(np.uint64, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_SHIFT_1, _SHIFT_2, _SHIFT_3, _TO_53_BITS = map(np.uint64, (30, 27, 31, 11))


@compiled
def iteration_s(
    engine: Engine,
    work: Workspace,
    lanes: int,
    context_tokens: float,
    prompt_tokens: int,
    attention: float,
    sequences: int,
) -> float:
    """StepLaw.decode_s and StepLaw.mixed_s; decode lanes may be padded, and carry the tokens of a draft along.

    `work` caches parts of it; `sequences`: slots taken, by which an iteration with prompts bends.
    """
    padded = lanes
    if engine.padding > 1:
        padded = -(-lanes // engine.padding) * engine.padding
    time_s = engine.overhead_s + known_matrices_s(engine, work.matrices_s, padded * engine.lane_tokens + prompt_tokens)
    time_s += engine.sequence_s * padded + engine.kv_token_s * context_tokens
    if prompt_tokens > 0:
        time_s += engine.attention_s * attention + engine.prefill_s
    if engine.lane_tokens > 1 and lanes > 0:
        time_s += engine.draft_pass_s + engine.draft_sequence_s * lanes + engine.draft_kv_token_s * context_tokens
    if engine.bent:
        if prompt_tokens > 0:
            time_s *= known_bend(engine.prompt_bend, work.bends[ON_PROMPTS], sequences)
        else:
            time_s *= known_bend(engine.bend, work.bends[ON_STEPS], lanes)
    return time_s


ON_STEPS, ON_PROMPTS = range(2)
"""Rows of `Workspace.bends`."""


@compiled
def known_bend(knots: Seconds, known: Seconds, sequences: int) -> float:
    """`bent`, cached in `known` by the number of sequences; 0: not computed yet."""
    if sequences >= len(known):
        return bent(knots, sequences)
    if known[sequences] == 0:
        known[sequences] = bent(knots, sequences)
    return float(known[sequences])


@compiled_apart
def bent(knots: Seconds, sequences: int) -> float:
    """The factor at `sequences` sequences from its logarithms at BEND_KNOTS, half octaves."""
    place = 2.0 * math.log2(max(sequences, 1))
    low = min(int(place), len(knots) - 2)
    share = min(place - low, 1.0)
    return math.exp(knots[low] + share * (knots[low + 1] - knots[low]))


@compiled
def known_matrices_s(engine: Engine, known_s: Seconds, tokens: int) -> float:
    """`matrices_s`, cached in `known_s` by the number of tokens; 0: not computed yet."""
    if tokens >= len(known_s):
        return matrices_s(engine, tokens)
    if known_s[tokens] == 0:
        known_s[tokens] = matrices_s(engine, tokens)
    return float(known_s[tokens])


@compiled_apart
def matrices_s(engine: Engine, tokens: int) -> float:
    """Seconds of the matrix products of `tokens` tokens: StepLaw's knee; at k = 4 two square roots are the power."""
    weights_s = engine.weights_s
    if engine.unread > 0:
        weights_s *= 1 - engine.unread * engine.unread_decay ** (tokens - 1)
    dense_s = engine.token_s * tokens
    if engine.knee == KNEE:
        return math.sqrt(math.sqrt(weights_s**4 + dense_s**4))
    if engine.knee == 1:
        return weights_s + dense_s
    longer_s = max(weights_s, dense_s)
    if longer_s == 0:
        return 0.0
    share = min(weights_s, dense_s) / longer_s
    return float(longer_s * (1 + share**engine.knee) ** (1 / engine.knee))


@compiled
def growth_s(engine: Engine, state: State, work: Workspace) -> float:
    """Seconds by which each decode step is longer than the previous one: contexts have grown."""
    longer_s = (engine.kv_token_s + engine.draft_kv_token_s) * state.growth_tokens
    if engine.bent:
        longer_s *= known_bend(engine.bend, work.bends[ON_STEPS], state.lanes)
    return float(longer_s)


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


@compiled_apart
def jitter_factor(engine: Engine, state: State) -> float:
    """One draw of a lognormal factor with mean 1 and the engine's coefficient of variation."""
    radius = math.sqrt(-2 * math.log(1 - uniform(state)))
    normal = radius * math.cos(2 * math.pi * uniform(state))
    variance = math.log1p(engine.jitter * engine.jitter)
    return math.exp(math.sqrt(variance) * normal - variance / 2)


@compiled
def uniform(state: State) -> float:
    """The next number in [0, 1) of the replica's stream: SplitMix64 (Steele, Lea, Flood 2014) of (seed, count)."""
    state.draws += 1
    bits = np.uint64(state.seed) + np.uint64(state.draws) * _GOLDEN
    bits = (bits ^ (bits >> _SHIFT_1)) * _MIX_1
    bits = (bits ^ (bits >> _SHIFT_2)) * _MIX_2
    bits = bits ^ (bits >> _SHIFT_3)
    return float(bits >> _TO_53_BITS) * 2.0**-53


# --- What a replica holds, sampled over time; compiled by numba


@compiled_apart
def sample(state: State, work: Workspace) -> None:
    """Write a row, the fields of `TimeSeries`, for the first iteration formed at or after each multiple of
    `sample_every_s`.

    When all rows are used, every second one is dropped and sampling is halved: however long a run is, the rows cover
    it.
    """
    rows = len(work.series)
    if rows == 0:
        state.next_sample_s = math.inf
        return
    if state.samples == rows:
        state.samples = rows // 2
        for place in range(state.samples):
            work.series[place] = work.series[2 * place + 1]
        state.sample_every_s *= 2
    due = math.floor(state.clock_s / state.sample_every_s)
    state.next_sample_s = (due + 1) * state.sample_every_s
    if state.samples > 0 and work.series[state.samples - 1, 0] >= due * state.sample_every_s:
        return
    row = work.series[state.samples]
    row[0], row[1], row[2] = state.clock_s, state.running, state.waiting
    row[3], row[4], row[5] = int(state.prefilling != NOBODY), state.used_tokens, state.paused
    state.samples += 1


# --- One iteration; compiled by numba


@compiled
def work_of(fleet: Workspace, replica: int) -> Workspace:
    """The arrays of one replica of a fleet, borrowed."""
    return Workspace(
        borrowed(fleet.heap[replica]),
        borrowed(fleet.joining[replica]),
        borrowed(fleet.lines[replica]),
        borrowed(fleet.gaps[replica]),
        borrowed(fleet.series[replica]),
        borrowed(fleet.matrices_s[replica]),
        borrowed(fleet.bends[replica]),
        borrowed(fleet.cached[replica]),
        borrowed(fleet.prefixes[replica]),
    )


@compiled
def step(engine: Engine, state: State, work: Workspace, requests: Requests, until_s: float) -> None:
    """Run one iteration with prompt tokens, or all decode steps up to the next change.

    A stretch of decode steps ends with the first step that finishes a sequence or fills the KV cache, or that ends
    at or after `until_s`, the next arrival, or a deadline. No time passes if all requests have left.
    """
    state.joining = 0
    state.first_gone = NOBODY
    if state.next_deadline_s <= state.clock_s:
        expire_all(state, requests, state.clock_s)
    if state.next_sample_s <= state.clock_s:
        sample(state, work)
    short = False
    state.awaiting = 0
    if engine.lookahead_steps > 0 and state.formed > state.woken:
        state.late, state.late_tokens = state.left, state.left_tokens
    if engine.kv_policy == MAX_UTILIZATION and engine.policy != STATIC and overflows(engine, state, 1):
        short = make_room(engine, state, work, requests)
    prompt_tokens, attention = 0, 0.0
    if state.waiting > 0 or state.prefilling != NOBODY:
        if engine.policy == STATIC:
            prompt_tokens, attention = admit_batch(engine, state, work, requests)
        else:
            prompt_tokens, attention = admit(engine, state, work, requests, short)
    # A paused sequence may fit again after one step, and one that waits when the slots are known to be free.
    soon = short or (state.late > 0 and state.waiting > 0)
    state.left, state.left_tokens, state.late, state.late_tokens = 0, 0.0, 0, 0.0
    if prompt_tokens > 0:
        prefill_iteration(engine, state, work, requests, prompt_tokens, attention)
    elif state.running > 0:
        decode_stretch(engine, state, work, requests, state.clock_s if soon else until_s)
    if state.next_cancel_s <= state.clock_s:
        state.joining = 0
        cancel(engine, state, work, requests, True)


@compiled
def admit(engine: Engine, state: State, work: Workspace, requests: Requests, short: bool) -> tuple[int, float]:
    """In-flight batching: give the token budget that decodes leave to prompts, in queue order.

    Returns the prompt tokens of the iteration and the sum of p (s + p/2) over its chunks (see StepLaw). When memory is
    `short`, no request is admitted, and only the prompt in progress continues.
    """
    room = engine.token_budget
    if engine.policy != PREFILL_FIRST:
        room -= state.running * engine.lane_tokens
    prompt_tokens, attention = 0, 0.0
    all_seen = engine.overlooks == 0
    if engine.overlooks > 0:
        look(engine, state)
        if state.admitted == 0 and not (state.late > 0 and was_fixed(engine, state, work, requests)):
            # Nothing was left to run and nothing fixed: the engine looks again, and knows who has left.
            state.looked, state.late, state.late_tokens = state.formed + 1, 0, 0.0
            all_seen = True
    if engine.batch_wait_steps > 0 and state.running > 0 and not short:
        state.awaiting = int(awaits_others(engine, state, work, requests, room))
        if state.awaiting > 0:
            return 0, 0.0
    if state.prefilling != NOBODY and room > 0:
        prompt_tokens, attention = continue_prompt(state, work, requests, room)
    while state.waiting > 0 and state.admitted + state.late < engine.max_batch_size and not short:
        request = first_in_line(work, requests) if all_seen else next_seen(engine, state, work, requests, NOBODY)
        if request == NOBODY:
            break
        has_session = engine.prefix_cache > 0 and requests[request].session != NOBODY
        if has_session:
            look_up(engine, state, work, requests, request)
        tokens = prompt_tokens_of(requests, request)
        chunk = chunk_of(engine, tokens, room, prompt_tokens)
        if chunk < 0 or not fits(engine, state, work, requests, request):
            break
        if has_session:
            hold(state, work, requests, request)
        take_first(state, work, requests, request)
        take_memory(engine, state, work, requests, request, memory_when_admitted(engine, requests, request))
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
def take_memory(
    engine: Engine, state: State, work: Workspace, requests: Requests, request: int, memory_tokens: int
) -> None:
    """An admitted request takes its slot and its KV cache; from here on only a client cancellation can remove it."""
    if shares_prefix(engine, work, requests, request):
        hold_prefix(engine, state, work, requests, request)
    state.admitted += 1
    state.admissions += 1
    requests[request].admission = state.admissions
    state.reserved_tokens += reservation(engine, requests, request)
    state.used_tokens += memory_tokens
    state.next_cancel_s = min(state.next_cancel_s, requests[request].arrival_s + requests[request].cancel_s)


@compiled
def continue_prompt(state: State, work: Workspace, requests: Requests, room: int) -> tuple[int, float]:
    """The next chunk, at most `room` tokens, of the prompt in progress."""
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
def admit_batch(engine: Engine, state: State, work: Workspace, requests: Requests) -> tuple[int, float]:
    """Static batching: once the previous batch has finished, admit a new one.

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
        take_memory(engine, state, work, requests, request, own)
        join(state, work, request)
    if engine.padded:
        return longest * state.joining, 0.5 * longest * longest * state.joining
    return prompts, 0.5 * squares


@compiled
def join(state: State, work: Workspace, request: int) -> None:
    """The iteration being formed completes this prompt."""
    work.joining[state.joining] = request
    state.joining += 1


@compiled
def prefill_iteration(
    engine: Engine,
    state: State,
    work: Workspace,
    requests: Requests,
    prompt_tokens: int,
    attention: float,
) -> None:
    """One iteration that holds prompt tokens; unless the policy runs prompts alone, every lane decodes along."""
    factor = jitter_factor(engine, state) if engine.jitter > 0 else 1.0
    lanes_of_batch, batch_growth_tokens = state.joining, 0.0
    if engine.policy == STATIC:  # lanes of clients that cancel during the prompts grow like the others
        for place in range(state.joining):
            batch_growth_tokens += tokens_per_step(requests, work.joining[place])
    if state.lanes > 0 and engine.policy != PREFILL_FIRST:
        step_s = factor * iteration_s(
            engine, work, state.lanes, state.context_tokens, prompt_tokens, attention, state.admitted
        )
        state.clock_s += step_s
        note_formed(engine, state, 1, step_s)
        if engine.send_s > 0:
            note_sent(state, state.running)
        decode(engine, state, work, requests, 1, step_s, 0.0)
        state.waited = 0
    else:
        step_s = factor * iteration_s(engine, work, 0, 0.0, prompt_tokens, attention, state.admitted)
        state.clock_s += step_s
        note_formed(engine, state, 1, step_s)
        state.stalled = int(state.running > 0)
        if state.next_cancel_s < state.clock_s:
            cancel(engine, state, work, requests, False)
    state.looked = state.formed + 1
    for place in range(state.joining):
        start_decoding(engine, state, work, requests, work.joining[place])
    if engine.policy == STATIC and state.running > 0:
        state.growth_tokens = batch_growth_tokens
        state.lanes, state.context_tokens = lanes_of_batch, prompt_tokens
        state.used_tokens = prompt_tokens


@compiled
def decode_stretch(engine: Engine, state: State, work: Workspace, requests: Requests, until_s: float) -> None:
    """Decode steps up to the first that finishes a sequence or fills the cache, or ends at or after `until_s`."""
    step_s = iteration_s(engine, work, state.lanes, state.context_tokens, 0, 0.0, 0)
    longer_s = growth_s(engine, state, work)
    if engine.jitter > 0:
        step_s *= jitter_factor(engine, state)
        steps = 1
    else:
        steps = steps_ahead(engine, state, work)
        if engine.overlooks > 0 and state.waiting > 0:
            steps = min(steps, steps_unseen(engine, state, work, requests))
        if state.awaiting > 0:
            # Where memory fills up as sequences grow, prompts may no longer fit, and then do not wait for others.
            steps = 1 if engine.kv_policy == MAX_UTILIZATION else min(steps, engine.batch_wait_steps - state.waited)
        until_s = min(until_s, state.next_cancel_s, state.next_sample_s)
        if state.waiting > 0:
            until_s = min(until_s, state.next_deadline_s)
        if stretch_s(step_s, longer_s, steps) > until_s - state.clock_s:
            steps = steps_to(step_s, longer_s, until_s - state.clock_s)
    if state.awaiting > 0:
        state.waited += steps
    state.clock_s += stretch_s(step_s, longer_s, steps)
    note_formed(engine, state, steps, step_s + (steps - 1) * longer_s)
    if engine.send_s > 0:
        note_sent(state, steps * state.running)
    decode(engine, state, work, requests, steps, step_s, longer_s)


@compiled
def note_formed(engine: Engine, state: State, iterations: int, last_s: float) -> None:
    """For engines that overlook: count iterations, the last of which takes `last_s` seconds and ends at `clock_s`."""
    if engine.overlooks > 0:
        state.formed += iterations
        state.formed_s = last_s


@compiled
def steps_ahead(engine: Engine, state: State, work: Workspace) -> int:
    """Decode steps until the first that finishes a sequence, or before a sequence must be paused."""
    steps = first_step(work.heap) - state.decode_step
    if engine.kv_policy == MAX_UTILIZATION and engine.policy != STATIC:
        return steps_to_full(engine, state, steps)
    return steps


@compiled
def decode(
    engine: Engine, state: State, work: Workspace, requests: Requests, steps: int, step_s: float, longer_s: float
) -> None:
    """Give every lane `steps` more tokens; sequences that are complete or cancelled leave.

    The first step lasted `step_s` seconds, each `longer_s` more than the previous one; the clock is already at the end.
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
        leave(engine, state, work, requests, request, drop_lane(engine, state, requests, request, grown))
    if state.running == 0:
        clear_lanes(state)
