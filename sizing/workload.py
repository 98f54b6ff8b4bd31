"""What is asked of the fleet: lengths of requests, how they arrive, and the latency they must meet."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from sizing.errors import ScenarioError

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


@dataclass(frozen=True, slots=True)
class Lengths:
    """Input and output tokens of a request: means, and coefficients of variation (0 = every request the same).

    Variable lengths are lognormal, rounded to tokens, at least 1 input and 1 output token. `correlation`: of the
    logarithms of the two lengths of a request (long questions, long answers), -1 to 1.

    >>> Lengths(isl=2000, osl=256).sample(2, np.random.default_rng(0))
    (array([2000, 2000]), array([256, 256]))
    """

    isl: float
    osl: float
    isl_cv: float = 0.0
    osl_cv: float = 0.0
    correlation: float = 0.0

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

    def sample(self, n: int, rng: np.random.Generator) -> tuple[Tokens, Tokens]:
        """`n` pairs of (input, output) tokens, two int64 arrays of shape (n,)."""
        if self.fixed:
            return _lognormal_tokens(self.isl, 0.0, np.zeros(n)), _lognormal_tokens(self.osl, 0.0, np.zeros(n))
        of_isl = rng.standard_normal(n) if self.isl_cv else np.zeros(n)
        of_osl = rng.standard_normal(n) if self.osl_cv else np.zeros(n)
        if self.correlation:
            of_osl = self.correlation * of_isl + math.sqrt(1 - self.correlation**2) * of_osl
        return _lognormal_tokens(self.isl, self.isl_cv, of_isl), _lognormal_tokens(self.osl, self.osl_cv, of_osl)

    @property
    def fixed(self) -> bool:
        """True when every request has the same two lengths."""
        return self.isl_cv == 0 and self.osl_cv == 0


def _lognormal_tokens(mean: float, cv: float, normal: Seconds) -> Tokens:
    if cv == 0:
        return np.full(len(normal), max(1, round(mean)), np.int64)
    sigma = math.sqrt(math.log1p(cv * cv))
    draws = mean * np.exp(sigma * normal - sigma * sigma / 2)
    return np.maximum(1, np.rint(draws)).astype(np.int64)


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
        percentile, _, time = text.strip().partition(":")
        if not re.fullmatch("p[0-9]{1,9}", percentile) or not time:
            raise ScenarioError(f"--{metric} {text!r}: write it as percentile:time, for instance p95:1s or p99:30ms")
        return cls(metric, int(percentile[1:]), parse_seconds(f"--{metric}", time))

    @property
    def name(self) -> str:
        """For instance: p95 TTFT."""
        return f"p{self.percentile} {metric_name(self.metric)}"

    def __str__(self) -> str:
        return f"{self.name} <= {self.limit_s * 1000:g} ms"


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


@dataclass(frozen=True, slots=True)
class Sla:
    """Up to four limits, on TTFT, ITL, E2E and the gap between tokens, each with its own percentile; all must hold."""

    ttft: Limit | None = None
    itl: Limit | None = None
    e2e: Limit | None = None
    gap: Limit | None = None

    def __post_init__(self) -> None:
        if not self.limits:
            raise ScenarioError(
                "the SLA needs at least one limit on TTFT, ITL, E2E or the gap between tokens, for instance a p95 TTFT "
                "of 1 s"
            )

    @property
    def limits(self) -> tuple[Limit, ...]:
        """The limits that are set, in the order TTFT, ITL, gap, E2E."""
        return tuple(limit for limit in (self.ttft, self.itl, self.gap, self.e2e) if limit is not None)

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


# --- What a question may hold at most: bounds beyond which a number is a slip of the keyboard, not a fleet

MOST_RATE_PER_S = 1e6
MOST_SPARE = 10_000
MOST_HEADROOM = 0.95
MOST_PRICE = 1e6


def check_rate(rate_per_s: float) -> None:
    """ScenarioError above `MOST_RATE_PER_S` requests/s."""
    if rate_per_s > MOST_RATE_PER_S:
        raise ScenarioError(f"rate must be at most {MOST_RATE_PER_S:,.0f} requests/s, got {rate_per_s:g}")


def check_margins(headroom: float, spare: int) -> None:
    """ScenarioError unless the headroom is 0 to `MOST_HEADROOM` and the spares are 0 to `MOST_SPARE`."""
    if not 0 <= headroom <= MOST_HEADROOM:
        raise ScenarioError(f"headroom must be from 0 to {MOST_HEADROOM} (0.2 keeps 20 %), got {headroom:g}")
    if not 0 <= spare <= MOST_SPARE:
        raise ScenarioError(f"spare must be from 0 to {MOST_SPARE:,} replicas, got {spare}")


def check_price(name: str, price: float) -> None:
    """ScenarioError unless the price, called `name`, is a number from 0 to `MOST_PRICE`."""
    if not 0 <= price <= MOST_PRICE:
        raise ScenarioError(f"{name} must be 0 or more, and at most {MOST_PRICE:,.0f}, got {price:g}")


def check_priced(prices: Sequence[tuple[str, float]], general: float | None, gpus: Iterable[str]) -> None:
    """ScenarioError where some GPUs have a price and one of `gpus` has none: fleets could not be told apart."""
    named = [gpu for gpu, _ in prices]
    unknown = [gpu for gpu in gpus if gpu not in named]
    if named and unknown and general is None:
        raise ScenarioError(f"--price names {', '.join(named)} but not {unknown[0]}: give {unknown[0]}=PRICE as well")


def check_peak_factor(factor: float) -> None:
    """ScenarioError unless peak over mean is a finite number of 1 or more."""
    if not 1 <= factor < math.inf:
        raise ScenarioError(f"the peak factor must be 1 or more (peak over mean), got {factor:g}")


def check_gaps(lengths: Lengths, sla: Sla) -> None:
    """ScenarioError for a limit on ITL or gaps where a request has one output token, hence no gaps."""
    if (sla.itl or sla.gap) and lengths.osl < 2:
        which = "an ITL limit" if sla.itl else "a limit on gaps between tokens"
        raise ScenarioError(f"{which} needs OSL of 2 or more: with one output token there are no gaps")


def check_prefix(lengths: Lengths, prefix: Prefix) -> None:
    """ScenarioError for a shared prefix longer than the mean prompt that is to begin with it."""
    if prefix.tokens > lengths.isl:
        raise ScenarioError(f"prefix tokens must be at most ISL ({lengths.isl:g} tokens), got {prefix.tokens}")


def check_reserved(max_tokens: int, osl: float) -> None:
    """ScenarioError where engines would reserve fewer output tokens than the mean request needs; 0 reserves none."""
    if max_tokens < 0 or 0 < max_tokens < osl:
        raise ScenarioError(f"--max-tokens must be 0, or at least OSL ({osl:g} tokens), got {max_tokens}")
