"""AIPerf's single requests: profile_export.jsonl, one request a line."""

from __future__ import annotations

from itertools import accumulate

from calibration.errors import FileError
from calibration.importers.content import JsonLines, Object
from calibration.importers.edge import (
    Edge,
    Many,
    Nanoseconds,
    Number,
    Tokens,
    checked,
    clean,
    error_name,
    iso_time,
    scale_to_s,
)
from calibration.importers.known import Known
from calibration.importers.rebuild import Run, Seen, measurement
from calibration.records import Measurement

NS = 1e-9
UNEVEN = "tokens of each response are not in the file: shared evenly between a request's responses"


class Metadata(Edge):
    """When the request was due (its credit issued), sent and over, on a wall clock."""

    request_start_ns: Nanoseconds
    request_end_ns: Nanoseconds | None = None
    credit_issued_ns: Nanoseconds | None = None
    benchmark_phase: str = "profiling"
    was_cancelled: bool = False


class Latency(Edge):
    """A time and its unit."""

    value: Number
    unit: str

    def seconds(self, where: str) -> float:
        """In seconds. Raises FileError if the unit is not one of time."""
        return self.value * scale_to_s(self.unit, where)


class Latencies(Edge):
    """Times between responses with content."""

    value: Many[Number]
    unit: str


class TokenCount(Edge):
    """A number of tokens."""

    value: Tokens


class RequestMetrics(Edge):
    """Metrics of one request; the latencies are missing where it failed."""

    time_to_first_token: Latency | None = None
    request_latency: Latency | None = None
    inter_chunk_latency: Latencies | None = None
    input_sequence_length: TokenCount | None = None
    output_sequence_length: TokenCount | None = None
    usage_completion_tokens: TokenCount | None = None


class ErrorRecord(Edge):
    """What went wrong."""

    type: str | None = None
    code: int | None = None


class Record(Edge):
    """One line of the file."""

    metadata: Metadata
    metrics: RequestMetrics = RequestMetrics()
    error: ErrorRecord | None = None


def recognises(value: Object) -> bool:
    """Whether a line is AIPerf's record of a request."""
    metadata = value.get("metadata")
    return isinstance(metadata, dict) and "request_start_ns" in metadata


def read(file: JsonLines, known: Known) -> list[Measurement]:
    """The one level of the file, from the requests after warm-up. Raises FileError naming record and key at fault."""
    records = [
        (checked(Record, value, f"{file.name}, record {place}"), f"{file.name}, record {place}")
        for place, value in enumerate(file.values(), start=1)
    ]
    measured = [(record, where) for record, where in records if record.metadata.benchmark_phase == "profiling"]
    if not measured:
        raise FileError(f"{file.name}: no record of the phase 'profiling', only of warm-up")
    earliest_ns = min(record.metadata.request_start_ns for record, _ in measured)
    seen = [_seen(record, earliest_ns, where) for record, where in measured]
    notes = (
        (UNEVEN,) if any(0 < len(request.chunk_s) < request.tokens and not request.evenly for request in seen) else ()
    )
    run = Run(source="AIPerf", requests=seen, measured_at=iso_time(earliest_ns * NS), notes=notes)
    return [measurement(run, known, file.name)]


def _seen(record: Record, earliest_ns: int, where: str) -> Seen:
    times, metrics = record.metadata, record.metrics
    sent_s = (times.request_start_ns - earliest_ns) * NS
    due_s = sent_s if times.credit_issued_ns is None else (times.credit_issued_ns - earliest_ns) * NS
    over_s = sent_s if times.request_end_ns is None else (times.request_end_ns - earliest_ns) * NS
    error = _error(record)
    chunk_s = () if error else _chunk_s(metrics, sent_s, where)
    tokens = metrics.output_sequence_length or metrics.usage_completion_tokens
    return Seen(
        due_s=min(due_s, sent_s),
        sent_s=sent_s,
        end_s=chunk_s[-1] if chunk_s else max(over_s, sent_s),
        chunk_s=chunk_s,
        tokens=tokens.value if tokens and chunk_s else 0,
        isl=metrics.input_sequence_length.value if metrics.input_sequence_length else 0,
        evenly=tokens.value if tokens and chunk_s and metrics.inter_chunk_latency is None else 0,
        error=error or ("" if chunk_s else "no tokens"),
    )


def _error(record: Record) -> str:
    if record.error is not None:
        code = "" if record.error.code is None else f"{record.error.code} "
        return clean(code + error_name(record.error.type or ""), 60)
    return "cancelled" if record.metadata.was_cancelled else ""


def _chunk_s(metrics: RequestMetrics, sent_s: float, where: str) -> tuple[float, ...]:
    """When responses with content came: all of them, or the first and the last."""
    first, last, gaps = metrics.time_to_first_token, metrics.request_latency, metrics.inter_chunk_latency
    if last is None:
        return ()
    end_s = sent_s + last.seconds(where)
    if first is None:
        raise FileError(f"{where}: key 'metrics.time_to_first_token': is missing; only streamed requests can be used")
    first_s = sent_s + first.seconds(where)
    if first_s > end_s:
        raise FileError(f"{where}: key 'metrics.request_latency': shorter than time_to_first_token")
    if gaps is None:
        return (first_s, end_s)
    scale = scale_to_s(gaps.unit, where)
    return tuple(accumulate((gap * scale for gap in gaps.value), initial=first_s))
