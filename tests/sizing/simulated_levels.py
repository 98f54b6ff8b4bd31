"""A server whose law is known: the points that a calibration of it would give, noise and all."""

from __future__ import annotations

from typing import Any

import numpy as np

from sizing.analyses.next_level import Option
from sizing.engine import Batching, Replica, StepLaw
from sizing.points import Point
from sizing.simulator import simulate_closed

LAW = StepLaw(4.8e-3, 1e-3, 20e-6, 10e-6, 49e-9, attention_s=1.3e-9, prefill_s=0.5e-3, request_s=3e-3)
SERVER = Replica(LAW, Batching("chunked"))
NOISE = 0.03


def simulated_point(option: Option, server: Replica = SERVER, seed: int = 0, **fields: Any) -> Point:
    """The level run on `server`, users started one after the other; means off by 3 %. One seed, one point."""
    lengths, users = option.lengths, option.users
    rng = np.random.default_rng([seed, users, round(lengths.isl), round(lengths.osl)])
    isl, osl = lengths.sample(users * -(-(option.requests + 5 * users) // users), rng)
    together = simulate_closed(server, users, isl, osl)
    run = simulate_closed(server, users, isl, osl, ramp_s=float(together.e2e_s.mean()))
    luck = np.exp(NOISE * rng.standard_normal(3))
    values: dict[str, Any] = {
        "model": "m",
        "precision": "bf16",
        "gpu": "g",
        "tp": 1,
        "batching": server.batching.policy,
        "max_batch_size": server.batching.max_batch_size,
        "isl": lengths.isl,
        "osl": lengths.osl,
        "isl_cv": lengths.isl_cv,
        "osl_cv": lengths.osl_cv,
        "load_kind": "concurrency",
        "load_value": users,
        "requests": option.requests,
        "duration_s": option.requests / run.requests_per_s,
        "requests_per_s": run.requests_per_s * luck[0],
        "ttft_mean_s": run.ttft_s.mean() * luck[1],
        "itl_mean_s": np.nanmean(run.itl_s) * luck[2],
        "verdict": "steady",
    }
    return Point(**(values | fields))
