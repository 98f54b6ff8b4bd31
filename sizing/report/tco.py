"""Rows for a sheet of total cost of ownership, with the columns that such sheets for LLM serving have."""

from __future__ import annotations

from sizing.report.model import Configuration, Latency, Report
from sizing.report.quantity import Quantity
from sizing.report.tables import Cell, Table
from sizing.workload import Metric

METRICS: tuple[tuple[Metric, str], ...] = (("itl", "ITL"), ("ttft", "TTFT"), ("e2e", "Request latency"))
FIGURES = (("mean", "avg"), ("p90", "p90"), ("p99", "p99"))
COLUMNS = (
    *("Model", "GPU Type", "number_of_gpus", "Precision", "Execution Mode"),
    *(f"{name} {figure} (ms)" for _, name in METRICS for _, figure in FIGURES),
    *("Requests per Second", "Tokens per Second", "ISL_OSL", "Concurrency"),
)


def tco(report: Report) -> Table:
    """One row for each configuration: a single replica with its GPUs, at the load it is planned for.

    Latencies in milliseconds; tokens per second are output tokens; concurrency is the mean of requests in flight.
    """
    isl, osl = report.given("isl") or 0.0, report.given("osl") or 0.0
    rows = tuple(tco_row(report.model, found, isl, osl, report.given("rate_per_s")) for found in report.configurations)
    note = "One replica of each configuration at the planned load; tokens per second are output tokens."
    return Table("TCO rows", COLUMNS, rows, empty="No configuration meets the SLA.", note=note)


def tco_row(model: str, found: Configuration, isl: float, osl: float, rate_per_s: float | None) -> tuple[Cell, ...]:
    """The row of one configuration."""
    latencies = {each.metric: each for each in found.latencies}
    per_replica = rate_per_s / found.working.value if rate_per_s and found.working.value else None
    tokens_per_s = None if per_replica is None else per_replica * osl
    return (
        *(model, found.gpu, Quantity(found.gpus_per_replica, "GPUs", "given"), found.precision, found.execution),
        *(in_ms(latencies.get(metric), figure) for metric, _ in METRICS for figure, _ in FIGURES),
        *(Quantity(per_replica, "requests/s", found.basis), Quantity(tokens_per_s, "output tokens/s", found.basis)),
        *(f"{isl:g}_{osl:g}", found.in_flight),
    )


def in_ms(latency: Latency | None, figure: str) -> Cell:
    """One figure of a latency as a bare number of milliseconds; empty where there is none."""
    found = None if latency is None else getattr(latency, figure)
    if found is None or found.value is None:
        return ""
    return Quantity(found.value * 1000, "", found.basis)
