"""GenAI-Perf's summary: profile_export_genai_perf.json and .csv."""

from __future__ import annotations

from pydantic import Field

from calibration.importers import metric_tables
from calibration.importers.points import ImportedSummary, measurement_of_summary
from calibration.importers.reading import (
    Count,
    CsvFile,
    Edge,
    JsonFile,
    KnownFacts,
    Many,
    Object,
    Offered,
    Positive,
    checked,
    clean,
)
from calibration.records import Measurement

EMPTY_RESPONSES = (
    "GenAI-Perf takes Triton's empty responses for tokens: TTFT may be too short and E2E and ITL too long; "
    "import profile_export.json instead to be sure"
)


class Stimulus(Edge):
    concurrency: Count | None = None
    request_rate: Positive | None = None


class PerfAnalyzer(Edge):
    stimulus: Stimulus = Stimulus()


class GenaiEndpoint(Edge):
    service_kind: str | None = None


class PrefixPrompt(Edge):
    """One of `num` texts of `length` tokens is put before each prompt; none where `num` is 0."""

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
    """Whether a JSON object is GenAI-Perf's summary: AIPerf's metrics without AIPerf's version."""
    config = value.get("input_config")
    marks = ("perf_analyzer", "model_names")
    return "request_latency" in value and isinstance(config, dict) and any(mark in config for mark in marks)


def recognises_csv(file: CsvFile) -> bool:
    """Whether a CSV is GenAI-Perf's: its percentiles are in descending order."""
    return file.rows[0][:5] == ("Metric", "avg", "min", "max", "p99")


def read_json(file: JsonFile, known: KnownFacts) -> list[Measurement]:
    """The one level of the file. Raises FileError naming the key at fault."""
    config = checked(GenaiOrigin, file.value, file.name).input_config
    stimulus = config.perf_analyzer.stimulus
    load = None
    if stimulus.request_rate:
        load = Offered("constant_rate", stimulus.request_rate)
    elif stimulus.concurrency:
        load = Offered("concurrency", float(stimulus.concurrency))
    model = clean(config.model_names[0]) if config.model_names else None
    triton = config.endpoint.service_kind not in ("openai", None)
    prefix = config.input.prefix_prompt
    found = metric_tables.metrics(file.value, file.name)
    return [
        _measurement(found, file.name, known, load, model, triton=triton, prefix=prefix.length if prefix.num else 0)
    ]


def read_csv(file: CsvFile, known: KnownFacts) -> list[Measurement]:
    """The one level of the file; the caller gives load and model. Raises FileError naming line and column."""
    found = metric_tables.metrics(metric_tables.csv_table(file), file.name)
    return [_measurement(found, file.name, known, None, None, triton=True)]


def _measurement(
    found: metric_tables.Metrics,
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
        notes.append("the file does not say how requests arrive: evenly, as is usual with perf_analyzer")
    summary = ImportedSummary(
        source="GenAI-Perf",
        model=model,
        load=load,
        usual_arrivals="constant",
        notes=tuple(notes),
        shared_prefix=prefix,
        **metric_tables.columns(found, name),
    )
    return measurement_of_summary(summary, known, name)
