"""The parts of GuideLLM's report that points are made of, in its three generations; texts and keys are never read."""

from __future__ import annotations

from pydantic import Field

from calibration.importers.edge import Count, Edge, Many, Number, Positive, Tokens
from calibration.importers.summary import Times

MS = 1e-3


class Strategy(Edge):
    """How requests were sent: `streams` users at once, or `rate` a second."""

    type_: str
    streams: Count | None = None
    rate: Positive | None = None
    max_concurrency: Count | None = None


class Holder(Edge):
    """Where the strategy is found: `config` from 0.4 on, `scheduler` and `args` before."""

    strategy: Strategy | None = None


class Percentiles(Edge):
    """p01 is the first percentile there, p001 the tenth of it."""

    p50: Number
    p90: Number
    p95: Number
    p99: Number


class Distribution(Edge):
    """A metric over requests, or over tokens."""

    mean: Number
    std_dev: Number = 0.0
    percentiles: Percentiles | None = None

    def times(self, scale: float = MS) -> Times:
        """In seconds, from values that are `scale` seconds each."""
        tail = self.percentiles
        values = (self.mean, *((tail.p50, tail.p90, tail.p95, tail.p99) if tail else ()))
        return Times(*(value * scale for value in values))


class Statuses(Edge):
    """A metric over the requests that went well."""

    successful: Distribution | None = None


class Totals(Edge):
    """Numbers of requests by how they went."""

    successful: Count
    errored: Count = 0
    incomplete: Count = 0


class Metrics(Edge):
    """The metrics that a point is made of; `request_latency` in seconds. Totals are here from 0.4 on."""

    request_totals: Totals | None = None
    request_latency: Statuses
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

    targeted_start: Number | None = None
    request_start: Number | None = None
    first_token_iteration: Number | None = None
    last_token_iteration: Number | None = None
    first_iteration: Number | None = None
    last_iteration: Number | None = None
    request_end: Number | None = None
    token_iterations: Count = 0


class Info(Edge):
    """What the scheduler noted; `request_timings` is the older name."""

    timings: Timings | None = None
    request_timings: Timings | None = None


class Request(Edge):
    """One request, without its texts; the last four are of the oldest generation."""

    info: Info | None = None
    scheduler_info: Info | None = None
    prompt_tokens: Tokens | None = None
    output_tokens: Tokens | None = None
    start_time: Number | None = None
    first_token_time: Number | None = None
    last_token_time: Number | None = None
    end_time: Number | None = None


class Requests(Edge):
    """Requests by how they went."""

    successful: Many[Request] = Field(default_factory=list)
    errored: Many[Request] = Field(default_factory=list)
    incomplete: Many[Request] = Field(default_factory=list)


class Benchmark(Edge):
    """One load level."""

    config: Holder | None = None
    scheduler: Holder | None = None
    args: Holder | None = None
    request_totals: Totals | None = None
    metrics: Metrics
    requests: Requests | None = None
    start_time: Number | None = None
    duration: Positive


class Backend(Edge):
    """The server's side; a plain name in some releases."""

    model: str | None = None


class Spec(Edge):
    """What the run was asked to do."""

    backend: Backend | str | None = None
    model: str | None = None


class Config(Edge):
    """The settings of generation 2."""

    spec: Spec = Spec()


class Metadata(Edge):
    """Which GuideLLM wrote the file."""

    version: int | None = None
    guidellm_version: str = ""


class Report(Edge):
    """The whole file."""

    metadata: Metadata = Metadata()
    config: Config = Config()
    args: Spec | None = None
    benchmarks: Many[Benchmark]
