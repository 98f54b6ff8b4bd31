"""What was done at each measured load level, as runs to repeat: users or arrivals, lengths, number of requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from sizing.curves import Point
from sizing.simulator.replay import Run, closed_run
from sizing.workload import Arrivals, Seconds, Tokens

Floats = NDArray[np.float64]

OPEN_LOOPS = {"constant_rate": Arrivals("constant", 0.0), "poisson_rate": Arrivals("poisson", 1.0)}
"""Open loops whose arrivals the points table tells in full; of the others the gaps are not known."""
MOST_STREAM_REQUESTS = 60_000
"""Requests simulated for all open-loop points together, if that leaves at least `LEAST_STREAM_REQUESTS` for each."""
LEAST_STREAM_REQUESTS = 400


@dataclass(frozen=True, slots=True)
class Protocol:
    """How the points were measured, where it matters to means.

    `start`: users of a closed loop began one after the other (*ramp*), all at once (*together*), or it is not known:
    then the fit tells by the residuals. `counted`: requests of the *steady* state, or *all* from an empty server on,
    and of an open loop those complete within `duration_s`. `ttft_sigma`: relative standard error of a mean TTFT.
    """

    start: Literal["ramp", "together", "unknown"] = "unknown"
    counted: Literal["steady", "all"] = "steady"
    ttft_sigma: float = 0.04


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is simulated: `rounds` of equal requests in a closed loop, `blocks` of requests whose lengths vary (a
    block has each quantile once), ramps of different length (`phases` at few users, `least_phases` at many), `stream`
    requests of an open loop."""

    rounds: int = 4
    blocks: int = 3
    varied_rounds: int = 6
    phases: int = 8
    least_phases: int = 4
    stream: int = 4000


UNTOLD = Protocol()
RAMPED = Protocol("ramp")
FULL = Effort()
SKETCH = Effort(rounds=4, blocks=3, varied_rounds=3, phases=2, least_phases=1, stream=1000)
"""A first look: a third of the work; means with lengths that vary are off by about 1 %."""


def concurrency(point: Point) -> int:
    """Users of a closed-loop point."""
    return max(1, round(point.load_value))


def in_flight(point: Point) -> float:
    """Requests in the server at once: the users of a closed loop; of an open one what was counted, or Little's law."""
    if point.load_kind == "concurrency":
        return float(concurrency(point))
    if point.mean_in_flight:
        return max(point.mean_in_flight, 1e-3)
    request_s = point.e2e_mean_s or (point.ttft_mean_s or 0.0) + (point.osl - 1) * (point.itl_mean_s or 0.0)
    return max(point.requests_per_s * request_s, 1e-3)


def point_runs(
    points: Sequence[Point], protocol: Protocol = RAMPED, *, effort: Effort = FULL, seed: int = 0
) -> tuple[Run, ...]:
    """The runs of closed-loop and open-loop points, row i of the result for point i.

    Users start one after the other over about the time of one request, or together if the protocol says so. Equal
    lengths hold users in the phases they started in, and TTFT depends on those phases: so the means are taken over
    several ramps, 25 % shorter to 25 % longer. Lengths that vary are drawn evenly (see `even_lengths`), so that a level
    of a few hundred requests has the means of the point. Open loops start empty, warm up for two request times unless
    all requests count, and run as many requests as were measured, several times over.
    """
    streams = sum(point.load_kind in OPEN_LOOPS for point in points)
    share = max(LEAST_STREAM_REQUESTS, MOST_STREAM_REQUESTS // max(1, streams))
    runs: list[Run] = []
    for row, point in enumerate(points):
        # Each level has random numbers of its own: a point more or less does not change the others.
        rng = np.random.default_rng([seed, concurrency(point), round(point.isl), round(point.osl)])
        if point.load_kind in OPEN_LOOPS:
            runs += _stream_runs(row, point, protocol, min(effort.stream, share), rng)
        else:
            runs += _closed_runs(row, point, protocol, effort, rng)
    return tuple(runs)


def _closed_runs(row: int, point: Point, protocol: Protocol, effort: Effort, rng: np.random.Generator) -> list[Run]:
    users = concurrency(point)
    whole = protocol.counted == "all"
    isl, osl = _closed_lengths(point, effort, rng, whole)
    least = effort.least_phases if point.lengths.fixed else 1
    phases = 1 if protocol.start == "together" else max(least, min(effort.phases, 64 // users))
    spread = 0.0 if protocol.start == "together" else users / point.requests_per_s
    ramps_s = spread * (0.75 + (np.arange(phases) + 0.5) / (2 * phases))
    return [closed_run(row, users, isl, osl, float(ramp_s), whole=whole) for ramp_s in ramps_s]


def _closed_lengths(point: Point, effort: Effort, rng: np.random.Generator, whole: bool) -> tuple[Tokens, Tokens]:
    """Lengths of as many rounds as the effort allows; of as many as were measured where the start counts."""
    users = concurrency(point)
    asked = max(1, round((point.requests or 10 * users) / users)) if whole else 0
    if point.lengths.fixed:
        rounds = asked or max(effort.rounds, -(-2 * effort.rounds // users))
        return np.full(rounds * users, max(1, round(point.isl))), np.full(rounds * users, max(1, round(point.osl)))
    block = users * -(-32 // users)
    blocks = -(-asked * users // block) if whole else max(effort.blocks, -(-effort.varied_rounds * users // block))
    isl, osl = (
        even_lengths(mean, cv, block, blocks, rng)
        for mean, cv in ((point.isl, point.isl_cv), (point.osl, point.osl_cv))
    )
    if whole:
        return isl, osl
    # Whole blocks are measured: what the users send before and after comes beside them.
    ramp, drain = slice(0, 2 * users), slice(len(isl) - users, None)
    return np.concatenate([isl[ramp], isl, isl[drain]]), np.concatenate([osl[ramp], osl, osl[drain]])


def even_lengths(mean: float, cv: float, block: int, blocks: int, rng: np.random.Generator) -> Tokens:
    """Lognormal tokens, every block the means of as many equal shares of the distribution, shuffled: means without
    sampling noise."""
    sigma = np.sqrt(np.log1p(cv * cv))
    edges = ndtri(np.linspace(0, 1, block + 1))
    tokens = np.maximum(1, np.rint(mean * block * np.diff(ndtr(edges - sigma)))).astype(np.int64)
    return np.concatenate([rng.permutation(tokens) for _ in range(blocks)])


def _stream_runs(
    row: int, point: Point, protocol: Protocol, most: int, rng: np.random.Generator, blocks: int = 1
) -> list[Run]:
    """Runs at the rate that was reached (the luck of the arrivals counted in `requests_per_s` is repeated)."""
    whole = protocol.counted == "all"
    rate_per_s = point.load_value if whole or point.load_kind == "constant_rate" else point.requests_per_s
    sent = point.requests or 400
    if whole and point.duration_s:
        sent, most = max(1, round(rate_per_s * point.duration_s)), max(most, FULL.stream)
    measured = min(sent, most)
    warmup = 0 if whole else min(int(2 * in_flight(point)), measured)
    until_s = measured / rate_per_s if whole and point.duration_s else np.inf
    cuts = warmup + np.linspace(0, measured, blocks + 1).astype(int)
    windows = tuple((int(begin), int(end), row) for begin, end in pairwise(cuts))
    repeats = max(1, min(8, most // measured)) if _is_random(point) else 1
    runs = []
    for _ in range(repeats):
        total = warmup + measured
        gaps_s = OPEN_LOOPS[point.load_kind].gaps(total, 1.0, rng)
        gaps_s *= total / (gaps_s.sum() * rate_per_s)
        isl = even_lengths(point.isl, point.isl_cv, total, 1, rng)
        osl = even_lengths(point.osl, point.osl_cv, total, 1, rng)
        runs.append(Run(0, isl, osl, np.cumsum(gaps_s) - gaps_s[0], windows, until_s))
    return runs


def phase_runs(point: Point, effort: Effort = FULL) -> tuple[Run, ...]:
    """The runs of a closed-loop point with equal lengths, each ramp in a row of its own: they go round in the phases
    they started in for ever, and what one measurement saw is one of them."""
    ramps = replace(effort, rounds=4, least_phases=effort.phases)
    runs = _closed_runs(0, point, RAMPED, ramps, np.random.default_rng(0))
    return tuple(
        run._replace(windows=tuple((begin, end, number) for begin, end, _ in run.windows))
        for number, run in enumerate(runs)
    )


def _is_random(point: Point) -> bool:
    return point.load_kind != "constant_rate" or not point.lengths.fixed


def block_runs(point: Point, protocol: Protocol, blocks: int, seed: int = 0) -> tuple[Run, ...]:
    """The runs of an open-loop point with every block of its requests, and every run, in a row of its own."""
    rng = np.random.default_rng([seed, concurrency(point), round(point.isl), round(point.osl)])
    runs = _stream_runs(0, point, protocol, FULL.stream, rng, blocks)
    return tuple(
        run._replace(
            windows=tuple((begin, end, number * blocks + block) for block, (begin, end, _) in enumerate(run.windows))
        )
        for number, run in enumerate(runs)
    )


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Requests served by one replica, one by one: `arrival_s` ascending, `isl` and `osl` in tokens, and the TTFT and
    E2E that each saw, in seconds (NaN where not known). All arrays of shape (requests,)."""

    arrival_s: Seconds
    isl: Tokens
    osl: Tokens
    ttft_s: Seconds
    e2e_s: Seconds


def held_tokens(trace: Trace, answered: float) -> int:
    """The most tokens that requests between first token and last held at once, their prompts and the share `answered`
    of their answers; 0 if not told."""
    known = np.isfinite(trace.ttft_s) & np.isfinite(trace.e2e_s)
    tokens = np.rint(trace.isl + answered * trace.osl)[known]
    starts_s, ends_s = (trace.arrival_s + trace.ttft_s)[known], (trace.arrival_s + trace.e2e_s)[known]
    order = np.argsort(np.concatenate([starts_s, ends_s]), kind="stable")
    return int(np.cumsum(np.concatenate([tokens, -tokens])[order]).max(initial=0))


def trace_run(trace: Trace, chunks: int) -> Run:
    """The whole trace as one run, a row for each of `chunks` groups of consecutive requests."""
    cuts = np.linspace(0, len(trace.isl), chunks + 1).astype(int)
    windows = tuple((int(a), int(b), row) for row, (a, b) in enumerate(pairwise(cuts)))
    arrival_s = np.asarray(trace.arrival_s, np.float64)
    return Run(0, np.asarray(trace.isl), np.asarray(trace.osl), arrival_s - arrival_s[0], windows)
