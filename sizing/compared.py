"""A simulated run beside the formula: every figure that both know, and how far they are apart."""

from __future__ import annotations

from dataclasses import dataclass

from sizing.errors import ScenarioError
from sizing.prediction import Prediction
from sizing.queueing.agreement import COMPARED, TOLERANCE
from sizing.simulator import Simulated
from sizing.workload import METRICS, Metric, metric_name


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure in seconds: `percentile` of a metric, or its mean (None).

    `interval_s`: the 90 % confidence interval of the simulated percentile; None of means, gaps and short runs.
    """

    metric: Metric
    percentile: int | None
    simulated_s: float
    formula_s: float
    interval_s: tuple[float, float] | None = None

    @property
    def name(self) -> str:
        """For instance: p95 TTFT."""
        return f"{'mean' if self.percentile is None else f'p{self.percentile}'} {metric_name(self.metric)}"

    @property
    def apart(self) -> float:
        """Formula over simulation, less 1."""
        return self.formula_s / self.simulated_s - 1

    @property
    def far(self) -> bool:
        """True when the two differ by more than can be expected of either at moderate load."""
        return abs(self.apart) > TOLERANCE


def compared(run: Simulated, said: Prediction) -> list[Compared]:
    """Mean, p50, p90, p95 and p99 of TTFT, ITL, gaps and E2E, those that both know; none where one is saturated."""
    if run.saturated or said.saturated:
        return []
    figures = []
    for metric in METRICS:
        found, formula = run.quantiles(metric), said.of(metric)
        if not found.mean_s > 0:  # no ITL where every answer has one token, no gaps where they were not counted
            continue
        figures.append(Compared(metric, None, found.mean_s, formula.mean_s))
        for percentile in COMPARED:
            interval_s = _interval(run, metric, percentile)
            figures.append(Compared(metric, percentile, found.at(percentile), formula.at(percentile), interval_s))
    return [figure for figure in figures if figure.simulated_s > 0 and figure.formula_s > 0]


def _interval(run: Simulated, metric: Metric, percentile: int) -> tuple[float, float] | None:
    if metric == "gap":
        return None
    try:
        return run.interval(metric, percentile)
    except ScenarioError:  # too few requests have the metric
        return None
