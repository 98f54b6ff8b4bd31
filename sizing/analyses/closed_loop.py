"""What a closed loop of a number of users would show, from a fitted law: requests/s and latencies, with bands."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from sizing.edge import OF_SHAPE
from sizing.engine import Replica
from sizing.fitting import Fit
from sizing.fitting.carried import between, levels_at
from sizing.fitting.levels import concurrency, point_runs, request_count
from sizing.numbers import Floats
from sizing.plans import Basis
from sizing.points import Point
from sizing.simulator.replay import Replay
from sizing.stats import Z90
from sizing.workload import GAP_PERCENTILES, PERCENTILES, Lengths, Metric, Prefix

ENOUGH, MOST_RUNS = 10_000, 200
"""Requests of a loop whose percentiles are taken, by repeating the measurement, and the most repetitions."""
GAP_RANKS = tuple((np.arange(2000) + 0.5) / 20)
"""Percentiles that stand for all gaps of a loop."""
SCATTER = ndtri((np.arange(40) + 0.5) / 40)
"""Quantiles of a standard normal law, for what delivery adds to a gap."""
LEAST_GAP_S = 1e-6
"""Gap between tokens that are delivered together: a band needs its logarithm."""
NEAR_MEAN = 0.05
"""A single user's tokens arrive one by one if the median gap is this close to the mean ITL, relatively."""


@dataclass(frozen=True, slots=True)
class Banded:
    """A figure with the ends of its 90 % band."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, value: float, sigma: float) -> Banded:
        """A figure whose logarithm has the standard error `sigma`."""
        return cls(value, value * math.exp(-Z90 * sigma), value * math.exp(Z90 * sigma))


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """What a measurement of `users` on `replicas` would show: requests/s of all replicas and `latencies`, in seconds,
    by their names in the points table (ttft_mean_s, e2e_p95_s, gap_p99_s ...); no ITL or gaps with one output token."""

    users: int
    replicas: int
    requests_per_s: Banded
    latencies: Mapping[str, Banded]
    basis: Basis


def closed_loop(
    fitted: Fit, lengths: Lengths, prefix: Prefix, users: int, replicas: int = 1, requests: int | None = None
) -> ClosedLoop:
    """The closed loop of `users` (1 or more), spread evenly over `replicas`, measured as the points of the fit were,
    with so many `requests` a replica (None: ten a user), whose luck the bands hold.

    Percentiles lie about the means as in simulations of the fitted engine; those of the gaps scatter as well by how
    tokens are delivered, see `delivery_scatter_s`. Their bands are those of the means, wider by what the ratio to the
    mean changes between laws one standard error apart, by the luck of a percentile of so many requests and by what
    simulated ratios are off. Raises ScenarioError for requests that the KV cache cannot hold.
    """
    each = max(1, round(users / replicas))
    point = replace(point_at(fitted, lengths, prefix, each), requests=requests)
    rate_per_s, ttft_s, itl_s = fitted.means([point])[0, :3].tolist()
    of_rate, of_ttft, of_itl = fitted.mean_sigmas([point])[0].tolist()
    itl_s = itl_s if round(lengths.osl) > 1 else 0.0
    means_s = {"ttft": ttft_s, "itl": itl_s, "gap": itl_s, "e2e": ttft_s + (lengths.osl - 1) * itl_s}
    local = fitted.at(lengths.isl, lengths.osl)
    replay = repeated(local, point)
    scatter_s = delivery_scatter_s(fitted)
    luck = fitted.luck(point)
    shown = _shown(replay, local.engine, point, scatter_s, luck)
    variances = {name: one.error**2 for name, one in shown.items()}
    for pair in local.variants_seen(lengths, np.array([[min(each, local.batching.max_batch_size)]], float)):
        faster, slower = (_shown(replay, engine, point, scatter_s, luck) for engine in pair)
        for name in shown:
            variances[name] += (math.log(slower[name].over_mean / faster[name].over_mean) / 2) ** 2
    of_gap = math.hypot(of_itl, local.law_error.gap)
    of_means = {"ttft": of_ttft, "itl": of_itl, "gap": of_gap, "e2e": of_rate}
    latencies = {
        name: Banded.of(
            means_s[one.metric] * one.over_mean, math.hypot(of_means[one.metric], math.sqrt(variances[name]))
        )
        for name, one in shown.items()
    }
    rate = Banded.of(rate_per_s * users / each, of_rate)
    return ClosedLoop(users, replicas, rate, latencies, fitted.basis(lengths, each))


def repeated(fitted: Fit, point: Point) -> Replay:
    """The measurement of a point, with other lengths each time, until it has requests enough for percentiles."""
    runs = list(point_runs([point], fitted.protocol))
    each = sum(end - begin for run in runs for begin, end, _ in run.windows)
    for seed in range(1, min(math.ceil(ENOUGH / each), MOST_RUNS)):
        runs += point_runs([point], fitted.protocol, seed=seed)
    return Replay(runs, fitted.engine, token_gaps=True)


class _Shown(NamedTuple):
    """A statistic of a latency over the means that a fit gives (TTFT, ITL; for E2E the TTFT and OSL - 1 ITLs), and its
    relative error, by the luck of a measurement and by its shape, beside that of the mean."""

    metric: Metric
    over_mean: float
    error: float


def _shown(replay: Replay, engine: Replica, point: Point, scatter_s: float, luck: Floats) -> dict[str, _Shown]:
    """What an engine shows of a point, by the names of the points table.

    The luck of a percentile: how far those lie apart that are a standard error of the rank to its sides.
    """
    requests, several = replay.measured(engine)[0], round(point.osl) > 1
    ttft_s = requests["first_token_s"] - requests["arrival_s"] + requests["outside_s"]
    e2e_s = requests["done_s"] - requests["arrival_s"] + requests["outside_s"]
    longer = requests["osl"] > 1
    itl_s = (requests["done_s"] - requests["first_token_s"])[longer] / (requests["osl"][longer] - 1)
    ttft_mean_s, itl_mean_s = float(ttft_s.mean()), float(itl_s.mean()) if several else 0.0
    of_rate, of_ttft, _ = luck
    sent = request_count(point)
    samples: dict[Metric, tuple[Floats, float, float]] = {"ttft": (ttft_s, ttft_mean_s, of_ttft)}
    if several:
        samples["itl"] = itl_s, itl_mean_s, 0.0
    samples["e2e"] = e2e_s, ttft_mean_s + (point.osl - 1) * itl_mean_s, of_rate
    found = {}
    for metric, (sample, mean_s, of_mean) in samples.items():
        found[f"{metric}_mean_s"] = _Shown(metric, float(sample.mean()) / mean_s, 0.0)
        for p in PERCENTILES:
            values = np.percentile(sample, _ranks(p, sent))
            found[f"{metric}_p{p}_s"] = _of_percentile(metric, values, mean_s, of_mean)
    if several:
        steps = iterations_seen(point, engine)
        gaps_s = replay.gap_quantiles_s(engine, GAP_RANKS)[0][:, None]
        delivered_s = np.maximum(gaps_s + scatter_s * SCATTER if scatter_s else gaps_s, LEAST_GAP_S)
        for p in GAP_PERCENTILES:
            found[f"gap_p{p}_s"] = _of_percentile("gap", np.percentile(delivered_s, _ranks(p, steps)), itl_mean_s, 0.0)
    return found


def iterations_seen(point: Point, engine: Replica) -> float:
    """Iterations that produce the tokens of a closed loop: all gaps that end in the same one count as one."""
    return max(1.0, request_count(point) * (point.osl - 1) / min(concurrency(point), engine.batching.max_batch_size))


def delivery_scatter_s(fitted: Fit) -> float:
    """Standard deviation of what front end, network and client add to a gap between tokens, or take off it: from the
    p50 and p95 of users alone on the server, who meet no other prompt (the median of such levels; 0 where none tells).
    """
    alone = [error.point for error in fitted.errors if error.point.closed and concurrency(error.point) == 1]
    found = [
        (point.gap_p95_s - point.gap_p50_s) / Z90
        for point in alone
        if point.gap_p95_s and point.gap_p50_s and point.itl_mean_s
        if abs(point.gap_p50_s / point.itl_mean_s - 1) < NEAR_MEAN
    ]
    return statistics.median(found) if found else 0.0


def _ranks(percentile: float, count: float) -> tuple[float, float, float]:
    """A percentile, and those a standard error of its rank in a sample of so many below and above it."""
    error = math.sqrt(percentile * (100 - percentile) / count)
    return max(0.0, percentile - error), percentile, min(100.0, percentile + error)


def _of_percentile(metric: Metric, values: Floats, mean_s: float, of_mean: float) -> _Shown:
    low, value, high = values.tolist()
    luck = math.log(high / low) / 2
    return _Shown(metric, value / mean_s, math.hypot(math.sqrt(max(0.0, luck**2 - of_mean**2)), OF_SHAPE[metric]))


def point_at(fitted: Fit, lengths: Lengths, prefix: Prefix, users: int) -> Point:
    """The point that measuring this level would give, as far as it is known before; its requests/s are rough."""
    rough = rough_point(fitted, lengths, users)
    point = replace(rough, prefix_tokens=prefix.tokens or None, prefix_hit=prefix.hit_rate or None)
    levels = levels_at([error.point for error in fitted.errors], point)
    rate_per_s = between(levels, users, "requests_per_s") or float(fitted.engine_means([point])[0, 0])
    return replace(point, requests_per_s=rate_per_s)


def rough_point(fitted: Fit, lengths: Lengths, users: int) -> Point:
    """A level of the fitted deployment, with the requests/s that it would have if no prompt held up another: where the
    search for the right rate begins."""
    law = fitted.law
    batch = min(users, fitted.batching.max_batch_size)
    step_s = law.decode_s(batch, batch * (lengths.isl + lengths.osl / 2))
    return Point(
        **fitted.deployment._asdict(),
        isl=lengths.isl,
        osl=lengths.osl,
        isl_cv=lengths.isl_cv,
        osl_cv=lengths.osl_cv,
        load_kind="concurrency",
        load_value=users,
        requests_per_s=float(batch / (lengths.osl * step_s + law.prefill_alone_s(lengths.isl) + law.request_s)),
    )
