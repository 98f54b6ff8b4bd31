"""Disaggregated serving: one pool of replicas computes the prompts, another the tokens after the first.

The KV cache of a prompt travels between them. Prompts no longer stall the tokens of others, so that TTFT and ITL are
sized apart (DistServe, Zhong et al. 2024, arXiv 2401.09670; Splitwise, Patel et al. 2024, arXiv 2311.18677).
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from sizing.errors import ScenarioError
from sizing.replica import Replica
from sizing.simulator.closed import backlog_rate_per_s
from sizing.simulator.fleet import serve
from sizing.simulator.records import CANCELLED, SERVED, Requests, requests_of
from sizing.simulator.runs import MOST_REPLICAS, check_question, herding, whole_fleet
from sizing.simulator.sampling import checked_requests, sample_requests
from sizing.simulator.simulated import Simulated, open_loop
from sizing.workload import Routing, Seconds, Workload


def simulate_disaggregated(
    prefill: Replica,
    decode: Replica,
    workload: Workload,
    *,
    prefill_replicas: int = 1,
    decode_replicas: int = 1,
    transfer_s: float = 0.0,
    transfer_token_s: float = 0.0,
    routing: Routing = "random",
    requests: int = 100_000,
    seed: int = 0,
    warmup: float = 0.1,
) -> Simulated:
    """Offer a workload to a pool of prefill replicas that hands every sequence on to a pool of decode replicas.

    A prompt is served as a request with one token, which ends its TTFT; `transfer_s` and `transfer_token_s` for each
    prompt token later its sequence asks the decode pool for a slot and KV memory, and decodes from the next iteration
    on. Transfer and that wait are inside ITL and E2E. Both pools route alike. `request_s` is the prefill replica's.
    `queue_timeout_s` guards the prefill line only, `cancel_s` counts from the first arrival. `queue_s` is the wait for
    the prefill. `utilization` is the busier pool's.

    Pools beyond 32 replicas are simulated in the same proportion at up to 32, where they have a common divisor.

    Raises ScenarioError as `simulate` does, for transfer times that are negative or infinite, and for a decode pool
    with static batching.
    """
    check_question(prefill_replicas, routing, requests, warmup)
    check_question(decode_replicas, routing, requests, warmup)
    if not (0 <= transfer_s < math.inf and 0 <= transfer_token_s < math.inf):
        raise ScenarioError(
            f"transfer times must be 0 s or more and finite, got {transfer_s:g} and {transfer_token_s:g}"
        )
    if decode.batching.policy == "static":
        raise ScenarioError("static batching cannot take sequences that were prefilled elsewhere: use another policy")
    scale = _scale(prefill_replicas, decode_replicas)
    rng = np.random.default_rng(seed)
    run = sample_requests(decode, replace(workload, rate_per_s=workload.rate_per_s * scale), requests, rng)
    _prefill_all([prefill] * round(prefill_replicas * scale), run, routing, rng)
    handed_over_s = run["first_token_s"] + transfer_s + transfer_token_s * run["isl"]
    _decode_all([decode] * round(decode_replicas * scale), run, handed_over_s, routing, rng)
    one_token = np.ones(requests, np.int64)
    goes_on = run["osl"] > 1
    busy = workload.rate_per_s / backlog_rate_per_s(prefill, run["isl"], one_token, run["cached_tokens"])
    utilization = busy / prefill_replicas
    if np.any(goes_on):
        isl, osl = run["isl"][goes_on], run["osl"][goes_on]
        busy = workload.rate_per_s * float(goes_on.mean()) / backlog_rate_per_s(decode, isl, osl, isl)
        utilization = max(utilization, busy / decode_replicas)
    result = open_loop(run, prefill.law.request_s, utilization, warmup=warmup)
    widest = round(max(prefill_replicas, decode_replicas) * scale)
    return whole_fleet(result, 1 / scale, herding(routing, widest, workload.lengths.fixed))


def _scale(prefill_replicas: int, decode_replicas: int) -> float:
    """The share of both pools that is simulated: whole replicas in the same proportion, at most 32 of a kind."""
    units = math.gcd(prefill_replicas, decode_replicas)
    largest = max(prefill_replicas, decode_replicas) // units
    return min(units, max(1, MOST_REPLICAS // largest)) / units


def _prefill_all(pool: list[Replica], run: Requests, routing: Routing, rng: np.random.Generator) -> None:
    """Serve every prompt as a request with one token; fills times and outcomes."""
    prompts = checked_requests(pool[0], run["isl"], np.ones(len(run), np.int64), run["arrival_s"])
    for field in ("cached_tokens", "queue_timeout_s", "cancel_s"):
        prompts[field] = run[field]
    serve(pool, prompts, routing, rng)
    for field in ("scheduled_s", "first_token_s", "done_s", "outcome"):
        run[field] = prompts[field]


def _decode_all(
    pool: list[Replica], run: Requests, handed_over_s: Seconds, routing: Routing, rng: np.random.Generator
) -> None:
    """Decode, from `handed_over_s` on, the sequences with tokens to come whose clients still wait; fills their ends."""
    goes_on = (run["outcome"] == SERVED) & (run["osl"] > 1)
    patience_s = run["arrival_s"] + run["cancel_s"] - handed_over_s
    gone = goes_on & (patience_s <= 0)
    run["outcome"][gone] = CANCELLED
    run["done_s"][gone] = (run["arrival_s"] + run["cancel_s"])[gone]
    who = np.flatnonzero(goes_on & ~gone)
    if not len(who):
        return
    who = who[np.argsort(handed_over_s[who], kind="stable")]
    sequences = requests_of(run["isl"][who], run["osl"][who], handed_over_s[who])
    sequences["steps"], sequences["cancel_s"] = run["steps"][who], patience_s[who]
    sequences["cached_tokens"] = run["isl"][who]
    serve(pool, sequences, routing, rng)
    run["done_s"][who], run["outcome"][who] = sequences["done_s"], sequences["outcome"]
