"""The highest rate a replica can carry, and what sets it: slots, KV cache, token budget, or the iteration time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from sizing.engine import Replica
from sizing.queueing.demand import NO_PREFIX, Demand, demand_of, slots
from sizing.queueing.iteration_chain import DecodeCost, closed_iterations, iteration_s, prefill_room
from sizing.queueing.static_queue import largest_batch, static_stable_rate_per_s
from sizing.workload import Lengths, Prefix

Bound = Literal["slots", "kv_cache", "token_budget", "iteration_time"]


@dataclass(frozen=True, slots=True)
class Stability:
    """Requests/s below which the queue of a replica has a steady state, and what `binds` there.

    *slots* or *kv_cache*: all slots for sequences are taken; more of them would carry more. *token_budget*: every
    iteration is full of tokens. *iteration_time*: twice the places would gain less than 2 %; only a faster engine
    carries more.
    """

    rate_per_s: float
    binds: Bound


@lru_cache(maxsize=1024)
def stability(replica: Replica, lengths: Lengths, prefix: Prefix = NO_PREFIX) -> Stability:
    """The stable rate of one replica and what binds it; raises ScenarioError when not one mean request fits.

    Of `slots` sequences d decode; each iteration then brings d / E[steps] prompts, whatever the rate. If the budget
    takes them, the rate is d / (E[steps] ITL) with the ITL of the saturated fast chain. If not, the batch settles
    where decode tokens and prompt tokens fill the budget, d (1 + E[prompt]/E[steps]) = budget: the condition
    lambda (prompt + decode tokens) < budget / iteration time of Li, Dai, Peng (arXiv 2504.07347).

    Error against the simulated throughput with a full queue: median 0.6 %, 90th centile 2 % over the 32 cases of
    `sizing.queueing.predict`; worst 8 % too low (128/128 of equal lengths under prefill_first, which finish and restart
    in lockstep), 1 to 4 % too high where the KV cache binds and lengths vary. Recomputation of requests paused under
    max_utilization is not counted: 2 to 8 % too high there.
    """
    rate, most = _known_rate(replica, lengths, prefix), _places(replica, lengths, prefix)
    if rate.binds == "token_budget":
        return rate
    twice = _rate_with(replica, demand_of(replica, lengths, prefix), lengths, 2 * most)
    if twice.rate_per_s < 1.02 * rate.rate_per_s:
        return Stability(rate.rate_per_s, "iteration_time")
    return Stability(rate.rate_per_s, "kv_cache" if most < replica.batching.max_batch_size else "slots")


def stable_rate_per_s(replica: Replica, lengths: Lengths, prefix: Prefix = NO_PREFIX) -> float:
    """Highest requests/s of one replica with a steady state, see `stability`."""
    return _known_rate(replica, lengths, prefix).rate_per_s


@lru_cache(maxsize=1024)
def _known_rate(replica: Replica, lengths: Lengths, prefix: Prefix) -> Stability:
    """The rate, which every prediction needs; and what binds, except iteration time, which takes as long to find."""
    places = _places(replica, lengths, prefix)
    return _rate_with(replica, demand_of(replica, lengths, prefix), lengths, places)


def _places(replica: Replica, lengths: Lengths, prefix: Prefix) -> int:
    """Sequences that run at once."""
    if replica.batching.policy == "static":
        return largest_batch(replica, lengths)
    return slots(replica, lengths, prefix)


def _rate_with(replica: Replica, demand: Demand, lengths: Lengths, most: int) -> Stability:
    """The stable rate with `most` slots, bound by them or by the token budget."""
    if replica.batching.policy == "static":
        return Stability(static_stable_rate_per_s(replica, lengths, most), "slots")
    if demand.decode_steps == 0:
        return Stability(_token_bound_rate(replica, demand, 0.0), "token_budget")
    full = closed_iterations(replica, demand, np.array([float(most)]))
    by_places = Stability(float(most / (demand.decode_steps * full.itl_s[0])), "slots")
    if replica.batching.policy == "prefill_first":
        return by_places
    lane = DecodeCost.of(replica).tokens
    filling = replica.batching.token_budget / (lane + demand.prompt_tokens / demand.decode_steps)
    by_tokens = Stability(_token_bound_rate(replica, demand, min(float(most), filling)), "token_budget")
    if filling <= most or by_tokens.rate_per_s < by_places.rate_per_s:
        return by_tokens
    return by_places


def _token_bound_rate(replica: Replica, demand: Demand, running: float) -> float:
    """Requests/s if every iteration computes as many prompt tokens as fit beside `running` decodes."""
    batch = np.array([running])
    room = prefill_room(replica, demand, batch)
    full_s = iteration_s(replica, demand, batch, room, room * demand.attention_per_token)
    return float(room[0] / demand.prompt_tokens / full_s[0])
