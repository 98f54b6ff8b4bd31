"""Synthetic demand like that of a trace: a profile of the day or week, bursts around it, correlated lengths.

Expected requests run through the totals of the profile's hours; around them arrivals are a Poisson process, a renewal
process with gamma gaps, or a Poisson process whose rate jumps between two states (MMPP). Which, and with what
parameters, is read off the index of dispersion of counts at several time scales (Cox and Lewis 1966, The Statistical
Analysis of Series of Events, ch. 4; Fischer and Meier-Hellstern 1993, The Markov-modulated Poisson process (MMPP)
cookbook, Performance Evaluation 18). Sessions and shared prefixes are not modelled.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple

import numpy as np
from pydantic import ConfigDict, Field, PlainSerializer, PlainValidator, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from sizing.errors import ScenarioError, first_fault
from sizing.numbers import Floats, significant
from sizing.token_law import TokenLaw
from sizing.trace import DAY_S, HOUR_S, MINUTE_S, MOST_REQUESTS, Counts, Trace, TraceError
from sizing.workload import Lengths, Seconds

SCHEMA: Final = "sizing-demand/1"
DAY_H, WEEK_H = 24, 168
MONDAY_S = 3 * DAY_S
"""From a Monday, 0:00, to the start of 1970, a Thursday."""
SCALES_S = (1.0, 10.0, 60.0, 600.0)
"""Time scales at which the dispersion of a trace is measured."""
FEWEST, BATCHES = 100, 20
"""Requests that a model needs, and parts of a trace whose scatter gives the error of a dispersion."""
TOLERANCE = 0.05
"""Relative error of a dispersion that does not matter."""
PRICE = 6.0
"""By how much a further parameter must reduce the squared errors; by chance it does so in 1 of 70 cases."""
WHOLE = 0.99
LEAST_INDEX = 1e-3
CVS, VARIANCES = (0.05, 20.0), (1e-4, 99.0)
FEWEST_VISITS = 5
RANKED = 200_000
"""Requests whose lengths are ranked, spread over the trace."""
MOST_DAYS = 400
MOST_BYTES = 2**20
STRICT = ConfigDict(allow_inf_nan=False, extra="forbid")

Sojourn = Annotated[float, Field(ge=1e-3, le=1e9)]
Rate = Annotated[float, Field(ge=0, le=1e6)]


@dataclass(frozen=True, slots=True, config=STRICT)
class Poisson:
    """Arrivals at random: nothing but the profile."""

    kind: Literal["poisson"] = "poisson"
    cv: ClassVar[float] = 1.0
    parameters: ClassVar[int] = 0

    def dispersion(self, rate_per_s: float, every_s: float) -> float:
        """Variance over mean of the requests in `every_s` seconds at a rate."""
        return 1.0

    def states(self, span_s: float, rng: np.random.Generator) -> tuple[Seconds, Floats]:
        """When states begin, the first at 0 s, and the factor of each on the profile's rate."""
        return np.zeros(1), np.ones(1)


@dataclass(frozen=True, slots=True, config=STRICT)
class Gamma:
    """Gaps, scaled by the rate at the moment, are gamma variables: `cv` 1 is Poisson, below 1 more regular."""

    cv: Annotated[float, Field(ge=CVS[0], le=CVS[1])]
    kind: Literal["gamma"] = "gamma"
    parameters: ClassVar[int] = 1

    def dispersion(self, rate_per_s: float, every_s: float) -> float:
        """The same for the stationary renewal process: approaches cv^2 over long stretches.

        The variance is x - x^2 + 2 times the integral of the renewal function up to the x requests expected, which is
        a sum of incomplete gamma functions; beyond some gaps its asymptote (Cox 1962, Renewal Theory, 4.5).
        """
        from scipy.special import gammainc

        expected, shape = rate_per_s * every_s, self.cv**-2
        if expected > 20 * max(1, self.cv**2, shape):
            return float(self.cv**2 + (1 - self.cv**4) / (6 * expected))
        most = expected + 12 * self.cv * math.sqrt(expected) + 40 * self.cv**2 + 40
        number = np.arange(1, most)
        end = shape * expected
        reached = expected * gammainc(shape * number, end) - number * gammainc(shape * number + 1, end)
        return float(1 - expected + 2 * reached.sum() / expected)

    def states(self, span_s: float, rng: np.random.Generator) -> tuple[Seconds, Floats]:
        """One state, as Poisson has."""
        return np.zeros(1), np.ones(1)


@dataclass(frozen=True, slots=True, config=STRICT)
class Mmpp:
    """Two states in turn, each for an exponential time: the rate is `low_factor` times the profile's for `low_s` on
    average, then higher for `high_s`, so that both together give the profile's."""

    low_factor: Annotated[float, Field(ge=0, le=1)]
    low_s: Sojourn
    high_s: Sojourn
    kind: Literal["mmpp"] = "mmpp"
    cv: ClassVar[float] = 1.0
    parameters: ClassVar[int] = 3

    @property
    def high_share(self) -> float:
        """Share of the time in the higher state."""
        return self.high_s / (self.low_s + self.high_s)

    @property
    def high_factor(self) -> float:
        """The higher rate over the profile's, 1 or more."""
        return (1 - (1 - self.high_share) * self.low_factor) / self.high_share

    @property
    def relaxing_per_s(self) -> float:
        """The present state is forgotten as exp(-relaxing t)."""
        return 1 / self.low_s + 1 / self.high_s

    @property
    def variance(self) -> float:
        """Of the factor."""
        return self.high_share * (1 - self.high_share) * (self.high_factor - self.low_factor) ** 2

    def dispersion(self, rate_per_s: float, every_s: float) -> float:
        """The same: from 1 up to 1 + 2 rate variance / relaxing (Fischer and Meier-Hellstern 1993, section 4)."""
        return two_state_dispersion(self.variance, self.relaxing_per_s, rate_per_s, every_s)

    def states(self, span_s: float, rng: np.random.Generator) -> tuple[Seconds, Floats]:
        """The states in turn; the first is drawn with its long-run probability."""
        both = [(self.low_s, self.low_factor), (self.high_s, self.high_factor)]
        if rng.random() < self.high_share:
            both.reverse()
        stays_s, factors = np.array(both).T
        ends_s = steps(span_s, lambda pairs: rng.exponential(stays_s, (pairs, 2)).ravel(), stays_s.sum())
        begins_s = np.concatenate([[0.0], ends_s[:-1]])
        return begins_s, np.resize(factors, len(begins_s))

    @classmethod
    def of(cls, variance: float, relaxing_per_s: float, skewness: float, least_share: float = 1e-3) -> Mmpp:
        """The process whose factor has this variance, skewness and relaxation; a skewness that two states with this
        variance cannot have, or that would make one rarer than `least_share`, is the nearest they can."""
        share = (1 - skewness / math.hypot(2, skewness)) / 2
        share = min(max(share, least_share), 1 - least_share, 1 / (1 + variance))
        low_factor = max(0.0, 1 - math.sqrt(variance * share / (1 - share)))
        return cls(low_factor, 1 / (share * relaxing_per_s), 1 / ((1 - share) * relaxing_per_s))


def two_state_dispersion(variance: float, relaxing_per_s: float, rate_per_s: float, every_s: float) -> float:
    """Index of dispersion of an MMPP in `every_s`: its autocovariance variance exp(-relaxing t), integrated twice."""
    passed = relaxing_per_s * every_s
    return 1 + 2 * rate_per_s * variance / relaxing_per_s * (1 + math.expm1(-passed) / passed)


def two_state_third(relaxing_per_s: float, every_s: float) -> float:
    """Third cumulant of a two-state factor's mean over `every_s`, relative to that of the factor itself: 1 down to 0.

    Three moments apart by s and u have the third moment m exp(-relaxing (s + u)), for the state forgets at one rate.
    """
    x = relaxing_per_s * every_s
    return 6 * (x - 2 + (x + 2) * math.exp(-x)) / x**3 if x > 1e-2 else 1 - x / 2


ArrivalProcess = Annotated[Poisson | Gamma | Mmpp, Field(discriminator="kind")]


def _law(given: Any) -> TokenLaw:
    if isinstance(given, TokenLaw):
        return given
    try:
        if isinstance(given, str) and (law := TokenLaw.parse(given)):
            return law
    except ScenarioError as error:
        raise ValueError(str(error)) from None
    raise ValueError("a law of lengths is text such as points:200@0.8,4000@0.2")


Law = Annotated[TokenLaw, PlainValidator(_law), PlainSerializer(str)]


@dataclass(frozen=True, slots=True, config=STRICT)
class DemandModel:
    """Demand, whole.

    Attributes:
        rates_per_s: mean requests/s of each hour: of the day from 0:00 UTC (24), of the week from Monday 0:00 UTC
            (168), or one for all. A trace without dates begins at hour 0.
        arrivals: how requests scatter around that.
        isl, osl: laws of prompt and output tokens; `correlation`: of the normal deviates of their quantiles.
    """

    rates_per_s: Annotated[tuple[Rate, ...], Field(max_length=WEEK_H)]
    arrivals: ArrivalProcess
    isl: Law
    osl: Law
    correlation: Annotated[float, Field(ge=-1, le=1)] = 0.0

    def __post_init__(self) -> None:
        if len(self.rates_per_s) not in (1, DAY_H, WEEK_H) or not any(self.rates_per_s):
            raise ValueError("rates_per_s must be 1, 24 or 168 rates, and one of them above 0")

    @property
    def lengths(self) -> Lengths:
        """The two lengths of a request."""
        isl, osl = self.isl, self.osl
        return Lengths(isl.mean, osl.mean, isl.cv, osl.cv, self.correlation, isl, osl)

    @property
    def rate_per_s(self) -> float:
        """Mean requests/s."""
        return float(np.mean(self.rates_per_s))

    def expected(self, at_s: Seconds) -> Floats:
        """Requests expected from hour 0 up to `at_s` seconds, shape as given.

        A monotone cubic through the totals of the hours (Fritsch and Butland 1984): every hour has its mean, and the
        rate changes without jumps. One period follows the other.
        """
        if len(self.rates_per_s) == 1:
            return self.rates_per_s[0] * at_s
        from scipy.interpolate import PchipInterpolator  # takes half a second, and only a profile needs it

        hours = np.arange(-2, len(self.rates_per_s) + 2)  # the slope at an hour's end is that of its two neighbours
        total = np.cumsum(np.take(self.rates_per_s, hours, mode="wrap")) * HOUR_S
        curve = PchipInterpolator((hours + 1) * HOUR_S, total - total[1])
        periods, within_s = np.divmod(at_s, len(self.rates_per_s) * HOUR_S)
        return np.asarray(periods * HOUR_S * sum(self.rates_per_s) + curve(within_s))


# --- Drawing


def drawn(model: DemandModel, days: float, *, seed: int = 0, scale: float = 1.0) -> Trace:
    """A trace drawn from the model from its hour 0 on, at `scale` times the rate, with bursts as long and as high.

    Where states change the rate, requests are drawn after the states, by the expected requests of each. Raises
    ScenarioError for days and scales that are not numbers above 0, and for too few or too many requests.
    """
    for name, value in (("days", days), ("scale", scale)):
        if not 0 < value < math.inf:
            raise ScenarioError(f"{name} must be a number above 0, got {value:g}")
    span_s, arrivals = days * DAY_S, model.arrivals
    many = scale * float(model.expected(np.array(span_s)))
    switches = 2 * span_s / (arrivals.low_s + arrivals.high_s) if isinstance(arrivals, Mmpp) else 0
    if max(many, switches, span_s / MINUTE_S) > MOST_REQUESTS:
        raise ScenarioError(
            f"{days:g} days have {many:,.0f} requests and {switches:,.0f} changes of the rate: {MOST_REQUESTS:,} at "
            "most; ask for fewer days or a smaller scale"
        )
    rng = np.random.default_rng(seed)
    begins_s, factors = arrivals.states(span_s, rng)
    ends_s = np.union1d(np.linspace(0, span_s, math.ceil(span_s / MINUTE_S) + 1), begins_s[begins_s < span_s])
    factor = factors[np.searchsorted(begins_s, ends_s[:-1], side="right") - 1]
    passed = np.concatenate([[0.0], np.cumsum(factor * np.diff(scale * model.expected(ends_s)))])
    at = renewals(float(passed[-1]), arrivals.cv, rng)
    if len(at) < 2:
        rate_per_s = scale * model.rate_per_s
        raise ScenarioError(f"{days:g} days at {rate_per_s:.3g} requests/s have {len(at)} requests: ask for more days")
    isl, osl = model.lengths.sample(len(at), rng)
    return Trace(np.interp(at, passed, ends_s), isl.astype(np.int32), osl.astype(np.int32))


def renewals(until: float, cv: float, rng: np.random.Generator) -> Floats:
    """Events of a stationary renewal process with gamma gaps of mean 1, from 0 to before `until`, ascending.

    The first comes after a uniform part of a length-biased gap, as seen from a random moment.
    """
    shape = cv**-2
    first = rng.random() * rng.gamma(shape + 1, 1 / shape)
    at = np.concatenate([[first], first + steps(until, lambda n: rng.gamma(shape, 1 / shape, n), 1.0)])
    return np.asarray(at[at < until])


def steps(until: float, draw: Callable[[int], Floats], mean: float) -> Floats:
    """Ends of steps drawn one after the other until they pass `until`; `draw` gets about how many to draw."""
    parts, reached = [], 0.0
    while reached <= until:
        parts.append(reached + np.cumsum(draw(int(1.05 * (until - reached) / mean) + 100)))
        reached = float(parts[-1][-1])
    return np.concatenate(parts)


# --- Fitting


def fitted(trace: Trace, *, seed: int = 0) -> DemandModel:
    """The model of a trace: its profile, its lengths, and of the arrival processes the one that explains the dispersion
    of counts best, at a price for each parameter.

    Rounded times are first spread at random over their rounding step. Raises TraceError for fewer than
    FEWEST requests, less than 40 s and more than MOST_DAYS.
    """
    if len(trace) < FEWEST or trace.span_s < 2 * BATCHES * SCALES_S[0]:
        raise TraceError(
            f"a model of demand needs {FEWEST} requests and {2 * BATCHES * SCALES_S[0]:g} s or more, got {len(trace)} "
            f"requests in {significant(trace.span_s)} s"
        )
    if trace.span_s > MOST_DAYS * DAY_S:
        raise TraceError(
            f"a model of demand is of {MOST_DAYS} days at most, got {trace.span_s / DAY_S:,.0f}: check the times, or "
            "cut the trace"
        )
    isl, osl = TokenLaw.of(trace.isl), TokenLaw.of(trace.osl)
    hours = hours_of(trace.span_s)
    at_s = on_profile(trace, hours, seed)
    rates_per_s = hourly(at_s, hours)
    correlation = correlation_of(isl, osl, rank_correlation(trace.isl, trace.osl), seed)
    part = partial(DemandModel, rates_per_s, isl=isl, osl=osl, correlation=correlation)
    seen = dispersions(part(Poisson()), at_s)
    found: list[Poisson | Gamma | Mmpp] = [Poisson(), gamma_of(seen), *two_states_of(seen, trace.span_s)]
    return part(min(found, key=lambda each: misfit(each, seen) + PRICE * each.parameters))


def hours_of(span_s: float) -> int:
    """Hours of the profile of a trace: a week for two weeks or more, a day for a day or more, else one for all.

    A day counts from the first request to the last, so some minutes may be missing; every hour is seen all the same.
    """
    return WEEK_H if span_s >= WHOLE * 2 * WEEK_H * HOUR_S else DAY_H if span_s >= WHOLE * DAY_S else 1


def on_profile(trace: Trace, hours: int, seed: int) -> Seconds:
    """Arrivals in seconds since hour 0, that before the first of them, of a profile of so many hours; not rounded."""
    period_s = hours * HOUR_S
    began_s = (trace.began_s + MONDAY_S) % period_s if math.isfinite(trace.began_s) else 0.0
    at_s = unrounded(trace.arrival_s, seed) + began_s
    return np.asarray(at_s - period_s * (at_s[0] // period_s))


def hourly(at_s: Seconds, hours: int) -> tuple[float, ...]:
    """Mean requests/s in each hour of a profile of so many hours, from arrivals counted from its hour 0."""
    first_s, last_s = float(at_s[0]), float(at_s[-1])
    if hours == 1:
        return ((len(at_s) - 1) / (last_s - first_s),)
    whole = np.arange(last_s // HOUR_S + 2)
    lasted_s = np.diff(np.clip(whole * HOUR_S, first_s, last_s))
    seen_s = np.bincount(whole[:-1].astype(int) % hours, lasted_s, hours)
    counts = np.bincount((at_s // HOUR_S).astype(int) % hours, minlength=hours)
    return tuple((counts / seen_s).tolist())


def unrounded(at_s: Seconds, seed: int) -> Seconds:
    """Ascending arrivals; where several are at one time and all times are multiples of a step, spread over the step."""
    times = np.unique(at_s)
    if len(times) in (1, len(at_s)):
        return at_s
    step_s = float(np.diff(times).min())
    numbers = (times - times[0]) / step_s
    if np.abs(numbers - np.rint(numbers)).max() > 0.01:
        return at_s
    return np.sort(at_s + np.random.default_rng(seed).uniform(0, step_s, len(at_s)))


def rank_correlation(isl: Counts | Floats, osl: Counts | Floats) -> float:
    """Spearman's rank correlation of the two lengths of requests; 0 if one of them is constant."""
    some = slice(None, None, max(1, len(isl) // RANKED))
    of_isl, of_osl = ranks(isl[some]), ranks(osl[some])
    return float(np.corrcoef(of_isl, of_osl)[0, 1]) if of_isl.std() and of_osl.std() else 0.0


def ranks(values: Counts | Floats) -> Floats:
    """The rank of each value, equal ones with the mean of theirs; ``scipy.stats.rankdata`` takes a second to import."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[place], float)


def correlation_of(isl: TokenLaw, osl: TokenLaw, ranked: float, seed: int) -> float:
    """The correlation of normal deviates at which lengths from two laws have this rank correlation.

    For lengths that are all different it is 2 sin(pi/6 ranked) (Pearson 1907); with many ties, ranks say less.
    """
    if not (isl.cv and osl.cv):
        return 0.0
    from scipy.optimize import brentq

    normal = np.random.default_rng(seed).standard_normal((2, RANKED // 4))

    def off(correlation: float) -> float:
        lengths = Lengths(isl.mean, osl.mean, correlation=correlation, isl_law=isl, osl_law=osl)
        return rank_correlation(*lengths.at(*normal)) - ranked

    least, most = off(-1), off(1)
    if least >= 0 or most <= 0:  # beyond what the laws allow, or lengths that hardly ever differ
        return math.copysign(1.0, ranked) if most - least > TOLERANCE else 0.0
    return round(float(brentq(off, -1, 1, xtol=1e-3)), 3)


class Dispersion(NamedTuple):
    """Requests in stretches of `every_s` around the profile.

    Attributes:
        ratio: variance over mean, pooled: 1 for Poisson arrivals.
        error: its relative standard error, from the scatter of parts of the trace.
        rate_per_s: mean rate that requests see, of which the ratio of a process with states is.
        skew: third cumulant of the factor's mean over a stretch.
        hidden: share of the variance of the sums of `block_s`, the stretches that have a rate of their own, which the
            profile took for itself.
    """

    every_s: float
    ratio: float
    error: float
    rate_per_s: float
    skew: float
    block_s: float
    hidden: float

    def of(self, index: Callable[[float, float], float]) -> float:
        """What this trace would show on average if it came from a process with this `index` (rate, seconds)."""
        taken = self.hidden * index(self.rate_per_s, self.block_s)
        return max(LEAST_INDEX, index(self.rate_per_s, self.every_s) - taken)


def dispersions(model: DemandModel, at_s: Seconds) -> list[Dispersion]:
    """The dispersion of arrivals around a model's profile at the time scales for which the trace has enough stretches.

    Where the rate r of a stretch varies, a factor of variance c in front of it adds c r^2 to the variance r: hence the
    index is that of the mean rate r^2 / r. The third cumulant is the third factorial one, over r^3.
    """
    span_s = float(at_s[-1] - at_s[0])
    hours = len(model.rates_per_s)
    block_s, observed_s = (span_s, span_s) if hours == 1 else (HOUR_S, span_s / hours)
    found = []
    for every_s in SCALES_S:
        if span_s / every_s < 2 * BATCHES:
            break
        counts, expected = in_stretches(model, at_s, every_s)
        off = counts - expected
        squares, sums = (np.array([part.sum() for part in np.array_split(of, BATCHES)]) for of in (off**2, expected))
        ratio = float(squares.sum() / sums.sum())
        scatter = squares - ratio * sums
        error = math.sqrt(float(scatter @ scatter) * BATCHES / (BATCHES - 1)) / max(float(squares.sum()), 1e-9)
        found.append(
            Dispersion(
                every_s,
                max(ratio, LEAST_INDEX),
                math.hypot(max(error, math.sqrt(2 / len(counts))), TOLERANCE),
                float(expected @ expected / sums.sum() / every_s),
                float((off**3 - 3 * off**2 + 2 * expected).sum() / (expected**3).sum()),
                block_s,
                every_s / observed_s,
            )
        )
    return found


def in_stretches(model: DemandModel, at_s: Seconds, every_s: float) -> tuple[Floats, Floats]:
    """Requests in each whole stretch from the first arrival on, and those that the profile expects there."""
    edges_s = at_s[0] + every_s * np.arange(int((at_s[-1] - at_s[0]) / every_s) + 1)
    return np.diff(np.searchsorted(at_s, edges_s)).astype(float), np.diff(model.expected(edges_s))


def misfit(arrivals: Poisson | Gamma | Mmpp, seen: list[Dispersion]) -> float:
    """The sum of squared errors of log dispersion, in standard errors."""
    return float(np.sum(errors_of(arrivals.dispersion, seen) ** 2))


def errors_of(index: Callable[[float, float], float], seen: list[Dispersion]) -> Floats:
    """For each scale the log of the dispersion that a process gives over what was seen, in standard errors."""
    return np.array([math.log(each.of(index) / each.ratio) / each.error for each in seen])


def gamma_of(seen: list[Dispersion]) -> Gamma:
    """The gamma gaps that explain the dispersion best."""
    from scipy.optimize import minimize_scalar

    def error(log: float) -> float:
        return misfit(Gamma(math.exp(log)), seen)

    return Gamma(math.exp(minimize_scalar(error, bounds=np.log(CVS), method="bounded").x))


def two_states_of(seen: list[Dispersion], span_s: float) -> list[Mmpp]:
    """The two states that explain the dispersion best, none where one scale is all there is.

    Variance and relaxation of the factor are those of the indices, its skewness that of the counts in the stretches
    nearest to the relaxation time; states last so long that the trace shows several of each.
    """
    if len(seen) < 2:
        return []
    from scipy.optimize import least_squares

    relaxing_s = (0.1, span_s / BATCHES)

    def errors(logs: Floats) -> Floats:
        variance, relaxed_s = np.exp(logs)
        return errors_of(partial(two_state_dispersion, variance, 1 / relaxed_s), seen)

    bounds = np.log([VARIANCES, relaxing_s]).T
    starts = [np.log([0.5, each.every_s / 2]) for each in seen]
    runs = [least_squares(errors, np.clip(start, *bounds), bounds=bounds) for start in starts]
    best = min(runs, key=lambda run: float(run.cost))
    variance, relaxed_s = np.exp(best.x)
    near = min(seen, key=lambda each: abs(math.log(each.every_s / relaxed_s)))
    third = near.skew / two_state_third(1 / relaxed_s, near.every_s)
    least_share = min(0.5, FEWEST_VISITS * relaxed_s / span_s)
    return [Mmpp.of(float(variance), 1 / float(relaxed_s), third / float(variance) ** 1.5, least_share)]


# --- How well a model matches the trace that it was fitted to

WITHIN, WITHIN_DISPERSION, WITHIN_CORRELATION = 0.10, 0.20, 0.05
TWIN = 100_000
"""Approximate number of requests in the drawn trace that a shorter recorded one is compared with."""
PERCENTILES = (50, 95, 99)


class Compared(NamedTuple):
    """A figure of the trace and of the model. `off`: model over trace less 1, or the difference where `absolute`, as
    of correlations; met where it is within `allowed`."""

    figure: str
    trace: float
    model: float
    off: float
    allowed: float
    absolute: bool = False

    @property
    def met(self) -> bool:
        """True where the model is near enough."""
        return abs(self.off) <= self.allowed


def compared(model: DemandModel, trace: Trace, *, seed: int = 0) -> list[Compared]:
    """Dispersion, busy seconds and minutes, and lengths: of the trace, and of the model.

    Dispersions are those that the model shows on average; everything else is that of a drawn trace over the same hours,
    or more of them. Requests in a second and a minute are over what the profile expects there, where it expects one or
    more on average and the trace has twenty.
    """
    at_s = on_profile(trace, len(model.rates_per_s), seed)
    span_s = float(at_s[-1] - at_s[0])
    period_s = len(model.rates_per_s) * HOUR_S
    lacking_s = min(TWIN / model.rate_per_s, 10 * MOST_DAYS * DAY_S) - span_s
    span_s += period_s * max(0, math.ceil(lacking_s / period_s))
    twin = drawn(model, (at_s[0] + span_s) / DAY_S, seed=seed)
    twin_s = twin.arrival_s[twin.arrival_s >= at_s[0]]
    rows = []
    for seen in dispersions(model, at_s):
        figure = f"dispersion of requests in {seen.every_s:g} s"
        allowed = max(WITHIN_DISPERSION, 2 * seen.error)
        rows.append(_relative(figure, seen.ratio, seen.of(model.arrivals.dispersion), allowed))
    for name, every_s in (("second", 1.0), ("minute", MINUTE_S)):
        counts, expected = in_stretches(model, at_s, every_s)
        if len(expected) < BATCHES or expected.mean() < 1:
            continue
        of_trace, of_model = (ratios(*each) for each in ((counts, expected), in_stretches(model, twin_s, every_s)))
        for of, value, other in zip(PERCENTILES, of_trace, of_model, strict=True):
            one_request = 1 / (expected.mean() * max(value, 1 / expected.mean()))
            figure = f"p{of} of requests in a {name}, over the profile"
            rows.append(_relative(figure, value, other, max(WITHIN, one_request)))
    lengths = (("ISL", "isl"), ("OSL", "osl"))
    tokens = {name: (getattr(trace, field), getattr(twin, field)) for name, field in lengths}
    tokens["ISL + OSL"] = (np.add(trace.isl, trace.osl, dtype=float), np.add(twin.isl, twin.osl, dtype=float))
    for name, both in tokens.items():
        for of, value, other in zip(PERCENTILES, *(np.percentile(each, PERCENTILES) for each in both), strict=True):
            rows.append(_relative(f"p{of} of {name}", value, other, max(WITHIN, 1 / value)))
    if trace.isl.min() < trace.isl.max() and trace.osl.min() < trace.osl.max():
        value, other = (rank_correlation(of.isl, of.osl) for of in (trace, twin))
        rows.append(Compared("rank correlation of ISL and OSL", value, other, other - value, WITHIN_CORRELATION, True))
    return rows


def _relative(figure: str, value: float, other: float, allowed: float) -> Compared:
    off = other / value - 1 if value else other
    return Compared(figure, float(value), float(other), float(off), float(allowed))


def ratios(counts: Floats, expected: Floats) -> Floats:
    """Percentiles of counts over what was expected, over the stretches in which something was expected."""
    some = expected > 0
    return np.asarray(np.percentile(counts[some] / expected[some], PERCENTILES))


# --- Files

_MODEL = TypeAdapter(DemandModel)


def as_dict(model: DemandModel) -> dict[str, Any]:
    """The model as plain values, its schema first; laws of lengths as their text."""
    return {"schema": SCHEMA, **_MODEL.dump_python(model, mode="json")}


def as_json(model: DemandModel) -> str:
    """The model as a JSON document."""
    return json.dumps(as_dict(model), indent=1, allow_nan=False) + "\n"


def parse_model(content: bytes, name: str) -> DemandModel:
    """The model in a JSON document; `name` is how errors call it. Raises ScenarioError, one line with the key."""
    from sizing.files import json_object

    try:
        values = json_object(content, MOST_BYTES, "model of demand")
        if values.pop("schema", None) != SCHEMA:
            raise ValueError(f"not a model of demand: schema {SCHEMA} is missing; `sizing demand fit` writes one")
        return _MODEL.validate_python(values)
    except ValidationError as error:
        raise ScenarioError(f"{name}: {first_fault(error, 'the model')}") from None
    except ValueError as error:
        raise ScenarioError(f"{name}: {error}") from None


def read_model(path: Path) -> DemandModel:
    """The model of a file that `as_json` wrote. Raises ScenarioError, one line with file and key."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ScenarioError(f"{path}: cannot be read as a model of demand ({reason})") from None
    return parse_model(content, str(path))
