"""Latency percentiles of a replica or a fleet at a given load, by analysis: two chains on two time scales; and the
highest load it can carry.

    fast chain   prompts at iteration boundaries, decode batch held fixed  ->  ITL(d)      iteration_chain.py
    slow chain   sequences that run, a birth-death chain with rates n / (E[OSL-1] ITL(n))  ->  P(n)
    arrival      finds n by P(n) (PASTA), then an iteration of the fast chain  ->  TTFT, ITL, E2E of 8,192 requests

Requests are low-discrepancy points instead of random draws, the same at every rate: results are deterministic and
smooth in the rate, so that a search may bisect with them.
"""

from __future__ import annotations

import dataclasses
import math
from functools import lru_cache

import numpy as np

from sizing.budget import checkpoint
from sizing.engine import UNLIMITED_KV_TOKENS, Replica, Roughness
from sizing.errors import ScenarioError
from sizing.numbers import Floats
from sizing.prediction import NOT_COUNTED, Caution, Joint, Prediction, Quantiles, saturated, used_up
from sizing.queueing.demand import Demand, Requests, any_engine, demand_of, requests_at, slot_limit, slots
from sizing.queueing.iteration_chain import (
    SINGLE,
    Iterations,
    closed_iterations,
    decode_step_s,
    iteration_s,
    open_iterations,
    prefill_room,
    steps_in_vain,
)
from sizing.queueing.latency import Scene, first_stall_s, first_token_s, mean_step_over_life_s, stalled_share
from sizing.queueing.points import Points, low_discrepancy_points
from sizing.queueing.slow_chain import Fluctuation, Places, batch_grid, flow_equivalent_rates, settled_batch, slow_chain
from sizing.queueing.static_queue import largest_batch, predict_static, static_stable_rate_per_s
from sizing.queueing.stream import ArrivalStream, stream_of
from sizing.queueing.token_gaps import decoding_s, gap_quantiles
from sizing.workload import METRICS, NO_PREFIX, PERCENTILES, ROUTINGS, Lengths, Prefix, Routing, Within, Workload

WIDE = 1.25
"""Coefficient of variation of prompts above which the prediction warns."""
WAITING = 0.01
"""Probability of waiting for a slot above which the prediction warns that its TTFT is rough."""


def predict(
    replica: Replica,
    workload: Workload,
    *,
    replicas: int = 1,
    routing: Routing = "random",
    seed: int = 0,
    gaps: bool = False,
    within: Within = (),
) -> Prediction:
    """Mean and percentiles of TTFT, ITL and E2E when `workload` is spread over `replicas` equal replicas.

    `gaps`: of the gaps between single tokens too, see `sizing.queueing.token_gaps`. `within`: limits that requests are
    to keep all at once; every point is one request with all its latencies, so that goodput counts them.

    Error against the simulator (validation/speed/queueing.py), median / 90th centile of the absolute error in
    %. Cases: prefill_first, chunked with budgets 8192 and 2048, whole_prompt; mixes 128/128, 1000/1000, 2000/256,
    200/1000; equal lengths, and lognormal ones of cv 0.5 and 0.8. First the largest rate under an SLA, with the worst
    two (14 pairs of p95 or p99 limits on TTFT and ITL for each case), then percentiles, one replica, Poisson arrivals:

        largest rate   0.8 / 2.5, worst -9 and +11 (444 questions)
        utilization    TTFT p95   TTFT p99   ITL p95    ITL p99    E2E p95
        0.3            0.3 / 0.7  0.9 / 1.8  0.2 / 1.1  0.7 / 1.7  0.2 / 1.1
        0.6            0.6 / 1.2  0.7 / 2.7  0.8 / 2.3  0.8 / 3.4  0.9 / 1.7
        0.8            0.8 / 1.9  1.6 / 3.8  1.2 / 4.0  1.4 / 6.8  1.0 / 1.9
        0.9            0.9 / 5.4  3.9 / 9.2  2.2 / 6.2  2.8 / 7.0  1.3 / 3.5

    Worst: TTFT -45 to +62 % from 0.8 on, where slots fill up (128/128 under prefill_first). The model was refined on
    these cases. On 27 others (`--others`: another law, 128 slots, half the memory; 500/150, 3000/600, 64/512; cv up to
    1.2): largest rate 1.0 / 7.3, worst -17 and +57, too high by more than 5 % in 10 %; TTFT p95 at 0.8 0.5 / 12, at 0.9
    10 / 26. Where requests wait for slots or memory the formula is rough, and a warning says so.

    Features (`--feature`; 2000/256 and 1000/1000, chunked and prefill_first), median and worst at 0.3 to 0.8:

        prefix found by 0.5, 0.9           TTFT p99 1.5, +7    ITL p95 1.4, -10
        draft of 4 tokens, free, costly    TTFT p99 1, +7      ITL p95 2, -8
        max_tokens 4 OSL; correlation .7   TTFT p99 1, -5      ITL p95 1, -5
        60,000 KV tokens; blocks of 64     up to 0.6 as above; at 0.8 TTFT p95 6 to 14, -23 and +45; ITL p95 +6
        max_utilization, 60,000 tokens     at 0.8 TTFT p95 13, -27; ITL p95 1.3, -2; stable rate 6 to 8 % too high
        power of two over 8                TTFT p95 2 to 5, -12; ITL p95 1, +2
        batches of 8                       ITL p95 9, -23; at 0.8 TTFT p95 29, -46

    Largest rate with other arrivals and fleets (lengths as above):

        round robin over 4                1.2 / 3.4, worst -5 and +25
        gamma arrivals of cv 2            2.5 / 6.3, worst -45 and +45: too high by more than 5 % in 8 %
        batches of 8                      2.6 / 5.7, worst -100 and +33: too high by more than 5 % in 11 %

    Gaps between single tokens (175 cases: five policies and budgets, utilization 0.1 to 0.9, also 2000/9, 4000/12 and
    6000/4), mean 1.1 / 7, p50 0.4 / 5, p90 0.9 / 6, p95 0.8 / 8, p99 0.7 / 8. Worst: prefill_first with a few output
    tokens, -100 % where the simulator finds no steady state and the formula does; and a percentile at the very load
    where it jumps from a decode step to one with a prompt.

    Answers of 2 to 17 tokens (chunked and whole_prompt), ITL p50 to p99: 0.9 / 7; under prefill_first rough, 15 to 100.

    Lengths of other laws (means 1,000 and 260, chunked and prefill_first, 0.3 to 0.8), worst p95 or p99 of TTFT,
    ITL and E2E: uniform +3, -2, -1; two lengths, 80 and 20 %, -3, -4, -1; a long tail, prompts of cv 2, -7, -17, -11.
    Prompts vary too much for the formula above a cv of `WIDE`: lognormal ones of cv 2 have p99 TTFT -35 to -66.

    Burstier arrivals (gamma of cv 4), and equal requests under least outstanding, which herd: simulate; warnings say
    so. Static batching: see `sizing.queueing.static_queue`. Left out, with a warning: what paused requests compute
    again, roughness, queue limits, timeouts, cancellations. `seed` changes only the integration points.

    A load at or above `stable_rate_per_s` of each replica gives the saturated prediction. Raises ScenarioError for a
    fleet of no replicas, an unknown routing, and requests longer than the KV cache.
    """
    if replicas < 1:
        raise ScenarioError(f"replicas must be 1 or more, got {replicas}")
    if routing not in ROUTINGS:
        raise ScenarioError(f"routing {routing!r} is not one of {', '.join(ROUTINGS)}")
    checkpoint("prediction by formula")
    rate, stable = workload.rate_per_s / replicas, stable_rate_per_s(replica, workload.lengths, workload.prefix)
    warnings = _warnings(replica, workload, replicas, routing)
    if rate >= stable:
        return dataclasses.replace(saturated(rate / stable, "analytic"), warnings=warnings)
    points = low_discrepancy_points(seed)
    if replica.batching.policy == "static":
        ttft, itl, e2e, gap = predict_static(replica, workload.lengths, rate, points, gaps=gaps)
    else:
        stream = stream_of(workload.arrivals, rate, replicas, routing)
        overlap = demand_of(replica, workload.lengths, workload.prefix).overlap
        fluctuation = Fluctuation.of(workload.arrivals, replicas, routing, overlap)
        scene = steady_state(replica, workload.lengths, workload.prefix, stream, fluctuation)
        requests = _requests_of(any_engine(replica), workload.lengths, workload.prefix, seed)
        ttft, itl, e2e, gap = _predict_in_flight(scene, requests, points, gaps)
        if scene.state.waiting > WAITING:
            places = _places(scene)
            warnings += (Caution("crowded", {"waiting": float(scene.state.waiting), "places": places}),)
    joint = Joint.of(within, used_up(within, {"ttft": ttft, "itl": itl, "e2e": e2e}.__getitem__)) if within else None
    of_each = (Quantiles.of(ttft), Quantiles.of(itl), Quantiles.of(e2e))
    return Prediction(*of_each, False, rate / stable, "analytic", warnings, gap, joint)


def _places(scene: Scene) -> str:
    """What requests wait for."""
    most = slot_limit(scene.replica, scene.demand)
    if scene.state.slots < most:
        return "KV cache"
    return "slots" if most == scene.replica.batching.max_batch_size else "room in the token budget"


def _warnings(replica: Replica, workload: Workload, replicas: int, routing: Routing) -> tuple[Caution, ...]:
    found = []
    if workload.arrivals.kind != "poisson":
        found.append(Caution("approximate_arrivals", {"arrivals": str(workload.arrivals)}))
    if routing == "least_outstanding" and replicas > 1 and workload.lengths.alike:
        found.append(Caution("unseen_herding"))
    if replica.batching.policy != "static":
        cv = demand_of(replica, workload.lengths, workload.prefix).prompt_cv
        if cv > WIDE:
            found.append(Caution("wide_prompts", {"cv": cv}))
    if left_out := _not_modelled(replica, workload):
        found.append(Caution("not_modelled", {"settings": left_out}))
    return tuple(found)


def _not_modelled(replica: Replica, workload: Workload) -> tuple[str, ...]:
    """Settings of the question that the formulas ignore."""
    rule, static = replica.batching, replica.batching.policy == "static"
    parts = {
        "max_waiting": rule.max_waiting > 0 or workload.queue_limit > 0,
        "queue_timeout": math.isfinite(workload.queue_timeout_s),
        "cancel": math.isfinite(workload.cancel_s),
        "roughness": replica.rough != Roughness(),
        "recompute": rule.kv_policy == "max_utilization" and rule.kv_tokens < UNLIMITED_KV_TOKENS and not static,
        "static_speculation": replica.speculation is not None and static,
        "long_prompts": _waits_for_decodes(replica, workload),
        "static_prefix": workload.prefix.tokens * workload.prefix.hit_rate > 0 and static,
    }
    return tuple(name for name, present in parts.items() if present)


def _waits_for_decodes(replica: Replica, workload: Workload) -> bool:
    """True where whole prompts vary, and one of two standard deviations above the mean has no room in the token budget
    beside all sequences: those behind it wait while they leave. The slots account for mean prompts alone."""
    rule = replica.batching
    if rule.policy != "whole_prompt" or rule.budget_guessed:
        return False
    demand = demand_of(replica, workload.lengths, workload.prefix)
    decodes = slots(replica, workload.lengths, workload.prefix) * replica.lane_tokens
    long = demand.prompt_tokens * (1 + 2 * demand.prompt_cv)
    return demand.prompt_cv > 0 and decodes + long > rule.token_budget


def steady_state(
    replica: Replica, lengths: Lengths, prefix: Prefix, stream: ArrivalStream, fluctuation: Fluctuation
) -> Scene:
    """The two chains solved for the requests of one replica."""
    demand, most = demand_of(replica, lengths, prefix), slots(replica, lengths, prefix)
    stable, rate = stable_rate_per_s(replica, lengths, prefix), stream.rate_per_s
    grid = batch_grid(demand, most)
    prompt_s, added_s = _prompt_s(replica, demand)
    busy_s = 2 * prompt_s / max(1 - rate * added_s, 0.1)  # a busy period of prompts, in which a burst does its damage
    groups = SINGLE if stream.poisson else stream.groups_within(busy_s)
    iterations = with_full_slots(open_iterations(replica, demand, grid, rate, groups), replica, demand, stable)
    near, near_per_s = iterations, rate
    if stream.dispersion < 1:
        near_per_s = stream.rate_around(prompt_s)
        near = open_iterations(replica, demand, grid, near_per_s)
    first, stalled = stream.excess_within(prompt_s), 0.0
    if demand.decode_steps > 0:
        iterations = in_company(between_looks(iterations, replica, demand), replica, demand, stream, prompt_s)
        settled = np.array([settled_batch(flow_equivalent_rates(iterations, demand, most), rate)])
        step_s = decode_step_s(replica, demand, settled)
        stalled = float(stalled_share(step_s, np.interp(settled, iterations.batch, iterations.itl_s))[0])
    fluctuation = fluctuation.with_stalls(demand.overlap, stalled, demand.prompt_cv)
    places = Places.of(demand, most, slot_limit(replica, demand), full_stalled_share(replica, demand, most, stable))
    state = slow_chain(iterations, demand, places, rate, stable, fluctuation)
    # At most that of Poisson: those that come at once with a burst are in `groups`.
    dispersion, company = fluctuation.dispersion, min(max(1 + first / (rate * prompt_s), 0.0), 1.0)
    return Scene(replica, demand, iterations, near, state, rate, near_per_s, stable, groups, dispersion, company)


def full_stalled_share(replica: Replica, demand: Demand, most: int, stable_per_s: float) -> float:
    """Share of time that the saturated engine spends on prompts: 1 - decode step / ITL with all slots taken."""
    if demand.decode_steps == 0:
        return 1.0
    full = np.array([float(most)])
    step_s = float(decode_step_s(replica, demand, full)[0])
    return min(max(1 - step_s * demand.decode_steps * stable_per_s / most, 0.0), 1.0)


def with_full_slots(iterations: Iterations, replica: Replica, demand: Demand, stable_per_s: float) -> Iterations:
    """Under prefill_first, prompts interrupt decoding less often when they wait for slots.

    All that found no slot enter after the next decode step, in one iteration: with all slots taken the ITL is that of
    the saturated engine.
    """
    if replica.batching.policy != "prefill_first" or demand.decode_steps == 0:
        return iterations
    itl = iterations.itl_s.copy()
    itl[-1] = min(itl[-1], iterations.batch[-1] / (demand.decode_steps * stable_per_s))
    return dataclasses.replace(iterations, itl_s=itl)


def between_looks(iterations: Iterations, replica: Replica, demand: Demand) -> Iterations:
    """ITL(d) of requests that start where the engine has looked for others, or after a wait for them: the next look or
    the end of the next wait is a whole interval away, so that they meet half of it less than as many steps elsewhere.
    """
    interval = replica.batching.receive_interval_steps
    if interval == 1 and iterations.waits == 0:
        return iterations
    step_s = decode_step_s(replica, demand, iterations.batch)
    missed = iterations.waited_s() / step_s / 2 + (interval - 1) / 2
    met = 1 - np.minimum(missed / demand.decode_steps, 1.0)
    return dataclasses.replace(iterations, itl_s=step_s + met * (iterations.itl_s - step_s))


def in_company(
    iterations: Iterations, replica: Replica, demand: Demand, stream: ArrivalStream, prompt_s: float
) -> Iterations:
    """ITL(d) as a request of the stream sees it, which comes just after others or keeps its distance from them.

    Poisson arrivals bring rate x life prompts to the life of a request. After an arrival of another stream they are
    more or fewer by its excess, (dispersion - 1)/2 in a long life, less what came while the own prompt ran: each costs
    its seconds, and those of prompts that come meanwhile, over the steps of a life. Of long prompts and short answers
    mean ITL was up to 21 % too long under constant gaps and 41 % too short under gamma arrivals of cv 2 without it; now
    16 % and 10 %.
    """
    if stream.poisson:
        return iterations
    step_s = decode_step_s(replica, demand, iterations.batch)
    life_s = prompt_s + demand.decode_steps * iterations.itl_s
    excess = np.array([stream.excess_within(float(each)) for each in life_s]) - stream.excess_within(prompt_s)
    each_s = (iterations.itl_s / step_s - 1) / stream.rate_per_s
    seen_s = iterations.itl_s + excess * each_s / demand.decode_steps
    return dataclasses.replace(iterations, itl_s=np.maximum(seen_s, np.minimum(step_s, iterations.itl_s)))


def _prompt_s(replica: Replica, demand: Demand) -> tuple[float, float]:
    """Seconds of an iteration with one mean prompt beside a dozen sequences, and what the prompt adds to it."""
    batch, prompt = np.array([12.0]), np.array([demand.prompt_tokens])
    with_prompt = iteration_s(replica, demand, batch, prompt, prompt * demand.attention_per_token)
    without = 0.0 if replica.batching.policy == "prefill_first" else decode_step_s(replica, demand, batch)
    return float(with_prompt[0]), float((with_prompt - without)[0])


@lru_cache(maxsize=32)
def _requests_of(replica: Replica, lengths: Lengths, prefix: Prefix, seed: int) -> Requests:
    """The requests that the points stand for: the same at every rate."""
    points = low_discrepancy_points(seed)
    return requests_at(replica, lengths, prefix, points.isl, points.osl, points.hit, points.luck).compact()


def _predict_in_flight(
    scene: Scene, requests: Requests, points: Points, gaps: bool
) -> tuple[Floats, Floats, Floats, Quantiles]:
    """TTFT, ITL (NaN where OSL = 1) and E2E of the requests that `points` stand for, in seconds; and their gaps."""
    found = scene.state.found_by(points.state)
    ttft, own_s, left = first_token_s(scene, found, requests, points)
    law, sequences = scene.replica.law, np.minimum(found, scene.state.slots - 1) + 1
    ttft = ttft + law.request_s + law.sending_s(sequences, scene.rate_per_s * (scene.demand.decode_steps + 1))
    stall_s = np.where(requests.steps > 0, first_stall_s(scene, found, own_s, left, points), 0.0)
    longer_s = requests.steps * mean_step_over_life_s(scene, found, requests, points, stall_s)
    decoding = decoding_s(scene, requests, found, own_s, left, points, longer_s)
    itl = np.divide(decoding, requests.gaps, out=np.full_like(decoding, np.nan), where=requests.gaps > 0)
    gap = gap_quantiles(scene, requests, found, own_s, left, points) if gaps else NOT_COUNTED
    return ttft, itl, ttft + decoding, gap


# --- The highest rate with a steady state


@lru_cache(maxsize=1024)
def stable_rate_per_s(replica: Replica, lengths: Lengths, prefix: Prefix = NO_PREFIX) -> float:
    """Requests/s below which the queue of a replica has a steady state; ScenarioError when not one mean request fits.

    Of `slots` sequences d decode; each iteration then brings d / E[steps] prompts, whatever the rate. If the budget
    takes them, the rate is d / (E[steps] ITL) with the ITL of the saturated fast chain. If not, the batch settles
    where decode tokens and prompt tokens fill the budget, d (1 + E[prompt]/E[steps]) = budget: the condition
    lambda (prompt + decode tokens) < budget / iteration time of Li, Dai, Peng (arXiv 2504.07347).

    Error against the simulated throughput with a full queue: median 0.6 %, 90th centile 2 % over the 32 cases of
    `sizing.queueing.predict`; worst 8 % too low (128/128 of equal lengths under prefill_first, which finish and restart
    in lockstep), 1 to 4 % too high where the KV cache binds and lengths vary. Recomputation of requests paused under
    max_utilization is not counted: 2 to 8 % too high there.
    """
    if replica.batching.policy == "static":
        return static_stable_rate_per_s(replica, lengths, largest_batch(replica, lengths))
    demand, most = demand_of(replica, lengths, prefix), slots(replica, lengths, prefix)
    if demand.decode_steps == 0:
        return _token_bound_rate(replica, demand, 0.0)
    full = closed_iterations(replica, demand, np.array([float(most)]))
    by_places = float(most / (demand.decode_steps * full.itl_s[0]))
    if replica.batching.policy == "prefill_first":
        return by_places
    steps = 1 + float(steps_in_vain(replica, demand, np.array([float(most)]))[0])
    filling = replica.batching.token_budget / (replica.lane_tokens + steps * demand.prompt_tokens / demand.decode_steps)
    by_tokens = _token_bound_rate(replica, demand, min(float(most), filling))
    return by_tokens if filling <= most else min(by_tokens, by_places)


def _token_bound_rate(replica: Replica, demand: Demand, running: float) -> float:
    """Requests/s if every iteration computes as many prompt tokens as fit beside `running` decodes, but for steps in
    which they wait for others in vain."""
    batch = np.array([running])
    room = prefill_room(replica, demand, batch)
    full_s = iteration_s(replica, demand, batch, room, room * demand.attention_per_token)
    wait_s = steps_in_vain(replica, demand, batch) * decode_step_s(replica, demand, batch)
    return float(room[0] / demand.prompt_tokens / (full_s[0] + wait_s[0]))


# --- Formula against simulation for one plan: a cross-check that reports disagreement

TOLERANCE = 0.10
"""Relative difference that triggers a warning: above nine in ten errors of either method at moderate load."""


def disagreement(analytic: Prediction, simulated: Prediction) -> Caution | None:
    """The percentile on which the two differ most, with both values, if by more than `TOLERANCE`.

    None when they agree, and for metrics that are not defined (no ITL with one output token) or not known (gaps).
    Relative to the simulated value. If only one of them finds the load saturated, that is the disagreement.
    """
    if analytic.saturated != simulated.saturated:
        which, other = ("formula", "simulation") if analytic.saturated else ("simulation", "formula")
        return Caution("saturation_disputed", {"saturated": which, "steady": other})
    if analytic.saturated:
        return None
    worst, found = TOLERANCE, None
    for metric in METRICS:
        for percentile in PERCENTILES:
            said_s, true_s = analytic.of(metric).at(percentile), simulated.of(metric).at(percentile)
            apart = abs(said_s / true_s - 1) if true_s > 0 else math.nan
            if apart > worst:
                worst = apart
                facts = {"metric": metric, "percentile": percentile, "formula_s": said_s, "simulation_s": true_s}
                found = Caution("methods_differ", {"apart": apart, **facts})
    return found
