"""The compiled simulator's data in memory: the engine, the requests, the state of each replica."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from numba.extending import intrinsic
from numpy.typing import NDArray

from sizing.compiled import compiled
from sizing.engine import BEND_KNOTS, KV_POLICIES, POLICIES, Batching, Replica
from sizing.errors import ScenarioError
from sizing.workload import Seconds, Tokens

# --- A binary min-heap of running sequences, ordered by the decode step at which each finishes; compiled by numba

Heap = NDArray[np.int64]
REQUEST_BITS = 24
MAX_REQUESTS = 1 << REQUEST_BITS
"""Requests one simulation can hold: a heap key is (finishing step, request) packed in one integer."""


@compiled
def push(heap: Heap, size: int, step: int, request: int) -> None:
    """Add a request that finishes at `step` to a heap of `size` keys; the caller counts."""
    key = (step << REQUEST_BITS) | request
    hole = size
    while hole > 0:
        parent = (hole - 1) >> 1
        if heap[parent] <= key:
            break
        heap[hole] = heap[parent]
        hole = parent
    heap[hole] = key


@compiled
def pop(heap: Heap, size: int) -> int:
    """Remove and return the request that finishes first (lowest index on ties)."""
    request = heap[0] & (MAX_REQUESTS - 1)
    last = size - 1
    key = heap[last]
    hole = 0
    child = 1
    while child < last:
        if child + 1 < last and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= key:
            break
        heap[hole] = heap[child]
        hole = child
        child = 2 * hole + 1
    heap[hole] = key
    return int(request)


@compiled
def first_step(heap: Heap) -> int:
    """The decode step at which the next sequence finishes."""
    return int(heap[0] >> REQUEST_BITS)


@compiled
def request_at(heap: Heap, place: int) -> int:
    """The request at one place of the heap, 0 to size - 1, in no particular order."""
    return int(heap[place] & (MAX_REQUESTS - 1))


@compiled
def step_at(heap: Heap, place: int) -> int:
    """The decode step at which the sequence at one place finishes."""
    return int(heap[place] >> REQUEST_BITS)


@compiled
def remove(heap: Heap, size: int, place: int) -> None:
    """Remove the sequence at one place; later ones are pushed again, which is fast because they are already ordered."""
    kept = place
    for later in range(place + 1, size):
        push(heap, kept, step_at(heap, later), request_at(heap, later))
        kept += 1


CHUNKED, WHOLE_PROMPT, PREFILL_FIRST, STATIC = map(
    POLICIES.index, ("chunked", "whole_prompt", "prefill_first", "static")
)
MAX_UTILIZATION = KV_POLICIES.index("max_utilization")
NOBODY = -1
MAX_ITERATIONS = 1 << 62
PRIORITIES = 16
"""Priority classes, 0 to 15; higher values count as 15."""
OUTSIDE, WAITING, PAUSED, ADMITTED = range(4)
SERVED, REJECTED, TIMED_OUT, CANCELLED = range(4)
GAP_BINS = 3456  # of the histogram of token gaps
SERIES_COLUMNS = 6
"""Of a row of the time series: the fields of `TimeSeries`."""
TOKENS_KEPT, TOKENS_KEPT_OF_MANY = 4096, 512
"""Tokens of an iteration below which the time of its matrix products is cached, by one replica and by each of many:
most iterations resemble others, and the cache must not push the requests out of the processor's cache."""


class Engine:
    """A Replica as plain numbers: StepLaw, Batching (`policy`, `kv_policy` index POLICIES and KV_POLICIES), Speculation
    (k draft passes a step: `draft_pass_s` in all, and more per sequence and per cached token), Roughness."""

    weights_s: float
    overhead_s: float
    token_s: float
    sequence_s: float
    kv_token_s: float
    attention_s: float
    prefill_s: float
    request_s: float
    unread: float
    unread_decay: float
    send_s: float
    policy: int
    max_batch_size: int
    token_budget: int
    first_whole_above: int  # tokens above which the first whole prompt of an iteration runs, room or not
    kv_tokens: int
    kv_policy: int
    max_tokens: int
    kv_block_tokens: int
    max_waiting: int
    padded: int  # static batches: 1 if prompts are padded to the longest, 0 if packed
    prefix_cache: int  # 1 if blocks that no request holds are kept for the next turn of their session
    by_priority: int  # 1 if requests have different priorities, by which they are then paused
    shared_tokens: int  # whole blocks that the prompts of all sessions begin with, held once and not in `kv_tokens`
    lookahead_steps: float  # 0 for static batches
    receive_interval_steps: int  # 1 for static batches
    overlooks: int  # 1 if look-ahead or that interval may keep a request that waits from the next iteration
    batch_wait_steps: int
    batch_wait_tokens: float  # of decodes and prompts: an iteration of so many waits for no others
    lane_tokens: int  # tokens a decode step puts through the matrix products for each sequence
    draft_pass_s: float
    draft_sequence_s: float
    draft_kv_token_s: float
    padding: int
    knee: float
    jitter: float
    bent: int  # 1 if the law bends with the batch
    bend: Knots  # logarithms of factors at BEND_KNOTS: on decode steps
    prompt_bend: Knots  # on iterations with prompt tokens


Knots = NDArray[np.float64]  # a number for each of BEND_KNOTS
Count = int  # kept in 32 bits
Mark = int  # kept in 8 bits


class Request:
    """One request; times in seconds on the replica's clock.

    A long run mostly moves these records through memory, so each is as small as possible, wide fields first.
    """

    arrival_s: float
    scheduled_s: float  # start of the first iteration that holds some of the prompt; NaN: never started
    first_token_s: float  # NaN: no token came
    done_s: float  # when it left: last token, deadline, or arrival if rejected
    queue_timeout_s: float  # after its arrival at its replica: dropped if not started by then
    cancel_s: float  # after arrival: the client cancels
    outside_s: float  # time it pays outside the iterations, known from its first token on
    token_s: float  # when its prompt was complete, or its last token before a pause
    deadline_s: float  # its key in the heap of deadlines of the line; inf: not in that heap
    seen_from: int  # if engines overlook: the first iteration, by number, whose contents were open when it arrived
    isl: Count
    osl: Count
    cached_tokens: Count  # of the prompt, found in the prefix cache; isl: prefilled elsewhere, its first token is out
    steps: Count  # decode steps after the first token: osl - 1, fewer with speculation
    replica: Count  # that serves it
    behind: Count  # the next request in the queue; later the next departure of the same iteration
    generated: Count  # tokens it had when it was paused: recomputed with the prompt
    done_steps: Count  # decode steps it had done when it was paused
    admission: Count  # its number in the order of admission: the highest is paused first
    below: Count  # first child in the heap of deadlines
    beside: Count  # next sibling in that heap
    session: Count  # whose turn it is, or NOBODY: a session has one request at a time
    found_tokens: Count  # of the prompt, in the prefix cache when it was first admitted; only of a session's request
    priority: Mark  # 0 is served first, PRIORITIES - 1 last
    outcome: Mark  # SERVED unless it was rejected, timed out in the queue, or cancelled
    stage: Mark  # OUTSIDE, WAITING, PAUSED (waiting again) or ADMITTED
    stream: Mark  # which of several workloads it belongs to: their token gaps are counted separately


class State:
    """The state of a replica between iterations."""

    clock_s: float  # end of the iteration formed last, start of the next
    decode_step: int  # decode steps done since the start
    formed: int  # if engines overlook: iterations formed since the start; the last of them ends at clock_s
    formed_s: float  # how long that one takes
    looked: int  # the iteration before which the engine last looked at what had arrived, as far as it matters
    waited: int  # decode steps, since prompts last ran beside decodes, in which prompts that could have run waited
    awaiting: int  # 1 if they do in the iteration that is being formed
    sent_s: float  # where sending tokens takes time: until when they are counted
    sent_per_s: float  # tokens/s that running sequences had lately
    woken: int  # iterations formed when it last had nothing to do
    running: int  # sequences with tokens still to come: the size of the heap
    lanes: int  # sequences computed by a decode step: `running`, but with static batching the finished ones too
    context_tokens: float  # tokens in the KV cache that a decode step reads
    growth_tokens: float  # tokens that a decode step adds to them: one a lane, more with speculation
    admitted: int  # slots taken: running sequences and the prompt in progress
    reserved_tokens: int  # KV tokens reserved for admitted requests, a prefix that some of them share once
    used_tokens: float  # KV tokens that admitted requests hold, prompts in full, a prefix that some of them share once
    waiting: int
    prefilling: int  # request whose prompt is cut in chunks and not complete, or NOBODY
    prefilled_tokens: int  # tokens of that prompt done so far
    joining: int  # prompts that the iteration in progress completes
    left: int  # requests that leave at clock_s
    left_tokens: float  # KV tokens that they held, or had reserved
    late: int  # those of them that the iteration which is being formed does not know of: it was fixed before they left
    late_tokens: float  # their KV tokens
    first_gone: int  # first departure of the last step, in order of done_s; linked by Request.behind
    last_gone: int
    admissions: int  # since the start
    paused: int  # pauses since the start
    next_cancel_s: float  # no admitted request is cancelled before
    first_deadline: int  # root of the heap of deadlines of the line, or NOBODY
    next_deadline_s: float  # its key
    stalled: int  # 1 when running sequences had no token in the last iteration (prompts alone)
    decoded_s: float  # end of the last decode step, where token gaps are counted
    sample_every_s: float
    next_sample_s: float
    samples: int  # rows of the time series so far
    seed: int  # of the jitter
    draws: int  # random numbers drawn
    cached_blocks: int  # in the prefix cache, held by no request
    oldest: int  # session whose cached blocks are evicted first, or NOBODY
    newest: int


_BYTES = {"float": "f8", "int": "i8", "Count": "i4", "Mark": "i1", "Knots": f"({len(BEND_KNOTS)},)f8"}


def _record(fields: type) -> np.dtype[Any]:
    """The numpy record with the fields of a class: numba passes it as one pointer."""
    return np.dtype([(name, _BYTES[kind]) for name, kind in fields.__annotations__.items()], align=True)


_ENGINE, _REQUEST, _STATE = _record(Engine), _record(Request), _record(State)
Requests = NDArray[Any]  # records with the fields of Request, in order of arrival
States = NDArray[Any]  # one record with the fields of State per replica


NO_BEND = (0.0,) * len(BEND_KNOTS)


def engine_of(replica: Replica, shared_tokens: int = 0, *, by_priority: bool = False) -> Engine:
    """The numbers the compiled scheduler works with; `shared_tokens` of the KV cache belong to all sessions, and
    `by_priority` says that requests are not all of one priority."""
    law, rule, rough = replica.law, replica.batching, replica.rough
    values = (
        *(*law.seconds, law.unread, law.unread_decay, law.send_s),
        *(POLICIES.index(rule.policy), rule.max_batch_size, rule.token_budget),
        *(0 if rule.budget_guessed else rule.token_budget, rule.kv_tokens - shared_tokens),
        *(KV_POLICIES.index(rule.kv_policy), rule.max_tokens, rule.kv_block_tokens, rule.max_waiting, rule.padded),
        *(rule.prefix_cache, by_priority, shared_tokens),
        *((0.0, 1, 0) if rule.policy == "static" else _sight(rule)),
        *(rule.batch_wait_steps, rule.batch_wait_ratio * rule.token_budget),
        replica.lane_tokens,
        *replica.draft_s,
        *(rough.padding, 1 if law.has_experts else rough.knee, rough.jitter),
        *((1, *map(tuple, law.bend.tables)) if law.bend.sequences else (0, NO_BEND, NO_BEND)),
    )
    record: Any = np.array(values, _ENGINE)[()]
    engine: Engine = record
    return engine


def _sight(rule: Batching) -> tuple[float, int, int]:
    """`lookahead_steps`, `receive_interval_steps` and `overlooks` of in-flight batching."""
    ahead, interval = rule.lookahead_steps, rule.receive_interval_steps
    return ahead, interval, ahead > 0 or interval > 1


def engines_of(replicas: Sequence[Replica], *, by_priority: bool = False) -> NDArray[Any]:
    """The numbers of each of several replicas, one record after the other."""
    return np.fromiter((engine_of(replica, by_priority=by_priority) for replica in replicas), _ENGINE, len(replicas))


_FRESH = np.zeros(1, _REQUEST)
_FRESH["queue_timeout_s"] = _FRESH["cancel_s"] = math.inf
_FRESH["session"] = NOBODY


def requests_of(isl: Tokens, osl: Tokens, arrival_s: Seconds | float) -> Requests:
    """Requests that have not run yet."""
    requests = np.empty(len(isl), _REQUEST)
    isl, osl = np.ascontiguousarray(isl, np.int64), np.ascontiguousarray(osl, np.int64)
    fill(requests, _FRESH, isl, osl, np.ascontiguousarray(np.broadcast_to(arrival_s, isl.shape), np.float64))
    return requests


@compiled
def fill(requests: Requests, fresh: Requests, isl: Tokens, osl: Tokens, arrival_s: Seconds) -> None:
    """Make every request a copy of a fresh one with its own lengths and arrival: one pass through memory."""
    for request in range(len(requests)):
        requests[request] = fresh[0]
        requests[request].arrival_s = arrival_s[request]
        requests[request].isl = isl[request]
        requests[request].osl = osl[request]
        requests[request].steps = osl[request] - 1


class Workspace(NamedTuple):
    """Arrays a replica works with; in a fleet each has a row per replica, and `work_of` extracts one.

    They belong to the states and the engine they were first used with: all are fresh, or all are reused.
    """

    heap: NDArray[np.int64]  # running sequences by finishing step
    joining: Tokens  # prompts that the iteration in progress completes
    lines: NDArray[np.int64]  # first and last of the waiting line of each priority
    gaps: NDArray[np.int64]  # histograms of token gaps, one after the other for each stream of requests;
    # zero-length: not counted
    series: NDArray[np.float64]  # rows of the time series; zero-length: not sampled
    matrices_s: Seconds  # by tokens, the time of their matrix products where it has been worked out before, else 0
    bends: NDArray[np.float64]  # the same of factors of a law that bends, (2, slots + 1) by sequences: on decode steps,
    # and on iterations with prompts; zero-length: it does not
    cached: NDArray[np.int32]  # by session: its blocks in the prefix cache, and its neighbours in order of eviction
    prefixes: Tokens  # by stream of requests: tokens of the prefix they share, and how many admitted ones hold it;
    # zero-length: they share none


NO_PREFIXES = np.empty(0, np.int64)
BLOCKS, OLDER, NEWER = range(3)
"""Columns of `Workspace.cached`."""
PREFIX_TOKENS, HOLDERS = range(2)
"""Columns of `Workspace.prefixes`."""


def work_space(
    replica: Replica,
    replicas: int,
    *,
    gaps: bool = False,
    samples: int = 0,
    streams: int = 1,
    sessions: int = 0,
    prefixes: Tokens = NO_PREFIXES,
) -> Workspace:
    """Room for `replicas` replicas (of different ones: give the one with the most slots).

    `gaps`: count token gaps, separately for each of `streams` streams. `samples`: rows for the time series of each
    replica; `idle_states` sets the interval. `sessions`: requests may belong to sessions numbered below it. `prefixes`:
    tokens of the prefix that the requests of each stream share, see `sampling.prefixes_found`.
    """
    held = np.zeros((replicas, len(prefixes), 2), np.int64)
    held[:, :, PREFIX_TOKENS] = prefixes
    slots = (replicas, replica.batching.max_batch_size)
    return Workspace(
        np.empty(slots, np.int64),
        np.empty(slots, np.int64),
        np.full((replicas, PRIORITIES, 2), NOBODY),
        np.zeros((replicas, streams * GAP_BINS if gaps else 0), np.int64),
        np.zeros((replicas, samples, SERIES_COLUMNS)),
        np.zeros((replicas, TOKENS_KEPT if replicas == 1 else TOKENS_KEPT_OF_MANY)),
        np.zeros((replicas, 2, slots[1] + 1 if replica.law.bend.sequences else 0)),
        np.zeros((replicas, sessions, 3), np.int32),
        held,
    )


def idle_states(replicas: int, seed: int = 0, sample_every_s: float = math.inf) -> States:
    """Replicas with nothing to do, at time 0. `seed` sets their jitter: each draws from a stream of its own.

    `sample_every_s` (inf: never): seconds between rows of the time series.
    """
    if not sample_every_s > 0:
        raise ScenarioError(f"sample_every_s must be above 0 s, got {sample_every_s:g}")
    states = np.zeros(replicas, _STATE)
    for field in ("prefilling", "first_gone", "first_deadline", "oldest", "newest"):
        states[field] = NOBODY
    states["next_cancel_s"] = states["next_deadline_s"] = math.inf
    states["sample_every_s"] = states["next_sample_s"] = sample_every_s
    states["seed"] = np.random.SeedSequence(seed).generate_state(replicas, np.uint64).view(np.int64)
    return states


# --- Arrays whose references numba does not count, for the loops of the simulator

Borrow = Callable[[NDArray[Any]], NDArray[Any]]


def _borrow(typing_context: Any, array: Any) -> Any:
    """The same array without an owner reference."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        view = context.make_array(signature.return_type)(context, builder, values[0])
        view.meminfo = view.meminfo.type(None)
        return view._getvalue()

    return array(array), generate


borrowed = cast(Borrow, intrinsic(_borrow))
"""In compiled code: the same array, whose owner must live on.

numba counts references with atomic operations for each array passed to a function: two thirds of the time of a
simulation. Nothing is counted for a borrowed array.
"""
