"""vLLM's `bench serve --save-result`, with individual requests if `--save-detailed` was given; `--append-result` writes
one result per line. SGLang's `bench_serving --output-file` descends from it.

vLLM's TPOT is our ITL, (E2E - TTFT)/(OSL - 1); its ITL is the gap between chunks, which is not ours. Its TTFT and E2E
are counted from when a place among the `max_concurrency` requests was free: ``queue_times`` has the waits before that.
vLLM leaves them and the ``latencies`` in the file also where the other lists of requests are left out.
"""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime
from itertools import accumulate
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from calibration.errors import FileError
from calibration.importers.points import (
    FROM_DUE,
    UNSTREAMED,
    ImportedRun,
    ImportedSummary,
    SeenRequest,
    Times,
    held_back,
    measurement_of_run,
    measurement_of_summary,
)
from calibration.importers.reading import (
    Count,
    Edge,
    JsonFile,
    KnownFacts,
    Many,
    Number,
    Object,
    Offered,
    Positive,
    Tokens,
    checked,
    clean,
    error_name,
    only,
)
from calibration.records import Measurement
from sizing.points import LoadKind

SOURCE, OF_SGLANG = "vLLM bench serve", "SGLang bench_serving"
CHUNKS_AGREE = 0.02
MS = 1e-3


class Result(Edge):
    """The result, a flat object. Older files lack `failed` and `max_concurrency`; totals are over answered requests."""

    model_id: str | None = None
    date: str | None = None
    request_rate: Annotated[float, Field(gt=0, allow_inf_nan=True)] | Literal["inf", "trace"] | None = None
    burstiness: Annotated[float, Field(gt=0, allow_inf_nan=True)] = 1.0  # infinite: even gaps
    ramp_up_strategy: str | None = None
    max_concurrency: Count | None = None
    num_prompts: Count | None = None
    output_lens: Many[Tokens] | None = None
    duration: Positive
    completed: Count = Field(gt=0)
    failed: Count | None = None
    total_input_tokens: Count | None = None
    total_output_tokens: Count | None = None
    request_throughput: Positive
    output_throughput: Number | None = None
    mean_ttft_ms: Number
    mean_tpot_ms: Number | None = None
    mean_itl_ms: Number | None = None

    @property
    def errors(self) -> int | None:
        """Requests that were not answered: in older files and in SGLang's, prompts less answers; None if unknown."""
        listed = None if self.output_lens is None else len(self.output_lens)
        prompts = listed if self.num_prompts is None else self.num_prompts
        return self.failed if self.failed is not None or prompts is None else max(0, prompts - self.completed)


class VllmLatencies(Edge):
    """Mean and percentiles in ms; the flags of the run decide which percentiles there are."""

    mean: Number | None = None
    median: Number | None = None
    p50: Number | None = None
    p90: Number | None = None
    p95: Number | None = None
    p99: Number | None = None

    @property
    def times(self) -> Times:
        """The latencies in seconds."""
        middle = self.median if self.p50 is None else self.p50
        return Times.of((self.mean, middle, self.p90, self.p95, self.p99), MS)


class Details(Edge):
    """Lists with one entry per request, times in seconds; an entry of `itls` is the list of gaps between its chunks."""

    input_lens: Many[Tokens]
    output_lens: Many[Tokens]
    ttfts: Many[Number]
    itls: Many[Many[Number]]
    start_times: Many[Number]
    latencies: Many[Number | None] | None = None
    queue_times: Many[Number | None] | None = None
    errors: Many[str | None] | None = None


class Listed(Edge):
    """The lists of requests that vLLM before 0.10 and SGLang write, without the times when requests were sent."""

    input_lens: Many[Tokens] = Field(default_factory=list)
    output_lens: Many[Tokens] = Field(default_factory=list)
    ttfts: Many[Number] = Field(default_factory=list)
    itls: Many[Many[Number]] = Field(default_factory=list)

    def columns(self, completed: int) -> dict[str, Any]:
        """What an `ImportedSummary` takes from them: the spread of the lengths, and E2E; nothing unless every one of
        the `completed` requests is there."""
        requests = zip(self.input_lens, self.output_lens, self.ttfts, self.itls, strict=False)
        answered = [(isl, osl, ttft_s + sum(gaps_s)) for isl, osl, ttft_s, gaps_s in requests if osl]
        if len(answered) != completed:
            return {}
        isl, osl, e2e_s = np.array(answered, np.float64).T
        return {
            "isl_cv": float(isl.std() / max(isl.mean(), 1)),
            "osl_cv": float(osl.std() / osl.mean()),
            "e2e": Times.over(e2e_s),
        }


class Waits(Edge):
    """The lists that vLLM writes without ``--save-detailed`` too, in seconds; the latency of a failed request is 0."""

    latencies: Many[Number | None] = Field(default_factory=list)
    queue_times: Many[Number | None] = Field(default_factory=list)

    @property
    def answered(self) -> list[tuple[float, float]]:
        """Latency and wait of every answered request."""
        pairs = zip(self.latencies, self.queue_times, strict=False)
        return [(latency_s, waited_s or 0.0) for latency_s, waited_s in pairs if latency_s]


def recognises(value: Object) -> bool:
    """Whether a JSON object is a result of vLLM's serving benchmark."""
    return "request_throughput" in value and "mean_ttft_ms" in value


def is_sglang(file: JsonFile) -> bool:
    """Whether SGLang's descendant of the benchmark wrote it, which calls E2E otherwise and draws its gaps freely."""
    return "mean_e2e_latency_ms" in file.value


def read(file: JsonFile, known: KnownFacts) -> list[Measurement]:
    """The one level of the file, from its requests if it has all of them. Raises FileError naming the key."""
    result = checked(Result, file.value, file.name)
    if result.mean_ttft_ms == 0:
        raise FileError(f"{file.name}, key 'mean_ttft_ms': {UNSTREAMED}")
    if result.ramp_up_strategy:
        raise FileError(
            f"{file.name}, key 'ramp_up_strategy': the rate rose during the run, so it is of no load level; measure "
            "with --request-rate or --max-concurrency alone"
        )
    details = _details(file)
    if details is not None and len(details.start_times) == result.completed + (result.errors or 0):
        return [_from_details(result, details, file, known)]
    left_out = "single requests left out: the file does not hold all of them" if details else ""
    return [_from_summary(result, file, known, left_out)]


def _details(file: JsonFile) -> Details | None:
    """The lists of requests; None if they are missing or, as in older files, the start times are."""
    if any(not isinstance(file.value.get(key), list) for key in ("start_times", "ttfts", "itls", "input_lens")):
        return None
    details = checked(Details, file.value, file.name)
    wanted = len(details.start_times)
    for key in Details.model_fields:
        values = getattr(details, key)
        if values is not None and len(values) != wanted:
            raise FileError(f"{file.name}, key {key!r}: {len(values)} entries where 'start_times' has {wanted}")
    return details


def _from_details(result: Result, details: Details, file: JsonFile, known: KnownFacts) -> Measurement:
    load = _load(result)
    run = ImportedRun(
        source=SOURCE,
        requests=[_seen(details, i) for i in range(len(details.start_times))],
        model=clean(result.model_id or "") or None,
        load=load,
        measured_at=_when(result.date),
        notes=_notes(load, result),
        burst=_burst(result) and not known.says_load,
    )
    return measurement_of_run(run, known, file.name)


def _seen(details: Details, i: int) -> SeenRequest:
    sent_s, osl = details.start_times[i], details.output_lens[i]
    waited_s = (details.queue_times[i] or 0.0) if details.queue_times else 0.0
    message = details.errors[i] if details.errors else None
    error = error_name(message) if message else ("" if osl else "no tokens")
    if error:
        over_s = sent_s + max(details.ttfts[i], (details.latencies[i] or 0.0) if details.latencies else 0.0)
        return SeenRequest(sent_s - waited_s, sent_s, over_s, (), 0, details.input_lens[i], error=error)
    chunk_s, evenly = _chunk_s(details, i)
    return SeenRequest(sent_s - waited_s, sent_s, chunk_s[-1], chunk_s, osl, details.input_lens[i], evenly=evenly)


def _chunk_s(details: Details, i: int) -> tuple[tuple[float, ...], int]:
    """The times of the chunks, and 0; if the gaps do not add up to the latency, only first and last, and the tokens."""
    first_s = details.start_times[i] + details.ttfts[i]
    chunk_s = tuple(accumulate(details.itls[i], initial=first_s))
    latency_s = details.latencies[i] if details.latencies else None
    if latency_s is None or abs(details.start_times[i] + latency_s - chunk_s[-1]) <= CHUNKS_AGREE * latency_s:
        return chunk_s, 0
    end_s = max(details.start_times[i] + latency_s, first_s)
    return (first_s, end_s), details.output_lens[i]


def _from_summary(result: Result, file: JsonFile, known: KnownFacts, left_out: str) -> Measurement:
    load, of_sglang = _load(result), is_sglang(file)
    tool, e2e = (OF_SGLANG, "e2e_latency") if of_sglang else (SOURCE, "e2el")
    tokens = result.total_output_tokens
    chunk_ratio = result.mean_itl_ms / result.mean_tpot_ms if result.mean_itl_ms and result.mean_tpot_ms else None
    summary = ImportedSummary(
        source=tool,
        model=clean(result.model_id or "") or None,
        load=load,
        isl=result.total_input_tokens / result.completed if result.total_input_tokens else None,
        osl=tokens / result.completed if tokens else None,
        requests=result.completed,
        errors=result.errors,
        duration_s=result.duration,
        requests_per_s=result.request_throughput,
        output_tokens_per_s=result.output_throughput or None,
        ttft=_times(file, "ttft"),
        itl=_times(file, "tpot"),
        tokens_per_chunk=chunk_ratio,
        measured_at=_when(result.date),
        verdict="unsteady" if _burst(result) and not known.says_load else "",
        notes=(
            *_notes(load, result, of_sglang),
            f"ITL is {tool.split()[0]}'s TPOT",
            *([left_out] if left_out else []),
        ),
        **{"e2e": _times(file, e2e)} | checked(Listed, file.value, file.name).columns(result.completed),
    )
    if known.load(load, file.name).open_loop and result.max_concurrency:
        summary = _from_due(summary, checked(Waits, file.value, file.name))
    return measurement_of_summary(summary, known, file.name)


def _from_due(summary: ImportedSummary, waits: Waits) -> ImportedSummary:
    """The summary with latencies counted from when requests were due, if the file has their waits for a place."""
    if not waits.answered:
        return summary
    latency_s, waited_s = np.array(waits.answered).T
    late_s, e2e_s = float(waited_s.mean()), latency_s + waited_s
    return replace(
        summary,
        ttft=summary.ttft.later(late_s),
        e2e=Times.over(e2e_s),
        late_mean_s=late_s,
        notes=(*summary.notes, FROM_DUE),
        facts=only({"ttft_sent_mean_s": summary.ttft.mean_s, "late_mean_s": late_s}),
    )


def _times(file: JsonFile, metric: str) -> Times:
    names = VllmLatencies.model_fields
    found = {name: file.value[f"{name}_{metric}_ms"] for name in names if f"{name}_{metric}_ms" in file.value}
    return checked(VllmLatencies, found, f"{file.name}, {metric}").times


def _burst(result: Result) -> bool:
    return result.request_rate in (None, "inf", math.inf) and not result.max_concurrency


def _load(result: Result) -> Offered | None:
    """The load. Rate "inf" without a limit is a burst: all requests are in flight at first, fewer and fewer later.

    SGLang writes "trace" where requests were sent at the times of a trace: no load is known.
    """
    if result.request_rate == "trace":
        return None
    if isinstance(result.request_rate, float) and math.isfinite(result.request_rate):
        kinds: dict[float, LoadKind] = {1.0: "poisson_rate", math.inf: "constant_rate"}
        return Offered(kinds.get(result.burstiness, "gamma_rate"), result.request_rate)
    if result.max_concurrency:
        return Offered("concurrency", float(result.max_concurrency))
    return Offered("concurrency", float(result.num_prompts or result.completed)) if _burst(result) else None


def _notes(load: Offered | None, result: Result, of_sglang: bool = False) -> tuple[str, ...]:
    if not load or not load.open_loop:
        return ()
    capped = (held_back(result.max_concurrency),) if result.max_concurrency else ()
    random = load.kind != "constant_rate" and not of_sglang
    calmer = ("vLLM stretches its random gaps to an exact total: calmer than true arrivals",) if random else ()
    return (*calmer, *capped)


def _when(date: str | None) -> str:
    try:
        return datetime.strptime(date or "", "%Y%m%d-%H%M%S").replace(tzinfo=UTC).isoformat(timespec="seconds")
    except ValueError:
        return ""
