"""GuideLLM's benchmarks.csv: three header rows (group, metric, statistic), then one row a benchmark; no requests."""

from __future__ import annotations

import json

from calibration.errors import FileError
from calibration.importers.guidellm import E2E_TO_END, MS, WEIGHTED, Strategy, offered
from calibration.importers.points import ImportedSummary, Times, measurement_of_summary
from calibration.importers.reading import CsvFile, Edge, KnownFacts, Offered, checked, clean, number
from calibration.records import Measurement

HEADER_ROWS = 3
PERCENTILES = 11
"""Minimum, p0.1, p1, p5, p10, p25, p75, p90, p95, p99, maximum, in this order in one cell; the median has its own."""

ISL = ("Token Metrics", "Successful Input Tokens")
OSL = ("Token Metrics", "Successful Output Tokens")

Cells = dict[tuple[str, str, str], str]


def recognises(file: CsvFile) -> bool:
    """Whether a CSV is GuideLLM's, by its groups of columns."""
    return "Run Info" in file.rows[0] and "Request Counts" in file.rows[0]


def read(file: CsvFile, known: KnownFacts) -> list[Measurement]:
    """One measurement a row. Raises FileError naming line and column."""
    if len(file.rows) <= HEADER_ROWS:
        raise FileError(f"{file.name}: no benchmark below the {HEADER_ROWS} header rows")
    return [
        _measurement(_cells(file, row, f"{file.name}, line {line}"), known, f"{file.name}, line {line}")
        for line, row in zip(file.lines[HEADER_ROWS:], file.rows[HEADER_ROWS:], strict=True)
    ]


def _cells(file: CsvFile, row: tuple[str, ...], where: str) -> Cells:
    groups, metrics, statistics = file.rows[:HEADER_ROWS]
    if not len(groups) == len(metrics) == len(statistics):
        raise FileError(f"{file.name}: its {HEADER_ROWS} header rows are not of one length")
    if len(row) != len(groups):
        raise FileError(f"{where}: {len(row)} cells where the header has {len(groups)}; cut short?")
    return dict(zip(zip(groups, metrics, statistics, strict=True), row, strict=True))


def _measurement(cells: Cells, known: KnownFacts, where: str) -> Measurement:
    requests = round(_value(cells, ("Request Counts", "Successful", ""), where))
    duration_s = _value(cells, ("Timings", "Duration", "Sec"), where)
    if not requests or not duration_s:
        raise FileError(f"{where}: no request went well, or in no time")
    summary = ImportedSummary(
        source="GuideLLM",
        model=_model(cells),
        load=None if known.concurrency or known.rate else _load(cells, where),
        isl=_mean(cells, ISL, where),
        osl=_mean(cells, OSL, where),
        isl_cv=_variation(cells, ISL, where),
        osl_cv=_variation(cells, OSL, where),
        requests=requests,
        errors=round(_value(cells, ("Request Counts", "Errored", ""), where)),
        duration_s=duration_s,
        requests_per_s=requests / duration_s,
        output_tokens_per_s=_mean(cells, ("Token Throughput", "Successful Output Tokens/Sec"), where),
        mean_in_flight=_mean(cells, ("Server Throughput", "Successful Concurrency"), where),
        ttft=_times(cells, ("Time to First Token", "Successful ms"), MS, where),
        itl=_times(cells, ("Inter Token Latency", "Successful ms"), MS, where),
        e2e=_times(cells, ("Request Latency", "Successful Sec"), 1.0, where),
        tokens_per_chunk=_mean(cells, ("Token Streaming", "Successful Output Tokens/Iter"), where),
        notes=(WEIGHTED, E2E_TO_END),
    )
    return measurement_of_summary(summary, known, where)


def _value(cells: Cells, column: tuple[str, str, str], where: str) -> float:
    title = " / ".join(part for part in column if part)
    cell = cells.get(column)
    if not cell:
        raise FileError(f"{where}: column {title!r} is missing")
    return number(cell, f"{where}, column {title!r}")


def _mean(cells: Cells, metric: tuple[str, str], where: str) -> float | None:
    return (_value(cells, (*metric, "Mean"), where) or None) if cells.get((*metric, "Mean")) else None


def _variation(cells: Cells, metric: tuple[str, str], where: str) -> float:
    mean = _mean(cells, metric, where)
    return _value(cells, (*metric, "Std Dev"), where) / mean if mean and cells.get((*metric, "Std Dev")) else 0.0


def _times(cells: Cells, metric: tuple[str, str], scale: float, where: str) -> Times:
    mean = _mean(cells, metric, where)
    if mean is None:
        return Times()
    listed = cells.get((*metric, "Percentiles"), "").strip("[]").split(",")
    if len(listed) != PERCENTILES:
        return Times(mean * scale)
    column = f"{where}, column {' / '.join((*metric, 'Percentiles'))!r}"
    tail = (number(listed[place].strip(), column) for place in (7, 8, 9))
    return Times.of((mean, _value(cells, (*metric, "Median"), where), *tail), scale)


def _load(cells: Cells, where: str) -> Offered | None:
    """From the strategy as it is written, ``concurrent@4`` or ``poisson@2.5``."""
    name, _, value = cells.get(("Benchmark", "Strategy", ""), "").partition("@")
    column = f"{where}, column 'Benchmark / Strategy'"
    amount = number(value, column) if value else 0.0
    settings = {"type_": name, "streams": round(amount) or None, "rate": amount or None}
    return offered(checked(Strategy, settings, column))


class _Backend(Edge):
    model: str | None = None


def _model(cells: Cells) -> str | None:
    """The model in the cell of the backend's settings, None where that cannot be read."""
    try:
        backend = _Backend.model_validate(json.loads(cells.get(("Run Info", "Backend", ""), "")))
    except (ValueError, RecursionError):  # pydantic's and json's errors are ValueErrors
        return None
    return clean(backend.model or "") or None
