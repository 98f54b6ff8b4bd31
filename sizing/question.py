"""The question a planner answers, defined once: its fields (unit, range, default, help, keys) and its value.

Options of the command line, keys of YAML files and JSON, parameters of links, ranges of the page's form and rows of
reports all come from `FIELDS`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, get_args

from sizing.errors import ScenarioError
from sizing.numbers import significant
from sizing.token_law import FORMS, TokenLaw, with_file
from sizing.workload import (
    LEAST_ARRIVAL_CV,
    LIMITED,
    METRICS,
    MOST_ARRIVAL_CV,
    MOST_TOKENS,
    Arrivals,
    Lengths,
    Limit,
    Prefix,
    Routing,
    Sla,
    Workload,
    metric_name,
    parse_seconds,
)


@dataclass(frozen=True, slots=True)
class Range:
    """The values a number may take, ends included, and their unit.

    >>> 3 in Range(0, 64, "replicas"), str(Range(0, 10_000, "replicas"))
    (True, 'from 0 to 10,000 replicas')
    """

    low: float
    high: float
    unit: str = ""

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def __str__(self) -> str:
        return f"from {significant(self.low)} to {significant(self.high)} {self.unit}".rstrip()


TOKENS = Range(1, MOST_TOKENS, "tokens")
VARIATION = Range(0, 100)
SHARE = Range(0, 1)
RATE = Range(1e-6, 1e6, "requests/s")
PEAK_FACTOR = Range(1, 100_000)
HEADROOM = Range(0, 0.95)
SPARE = Range(0, 10_000, "replicas")
LIMIT_S = Range(1e-9, 1e6, "s")
ARRIVAL_CV = Range(LEAST_ARRIVAL_CV, MOST_ARRIVAL_CV)
ARRIVAL_SIZE = Range(1, 999_999, "requests")
PRICE = Range(0, 1e6, "per GPU-hour")
QUEUE = Range(0, 1e6, "requests")
TIMEOUT_S = Range(1e-6, 1e6, "s")


@dataclass(frozen=True, slots=True)
class Field:
    """One thing a question says.

    `name`: that of the option (``--isl-cv``), of the key in YAML files and of the parameter in links; it never changes.
    `key`: in JSON, in reports and on the page, where it may name the unit. `path`: where a `Question` has the value.
    `label`: in reports; `help`: one line. A field whose `default` is None must be given, unless it is `optional`.
    `range` bounds numbers, `choices` names. `unit`: in reports, if the range has none. Reports leave a `quiet` field
    out while it has its default. `since`: the version of links that first had it.
    """

    name: str
    path: str
    label: str
    help: str
    range: Range | None = None
    default: float | str | None = None
    whole: bool = False
    optional: bool = False
    choices: tuple[str, ...] = ()
    key: str = ""
    unit: str = ""
    quiet: bool = False
    since: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", self.key or self.name)

    @property
    def entry(self) -> tuple[Any, Any]:
        """Type and default of the key in a file, as pydantic's `create_model` takes them."""
        kind: Any = str if self.range is None else int if self.whole else float
        if self.choices:
            kind = Literal[self.choices]
        if self.optional:
            return kind | None, None
        return kind, ... if self.default is None else self.default

    def of(self, question: Question) -> Any:
        """The question's value."""
        return attrgetter(self.path)(question)

    def check(self, value: float | None) -> None:
        """Raise ScenarioError, in the field's own words, for a number out of its range; None counts as no number."""
        if value is not None and self.range is not None and value not in self.range:
            raise ScenarioError(f"{self.name.replace('_', ' ')} must be {self.range}, got {value:g}")


FIELDS: dict[str, Field] = {
    field.name: field
    for field in (
        Field("model", "model", "Model", "Model name, for instance Qwen/Qwen3-32B."),
        Field("isl", "workload.lengths.isl", "Input tokens, mean (ISL)", "Mean input tokens per request.", TOKENS),
        Field("osl", "workload.lengths.osl", "Output tokens, mean (OSL)", "Mean output tokens per request.", TOKENS),
        Field(
            "isl_cv",
            "workload.lengths.isl_cv",
            "Input tokens, variation (CV)",
            "Coefficient of variation of ISL: standard deviation / mean.",
            VARIATION,
            0.0,
        ),
        Field(
            "osl_cv",
            "workload.lengths.osl_cv",
            "Output tokens, variation (CV)",
            "Coefficient of variation of OSL: standard deviation / mean.",
            VARIATION,
            0.0,
        ),
        Field(
            "isl_law",
            "workload.lengths.isl_law",
            "Law of input tokens",
            "Distribution of ISL, in place of a lognormal one; implies --isl: " + FORMS + ".",
            optional=True,
            quiet=True,
            since=2,
        ),
        Field(
            "osl_law",
            "workload.lengths.osl_law",
            "Law of output tokens",
            "Distribution of OSL, in the same form; implies --osl.",
            optional=True,
            quiet=True,
            since=2,
        ),
        Field(
            "correlation",
            "workload.lengths.correlation",
            "Correlation of input and output tokens",
            "Correlation of ISL and OSL, from -1 to 1.",
            Range(-1, 1),
            0.0,
            quiet=True,
        ),
        Field(
            "prefix_tokens",
            "workload.prefix.tokens",
            "Prompt tokens shared by all requests",
            "Prompt tokens that all requests share (a system prompt).",
            Range(0, MOST_TOKENS, "tokens"),
            0,
            whole=True,
            quiet=True,
        ),
        Field(
            "prefix_hit",
            "workload.prefix.hit_rate",
            "Probability that they are cached",
            "Probability that a request finds the shared tokens cached, from 0 to 1.",
            SHARE,
            0.0,
            unit="share",
            quiet=True,
        ),
        Field(
            "rate",
            "workload.rate_per_s",
            "Planned load",
            "Requests per second that arrive at the whole fleet.",
            RATE,
            key="rate_per_s",
        ),
        Field(
            "arrivals",
            "workload.arrivals",
            "Arrivals",
            "Arrival process: poisson, constant, gamma:cv=NUMBER or batch:size=NUMBER.",
            default="poisson",
        ),
        Field(
            "routing",
            "routing",
            "Routing",
            "How requests are distributed among the replicas.",
            default="random",
            choices=get_args(Routing),
        ),
        Field("ttft", "sla.ttft", "TTFT", "Limit on time to first token, for instance p95:1s.", optional=True),
        Field(
            "itl",
            "sla.itl",
            "ITL",
            "Limit on inter-token latency (mean per request), for instance p95:30ms.",
            optional=True,
        ),
        Field(
            "gap",
            "sla.gap",
            "gap",
            "Limit on the time between two successive tokens, for instance p99:100ms.",
            optional=True,
        ),
        Field("e2e", "sla.e2e", "E2E", "Limit on end-to-end latency, for instance p99:20s.", optional=True),
        Field(
            "goodput",
            "sla.goodput",
            "Goodput",
            "Share of requests that must meet the limits on TTFT, ITL and E2E all at once, for instance 99%. These "
            "limits then need no percentile; a limit on the gap is judged separately.",
            optional=True,
            quiet=True,
            since=2,
        ),
        Field(
            "rejected",
            "sla.rejected",
            "Rejected",
            "Largest share of requests that may be rejected or time out in the queue, for instance 0.5%.",
            optional=True,
            quiet=True,
            since=2,
        ),
        Field(
            "queue_limit",
            "workload.queue_limit",
            "Requests waiting at a replica, at most",
            "Requests that may wait at a replica before it rejects further ones; 0: no limit.",
            QUEUE,
            0,
            whole=True,
            quiet=True,
            since=2,
        ),
        Field(
            "queue_timeout",
            "queue_timeout",
            "Queue timeout",
            "Time after which a waiting request is dropped, for instance 2s.",
            optional=True,
            quiet=True,
            since=2,
        ),
        Field(
            "headroom",
            "headroom",
            "Headroom",
            "Share of each replica's capacity kept free, from 0 to 0.95.",
            HEADROOM,
            0.2,
            unit="share",
        ),
        Field(
            "spare",
            "spare",
            "Spare replicas",
            "Spare replicas in addition to the working ones.",
            SPARE,
            1,
            whole=True,
        ),
        Field(
            "peak_factor",
            "peak_factor",
            "Peak over mean load",
            "Plan for a peak of this many times --rate, which is then the mean.",
            PEAK_FACTOR,
            1.0,
            quiet=True,
            since=2,
        ),
        Field(
            "price",
            "price_per_gpu_hour",
            "Price",
            "Price of a GPU-hour in any currency: 2.5, or by GPU: h100_sxm=2.5,h200_sxm=3.8.",
            PRICE,
            optional=True,
            key="price_per_gpu_hour",
        ),
    )
}
"""Every field by name, in the order of JSON answers."""

ADMISSION = ("queue_limit", "queue_timeout")
"""Fields that decide which requests are turned away: questions that have one are sized by simulation."""
FEW = 16
"""Fleets of more replicas than this are rounded to eighths: the effect on one replica is negligible."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a replica works in: the workload's lengths and arrivals, the SLA, and the fleet that shares the load."""

    workload: Workload
    sla: Sla
    routing: Routing
    replicas: int = 1

    @property
    def herds(self) -> bool:
        """True if requests with equal answers go to the least busy of several replicas and may fall into lockstep."""
        return self.replicas > 1 and self.routing == "least_outstanding" and self.workload.lengths.alike

    def at(self, rate_per_replica_per_s: float) -> Workload:
        """The workload that gives every replica this many requests/s."""
        return replace(self.workload, rate_per_s=rate_per_replica_per_s * self.replicas)


class Margins:
    """Margins and prices, as in a question or in a fleet that several workloads share."""

    __slots__ = ()
    headroom: float
    spare: int
    price_per_gpu_hour: float | None
    prices: tuple[tuple[str, float], ...]

    def price_of(self, gpu: str) -> float | None:
        """Price of an hour of this GPU, None = unknown."""
        return dict(self.prices).get(gpu, self.price_per_gpu_hour)


@dataclass(frozen=True, slots=True)
class Question(Margins):
    """How many GPUs for this workload under this SLA?

    `headroom`: each working replica is planned at (1 - headroom) of the rate at which the SLA first fails. `spare`:
    idle replicas in addition to the working ones. `price_per_gpu_hour`: any currency, None = not requested; `prices`
    are (GPU, price) pairs that take precedence over it. `workload.rate_per_s` is the load planned for: the peak,
    `peak_factor` times the mean. Raises ScenarioError for a value out of the range of its field.
    """

    model: str
    workload: Workload
    sla: Sla
    routing: Routing = "random"
    headroom: float = 0.2
    spare: int = 1
    price_per_gpu_hour: float | None = None
    prices: tuple[tuple[str, float], ...] = ()
    peak_factor: float = 1.0

    def __post_init__(self) -> None:
        check_load(self.workload, self.sla)
        check_terms(self)
        FIELDS["peak_factor"].check(self.peak_factor)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Question:
        """The question in options or the keys of a file, by the names of `FIELDS`; limits as ``p95:1s``.

        A field that is missing or None has its default. Raises ScenarioError for a question that cannot be asked.

        >>> asked = Question.of({"model": "m", "rate": 20, "isl": 2000, "osl": 256, "ttft": "p95:1s"})
        >>> asked.workload.rate_per_s, str(asked.sla), asked.headroom
        (20, 'p95 TTFT <= 1000 ms', 0.2)
        """
        full = completed(given)
        terms = {name: full[name] for name in ("routing", "headroom", "spare", "peak_factor")}
        price = {} if full["price"] is None else {"price_per_gpu_hour": full["price"]}
        return cls(full["model"], workload_of(full), sla_of(full), **terms, **price)

    @property
    def queue_timeout(self) -> str | None:
        """As the option has it, for instance 2s; None if no request times out."""
        timeout_s = self.workload.queue_timeout_s
        return f"{timeout_s:.12g}s" if math.isfinite(timeout_s) else None

    @property
    def mean_rate_per_s(self) -> float:
        """Requests/s on average over a day, of which `workload.rate_per_s` is the peak."""
        return self.workload.rate_per_s / self.peak_factor

    def replicas_at(self, capacity_per_s: float) -> int:
        """Working replicas when each is planned at (1 - headroom) of `capacity_per_s`."""
        return replicas_for(self.workload.rate_per_s, capacity_per_s * (1 - self.headroom))

    def setting(self, replicas: int) -> Setting:
        """The setting of one replica in a fleet of `replicas` working replicas, without the fleet's rate.

        Random routing of Poisson arrivals gives every replica an independent Poisson stream: one represents all.
        Large fleet sizes are rounded to three binary digits, so that similar sizes share one result: down where
        smaller fleets carry less per replica, up where they carry more.
        """
        alone = self.routing == "random" and self.workload.arrivals.kind == "poisson"
        step = 2 ** max(0, replicas.bit_length() - 3) if replicas > FEW else 1
        counted = math.ceil(replicas / step) if self.falls_with_fleet else replicas // step
        of_rate_1 = replace(self.workload, rate_per_s=1.0)
        return Setting(of_rate_1, self.sla, self.routing, 1 if alone else counted * step)

    @property
    def falls_with_fleet(self) -> bool:
        """True if a replica carries less in a larger fleet.

        Arrivals more regular than Poisson lose their regularity when routed at random among more replicas; equal
        answers by the least busy replica synchronize (2.956 requests/s with 13 replicas, 2.927 with 14).
        """
        thinned = self.routing == "random" and self.workload.arrivals.cv < 1
        return thinned or (self.routing == "least_outstanding" and self.workload.lengths.alike)


def replicas_for(rate_per_s: float, per_replica_per_s: float) -> int:
    """Replicas that carry a load at this much each; a load that fills them to within rounding needs no further one.

    >>> replicas_for(3 * 0.1, 0.1), replicas_for(0.31, 0.1)
    (3, 4)
    """
    return math.ceil(rate_per_s / per_replica_per_s * (1 - 1e-9))


def completed(given: Mapping[str, Any]) -> dict[str, Any]:
    """`given` with the default of every field that is missing or None."""
    usual = {name: field.default for name, field in FIELDS.items()}
    return usual | {name: value for name, value in given.items() if value is not None}


def workload_of(given: Mapping[str, Any]) -> Workload:
    """The workload that fields by name describe; without a rate, one request per second."""
    full, lengths = completed(given), lengths_of(given)
    prefix = Prefix(full["prefix_tokens"], full["prefix_hit"])
    check_prefix(lengths, prefix)
    timeout = full["queue_timeout"]
    return Workload(
        lengths,
        1.0 if full["rate"] is None else full["rate"],
        Arrivals.parse(full["arrivals"]),
        prefix,
        math.inf if timeout is None else parse_seconds("--queue-timeout", timeout),
        queue_limit=full["queue_limit"],
    )


AGREES = 0.01
"""Relative difference allowed between a mean or a variation and that of a distribution given with it."""


def lengths_of(given: Mapping[str, Any]) -> Lengths:
    """The lengths that fields by name describe; a distribution implies mean and variation, which may be omitted."""
    full = completed(given)
    for side in ("isl", "osl"):
        law = full[f"{side}_law"]
        law = full[f"{side}_law"] = TokenLaw.parse(law) if isinstance(law, str) else law
        if law is None:
            if full[side] is None:
                raise ScenarioError(f"{side} is missing: give {side}, or {side}_law")
            continue
        for name, implied, unsaid in ((side, law.mean, None), (f"{side}_cv", law.cv, 0.0)):
            if full[name] != unsaid and abs(full[name] - implied) > AGREES * implied:
                raise ScenarioError(
                    f"{'CV of ' if name != side else ''}{side.upper()} {full[name]:g} contradicts the law of "
                    f"{side.upper()}, of which it is {significant(implied)}: leave it out"
                )
            full[name] = implied
    return Lengths(*(full[name] for name in LENGTHS))


LENGTHS = ("isl", "osl", "isl_cv", "osl_cv", "correlation", "isl_law", "osl_law")


def with_laws(given: Mapping[str, Any], folder: Path | str = "") -> dict[str, Any]:
    """Fields by name, as a file has them, with histograms read from `folder` and the means that laws imply filled
    in."""
    full = dict(given)
    for side in ("isl", "osl"):
        if isinstance(text := full.get(f"{side}_law"), str):
            full[f"{side}_law"] = text = with_file(text, folder)
            if (law := TokenLaw.parse(text)) is not None:
                full.setdefault(side, law.mean)
    return full


def sla_of(given: Mapping[str, Any]) -> Sla:
    """The limits among fields by name; raises ScenarioError if there is none."""
    return Sla(*(Limit.parse(metric, given[metric]) for metric in LIMITED if given.get(metric) is not None))


def check_load(workload: Workload, sla: Sla) -> None:
    """Raise ScenarioError for lengths, a rate or a limit out of range, and for limits without meaning at the
    lengths."""
    for name in ("isl", "osl", "isl_cv", "osl_cv", "prefix_tokens", "prefix_hit", "rate"):
        FIELDS[name].check(attrgetter(FIELDS[name].path.removeprefix("workload."))(workload))
    check_prefix(workload.lengths, workload.prefix)
    FIELDS["queue_limit"].check(workload.queue_limit)
    if math.isfinite(workload.queue_timeout_s) and workload.queue_timeout_s not in TIMEOUT_S:
        raise ScenarioError(f"the queue timeout must be {TIMEOUT_S}, got {workload.queue_timeout_s:g}")
    for limit in sla.given:
        if limit.metric in METRICS and limit.limit_s not in LIMIT_S:
            raise ScenarioError(f"the {metric_name(limit.metric)} limit must be {LIMIT_S}, got {limit.limit_s:g}")
    if sla.rejected and workload.admits_all:
        raise ScenarioError("a limit on rejected requests needs a queue limit or timeout: without one none is rejected")
    if (sla.itl or sla.gap) and workload.lengths.without_gaps:
        which = "an ITL limit" if sla.itl else "a limit on gaps between tokens"
        raise ScenarioError(f"{which} needs OSL of 2 or more in some answers: with one output token there are no gaps")


def check_prefix(lengths: Lengths, prefix: Prefix) -> None:
    """Raise ScenarioError for a shared prefix longer than the mean prompt that is to begin with it."""
    if prefix.tokens > lengths.isl:
        raise ScenarioError(f"prefix tokens must be at most ISL ({lengths.isl:g} tokens), got {prefix.tokens}")
    if prefix.hit_rate and not prefix.tokens:
        raise ScenarioError("a prefix hit rate needs prefix tokens: say how many tokens all prompts share")


def weight_of(terms: Margins, gpu: str) -> float:
    """What a GPU weighs where fleets are ranked: its price where GPUs have their own, else 1."""
    return (terms.price_of(gpu) or 0.0) if terms.prices else 1.0


def check_terms(terms: Margins) -> None:
    """Raise ScenarioError for a headroom, a number of spares or a price out of range."""
    for name in ("headroom", "spare", "price"):
        FIELDS[name].check(attrgetter(FIELDS[name].path)(terms))
    for gpu, price in terms.prices:
        if price not in PRICE:
            raise ScenarioError(f"the price of an hour of {gpu} must be {PRICE}, got {price:g}")


def check_priced(terms: Margins, gpus: Iterable[str]) -> None:
    """Raise ScenarioError if some GPUs have a price and one of `gpus` has none: fleets could not be ranked."""
    unknown = next((gpu for gpu in gpus if terms.price_of(gpu) is None), None)
    if terms.prices and unknown is not None:
        named = ", ".join(gpu for gpu, _ in terms.prices)
        raise ScenarioError(f"--price names {named} but not {unknown}: give {unknown}=PRICE as well")
