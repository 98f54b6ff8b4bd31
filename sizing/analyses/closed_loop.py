"""What a closed loop would show: requests/s and mean latencies of so many users, from a fitted law, with bands."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from sizing.edge import Z90
from sizing.fitting import Fit
from sizing.fitting.levels import between, levels_at
from sizing.plans import Basis
from sizing.points import Point
from sizing.workload import Lengths, Prefix


@dataclass(frozen=True, slots=True)
class Banded:
    """A figure with the ends of its 90 % band."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """What a measurement of `users` on `replicas` would show: requests/s of all replicas, mean TTFT and ITL in seconds;
    no ITL with one output token."""

    users: int
    replicas: int
    requests_per_s: Banded
    ttft_mean_s: Banded
    itl_mean_s: Banded | None
    basis: Basis


def closed_loop(fitted: Fit, lengths: Lengths, prefix: Prefix, users: int, replicas: int = 1) -> ClosedLoop:
    """The closed loop of `users` (1 or more), spread evenly over `replicas`, measured as the points of the fit were.

    Raises ScenarioError for requests that the KV cache cannot hold.
    """
    each = max(1, round(users / replicas))
    point = point_at(fitted, lengths, prefix, each)
    means, sigmas = fitted.means([point])[0], fitted.mean_sigmas([point])[0]
    found = [
        Banded(mean, mean * math.exp(-Z90 * sigma), mean * math.exp(Z90 * sigma))
        for mean, sigma in zip(means[:3].tolist(), sigmas.tolist(), strict=True)
    ]
    scale = users / each
    rate = Banded(*(scale * value for value in (found[0].value, found[0].low, found[0].high)))
    itl = found[2] if round(lengths.osl) > 1 else None
    return ClosedLoop(users, replicas, rate, found[1], itl, fitted.basis(lengths, each))


def point_at(fitted: Fit, lengths: Lengths, prefix: Prefix, users: int) -> Point:
    """The point that measuring this level would give, as far as it is known before; its requests/s are rough."""
    point = Point(
        **fitted.deployment._asdict(),
        isl=lengths.isl,
        osl=lengths.osl,
        isl_cv=lengths.isl_cv,
        osl_cv=lengths.osl_cv,
        load_kind="concurrency",
        load_value=users,
        requests_per_s=rate_if_none_waited(fitted, lengths, users),
        prefix_tokens=prefix.tokens or None,
        prefix_hit=prefix.hit_rate or None,
    )
    levels = levels_at([error.point for error in fitted.errors], point)
    rate_per_s = between(levels, users, "requests_per_s") or float(fitted.engine_means([point])[0, 0])
    return replace(point, requests_per_s=rate_per_s)


def rate_if_none_waited(fitted: Fit, lengths: Lengths, users: int) -> float:
    """Requests/s if no prompt held up another: where the simulation that finds the right ones starts."""
    law = fitted.law
    batch = min(users, fitted.batching.max_batch_size)
    step_s = law.decode_s(batch, batch * (lengths.isl + lengths.osl / 2))
    return float(batch / (lengths.osl * step_s + law.prefill_alone_s(lengths.isl) + law.request_s))
