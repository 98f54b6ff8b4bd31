"""What was measured, level by level, and how far each figure can be trusted before any law is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sizing.curves import Deployment, Point
from sizing.fitting.levels import (
    FULL,
    OPEN_LOOPS,
    UNTOLD,
    Effort,
    Protocol,
    Trace,
    block_runs,
    concurrency,
    in_flight,
    phase_runs,
    point_runs,
    trace_run,
)
from sizing.replica import Batching, Replica
from sizing.simulator.replay import GAPS, MEASURES, OPEN_ONLY, Replay, Run

Floats = NDArray[np.float64]

RATE_SIGMA, ITL_SIGMA = 0.02, 0.02
"""Relative errors granted to a measured requests/s and mean ITL (or E2E), beside those of the sample."""
GAP_SIGMAS = 0.02, 0.04
"""The same for p50 and p95 of the gaps between tokens of a closed loop."""
GAP_NEAR = (50, 3), (95, 1.5)
"""Percentiles of the gaps that are used, and how far off in rank: a law that puts a few more gaps beside a prompt may
be right, yet its median far off where half of them are."""
QUEUED_TTFT_SIGMA = 0.5
"""The same for TTFT with more users than slots: it is then a small difference of large numbers."""
QUEUED = 0.3
"""Share of E2E that a mean TTFT takes where requests mostly wait: it then tells of the queue, as E2E does."""
SCATTER_BLOCKS = 8
"""Parts of an open loop that tell how much its means scatter by luck."""


@dataclass(frozen=True, slots=True, eq=False)
class Observed:
    """Levels of one deployment: `points`, a row each; of a `trace` the rows are groups of consecutive requests."""

    points: tuple[Point, ...]
    trace: Trace | None = None
    protocol: Protocol = UNTOLD

    def runs(self, effort: Effort = FULL) -> tuple[Run, ...]:
        """What to simulate; row i of the result is point i."""
        if self.trace is not None:
            return (trace_run(self.trace, len(self.points)),)
        return point_runs(self.points, self.protocol, effort=effort)

    @property
    def measured(self) -> Floats:
        """What the simulation is to reproduce, shape (points, 8), columns `MEASURES`; NaN: not told, or of no use."""
        rows = [[getattr(point, name) or np.nan for name in MEASURES] for point in self.points]
        measured = np.array(rows, np.float64)
        closed = [point.load_kind == "concurrency" for point in self.points]
        measured[closed, OPEN_ONLY] = np.nan
        measured[np.logical_not(closed), 0] = np.nan
        measured[np.logical_not(closed), -len(GAPS) :] = np.nan
        measured[[round(point.osl) <= 1 for point in self.points], 2] = np.nan
        return measured

    def errors(self, replica: Replica) -> Floats:
        """Relative standard errors of `measured`; the luck of open loops, and of the phases in which users of equal
        requests go round, from simulating `replica`."""
        errors = np.ones((len(self.points), len(MEASURES)))
        errors[:, -len(GAPS) :] = np.hypot(GAP_SIGMAS, self._gap_scatter(replica))
        scatter = self._trace_scatter(replica) if self.trace is not None else None
        for row, point in enumerate(self.points):
            if point.load_kind == "concurrency":
                luck = phase_scatter(point, replica) if self._goes_round(point) else np.zeros(3)
                errors[row, :3] = np.hypot(granted(point, replica.batching, self.protocol.ttft_sigma), luck)
            else:
                luck = scatter if scatter is not None else stream_scatter(point, self.protocol, replica)
                errors[row, : -len(GAPS)] = np.hypot(self._open_sigmas(point), luck[: -len(GAPS)])
        return np.asarray(errors * self.shares)

    @property
    def shares(self) -> Floats:
        """Factors on the errors of figures of a point that say the same, shape (points, 8)."""
        closed = [point.load_kind == "concurrency" for point in self.points]
        return np.array(
            [np.ones(len(MEASURES)) if one else _shared(row) for one, row in zip(closed, self.measured, strict=True)]
        )

    def _gap_scatter(self, replica: Replica) -> Floats:
        """Relative errors of the percentiles of gaps where the gaps around them differ: with and without a prompt."""
        if not np.isfinite(self.measured[:, -len(GAPS) :]).any():
            return np.zeros((len(self.points), len(GAPS)))
        percentiles = [percentile + side for percentile, near in GAP_NEAR for side in (-near, near)]
        quantiles_s = Replay(self.runs(), replica, token_gaps=True).gap_quantiles_s(replica, percentiles)
        return np.asarray(np.nan_to_num(np.log(quantiles_s[:, 1::2] / quantiles_s[:, ::2]) / 2))

    def _goes_round(self, point: Point) -> bool:
        return point.lengths.fixed and concurrency(point) > 1 and self.protocol.start != "together"

    def _open_sigmas(self, point: Point) -> tuple[float, ...]:
        waits = bool(point.ttft_mean_s and point.e2e_mean_s and point.ttft_mean_s > QUEUED * point.e2e_mean_s)
        ttft = QUEUED_TTFT_SIGMA if waits else self.protocol.ttft_sigma
        return RATE_SIGMA, ttft, ITL_SIGMA, ITL_SIGMA, ttft, 2 * ttft

    def _trace_scatter(self, replica: Replica) -> Floats:
        """How far groups of a trace are off by luck: the arrivals are replayed, so a quarter of their whole scatter."""
        assert self.trace is not None
        means = Replay([trace_run(self.trace, 4 * len(self.points))], replica).means(replica)
        logs = np.log(np.where(means > 0, means, 1.0)).reshape(len(self.points), 4, -1)
        scatter: Floats = logs.std(axis=1, ddof=1).mean(axis=0) / 4
        return scatter


def _shared(measured: Floats) -> Floats:
    """Figures that say nearly the same share their weight: mean, median and p95 of TTFT; ITL and E2E."""
    known = np.isfinite(measured)
    share = np.ones(len(MEASURES))
    for group in ([1, 4, 5], [2, 3]):
        share[group] = math.sqrt(max(1, int(known[group].sum())))
    return share


def granted(point: Point, batching: Batching, ttft_sigma: float = UNTOLD.ttft_sigma) -> tuple[float, float, float]:
    """Relative errors of the three means of a closed-loop point: the instrument's, and the luck of the lengths drawn.

    Where the point does not tell its requests, ten per user are assumed.
    """
    users = concurrency(point)
    requests = point.requests or 10 * users
    ttft = QUEUED_TTFT_SIGMA if users > batching.max_batch_size else ttft_sigma
    return (
        float(np.hypot(RATE_SIGMA, point.osl_cv / np.sqrt(requests))),
        float(np.hypot(ttft, point.isl_cv / np.sqrt(requests))),
        ITL_SIGMA,
    )


def phase_scatter(point: Point, replica: Replica) -> Floats:
    """Relative errors of requests/s, TTFT and ITL of a closed loop with equal lengths by the phases that the users
    happened to start in, shape (3,)."""
    means = Replay(phase_runs(point), replica).means(replica)[:, :3]
    scatter: Floats = np.log(np.where(means > 0, means, 1.0)).std(axis=0, ddof=1)
    return scatter


def stream_scatter(point: Point, protocol: Protocol, replica: Replica) -> Floats:
    """Relative errors of the figures of an open loop by the luck of its arrivals and lengths, shape (8,).

    From the scatter of the point simulated in parts (batch means), for as many requests as were measured.
    """
    blocks = max(1, SCATTER_BLOCKS // len(block_runs(point, protocol, 1)))
    runs = block_runs(point, protocol, blocks)
    means = Replay(runs, replica).means(replica)
    logs = np.log(np.where(means > 0, means, 1.0))
    within = sum(end - begin for begin, end, _ in runs[0].windows)
    size = math.sqrt(blocks * (point.requests or within) / within)
    scatter: Floats = logs.std(axis=0, ddof=1) / size if len(logs) > 1 else np.zeros(len(MEASURES))
    return scatter


def trace_points(trace: Trace, deployment: Deployment, chunks: int) -> tuple[Point, ...]:
    """One point for each group of consecutive requests, with the means and TTFT percentiles of the group."""
    points = []
    for begin, end, _ in trace_run(trace, chunks).windows:
        isl, osl = trace.isl[begin:end], trace.osl[begin:end]
        ttft_s, e2e_s = trace.ttft_s[begin:end], trace.e2e_s[begin:end]
        gaps = osl > 1
        span_s = float(trace.arrival_s[end - 1] - trace.arrival_s[begin])
        rate = max(end - begin - 1, 1) / max(span_s, 1e-9 * (end - begin))  # of requests at once no point could say
        points.append(
            Point(
                **deployment._asdict(),
                isl=float(isl.mean()),
                osl=float(osl.mean()),
                isl_cv=float(isl.std() / isl.mean()),
                osl_cv=float(osl.std() / osl.mean()),
                load_kind="trace",
                load_value=rate,
                requests_per_s=rate,
                requests=end - begin,
                ttft_mean_s=_known(np.mean, ttft_s),
                ttft_p50_s=_known(np.median, ttft_s),
                ttft_p95_s=_known(lambda values: np.percentile(values, 95), ttft_s),
                itl_mean_s=_known(np.mean, ((e2e_s - ttft_s)[gaps] / (osl[gaps] - 1))),
                e2e_mean_s=_known(np.mean, e2e_s),
            )
        )
    return tuple(points)


def _known(statistic: Callable[[Floats], Any], values: Floats) -> float | None:
    """The statistic of the values that are known; None if there are none."""
    finite = values[np.isfinite(values)]
    return float(statistic(finite)) if len(finite) else None


def is_stable(point: Point) -> bool:
    """True for an open loop that kept up with the rate it was offered, within 5 %.

    Requests that were still decoding when the measurement ended are no backlog: load x (OSL - 1) ITL, by Little's law.
    """
    if point.load_kind not in OPEN_LOOPS:
        return False
    decoding = point.load_value * (point.osl - 1) * (point.itl_mean_s or 0.0)
    cut_off_per_s = decoding / point.duration_s if point.duration_s else 0.0
    return point.requests_per_s + cut_off_per_s >= 0.95 * point.load_value


def busiest(points: Sequence[Point]) -> int:
    """The most requests in the server at once, over the points."""
    return max(1, *(round(in_flight(point)) for point in points))
