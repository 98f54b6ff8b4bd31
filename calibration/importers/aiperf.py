"""AIPerf's summary: profile_export_aiperf.json and .csv."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from calibration.errors import FileError
from calibration.importers import metric_tables
from calibration.importers.content import CsvFile, JsonFile, Object
from calibration.importers.edge import Count, Edge, Many, Positive, checked, clean, iso_text
from calibration.importers.known import RATE_KINDS, Known, Offered
from calibration.importers.summary import Summary, held_back, measurement
from calibration.records import Measurement


class Named(Edge):
    """Something with a name."""

    name: str


class Models(Edge):
    """The models that were asked."""

    items: Many[Named] = Field(default_factory=list)


class Phase(Edge):
    """A phase of the load: its kind of arrivals, with `rate` in requests/s and `concurrency` as level or cap."""

    name: str = ""
    kind: str = ""
    type: str = ""
    rate: Positive | None = None
    concurrency: Count | None = None


class LoadGenerator(Edge):
    """The load in releases before phases: `request_rate` goes before `concurrency`."""

    concurrency: Count | None = None
    request_rate: Positive | None = None
    request_rate_mode: str | None = None
    arrival_pattern: str | None = None


class Endpoint(Edge):
    """The server's side in older releases."""

    model_names: Many[str] = Field(default_factory=list)


class InputConfig(Edge):
    """What the run was asked to do."""

    models: Models = Models()
    endpoint: Endpoint = Endpoint()
    phases: Many[Phase] = Field(default_factory=list)
    loadgen: LoadGenerator = LoadGenerator()


class Origin(Edge):
    """Where the metrics are from."""

    aiperf_version: str = ""
    start_time: str | None = None
    was_cancelled: bool = False
    input_config: InputConfig = InputConfig()


def recognises(value: Object) -> bool:
    """Whether a JSON object is AIPerf's summary."""
    config = value.get("input_config")
    older = isinstance(config, dict) and "loadgen" in config
    return "request_latency" in value and ("aiperf_version" in value or "schema_version" in value or older)


def recognises_csv(file: CsvFile) -> bool:
    """Whether a CSV is AIPerf's: it has the sum second to the maximum, which GenAI-Perf's has not."""
    return file.rows[0][:5] == ("Metric", "avg", "min", "max", "sum")


def read_json(file: JsonFile, known: Known) -> list[Measurement]:
    """The one level of the file. Raises FileError naming the key at fault."""
    origin = checked(Origin, file.value, file.name)
    found = metric_tables.metrics(file.value, file.name)
    load = None if known.concurrency or known.rate else _load(origin.input_config, file.name)
    models = [item.name for item in origin.input_config.models.items] or list(origin.input_config.endpoint.model_names)
    return [_measurement(found, file.name, known, load=load, model=clean(models[0]) if models else None, origin=origin)]


def read_csv(file: CsvFile, known: Known) -> list[Measurement]:
    """The one level of the file; load and model are the caller's to say. Raises FileError naming line and column."""
    found = metric_tables.metrics(metric_tables.csv_table(file), file.name)
    return [_measurement(found, file.name, known, load=None, model=None, origin=Origin())]


def _measurement(
    found: metric_tables.Metrics, name: str, known: Known, *, load: Offered | None, model: str | None, origin: Origin
) -> Measurement:
    columns: dict[str, Any] = metric_tables.columns(found, name)
    if found.osl_mismatch_count and found.osl_mismatch_count.avg > 0.01 * (columns["requests"] or 1):
        columns["verdict"] = "wrong_lengths"
    summary = Summary(
        source=f"AIPerf {origin.aiperf_version}".strip(),
        model=model,
        load=load,
        measured_at=iso_text(origin.start_time or ""),
        notes=_notes(origin),
        **columns,
    )
    if known.load(load, name).open_loop:
        summary = metric_tables.due(summary, found, name)
    return measurement(summary, known, name)


def _notes(origin: Origin) -> tuple[str, ...]:
    found = ["the run was cancelled"] if origin.was_cancelled else []
    capped = [phase.concurrency for phase in origin.input_config.phases if phase.rate and phase.concurrency]
    if capped:
        found.append(held_back(capped[-1]))
    return tuple(found)


def _load(config: InputConfig, name: str) -> Offered | None:
    """The load of the phase that was measured, None where the file does not say it."""
    measured = [phase for phase in config.phases if "warm" not in (phase.kind + phase.name).lower()]
    if measured:
        return _of_phase(measured[-1], name)
    older = config.loadgen
    if older.request_rate:
        mode = (older.arrival_pattern or older.request_rate_mode or "poisson").lower()
        return Offered(RATE_KINDS.get(mode, "poisson_rate"), older.request_rate)
    return Offered("concurrency", float(older.concurrency)) if older.concurrency else None


def _of_phase(phase: Phase, name: str) -> Offered | None:
    if phase.type in RATE_KINDS and phase.rate:
        return Offered(RATE_KINDS[phase.type], phase.rate)
    if phase.type in ("concurrency", "") and phase.concurrency:
        return Offered("concurrency", float(phase.concurrency))
    raise FileError(
        f"{name}, key 'input_config.phases': a load of type {clean(phase.type, 40)!r} cannot be taken from the file; "
        "give --concurrency N or --rate R"
    )
