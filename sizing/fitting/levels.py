"""What was measured at each load level, as runs to repeat and as figures that can be trusted so far."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from sizing import catalog
from sizing.engine import Batching, Replica
from sizing.engine_defaults import EngineDefaults, engine_defaults
from sizing.numbers import Floats
from sizing.points import KEPT_UP, UNTOLD, Deployment, Point, Protocol
from sizing.simulator.replay import GAPS, MEASURES, OPEN_ONLY, Replay, ReplayRun, closed_run
from sizing.simulator.sampling import evenly_cached
from sizing.workload import Arrivals, Seconds, Tokens

OPEN_LOOPS = {"constant_rate": Arrivals("constant", 0.0), "poisson_rate": Arrivals("poisson", 1.0)}
"""Open loops whose arrivals the points table defines fully; for the others the gaps are not known."""
MOST_STREAM_REQUESTS = 60_000
"""Requests simulated for all open-loop points together, if that leaves at least `LEAST_STREAM_REQUESTS` for each."""
LEAST_STREAM_REQUESTS = 400
MOST_CLOSED_REQUESTS, FEWEST_ROUNDS = 10_000, 3
"""The most requests of a closed loop that are simulated from its start, and the rounds simulated even for very many
users."""


def defaults_of(point: Point) -> EngineDefaults:
    """What the engine that was measured does unless it is told otherwise."""
    return engine_defaults(point.engine, point.engine_version, point.gpu, catalog.memory_bytes(point.gpu))


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is simulated. Of a closed loop: `rounds` of equal requests, or `blocks` of requests whose lengths vary
    (a block has each quantile once) and at least `varied_rounds`; ramps of different length, `phases` at few users and
    `least_phases` at many. Of an open loop: `stream` requests."""

    rounds: int = 4
    blocks: int = 3
    varied_rounds: int = 6
    phases: int = 8
    least_phases: int = 4
    stream: int = 4000


BURST_S = 1e-3
"""Seconds within which the users of a burst begin."""
RAMPED = Protocol("ramp")
FULL = Effort()
SKETCH = Effort(rounds=4, blocks=3, varied_rounds=3, phases=2, least_phases=1, stream=1000)
"""A first look with a third of the work; means are off by about 1 % where lengths vary."""


def concurrency(point: Point) -> int:
    """Users of a closed-loop point."""
    return max(1, round(point.load_value))


def in_flight(point: Point) -> float:
    """Requests in the server at once: the users of a closed loop; of an open one what was counted, or Little's law."""
    if point.closed:
        return float(concurrency(point))
    if point.mean_in_flight:
        return max(point.mean_in_flight, 1e-3)
    request_s = point.e2e_mean_s or (point.ttft_mean_s or 0.0) + (point.osl - 1) * (point.itl_mean_s or 0.0)
    return max(point.requests_per_s * request_s, 1e-3)


def point_runs(
    points: Sequence[Point], protocol: Protocol = RAMPED, *, effort: Effort = FULL, seed: int = 0
) -> tuple[ReplayRun, ...]:
    """The runs of closed-loop and open-loop points, row i of the result for point i.

    Users start one after the other over about the time of one request, or together if the protocol says so. Equal
    lengths hold users in the phases they started in, and TTFT depends on those phases: so the means are taken over
    several ramps, 25 % shorter to 25 % longer. Lengths that vary are drawn evenly (see `even_lengths`), so that a level
    of a few hundred requests has the means of the point. Open loops start empty, warm up for two request times unless
    all requests count, and run as many requests as were measured, several times over.
    """
    streams = sum(point.load_kind in OPEN_LOOPS for point in points)
    share = max(LEAST_STREAM_REQUESTS, MOST_STREAM_REQUESTS // max(1, streams))
    runs: list[ReplayRun] = []
    for row, point in enumerate(points):
        rng = _generator(point, seed)
        if point.load_kind in OPEN_LOOPS:
            runs += _stream_runs(row, point, protocol, min(effort.stream, share), rng)
        else:
            runs += _closed_runs(row, point, protocol, effort, rng)
    return tuple(runs)


def _generator(point: Point, seed: int = 0) -> np.random.Generator:
    """Random numbers of the level's own: a point more or less does not change the others."""
    return np.random.default_rng([seed, concurrency(point), round(point.isl), round(point.osl)])


def _closed_runs(
    row: int, point: Point, protocol: Protocol, effort: Effort, rng: np.random.Generator
) -> list[ReplayRun]:
    users = concurrency(point)
    whole = protocol.counted == "all"
    isl, osl = _closed_lengths(point, effort, rng, whole)
    least = effort.least_phases if point.lengths.fixed else 1
    phases = 1 if protocol.at_once or users == 1 else max(least, min(effort.phases, 64 // users))
    spread = {"together": 0.0, "burst": BURST_S}.get(protocol.start, users / point.requests_per_s)
    ramps_s = spread * (0.75 + (np.arange(phases) + 0.5) / (2 * phases))
    cached = evenly_cached(point.prefix, isl, rng)
    runs = [closed_run(row, users, isl, osl, float(ramp_s), whole=whole) for ramp_s in ramps_s]
    return [run._replace(cached=cached) for run in runs]


def _closed_lengths(point: Point, effort: Effort, rng: np.random.Generator, whole: bool) -> tuple[Tokens, Tokens]:
    """Lengths of as many rounds as the effort allows; of as many as were measured where the start counts."""
    users = concurrency(point)
    asked = max(1, round(request_count(point) / users)) if whole else 0
    asked = min(asked, max(FEWEST_ROUNDS, MOST_CLOSED_REQUESTS // users))
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
) -> list[ReplayRun]:
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
        cached = evenly_cached(point.prefix, isl, rng)
        runs.append(ReplayRun(0, isl, osl, np.cumsum(gaps_s) - gaps_s[0], windows, until_s, cached))
    return runs


def phase_runs(point: Point) -> tuple[ReplayRun, ...]:
    """The runs of a closed-loop point with equal lengths, each ramp in a row of its own: users keep the phases in which
    they started, and a measurement sees one ramp."""
    runs = _closed_runs(0, point, RAMPED, replace(FULL, least_phases=FULL.phases), np.random.default_rng(0))
    return tuple(
        run._replace(windows=tuple((begin, end, number) for begin, end, _ in run.windows))
        for number, run in enumerate(runs)
    )


def _is_random(point: Point) -> bool:
    return point.load_kind != "constant_rate" or not point.lengths.fixed


def block_runs(point: Point, protocol: Protocol, blocks: int) -> tuple[ReplayRun, ...]:
    """The runs of an open-loop point with every block of its requests, and every run, in a row of its own."""
    runs = _stream_runs(0, point, protocol, FULL.stream, _generator(point), blocks)
    return tuple(
        run._replace(
            windows=tuple((begin, end, number * blocks + block) for block, (begin, end, _) in enumerate(run.windows))
        )
        for number, run in enumerate(runs)
    )


@dataclass(frozen=True, slots=True, eq=False)
class ServedTrace:
    """Requests served by one replica, one by one: `arrival_s` ascending, `isl` and `osl` in tokens, and the TTFT and
    E2E that each saw, in seconds (NaN where not known). All arrays of shape (requests,).

    Requests of which neither is known still load the server, and later ones hold up earlier ones. So a trace that is
    cut must keep the rest, with NaN (see `known_until`).
    """

    arrival_s: Seconds
    isl: Tokens
    osl: Tokens
    ttft_s: Seconds
    e2e_s: Seconds

    @property
    def judged(self) -> NDArray[np.bool_]:
        """Whether what a request saw is known, shape (requests,)."""
        return np.asarray(np.isfinite(self.ttft_s) | np.isfinite(self.e2e_s))

    def known_until(self, requests: int) -> ServedTrace:
        """The same trace, with known latencies of the first `requests` only."""
        late = np.arange(len(self.isl)) >= requests
        return replace(self, ttft_s=np.where(late, np.nan, self.ttft_s), e2e_s=np.where(late, np.nan, self.e2e_s))


def held_tokens(trace: ServedTrace, answered: float) -> int:
    """The most tokens that requests between first token and last held at once, their prompts and the share `answered`
    of their answers; 0 if not told."""
    known = np.isfinite(trace.ttft_s) & np.isfinite(trace.e2e_s)
    tokens = np.rint(trace.isl + answered * trace.osl)[known]
    starts_s, ends_s = (trace.arrival_s + trace.ttft_s)[known], (trace.arrival_s + trace.e2e_s)[known]
    order = np.argsort(np.concatenate([starts_s, ends_s]), kind="stable")
    return int(np.cumsum(np.concatenate([tokens, -tokens])[order]).max(initial=0))


def trace_run(trace: ServedTrace, chunks: int) -> ReplayRun:
    """The whole trace as one run, a row for each of `chunks` groups of consecutive requests with known latencies."""
    judged = np.flatnonzero(trace.judged)
    cuts = np.linspace(0, len(judged), chunks + 1).astype(int)
    windows = tuple((int(judged[a]), int(judged[b - 1]) + 1, row) for row, (a, b) in enumerate(pairwise(cuts)))
    arrival_s = np.asarray(trace.arrival_s, np.float64)
    start_s = arrival_s - arrival_s[0]
    return ReplayRun(0, np.asarray(trace.isl), np.asarray(trace.osl), start_s, windows, judged=trace.judged)


# --- What was measured, level by level, and how far each figure can be trusted before any law is known

RATE_SIGMA, ITL_SIGMA = 0.02, 0.02
"""Relative errors granted to a measured requests/s and mean ITL (or E2E), beside those of the sample."""
AS_USUAL = 4.0
"""Levels measured twice that tell as much about the errors of a server's ITL as `ITL_SIGMA` does."""
GAP_SIGMAS = 0.02, 0.04
"""The same for p50 and p95 of the gaps between tokens of a closed loop."""
GAP_NEAR = (50, 3), (95, 1.5)
"""Percentiles of the gaps that are used, and by how many ranks they may be off: where half of the gaps are beside a
prompt, a few more of them move the median far, though the law may be right."""
QUEUED_TTFT_SIGMA = 0.5
"""The same for TTFT with more users than slots: it is then a small difference of large numbers."""
SKEWED = 1.5
"""Mean TTFT over its median from which it may include the start of the run, as a rule one request in ten of a user."""
QUEUED = 0.3
"""Share of E2E from which a mean TTFT is mostly waiting: it then describes the queue, as E2E does."""
CLOSED_SIGMA, CLOSED_TTFT_SIGMA = 0.025, 0.10
"""Relative scatter of requests/s and mean ITL, and of mean TTFT, about a smooth curve over the users in published
closed loops: TTFT depends on the start of each run as much as on the engine."""
SCATTER_BLOCKS = 8
"""Parts of an open loop that show how much its means scatter by chance."""


@dataclass(frozen=True, eq=False)
class Observed:
    """Levels of one deployment: `points`, a row each; of a `trace` the rows are groups of consecutive requests.

    A search asks for runs and measured figures a hundred times: they are made once.
    """

    points: tuple[Point, ...]
    trace: ServedTrace | None = None
    protocol: Protocol = UNTOLD
    rates: bool = True
    _runs: dict[Effort, tuple[ReplayRun, ...]] = field(default_factory=dict, init=False, repr=False)
    _replays: dict[tuple[Effort, int, bool], Replay] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def defaults(self) -> EngineDefaults:
        """What the engine does unless it is told otherwise."""
        return defaults_of(self.points[0])

    def runs(self, effort: Effort = FULL) -> tuple[ReplayRun, ...]:
        """What to simulate; row i of the result is point i."""
        if effort not in self._runs:
            self._runs[effort] = (
                point_runs(self.points, self.protocol, effort=effort)
                if self.trace is None
                else (trace_run(self.trace, len(self.points)),)
            )
        return self._runs[effort]

    def replay(self, effort: Effort, engine: Replica, *, token_gaps: bool) -> Replay:
        """The runs ready to be simulated on engines with as many slots; rules that are compared share it."""
        key = effort, engine.batching.max_batch_size, token_gaps
        if key not in self._replays:
            self._replays[key] = Replay(self.runs(effort), engine, token_gaps=token_gaps)
        return self._replays[key]

    @cached_property
    def measured(self) -> Floats:
        """What the simulation is to reproduce, shape (points, 8), columns `MEASURES`; NaN: not told, or of no use."""
        rows = [[getattr(point, name) or np.nan for name in MEASURES] for point in self.points]
        measured = np.array(rows, np.float64)
        closed = np.array([point.closed for point in self.points])
        measured[closed, OPEN_ONLY] = np.nan
        measured[~closed, 0] = np.nan
        measured[~closed, -len(GAPS) :] = np.nan
        measured[[round(point.osl) <= 1 for point in self.points], 2] = np.nan
        # Where the start may be in TTFT it is in requests/s too, by Little's law, which then says nothing more.
        steady = self.rates and self.protocol.counted == "steady" and not self._start_untold
        if not steady or counts_otherwise(self.points):
            for row, point in enumerate(self.points):
                if point.closed and point.ttft_mean_s and point.itl_mean_s:
                    measured[row, 0] = little_per_s(point) if steady else np.nan
        return measured

    def errors(self, replica: Replica, replay: Replay | None) -> Floats:
        """Relative standard errors of `measured`; the luck of open loops, and of the phases in which users of equal
        requests go round, from simulating `replica`. `replay`: of all runs, with token gaps; None: those are not
        compared."""
        errors = np.ones((len(self.points), len(MEASURES)))
        errors[:, -len(GAPS) :] = np.hypot(GAP_SIGMAS, _gap_scatter(replica, replay) if replay else 0.0)
        scatter = self._trace_scatter(replica) if self.trace is not None else None
        for row, point in enumerate(self.points):
            if point.closed:
                luck = phase_scatter(point, replica) if self._goes_round(point) else np.zeros(3)
                errors[row, :3] = np.hypot(granted(point, replica.batching, self.closed_ttft_sigma), luck)
                if self._start_untold and concurrency(point) > 1:
                    errors[row, 1] = np.hypot(errors[row, 1], start_scatter(point, replica))
            else:
                luck = scatter if scatter is not None else stream_scatter(point, self.protocol, replica)
                errors[row, : -len(GAPS)] = np.hypot(self._open_sigmas(point), luck[: -len(GAPS)])
        return np.asarray(errors * self.shares)

    @property
    def closed_ttft_sigma(self) -> float:
        """Relative standard error of a closed loop's mean TTFT."""
        own = self.protocol.ttft_sigma
        return own if holds_no_start(self.points, self.protocol) else max(own, CLOSED_TTFT_SIGMA)

    @cached_property
    def _start_untold(self) -> bool:
        """True if nothing says how users began: finding out takes two levels."""
        return self.protocol.start == "unknown" and of_one_level(self.points)

    @cached_property
    def shares(self) -> Floats:
        """Factors on the errors of figures of a point that say the same, shape (points, 8)."""
        return np.array(
            [
                np.ones(len(MEASURES)) if point.closed else _shared(row)
                for point, row in zip(self.points, self.measured, strict=True)
            ]
        )

    def _goes_round(self, point: Point) -> bool:
        return point.lengths.fixed and concurrency(point) > 1 and not self.protocol.at_once

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


def is_near_median(point: Point) -> bool:
    return bool(point.ttft_mean_s and point.ttft_p50_s and point.ttft_mean_s < SKEWED * point.ttft_p50_s)


def _gap_scatter(replica: Replica, replay: Replay) -> Floats:
    """Relative errors of the percentiles of gaps where the gaps around them differ: with and without a prompt."""
    percentiles = [percentile + side for percentile, near in GAP_NEAR for side in (-near, near)]
    quantiles_s = replay.gap_quantiles_s(replica, percentiles)
    return np.asarray(np.nan_to_num(np.log(quantiles_s[:, 1::2] / quantiles_s[:, ::2]) / 2))


def _shared(measured: Floats) -> Floats:
    """Figures that say nearly the same share their weight: mean, median and p95 of TTFT; ITL and E2E."""
    known = np.isfinite(measured)
    share = np.ones(len(MEASURES))
    for group in ([1, 4, 5], [2, 3]):
        share[group] = math.sqrt(max(1, int(known[group].sum())))
    return share


def granted(point: Point, batching: Batching, ttft_sigma: float = UNTOLD.ttft_sigma) -> tuple[float, float, float]:
    """Relative errors of the three means of a closed-loop point: the instrument's, and the luck of the lengths."""
    ttft = QUEUED_TTFT_SIGMA if concurrency(point) > batching.max_batch_size else ttft_sigma
    of_rate, of_ttft, _ = luck_of_lengths(point)
    return math.hypot(RATE_SIGMA, of_rate), math.hypot(ttft, of_ttft), ITL_SIGMA


def run_to_run(points: Sequence[Point]) -> float:
    """Relative standard deviation of mean ITL from one measurement of a level to the next: that of the closed loops
    measured more than once, together with `ITL_SIGMA`, which it is where none was.

    Servers that share their processors, or their power, are faster one minute than the next, all times alike.
    """
    again: dict[tuple[float, ...], list[float]] = {}
    for point in points:
        if point.closed and point.itl_mean_s:
            level = (point.isl, point.osl, point.isl_cv, point.osl_cv, point.computed_tokens, point.load_value)
            again.setdefault(level, []).append(math.log(point.itl_mean_s))
    squares = sum(len(logs) * float(np.var(logs)) for logs in again.values())
    freedom = sum(len(logs) - 1 for logs in again.values())
    return math.sqrt((AS_USUAL * ITL_SIGMA**2 + squares) / (AS_USUAL + freedom))


def request_count(point: Point) -> int:
    """Requests that a closed-loop point counts; ten a user where it does not tell."""
    return point.requests or 10 * concurrency(point)


def luck_of_lengths(point: Point) -> tuple[float, float, float]:
    """Relative errors of requests/s, mean TTFT and ITL of a closed-loop point by the luck of the lengths sent."""
    root = math.sqrt(request_count(point))
    return point.osl_cv / root, point.isl_cv / root, 0.0


# --- Requests/s as tools count them: over a window that may hold ramp and drain, so not always Little's law

COUNTED_APART = math.log(1.5)
MOST_DISTRUSTED = 0.2
"""Largest share of points that may stand out; if more do, something else is wrong."""
COUNTED_OTHERWISE = 0.04
"""Root mean square of `counting_log`, one level left out, from which a tool does not count in a steady window."""


def little_per_s(point: Point) -> float:
    """Requests/s of a closed loop by Little's law: users over mean E2E, from mean TTFT and ITL."""
    return concurrency(point) / (ttft_s(point) + (point.osl - 1) * itl_s(point))


def counting_log(point: Point) -> float:
    """ln of the requests/s that the tool gave over those of Little's law; 0 where TTFT or ITL is not known."""
    known = point.closed and point.ttft_mean_s and point.itl_mean_s
    return math.log(point.requests_per_s / little_per_s(point)) if known else 0.0


def counts_otherwise(points: Sequence[Point]) -> bool:
    """True where the tool's requests/s are not those of a steady window; ITL and TTFT are then what to trust.

    Of several levels the one that is farthest off does not count: it may be a fault of the measurement.
    """
    logs = sorted(abs(counting_log(point)) for point in points if point.closed)
    logs = logs[:-1] or logs
    return bool(logs) and float(np.sqrt(np.mean(np.square(logs)))) > COUNTED_OTHERWISE


def counted_apart(points: Sequence[Point]) -> dict[int, float]:
    """Rows of levels that give half more requests/s, or less by as much, than Little's law and the other levels agree
    on, with the ln of it: a wrong figure, whatever the tool counts. None where many do."""
    logs = np.array([counting_log(point) for point in points])
    apart = logs - np.median(logs)
    rows = np.flatnonzero(np.abs(apart) > COUNTED_APART)
    return {int(row): float(apart[row]) for row in rows} if len(rows) <= MOST_DISTRUSTED * len(points) else {}


def itl_s(point: Point) -> float:
    """Mean ITL of a point, else its median; where none was measured, by Little's law, all of E2E taken for decoding."""
    return point.itl_mean_s or point.itl_p50_s or in_flight(point) / point.requests_per_s / point.osl


def ttft_s(point: Point) -> float:
    """Mean TTFT of a point, else its median; where none was measured, what Little's law leaves beside the ITL, at least
    one step; without an ITL either, a step and the arithmetic of the prompt on common GPUs."""
    if not knows_ttft(point):
        return itl_s(point) * (1 + point.computed_tokens / RIDGE_TOKENS)
    left_s = in_flight(point) / point.requests_per_s - (point.osl - 1) * itl_s(point)
    return point.ttft_mean_s or point.ttft_p50_s or max(left_s, itl_s(point))


RIDGE_TOKENS = 250
"""Tokens whose arithmetic takes as long as reading the weights: FLOP/s over bytes/s in bf16, 206 by the data sheet of
an H200, 295 by that of an H100."""


def knows_ttft(point: Point) -> bool:
    """True where a TTFT was measured, or E2E and ITL tell what is left for it."""
    return bool(point.ttft_mean_s or point.ttft_p50_s or point.itl_mean_s or point.itl_p50_s)


def decoding(point: Point) -> float:
    """Sequences that decode at once, by Little's law; 1 at least."""
    return max(1.0, min(in_flight(point), point.requests_per_s * (point.osl - 1) * itl_s(point)))


def phase_scatter(point: Point, replica: Replica) -> Floats:
    """Relative errors of requests/s, TTFT and ITL of a closed loop with equal lengths by the phases that the users
    happened to start in, shape (3,); none of a single user."""
    if concurrency(point) == 1:
        return np.zeros(3)
    means = Replay(phase_runs(point), replica).means(replica)[:, :3]
    scatter: Floats = np.log(np.where(means > 0, means, 1.0)).std(axis=0, ddof=1)
    return scatter


def start_scatter(point: Point, replica: Replica) -> float:
    """Relative error of the mean TTFT of a closed loop by how the users began, where nobody said: what a burst at the
    start, all its requests counted, makes of it."""
    ramp, burst = (
        Replay(point_runs([point], protocol), replica).means(replica)[0, 1]
        for protocol in (RAMPED, Protocol("burst", "all"))
    )
    return abs(math.log(burst / ramp))


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


TRACE_GROUPS = 12


def trace_points(trace: ServedTrace, deployment: Deployment) -> tuple[Point, ...]:
    """One point for each group of consecutive requests, with the means and TTFT percentiles of the group."""
    points = []
    for begin, end, _ in trace_run(trace, TRACE_GROUPS).windows:
        isl, osl = trace.isl[begin:end], trace.osl[begin:end]
        ttft_s, e2e_s = trace.ttft_s[begin:end], trace.e2e_s[begin:end]
        gaps = osl > 1
        span_s = float(trace.arrival_s[end - 1] - trace.arrival_s[begin])
        rate = max(end - begin - 1, 1) / max(span_s, 1e-9 * (end - begin))  # of requests at once no point could say
        point = Point(
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
        if in_flight(point) > len(trace.isl):  # a burst, too short for Little's law
            point = replace(point, mean_in_flight=len(trace.isl))
        points.append(point)
    return tuple(points)


def _known(statistic: Callable[[Floats], Any], values: Floats) -> float | None:
    """The statistic of the values that are known; None if there are none."""
    finite = values[np.isfinite(values)]
    return float(statistic(finite)) if len(finite) else None


def of_one_level(points: Sequence[Point]) -> bool:
    """True if all have the same number of requests in the server at once, as repeats have: they do not show how the
    law changes with the load."""
    return len(set(map(in_flight, points))) == 1 or distinct(points) == 1


def distinct(points: Sequence[Point]) -> int:
    """How many levels these are: a level that was measured twice is one."""
    return len({(point.lengths, point.load_kind, point.load_value) for point in points})


def is_stable(point: Point) -> bool:
    """True for an open loop that kept up with the rate it was offered, see `KEPT_UP`.

    Requests that were still decoding when the measurement ended are no backlog: load x (OSL - 1) ITL, by Little's law.
    """
    if point.load_kind not in OPEN_LOOPS:
        return False
    decoding = point.load_value * (point.osl - 1) * (point.itl_mean_s or 0.0)
    cut_off_per_s = decoding / point.duration_s if point.duration_s else 0.0
    return point.requests_per_s + cut_off_per_s >= KEPT_UP * point.load_value


def busiest(points: Sequence[Point]) -> int:
    """The most requests in the server at once, over the points."""
    return max(1, *(round(in_flight(point)) for point in points))


def holds_no_start(points: Sequence[Point], protocol: Protocol) -> bool:
    """True where the mean TTFT of the closed loops is that of a steady window: the start of their users was told, or
    every level was judged steady or has its median near its mean. Otherwise it may include the start of the run."""
    told = protocol.start != "unknown" and not protocol.inferred
    closed = [point for point in points if point.closed]
    return told or all(point.verdict == "steady" or is_near_median(point) for point in closed)
