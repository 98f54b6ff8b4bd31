"""What the compiled simulator keeps in memory: the engine, the requests, the state of each replica."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sizing.replica import KV_POLICIES, POLICIES, Replica, Speculation
from sizing.workload import Seconds, Tokens

CHUNKED, WHOLE_PROMPT, PREFILL_FIRST, STATIC = map(
    POLICIES.index, ("chunked", "whole_prompt", "prefill_first", "static")
)
NOBODY = -1
SERVED, REJECTED, TIMED_OUT, CANCELLED = range(4)


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
    policy: int
    max_batch_size: int
    token_budget: int
    kv_tokens: int
    kv_policy: int
    max_tokens: int
    kv_block_tokens: int
    max_waiting: int
    lane_tokens: int  # tokens a decode step puts through the matrix products for each sequence
    draft_pass_s: float
    draft_sequence_s: float
    draft_kv_token_s: float
    padding: int
    knee: float
    jitter: float


class Request:
    """One request; times in seconds on the replica's clock."""

    arrival_s: float
    isl: int
    osl: int
    priority: int  # 0 is served first
    replica: int  # that serves it
    cached_tokens: int  # of the prompt, found in the prefix cache; isl: prefilled elsewhere, its first token is out
    steps: int  # decode steps after the first token: osl - 1, fewer with speculation
    queue_timeout_s: float  # after arrival: dropped if not started by then
    cancel_s: float  # after arrival: the client gives up
    outcome: int  # SERVED unless it was rejected, timed out in the line, or cancelled
    generated: int  # tokens it had when it was paused: computed again with the prompt
    behind: int  # the next request in the waiting line
    scheduled_s: float  # start of the first iteration that holds some of the prompt
    first_token_s: float
    done_s: float


class State:
    """What a replica remembers between iterations."""

    clock_s: float  # end of the iteration formed last, start of the next
    decode_step: int  # decode steps done since the start
    running: int  # sequences with tokens still to come: the size of the heap
    lanes: int  # sequences computed by a decode step: `running`, but with static batching the finished ones too
    context_tokens: int  # tokens in the KV cache that a decode step reads
    admitted: int  # slots taken: running sequences and the prompt in progress
    reserved_tokens: int  # KV tokens promised to the admitted
    waiting: int
    first_waiting: int
    last_waiting: int
    prefilling: int  # request whose prompt is cut in chunks and not complete, or NOBODY
    prefilled_tokens: int  # tokens of that prompt done so far
    joining: int  # prompts that the iteration in progress completes
    left: int  # requests whose last token came at clock_s


def _record(fields: type) -> np.dtype[Any]:
    """The numpy record with the fields of a class: numba passes it as one pointer."""
    return np.dtype([(name, {"float": "f8", "int": "i8"}[kind]) for name, kind in fields.__annotations__.items()])


_ENGINE, _REQUEST, _STATE = _record(Engine), _record(Request), _record(State)
Requests = NDArray[Any]  # records with the fields of Request, in order of arrival
States = NDArray[Any]  # one record with the fields of State per replica


def engine_of(replica: Replica) -> Engine:
    """The numbers the compiled scheduler works with."""
    law, rule, rough = replica.law, replica.batching, replica.rough
    values = (
        *(*law.seconds, law.unread, law.unread_decay),
        *(POLICIES.index(rule.policy), rule.max_batch_size, rule.token_budget, rule.kv_tokens),
        *(KV_POLICIES.index(rule.kv_policy), rule.max_tokens, rule.kv_block_tokens, rule.max_waiting),
        *_speculation_values(replica.speculation),
        *(rough.padding, rough.knee, rough.jitter),
    )
    record: Any = np.array(values, _ENGINE)[()]
    engine: Engine = record
    return engine


def _speculation_values(speculation: Speculation | None) -> tuple[float, ...]:
    """`lane_tokens` and the three times of the draft; its arithmetic is taken as linear in the sequences."""
    if speculation is None:
        return 1, 0.0, 0.0, 0.0
    passes, law = speculation.draft_tokens, speculation.draft
    return (
        passes + 1,
        passes * (law.overhead_s + law.weights_s),
        passes * (law.sequence_s + law.token_s),
        passes * law.kv_token_s,
    )


def requests_of(isl: Tokens, osl: Tokens, arrival_s: Seconds | float) -> Requests:
    """Requests that have not run yet."""
    requests = np.zeros(len(isl), _REQUEST)
    requests["isl"], requests["osl"], requests["arrival_s"] = isl, osl, arrival_s
    requests["steps"] = np.subtract(osl, 1)
    requests["queue_timeout_s"] = requests["cancel_s"] = np.inf
    return requests


class Work(NamedTuple):
    """Arrays a replica works with: running sequences by finishing step, and prompts that an iteration completes.

    In a fleet each array has a row per replica; `work_of` in iterations.py takes one out.
    """

    heap: NDArray[np.int64]
    joining: Tokens


def work_space(replica: Replica, replicas: int) -> Work:
    """Room for `replicas` replicas (of different ones: give the one with the most slots)."""
    shape = (replicas, replica.batching.max_batch_size)
    return Work(np.empty(shape, np.int64), np.empty(shape, np.int64))


def idle_states(replicas: int) -> States:
    """Replicas with nothing to do, at time 0."""
    states = np.zeros(replicas, _STATE)
    states["prefilling"] = NOBODY
    return states
