"""The queue of a replica: by priority, of limited length, with timeouts and cancellations; compiled.

A request past its deadline stays linked in its queue, uncounted, until it reaches the head.
"""

from __future__ import annotations

import math

from sizing.compiled import compiled, compiled_apart
from sizing.simulator.state import (
    ADMITTED,
    CANCELLED,
    HOLDERS,
    MAX_ITERATIONS,
    MAX_UTILIZATION,
    NOBODY,
    OUTSIDE,
    PAUSED,
    PREFIX_TOKENS,
    PRIORITIES,
    REJECTED,
    SERVED,
    STATIC,
    TIMED_OUT,
    WAITING,
    WHOLE_PROMPT,
    Engine,
    Requests,
    State,
    Workspace,
)

# --- Deadlines of queued requests: a pairing heap whose links are in the request records; compiled by numba
#
# Insertion takes constant time, removal logarithmic time on average (Fredman, Sedgewick, Sleator, Tarjan 1986). A
# request that starts stays in the heap; removing the first entry checks whether it is still valid.


@compiled
def insert_deadline(state: State, requests: Requests, request: int, deadline_s: float) -> None:
    """Record that a queued request leaves at `deadline_s`; an infinite deadline is not recorded."""
    requests[request].deadline_s = deadline_s
    if deadline_s == math.inf:
        return
    requests[request].below = NOBODY
    requests[request].beside = NOBODY
    set_first(state, requests, merged(requests, state.first_deadline, request))


@compiled_apart
def pop_deadline(state: State, requests: Requests) -> int:
    """Remove and return the request with the earliest deadline."""
    first = state.first_deadline
    pairs = NOBODY
    child = requests[first].below
    while child != NOBODY:
        partner = requests[child].beside
        rest = NOBODY
        requests[child].beside = NOBODY
        if partner != NOBODY:
            rest = requests[partner].beside
            requests[partner].beside = NOBODY
        pair = merged(requests, child, partner)
        requests[pair].beside = pairs
        pairs = pair
        child = rest
    root = NOBODY
    while pairs != NOBODY:
        pair = pairs
        pairs = requests[pair].beside
        requests[pair].beside = NOBODY
        root = merged(requests, root, pair)
    requests[first].deadline_s = math.inf
    set_first(state, requests, root)
    return int(first)


@compiled
def merged(requests: Requests, one: int, other: int) -> int:
    """The root of two merged heaps; NOBODY is the empty heap."""
    if one == NOBODY:
        return other
    if other == NOBODY:
        return one
    if requests[other].deadline_s < requests[one].deadline_s:
        one, other = other, one
    requests[other].beside = requests[one].below
    requests[one].below = other
    return one


@compiled
def set_first(state: State, requests: Requests, root: int) -> None:
    """Store the root of the heap and its key."""
    state.first_deadline = root
    state.next_deadline_s = math.inf if root == NOBODY else requests[root].deadline_s


# --- KV cache memory: what a request reserves, when it fits, how far decoding can go; compiled by numba


@compiled
def prompt_tokens_of(requests: Requests, request: int) -> int:
    """Tokens to compute before the next token: the prompt not found in the cache, and what a pause discarded."""
    return int(requests[request].isl - requests[request].cached_tokens + requests[request].generated)


@compiled
def chunk_of(engine: Engine, tokens: int, room: int, taken: int) -> int:
    """How many of a prompt's `tokens` an iteration computes that has given `taken` of its `room` to other prompts; -1
    if the prompt must wait. A whole prompt runs where it fits, or first if it is longer than any budget. Without tokens
    to compute it needs no room."""
    if tokens == 0 or tokens <= room - taken:
        return tokens
    if engine.policy == WHOLE_PROMPT:
        return tokens if tokens > engine.first_whole_above and taken == 0 and room > 0 else -1
    return room - taken if room > taken else -1


@compiled
def own_prompt_tokens(engine: Engine, requests: Requests, request: int) -> int:
    """Prompt tokens that a request holds itself: all but the shared prefix; all if it was prefilled elsewhere.

    The blocks of its session that a request finds in the prefix cache are its own from then on.
    """
    if engine.prefix_cache > 0 and requests[request].session != NOBODY:
        return int(requests[request].isl - engine.shared_tokens)
    if requests[request].cached_tokens == requests[request].isl:
        return int(requests[request].isl)
    return int(requests[request].isl - requests[request].cached_tokens)


@compiled
def memory_when_admitted(engine: Engine, requests: Requests, request: int) -> int:
    """KV tokens of a request before its next token: its own prompt, and what it had when it was paused."""
    return int(own_prompt_tokens(engine, requests, request) + requests[request].generated)


@compiled
def tokens_per_step(requests: Requests, request: int) -> float:
    """Tokens by which one decode step lengthens a sequence: 1, or with speculation the mean over its output."""
    if requests[request].steps == 0:
        return 1.0
    return float((requests[request].osl - 1) / requests[request].steps)


@compiled
def reservation(engine: Engine, requests: Requests, request: int) -> int:
    """KV tokens that guaranteed_no_evict reserves for a request, in blocks: own prompt plus most output tokens."""
    most_output = max(requests[request].osl, engine.max_tokens)
    tokens = own_prompt_tokens(engine, requests, request) + most_output
    if engine.kv_block_tokens > 1:
        tokens = -(-tokens // engine.kv_block_tokens) * engine.kv_block_tokens
    return int(tokens)


@compiled
def shares_prefix(engine: Engine, work: Workspace, requests: Requests, request: int) -> bool:
    """True of a request that found the shared prefix of its stream in the KV cache, and holds it with others."""
    if len(work.prefixes) == 0 or engine.policy == STATIC or requests[request].session != NOBODY:
        return False
    return bool(0 < requests[request].cached_tokens < requests[request].isl)


@compiled_apart
def unheld_tokens(engine: Engine, work: Workspace, requests: Requests, request: int) -> int:
    """KV tokens, whole blocks, of the prefix that a request shares; 0 if an admitted request holds it already."""
    stream = requests[request].stream
    if work.prefixes[stream, HOLDERS] > 0:
        return 0
    return int(-(-work.prefixes[stream, PREFIX_TOKENS] // engine.kv_block_tokens) * engine.kv_block_tokens)


@compiled
def hold_prefix(engine: Engine, state: State, work: Workspace, requests: Requests, request: int) -> None:
    """An admitted request holds its shared prefix, which takes memory for the first of them."""
    tokens = unheld_tokens(engine, work, requests, request)
    state.reserved_tokens += tokens
    state.used_tokens += tokens
    work.prefixes[requests[request].stream, HOLDERS] += 1


@compiled
def let_prefix_go(engine: Engine, state: State, work: Workspace, requests: Requests, request: int) -> None:
    """A request that held its shared prefix has left; with the last of them its blocks may be given to others."""
    work.prefixes[requests[request].stream, HOLDERS] -= 1
    tokens = unheld_tokens(engine, work, requests, request)
    state.reserved_tokens -= tokens
    state.used_tokens -= tokens


@compiled
def unfilled_tokens(engine: Engine, sequences: int) -> float:
    """Empty KV tokens in the blocks of so many sequences: on average half of each one's last block."""
    return 0.5 * (engine.kv_block_tokens - 1) * sequences


ROUNDING_TOKENS = 1e-6
"""Speculation gives sequences fractions of a token a step, and sums of these differ by rounding with the order in which
they are added: a cache that they fill exactly is not overfull by that."""


@compiled
def room_tokens(engine: Engine, state: State) -> float:
    """KV tokens in blocks that no request is known to hold; below 0 where they hold more than there are."""
    held_tokens = state.used_tokens + unfilled_tokens(engine, state.admitted) + state.late_tokens
    return float(engine.kv_tokens - held_tokens + ROUNDING_TOKENS)


@compiled
def fits(engine: Engine, state: State, work: Workspace, requests: Requests, request: int) -> bool:
    """True if the KV cache has room for one more request (in-flight batching)."""
    prefix = 0
    if shares_prefix(engine, work, requests, request):
        prefix = unheld_tokens(engine, work, requests, request)
    if engine.kv_policy != MAX_UTILIZATION:
        needed_tokens = state.reserved_tokens + state.late_tokens + reservation(engine, requests, request) + prefix
        # Alone it fits: a prefix that is longer than its own prompt is not held in full.
        return bool(needed_tokens <= engine.kv_tokens or (prefix > 0 and state.admitted + state.late == 0))
    # Tokens of the running sequences in this step, and of the new one in its first.
    step_tokens = state.growth_tokens + tokens_per_step(requests, request)
    needed = memory_when_admitted(engine, requests, request) + unfilled_tokens(engine, 1) + prefix + step_tokens
    return bool(needed <= room_tokens(engine, state) or state.admitted + state.late == 0)


@compiled
def never_fits(engine: Engine, requests: Requests, request: int) -> bool:
    """True if even an empty KV cache is too small."""
    if engine.policy == STATIC:
        return bool(requests[request].isl + requests[request].osl > engine.kv_tokens)
    return bool(engine.kv_policy != MAX_UTILIZATION and reservation(engine, requests, request) > engine.kv_tokens)


@compiled
def overflows(engine: Engine, state: State, steps: int) -> bool:
    """True if `steps` more decode steps would exceed the KV cache."""
    return bool(steps * state.growth_tokens > room_tokens(engine, state))


@compiled
def steps_to_full(engine: Engine, state: State, most: int) -> int:
    """Decode steps, 1 to `most`, that fit before a sequence must be paused."""
    if state.running <= 1:
        return most
    steps = int(room_tokens(engine, state) / state.growth_tokens)
    if overflows(engine, state, steps):
        steps -= 1
    elif not overflows(engine, state, steps + 1):
        steps += 1
    return max(1, min(most, steps))


@compiled
def idle(state: State) -> bool:
    """True if the replica is idle."""
    return state.running == 0 and state.waiting == 0 and state.prefilling == NOBODY


@compiled
def enqueue(engine: Engine, state: State, work: Workspace, requests: Requests, request: int, time_s: float) -> bool:
    """Append a request to the queue of its priority at `time_s`; an idle replica wakes up.

    The queue timeout restarts for a request whose first replica failed; the cancellation time does not.
    False if it is rejected: the queue is full, or the KV cache could never hold it.
    """
    if state.next_deadline_s <= time_s:
        expire_all(state, requests, time_s)
    if idle(state):
        state.clock_s = max(state.clock_s, time_s)
        state.woken = state.formed
        if state.first_deadline != NOBODY:
            forget_line(state, work)
    requests[request].outside_s = engine.request_s
    if 0 < engine.max_waiting <= state.waiting or never_fits(engine, requests, request):
        turn_away(requests, request, REJECTED, time_s)
        return False
    requests[request].outcome = SERVED
    requests[request].stage = WAITING
    if engine.overlooks > 0:
        requests[request].seen_from = first_open(engine, state, time_s)
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
def first_open(engine: Engine, state: State, time_s: float) -> int:
    """The number of the first iteration whose contents look-ahead has not fixed yet at `time_s`, while the last one
    formed runs.

    An engine that had nothing to do after that one has fixed nothing.
    """
    if state.woken == state.formed:
        return state.formed + 1
    whole = int(engine.lookahead_steps)
    if time_s + (engine.lookahead_steps - whole) * state.formed_s > state.clock_s:
        whole += 1
    return state.formed + 1 + whole


@compiled
def line_of(requests: Requests, request: int) -> int:
    """The queue of a request: its priority, clipped to the existing queues."""
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
def first_in_line(work: Workspace, requests: Requests) -> int:
    """The request to admit next, if any waits: the oldest of the first non-empty priority."""
    for line in range(PRIORITIES):
        request = first_of(work, requests, line)
        if request != NOBODY:
            return int(request)
    return NOBODY


@compiled
def first_of(work: Workspace, requests: Requests, line: int) -> int:
    """The oldest request of one priority; links of requests that gave up are dropped."""
    request = work.lines[line, 0]
    while request != NOBODY and requests[request].stage == OUTSIDE:
        request = requests[request].behind
    work.lines[line, 0] = request
    return int(request)


@compiled_apart
def look(engine: Engine, state: State) -> None:
    """Before an iteration is formed: note the last one that began with a look at what had arrived.

    Iterations since then were decode steps, of which each `receive_interval_steps`th begins so."""
    interval = engine.receive_interval_steps
    state.looked += (state.formed + 1 - state.looked) // interval * interval


@compiled_apart
def next_seen(engine: Engine, state: State, work: Workspace, requests: Requests, request: int) -> int:
    """The request to admit after `request`, or first after NOBODY, of those that the engine has seen."""
    line = 0
    if request != NOBODY:
        line = line_of(requests, request)
        request = requests[request].behind
    else:
        request = first_of(work, requests, line)
    while True:
        while request != NOBODY and requests[request].stage == OUTSIDE:
            request = requests[request].behind
        if request != NOBODY and (engine.overlooks == 0 or requests[request].seen_from <= state.looked):
            return int(request)
        line += 1
        if line == PRIORITIES:
            return NOBODY
        request = first_of(work, requests, line)


@compiled_apart
def was_fixed(engine: Engine, state: State, work: Workspace, requests: Requests) -> bool:
    """True if look-ahead fixed the iteration being formed before the engine's last requests left, with a request that
    fitted beside them."""
    request = next_seen(engine, state, work, requests, NOBODY)
    return bool(
        request != NOBODY and state.late < engine.max_batch_size and fits(engine, state, work, requests, request)
    )


@compiled_apart
def steps_unseen(engine: Engine, state: State, work: Workspace, requests: Requests) -> int:
    """Decode steps, at least 1, up to the iteration in which another waiting request may be admitted, or may end the
    wait of those before it for others."""
    first = MAX_ITERATIONS
    for line in range(PRIORITIES):
        request = first_of(work, requests, line)
        while state.awaiting > 0 and request != NOBODY and requests[request].seen_from <= state.looked:
            request = requests[request].behind
        if request != NOBODY and requests[request].seen_from > state.looked:
            first = min(first, requests[request].seen_from)
    interval = engine.receive_interval_steps
    looks = (first - state.looked + interval - 1) // interval
    return int(state.looked + looks * interval - state.formed - 1)


@compiled_apart
def awaits_others(engine: Engine, state: State, work: Workspace, requests: Requests, room: int) -> bool:
    """True if the prompts that could run in the iteration being formed, within `room` tokens, wait for others.

    To know, admit them as `admit` would, and undo it. No prompt waits beside one in progress or one that was computed
    elsewhere."""
    if state.waited >= engine.batch_wait_steps or state.prefilling != NOBODY or room <= 0:
        return False
    admitted, reserved, used = state.admitted, state.reserved_tokens, state.used_tokens
    tokens = 0
    request = next_seen(engine, state, work, requests, NOBODY)
    while request != NOBODY and state.admitted + state.late < engine.max_batch_size:
        chunk = chunk_of(engine, prompt_tokens_of(requests, request), room, tokens)
        if chunk < 0 or not fits(engine, state, work, requests, request):
            break
        if chunk == 0:
            tokens = engine.token_budget
        if shares_prefix(engine, work, requests, request):
            hold_prefix(engine, state, work, requests, request)
        state.admitted += 1
        state.reserved_tokens += reservation(engine, requests, request)
        state.used_tokens += memory_when_admitted(engine, requests, request)
        tokens += chunk
        request = next_seen(engine, state, work, requests, request)
    request = NOBODY
    for _ in range(state.admitted - admitted):
        request = next_seen(engine, state, work, requests, request)
        if shares_prefix(engine, work, requests, request):
            let_prefix_go(engine, state, work, requests, request)
    state.admitted, state.reserved_tokens, state.used_tokens = admitted, reserved, used
    return bool(tokens > 0 and engine.token_budget - room + tokens < engine.batch_wait_tokens)


@compiled
def take_first(state: State, work: Workspace, requests: Requests, request: int) -> None:
    """Remove the request at the head of the queue, to be computed from now on."""
    work.lines[line_of(requests, request), 0] = requests[request].behind
    state.waiting -= 1
    if requests[request].stage == WAITING:
        requests[request].scheduled_s = state.clock_s
    requests[request].stage = ADMITTED


@compiled
def put_back(state: State, work: Workspace, requests: Requests, request: int) -> None:
    """A paused request waits again, ahead of its priority, at most until its client cancels."""
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
    """Remove the next request whose deadline is at or before `until_s`; NOBODY if there is none."""
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
    """Drop every queued request whose deadline is at or before `until_s`."""
    while expire(state, requests, until_s) != NOBODY:
        pass


@compiled_apart
def forget_line(state: State, work: Workspace) -> None:
    """The queue is empty: clear leftover links of requests that gave up."""
    work.lines[:, :] = NOBODY
    state.waiting = 0
    state.first_deadline = NOBODY
    state.next_deadline_s = math.inf
