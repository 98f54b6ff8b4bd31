"""What a fit gives: a law, its uncertainty, its errors, and what it could not determine."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from sizing.engine import COEFFICIENTS, KNEE, Batching, Bend, Replica, StepLaw
from sizing.fitting.bends import BentLaw, bent_further, nodes_of, open_bends
from sizing.fitting.carried import (
    CHANGES,
    as_little_counts,
    carried_over,
    closed_sigmas,
    levels_at,
    line_logs,
    luck_ratio,
    share_beyond_luck,
    surprises,
    ttft_outside,
)
from sizing.fitting.levels import (
    ITL_SIGMA,
    concurrency,
    counts_otherwise,
    luck_of_lengths,
    of_one_level,
    point_runs,
    run_to_run,
)
from sizing.fitting.parameters import EXACT, LawError, moved
from sizing.numbers import Floats, percent
from sizing.plans import Basis
from sizing.points import UNTOLD, Deployment, Point, Protocol
from sizing.prediction import Caution
from sizing.simulator.replay import MEASURES, Replay
from sizing.stats import Z90
from sizing.workload import Lengths

# --- Where a law is bound by memory and where by arithmetic, and what an iteration's time is spent on


def knee_tokens(law: StepLaw) -> float:
    """Tokens in an iteration at which reading the weights takes as long as the arithmetic: weights_s / token_s.

    The ridge of the roofline (Williams, Waterman, Patterson 2009). Infinite for a law without arithmetic.

    >>> law = StepLaw(weights_s=4.8e-3, overhead_s=1e-3, token_s=20e-6, sequence_s=10e-6, kv_token_s=49e-9)
    >>> round(knee_tokens(law))
    240
    """
    return law.weights_s / law.token_s if law.token_s > 0 else float("inf")


def is_compute_bound(law: StepLaw, tokens: float) -> bool:
    """True when the matrix products of `tokens` tokens (decodes and prompts of an iteration) wait for arithmetic."""
    return tokens > knee_tokens(law)


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of an iteration's time, adding up to 1.

    `weights` and `arithmetic` divide the matrix products: where the two limits meet, by their k-th powers, as the law
    joins them. `kv`: reading the cache. `sequences`: what each sequence costs beside. `prefill`: attention among the
    prompt's tokens and the fixed cost of an iteration with a prompt.
    """

    overhead: float
    weights: float
    arithmetic: float
    kv: float
    sequences: float
    prefill: float

    @property
    def bound(self) -> str:
        """What takes the most time: a field's name."""
        return max(self.__dataclass_fields__, key=lambda name: float(getattr(self, name)))


def shares(law: StepLaw, batch: float, context: float, prompt_tokens: float = 0.0) -> Shares:
    """What an iteration spends its time on: `batch` sequences with `context` cached tokens each, and a new prompt of
    `prompt_tokens` (0: decodes only). Either `batch` or `prompt_tokens` must be above 0.

    >>> law = StepLaw(weights_s=4.8e-3, overhead_s=1e-3, token_s=20e-6, sequence_s=10e-6, kv_token_s=49e-9)
    >>> shares(law, batch=1, context=1000).bound, shares(law, batch=256, context=4000).bound
    ('weights', 'kv')
    """
    tokens = batch + prompt_tokens
    weights_s, arithmetic_s = float(law.weights_of_s(tokens)), law.token_s * tokens
    sharpness = 1.0 if law.has_experts else KNEE
    powers = weights_s**sharpness + arithmetic_s**sharpness
    products_s = powers ** (1 / sharpness)
    by_weights, by_arithmetic = (
        products_s * part_s**sharpness / powers if powers > 0 else 0.0 for part_s in (weights_s, arithmetic_s)
    )
    prefill_s = law.attention_s * prompt_tokens**2 / 2 + law.prefill_s if prompt_tokens > 0 else 0.0
    parts = Shares(
        law.overhead_s,
        by_weights,
        by_arithmetic,
        law.kv_token_s * batch * context,
        law.sequence_s * batch,
        prefill_s,
    )
    total_s = sum(astuple(parts))
    return Shares(*(part / total_s for part in astuple(parts)))


class Regime(NamedTuple):
    """Where an engine works at a batch of `batch` sequences of `context` cached tokens each.

    `decode`: shares of an iteration that decodes them; `prompt`: of one that takes `prompt_tokens` of a prompt as well.
    `decode_compute_bound`, `prompt_compute_bound`: whether the matrix products of these two wait for arithmetic.
    """

    batch: int
    context: float
    prompt_tokens: float
    knee_tokens: float
    decode: Shares
    prompt: Shares
    decode_compute_bound: bool
    prompt_compute_bound: bool


def regime(law: StepLaw, batch: int, isl: float, osl: float, token_budget: int) -> Regime:
    """The regime at a batch (1 or more) of requests with these mean lengths, halfway through their answers.

    A prompt is taken whole if an iteration has room for it beside the decodes (`token_budget` tokens in all).
    """
    context = isl + osl / 2
    prompt_tokens = max(1.0, min(isl, token_budget - batch))
    return Regime(
        batch,
        context,
        prompt_tokens,
        knee_tokens(law),
        shares(law, batch, context),
        shares(law, batch, context, prompt_tokens),
        is_compute_bound(law, batch),
        is_compute_bound(law, batch + prompt_tokens),
    )


class PointError(NamedTuple):
    """One point as the law gives it. Errors are (predicted - measured) / measured; NaN where nothing was measured.

    E2E and percentiles of TTFT are of open loops only, of the gaps between tokens of closed ones.
    """

    point: Point
    requests_per_s: float
    ttft_mean_s: float
    itl_mean_s: float
    requests_per_s_error: float
    ttft_error: float
    itl_error: float
    e2e_error: float = float("nan")
    ttft_p50_error: float = float("nan")
    ttft_p95_error: float = float("nan")
    gap_p50_error: float = float("nan")
    gap_p95_error: float = float("nan")


class Distrust(NamedTuple):
    """A point that stands apart from what the others agree on: its worst figure is `off` (predicted / measured - 1),
    `sigmas` standard errors."""

    point: Point
    figure: str
    off: float
    sigmas: float

    @property
    def caution(self) -> Caution:
        """What a reader of the fit must know of this point."""
        where = {name: getattr(self.point, name) for name in ("isl", "osl", "load_kind", "load_value")}
        return Caution("distrusted_point", where | {"figure": self.figure, "off": self.off, "sigmas": self.sigmas})


class Unknown(NamedTuple):
    """A coefficient that the points do not determine: `ratio` is its standard error after the fit over that before."""

    name: str
    ratio: float
    measure: str

    def __str__(self) -> str:
        return (
            f"{self.name}: points barely constrain it ({percent(self.ratio)} of prior uncertainty left); {self.measure}"
        )


Variants = tuple[tuple[Replica, Replica], ...]
"""Pairs of engines, the faster one first."""
UNSEEN, BATCHES_SEEN, TINY = 0.05, 15, 1e-30
"""Share of the variance of a time that the variants of an answer may leave out, batches at which times are compared,
and a variance that counts as zero."""
OPENS_UP_TO = 4
"""The open part of a bend grows up to this many times the most sequences measured."""
FIFTHS = np.array([-1.28, -0.52, 0.0, 0.52, 1.28])
"""Medians of the five fifths of a standard normal variable."""
EVEN = 0.2
"""Times change evenly along a pair if its ends together are off by at most this share of their distance. Along a hardly
known coefficient the slower end is far off and the faster is not, so a fraction of the pair is not that fraction of
the change."""
FARTHEST = 3.0
"""Distance in ln(ISL) and ln(OSL) together from which a law is trusted no less: a factor of 20."""


class CoveredRange(NamedTuple):
    """What the points cover: the most requests at once, the mean lengths from lowest to highest, in tokens, and the
    fewest requests at once."""

    concurrency: int
    isl: tuple[float, float]
    osl: tuple[float, float]
    fewest: float = 1.0

    def covers(self, lengths: Lengths, in_flight: float | None = None) -> bool:
        """True for lengths within twice the measured range, and for `in_flight` requests at once, where they are told,
        from half of the fewest measured to 1.1 x the most."""
        return (
            (in_flight is None or self.fewest / 2 <= max(1.0, in_flight) <= 1.1 * self.concurrency)
            and self.isl[0] / 2 <= lengths.isl <= 2 * self.isl[1]
            and self.osl[0] / 2 <= lengths.osl <= 2 * self.osl[1]
        )


def _sooner_and_later(law: StepLaw, isl: float, error: float) -> tuple[StepLaw, StepLaw]:
    """Two laws with the TTFT of a prompt alone `error` apart to either side, a share of it: outside the iterations.

    What prompts cost in the iterations shows in requests/s and ITL too, and `error` is what only TTFT shows. Where
    `request_s` is less than that, the two are as far apart, from zero on.
    """
    away_s = error * float(law.prefill_alone_s(isl))
    least_s = max(0.0, law.request_s - away_s)
    return law.with_values(request_s=least_s), law.with_values(request_s=least_s + 2 * away_s)


def _between(common: StepLaw, bent: StepLaw, share: float) -> StepLaw:
    """The law between that of all lengths (`share` 0) and the bent one of some (1): in logarithms."""
    seconds = np.exp((1 - share) * np.log(common.seconds) + share * np.log(bent.seconds))
    bend = bent.bend
    faded = Bend(bend.sequences, tuple(share * g for g in bend.decode), tuple(share * g for g in bend.prompt))
    law = bent.with_values(**dict(zip(COEFFICIENTS, map(float, seconds), strict=True)))
    return replace(law, bend=faded, send_s=common.send_s ** (1 - share) * bent.send_s**share)


def _covariance_between(common: Floats, bent: Floats, share: float) -> Floats:
    """Of the numbers of the law between: those of the bend, which only the bent law has, come last and fade."""
    fades = np.ones(len(bent))
    fades[len(common) :] = share
    covariance = share * bent * np.outer(fades, fades)
    covariance[: len(common), : len(common)] += (1 - share) * common
    return covariance


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """A law for one deployment and what is known of its errors.

    `names`: the eight coefficients; `extra`: what else was fitted ("unread", "kv_tokens", "send_s"). `covariance`,
    shape (names + extra) squared: of the coefficients, as shares of their values, of the logarithms of KV cache and
    `send_s` and the logit of `unread`; widened where the residuals exceed the measurement errors. `chi2_per_point`:
    mean squared residual over the assumed measurement error; 1 is perfect, above 2 the law or the policy is wrong.
    `leave_one_out`: median relative error of requests/s and ITL at points that the fit had not seen (one Gauss-Newton
    step from the full fit; NaN: too few points). `distrusted`: points that were given little weight. `left`, shape
    (levels, 3): what each closed-loop level shows beyond the engine (see `left_over`); NaN for distrusted ones and
    other loads. `unknown`: coefficients that the points do not determine. `lockstep`: the users had started at once
    with equal lengths and stayed in lockstep, which barely separates request and prefill overheads. `protocol`: how the
    points were measured, as told or as found. `sigmas`: standard errors of the logarithms one by one, from the slopes
    alone; wider than those of `covariance`, which also holds what the cost says further away and serves the bands of
    answers. `law_error`: how far the law was found to be off, beyond the errors of the measurement. `bent`: the laws
    that bend with the batch, one for each pair of lengths measured, where the law alone is off; `law` is the one of all
    lengths. `open_sizes`: see `BentLaw`. `elsewhere`: error of all times for each unit of distance in ln(ISL) and
    ln(OSL) from the lengths measured.
    """

    deployment: Deployment
    law: StepLaw
    batching: Batching
    names: tuple[str, ...]
    covariance: Floats
    errors: tuple[PointError, ...]
    leave_one_out: float
    chi2_per_point: float
    calibrated: CoveredRange
    warnings: tuple[Caution, ...]
    left: Floats
    extra: tuple[str, ...] = ()
    distrusted: tuple[Distrust, ...] = ()
    unknown: tuple[Unknown, ...] = ()
    lockstep: bool = False
    protocol: Protocol = UNTOLD
    sigmas: tuple[float, ...] = ()
    law_error: LawError = EXACT
    bent: tuple[BentLaw, ...] = ()
    open_sizes: tuple[float, float] = (0.0, 0.0)
    elsewhere: float = 0.0

    @property
    def replica(self) -> Replica:
        """The fitted engine: at the lengths measured, if that was one pair, else the law of all of them."""
        return self._measured.engine

    @property
    def engine(self) -> Replica:
        """The engine with `law`, whatever the lengths."""
        return Replica(self.law, self.batching)

    @property
    def _measured(self) -> Fit:
        return self.at(self.bent[0].isl, self.bent[0].osl) if len(self.bent) == 1 else self

    def at(self, isl: float, osl: float) -> Fit:
        """The fit for requests of these mean lengths: with its bend where they were measured, the law of all lengths
        far from there, one that moves from the first to the second between. Its `bent` is empty."""
        near = max(self.bent, key=lambda one: one.nearness(isl, osl), default=None)
        share = near.nearness(isl, osl) if near else 0.0
        distance = min(abs(math.log(isl / p.isl)) + abs(math.log(osl / p.osl)) for p in self._levels)
        far = self.elsewhere * min(distance, FARTHEST)
        if near is None or share == 0:
            return replace(self, law_error=self.law_error.widened(far), elsewhere=0.0, bent=())
        return replace(
            self,
            law=_between(self.law, near.law, share),
            batching=near.batching,
            covariance=_covariance_between(self.covariance, near.covariance, share),
            extra=near.names[len(COEFFICIENTS) :],
            law_error=self.law_error.between(near.law_error, share).widened(far),
            elsewhere=0.0,
            open_sizes=(share * near.open_sizes[0], share * near.open_sizes[1]),
            bent=(),
        )

    def interval(self, name: str) -> tuple[float, float]:
        """Ends, in seconds, of the 90 % interval of a coefficient."""
        place = self.names.index(name)
        factor = float(np.exp(Z90 * self.sigmas[place]))
        value = float(getattr(self.law, name))
        return value / factor, value * factor

    @property
    def variants(self) -> Variants:
        """Engines one standard error away, faster and slower: along each eigenvector of the covariance, between the
        nodes of a bend, where nothing holds it, and by what the law was found to be off.

        For any function f of the engine, the sum over the pairs of ((f(slower) - f(faster)) / 2)^2 is its variance.
        """
        fitted = self._measured
        return tuple(map(fitted._ordered, fitted._pairs))

    def variants_seen(self, lengths: Lengths, batches: Floats | None = None) -> Variants:
        """The same for answers to requests of these lengths, in as few pairs as they need.

        `batches`: sequences in the engine that requests meet, shape (means, near), those of a row in turn; by default
        such as arrivals at random make of any load.

        The eigenvectors along which times change evenly are turned into principal components of the times that such
        requests see, by the law alone (any orthonormal directions will do). Then pairs that together make up less than
        `UNSEEN` of the variance of every time are left out.
        """
        fitted = self._measured
        shifts, beside = fitted._shifts, fitted._beside(lengths.isl)
        seen = partial(fitted._times, lengths=lengths, batches=fitted._at_random if batches is None else batches)
        ends = np.array([[seen(one), seen(other)] for one, other in [*map(fitted._moved, shifts), *beside]])
        changes, curves = ends[:, 1] - ends[:, 0], ends[:, 0] + ends[:, 1] - 2 * seen(fitted.engine)
        even = (np.abs(curves).max(axis=1) <= EVEN * np.abs(changes).max(axis=1))[: len(shifts)]
        turned = np.linalg.svd(changes[: len(shifts)][even], full_matrices=False)[0].T
        directions = np.concatenate([turned @ shifts[even], shifts[~even]])
        left = changes[[*np.flatnonzero(~even), *range(len(shifts), len(changes))]]
        squares = np.square(np.concatenate([turned @ changes[: len(shifts)][even], left]))
        shares = squares / np.maximum(squares.sum(axis=0), TINY)
        least_first = np.argsort(shares.max(axis=1))
        left_out = np.cumsum(shares[least_first], axis=0).max(axis=1) < UNSEEN
        pairs = [
            fitted._moved(directions[place]) if place < len(directions) else beside[place - len(directions)]
            for place in sorted(least_first[~left_out])
        ]
        return tuple(map(fitted._ordered, pairs))

    @property
    def _shifts(self) -> Floats:
        """Independent changes of one standard error each, shape (changes, numbers): of the fitted numbers along each
        eigenvector of their covariance; then, numbers of their own, of what is open in the bends."""
        variances, directions = np.linalg.eigh(self.covariance)
        told = np.sqrt(np.maximum(variances, 0.0))[:, None] * directions.T
        shifts = np.eye(len(told) + len(self._open))
        shifts[: len(told), : len(told)] = told
        return shifts

    @property
    def _open(self) -> Floats:
        sequences = tuple(self.law.bend.sequences or nodes_of(self._levels))
        return open_bends(sequences, self.open_sizes, OPENS_UP_TO * self.calibrated.concurrency)

    def _moved(self, shift: Floats) -> tuple[Replica, Replica]:
        return self._at(-shift), self._at(shift)

    def _at(self, shift: Floats) -> Replica:
        """The engine with its numbers moved, those of open bends last."""
        names, served = (*self.names, *self.extra), math.ceil(self.calibrated.isl[1] + self.calibrated.osl[1])
        engine, opened = moved(self.engine, names, shift[: len(names)], served), shift[len(names) :]
        if not opened.any():
            return engine
        return replace(engine, law=bent_further(engine.law, np.tensordot(opened, self._open, axes=1)))

    def _beside(self, isl: float) -> list[tuple[Replica, Replica]]:
        """Pairs beside the numbers: by the law's own error, of TTFT for prompts of `isl` tokens, and by what the server
        is slower one day than the next, as far as `ITL_SIGMA` does not cover it."""
        law, of_ttft = self.law, self.law_error.ttft
        of_day = math.sqrt(max(0.0, run_to_run(self._levels) ** 2 - ITL_SIGMA**2))
        of_steps = math.hypot(self.law_error.itl, of_day)
        pairs = [(law.scaled(math.exp(-of_steps)), law.scaled(math.exp(of_steps)))] if of_steps else []
        pairs += [_sooner_and_later(law, isl, of_ttft)] if of_ttft else []
        return [(Replica(low, self.batching), Replica(high, self.batching)) for low, high in pairs]

    @property
    def _pairs(self) -> list[tuple[Replica, Replica]]:
        return [*map(self._moved, self._shifts), *self._beside(sum(self.calibrated.isl) / 2)]

    def _ordered(self, pair: tuple[Replica, Replica]) -> tuple[Replica, Replica]:
        one, other = sorted(pair, key=self._busy_step_s)
        return one, other

    @property
    def _at_random(self) -> Floats:
        """Batches from one sequence to twice as many as were measured, each as it varies when requests arrive at
        random: by the square root of its mean (the number in an M/G/infinity queue is a Poisson variable)."""
        means = np.geomspace(1, min(2 * self.calibrated.concurrency, self.batching.max_batch_size), BATCHES_SEEN)
        return np.asarray(np.maximum(1.0, means[:, None] + np.sqrt(means)[:, None] * FIFTHS))

    def _times(self, engine: Replica, lengths: Lengths, batches: Floats) -> Floats:
        """Logarithms of what requests of these lengths see of an engine: times of decode steps and of iterations with
        a prompt, of a prompt alone, and the size of the KV cache."""
        law, isl, context = engine.law, lengths.isl, lengths.isl + lengths.osl / 2
        prompts = isl * np.array([1, 2])
        alone_s: Floats = law.request_s + law.mixes_s(0.0, 0.0, prompts, prompts**2 / 2)
        mixed_s = law.mixes_s(batches, batches * context, isl, isl * isl / 2).mean(axis=1)
        decode_s = law.decodes_s(batches, batches * context).mean(axis=1)
        times_s = np.concatenate([alone_s, mixed_s, decode_s, [engine.batching.kv_tokens]])
        return np.asarray(np.log(times_s))

    @property
    def relative_sigma(self) -> float:
        """Standard error, as a share, of the time of a decode step at the highest calibrated concurrency."""
        fitted = self._measured
        pairs = [(fitted._busy_step_s(one), fitted._busy_step_s(other)) for one, other in fitted._pairs]
        return float(np.sqrt(sum((np.log(other_s / one_s) / 2) ** 2 for one_s, other_s in pairs)))

    def means(self, points: Sequence[Point]) -> Floats:
        """What a measurement of these points would show (closed-loop, constant-rate or Poisson; any lengths; measured
        or not), in the protocol of the fit and as its tool counts: shape (points, 8), columns
        `sizing.simulator.replay.MEASURES`. At the levels of the fit, distrusted ones aside, what was measured, less the
        likely luck of the lengths.

        A closed-loop point needs a rough `requests_per_s`, which sets how users are spread at the start.
        """
        means = self.engine_means(points)
        means[:, :3] *= np.exp(self._carried(points, means[:, 1]))
        for row, point in enumerate(points):
            if point.closed and (self.of_one_level or (self._counts_otherwise and not levels_at(self._levels, point))):
                means[row, 0] = as_little_counts(self._levels, point, means[row, 1], means[row, 2])
        for row, point in enumerate(points):
            if point.closed:
                means[row, :3] *= np.exp(line_logs(self._trusted, point, self.batching, means[row, :3]))
        return means

    def _carried(self, points: Sequence[Point], ttft_s: Floats) -> Floats:
        """What is carried over to closed-loop points from the levels measured, shape (points, 3): zeros for others.
        `ttft_s`: the engine's mean TTFT at each. Of one level only TTFT is, to all users and lengths."""
        carried = np.zeros((len(points), 3))
        for row, point in enumerate(points):
            if not point.closed:
                continue
            if not self.of_one_level:
                carried[row] = carried_over(self._levels, self.left, point, self.batching)
            engine_s = float(ttft_s[row])
            outside = ttft_outside(self._levels, self.protocol, self.left, point, engine_s, self.batching)
            if outside is not None:
                carried[row, 1] = outside
        return carried

    def engine_means(self, points: Sequence[Point]) -> Floats:
        """The same of the engine alone: from its iterations, nothing carried over from measured levels."""
        found = np.empty((len(points), len(MEASURES)))
        for rows, local in self._by_lengths(points):
            runs = point_runs([points[row] for row in rows], self.protocol)
            found[rows] = Replay(runs, local.engine).means(local.engine)
        return found

    def _by_lengths(self, points: Sequence[Point]) -> Iterator[tuple[list[int], Fit]]:
        """The rows of the points of each pair of mean lengths, and the fit for these."""
        groups: dict[tuple[float, float], list[int]] = {}
        for row, point in enumerate(points):
            groups.setdefault((point.isl, point.osl), []).append(row)
        for lengths, rows in groups.items():
            yield rows, self.at(*lengths)

    def mean_sigmas(self, points: Sequence[Point]) -> Floats:
        """Relative standard errors of requests/s, TTFT and ITL of `means` against a new measurement of these
        closed-loop points, shape (points, 3): what the law, its bend and its own error leave open where measured levels
        do not hold it, and the noise of the measurement, with its luck of lengths."""
        known = np.flatnonzero(np.isfinite(self.left).any(axis=1) & (not self.of_one_level))
        levels = [self._levels[row] for row in known]
        shares = share_beyond_luck(levels, luck_ratio(self._trusted))
        seen = surprises(self._levels, self.left, self.batching)
        sigmas = np.empty((len(points), 3))
        for rows, local in self._by_lengths(points):
            own = [points[row] for row in rows]
            replay = Replay(point_runs([*own, *levels], self.protocol), local.engine)
            met = [concurrency(point) for point in (*own, *levels)]
            batches = np.unique(np.minimum(met, local.batching.max_batch_size)).astype(float)
            variance = np.zeros((len(rows), 3))
            there = np.full((len(self._levels), 3), math.nan)
            for faster, slower in local.variants_seen(own[0].lengths, batches[:, None]):
                change = np.log(replay.means(slower)[:, :3] / replay.means(faster)[:, :3])
                there[known] = shares * change[len(own) :]  # where it was measured, the answer changes by the rest
                carried = [carried_over(self._levels, there, point, self.batching) for point in own]
                variance += np.nan_to_num((change[: len(own)] - carried) / 2) ** 2
            for row, point in enumerate(own):
                scatter = closed_sigmas(self._levels, self.protocol, point, seen=seen, has_experts=self.law.has_experts)
                variance[row] += np.square(scatter)
                variance[row] += np.square(self.luck(point))
            if levels:
                variance += (CHANGES * local.law_error.by_measure[:3]) ** 2
            sigmas[rows] = np.sqrt(variance)
        return sigmas

    def luck(self, point: Point) -> Floats:
        """Relative errors of requests/s, mean TTFT and ITL of a closed-loop point by the luck of its lengths, drawn as
        those of the fit were: shape (3,)."""
        return luck_ratio(self._trusted) * np.array(luck_of_lengths(point))

    @property
    def _levels(self) -> list[Point]:
        return [error.point for error in self.errors]

    @property
    def _trusted(self) -> list[Point]:
        """The closed-loop levels, distrusted ones aside."""
        return [level for level, left in zip(self._levels, self.left, strict=True) if np.isfinite(left).any()]

    @property
    def _counts_otherwise(self) -> bool:
        closed = any(level.closed for level in self._levels)
        return closed and (self.protocol.counted == "all" or counts_otherwise(self._levels))

    @property
    def regime(self) -> Regime:
        """What binds the engine at the most sequences measured, with the mean of the lengths measured."""
        isl, osl = (sum(ends) / 2 for ends in (self.calibrated.isl, self.calibrated.osl))
        return regime(self.law, self._busiest, isl, osl, self.batching.token_budget)

    @property
    def of_one_level(self) -> bool:
        """True where the points scale the law that the fit leans on, and its shape is not measured."""
        return of_one_level(self._levels)

    def covers(self, lengths: Lengths, in_flight: float | None = None) -> bool:
        """True where the law is used inside the range it was fitted on; of lengths alone without `in_flight`."""
        return self.calibrated.covers(lengths, in_flight)

    def basis(self, lengths: Lengths, in_flight: float | None = None) -> Basis:
        """What an answer for these lengths stands on, and for so many requests at once where they are told: an
        estimate, where one level scales it."""
        if self.of_one_level:
            return "estimated"
        return "fitted" if self.covers(lengths, in_flight) else "extrapolated"

    @property
    def _busiest(self) -> int:
        return min(self.calibrated.concurrency, self.batching.max_batch_size)

    def _busy_step_s(self, replica: Replica) -> float:
        batch = self._busiest
        return replica.law.decode_s(batch, batch * (sum(self.calibrated.isl) + sum(self.calibrated.osl) / 2) / 2)
