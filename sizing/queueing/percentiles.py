"""Latency percentiles of a replica or a fleet at a given load, by analysis: two chains on two time scales.

    fast chain   prompts at iteration boundaries, decode batch held fixed  ->  ITL(d)      sizing/iteration_chain.py
    slow chain   sequences that run, a birth-death chain with rates n / (E[OSL-1] ITL(n))  ->  P(n)
    arrival      finds n by P(n) (PASTA), then an iteration of the fast chain  ->  TTFT, ITL, E2E of 4,096 requests

The requests are not random draws but low-discrepancy points, the same at every rate: results are deterministic and
smooth in the rate, so that a search may bisect with them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from sizing.errors import ScenarioError
from sizing.prediction import Prediction, Quantiles, saturated
from sizing.queueing.demand import Demand, demand_of, lognormal_tokens, slots
from sizing.queueing.iteration_chain import closed_iterations, iteration_s, open_iterations, prefill_room
from sizing.queueing.latency import Scene, first_token_s, mean_gap_over_life_s
from sizing.queueing.points import Points, low_discrepancy_points
from sizing.queueing.slow_chain import (
    batch_grid,
    gaps_seen_cv2,
    rate_near_an_arrival,
    slow_chain,
    spread_with_stalls,
    state_spread,
)
from sizing.queueing.static_queue import predict_static, static_stable_rate_per_s
from sizing.replica import Replica
from sizing.workload import ROUTINGS, Lengths, Routing, Workload

__all__ = ["predict", "slots", "stable_rate_per_s"]

Floats = NDArray[np.float64]


def predict(
    replica: Replica, workload: Workload, *, replicas: int = 1, routing: Routing = "random", seed: int = 0
) -> Prediction:
    """Mean and percentiles of TTFT, ITL and E2E when `workload` is spread over `replicas` equal replicas.

    Error against the simulator of the same law, Poisson arrivals, one replica: median / 90th centile / worst of the
    absolute error in % over 40 cases (chunked with budgets of 512, 2048, 8192 tokens, whole_prompt, prefill_first;
    mixes 128/128, 1000/1000, 2000/256, 200/1000; equal lengths, and lognormal ones of cv 0.5 and 0.8):

        utilization   TTFT p95          TTFT p99           ITL p95           ITL p99            E2E p95
        0.3           0.4 / 1.6 / 4.9   1.0 / 3.9 / 7.5    0.4 / 0.7 / 1.9   0.3 / 1.5 / 3.4    0.5 / 0.6 / 0.9
        0.6           0.5 / 2.2 / 3.1   0.8 / 2.5 / 6.9    0.6 / 2.6 / 3.6   1.5 / 4.3 / 6.2    0.7 / 2.1 / 2.4
        0.8           0.7 / 2.6 / 9.0   1.2 / 4.9 / 11.7   0.9 / 3.7 / 5.7   1.1 / 4.6 / 10.6   0.8 / 2.8 / 3.9

    Worst elsewhere: TTFT p50 +14 %, where the median prompt just fills the token budget (a cliff in the law itself).

    The model was refined on these cases. On 27 others (another law and seed; 500/150, 3000/600, 64/512; cv up to 1.2):

        0.3           0.4 / 1.5 / 2.0   1.1 / 3.5 / 11.5   0.4 / 2.0 / 3.2   1.0 / 4.7 / 8.1    0.3 / 0.9 / 1.6
        0.6           0.6 / 2.1 / 4.1   1.6 / 10.5 / 14.6  0.6 / 3.7 / 7.4   1.6 / 8.8 / 14.7   0.6 / 1.7 / 3.0
        0.8           1.1 / 4.9 / 7.7   1.9 / 12.8 / 23.3  2.0 / 6.1 / 12.4  1.7 / 13.5 / 23.4  0.7 / 3.4 / 5.3

    At utilization 0.65 on those 27, median / 90th centile: round robin over 4, TTFT p95 6 / 18 %, p99 10 / 42 %,
    ITL p95 4 / 7 %; gamma of cv 1.5, TTFT p95 3 / 18 %, ITL p95 8 / 14 % too low; gamma of cv 3, TTFT p95 26 / 56 %
    and p99 59 / 84 % too low: do not plan bursty traffic without simulation (a warning says so). Least outstanding (12
    cases): ITL p95 +6 to +8 %, TTFT p95 +3 % with variable lengths, up to 76 % too low where equal ones make it herd (a
    warning says so). Static batching: see `sizing.queueing.static_queue`. `seed` moves the integration points only.

    A load at or above `stable_rate_per_s` of each replica gives the saturated prediction. Raises ScenarioError for a
    fleet of no replicas, an unknown routing, and requests longer than the KV cache.
    """
    if replicas < 1:
        raise ScenarioError(f"replicas must be 1 or more, got {replicas}")
    if routing not in ROUTINGS:
        raise ScenarioError(f"routing {routing!r} is not one of {', '.join(ROUTINGS)}")
    lengths, rate = workload.lengths, workload.rate_per_s / replicas
    stable = stable_rate_per_s(replica, lengths)
    if rate >= stable:
        return saturated(rate / stable, "analytic")
    points = low_discrepancy_points(seed)
    if replica.batching.policy == "static":
        ttft, itl, e2e = predict_static(replica, lengths, rate, points)
    else:
        gaps_cv2 = gaps_seen_cv2(workload.arrivals, replicas, routing)
        spread = state_spread(workload.arrivals, replicas, routing, demand_of(lengths).overlap)
        scene = steady_state(replica, lengths, rate, stable, gaps_cv2, spread)
        ttft, itl, e2e = _predict_in_flight(scene, lengths, points)
    return Prediction(
        Quantiles.of(ttft),
        Quantiles.of(itl),
        Quantiles.of(e2e),
        saturated=False,
        utilization=rate / stable,
        method="analytic",
        warnings=_warnings(workload, replicas, routing),
    )


@lru_cache(maxsize=1024)
def stable_rate_per_s(replica: Replica, lengths: Lengths) -> float:
    """Highest requests/s of one replica with a steady state: all slots busy, or the token budget spent.

    Against the simulated throughput with a line always waiting: median 0.6 %, 90th centile 2 %; worst 8-11 % too low
    (equal short requests under prefill_first, which finish and restart in step), 1-2 % too high where the KV cache
    binds and lengths vary.

    Of `slots` sequences d decode; each iteration then brings d / E[OSL-1] prompts, whatever the rate. If the budget
    takes them, the rate is d / (E[OSL-1] ITL) with the ITL of the saturated fast chain. If not, the batch settles
    where decode tokens and prompt tokens fill the budget, d (1 + E[ISL]/E[OSL-1]) = budget: the condition
    lambda (prompt + decode tokens) < budget / iteration time of Li, Dai, Peng (arXiv 2504.07347).
    """
    if replica.batching.policy == "static":
        return static_stable_rate_per_s(replica, lengths)
    demand, most = demand_of(lengths), slots(replica, lengths)
    if demand.decode_steps == 0:
        return _token_bound_rate(replica, demand, 0.0)
    full = closed_iterations(replica, demand, np.array([float(most)]))
    slot_bound = float(most / (demand.decode_steps * full.itl_s[0]))
    if replica.batching.policy == "prefill_first":
        return slot_bound
    filling = replica.batching.token_budget * demand.decode_steps / (demand.decode_steps + demand.prompt_tokens)
    token_bound = _token_bound_rate(replica, demand, min(float(most), filling))
    return token_bound if filling <= most else min(slot_bound, token_bound)


def _token_bound_rate(replica: Replica, demand: Demand, running: float) -> float:
    """Requests/s when every iteration takes all the prompt tokens it can beside `running` decodes."""
    batch = np.array([running])
    room = prefill_room(replica.batching, demand, batch)
    full_s = iteration_s(replica, demand, batch, room, room * demand.attention_per_token)
    return float(room[0] / demand.prompt_tokens / full_s[0])


def _warnings(workload: Workload, replicas: int, routing: Routing) -> tuple[str, ...]:
    found = []
    if workload.arrivals.kind != "poisson":
        side = ", too low for bursts" if workload.arrivals.cv > 1 else ""
        found.append(f"{workload.arrivals} arrivals: percentiles are approximate{side}; simulate to be sure")
    if routing == "least_outstanding" and replicas > 1 and workload.lengths.fixed:
        found.append("least-outstanding routing of equal requests can send them in herds, which only simulation shows")
    return tuple(found)


def steady_state(
    replica: Replica, lengths: Lengths, rate_per_s: float, stable_per_s: float, gaps_cv2: float, spread: float
) -> Scene:
    """The two chains solved at `rate_per_s`; `gaps_cv2` and `spread` as in `sizing.queueing.slow_chain`."""
    demand, most = demand_of(lengths), slots(replica, lengths)
    grid = batch_grid(demand, most)
    iterations = open_iterations(replica, demand, grid, rate_per_s)
    state = slow_chain(iterations, demand, most, rate_per_s, stable_per_s)
    scene = Scene(replica, demand, iterations, iterations, state, rate_per_s, rate_per_s, stable_per_s, spread)
    running = np.array([max(state.mean_running, 1.0)])
    spread = spread_with_stalls(demand.overlap, float(scene.stalled_share(running)[0]), spread)
    if gaps_cv2 == 1:
        return replace(scene, spread=spread)
    near = rate_near_an_arrival(rate_per_s, gaps_cv2, scene.prompt_iteration_s(running))
    # A burst ends before its queue would settle; 1.3 fits gamma cv 2 best among 0.9, 1.1, 1.3 and no bound.
    bearable = min(near, max(rate_per_s, 1.3 * stable_per_s))
    return replace(scene, spread=spread, near_per_s=near, near=open_iterations(replica, demand, grid, bearable))


def _predict_in_flight(scene: Scene, lengths: Lengths, points: Points) -> tuple[Floats, Floats, Floats]:
    """TTFT, ITL (NaN where OSL = 1) and E2E of the requests that `points` stand for, in seconds."""
    isl = lognormal_tokens(lengths.isl, lengths.isl_cv, points.isl)
    steps = lognormal_tokens(lengths.osl, lengths.osl_cv, points.osl) - 1
    found = scene.state.found_by(points.state, scene.spread)
    ttft = first_token_s(scene, found, isl, points) + scene.replica.law.request_s
    itl = mean_gap_over_life_s(scene, found, isl, steps, points)
    return ttft, np.where(steps > 0, itl, np.nan), ttft + steps * itl
