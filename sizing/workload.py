"""The load and the promise: lengths of requests, how they arrive, and the latency they must meet."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal, NamedTuple, cast, get_args

import numpy as np
from numpy.typing import NDArray

from sizing.errors import ScenarioError
from sizing.numbers import Floats, milliseconds, percent, significant
from sizing.token_law import TokenLaw

RequestMetric = Literal["ttft", "itl", "e2e"]
OF_REQUESTS: tuple[RequestMetric, ...] = get_args(RequestMetric)
"""Latencies with one value per request; `gap` has one for every token after a request's first."""
Metric = Literal["ttft", "itl", "gap", "e2e"]
METRICS: tuple[Metric, ...] = get_args(Metric)
ShareOfRequests = Literal["goodput", "rejected"]
SHARES: tuple[ShareOfRequests, ...] = get_args(ShareOfRequests)
"""Metrics whose limit is a share of all requests: those within every limit at once, those turned away."""
Limited = Metric | ShareOfRequests
LIMITED: tuple[Limited, ...] = (*METRICS, *SHARES)
PERCENTILES, GAP_PERCENTILES = (50, 90, 95, 99), (50, 95, 99)
"""Percentiles that are predicted and may be limited, and those of gaps between tokens that points have."""
LEAST_GOODPUT, MOST_GOODPUT = 50.0, 99.9
"""Per cent; in tenths. Beyond, a run that decides has too few requests for an answer."""
MOST_REJECTED = 0.5
Within = tuple[tuple[RequestMetric, float], ...]
"""Limits, in seconds, that a request must meet all at once."""
ArrivalKind = Literal["poisson", "constant", "gamma", "batch"]
Routing = Literal["random", "round_robin", "power_of_two", "least_outstanding"]
ROUTINGS: tuple[Routing, ...] = get_args(Routing)
MOST_TOKENS = 1e9
"""The longest mean prompt or output: sums of lengths over a long run stay within 64-bit integers."""
MOST_CV = 1000.0
"""Of lengths: with far more, all requests but a few in a million would have a single token."""
Tokens = NDArray[np.int64]
Seconds = NDArray[np.float64]


def finite(name: str, value: float, *, above: float = 0.0, unit: str = "") -> float:
    """`value` if it is a finite number greater than `above`, else a ScenarioError that names the field."""
    if not math.isfinite(value) or value <= above:
        least = f"above {above:g}" if above >= 0 else "from 0 on"
        raise ScenarioError(f"{name} must be a number {least}{unit}, got {value:g}")
    return float(value)


SAME_TOKENS, SAME_CV = 0.02, 0.05
"""Relative difference of mean lengths, and difference of their variations, that still count as the same lengths."""
NORMAL_99 = 2.326
"""99 % of standard normal deviates are below."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Input and output tokens of a request: means, and coefficients of variation (0 = every request the same).

    Variable lengths are lognormal, rounded to tokens, at least 1 input and 1 output token, unless `isl_law` or
    `osl_law` gives another distribution: then it is stretched to the mean, and its coefficient of variation is used.
    `correlation`: of the logarithms of the two lengths of a request (long questions, long answers), -1 to 1; for other
    distributions, that of the normal deviates of their quantiles.

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
            elif getattr(self, name) > MOST_CV:
                raise ScenarioError(f"{name} must be at most {MOST_CV:g}, got {getattr(self, name):g}")

    def is_like(self, other: Lengths) -> bool:
        """True if a measurement at one says something about the other: means within 2 %, coefficients of variation
        within 0.05.

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
        if self.correlation and self.isl_cv and self.osl_cv:  # a constant correlates with nothing
            of_osl = self.correlation * of_isl + math.sqrt(1 - self.correlation**2) * of_osl
        return self.isl_at(of_isl), self.osl_at(of_osl)

    def isl_at(self, normal: Floats) -> Floats:
        """Whole input tokens at standard normal deviates; shape as given."""
        return tokens_at(self.isl, self.isl_cv, self.isl_law, normal)

    def osl_at(self, normal: Floats) -> Floats:
        """Whole output tokens at standard normal deviates; shape as given."""
        return tokens_at(self.osl, self.osl_cv, self.osl_law, normal)

    @property
    def alike(self) -> bool:
        """True when all answers are equally long, so that requests which start together end together: behind the least
        busy replica these may herd, whatever their prompts."""
        return self.osl_cv == 0

    @property
    def without_gaps(self) -> bool:
        """True when fewer than one answer in a hundred has a second token."""
        return self.osl < 2 and bool(self.osl_at(np.array(NORMAL_99)) < 2)

    @property
    def fixed(self) -> bool:
        """True when every request has the same two lengths."""
        return self.isl_cv == 0 and self.osl_cv == 0


def tokens_at(mean: float, cv: float, law: TokenLaw | None, normal: Floats) -> Floats:
    """Whole tokens (at least 1) at standard normal deviates: of `law` stretched to `mean`, else lognormal."""
    if law is None:
        return lognormal_tokens(mean, cv, normal)
    from scipy.special import ndtr  # as slow to import as all the rest, and only other distributions need it

    tokens = law.at(ndtr(normal))
    return tokens if mean == law.mean else np.maximum(1.0, np.rint(tokens * (mean / law.mean)))


def lognormal_tokens(mean: float, cv: float, normal: Floats) -> Floats:
    """Whole tokens (at least 1) of a lognormal distribution at the standard normal deviates `normal`."""
    if cv == 0:
        return np.full(np.shape(normal), max(1.0, np.rint(mean)))
    sigma = math.sqrt(math.log1p(cv * cv))
    return np.maximum(1.0, np.rint(mean * np.exp(sigma * normal - sigma * sigma / 2)))


LEAST_ARRIVAL_CV, MOST_ARRIVAL_CV = 0.01, 100.0


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The distribution of the gaps between requests; `cv` is their coefficient of variation, which only *gamma* leaves
    open: any other given is replaced by that of the kind (poisson 1, constant 0).

    *batch*: groups of `size` requests at the same instant, the groups at random (Poisson).

    >>> Arrivals.parse("gamma:cv=2")
    Arrivals(kind='gamma', cv=2.0, size=1)
    """

    kind: ArrivalKind = "poisson"
    cv: float = 1.0
    size: int = 1

    def __post_init__(self) -> None:
        if self.kind == "gamma" and not LEAST_ARRIVAL_CV <= finite("arrivals cv", self.cv) <= MOST_ARRIVAL_CV:
            bounds = f"from {LEAST_ARRIVAL_CV:g} to {MOST_ARRIVAL_CV:g}"
            raise ScenarioError(f"arrivals: cv must be {bounds}, got {self.cv:g}")
        if self.size < 1 or (self.size > 1 and self.kind != "batch"):
            raise ScenarioError(f"arrivals: size must be 1 or more, and 1 unless they are batch, got {self.size}")
        if self.kind != "gamma":  # of a batch one gap is exponential, the others are 0
            implied = {"poisson": 1.0, "constant": 0.0, "batch": math.sqrt(2 * self.size - 1)}
            object.__setattr__(self, "cv", implied[self.kind])

    @classmethod
    def parse(cls, text: str) -> Arrivals:
        """Read ``poisson``, ``constant``, ``gamma:cv=2`` or ``batch:size=8``."""
        if text in ("poisson", "constant"):
            return cls(cast("ArrivalKind", text))
        if found := re.fullmatch(r"batch:size=([0-9]{1,6})", text):
            return cls("batch", size=int(found[1]))
        found = re.fullmatch(r"gamma:cv=([0-9.]+)", text)
        if not found:
            raise ScenarioError(
                f"arrivals {text!r}: use poisson, constant, gamma:cv=NUMBER (for instance gamma:cv=2) or "
                "batch:size=NUMBER (for instance batch:size=8)"
            )
        return cls("gamma", _number("arrivals cv", found[1]))

    @property
    def thin_among(self) -> int:
        """Replicas among which bursts are so thin that more of them hardly help: four for each request of a batch, or
        of an equally bursty stream; 1 if arrivals are no burstier than Poisson."""
        return 4 * math.ceil((self.cv**2 + 1) / 2) if self.cv > 1 else 1

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

    def times(self, n: int, rate_per_s: float, rng: np.random.Generator) -> Seconds:
        """Times in seconds from the start, shape (n,), of `n` arrivals of a measurement, the last at exactly
        ``n / rate_per_s``.

        For Poisson arrivals this is a Poisson stream given its count in that time: gaps are as random as ever, but the
        rate is exactly the one requested. Left to chance, the rate of 600 arrivals would be off by 4 %, and latencies
        near saturation by far more.

        >>> Arrivals.parse("constant").times(4, 4.0, np.random.default_rng(0))
        array([0.25, 0.5 , 0.75, 1.  ])
        """
        if n == 0:
            return np.empty(0)
        times_s = np.cumsum(self.gaps(n, rate_per_s, rng))
        return np.asarray(times_s * (n / rate_per_s / times_s[-1]))

    def __str__(self) -> str:
        return {"gamma": f"gamma:cv={self.cv:g}", "batch": f"batch:size={self.size}"}.get(self.kind, self.kind)


def metric_name(metric: Limited) -> str:
    """The metric's name in a sentence: TTFT, ITL, gap, E2E, goodput."""
    return metric.upper() if metric in OF_REQUESTS else metric


def of_requests(share: float) -> str:
    """A share of the requests in per cent, to four digits: goodput differs only far behind the decimal point.

    >>> of_requests(0.99871), of_requests(0.005)
    ('99.87 %', '0.5 %')
    """
    return f"{100 * share:.4g} %" if share > 0.5 else f"{significant(100 * share)} %"


def limited_name(metric: Limited, percentile: float) -> str:
    """What a limit refers to: p95 TTFT, 99 % goodput, rejected."""
    if metric == "rejected":
        return "rejected"
    of = metric_name(metric)
    return f"{percentile:g} % {of}" if metric == "goodput" else f"p{percentile} {of}"


@dataclass(frozen=True, slots=True)
class Limit:
    """One promise: the p-th percentile of a metric stays at or below `limit_s` seconds.

    TTFT, ITL and E2E: over all requests, each with one value. Gap: over all times between two successive tokens of a
    request, pooled over all requests. Without a percentile (0) the limit is one of those that `goodput` judges by, and
    no promise of its own.

    *goodput*: `percentile` per cent of all requests meet the limits `within` all at once (DistServe, Zhong et al. 2024,
    arXiv 2401.09670). Its value is the largest share of a limit that a request uses up, and `limit_s` of it, usually 1,
    is allowed; requests that are not served use up more than any. An `Sla` fills in `within`.

    *rejected*: at most the share `limit_s` of all requests is rejected or times out in the queue.

    >>> Limit.parse("ttft", "p95:1s")
    Limit(metric='ttft', percentile=95, limit_s=1.0)
    >>> str(Limit.parse("rejected", "0.5%"))
    'rejected <= 0.5 %'
    """

    metric: Limited
    percentile: float
    limit_s: float
    within: Within = field(default=(), repr=False)

    def __post_init__(self) -> None:
        finite(f"{metric_name(self.metric)} limit", self.limit_s, unit=" s" if self.metric in METRICS else "")
        if self.metric == "rejected":
            if self.limit_s > MOST_REJECTED:
                raise ScenarioError(
                    f"rejected must be at most {MOST_REJECTED:.0%} of the requests, got {self.limit_s:.4g}"
                )
            object.__setattr__(self, "percentile", 100 * (1 - self.limit_s))
        elif self.metric == "goodput":
            tenths = round(10 * self.percentile)
            if not (LEAST_GOODPUT <= self.percentile <= MOST_GOODPUT and math.isclose(tenths, 10 * self.percentile)):
                raise ScenarioError(
                    f"goodput must be from {LEAST_GOODPUT:g} to {MOST_GOODPUT:g} %, in tenths, got {self.percentile:g}"
                )
        elif self.percentile not in (PERCENTILES if self.metric == "gap" else (0, *PERCENTILES)):
            raise ScenarioError(
                f"{metric_name(self.metric)}: percentile p{self.percentile:g} is not one of p50, p90, p95, p99"
            )
        else:
            object.__setattr__(self, "percentile", int(self.percentile))  # Quantiles has them by name: p95_s

    @classmethod
    def goodput(cls, percent: float) -> Limit:
        """This per cent of the requests meet every limit at once."""
        return cls("goodput", percent, 1.0)

    @classmethod
    def rejected(cls, percent: float) -> Limit:
        """At most this per cent of the requests are rejected or time out."""
        return cls("rejected", 100 - percent, percent / 100)

    @classmethod
    def parse(cls, metric: Limited, text: str) -> Limit:
        """Read ``p95:1s`` or ``p99:30ms``, with goodput also ``1s``; for a share of the requests ``99.5%``."""
        if metric in SHARES:
            given = _percent(metric, text)
            return cls.goodput(given) if metric == "goodput" else cls.rejected(given)
        if ":" not in text and metric != "gap" and re.fullmatch(r"[0-9.]+ *[mun]?s", text.strip()):
            return cls(metric, 0, parse_seconds(f"--{metric}", text.strip()))
        percentile, limit_s = parse_limit(f"--{metric}", text)
        if percentile not in PERCENTILES:
            raise ScenarioError(f"{metric_name(metric)}: percentile p{percentile} is not one of p50, p90, p95, p99")
        return cls(metric, percentile, limit_s)

    @property
    def key(self) -> str:
        """What is limited, as JSON has it."""
        return self.metric

    @property
    def subject(self) -> str:
        """What is limited, in words; an SLA has one limit on each."""
        return metric_name(self.metric)

    @property
    def text(self) -> str:
        """In the form that `parse` reads."""
        if self.metric in SHARES:
            return f"{self.percentile if self.metric == 'goodput' else 100 * self.limit_s:.12g}%"
        return f"p{self.percentile}:{self.limit_s:.12g}s" if self.percentile else f"{self.limit_s:.12g}s"

    @property
    def name(self) -> str:
        """For instance: p95 TTFT, 99 % goodput."""
        if self.metric in SHARES:
            return limited_name(self.metric, self.percentile)
        return f"p{self.percentile} {self.subject}"

    @property
    def may_exceed(self) -> float:
        """The share of the requests, or of the gaps, that may be beyond the limit."""
        return 1 - self.percentile / 100

    def allows(self, beyond: float) -> bool:
        """True if so large a share may be beyond the limit; exactly 1 - p may round to above it."""
        return self.percentile + 100 * beyond <= 100 + 1e-9

    def said(self, value: float) -> str:
        """A value of the limited metric: a time in the unit of the limit, E2E in seconds unless its limit is less than
        one, or per cent of the limits used up or of the requests."""
        if self.metric == "goodput":
            return f"{percent(value)} of the limits"
        if self.metric == "rejected":
            return of_requests(value)
        in_seconds = self.metric == "e2e" and self.limit_s >= 1
        return milliseconds(value, math.inf if in_seconds else self.limit_s)

    @property
    def allowed(self) -> str:
        """What the limit requires, in words: at most a time or a share of the requests; for goodput, their least
        share."""
        return of_requests(self.percentile / 100) if self.metric == "goodput" else self.said(self.limit_s)

    def __str__(self) -> str:
        if self.metric == "goodput":
            kept = ", ".join(f"{metric_name(each)} {self.limit_s * s * 1000:g} ms" for each, s in self.within)
            return f"{self.name} within {kept}"
        allowed = f"{100 * self.limit_s:g} %" if self.metric == "rejected" else f"{self.limit_s * 1000:g} ms"
        return f"{self.name} <= {allowed}"


def _percent(metric: Limited, text: str) -> float:
    """Read a share of the requests with its sign, ``99.5%``, as per cent."""
    found = re.fullmatch(r"([0-9.]{1,12}) ?%", text.strip())
    if not found:
        example = "99%" if metric == "goodput" else "0.5%"
        raise ScenarioError(f"--{metric} {text!r}: write it in per cent, for instance {example}")
    return _number(f"--{metric}", found[1])


def parse_limit(name: str, text: str) -> tuple[int, float]:
    """Read ``p95:1s`` as a percentile and seconds; `name` is that of the option."""
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
    """Limits on TTFT, ITL, E2E and the gap between tokens, on goodput and on rejected requests, at most one of each and
    at least one in all; all must hold.

    `limits` are in this order whatever the order they were given in; None among them is left out. `thresholds` have no
    percentile and count for goodput alone. Goodput judges by every limit given on TTFT, ITL and E2E, with or without a
    percentile; the gap, of which a request has many, takes no part in it.

    >>> str(Sla(Limit("itl", 95, 0.03), Limit("ttft", 99, 1.0)))
    'p99 TTFT <= 1000 ms and p95 ITL <= 30 ms'
    """

    limits: tuple[Limit, ...]
    thresholds: tuple[Limit, ...]

    def __init__(self, *limits: Limit | None) -> None:
        given = sorted((each for each in limits if each is not None), key=lambda each: LIMITED.index(each.metric))
        for one, next_ in pairwise(given):
            if one.subject == next_.subject:
                raise ScenarioError(f"the SLA has two limits on {one.subject}: {one} and {next_}")
        if not given:
            raise ScenarioError(
                "the SLA needs at least one limit on TTFT, ITL, E2E or the gap between tokens, for instance a p95 TTFT "
                "of 1 s"
            )
        within = tuple((each.metric, each.limit_s) for each in given if each.metric in OF_REQUESTS)
        bare = [each for each in given if not each.percentile]
        asks_goodput = any(each.metric == "goodput" for each in given)
        if asks_goodput and not within:
            raise ScenarioError("goodput needs a limit on TTFT, ITL or E2E that requests are to keep, for instance 1s")
        if bare and not asks_goodput:
            name = metric_name(bare[0].metric)
            raise ScenarioError(
                f"the {name} limit needs a percentile unless goodput is asked for: write it as percentile:time, for "
                f"instance p95:{bare[0].text}"
            )
        kept = (replace(each, within=within) if each.metric == "goodput" else each for each in given if each.percentile)
        object.__setattr__(self, "limits", tuple(kept))
        object.__setattr__(self, "thresholds", tuple(bare))

    def on(self, metric: Limited) -> Limit | None:
        """The limit or threshold on this metric; None when there is none."""
        return next((limit for limit in self.given if limit.metric == metric), None)

    @property
    def given(self) -> tuple[Limit, ...]:
        """Thresholds and limits."""
        return (*self.thresholds, *self.limits)

    @property
    def latencies(self) -> tuple[Limit, ...]:
        """The limits for which a formula says how near the requests come to them: all but the one on rejected ones."""
        return tuple(limit for limit in self.limits if limit.metric != "rejected")

    @property
    def within(self) -> Within:
        """The limits that goodput judges by; empty if no goodput is required."""
        return next((limit.within for limit in self.limits if limit.metric == "goodput"), ())

    def with_limits(self, *limits: Limit) -> Sla:
        """This SLA with these limits in place of its own on the same metrics."""
        replaced = {limit.metric for limit in limits}
        return Sla(*(limit for limit in self.given if limit.metric not in replaced), *limits)

    def without(self, limit: Limit) -> Sla | None:
        """The other promises alone, among which goodput still judges by this limit; None if there are none."""
        others = [each for each in self.given if each != limit]
        if limit.metric in OF_REQUESTS and limit != self.goodput and self.goodput:
            others.append(replace(limit, percentile=0))
        if limit.metric == "goodput":
            others = [each for each in others if each.percentile]
        return Sla(*others) if others else None

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

    @property
    def goodput(self) -> Limit | None:
        """The limit on goodput, None when there is none."""
        return self.on("goodput")

    @property
    def rejected(self) -> Limit | None:
        """The limit on rejected requests, None when there is none."""
        return self.on("rejected")

    def __str__(self) -> str:
        return " and ".join(map(str, self.limits))


@dataclass(frozen=True, slots=True)
class Prefix:
    """A prefix that prompts share (system prompt, document): `tokens` of a prompt, found in the KV cache with
    probability `hit_rate`. Found tokens are not computed again, but still attended to. The requests of a replica that
    found the prefix hold one copy together; one that did not holds its own.
    """

    tokens: int = 0
    hit_rate: float = 0.0

    def __post_init__(self) -> None:
        if self.tokens < 0 or not 0 <= self.hit_rate <= 1:
            raise ScenarioError(
                f"prefix: tokens must be 0 or more and hit_rate from 0 to 1, got {self.tokens} and {self.hit_rate:g}"
            )

    def found_tokens(self, isl: float, isl_cv: float = 0.0) -> float:
        """Mean tokens found in a prompt of lognormal length: shorter prompts contain less than the prefix, and the last
        token of a prompt is always computed.

        >>> Prefix(800, 1.0).found_tokens(1000), round(Prefix(800, 1.0).found_tokens(1000, 0.3))
        (800.0, 766)
        """
        most = self.tokens + 1.0
        if not isl_cv:
            return self.hit_rate * (min(isl, most) - 1)
        sigma = math.sqrt(math.log1p(isl_cv**2))
        far = math.log(most / isl) / sigma  # mean of the shorter prompts, then of those that contain all of it
        shorter, longer = isl * _normal(far - sigma / 2), most * _normal(-far - sigma / 2)
        return self.hit_rate * (shorter + longer - 1)

    def held_tokens(self, requests: float, block_tokens: int = 1) -> float:
        """Mean KV tokens, in whole blocks, of the copy that this many requests of a replica share: it is held while one
        of them has found it."""
        chance = 1 - math.pow(1 - self.hit_rate, requests)
        return math.ceil(self.tokens / block_tokens) * block_tokens * chance

    @property
    def rounded(self) -> Prefix:
        """With hit rates in tenths, for comparing what a server counts; nothing found is no prefix."""
        return Prefix(self.tokens, max(round(self.hit_rate, 1), 0.1)) if self.tokens * self.hit_rate else Prefix()

    @property
    def label(self) -> str:
        """After lengths, in words: ``, 512 shared (90 % cached)``; empty if nothing is found."""
        found = self.tokens * self.hit_rate
        return f", {self.tokens:,} shared ({self.hit_rate:.0%} cached)".replace("%", " %") if found else ""


NO_PREFIX = Prefix()


def _normal(deviate: float) -> float:
    """The probability that a standard normal variable is below `deviate`."""
    return 0.5 * math.erfc(-deviate / math.sqrt(2))


TurnLaw = Literal["geometric", "fixed"]


@dataclass(frozen=True, slots=True)
class Sessions:
    """Conversations, or the steps of agents: `rate_per_s` sessions start per second (Poisson), each of several turns.

    The prompt of a turn is everything before it plus new tokens: `system_tokens` that all sessions begin with and
    `first_tokens` at the start, then at each later turn the last answer and `user_tokens` (a question, or the output of
    a tool). An answer has `output_tokens`. Tokens are means, lognormal with the coefficient of variation that follows
    them, at least 1. Between a complete answer and the next turn passes an exponential time of mean `think_s`, in which
    a user reads and writes or a tool works. The number of turns has the mean `turns`: geometric, or the same for all. A
    turn that would bring its session beyond `context_tokens`, prompt and answer, is not sent and ends it (0: no such
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
        for name in ("first_cv", "user_cv", "output_cv"):
            if getattr(self, name) > MOST_CV:
                raise ScenarioError(f"{name} must be at most {MOST_CV:g}, got {getattr(self, name):g}")
        for name in ("system_tokens", "context_tokens"):
            if not 0 <= getattr(self, name) <= MOST_TOKENS:
                raise ScenarioError(f"{name} must be from 0 to {MOST_TOKENS:g}, got {getattr(self, name)}")
        if self.turn_law not in get_args(TurnLaw):
            raise ScenarioError(f"turn_law {self.turn_law!r} is not one of {', '.join(get_args(TurnLaw))}")
        if self.turn_law == "fixed" and self.turns != round(self.turns):
            raise ScenarioError(f"turns must be a whole number if all sessions have as many, got {self.turns:g}")

    @property
    def requests_per_s(self) -> float:
        """Turns per second, all sessions together, if no context ends one early."""
        return self.rate_per_s * self.turns

    def drawn(self, count: int, seed: Sequence[int], most_tokens: int = 0) -> Turns:
        """The turns of `count` sessions, session after session, without those beyond the context.

        No answer has more than `most_tokens` (0: no limit). Each quantity has its own random stream, numbered from 1 to
        5 after `seed`; other draws of a caller have other numbers.
        """
        numbers, firsts, users, answers, thinks = (np.random.default_rng([*seed, stream]) for stream in range(1, 6))
        fixed = self.turn_law == "fixed"
        turns = np.full(count, round(self.turns)) if fixed else numbers.geometric(1 / self.turns, count)
        first = np.cumsum(turns) - turns
        session = np.repeat(np.arange(count), turns)
        new = lognormal_tokens(self.user_tokens, self.user_cv, users.standard_normal(len(session)))
        new[first] = lognormal_tokens(self.first_tokens, self.first_cv, firsts.standard_normal(count))
        said = lognormal_tokens(self.output_tokens, self.output_cv, answers.standard_normal(len(session)))
        if most_tokens > 0:
            said = np.minimum(said, most_tokens)
        added = new.copy()
        added[1:] += said[:-1]  # a prompt repeats the answer before it, unless that is another session's
        added[first] = new[first]
        isl = (self.system_tokens + _within(added, first, session)).astype(np.int64)
        del added
        osl = said.astype(np.int64)
        think_s = thinks.exponential(self.think_s, len(session))
        found = Turns(session, new.astype(np.int64), isl, osl, think_s)
        if self.context_tokens <= 0:
            return found
        beyond = np.asarray(isl + osl > self.context_tokens, np.float64)
        sent = _within(beyond, first, session) == 0
        return Turns(*(array[sent] for array in found))


class Turns(NamedTuple):
    """Turns of sessions, session after session; arrays of shape (turns,).

    `new` tokens are those that are neither the system prompt nor said before; `isl` and `osl` are the whole prompt and
    the answer. `think_s` passes before a turn is sent, unless it is the first.
    """

    session: Tokens
    new: Tokens
    isl: Tokens
    osl: Tokens
    think_s: Seconds


def _within(values: Floats, first: Tokens, session: Tokens) -> Floats:
    """Running sums within each session, whose values begin at `first`."""
    sums = np.cumsum(values, dtype=np.float64)
    sums -= (sums[first] - values[first])[session]
    return sums


@dataclass(frozen=True, slots=True)
class Workload:
    """A stream of requests offered to a fleet: `rate_per_s` requests per second in all.

    `queue_limit`: a replica with this many waiting requests rejects further ones (0: no limit). `queue_timeout_s`: a
    request that a replica has kept waiting this long without starting it is dropped. `cancel_s`: a client gives up this
    long after sending, wherever its request is, and the engine stops computing it.
    """

    lengths: Lengths
    rate_per_s: float
    arrivals: Arrivals = Arrivals()
    prefix: Prefix = Prefix()
    queue_timeout_s: float = math.inf
    cancel_s: float = math.inf
    queue_limit: int = 0

    def __post_init__(self) -> None:
        finite("rate (requests/s)", self.rate_per_s)
        for name in ("queue_timeout_s", "cancel_s"):
            if not getattr(self, name) > 0:
                raise ScenarioError(f"{name} must be above 0 s, got {getattr(self, name):g}")
        if self.queue_limit < 0:
            raise ScenarioError(f"queue_limit must be 0 or more requests, got {self.queue_limit}")

    @property
    def admits_all(self) -> bool:
        """True if no request is ever rejected or given up, so that formulas hold."""
        return self.queue_limit == 0 and math.isinf(self.queue_timeout_s) and math.isinf(self.cancel_s)
