"""Servers whose law is known: the points a calibration would give, and the largest rate it carries."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sizing.edge import BY_FORMULA, SlaMissed
from sizing.engine import Batching, Replica, Roughness, StepLaw
from sizing.points import Point
from sizing.question import Setting
from sizing.simulator import simulate, simulate_closed, simulated_stable_rate_per_s
from sizing.workload import Lengths

LAW = StepLaw(4.8e-3, 1e-3, 20e-6, 10e-6, 48.9e-9, attention_s=1.3e-9, request_s=4e-3)
"""An 8B model in 16 bits on an 80 GB GPU: weights read at 3.35 TB/s, 128 KiB of KV cache a token."""
ROUGH = Roughness(padding=8, knee=2.5, jitter=0.05)
ROUGH_PREFILL_S = 1.5e-3
KV_TOKENS = 400_000
POLICIES = (
    Batching("prefill_first", kv_tokens=KV_TOKENS),
    Batching("chunked", kv_tokens=KV_TOKENS),
    Batching("chunked", token_budget=2048, kv_tokens=KV_TOKENS),
)
ISL_CV, OSL_CV = 0.5, 0.8
NOISE = 0.02


@dataclass(frozen=True, slots=True)
class Design:
    """What a calibration measures: mean (ISL, OSL) of each curve, and the users of its levels."""

    mixes: tuple[tuple[int, int], ...]
    levels: tuple[int, ...]


CONTRASTING = Design(((128, 128), (4000, 500)), (1, 8, 64, 256))
PROMPTS_AND_ANSWERS = Design(((4000, 200), (200, 800)), (1, 8, 64, 256))
"""One mix of long prompts, one of long answers: what prompts cost and what steps cost each show in a curve."""
ONE_MIX = Design(((1000, 1000),), (1, 4, 16, 64, 256))


def lengths_of(isl: float, osl: float, varied: bool) -> Lengths:
    """Lengths that are all the same, or lognormal with the usual spread."""
    return Lengths(isl, osl, ISL_CV, OSL_CV) if varied else Lengths(isl, osl)


def rough(server: Replica) -> Replica:
    """An engine that departs from every law: padded batches, a softer knee, jitter, a cost for every prefill."""
    return Replica(server.law.with_values(prefill_s=ROUGH_PREFILL_S), server.batching, rough=ROUGH)


def calibrate(server: Replica, design: Design, varied: bool, rng: np.random.Generator) -> list[Point]:
    """The points of a closed-loop calibration: every figure off by 2 % of its own, users started in turn."""
    return [
        _point(server, lengths_of(isl, osl, varied), users, rng) for isl, osl in design.mixes for users in design.levels
    ]


def _point(server: Replica, lengths: Lengths, users: int, rng: np.random.Generator) -> Point:
    """One level: 12 requests a user, and 400 or more where lengths vary."""
    rounds = 12 if lengths.fixed else max(12, -(-400 // users))
    isl, osl = lengths.sample(users * rounds, rng)
    together = simulate_closed(server, users, isl, osl)
    run = simulate_closed(server, users, isl, osl, ramp_s=float(together.e2e_s.mean()), token_gaps=True)
    luck = np.exp(NOISE * rng.standard_normal(5))
    return Point(
        model="synthetic",
        precision="bf16",
        gpu="synthetic",
        tp=1,
        batching=server.batching.policy,
        max_batch_size=server.batching.max_batch_size,
        isl=lengths.isl,
        osl=lengths.osl,
        isl_cv=lengths.isl_cv,
        osl_cv=lengths.osl_cv,
        load_kind="concurrency",
        load_value=users,
        requests=len(run.ttft_s),
        requests_per_s=run.requests_per_s * luck[0],
        ttft_mean_s=float(run.ttft_s.mean() * luck[1]),
        itl_mean_s=float(np.nanmean(run.itl_s) * luck[2]),
        gap_p50_s=run.watched.gap_p50_s * luck[3],
        gap_p95_s=run.watched.gap_p95_s * luck[4],
        verdict="steady",
    )


def true_rate_per_s(server: Replica, setting: Setting, requests: int, seed: int) -> float:
    """The largest rate per replica that meets the SLA in simulations of the server itself; 0 where there is none.

    Within about 0.4 % of the search and, at 400,000 requests, 0.4-0.8 % of luck (standard error).
    """
    stable_per_s = simulated_stable_rate_per_s(server, setting.workload.lengths)
    try:
        guess_per_s = BY_FORMULA.capacity_per_s(server, setting)
    except SlaMissed:
        guess_per_s = stable_per_s / 4

    def holds(rate_per_s: float) -> bool:
        workload = setting.at(rate_per_s)
        run = simulate(
            server, workload, replicas=setting.replicas, routing=setting.routing, requests=requests, seed=seed
        )
        return run.meets(setting.sla)

    return largest(holds, guess_per_s, stable_per_s)


TOLERANCE = 0.004
"""Relative width at which the search stops."""
IDLE = 0.01


def largest(holds: Callable[[float], bool], guess: float, ceiling: float) -> float:
    """The largest x up to `ceiling` that `holds`, to `TOLERANCE`; 0 when not even a hundredth of the guess does.

    `holds` must be true below some x and false above it. Slow and plain, and not the planner's own search.

    >>> round(largest(lambda x: x <= 3.0, guess=1.0, ceiling=100.0), 1)
    3.0
    """
    low = high = min(guess, ceiling)
    step = 1.04
    if holds(low):
        while holds(high := min(low * step, ceiling)):
            if high == ceiling:
                return ceiling
            low, step = high, step**2
    else:
        while not holds(low := high / step):
            if low < IDLE * guess:
                return 0.0
            high, step = low, step**2
    while high / low - 1 > TOLERANCE:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def whole_number(seed: np.random.SeedSequence) -> int:
    """A seed for `simulate`."""
    return int(seed.generate_state(1)[0])
