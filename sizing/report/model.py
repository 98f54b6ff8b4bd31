"""The report as one frozen value: everything the four writers show, each number with its unit and its basis.

Checked on creation and when read from outside: text that no file can hold, numbers that are not finite and endless
lists are refused. Times are seconds; the writers turn them into milliseconds for people.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from sizing.analyses.daily import HOURS
from sizing.catalog import Layout
from sizing.errors import SizingError, first_fault, quoted
from sizing.files import json_object
from sizing.plans import Basis, label_of
from sizing.text import spelt
from sizing.workload import Limited, Metric, limited_name

MOST_TEXT = 100_000
"""Characters of one text; writers cut it with an ellipsis where a layout needs it."""
MOST_ROWS = 2_000
"""Rows of one list: several times the configurations that a plan can compare."""
Unit = Literal[
    "GPUs",
    "replicas",
    "points",
    "percentile",
    "requests",
    "requests/s",
    "requests/s per GPU",
    "requests/s per replica",
    "sessions",
    "sessions/s",
    "turns",
    "output tokens/s",
    "tokens",
    "s",
    "share",
    "",
    "GPU-hours",
    "per GPU-hour",
    "per hour",
    "per day",
    "per month",
    "per million output tokens",
    "per 1,000 requests",
    "kW",
    "kWh per million output tokens",
]
FigureBasis = Literal["given", "measured", "fitted", "extrapolated", "estimated", "what-if"]
"""Where a number comes from: "given" by whoever asked, else as in `sizing.plans.Basis`."""
T = TypeVar("T")


def encodable(value: Any) -> Any:
    """Text without lone surrogates (bytes of a command line that are no UTF-8): they become question marks."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


Text = Annotated[str, BeforeValidator(encodable), Field(max_length=MOST_TEXT)]
Rows = Annotated[tuple[T, ...], Field(max_length=MOST_ROWS)]
Count = Annotated[int, Field(ge=0, le=10**9)]
Size = Annotated[int, Field(ge=1, le=10**6)]
Percentile = Annotated[int | float, Field(ge=1, lt=100)]
STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True, slots=True, config=STRICT)
class Quantity:
    """A number with its unit and basis; value None = there is none (the open end of a band, ITL of single tokens)."""

    value: float | None
    unit: Unit
    basis: FigureBasis


@dataclass(frozen=True, slots=True, config=STRICT)
class ChartSeries:
    """Numbers of one unit and basis; None where there is none."""

    unit: Unit
    basis: FigureBasis
    values: Rows[float | None]


def number(value: float | None, unit: Unit, basis: FigureBasis) -> Quantity:
    """A quantity; what is infinite or no number is none."""
    return Quantity(value if value is not None and math.isfinite(value) else None, unit, basis)


# --- What a report may hold beside count and latencies: sensitivities, cost, ways out of an SLA, GPUs over a day


@dataclass(frozen=True, slots=True, config=STRICT)
class EffectRow:
    """With the input changed by `change`, a share: GPUs, and a replica's capacity; neither where the SLA fails."""

    change: float
    value: Quantity
    gpus: Quantity
    capacity_per_replica: Quantity


@dataclass(frozen=True, slots=True, config=STRICT)
class SensitivityRow:
    """What changes of one input do to the GPU count, everything else kept."""

    name: Text
    value: Quantity
    effects: Rows[EffectRow]


@dataclass(frozen=True, slots=True, config=STRICT)
class CostRow:
    """One figure of cost or energy of the answer."""

    name: Text
    value: Quantity


@dataclass(frozen=True, slots=True, config=STRICT)
class GoodputRow:
    """What the answer's configuration takes, spares included, where the share `goodput` of all requests is to keep the
    limits at once; without numbers where none do."""

    goodput: Quantity
    gpus: Quantity
    replicas: Quantity
    requests_per_s_per_gpu: Quantity


@dataclass(frozen=True, slots=True, config=STRICT)
class OfLimit:
    """What is said of one limit of the SLA."""

    metric: Limited
    percentile: Percentile

    @property
    def name(self) -> str:
        """For instance: p95 TTFT."""
        return limited_name(self.metric, self.percentile)


@dataclass(frozen=True, slots=True, config=STRICT)
class WayOut(OfLimit):
    """The relaxation that one limit needs alone, the others unchanged.

    `smallest`: from this value on, `configuration` meets the SLA with nearly idle replicas; `roomy`: with this one they
    carry half of what they could without the limit. No value helps alone: both are none, `configuration` is empty.
    `kept_at`: the highest lower percentile at which `kept_by` meets the limit as requested; None without one.
    """

    limit: Quantity
    smallest: Quantity
    roomy: Quantity
    configuration: Text
    kept_at: Percentile | None
    kept_by: Text

    @property
    def kept(self) -> bool:
        """True for a limit that is met as requested: another one must be relaxed."""
        return self.smallest.value is not None and self.smallest.value <= (self.limit.value or 0.0)


@dataclass(frozen=True, slots=True, config=STRICT)
class Loosened(OfLimit):
    """One of the limits that `configuration` misses, as requested and as it would meet it; all must be relaxed."""

    limit: Quantity
    smallest: Quantity
    configuration: Text


@dataclass(frozen=True, slots=True, config=STRICT)
class Day:
    """The answer's fleet hour by hour from midnight on, spares included, against the busiest hour's fleet all day.

    `load`, `replicas` and `gpus` have 24 values. `saved`: share of `constant_gpu_hours`. Costs are of a day; price and
    costs have no value where no price was given.
    """

    sentence: Text
    working: Text
    load: ChartSeries
    replicas: ChartSeries
    gpus: ChartSeries
    constant_gpus: Quantity
    gpu_hours: Quantity
    constant_gpu_hours: Quantity
    saved: Quantity
    price: Quantity
    cost: Quantity
    constant_cost: Quantity

    def __post_init__(self) -> None:
        for series in (self.load, self.replicas, self.gpus):
            if len(series.values) != HOURS or None in series.values:
                raise ValueError(f"a day needs {HOURS} loads, replicas and GPUs")

    @property
    def hours(self) -> tuple[tuple[str | Quantity, ...], ...]:
        """For each hour its name, load, replicas and GPUs."""
        loads, replicas, gpus = (
            [Quantity(value, series.unit, series.basis) for value in series.values]
            for series in (self.load, self.replicas, self.gpus)
        )
        names = (f"{hour}:00" for hour in range(HOURS))
        return tuple(zip(names, loads, replicas, gpus, strict=True))


@dataclass(frozen=True, slots=True, config=STRICT)
class InputRow:
    """One thing that was asked: `key` as in a scenario file, `name` for people."""

    key: Text
    name: Text
    value: Quantity | Text


@dataclass(frozen=True, slots=True, config=STRICT)
class LimitRow(OfLimit):
    """One limit of the SLA at the planned load, and the 90 % band of what is predicted; `room` is left of the limit."""

    limit: Quantity
    predicted: Quantity
    low: Quantity
    high: Quantity
    room: Quantity
    kept: bool
    subject: Text = ""
    """What of sessions is limited; empty where it is the metric of all requests."""

    @property
    def name(self) -> str:
        """For instance: p95 TTFT of later turns."""
        of_all = limited_name(self.metric, self.percentile)
        return f"p{self.percentile} {self.subject}" if self.subject else of_all


@dataclass(frozen=True, slots=True, config=STRICT)
class LimitCurve(OfLimit):
    """One limited latency over the loads of `LoadCurves`; None beyond the stable rate. `planned` is the plan's own."""

    limit_s: float
    planned_s: float | None
    latency: ChartSeries


@dataclass(frozen=True, slots=True, config=STRICT)
class LoadCurves:
    """Latency against requests/s per replica of the answer, by formula; where it is planned and where the SLA fails."""

    load: ChartSeries
    planned_per_s: float
    capacity_per_s: float
    headroom: float
    curves: Rows[LimitCurve]

    def __post_init__(self) -> None:
        if any(len(curve.latency.values) != len(self.load.values) for curve in self.curves):
            raise ValueError("every curve needs as many latencies as there are loads")


@dataclass(frozen=True, slots=True, config=STRICT)
class LatencyRow:
    """Mean and percentiles of one latency at the planned load."""

    metric: Metric
    mean: Quantity
    p50: Quantity
    p90: Quantity
    p95: Quantity
    p99: Quantity


@dataclass(frozen=True, slots=True, config=STRICT)
class Configuration:
    """One fleet that meets the SLA. `extra_working`: working replicas beyond the division of load by capacity."""

    gpu: Text
    tp: Size
    pp: Size
    precision: Text
    gpus: Quantity
    gpus_low: Quantity
    gpus_high: Quantity
    working: Quantity
    spare: Quantity
    extra_working: Count
    capacity_per_replica: Quantity
    planned_per_replica: Quantity
    planned_per_gpu: Quantity
    in_flight: Quantity
    utilization: Quantity
    room: Quantity
    price: Quantity
    cost_per_hour: Quantity
    binding: Text
    basis: Basis
    source: Text
    execution: Text
    verified_by: Literal["analytic", "simulation"]
    latencies: tuple[LatencyRow, ...]
    warnings: Rows[Text] = ()
    engine: Text = ""
    dp: Size = 1
    ep: Size = 1

    @property
    def layout(self) -> Layout:
        """How a replica's GPUs share the model."""
        return Layout(self.tp, self.pp, self.dp, self.ep)

    @property
    def label(self) -> str:
        """For instance: h200_sxm TP2 bf16 vLLM."""
        return spelt(label_of(self.gpu, self.layout, self.precision, self.engine))

    @property
    def gpus_per_replica(self) -> int:
        """GPUs of one replica, idle ones included."""
        return self.layout.gpus


@dataclass(frozen=True, slots=True, config=STRICT)
class LeftOut:
    """A configuration left out, the kind of reason, and why."""

    gpu: Text
    tp: Size
    precision: Text
    kind: Text
    why: Text
    engine: Text = ""
    layout: Text = ""
    """As in "TP4 PP2"; empty in reports of before, when it was the TP."""


@dataclass(frozen=True, slots=True, config=STRICT)
class SourceRow:
    """Where the numbers of a configuration come from; points, engine and dates where it was measured.

    `digest`: first characters of the SHA-256 of the measured points, or of the catalogue that an estimate read.
    """

    configuration: Text
    basis: Basis
    source: Text
    points: Count
    engine: Text
    measured_from: Text
    measured_to: Text
    digest: Text
    error: Quantity


@dataclass(frozen=True, slots=True, config=STRICT)
class Evidence:
    """One row of the table of evidence (docs/accuracy.md), as written there."""

    claim: Text
    against: Text
    n: Text
    metric: Text
    median: Text
    p90: Text
    worst: Text
    goal: Text
    holds: Text


@dataclass(frozen=True, slots=True, config=STRICT)
class TrafficHour:
    """An hour of a replayed trace: requests, the share inside all limits on requests, the percentile that each limit
    speaks of, and GPUs that the hour's rate needs, spares included."""

    clock: Text
    requests: Quantity
    inside: Quantity
    seconds: Rows[Quantity]
    gpus: Quantity


@dataclass(frozen=True, slots=True, config=STRICT)
class ClassLimit(OfLimit):
    """A limit of one class of requests beside what these saw. `inside`: their share within all limits of the class,
    over the trace and in its worst hour."""

    of: Text
    requests: Quantity
    limit: Quantity
    replayed: Quantity
    room: Quantity
    inside: Quantity
    worst_hour: Text
    worst_inside: Quantity


@dataclass(frozen=True, slots=True, config=STRICT)
class Traffic:
    """Recorded requests replayed on the answer's fleet: what there is to say, and each hour. `limits`: on requests, in
    the order of `TrafficHour.seconds`; `gpus`: of the fleet, spares included. `classes`: where these have limits of
    their own, which the fleet keeps beside those on all requests."""

    lines: Rows[Text]
    limits: Rows[LimitRow]
    hours: Rows[TrafficHour]
    gpus: Quantity
    classes: Rows[ClassLimit] = ()

    def __post_init__(self) -> None:
        if not self.hours or any(len(hour.seconds) != len(self.limits) for hour in self.hours):
            raise ValueError("traffic needs hours with a percentile for each limit")


@dataclass(frozen=True, slots=True, config=STRICT)
class SessionRow:
    """Sessions on the answer's fleet under one load or one routing, `name`: how many are in flight, those who think
    included, the share of prompt tokens that the prefix cache held, contexts of all in flight over the KV cache, and
    p95 of three times; these have no value where the queue grew all the time. `kept`: the SLA."""

    name: Text
    in_flight: Quantity
    hit_rate: Quantity
    filled: Quantity
    first_ttft: Quantity
    later_ttft: Quantity
    session: Quantity
    kept: bool


@dataclass(frozen=True, slots=True, config=STRICT)
class Talks:
    """Sessions on the answer's fleet: what there is to say; with each `routings`, at the planned load; `rising` loads,
    of which the row `planned` is the planned one."""

    lines: Rows[Text]
    routings: Rows[SessionRow]
    rising: Rows[SessionRow]
    planned: Count

    def __post_init__(self) -> None:
        if self.planned >= len(self.rising):
            raise ValueError("rising loads need the planned one among them")


@dataclass(frozen=True, slots=True, config=STRICT)
class Report:
    """Everything a sizing report says; `configurations[0]` is the answer, none of them = there is no answer.

    `sentence`: the answer, or that there is none; `reason`: why there is none. `made_at`: ISO 8601 in UTC.
    `remarks`: what binds, the band, higher loads, sizing by means; without an answer the ways out of sessions and of
    classes of requests. `warnings`: what to know before buying.
    `ways_out`: the relaxation each limit needs alone if there is no answer; `together`: all limits that must be relaxed
    where none alone will do. `day`: the answer's GPUs hour by hour, None where no day was asked about. `traffic`: what
    was replayed, None where the load was not recorded. `goodput`: what each costs, where that was asked. `sessions`:
    None where no sessions were asked about.
    """

    title: Text
    author: Text
    notes: Text
    made_at: Text
    program: Text
    link: Text
    model: Text
    sentence: Text
    reason: Text
    working: Text
    inputs: Rows[InputRow]
    limits: Rows[LimitRow] = ()
    curves: LoadCurves | None = None
    configurations: Rows[Configuration] = ()
    left_out: Rows[LeftOut] = ()
    sensitivity: Rows[SensitivityRow] = ()
    cost: Rows[CostRow] = ()
    remarks: Rows[Text] = ()
    warnings: Rows[Text] = ()
    includes: Rows[Text] = ()
    excludes: Rows[Text] = ()
    assumptions: Rows[Text] = ()
    sources: Rows[SourceRow] = ()
    accuracy: Text = ""
    evidence: Rows[Evidence] = ()
    ways_out: Rows[WayOut] = ()
    together: Rows[Loosened] = ()
    day: Day | None = None
    traffic: Traffic | None = None
    goodput: Rows[GoodputRow] = ()
    sessions: Talks | None = None

    def __post_init__(self) -> None:
        if len({tuple(effect.change for effect in row.effects) for row in self.sensitivity}) > 1:
            raise ValueError("every row of the sensitivity needs the same changes")

    @property
    def answer(self) -> Configuration | None:
        """The fleet with the fewest GPUs (or the cheapest); None when no configuration meets the SLA."""
        return self.configurations[0] if self.configurations else None

    @classmethod
    def from_json(cls, document: str | bytes) -> Report:
        """The report that `as_json` wrote. Raises ReportError: no JSON, too large, another schema, a bad value."""
        return from_dict(parse(document))

    def given(self, key: str) -> float | None:
        """The number asked for under `key`, None where it is no number or was not asked."""
        found = (each.value for each in self.inputs if each.key == key)
        return next((value.value for value in found if isinstance(value, Quantity)), None)


class ReportError(SizingError):
    """A report cannot be read or written: the file, its size, its schema, a value in it, or where it should go."""


class ReportToolMissing(ReportError):
    """A package that one of the formats needs is not installed."""


# --- A report as JSON and back: a versioned schema, bounded in size, read strictly

SCHEMA: Final = "sizing-report/4"
SINCE: Final = {
    "sizing-report/1": (),
    "sizing-report/2": ("ways_out", "together", "day"),
    "sizing-report/3": ("traffic",),
    SCHEMA: ("sessions",),
}
"""Schema -> what came with it. Every schema that is here can be read: a report lacks what came later than its own. A
field that comes, goes or changes its meaning is another schema."""
MOST_BYTES = 8 * 2**20
"""Of a document to read: far more than any report that this program writes."""
DIGEST = 12
"""Characters of a SHA-256 that are shown: enough to tell documents apart."""
QUESTION_DIGEST = 8
ANSWER = "n="
"""The parameter of a link that holds the answer that its writer saw."""
_REPORT = TypeAdapter(Report)
_INPUTS = TypeAdapter(tuple[InputRow, ...])


def as_dict(report: Report) -> dict[str, Any]:
    """The report as plain values, its schema first. The price of goodput stands in it only where it was asked."""
    written = _REPORT.dump_python(report, mode="json")
    return {"schema": SCHEMA, **{key: value for key, value in written.items() if key != "goodput" or value}}


def as_json(report: Report) -> str:
    """The report as a JSON document; the same report gives the same text."""
    return json.dumps(as_dict(report), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def digest(report: Report) -> str:
    """The first characters of the SHA-256 of the report's JSON: tells whether two files are of one report."""
    return hashlib.sha256(as_json(report).encode()).hexdigest()[:DIGEST]


def question_digest(report: Report) -> str:
    """The first characters of the SHA-256 of what was asked: tells whether two reports answer the same question.

    Of the inputs and of the link's parameters, which also name what may be bought; without them of the configurations
    compared, the hours of a day and the limits of classes. Not of answer, cover, date, address.
    """
    link = [each for each in report.link.partition("?")[2].split("&") if not each.startswith(ANSWER)]
    compared = {(each.gpu, str(each.layout), each.precision, each.engine) for each in report.configurations}
    compared |= {(each.gpu, each.layout, each.precision, each.engine) for each in report.left_out}
    hours = report.day.load.values if report.day else ()
    classes = report.traffic.classes if report.traffic else ()
    limits = [(each.of, each.metric, each.percentile, each.limit.value) for each in classes]
    beside = link if any(link) else [sorted(compared), hours, limits]
    asked = [_INPUTS.dump_python(report.inputs, mode="json"), beside]
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:QUESTION_DIGEST]


def parse(document: str | bytes) -> dict[str, Any]:
    """The JSON object in a document of at most `MOST_BYTES`. Raises ReportError."""
    try:
        return json_object(document, MOST_BYTES, "report of this program")
    except ValueError as error:
        raise ReportError(str(error)) from None


def from_dict(values: dict[str, Any]) -> Report:
    """The report in plain values with their schema. Raises ReportError."""
    schema = values.get("schema")
    if not isinstance(schema, str) or schema not in SINCE:
        raise ReportError(f"schema {quoted(schema)}: this program reads {' and '.join(SINCE)}")
    known = list(SINCE)
    later = [field for each in known[known.index(schema) + 1 :] for field in SINCE[each]]
    if unknown := [field for field in later if field in values]:
        raise ReportError(f"{unknown[0]}: not a field of {schema}")
    try:
        return _REPORT.validate_python({key: value for key, value in values.items() if key != "schema"})
    except ValidationError as error:
        raise ReportError(str(first_fault(error, "the report"))) from None
    except RecursionError:
        raise ReportError("nested too deeply") from None


def with_cover(report: Report, **texts: str | None) -> Report:
    """The report with another title, author, notes or link; None leaves what is there. Raises ReportError."""
    changed = {name: text for name, text in texts.items() if text is not None}
    try:
        return dataclasses.replace(report, **changed)  # type: ignore[arg-type]
    except ValidationError as error:
        raise ReportError(str(first_fault(error, "the report"))) from None
