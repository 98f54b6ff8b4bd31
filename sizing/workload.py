"""What is asked of the fleet: lengths of requests, how they arrive, and the latency they must meet."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from sizing.errors import ScenarioError
from sizing.numbers import Floats
from sizing.token_law import TokenLaw

RequestMetric = Literal["ttft", "itl", "e2e"]
OF_REQUESTS: tuple[RequestMetric, ...] = get_args(RequestMetric)
"""Latencies of which every request has one value; `gap` has one for every token after a request's first."""
Metric = Literal["ttft", "itl", "gap", "e2e"]
METRICS: tuple[Metric, ...] = get_args(Metric)
PERCENTILES = (50, 90, 95, 99)
ArrivalKind = Literal["poisson", "constant", "gamma", "batch"]
Routing = Literal["random", "round_robin", "power_of_two", "least_outstanding"]
ROUTINGS: tuple[Routing, ...] = get_args(Routing)
MOST_TOKENS = 1e9
"""The longest mean prompt or output: sums of lengths over a long run stay within 64-bit integers."""
Tokens = NDArray[np.int64]
Seconds = NDArray[np.float64]


def finite(name: str, value: float, *, above: float = 0.0, unit: str = "") -> float:
    """`value` if it is a finite number greater than `above`, else a ScenarioError that names the field."""
    if not math.isfinite(value) or value <= above:
        raise ScenarioError(f"{name} must be a number above {above:g}{unit}, got {value:g}")
    return float(value)


SAME_TOKENS, SAME_CV = 0.02, 0.05
"""Relative difference of mean lengths, and difference of their variations, that still count as the same lengths."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Input and output tokens of a request: means, and coefficients of variation (0 = every request the same).

    Variable lengths are lognormal, rounded to tokens, at least 1 input and 1 output token, unless `isl_law` or
    `osl_law` says how they vary: then the law is stretched to the mean, and its coefficient of variation is taken.
    `correlation`: of the logarithms of the two lengths of a request (long questions, long answers), -1 to 1; of other
    laws that of the normal deviates of their quantiles.

    >>> Lengths(isl=2000, osl=256).sample(2, np.random.default_rng(0))
    (array([2000, 2000]), array([256, 256]))
    """

    isl: float
    osl: float
    isl_cv: float = 0.0
    osl_cv: float = 0.0
    correlation: float = 0.0
    isl_law: TokenLaw | None = None
    osl_law: TokenLaw | None = None

    def __post_init__(self) -> None:
        for name in ("isl", "osl"):
            value = finite(f"{name.upper()} (tokens)", getattr(self, name))
            if not 1 <= value <= MOST_TOKENS:
                bound = "at least 1 token" if value < 1 else f"at most {MOST_TOKENS:g} tokens"
                raise ScenarioError(f"{name.upper()} must be {bound}, got {value:g}")
        for name in ("isl_cv", "osl_cv"):
            finite(name, getattr(self, name), above=-1e-12)
        if not -1 <= self.correlation <= 1:
            raise ScenarioError(f"correlation of ISL and OSL must be from -1 to 1, got {self.correlation:g}")
        for name, law in (("isl_cv", self.isl_law), ("osl_cv", self.osl_law)):
            if law is not None:
                object.__setattr__(self, name, law.cv)

    def is_like(self, other: Lengths) -> bool:
        """True where a measurement at the one tells of the other: means within 2 %, coefficients of variation within
        0.05.

        >>> Lengths(2000, 256).is_like(Lengths(2020, 256, 0.04)), Lengths(2000, 256).is_like(Lengths(2000, 300))
        (True, False)
        """
        means = ((self.isl, other.isl), (self.osl, other.osl))
        variations = ((self.isl_cv, other.isl_cv), (self.osl_cv, other.osl_cv))
        return all(math.isclose(*pair, rel_tol=SAME_TOKENS) for pair in means) and all(
            math.isclose(*pair, abs_tol=SAME_CV) for pair in variations
        )

    def sample(self, n: int, rng: np.random.Generator) -> tuple[Tokens, Tokens]:
        """`n` pairs of (input, output) tokens, two int64 arrays of shape (n,)."""
        of_isl = rng.standard_normal(n) if self.isl_cv else np.zeros(n)
        of_osl = rng.standard_normal(n) if self.osl_cv else np.zeros(n)
        isl, osl = self.at(of_isl, of_osl)
        return isl.astype(np.int64), osl.astype(np.int64)

    def at(self, of_isl: Floats, of_osl: Floats) -> tuple[Floats, Floats]:
        """Whole input and output tokens at independent standard normal deviates, correlated here; shapes as given."""
        if self.correlation:
            of_osl = self.correlation * of_isl + math.sqrt(1 - self.correlation**2) * of_osl
        return self.isl_at(of_isl), self.osl_at(of_osl)

    def isl_at(self, normal: Floats) -> Floats:
        """Whole input tokens at standard normal deviates; shape as given."""
        return tokens_at(self.isl, self.isl_cv, self.isl_law, normal)

    def osl_at(self, normal: Floats) -> Floats:
        """Whole output tokens at standard normal deviates; shape as given."""
        return tokens_at(self.osl, self.osl_cv, self.osl_law, normal)

    @property
    def fixed(self) -> bool:
        """True when every request has the same two lengths."""
        return self.isl_cv == 0 and self.osl_cv == 0


def tokens_at(mean: float, cv: float, law: TokenLaw | None, normal: Floats) -> Floats:
    """Whole tokens (at least 1) at standard normal deviates: of `law` stretched to `mean`, else lognormal."""
    if law is None:
        return lognormal_tokens(mean, cv, normal)
    from scipy.special import ndtr  # as slow to import as all the rest, and only laws of their own need it

    tokens = law.at(ndtr(normal))
    return tokens if mean == law.mean else np.maximum(1.0, np.rint(tokens * (mean / law.mean)))


def lognormal_tokens(mean: float, cv: float, normal: Floats) -> Floats:
    """Whole tokens (at least 1) of a lognormal law at the standard normal deviates `normal`."""
    sigma = math.sqrt(math.log1p(cv * cv))
    return np.maximum(1.0, np.rint(mean * np.exp(sigma * normal - sigma * sigma / 2)))


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The law of the gaps between requests; `cv` is their coefficient of variation (poisson 1, constant 0).

    *batch*: groups of `size` requests at the same instant, the groups at random (Poisson).

    >>> Arrivals.parse("gamma:cv=2")
    Arrivals(kind='gamma', cv=2.0, size=1)
    """

    kind: ArrivalKind = "poisson"
    cv: float = 1.0
    size: int = 1

    def __post_init__(self) -> None:
        if self.kind == "gamma":
            finite("arrivals cv", self.cv)
        if self.size < 1 or (self.size > 1 and self.kind != "batch"):
            raise ScenarioError(f"arrivals: size must be 1 or more, and 1 unless they are batch, got {self.size}")

    @classmethod
    def parse(cls, text: str) -> Arrivals:
        """Read ``poisson``, ``constant``, ``gamma:cv=2`` or ``batch:size=8``."""
        if text == "poisson":
            return cls("poisson", 1.0)
        if text == "constant":
            return cls("constant", 0.0)
        if found := re.fullmatch(r"batch:size=([0-9]{1,6})", text):
            return cls.batches(int(found[1]))
        found = re.fullmatch(r"gamma:cv=([0-9.]+)", text)
        if not found:
            raise ScenarioError(
                f"arrivals {text!r}: use poisson, constant, gamma:cv=NUMBER (for instance gamma:cv=2) or "
                "batch:size=NUMBER (for instance batch:size=8)"
            )
        return cls("gamma", _number("arrivals cv", found[1]))

    @classmethod
    def batches(cls, size: int) -> Arrivals:
        """Groups of `size` at random: of the gaps one in `size` is exponential, the others are 0."""
        return cls("batch", math.sqrt(2 * max(size, 1) - 1), size)

    def gaps(self, n: int, rate_per_s: float, rng: np.random.Generator, merged: int = 1) -> Seconds:
        """`n` gaps in seconds with mean ``merged / rate_per_s``: each the sum of `merged` gaps of the stream.

        ``merged=R`` is what one replica sees behind round robin over R replicas, exactly.
        """
        mean_s = merged / rate_per_s
        if self.kind == "constant":
            return np.full(n, mean_s)
        if self.kind == "batch":
            groups = np.diff((merged * np.arange(1, n + 1)) // self.size, prepend=0)
            return np.where(groups > 0, rng.gamma(np.maximum(groups, 1), self.size / rate_per_s), 0.0)
        shape = merged if self.kind == "poisson" else merged / self.cv**2
        return rng.gamma(shape, mean_s / shape, n)

    def __str__(self) -> str:
        return {"gamma": f"gamma:cv={self.cv:g}", "batch": f"batch:size={self.size}"}.get(self.kind, self.kind)


def metric_name(metric: Metric) -> str:
    """As it is written in a sentence: TTFT, ITL, gap, E2E."""
    return metric if metric == "gap" else metric.upper()


@dataclass(frozen=True, slots=True)
class Limit:
    """One promise: the p-th percentile of a metric stays at or below `limit_s` seconds.

    TTFT, ITL and E2E: of all requests, each with one value. Gap: of all times between two successive tokens of a
    request, those of all requests pooled.

    >>> Limit.parse("ttft", "p95:1s")
    Limit(metric='ttft', percentile=95, limit_s=1.0)
    """

    metric: Metric
    percentile: int
    limit_s: float

    def __post_init__(self) -> None:
        finite(f"{metric_name(self.metric)} limit", self.limit_s, unit=" s")
        if self.percentile not in PERCENTILES:
            raise ScenarioError(
                f"{metric_name(self.metric)}: percentile p{self.percentile} is not one of p50, p90, p95, p99"
            )

    @classmethod
    def parse(cls, metric: Metric, text: str) -> Limit:
        """Read ``p95:1s`` or ``p99:30ms``."""
        return cls(metric, *parse_limit(f"--{metric}", text))

    @property
    def key(self) -> str:
        """What is limited, as JSON has it."""
        return self.metric

    @property
    def subject(self) -> str:
        """What is limited, in words; an SLA has one limit on each."""
        return metric_name(self.metric)

    @property
    def name(self) -> str:
        """For instance: p95 TTFT."""
        return f"p{self.percentile} {self.subject}"

    def __str__(self) -> str:
        return f"{self.name} <= {self.limit_s * 1000:g} ms"


def parse_limit(name: str, text: str) -> tuple[int, float]:
    """Read ``p95:1s`` as a percentile and seconds; `name` is of the option."""
    percentile, _, time = text.strip().partition(":")
    if not re.fullmatch("p[0-9]{1,9}", percentile) or not time:
        raise ScenarioError(f"{name} {text!r}: write it as percentile:time, for instance p95:1s or p99:30ms")
    return int(percentile[1:]), parse_seconds(name, time)


def parse_seconds(name: str, text: str) -> float:
    """Read a time with its unit (s, ms, us, ns) as seconds.

    >>> parse_seconds("--itl", "30ms")
    0.03
    """
    units = {"ms": 1e-3, "us": 1e-6, "ns": 1e-9, "s": 1.0}
    unit = next((unit for unit in units if text.rstrip().endswith(unit)), None)
    if unit is None:
        raise ScenarioError(f"{name}: {text!r} needs a unit: s, ms, us or ns, for instance 30ms")
    number = _number(name, text.rstrip().removesuffix(unit))
    if not math.isfinite(number):
        raise ScenarioError(f"{name}: {text!r} is not a finite time")
    return number * units[unit]


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ScenarioError(f"{name}: {text!r} is not a number") from None


@dataclass(frozen=True, slots=True, init=False)
class Sla:
    """Limits on TTFT, ITL, E2E and the gap between tokens, one of each at most and one in all at least; all must hold.

    `limits` stand in the order TTFT, ITL, gap, E2E, whatever the order they were given in; None among them is left out.

    >>> str(Sla(Limit("itl", 95, 0.03), Limit("ttft", 99, 1.0)))
    'p99 TTFT <= 1000 ms and p95 ITL <= 30 ms'
    """

    limits: tuple[Limit, ...]

    def __init__(self, *limits: Limit | None) -> None:
        given = sorted((each for each in limits if each is not None), key=lambda each: METRICS.index(each.metric))
        for one, next_ in pairwise(given):
            if one.subject == next_.subject:
                raise ScenarioError(f"the SLA has two limits on {one.subject}: {one} and {next_}")
        if not given:
            raise ScenarioError(
                "the SLA needs at least one limit on TTFT, ITL, E2E or the gap between tokens, for instance a p95 TTFT "
                "of 1 s"
            )
        object.__setattr__(self, "limits", tuple(given))

    def on(self, metric: Metric) -> Limit | None:
        """The limit on this metric, None when there is none."""
        return next((limit for limit in self.limits if limit.metric == metric), None)

    def with_limits(self, *limits: Limit) -> Sla:
        """This SLA with these limits in place of its own on the same metrics."""
        replaced = {limit.metric for limit in limits}
        return Sla(*(limit for limit in self.limits if limit.metric not in replaced), *limits)

    @property
    def ttft(self) -> Limit | None:
        """The limit on TTFT, None when there is none."""
        return self.on("ttft")

    @property
    def itl(self) -> Limit | None:
        """The limit on ITL, None when there is none."""
        return self.on("itl")

    @property
    def gap(self) -> Limit | None:
        """The limit on the gap between tokens, None when there is none."""
        return self.on("gap")

    @property
    def e2e(self) -> Limit | None:
        """The limit on E2E, None when there is none."""
        return self.on("e2e")

    def __str__(self) -> str:
        return " and ".join(map(str, self.limits))


@dataclass(frozen=True, slots=True)
class Prefix:
    """A prefix that prompts share (system prompt, document): `tokens` of a prompt, found in the KV cache with chance
    `hit_rate`. Found tokens are not computed again and take no memory of their own; they are still attended to.
    """

    tokens: int = 0
    hit_rate: float = 0.0

    def __post_init__(self) -> None:
        if self.tokens < 0 or not 0 <= self.hit_rate <= 1:
            raise ScenarioError(
                f"prefix: tokens must be 0 or more and hit_rate from 0 to 1, got {self.tokens} and {self.hit_rate:g}"
            )

    @property
    def rounded(self) -> Prefix:
        """With chances in tenths, for comparing what a server counts; nothing found is no prefix."""
        return Prefix(self.tokens, max(round(self.hit_rate, 1), 0.1)) if self.tokens * self.hit_rate else Prefix()

    @property
    def label(self) -> str:
        """After lengths, in words: ``, 512 shared (90 % cached)``; empty where nothing is found."""
        found = self.tokens * self.hit_rate
        return f", {self.tokens:,} shared ({self.hit_rate:.0%} cached)".replace("%", " %") if found else ""


TurnLaw = Literal["geometric", "fixed"]


@dataclass(frozen=True, slots=True)
class Sessions:
    """Conversations, or the steps of agents: `rate_per_s` sessions start per second (Poisson), each of several turns.

    The prompt of a turn is everything before it and new tokens: `system_tokens` that all sessions begin with and
    `first_tokens` at the start, then at each later turn the last answer and `user_tokens` (a question, or what a tool
    returned). An answer has `output_tokens`. Tokens are means, lognormal with the coefficient of variation that follows
    them, at least 1. Between a complete answer and the next turn passes an exponential time of mean `think_s`, in which
    a user reads and writes or a tool works. The number of turns has the mean `turns`: geometric, or the same for all.
    A turn that would bring its session beyond `context_tokens`, prompt and answer, is not sent and ends it (0: no such
    limit).

    >>> Sessions(0.5, turns=4, first_tokens=1000, user_tokens=100, output_tokens=200).requests_per_s
    2.0
    """

    rate_per_s: float
    turns: float
    first_tokens: float
    user_tokens: float
    output_tokens: float
    first_cv: float = 0.0
    user_cv: float = 0.0
    output_cv: float = 0.0
    think_s: float = 0.0
    system_tokens: int = 0
    context_tokens: int = 0
    turn_law: TurnLaw = "geometric"

    def __post_init__(self) -> None:
        finite("rate (sessions/s)", self.rate_per_s)
        for name in ("turns", "first_tokens", "user_tokens", "output_tokens"):
            if not 1 <= finite(name, getattr(self, name)) <= MOST_TOKENS:
                raise ScenarioError(f"{name} must be from 1 to {MOST_TOKENS:g}, got {getattr(self, name):g}")
        for name in ("first_cv", "user_cv", "output_cv", "think_s"):
            finite(name, getattr(self, name), above=-1e-12)
        for name in ("system_tokens", "context_tokens"):
            if not 0 <= getattr(self, name) <= MOST_TOKENS:
                raise ScenarioError(f"{name} must be from 0 to {MOST_TOKENS:g}, got {getattr(self, name)}")
        if self.turn_law not in get_args(TurnLaw):
            raise ScenarioError(f"turn_law {self.turn_law!r} is not one of {', '.join(get_args(TurnLaw))}")
        if self.turn_law == "fixed" and self.turns != round(self.turns):
            raise ScenarioError(f"turns must be a whole number if all sessions have as many, got {self.turns:g}")

    @property
    def requests_per_s(self) -> float:
        """Turns per second, all sessions together, where no context ends one early."""
        return self.rate_per_s * self.turns


@dataclass(frozen=True, slots=True)
class Workload:
    """A stream of requests offered to a fleet: `rate_per_s` requests per second in all.

    `queue_timeout_s`: a request that a replica has kept waiting so long without starting it is dropped.
    `cancel_s`: a client gives up so long after sending, wherever its request is, and the engine stops computing it.
    """

    lengths: Lengths
    rate_per_s: float
    arrivals: Arrivals = Arrivals()
    prefix: Prefix = Prefix()
    queue_timeout_s: float = math.inf
    cancel_s: float = math.inf

    def __post_init__(self) -> None:
        finite("rate (requests/s)", self.rate_per_s)
        for name in ("queue_timeout_s", "cancel_s"):
            if not getattr(self, name) > 0:
                raise ScenarioError(f"{name} must be above 0 s, got {getattr(self, name):g}")
