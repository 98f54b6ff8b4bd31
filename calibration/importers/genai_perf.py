"""GenAI-Perf's summary, profile_export_genai_perf.json and .csv, and the metric tables that it shares with AIPerf.

A table has one entry per metric, in JSON or as two blocks of CSV. ITL is (E2E - TTFT)/(OSL - 1), one value per
request, like ours; TTFT is counted from when the request was sent. In AIPerf, E2E ends with the last response that has
content; in GenAI-Perf on Triton, with the empty final one. Requests/s is over the time from the first request to the
last answer. Tables of GPU telemetry, which both tools append to their CSV, are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import Field

from calibration.errors import FileError
from calibration.importers.points import (
    EVEN_ARRIVALS,
    FROM_DUE,
    PREFIX_FOUND,
    ImportedSummary,
    Times,
    measurement_of_summary,
)
from calibration.importers.reading import (
    Count,
    CsvFile,
    Edge,
    JsonFile,
    KnownFacts,
    Many,
    Number,
    Object,
    Offered,
    Positive,
    checked,
    clean,
    number,
    only,
    scale_to_s,
    unique,
)
from calibration.records import Measurement

TELEMETRY = {"GPU", "GPU_Index"}
TAGS = {"effective_latency_(co_aware)": "effective_latency"}
"""Tags of metrics, by the title in AIPerf's CSV where that differs."""
_THOUSANDS = re.compile(r"[0-9]{1,3}(,[0-9]{3})+(\.[0-9]+)?")


class Metric(Edge):
    """A metric's unit, mean and percentiles over requests; `count` is the number of values, if the tool states it."""

    unit: str
    avg: Number
    p50: Number | None = None
    p90: Number | None = None
    p95: Number | None = None
    p99: Number | None = None
    std: Number | None = None
    count: Number | None = None

    def times(self, where: str) -> Times:
        """The metric as latencies in seconds. Raises FileError if the unit is not one of time."""
        return Times.of((self.avg, self.p50, self.p90, self.p95, self.p99), scale_to_s(self.unit, where))

    @property
    def variation(self) -> float:
        """The coefficient of variation; 0 if the tool does not state the spread."""
        return (self.std or 0.0) / self.avg if self.avg else 0.0


class Rate(Edge):
    """A rate over the run; it cannot be 0 if there is anything to import."""

    avg: Positive


class Metrics(Edge):
    """The metrics that a point is made of; those of streaming are missing if the answers were not streamed."""

    request_throughput: Rate
    request_latency: Metric
    time_to_first_token: Metric | None = None
    inter_token_latency: Metric | None = None
    inter_chunk_latency: Metric | None = None
    output_token_throughput: Rate | None = None
    input_sequence_length: Metric | None = None
    output_sequence_length: Metric | None = None
    request_count: Metric | None = None
    error_request_count: Metric | None = None
    benchmark_duration: Metric | None = None
    effective_concurrency: Metric | None = None
    effective_latency: Metric | None = None
    credit_to_start_latency: Metric | None = None
    osl_mismatch_count: Metric | None = None
    usage_prompt_cache_read_tokens: Metric | None = None


def columns(found: Metrics, where: str) -> dict[str, Any]:
    """What `ImportedSummary` takes from the metrics, apart from load, model and origin."""
    requests = round(found.request_count.avg) if found.request_count else None
    cached = found.usage_prompt_cache_read_tokens  # only in AIPerf, from the usage that the server reports
    duration_s = _duration_s(found, requests, where)
    return {
        "isl": _mean(found.input_sequence_length),
        "osl": _mean(found.output_sequence_length),
        "isl_cv": found.input_sequence_length.variation if found.input_sequence_length else 0.0,
        "osl_cv": found.output_sequence_length.variation if found.output_sequence_length else 0.0,
        "requests": requests,
        "errors": round(found.error_request_count.avg) if found.error_request_count else None,
        "duration_s": duration_s,
        "requests_per_s": found.request_throughput.avg,
        "output_tokens_per_s": found.output_token_throughput.avg if found.output_token_throughput else None,
        "mean_in_flight": found.effective_concurrency.avg if found.effective_concurrency else None,
        "ttft": _times(found, "time_to_first_token", where),
        "itl": _times(found, "inter_token_latency", where),
        "e2e": _times(found, "request_latency", where),
        "tokens_per_chunk": _tokens_per_chunk(found, requests),
        "server": {PREFIX_FOUND: cached.avg} if cached else {},
    }


def _mean(metric: Metric | None) -> float | None:
    return (metric.avg or None) if metric else None


def _times(found: Metrics, name: str, where: str) -> Times:
    metric: Metric | None = getattr(found, name)
    return metric.times(f"{where}, key {name!r}") if metric else Times()


def _duration_s(found: Metrics, requests: int | None, where: str) -> float | None:
    if found.benchmark_duration and found.benchmark_duration.avg:
        return found.benchmark_duration.avg * scale_to_s(
            found.benchmark_duration.unit, f"{where}, key 'benchmark_duration'"
        )
    return requests / found.request_throughput.avg if requests else None


def _tokens_per_chunk(found: Metrics, requests: int | None) -> float | None:
    """Derived from the number of gaps between chunks: each request has one gap fewer than chunks."""
    gaps, tokens = found.inter_chunk_latency, found.output_sequence_length
    if not gaps or not gaps.count or not tokens or not requests:
        return None
    return tokens.avg / (gaps.count / requests + 1)


def due(summary: ImportedSummary, found: Metrics, where: str) -> ImportedSummary:
    """The summary of an open loop with latencies counted from when requests were due, as far as the metrics allow.

    AIPerf reports such an E2E (``effective_latency``); of TTFT only the mean is known, by adding the mean lateness.
    """
    late = found.credit_to_start_latency
    if late is None:
        return summary
    late_s = late.times(f"{where}, key 'credit_to_start_latency'").mean_s or 0.0
    e2e = _times(found, "effective_latency", where) if found.effective_latency else summary.e2e.later(late_s)
    return replace(
        summary,
        ttft=summary.ttft.later(late_s),
        e2e=e2e,
        late_mean_s=late_s,
        notes=(*summary.notes, FROM_DUE),
        facts={**summary.facts, **only({"ttft_sent_mean_s": summary.ttft.mean_s}), "late_mean_s": late_s},
    )


def csv_table(file: CsvFile) -> dict[str, dict[str, object]]:
    """The metrics of the CSV by JSON tag: ``Time to First Token (ms)`` is time_to_first_token with unit ms.

    They end where a table with one row per GPU begins.

    Raises FileError naming line and column of a cell that is not a number.
    """
    header: tuple[str, ...] = ()
    found: dict[str, dict[str, object]] = {}
    for line, row in zip(file.lines, file.rows, strict=True):
        where = f"{file.name}, line {line}"
        if "Metric" in row and not TELEMETRY.isdisjoint(row):
            break
        if row[0] == "Metric":
            header = row
            unique(header, where)
            continue
        tag, unit = _tag(row[0])
        if tag.endswith("_timestamp"):  # nanoseconds since 1970, in older releases of AIPerf
            continue
        if tag in found:
            raise FileError(f"{where}: metric {row[0][:60]!r} is there twice")
        found[tag] = {"unit": unit, **_values(header, row, where)}
    return found


def _tag(title: str) -> tuple[str, str]:
    name, _, unit = title.rpartition(" (") if title.endswith(")") else (title, "", "")
    tag = name.strip().lower().replace(" ", "_").replace("-", "_")
    return TAGS.get(tag, tag), unit.removesuffix(")")


def _values(header: tuple[str, ...], row: tuple[str, ...], where: str) -> Mapping[str, object]:
    if len(row) > len(header):
        raise FileError(f"{where}: more cells than columns")
    cells = dict(zip(header[1:], row[1:], strict=False))
    values = {column: _number(cell, f"{where}, column {column!r}") for column, cell in cells.items() if cell}
    return {"avg" if column == "Value" else column: value for column, value in values.items()}


def _number(cell: str, where: str) -> float:
    """GenAI-Perf separates thousands with commas."""
    return number(cell.replace(",", "") if _THOUSANDS.fullmatch(cell) else cell, where)


EMPTY_RESPONSES = (
    "GenAI-Perf takes Triton's empty responses for tokens: TTFT may be too short and E2E and ITL too long; "
    "import profile_export.json instead to be sure"
)


FLAT = "formatted_model_name"
"""A setting that only the flat list of options has, which GenAI-Perf up to 0.0.12 writes down."""


class Stimulus(Edge):
    concurrency: Count | None = None
    request_rate: Positive | None = None


class PerfAnalyzer(Edge):
    stimulus: Stimulus = Stimulus()


class GenaiEndpoint(Edge):
    service_kind: str | None = None


class PrefixPrompt(Edge):
    """GenAI-Perf puts one of `num` texts of `length` tokens before each prompt; none if `num` is 0."""

    num: Count = 0
    length: Count = 0


class GenaiInput(Edge):
    prefix_prompt: PrefixPrompt = PrefixPrompt()


class GenaiInputConfig(Edge):
    input: GenaiInput = GenaiInput()
    model_names: Many[str] = Field(default_factory=list)
    endpoint: GenaiEndpoint = GenaiEndpoint()
    perf_analyzer: PerfAnalyzer = PerfAnalyzer()


class GenaiOrigin(Edge):
    input_config: GenaiInputConfig = GenaiInputConfig()


def recognises(value: Object) -> bool:
    """Whether a JSON object is GenAI-Perf's summary: it has AIPerf's metrics, but no version of AIPerf."""
    config = value.get("input_config")
    marks = ("perf_analyzer", "model_names", FLAT)
    return "request_latency" in value and isinstance(config, dict) and any(mark in config for mark in marks)


def recognises_csv(file: CsvFile) -> bool:
    """Whether a CSV is GenAI-Perf's: its percentiles are in descending order."""
    return file.rows[0][:5] == ("Metric", "avg", "min", "max", "p99")


def read_json(file: JsonFile, known: KnownFacts) -> list[Measurement]:
    """The one level of the file. Raises FileError naming the key at fault."""
    value = {**file.value, "input_config": _nested(file.value["input_config"])}
    config = checked(GenaiOrigin, value, file.name).input_config
    stimulus = config.perf_analyzer.stimulus
    load = None
    if stimulus.request_rate:
        load = Offered("constant_rate", stimulus.request_rate)
    elif stimulus.concurrency:
        load = Offered("concurrency", float(stimulus.concurrency))
    model = clean(config.model_names[0]) if config.model_names else None
    triton = config.endpoint.service_kind not in ("openai", None)
    prefix = config.input.prefix_prompt
    found = checked(Metrics, file.value, file.name)
    return [
        _measurement(found, file.name, known, load, model, triton=triton, prefix=prefix.length if prefix.num else 0)
    ]


def _nested(options: Object) -> Object:
    """The settings as newer releases write them."""
    if FLAT not in options:
        return options
    return {
        "input": {
            "prefix_prompt": {
                "num": options.get("num_prefix_prompts", 0),
                "length": options.get("prefix_prompt_length", 0),
            }
        },
        "model_names": options.get("model") or [],
        "endpoint": {"service_kind": options.get("service_kind")},
        "perf_analyzer": {"stimulus": {name: options.get(name) for name in ("concurrency", "request_rate")}},
    }


def read_csv(file: CsvFile, known: KnownFacts) -> list[Measurement]:
    """The one level of the file; the caller gives load and model. Raises FileError naming line and column."""
    found = checked(Metrics, csv_table(file), file.name)
    return [_measurement(found, file.name, known, None, None, triton=True)]


def _measurement(
    found: Metrics,
    name: str,
    known: KnownFacts,
    load: Offered | None,
    model: str | None,
    *,
    triton: bool,
    prefix: int = 0,
) -> Measurement:
    notes = [EMPTY_RESPONSES] if triton else []
    if load and load.kind == "constant_rate" and not known.arrivals:
        notes.append(EVEN_ARRIVALS)
    summary = ImportedSummary(
        source="GenAI-Perf",
        model=model,
        load=load,
        usual_arrivals="constant",
        notes=tuple(notes),
        shared_prefix=prefix,
        **columns(found, name),
    )
    return measurement_of_summary(summary, known, name)
