"""AIPerf's files: the summary, profile_export_aiperf.json and .csv, and the requests, profile_export.jsonl."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from pydantic import Field

from calibration.errors import FileError
from calibration.importers import genai_perf
from calibration.importers.points import (
    CANCELLED,
    UNSTREAMED,
    ImportedRun,
    ImportedSummary,
    SeenRequest,
    held_back,
    measurement_of_run,
    measurement_of_summary,
)
from calibration.importers.reading import (
    Count,
    CsvFile,
    Edge,
    JsonFile,
    JsonLines,
    KnownFacts,
    Many,
    Nanoseconds,
    Number,
    Object,
    Offered,
    Positive,
    Tokens,
    checked,
    clean,
    error_name,
    iso_text,
    iso_time,
    scale_to_s,
)
from calibration.plan import RATE_KINDS
from calibration.records import Measurement


class Named(Edge):
    name: str


class Models(Edge):
    items: Many[Named] = Field(default_factory=list)


class Phase(Edge):
    """A phase of the load: its kind of arrivals, `rate` in requests/s, and `concurrency`, the level or the cap."""

    name: str = ""
    kind: str = ""
    type: str = ""
    rate: Positive | None = None
    concurrency: Count | None = None


class LoadGenerator(Edge):
    """The load in releases that had no phases yet: `request_rate` takes precedence over `concurrency`."""

    concurrency: Count | None = None
    request_rate: Positive | None = None
    request_rate_mode: str | None = None
    arrival_pattern: str | None = None


class Endpoint(Edge):
    model_names: Many[str] = Field(default_factory=list)


class PrefixPrompts(Edge):
    """What AIPerf puts before each prompt: a text of `length` tokens from a pool, or a system prompt that all share."""

    length: Count | None = None
    shared_system_length: Count | None = None


class Dataset(Edge):
    prefix_prompts: PrefixPrompts | None = None


class InputConfig(Edge):
    models: Models = Models()
    datasets: Many[Dataset] = Field(default_factory=list)
    endpoint: Endpoint = Endpoint()
    phases: Many[Phase] = Field(default_factory=list)
    loadgen: LoadGenerator = LoadGenerator()


class Origin(Edge):
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
    """Whether a CSV is AIPerf's, whose header, unlike GenAI-Perf's, has a sum after the maximum; in older ones p1."""
    return file.rows[0][:4] == ("Metric", "avg", "min", "max") and file.rows[0][4:5] in (("sum",), ("p1",))


def read_json(file: JsonFile, known: KnownFacts) -> list[Measurement]:
    """The one level of the file. Raises FileError naming the key at fault."""
    origin = checked(Origin, file.value, file.name)
    found = checked(genai_perf.Metrics, file.value, file.name)
    load = None if known.says_load else _load(origin.input_config, file.name)
    models = [item.name for item in origin.input_config.models.items] or list(origin.input_config.endpoint.model_names)
    return [_measurement(found, file.name, known, load=load, model=clean(models[0]) if models else None, origin=origin)]


def read_csv(file: CsvFile, known: KnownFacts) -> list[Measurement]:
    """The one level of the file; the caller gives load and model. Raises FileError naming line and column."""
    found = checked(genai_perf.Metrics, genai_perf.csv_table(file), file.name)
    return [_measurement(found, file.name, known, load=None, model=None, origin=Origin())]


def _measurement(
    found: genai_perf.Metrics,
    name: str,
    known: KnownFacts,
    *,
    load: Offered | None,
    model: str | None,
    origin: Origin,
) -> Measurement:
    columns: dict[str, Any] = genai_perf.columns(found, name)
    if found.osl_mismatch_count and found.osl_mismatch_count.avg > 0.01 * (columns["requests"] or 1):
        columns["verdict"] = "wrong_lengths"
    summary = ImportedSummary(
        source=f"AIPerf {origin.aiperf_version}".strip(),
        model=model,
        load=load,
        measured_at=iso_text(origin.start_time or ""),
        notes=_notes(origin),
        shared_prefix=_shared_prefix(origin.input_config),
        **columns,
    )
    if known.load(load, name).open_loop:
        summary = genai_perf.due(summary, found, name)
    return measurement_of_summary(summary, known, name)


def _shared_prefix(config: InputConfig) -> int:
    prefixes = [dataset.prefix_prompts for dataset in config.datasets if dataset.prefix_prompts]
    return (prefixes[0].shared_system_length or prefixes[0].length or 0) if prefixes else 0


def _notes(origin: Origin) -> tuple[str, ...]:
    found = ["the run was cancelled"] if origin.was_cancelled else []
    older = origin.input_config.loadgen
    capped = [phase.concurrency for phase in origin.input_config.phases if phase.rate and phase.concurrency]
    capped += [older.concurrency] if older.request_rate and older.concurrency else []
    if capped:
        found.append(held_back(capped[-1]))
    return tuple(found)


def _load(config: InputConfig, name: str) -> Offered | None:
    """The load of the measured phase; None if the file does not say it."""
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


NS = 1e-9
UNEVEN = "tokens of each response are not in the file: shared evenly between a request's responses"


class Metadata(Edge):
    """When the request was due (when its credit was issued), sent and finished, by the wall clock."""

    request_start_ns: Nanoseconds
    request_end_ns: Nanoseconds | None = None
    credit_issued_ns: Nanoseconds | None = None
    benchmark_phase: str = "profiling"
    was_cancelled: bool = False


class AiperfLatency(Edge):
    value: Number
    unit: str

    def seconds(self, where: str) -> float:
        """The latency in seconds. Raises FileError if the unit is not one of time."""
        return self.value * scale_to_s(self.unit, where)


class Latencies(Edge):
    value: Many[Number]
    unit: str


class TokenCount(Edge):
    value: Tokens


class RequestMetrics(Edge):
    """The metrics of one request, without latencies if it failed."""

    time_to_first_token: AiperfLatency | None = None
    request_latency: AiperfLatency | None = None
    inter_chunk_latency: Latencies | None = None
    input_sequence_length: TokenCount | None = None
    output_sequence_length: TokenCount | None = None
    usage_completion_tokens: TokenCount | None = None
    usage_prompt_cache_read_tokens: TokenCount | None = None


class ErrorRecord(Edge):
    type: str | None = None
    code: int | None = None


class Record(Edge):
    metadata: Metadata
    metrics: RequestMetrics = RequestMetrics()
    error: ErrorRecord | None = None


def recognises_records(value: Object) -> bool:
    """Whether a JSON object is AIPerf's record of a request."""
    metadata = value.get("metadata")
    return isinstance(metadata, dict) and "request_start_ns" in metadata


def read(file: JsonLines, known: KnownFacts) -> list[Measurement]:
    """The one level of the file, from its requests after warm-up. Raises FileError naming the record and the key."""
    placed = ((value, f"{file.name}, record {place}") for place, value in enumerate(file.values(), start=1))
    records = [(checked(Record, value, where), where) for value, where in placed]
    measured = [(record, where) for record, where in records if record.metadata.benchmark_phase == "profiling"]
    if not measured:
        raise FileError(f"{file.name}: no record of the phase 'profiling', only of the warm-up")
    earliest_ns = min(record.metadata.request_start_ns for record, _ in measured)
    seen = [_seen(record, earliest_ns, where) for record, where in measured]
    uneven = any(0 < len(request.chunk_s) < request.tokens and not request.evenly for request in seen)
    notes = (UNEVEN,) if uneven else ()
    run = ImportedRun(source="AIPerf", requests=seen, measured_at=iso_time(earliest_ns * NS), notes=notes)
    return [measurement_of_run(run, known, file.name)]


def _seen(record: Record, earliest_ns: int, where: str) -> SeenRequest:
    times, metrics = record.metadata, record.metrics
    sent_s = (times.request_start_ns - earliest_ns) * NS
    due_s = sent_s if times.credit_issued_ns is None else (times.credit_issued_ns - earliest_ns) * NS
    over_s = sent_s if times.request_end_ns is None else (times.request_end_ns - earliest_ns) * NS
    error = _error(record)
    chunk_s = () if error else _chunk_s(metrics, sent_s, where)
    tokens = metrics.output_sequence_length or metrics.usage_completion_tokens
    return SeenRequest(
        due_s=min(due_s, sent_s),
        sent_s=sent_s,
        end_s=chunk_s[-1] if chunk_s else max(over_s, sent_s),
        chunk_s=chunk_s,
        tokens=tokens.value if tokens and chunk_s else 0,
        isl=metrics.input_sequence_length.value if metrics.input_sequence_length else 0,
        evenly=tokens.value if tokens and chunk_s and metrics.inter_chunk_latency is None else 0,
        error=error or ("" if chunk_s else "no tokens"),
        cached=metrics.usage_prompt_cache_read_tokens.value if metrics.usage_prompt_cache_read_tokens else None,
    )


def _error(record: Record) -> str:
    if record.error is not None:
        code = "" if record.error.code is None else f"{record.error.code} "
        return clean(code + error_name(record.error.type or ""), 60)
    return CANCELLED if record.metadata.was_cancelled else ""


def _chunk_s(metrics: RequestMetrics, sent_s: float, where: str) -> tuple[float, ...]:
    """When the responses with content came; if the file has no gaps, only the first and the last time."""
    first, last, gaps = metrics.time_to_first_token, metrics.request_latency, metrics.inter_chunk_latency
    if last is None:
        return ()
    end_s = sent_s + last.seconds(where)
    if first is None:
        raise FileError(f"{where}: key 'metrics.time_to_first_token': is missing; {UNSTREAMED}")
    first_s = sent_s + first.seconds(where)
    if first_s > end_s:
        raise FileError(f"{where}: key 'metrics.request_latency': shorter than time_to_first_token")
    if gaps is None:
        return (first_s, end_s)
    scale = scale_to_s(gaps.unit, where)
    return tuple(accumulate((gap * scale for gap in gaps.value), initial=first_s))
