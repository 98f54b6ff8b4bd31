"""What the compiled simulator keeps in memory: the engine, the requests, the state of each replica."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sizing.replica import POLICIES, Replica
from sizing.workload import Seconds, Tokens

CHUNKED, WHOLE_PROMPT, PREFILL_FIRST, STATIC = map(
    POLICIES.index, ("chunked", "whole_prompt", "prefill_first", "static")
)
NOBODY = -1


class Engine:
    """A Replica as plain numbers: the coefficients of its StepLaw, then its Batching (`policy` indexes POLICIES)."""

    weights_s: float
    overhead_s: float
    token_s: float
    sequence_s: float
    kv_token_s: float
    attention_s: float
    prefill_s: float
    request_s: float
    policy: int
    max_batch_size: int
    token_budget: int
    kv_tokens: int


class Request:
    """One request; times in seconds on the replica's clock."""

    arrival_s: float
    isl: int
    osl: int
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
    batching = replica.batching
    limits = (batching.max_batch_size, batching.token_budget, batching.kv_tokens)
    record: Any = np.array((*astuple(replica.law), POLICIES.index(batching.policy), *limits), _ENGINE)[()]
    engine: Engine = record
    return engine


def requests_of(isl: Tokens, osl: Tokens, arrival_s: Seconds | float) -> Requests:
    """Requests that have not run yet."""
    requests = np.zeros(len(isl), _REQUEST)
    requests["isl"], requests["osl"], requests["arrival_s"] = isl, osl, arrival_s
    return requests


def idle_states(replicas: int) -> States:
    """Replicas with nothing to do, at time 0."""
    states = np.zeros(replicas, _STATE)
    states["prefilling"] = NOBODY
    return states
