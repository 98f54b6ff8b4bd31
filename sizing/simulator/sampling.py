"""The requests of a workload: lengths, arrivals as a replica behind a router sees them, prefix hits, decode steps.

The order of the random draws is fixed (lengths, gaps, then what only some workloads have) and no draw depends on the
rate: two runs with one seed at two rates see the same requests, closer together (common random numbers).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from sizing.compiled import compiled
from sizing.engine import Batching, Replica, Speculation
from sizing.errors import RequestTooLong, ScenarioError
from sizing.simulator.state import MAX_REQUESTS, NO_PREFIXES, NOBODY, Requests, requests_of
from sizing.workload import Arrivals, Lengths, Prefix, Routing, Seconds, Tokens, Workload

MOST_SLOTS = MAX_REQUESTS // 8 - 1
"""The highest stable rate is measured with 8 requests a slot."""

MOST_KEPT = 1_000_000
"""Lengths of at most this many requests are cached for the next run."""

LONGEST = 2**31 - 1
"""Tokens of the longest request that a record can represent."""


HIT_BLOCK = 32


def sample_requests(
    replica: Replica,
    workload: Workload,
    n: int,
    rng: np.random.Generator,
    *,
    replicas: int = 1,
    together: int = 1,
    routing: Routing = "random",
) -> Requests:
    """`n` requests of a workload that is split over `replicas` replicas, as `together` of them see them.

    One sees a part of the stream, by a `routing` that is *random* or *round_robin*; several see a whole stream of their
    share of the rate. Raises ScenarioError for a request that never fits in the KV cache.
    """
    isl, osl = drawn_lengths(workload.lengths, n, rng)
    if together > 1:
        gaps_s = workload.arrivals.gaps(n, workload.rate_per_s * together / replicas, rng)
    elif routing == "random":
        gaps_s = thinned_gaps(workload.arrivals, n, workload.rate_per_s, replicas, rng)
    else:
        gaps_s = workload.arrivals.gaps(n, workload.rate_per_s, rng, merged=replicas)
    run = checked_requests(replica, isl, osl, np.cumsum(gaps_s))
    prepare(replica, workload, run, rng, rng)
    return run


def prepare(
    replica: Replica, workload: Workload, run: Requests, hits: np.random.Generator, steps: np.random.Generator
) -> None:
    """Set the properties of a workload's requests besides length and arrival: cached prompt tokens, patience, and the
    decode steps that their output takes."""
    if workload.prefix.hit_rate > 0:
        run["cached_tokens"] = cached_tokens(workload.prefix, run["isl"], hits)
    for field in ("queue_timeout_s", "cancel_s"):
        if math.isfinite(patience_s := getattr(workload, field)):
            run[field] = patience_s
    draw_steps(replica, run, steps)


def drawn_lengths(lengths: Lengths, n: int, rng: np.random.Generator) -> tuple[Tokens, Tokens]:
    """``lengths.sample(n, rng)``, read-only.

    The last few are cached: a search for a rate needs the same draws at every rate, and drawing them takes a
    fifth of the simulation time.
    """
    bits: Any = rng.bit_generator
    if lengths.fixed or n > MOST_KEPT or not isinstance(bits, np.random.PCG64):
        return lengths.sample(n, rng)
    before = bits.state
    place = (*before["state"].values(), before["has_uint32"], before["uinteger"])
    isl, osl, bits.state = _drawn(lengths, n, place)
    return isl, osl


@lru_cache(maxsize=4)
def _drawn(lengths: Lengths, n: int, place: tuple[int, int, int, int]) -> tuple[Tokens, Tokens, Any]:
    """What a generator at this place of its stream draws, and its state after that."""
    bits: Any = np.random.PCG64(0)
    state, inc, has_uint32, uinteger = place
    bits.state = {**bits.state, "state": {"state": state, "inc": inc}, "has_uint32": has_uint32, "uinteger": uinteger}
    isl, osl = lengths.sample(n, np.random.Generator(bits))
    return isl, osl, bits.state


def thinned_gaps(arrivals: Arrivals, n: int, rate_per_s: float, replicas: int, rng: np.random.Generator) -> Seconds:
    """Gaps seen by one of `replicas` replicas that each take a request with equal chance; `rate_per_s` is the fleet's.

    A thinned Poisson stream is a Poisson stream. Of any other, a gap spans a geometric number of the stream's gaps: a
    sum of gamma gaps is a gamma gap. The members of a batch are routed one by one: those routed to the same replica as
    the previous member still arrive at the same instant.
    """
    if replicas == 1 or arrivals.kind == "poisson":
        return arrivals.gaps(n, rate_per_s / replicas, rng)
    spanned = rng.geometric(1 / replicas, n)
    if arrivals.kind == "constant":
        return spanned / rate_per_s
    if arrivals.kind == "batch":
        batches = np.diff((np.cumsum(spanned) - 1) // arrivals.size, prepend=0)
        return np.where(batches > 0, rng.gamma(np.maximum(batches, 1), arrivals.size / rate_per_s), 0.0)
    shape = 1 / arrivals.cv**2
    return rng.gamma(shape * spanned, 1 / (shape * rate_per_s))


def cached_tokens(prefix: Prefix, isl: Tokens, rng: np.random.Generator) -> Tokens:
    """Prompt tokens found in the prefix cache: at least the last token of a prompt is always computed."""
    hit = rng.random(len(isl)) < prefix.hit_rate
    return np.where(hit, np.minimum(prefix.tokens, isl - 1), 0)


def shared_prefixes(*workloads: Workload) -> Tokens:
    """Tokens of the prefix that the requests of each workload share, shape (workloads,); zero-length if none is ever
    found."""
    tokens = [workload.prefix.tokens if workload.prefix.hit_rate > 0 else 0 for workload in workloads]
    return np.array(tokens, np.int64) if any(tokens) else NO_PREFIXES


def prefixes_found(run: Requests) -> Tokens:
    """The same for the requests of one workload, by the longest prefix that one of them finds. Contexts prefilled
    elsewhere and sessions share none."""
    found = np.where((run["cached_tokens"] < run["isl"]) & (run["session"] == NOBODY), run["cached_tokens"], 0)
    return found.max(keepdims=True).astype(np.int64) if found.any() else NO_PREFIXES


def evenly_cached(prefix: Prefix, isl: Tokens, rng: np.random.Generator) -> Tokens | None:
    """The same with little sampling noise: in every block of requests, exactly the hit rate's share is found, in random
    order, because prompts that are computed one after the other make others wait. None (no draws) if none is found."""
    if prefix.tokens * prefix.hit_rate == 0:
        return None
    found = np.diff(np.floor(prefix.hit_rate * np.arange(len(isl) + 1) + 0.5)) > 0
    hit = np.concatenate([rng.permutation(block) for block in np.split(found, range(HIT_BLOCK, len(isl), HIT_BLOCK))])
    return np.where(hit, np.minimum(prefix.tokens, isl - 1), 0)


def draw_steps(replica: Replica, run: Requests, rng: np.random.Generator) -> None:
    """Set the decode steps of every request: drawn if the replica speculates, else osl - 1."""
    if replica.speculation is not None:
        run["steps"] = speculative_steps(replica.speculation, run["osl"], rng)


def speculative_steps(speculation: Speculation, osl: Tokens, rng: np.random.Generator) -> Tokens:
    """Steps that yield the osl - 1 tokens after the first: each step 1 token and a run of accepted ones, at most k.

    The run is geometric, cut at k draft tokens (Leviathan, Kalman, Matias 2023): drawn step by step, so that the law of
    the count is exact for every output length. Shape (n,).
    """
    chances: Seconds = np.power(speculation.acceptance, np.arange(1.0, speculation.draft_tokens + 1))
    return _steps(np.ascontiguousarray(osl), chances, rng)


@compiled
def _steps(osl: Tokens, chances: Seconds, rng: np.random.Generator) -> Tokens:
    """As above; `chances[j]` is the probability that more than j draft tokens are accepted."""
    steps = np.zeros(len(osl), np.int64)
    for request in range(len(osl)):
        missing = osl[request] - 1
        while missing > 0:
            luck = rng.random()
            accepted = 0
            while accepted < len(chances) and luck < chances[accepted]:
                accepted += 1
            missing -= accepted + 1
            steps[request] += 1
    return steps


def checked_requests(replica: Replica, isl: Tokens, osl: Tokens, arrival_s: Seconds) -> Requests:
    """Requests ready to run, if the engine can run them at all; outputs end at its `max_tokens`, if set."""
    if len(isl) >= MAX_REQUESTS:
        raise ScenarioError(
            f"{len(isl):,} requests are more than one run can hold ({MAX_REQUESTS - 1:,}): simulate fewer"
        )
    if not 0 < len(isl) == len(osl):
        raise ScenarioError("isl and osl must have one entry per request, 1 or more")
    if np.min(isl) < 1 or np.min(osl) < 1:
        raise ScenarioError("every request needs at least 1 input and 1 output token")
    rule = replica.batching
    if rule.max_batch_size > MOST_SLOTS:
        raise ScenarioError(
            f"max_batch_size: {rule.max_batch_size:,} slots are more than can be simulated, at most {MOST_SLOTS:,}"
        )
    if rule.max_tokens > 0:
        osl = np.minimum(osl, rule.max_tokens)
    longest = longest_tokens(rule, isl, osl)
    if longest > rule.kv_tokens:
        raise RequestTooLong(
            f"a request of {longest} tokens (prompt and output) never fits in a KV cache of "
            f"{rule.kv_tokens} tokens: shorten the lengths or give the cache more memory"
        )
    if longest > LONGEST:
        raise ScenarioError(f"a request of {longest:,} tokens is longer than can be simulated, at most {LONGEST:,}")
    return requests_of(isl, osl, arrival_s)


def longest_tokens(rule: Batching, isl: Tokens, osl: Tokens) -> int:
    """KV tokens that the longest request needs to be admitted, without a prefix hit."""
    if rule.policy == "static" or rule.kv_policy == "max_utilization":
        return int(np.max(np.add(isl, osl)))
    blocks = -(-int(np.max(np.add(isl, np.maximum(osl, rule.max_tokens)))) // rule.kv_block_tokens)
    return blocks * rule.kv_block_tokens
