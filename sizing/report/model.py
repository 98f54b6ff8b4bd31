"""The report as one frozen value: everything the four writers show, each number with its unit and its basis.

Checked on creation and when read from outside (see `sizing.report.quantity`). Times are seconds; the writers turn them
into milliseconds for people.
"""

from __future__ import annotations

from typing import Literal

from pydantic.dataclasses import dataclass

from sizing.plan import Basis
from sizing.report.model_beside import CostRow, Day, Loosened, SensitivityRow, WayOut
from sizing.report.quantity import STRICT, Count, Percentile, Quantity, Rows, Series, Size, Text
from sizing.workload import Metric, metric_name


@dataclass(frozen=True, slots=True, config=STRICT)
class Input:
    """One thing that was asked: `key` as in a scenario file, `name` for people."""

    key: Text
    name: Text
    value: Quantity | Text


@dataclass(frozen=True, slots=True, config=STRICT)
class LimitRow:
    """One limit of the SLA at the planned load, and the 90 % band of what is predicted; `room` is left of the limit."""

    metric: Metric
    percentile: Percentile
    limit: Quantity
    predicted: Quantity
    low: Quantity
    high: Quantity
    room: Quantity
    kept: bool

    @property
    def name(self) -> str:
        """For instance: p95 TTFT."""
        return f"p{self.percentile} {metric_name(self.metric)}"


@dataclass(frozen=True, slots=True, config=STRICT)
class LimitCurve:
    """One limited latency over the loads of `LoadCurves`; None beyond the stable rate. `planned` is the plan's own."""

    metric: Metric
    percentile: Percentile
    limit_s: float
    planned_s: float | None
    latency: Series

    @property
    def name(self) -> str:
        """For instance: p95 TTFT."""
        return f"p{self.percentile} {metric_name(self.metric)}"


@dataclass(frozen=True, slots=True, config=STRICT)
class LoadCurves:
    """Latency against requests/s per replica of the answer, by formula; where it is planned and where the SLA fails."""

    load: Series
    planned_per_s: float
    capacity_per_s: float
    headroom: float
    curves: Rows[LimitCurve]

    def __post_init__(self) -> None:
        if any(len(curve.latency.values) != len(self.load.values) for curve in self.curves):
            raise ValueError("every curve needs as many latencies as there are loads")


@dataclass(frozen=True, slots=True, config=STRICT)
class Latency:
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
    latencies: tuple[Latency, ...]
    warnings: Rows[Text] = ()

    @property
    def label(self) -> str:
        """For instance: h200_sxm TP2 bf16."""
        return f"{self.gpu} TP{self.tp}{f' PP{self.pp}' if self.pp > 1 else ''} {self.precision}"

    @property
    def gpus_per_replica(self) -> int:
        """GPUs of one replica, idle ones included."""
        return self.tp * self.pp


@dataclass(frozen=True, slots=True, config=STRICT)
class LeftOut:
    """A configuration left out, the kind of reason, and why."""

    gpu: Text
    tp: Size
    precision: Text
    kind: Text
    why: Text


@dataclass(frozen=True, slots=True, config=STRICT)
class Source:
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
class Report:
    """Everything a sizing report says; `configurations[0]` is the answer, none of them = there is no answer.

    `sentence`: the answer, or that there is none; `reason`: why there is none. `made_at`: ISO 8601 in UTC.
    `remarks`: what binds, the band, higher loads, sizing by means; `warnings`: what to know before buying.
    `ways_out`: what each limit would have to give alone where there is no answer; `together`: all limits that must give
    where none alone will do. `day`: the answer's GPUs hour by hour, None where no day was asked about.
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
    inputs: Rows[Input]
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
    sources: Rows[Source] = ()
    accuracy: Text = ""
    evidence: Rows[Evidence] = ()
    ways_out: Rows[WayOut] = ()
    together: Rows[Loosened] = ()
    day: Day | None = None

    def __post_init__(self) -> None:
        if len({tuple(effect.change for effect in row.effects) for row in self.sensitivity}) > 1:
            raise ValueError("every row of the sensitivity needs the same changes")

    @property
    def answer(self) -> Configuration | None:
        """The fleet with the fewest GPUs (or the cheapest); None when no configuration meets the SLA."""
        return self.configurations[0] if self.configurations else None

    @classmethod
    def from_json(cls, document: str | bytes) -> Report:
        """The report that `sizing.report.json.as_json` wrote. Raises ReportError, one line saying what is wrong."""
        from sizing.report.json import from_json  # that module needs this one

        return from_json(document)

    def given(self, key: str) -> float | None:
        """The number asked for under `key`, None where it is no number or was not asked."""
        found = (each.value for each in self.inputs if each.key == key)
        return next((value.value for value in found if isinstance(value, Quantity)), None)
