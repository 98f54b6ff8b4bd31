"""What a report may hold beside count and latencies: sensitivities, cost, ways out of an SLA, GPUs over a day."""

from __future__ import annotations

from pydantic.dataclasses import dataclass

from sizing.fleets.daily import HOURS
from sizing.report.quantity import STRICT, Percentile, Quantity, Rows, Series, Text
from sizing.workload import Metric, metric_name


@dataclass(frozen=True, slots=True, config=STRICT)
class Effect:
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
    effects: Rows[Effect]


@dataclass(frozen=True, slots=True, config=STRICT)
class CostRow:
    """One figure of cost or energy of the answer."""

    name: Text
    value: Quantity


@dataclass(frozen=True, slots=True, config=STRICT)
class WayOut:
    """What one limit would have to give alone, the others kept.

    `smallest`: from this value on `configuration` meets the SLA, its replicas all but idle; `roomy`: with this one they
    carry half of what they can without the limit. No value helps alone: both have none, and `configuration` is empty.
    `kept_at`: the highest lower percentile at which the limit is kept as it was asked, by `kept_by`; None without one.
    """

    metric: Metric
    percentile: Percentile
    limit: Quantity
    smallest: Quantity
    roomy: Quantity
    configuration: Text
    kept_at: Percentile | None
    kept_by: Text

    @property
    def name(self) -> str:
        """For instance: p95 TTFT."""
        return f"p{self.percentile} {metric_name(self.metric)}"

    @property
    def kept(self) -> bool:
        """True for a limit that is met as it was asked: it is another that has to give."""
        return self.smallest.value is not None and self.smallest.value <= (self.limit.value or 0.0)


@dataclass(frozen=True, slots=True, config=STRICT)
class Loosened:
    """One of the limits that `configuration` misses, as asked and as it would keep it; all of them must give."""

    metric: Metric
    percentile: Percentile
    limit: Quantity
    smallest: Quantity
    configuration: Text

    @property
    def name(self) -> str:
        """For instance: p95 TTFT."""
        return f"p{self.percentile} {metric_name(self.metric)}"


@dataclass(frozen=True, slots=True, config=STRICT)
class Day:
    """The answer's fleet hour by hour from midnight on, spares included, against the busiest hour's fleet all day.

    `load`, `replicas` and `gpus` have 24 values. `saved`: share of `constant_gpu_hours`. Costs are of a day; price and
    costs have no value where no price was given.
    """

    sentence: Text
    working: Text
    load: Series
    replicas: Series
    gpus: Series
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
