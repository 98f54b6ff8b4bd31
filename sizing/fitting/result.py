"""What a fit gives: a law, its uncertainty, its errors, and what it could not tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import NamedTuple

import numpy as np

from sizing.engine import KNEE, Batching, Replica, StepLaw
from sizing.fitting.levels import UNTOLD, Protocol, point_runs
from sizing.fitting.parameters import EXACT, LawError, moved
from sizing.numbers import Floats, percent
from sizing.points import Deployment, Point
from sizing.simulator.replay import Replay
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
    powers = weights_s**KNEE + arithmetic_s**KNEE
    products_s = powers ** (1 / KNEE)
    by_weights, by_arithmetic = (
        products_s * part_s**KNEE / powers if powers > 0 else 0.0 for part_s in (weights_s, arithmetic_s)
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
    `compute_bound`: whether the matrix products of a decode wait for arithmetic, and of one with a prompt.
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

    def __str__(self) -> str:
        where = f"ISL {self.point.isl:g}, OSL {self.point.osl:g}, {self.point.load_kind} {self.point.load_value:g}"
        return (
            f"the point at {where} disagrees with the others: the law gives {self.figure} "
            f"{percent(self.off, sign=True)} ({self.sigmas:.0f} standard errors); it has little weight in the "
            "fit: measure it again"
        )


class Unknown(NamedTuple):
    """A coefficient that the points do not tell: `ratio` is its standard error after them over that before."""

    name: str
    ratio: float
    measure: str

    def __str__(self) -> str:
        return (
            f"{self.name}: points barely constrain it ({percent(self.ratio)} of prior uncertainty left); {self.measure}"
        )


class CoveredRange(NamedTuple):
    """What the points cover: the most requests at once, and the mean lengths from lowest to highest, in tokens."""

    concurrency: int
    isl: tuple[float, float]
    osl: tuple[float, float]

    def covers(self, lengths: Lengths, in_flight: float) -> bool:
        """True for lengths within twice the measured range and at most 1.1 x the measured concurrency."""
        return (
            in_flight <= 1.1 * self.concurrency
            and self.isl[0] / 2 <= lengths.isl <= 2 * self.isl[1]
            and self.osl[0] / 2 <= lengths.osl <= 2 * self.osl[1]
        )


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """A law for one deployment and what is known of its errors.

    `names`: the eight coefficients; `extra`: what else was fitted ("unread", "kv_tokens"). `covariance`, shape
    (names + extra) squared: of the natural logarithms (of the logit of `unread`), widened where the residuals exceed
    the measurement errors. `chi2_per_point`: mean squared residual over the assumed measurement error; 1 is perfect,
    above 2 the law or the policy is wrong. `leave_one_out`: median relative error of requests/s and ITL at points that
    the fit had not seen (one Gauss-Newton step from the full fit; NaN: too few points). `distrusted`: points that were
    given little weight.
    `unknown`: coefficients that the points do not tell. `lockstep`: the users had started at once with equal lengths
    and stayed in lockstep, which barely separates request and prefill overheads. `protocol`: how the points were
    measured, as told or as found. `sigmas`: standard errors of the logarithms one by one, from the slopes alone; wider
    than those of `covariance`, which also holds what the cost says further away and serves the bands of answers.
    `law_error`: how far the law was found to be off, beyond the
    errors of the measurement.
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
    warnings: tuple[str, ...]
    extra: tuple[str, ...] = ()
    distrusted: tuple[Distrust, ...] = ()
    unknown: tuple[Unknown, ...] = ()
    lockstep: bool = False
    protocol: Protocol = UNTOLD
    sigmas: tuple[float, ...] = ()
    law_error: LawError = EXACT

    @property
    def replica(self) -> Replica:
        """The fitted engine."""
        return Replica(self.law, self.batching)

    def interval(self, name: str) -> tuple[float, float]:
        """Ends, in seconds, of the 90 % interval of a coefficient."""
        place = self.names.index(name)
        factor = float(np.exp(1.645 * self.sigmas[place]))
        value = float(getattr(self.law, name))
        return value / factor, value * factor

    @property
    def variants(self) -> tuple[tuple[Replica, Replica], ...]:
        """Engines one standard error away, faster and slower, along each eigenvector of the covariance.

        For any function f of the engine, the sum over the pairs of ((f(slower) - f(faster)) / 2)^2 is its variance.
        """
        variances, directions = np.linalg.eigh(self.covariance)
        names = (*self.names, *self.extra)
        pairs = []
        for variance, direction in zip(variances, directions.T, strict=True):
            shift = np.sqrt(max(variance, 0.0)) * direction
            pair = [moved(self.replica, names, sign * shift) for sign in (-1, 1)]
            pairs.append((min(pair, key=self._busy_step_s), max(pair, key=self._busy_step_s)))
        return tuple(pairs)

    @property
    def relative_sigma(self) -> float:
        """Standard error, as a share, of the time of a decode step at the highest calibrated concurrency."""
        pairs = [(self._busy_step_s(faster), self._busy_step_s(slower)) for faster, slower in self.variants]
        return float(np.sqrt(sum((np.log(slow_s / fast_s) / 2) ** 2 for fast_s, slow_s in pairs)))

    def means(self, points: Sequence[Point]) -> Floats:
        """What this engine gives at closed-loop, constant-rate or Poisson points (any lengths; measured or not), in the
        protocol of the fit: shape (points, 8), columns `sizing.simulator.replay.MEASURES`.

        A closed-loop point needs a rough `requests_per_s`, which sets how users are spread at the start.
        """
        return Replay(point_runs(points, self.protocol), self.replica).means(self.replica)

    @property
    def regime(self) -> Regime:
        """What binds the engine at the most sequences measured, with the mean of the lengths measured."""
        isl, osl = (sum(ends) / 2 for ends in (self.calibrated.isl, self.calibrated.osl))
        return regime(self.law, self._busiest, isl, osl, self.batching.token_budget)

    def covers(self, lengths: Lengths, in_flight: float) -> bool:
        """True where the law is used inside the range it was fitted on: basis "fitted", else "extrapolated"."""
        return self.calibrated.covers(lengths, in_flight)

    @property
    def _busiest(self) -> int:
        return min(self.calibrated.concurrency, self.batching.max_batch_size)

    def _busy_step_s(self, replica: Replica) -> float:
        batch = self._busiest
        return replica.law.decode_s(batch, batch * (sum(self.calibrated.isl) + sum(self.calibrated.osl) / 2) / 2)
