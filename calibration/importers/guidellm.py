"""GuideLLM's benchmarks.json, in its three generations (metadata.version 2, 1, and none), and its benchmarks.csv.

The CSV has three header rows (group, metric, statistic), then one row per benchmark, and no individual requests.

GuideLLM's ITL is (last - first token)/(OSL - 1), like ours, but its mean is weighted by tokens. Its TPOT includes the
TTFT and is never used. Its E2E ends with the response, after the last token. With a warm-up or a cool-down, it counts
every request that was under way between them, also in part, and lists those outside too. If the file has all individual
requests, the point is computed from them by our own definitions.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import Field

from calibration.errors import FileError
from calibration.importers.points import (
    CANCELLED,
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
    CsvFile,
    Edge,
    JsonFile,
    KnownFacts,
    Many,
    Number,
    Object,
    Offered,
    Positive,
    Row,
    Tokens,
    checked,
    clean,
    iso_time,
    number,
)
from calibration.records import Measurement

# --- The parts of GuideLLM's report that points are made of, in all three generations; texts and keys are never read

MS = 1e-3
MOST_LATE_S = 1e6
"""Where a request is later than that, its target is no moment: release 0.5 may count those of the first random
arrivals from -1 s, not from the start of the run."""


class Strategy(Edge):
    """How requests were sent: `streams` users at once, or `rate` a second."""

    type_: str
    streams: Count | None = None
    rate: Positive | None = None
    max_concurrency: Count | None = None


class Holder(Edge):
    """The part of a benchmark that holds the strategy: `config` since 0.4, `scheduler` or `args` before."""

    strategy: Strategy | None = None


class Percentiles(Edge):
    """In GuideLLM, p01 is the 1st percentile and p001 the 0.1th; those are not read, nor p50, which 0.2 leaves out."""

    p90: Number
    p95: Number
    p99: Number


class Distribution(Edge):
    """A metric over requests, or over tokens."""

    mean: Number
    median: Number | None = None
    std_dev: Number = 0.0
    max: Number | None = None
    percentiles: Percentiles | None = None

    def times(self, scale: float = MS) -> Times:
        """The metric as latencies in seconds, from values in units of `scale` seconds."""
        tail = self.percentiles
        return Times.of((self.mean, *((self.median, tail.p90, tail.p95, tail.p99) if tail else ())), scale)


class Statuses(Edge):
    """A metric over the successful requests."""

    successful: Distribution | None = None


class Totals(Edge):
    """Numbers of requests by outcome."""

    successful: Count
    errored: Count = 0
    incomplete: Count = 0


class GuidellmMetrics(Edge):
    """The metrics that a point is made of; `request_latency` is in seconds. Totals are here since 0.4."""

    request_totals: Totals | None = None
    request_latency: Statuses
    requests_per_second: Statuses | None = None
    request_concurrency: Statuses | None = None
    request_scheduled_latency: Statuses | None = None
    request_dispatch_delay: Statuses | None = None
    time_to_first_token_ms: Statuses | None = None
    inter_token_latency_ms: Statuses | None = None
    output_tokens_per_second: Statuses | None = None
    output_tokens_per_iteration: Statuses | None = None
    prompt_token_count: Statuses | None = None
    output_token_count: Statuses | None = None


class Timings(Edge):
    """Moments in seconds since 1970; `first_iteration` and `last_iteration` are the older names."""

    targeted_start: float | None = None
    resolve_start: Number | None = None
    request_start: Number | None = None
    first_token_iteration: Number | None = None
    last_token_iteration: Number | None = None
    first_iteration: Number | None = None
    last_iteration: Number | None = None
    request_end: Number | None = None
    resolve_end: Number | None = None
    token_iterations: Count = 0


class Info(Edge):
    """What the scheduler recorded; `request_timings` is the older name of `timings`. The oldest generation has only
    when the request was due here, the other times are the request's own."""

    timings: Timings | None = None
    request_timings: Timings | None = None
    targeted_start_time: float | None = None


class GuidellmRequest(Edge):
    """One request, without its texts; the last four fields are those of the oldest generation.

    `cached_tokens`, since 0.8: prompt tokens found in the server's prefix cache, according to the usage it reports.
    """

    info: Info | None = None
    scheduler_info: Info | None = None
    prompt_tokens: Tokens | None = None
    output_tokens: Tokens | None = None
    cached_tokens: Tokens | None = None
    start_time: Number | None = None
    first_token_time: Number | None = None
    last_token_time: Number | None = None
    end_time: Number | None = None


class GuidellmRequests(Edge):
    """Requests by outcome."""

    successful: Many[GuidellmRequest] = Field(default_factory=list)
    errored: Many[GuidellmRequest] = Field(default_factory=list)
    incomplete: Many[GuidellmRequest] = Field(default_factory=list)


class Benchmark(Edge):
    config: Holder | None = None
    scheduler: Holder | None = None
    args: Holder | None = None
    request_totals: Totals | None = None
    metrics: GuidellmMetrics
    requests: GuidellmRequests | None = None
    start_time: Number | None = None
    duration: Positive
    warmup_duration: float = 0.0
    cooldown_duration: float = 0.0


class Backend(Edge):
    """The backend's settings; in some releases a plain name stands in their place."""

    model: str | None = None


class Spec(Edge):
    backend: Backend | str | None = None
    model: str | None = None


class Config(Edge):
    """The settings of generation 2."""

    spec: Spec = Spec()


class GuidellmMetadata(Edge):
    """The version of GuideLLM that wrote the file, and that of its format."""

    version: int | None = None
    guidellm_version: str = ""


class GuidellmReport(Edge):
    metadata: GuidellmMetadata = GuidellmMetadata()
    config: Config = Config()
    args: Spec | None = None
    benchmarks: Many[Benchmark]


WEIGHTED = "ITL is weighted by tokens in GuideLLM, not by requests"
E2E_TO_END = "E2E ends with the response, after its last token"
SOME_REQUESTS = "single requests left out: the file holds a sample of them"


def recognises(value: Object) -> bool:
    """Whether a JSON object is GuideLLM's report."""
    return isinstance(value.get("benchmarks"), list)


def read(file: JsonFile, known: KnownFacts) -> list[Measurement]:
    """One measurement per benchmark. Raises FileError naming the key at fault."""
    report = checked(GuidellmReport, file.value, file.name)
    if not report.benchmarks:
        raise FileError(f"{file.name}, key 'benchmarks': the list is empty")
    model = _model(report, file.value)
    source = f"GuideLLM {clean(report.metadata.guidellm_version, 20)}".strip()
    return [
        _measurement(benchmark, source, model, known, f"{file.name}, benchmark {place}")
        for place, benchmark in enumerate(report.benchmarks, start=1)
    ]


def _model(report: GuidellmReport, value: Object) -> str | None:
    spec = report.args or report.config.spec
    named = spec.model or (spec.backend.model if isinstance(spec.backend, Backend) else None)
    return clean(named or _oldest_model(value)) or None


def _oldest_model(value: Object) -> str:
    """The model as the oldest generations have it, in the benchmark's worker or benchmarker; "" if there is none."""
    first = value["benchmarks"][0]
    for path in (("worker", "backend_model"), ("benchmarker", "backend", "model")):
        found: object = first
        for key in path:
            found = found.get(key) if isinstance(found, dict) else None
        if isinstance(found, str):
            return found
    return ""


def _measurement(benchmark: Benchmark, source: str, model: str | None, known: KnownFacts, where: str) -> Measurement:
    totals = benchmark.metrics.request_totals or benchmark.request_totals
    if totals is None:
        raise FileError(f"{where}: key 'metrics.request_totals': is missing")
    if not totals.successful:
        raise FileError(f"{where}: no request succeeded ({totals.errored} failed, {totals.incomplete} incomplete)")
    load = _load(benchmark, where, known)
    for found in (benchmark.requests, _under_way(benchmark)):
        if found and len(found.successful) == totals.successful and len(found.errored) == totals.errored:
            return measurement_of_run(_run(benchmark, found, source, model, load, where), known, where)
    return measurement_of_summary(_summary(benchmark, totals, source, model, load), known, where)


def _under_way(benchmark: Benchmark) -> GuidellmRequests | None:
    """The requests that were under way in the measured time, between warm-up and cool-down: those that count."""
    found, start_s = benchmark.requests, benchmark.start_time
    if found is None or start_s is None:
        return None

    def counted(request: GuidellmRequest) -> bool:
        times = _timings(request)
        end_s = times.request_end or times.resolve_end or start_s
        sent_s = times.request_start or times.resolve_start or end_s
        return end_s >= start_s and sent_s <= start_s + benchmark.duration

    return GuidellmRequests.model_construct(
        successful=list(filter(counted, found.successful)),
        errored=list(filter(counted, found.errored)),
        incomplete=list(filter(counted, found.incomplete)),
    )


def _strategy(benchmark: Benchmark) -> Strategy | None:
    holders = (benchmark.config, benchmark.scheduler, benchmark.args)
    return next((holder.strategy for holder in holders if holder and holder.strategy), None)


def _burst(benchmark: Benchmark) -> bool:
    """Whether all requests were sent without any limit on how many are in flight."""
    strategy = _strategy(benchmark)
    return (
        strategy is not None and strategy.type_ == "throughput" and not (strategy.streams or strategy.max_concurrency)
    )


def _capped(benchmark: Benchmark, load: Offered | None) -> tuple[str, ...]:
    strategy = _strategy(benchmark)
    limit = strategy.max_concurrency if strategy and load and load.open_loop else None
    in_flight = _successful(benchmark.metrics.request_concurrency)
    # Where the user sets no limit, GuideLLM writes down that of its own queue, 512 or 10,240, which nothing reaches.
    reached = in_flight is None or in_flight.max is None or in_flight.max >= (limit or 0)
    return (held_back(limit),) if limit and reached else ()


def _load(benchmark: Benchmark, where: str, known: KnownFacts) -> Offered | None:
    strategy = _strategy(benchmark)
    if known.says_load:
        return known.load(None, where)
    if strategy is None:
        return None
    found = offered(strategy, benchmark.metrics.request_concurrency)
    if found is None:
        raise FileError(
            f"{where}: key 'strategy': {clean(strategy.type_, 40)!r} is not a known kind of load; "
            "give --concurrency N or --rate R"
        )
    return found


def offered(strategy: Strategy, in_flight: Statuses | None = None) -> Offered | None:
    """The load level of a strategy; for `throughput` without a limit, the mean number of requests in flight."""
    if strategy.type_ == "synchronous":
        return Offered("concurrency", 1.0)
    if strategy.type_ in ("concurrent", "throughput") and (strategy.streams or strategy.max_concurrency):
        return Offered("concurrency", float(strategy.streams or strategy.max_concurrency or 0))
    if strategy.type_ == "throughput" and in_flight and in_flight.successful and in_flight.successful.mean:
        return Offered("concurrency", float(max(1, round(in_flight.successful.mean))))
    if strategy.type_ in ("constant", "poisson") and strategy.rate:
        return Offered("constant_rate" if strategy.type_ == "constant" else "poisson_rate", strategy.rate)
    return None


def _run(
    benchmark: Benchmark, found: GuidellmRequests, source: str, model: str | None, load: Offered | None, where: str
) -> ImportedRun:
    groups = (
        ("successful", "", found.successful),
        ("errored", "failed", found.errored),
        ("incomplete", CANCELLED, found.incomplete),
    )
    seen = [
        _seen(request, error, f"{where}, requests.{group}.{i}")
        for group, error, requests in groups
        for i, request in enumerate(requests)
    ]
    return ImportedRun(
        source=source,
        requests=[request for request in seen if request is not None],
        model=model,
        load=load,
        measured_at=iso_time(benchmark.start_time) if benchmark.start_time else "",
        notes=_capped(benchmark, load),
        burst=_burst(benchmark),
    )


def _seen(request: GuidellmRequest, error: str, where: str) -> SeenRequest | None:
    """The request; None if it failed before it was sent."""
    times = _timings(request)
    if times.request_start is None:
        if error:
            return None
        raise FileError(f"{where}: key 'info.timings.request_start': is missing")
    first_s = times.first_token_iteration or times.first_iteration
    last_s = times.last_token_iteration or times.last_iteration or times.request_end
    tokens = request.output_tokens or times.token_iterations
    due_s = min(times.targeted_start or 0.0, times.request_start)
    due_s = due_s if times.request_start - due_s < MOST_LATE_S else times.request_start
    if error or first_s is None or last_s is None or not tokens:
        end_s = max(times.request_end or 0.0, times.request_start)
        error = error or (f"no time of a token; {UNSTREAMED}" if tokens else "no tokens")
        return SeenRequest(due_s, times.request_start, end_s, (), 0, request.prompt_tokens or 0, error=error)
    if not times.request_start <= first_s <= last_s:
        raise FileError(f"{where}: key 'info.timings': the first token is before the request, or after the last token")
    return SeenRequest(
        due_s=due_s,
        sent_s=times.request_start,
        end_s=last_s,
        chunk_s=(first_s, last_s),
        tokens=tokens,
        isl=request.prompt_tokens or 0,
        evenly=times.token_iterations or tokens,
        cached=request.cached_tokens,
    )


def _timings(request: GuidellmRequest) -> Timings:
    info = request.info or request.scheduler_info or Info()
    return (
        info.timings
        or info.request_timings
        or Timings(
            targeted_start=info.targeted_start_time,
            request_start=request.start_time,
            first_token_iteration=request.first_token_time,
            last_token_iteration=request.last_token_time,
            request_end=request.end_time,
        )
    )


def _summary(
    benchmark: Benchmark, totals: Totals, source: str, model: str | None, load: Offered | None
) -> ImportedSummary:
    metrics = benchmark.metrics
    open_loop = load is not None and load.open_loop
    late = _successful(metrics.request_dispatch_delay) if open_loop else None
    scheduled = _successful(metrics.request_scheduled_latency) if late else None
    ttft = _times(metrics.time_to_first_token_ms)
    rate = _successful(metrics.output_tokens_per_second)
    chunk = _successful(metrics.output_tokens_per_iteration)
    in_flight = _successful(metrics.request_concurrency)
    cut = benchmark.warmup_duration or benchmark.cooldown_duration
    ended = _successful(metrics.requests_per_second) if cut else None
    return ImportedSummary(
        source=source,
        model=model,
        load=load,
        **_lengths(metrics),
        requests=totals.successful,
        errors=totals.errored,
        duration_s=benchmark.duration,
        requests_per_s=ended.mean if ended else totals.successful / benchmark.duration,
        output_tokens_per_s=rate.mean or None if rate else None,
        mean_in_flight=in_flight.mean if in_flight else None,
        ttft=ttft.later(late.mean) if late else ttft,
        itl=_times(metrics.inter_token_latency_ms),
        e2e=scheduled.times(1.0) if scheduled else _times(metrics.request_latency, 1.0),
        late_mean_s=late.mean if late else None,
        tokens_per_chunk=chunk.mean if chunk else None,
        measured_at=iso_time(benchmark.start_time) if benchmark.start_time else "",
        verdict="unsteady" if _burst(benchmark) else "",
        notes=(WEIGHTED, E2E_TO_END, *_capped(benchmark, load), *([SOME_REQUESTS] if benchmark.requests else [])),
    )


def _lengths(metrics: GuidellmMetrics) -> dict[str, Any]:
    """The known means and coefficients of variation of the lengths."""
    found: dict[str, Any] = {}
    for name, statuses in (("isl", metrics.prompt_token_count), ("osl", metrics.output_token_count)):
        tokens = _successful(statuses)
        if tokens and tokens.mean:
            found |= {name: tokens.mean, f"{name}_cv": tokens.std_dev / tokens.mean}
    return found


def _successful(statuses: Statuses | None) -> Distribution | None:
    return statuses.successful if statuses else None


def _times(statuses: Statuses | None, scale: float = MS) -> Times:
    found = _successful(statuses)
    return found.times(scale) if found else Times()


HEADER_ROWS = 3
PERCENTILES = 11
"""Values in one cell: minimum, p0.1, p1, p5, p10, p25, p75, p90, p95, p99, maximum. The median has its own cell."""

ISL = ("Token Metrics", "Successful Input Tokens")
OSL = ("Token Metrics", "Successful Output Tokens")

Cells = dict[tuple[str, str, str], str]


def recognises_csv(file: CsvFile) -> bool:
    """Whether a CSV is GuideLLM's, by its groups of columns."""
    return "Run Info" in file.rows[0] and "Request Counts" in file.rows[0]


def read_csv(file: CsvFile, known: KnownFacts) -> list[Measurement]:
    """One measurement per row. Raises FileError naming line and column."""
    if len(file.rows) <= HEADER_ROWS:
        raise FileError(f"{file.name}: no benchmark below the {HEADER_ROWS} header rows")
    return [
        _of_row(file, row, known, f"{file.name}, line {line}")
        for line, row in zip(file.lines[HEADER_ROWS:], file.rows[HEADER_ROWS:], strict=True)
    ]


def _cells(file: CsvFile, row: Row, where: str) -> Cells:
    groups, metrics, statistics = file.rows[:HEADER_ROWS]
    if not len(groups) == len(metrics) == len(statistics):
        raise FileError(f"{file.name}: its {HEADER_ROWS} header rows differ in length")
    if len(row) != len(groups):
        raise FileError(f"{where}: {len(row)} cells where the header has {len(groups)}; cut short?")
    return dict(zip(zip(groups, metrics, statistics, strict=True), row, strict=True))


def _of_row(file: CsvFile, row: Row, known: KnownFacts, where: str) -> Measurement:
    cells = _cells(file, row, where)
    requests = round(_value(cells, ("Request Counts", "Successful", ""), where))
    duration_s = _value(cells, ("Timings", "Duration", "Sec"), where)
    if not requests or not duration_s:
        raise FileError(f"{where}: no request succeeded, or the duration is 0")
    cut = any(cells.get(("Timings", edge, "Sec"), "0.0") not in ("", "0.0") for edge in ("Warmup", "Cooldown"))
    ended = _row_mean(cells, ("Server Throughput", "Successful Requests/Sec"), where) if cut else None
    load = known.load(None, where) if known.says_load else _row_load(cells, where)
    late_s = _row_mean(cells, ("Dispatch Delay", "Successful Sec"), where) if load and load.open_loop else None
    ttft = _row_times(cells, ("Time to First Token", "Successful ms"), MS, where)
    e2e = "Scheduled Latency" if late_s else "Request Latency"
    summary = ImportedSummary(
        source="GuideLLM",
        model=_row_model(cells),
        load=load,
        isl=_row_mean(cells, ISL, where),
        osl=_row_mean(cells, OSL, where),
        isl_cv=_variation(cells, ISL, where),
        osl_cv=_variation(cells, OSL, where),
        requests=requests,
        errors=round(_value(cells, ("Request Counts", "Errored", ""), where)),
        duration_s=duration_s,
        requests_per_s=ended or requests / duration_s,
        output_tokens_per_s=_row_mean(cells, ("Token Throughput", "Successful Output Tokens/Sec"), where),
        mean_in_flight=_row_mean(cells, ("Server Throughput", "Successful Concurrency"), where),
        ttft=ttft.later(late_s) if late_s else ttft,
        itl=_row_times(cells, ("Inter Token Latency", "Successful ms"), MS, where),
        e2e=_row_times(cells, (e2e, "Successful Sec"), 1.0, where),
        late_mean_s=late_s,
        tokens_per_chunk=_row_mean(cells, ("Token Streaming", "Successful Output Tokens/Iter"), where),
        notes=(WEIGHTED, E2E_TO_END),
    )
    return measurement_of_summary(summary, known, where)


def _value(cells: Cells, column: tuple[str, str, str], where: str) -> float:
    title = " / ".join(part for part in column if part)
    cell = cells.get(column)
    if not cell:
        raise FileError(f"{where}: column {title!r} is missing")
    return number(cell, f"{where}, column {title!r}")


def _row_mean(cells: Cells, metric: tuple[str, str], where: str) -> float | None:
    return (_value(cells, (*metric, "Mean"), where) or None) if cells.get((*metric, "Mean")) else None


def _variation(cells: Cells, metric: tuple[str, str], where: str) -> float:
    mean = _row_mean(cells, metric, where)
    return _value(cells, (*metric, "Std Dev"), where) / mean if mean and cells.get((*metric, "Std Dev")) else 0.0


def _row_times(cells: Cells, metric: tuple[str, str], scale: float, where: str) -> Times:
    mean = _row_mean(cells, metric, where)
    if mean is None:
        return Times()
    listed = cells.get((*metric, "Percentiles"), "").strip("[]").split(",")
    if len(listed) != PERCENTILES:
        return Times(mean * scale)
    column = f"{where}, column {' / '.join((*metric, 'Percentiles'))!r}"
    tail = (number(listed[place].strip(), column) for place in (7, 8, 9))
    return Times.of((mean, _value(cells, (*metric, "Median"), where), *tail), scale)


def _row_load(cells: Cells, where: str) -> Offered | None:
    """The load in the strategy's name, such as ``concurrent@4`` or ``poisson@2.5``."""
    name, _, value = cells.get(("Benchmark", "Strategy", ""), "").partition("@")
    column = f"{where}, column 'Benchmark / Strategy'"
    amount = number(value, column) if value else 0.0
    settings = {"type_": name, "streams": round(amount) or None, "rate": amount or None}
    return offered(checked(Strategy, settings, column))


def _row_model(cells: Cells) -> str | None:
    """The model in the cell with the backend's settings; None if it cannot be read."""
    try:
        backend = Backend.model_validate(json.loads(cells.get(("Run Info", "Backend", ""), "")))
    except (ValueError, RecursionError):  # the errors of pydantic and json are ValueErrors
        return None
    return clean(backend.model or "") or None
