"""A point by our own definitions from another tool's file: from its individual requests, or else from its summary.

Tools count from the first request to the last answer. Here the window opens when every request of the first wave (those
sent before the first answer) has been answered, and closes when the load is no longer full: in a closed loop at the
first answer after the last request was sent, in an open loop at the last arrival; or before the first request that the
tool itself cut off at the end of its run, which is no failure.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from pydantic import TypeAdapter, ValidationError
from scipy.special import ndtri

from calibration.errors import CalibrationError, FileError
from calibration.importers.reading import ArrivalsName, KnownFacts, Offered, clean, first_fault
from calibration.metrics import measurement as metrics
from calibration.metrics.measurement import TOKENS_PER_CHUNK, samples_needed, told
from calibration.metrics.verdict import ERROR_SHARE, LATE_SHARE_OF_TTFT
from calibration.plan import Level
from calibration.records import Ints, Load, Measurement, RequestLog
from sizing.numbers import Floats
from sizing.points import KEPT_UP, Point, Verdict
from sizing.workload import PERCENTILES, Lengths, lognormal_tokens

# --- A point from a file's summary of a whole run: the tool's own figures, if individual requests are unknown
#
# If a tool defines a metric differently, its importer converts it or leaves it out; the point's notes state remaining
# differences. Every tool's rate is requests over the whole run, including start and drain.

SHORTFALL = 0.02
BUSY_SHARE = (0.9, 1.05)
FROM_DUE = "TTFT and E2E are counted from when a request was due; TTFT percentiles are not in the file"
PREFIX_FOUND = "prefix_tokens_found_mean"
HEALTH_UNKNOWN = "client's health unknown: how busy the load generator was is not in the file"
FROM_SENDING = "how late requests were sent is not in the file: latencies are from the sending"
EVEN_ARRIVALS = "the file does not say how requests arrive: evenly, as is usual with perf_analyzer"
WHOLE_RUN = "rates are of the whole run, its start and drain included"
OF_PROMPTS = ndtri((np.arange(200) + 0.5) / 200)
"""Standard normal deviates of prompts whose mean and variation alone are known."""
_POINTS = TypeAdapter(Point)


@dataclass(frozen=True, slots=True)
class Times:
    """Mean and percentiles of a latency over requests, in seconds; None if the file lacks them."""

    mean_s: float | None = None
    p50_s: float | None = None
    p90_s: float | None = None
    p95_s: float | None = None
    p99_s: float | None = None

    @property
    def percentiles(self) -> dict[int, float]:
        """The known percentiles, in seconds."""
        values = {50: self.p50_s, 90: self.p90_s, 95: self.p95_s, 99: self.p99_s}
        return {q: value for q, value in values.items() if value is not None}

    def columns(self, metric: str, chosen: Collection[int]) -> dict[str, float | None]:
        """The columns of the points table for `metric`, ttft, itl or e2e: the mean and the `chosen` percentiles."""
        tail = {f"{metric}_p{q}_s": value for q, value in self.percentiles.items() if q in chosen}
        return {f"{metric}_mean_s": self.mean_s, **tail}

    @classmethod
    def of(cls, values: Iterable[float | None], unit_s: float) -> Times:
        """From mean, p50, p90, p95 and p99, each in units of `unit_s` seconds or None.

        A mean of 0 is how tools write that there was nothing to measure, such as the ITL of answers of one token.
        """
        mean, *tail = (None if value is None else value * unit_s for value in values)
        return cls() if mean == 0 else cls(mean, *tail)

    @classmethod
    def over(cls, values_s: Floats) -> Times:
        """Those of single requests, shape (n,)."""
        return cls(float(values_s.mean()), *map(float, np.percentile(values_s, PERCENTILES)))

    def later(self, by_s: float) -> Times:
        """Counted from `by_s` seconds earlier on average: then the mean is known, but percentiles are not."""
        return Times(None if self.mean_s is None else self.mean_s + by_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedSummary:
    """One load level, as summarised by a tool. Times in seconds, rates per second; None if the file lacks a figure.

    `late_mean_s` is the mean delay between a request's due time and its sending, `tokens_per_chunk` the mean number of
    output tokens in a response. `shared_prefix`: tokens that all prompts share by plan; the key
    ``prefix_tokens_found_mean`` of `server`: mean tokens of a prompt that the server found in its prefix cache.
    """

    source: str
    model: str | None = None
    load: Offered | None = None
    usual_arrivals: ArrivalsName = "poisson"
    isl: float | None = None
    osl: float | None = None
    isl_cv: float = 0.0
    osl_cv: float = 0.0
    requests: int | None = None
    errors: int | None = None
    duration_s: float | None = None
    requests_per_s: float
    output_tokens_per_s: float | None = None
    mean_in_flight: float | None = None
    ttft: Times = Times()
    itl: Times = Times()
    e2e: Times = Times()
    late_mean_s: float | None = None
    tokens_per_chunk: float | None = None
    measured_at: str = ""
    notes: tuple[str, ...] = ()
    verdict: Verdict = ""
    facts: Mapping[str, float] = field(default_factory=dict)
    server: Mapping[str, float] = field(default_factory=dict)
    shared_prefix: int = 0

    @property
    def given(self) -> list[int]:
        """The percentiles in the file of any latency, ascending."""
        return sorted({q for times in (self.ttft, self.itl, self.e2e) for q in times.percentiles})

    @property
    def chosen(self) -> list[int]:
        """The percentiles with enough requests; all of them if the number of requests is unknown."""
        return list(PERCENTILES) if self.requests is None else told(PERCENTILES, self.requests)


def measurement_of_summary(summary: ImportedSummary, known: KnownFacts, name: str) -> Measurement:
    """The measurement from `summary` of file `name` and the caller's facts; it has no request log.

    Raises FileError if both lack something needed, or if the values do not give a valid point.
    """
    columns = {**known.deployment(summary.model, name)._asdict(), **_columns(summary, known, name)}
    try:
        point = _POINTS.validate_python(columns)
        prompts = lognormal_tokens(point.isl, point.isl_cv, OF_PROMPTS).astype(np.int64)
        point = replace(point, **metrics.prefix_columns(prompts, summary.shared_prefix, summary.server))
    except ValidationError as error:
        raise FileError(f"{name}: it gives no valid point; {first_fault(error)}") from None
    return Measurement(point, facts=dict(summary.facts), server=dict(summary.server))


def _columns(summary: ImportedSummary, known: KnownFacts, name: str) -> dict[str, object]:
    load = known.load(summary.load, name, arrivals=summary.usual_arrivals)
    isl, osl = known.lengths(summary.isl, summary.osl, name)
    return {
        "isl": isl,
        "osl": osl,
        "isl_cv": summary.isl_cv,
        "osl_cv": summary.osl_cv,
        "load_kind": load.kind,
        "load_value": load.value,
        **_rates(summary),
        **summary.ttft.columns("ttft", summary.chosen),
        **summary.itl.columns("itl", summary.chosen),
        **summary.e2e.columns("e2e", summary.chosen),
        "source": clean(summary.source),
        "measured_at": summary.measured_at,
        "notes": "; ".join([*summary.notes, *_remarks_on_summary(summary, load, osl)]),
        "verdict": summary.verdict or _verdict(summary, load),
    }


def _rates(summary: ImportedSummary) -> dict[str, float | int | None]:
    names = ("duration_s", "requests", "errors", "requests_per_s", "output_tokens_per_s", "mean_in_flight")
    return {name: getattr(summary, name) for name in names}


def held_back(limit: int) -> str:
    """The remark on an open loop with at most `limit` requests in flight: not every request was sent when due."""
    return f"at most {limit} requests in flight: later ones were held back"


def _remarks_on_summary(summary: ImportedSummary, load: Offered, osl: float) -> list[str]:
    found = [WHOLE_RUN, HEALTH_UNKNOWN, *_on_percentiles(summary)]
    if load.open_loop and summary.late_mean_s is None:
        found.append(FROM_SENDING)
    chunk = summary.tokens_per_chunk
    if chunk is not None and chunk > TOKENS_PER_CHUNK and osl > chunk:
        low = 1 - (osl - chunk) / (osl - 1)
        found.append(f"{chunk:.1f} tokens a response: ITL is too low by about {low:.1%}, for those that came first")
    return found


def _on_percentiles(summary: ImportedSummary) -> list[str]:
    lacking = [q for q in summary.given if q not in summary.chosen]
    if lacking:
        needed = ", ".join(f"p{q} needs {samples_needed(q)}" for q in lacking)
        return [f"percentiles left out: {summary.requests} requests are too few, {needed}"]
    if summary.requests is None and any(samples_needed(q) > 1 for q in summary.given):
        return ["the number of requests is not in the file: percentiles may be of too few"]
    return []


def _verdict(summary: ImportedSummary, load: Offered) -> Verdict:
    """The fault of the point that its summary shows; "" if it shows none, which does not prove the point steady."""
    errors = summary.errors or 0
    if errors > ERROR_SHARE * (errors + (summary.requests or 0)):
        return "errors"
    if load.open_loop:
        return _open_loop_verdict(summary, load)
    e2e_s, ttft_s, itl_s, osl = summary.e2e.mean_s, summary.ttft.mean_s, summary.itl.mean_s, summary.osl
    if e2e_s is None and ttft_s is not None and itl_s is not None and osl is not None:
        e2e_s = ttft_s + itl_s * (osl - 1)  # exact if all answers are equally long
    if e2e_s is None:
        return ""
    busy = summary.requests_per_s * e2e_s / load.value
    if busy < BUSY_SHARE[0]:
        return "unsteady"
    return "little" if busy > BUSY_SHARE[1] else ""


def _open_loop_verdict(summary: ImportedSummary, load: Offered) -> Verdict:
    """Whether the server kept up with the rate: requests due while they were being sent, compared with those served."""
    late_s, ttft_s = summary.late_mean_s, summary.ttft.mean_s
    if late_s is not None and ttft_s is not None and late_s > LATE_SHARE_OF_TTFT * ttft_s:
        return "client_limited"
    if summary.duration_s is None or summary.requests is None:
        return "overloaded" if summary.requests_per_s < KEPT_UP * load.value else ""
    sending_s = summary.duration_s - (summary.e2e.mean_s or 0.0)
    lacking = load.value * sending_s - summary.requests
    by_chance = 3 * math.sqrt(summary.requests)
    return "overloaded" if lacking > SHORTFALL * summary.requests + by_chance else ""


CHUNK_LIMIT = 8_000_000
"""Most tokens of a file: a dozen arrays of that size are in memory at once."""
HELD_SHARE, FEW_USERS = 0.8, 2
CANCELLED = "cancelled"
"""The error of a request that the tool ended, not the server."""
UNSTREAMED = "only streamed requests can be used"
MOST_IN_RESPONSE = 16
"""Most tokens that servers put into one response of a stream if they are asked for fewer responses."""
EVENLY = "times of single tokens are not in the file: spread evenly from first to last, gaps left out"
OF_CLIENT = ("client_cores", "busiest_core", "processes", "loop_lag_p99_s")
OF_LATENESS = ("late_p50_s", "late_p99_s", "late_max_s")
OSL_AGREES = 0.01
SHORT = "too few requests to cut start and drain off: both are in the window"


@dataclass(frozen=True, slots=True)
class SeenRequest:
    """One request of a file. Times in seconds of one clock; `end_s` is when its last token or its error came.

    `chunk_s` are the times of responses with tokens; if `evenly` is not 0, it is their number, and only the first and
    last times are known. `chunk_tokens` are the tokens of each response, empty if only their sum is known. `tokens`
    were received, `osl` requested (None: not in the file, or `tokens` are not counted precisely enough to compare).
    `cached` of the prompt's tokens were in the server's prefix cache, as it reported (None: not in the file).
    """

    due_s: float
    sent_s: float
    end_s: float
    chunk_s: tuple[float, ...]
    tokens: int
    isl: int
    osl: int | None = None
    evenly: int = 0
    error: str = ""
    chunk_tokens: tuple[int, ...] = ()
    cached: int | None = None

    @property
    def fault(self) -> str:
        """What went wrong: the error, or an answer of another length than requested; "" if nothing did."""
        if self.error or self.osl is None or self.tokens in (0, self.osl):
            return self.error
        return f"{self.tokens} tokens in the answer where {self.osl} were asked for"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedRun:
    """The requests of one load level, and the file's other facts about it; in a `burst` all were sent at once."""

    source: str
    requests: Sequence[SeenRequest]
    model: str | None = None
    load: Offered | None = None
    measured_at: str = ""
    notes: tuple[str, ...] = ()
    burst: bool = False

    @property
    def late_known(self) -> bool:
        """Whether the file distinguishes the times when requests were due and sent."""
        return any(request.due_s != request.sent_s for request in self.requests)


def measurement_of_run(run: ImportedRun, known: KnownFacts, name: str) -> Measurement:
    """The measurement of `run`, with a point from the requests in the window.

    Raises FileError if neither the file nor `known` has the load or the deployment, or if no request was answered.
    """
    log = _log(run.requests, name)
    if not (log.tokens > 0).any():
        first = next(filter(None, log.error), "no tokens")
        raise FileError(f"{name}: none of its {len(log)} requests was answered with tokens, the first: {first}")
    whole = log.chunks[log.tokens > 0] == 1
    if whole.all() and log.tokens[log.tokens > 0].mean() > MOST_IN_RESPONSE:
        raise FileError(f"{name}: every answer came in one response; {UNSTREAMED}")
    if log.end_s.max() <= log.sent_s.min():
        raise FileError(f"{name}: its requests all begin and end at the same moment")
    in_file = run.load or (None if known.says_load else _held(log))
    offered = known.load(in_file, name)
    if not offered.open_loop:
        log = replace(log, intended_s=log.sent_s)
    notes = [*run.notes, *_remarks_on_run(run, known, offered, log)]
    load, cut = _load(log, offered)
    if not cut:
        notes.append(SHORT)
    level = Level(0, _lengths(log, known, name), offered.kind, offered.value, load.issued)
    try:
        found = metrics.measurement(
            load,
            level,
            known.deployment(run.model, name),
            source=clean(run.source),
            notes=notes,
            server=_prefix_found(run.requests),
        )
    except CalibrationError as error:
        raise FileError(f"{name}: {error}") from None
    except ValidationError as error:
        raise FileError(f"{name}: it gives no valid point; {first_fault(error)}") from None
    return _as_recorded(found, run, steady=cut and not run.burst)


def _prefix_found(requests: Sequence[SeenRequest]) -> dict[str, float]:
    """The mean prompt tokens found in the prefix cache, if the file has them for every answered request."""
    cached = [request.cached for request in requests if request.tokens]
    known = [tokens for tokens in cached if tokens is not None]
    return {PREFIX_FOUND: sum(known) / len(known)} if known and len(known) == len(cached) else {}


def _as_recorded(found: Measurement, run: ImportedRun, *, steady: bool) -> Measurement:
    point = replace(found.point, measured_at=run.measured_at)
    if not steady and not point.void:
        point = replace(point, verdict="unsteady")
    if any(request.evenly > 2 for request in run.requests):
        point = replace(point, gap_p50_s=None, gap_p95_s=None, gap_p99_s=None)
    unknown = {*OF_CLIENT, *(() if run.late_known else OF_LATENESS)}
    facts = {name: value for name, value in found.facts.items() if name not in unknown}
    return replace(found, point=point, facts=facts)


def _log(requests: Sequence[SeenRequest], name: str) -> RequestLog:
    if not requests:
        raise FileError(f"{name}: the file holds no requests")
    if sum(_chunks(request) for request in requests) > CHUNK_LIMIT:
        raise FileError(f"{name}: more than {CHUNK_LIMIT:,} tokens; give a part of it or the tool's summary")
    rows = sorted(requests, key=lambda request: request.sent_s)
    start_s = rows[0].sent_s  # keeps numbers small: wall clocks count from 1970
    times = [_chunk_times(row) for row in rows]
    tokens = [_chunk_tokens(row) for row in rows]
    return RequestLog(
        intended_s=np.array([row.due_s for row in rows], np.float64) - start_s,
        sent_s=np.array([row.sent_s for row in rows], np.float64) - start_s,
        end_s=np.array([row.end_s for row in rows], np.float64) - start_s,
        isl=np.array([row.isl for row in rows], np.int64),
        osl=np.array([row.tokens if row.osl is None else row.osl for row in rows], np.int64),
        error=tuple(row.fault for row in rows),
        chunks=np.array([_chunks(row) for row in rows], np.int64),
        chunk_at_s=np.concatenate(times) - start_s,
        chunk_tokens=np.concatenate(tokens),
    )


def _chunks(request: SeenRequest) -> int:
    """Responses with tokens in the log: at most as many as tokens."""
    return min(max(request.evenly, len(request.chunk_s)), request.tokens)


def _chunk_times(request: SeenRequest) -> Floats:
    chunks = _chunks(request)
    if not chunks:
        return np.empty(0)
    if request.evenly:
        return np.linspace(request.chunk_s[0], request.chunk_s[-1], chunks)
    known_s = np.array(request.chunk_s, np.float64)
    chosen: Floats = known_s[np.linspace(0, len(known_s) - 1, chunks).round().astype(int)]
    return chosen


def _chunk_tokens(request: SeenRequest) -> Ints:
    """Tokens of each response; if only their sum is known, as even as whole numbers allow."""
    if request.chunk_tokens:
        return np.array(request.chunk_tokens, np.int64)
    chunks = _chunks(request)
    return np.diff(np.arange(chunks + 1, dtype=np.int64) * request.tokens // max(1, chunks))


def _held(log: RequestLog) -> Offered | None:
    """The number of users if the requests in flight were constant while requests were being sent; else None."""
    at_s = np.concatenate([log.sent_s, log.end_s])
    step = np.concatenate([np.ones(len(log)), -np.ones(len(log))])
    order = np.lexsort((step, at_s))  # at equal times, ends come before sendings
    at_s, in_flight = at_s[order], np.cumsum(step[order])
    sending = at_s[:-1] < log.sent_s.max()
    span_s, level = np.diff(at_s)[sending], in_flight[:-1][sending]
    if not span_s.sum():
        return None
    users = float(np.round(np.average(level, weights=span_s)))
    # Among many users one more or less is chance; with one or two users any load would pass.
    apart = np.ceil(users / 50) if users > FEW_USERS else 0
    held = span_s[np.abs(level - users) <= apart].sum() / span_s.sum()
    return Offered("concurrency", users) if held >= HELD_SHARE and users >= 1 else None


def _load(log: RequestLog, offered: Offered) -> tuple[Load, bool]:
    """The load with its window, and whether start and drain could be cut off."""
    wave = log.sent_s <= log.end_s.min()
    if not offered.open_loop:
        wave |= np.arange(len(log)) < offered.value
    last_sent_s = log.sent_s.max()
    after_s = log.end_s[log.end_s > last_sent_s]
    start_s = float(log.end_s[wave].max())
    stop_s = float(last_sent_s if offered.open_loop or not len(after_s) else after_s.min())
    cancelled = np.array([error == CANCELLED for error in log.error])
    if cancelled.any():
        stop_s = min(stop_s, float(log.intended_s[cancelled].min()))
    cut = stop_s - start_s >= float(np.median(log.end_s - log.sent_s)) > 0
    if not cut:
        start_s, stop_s = float(log.sent_s.min()), float(np.nextafter(log.end_s.max(), np.inf))
    issued = int(log.due_within(start_s, stop_s).sum())
    rate_per_s = offered.value if offered.open_loop else None
    return Load(log, start_s, stop_s, issued, "count", offered_per_s=rate_per_s), cut


def _lengths(log: RequestLog, known: KnownFacts, name: str) -> Lengths:
    """Mean lengths and their variation over answered requests: tokens received, not requested."""
    answered = log.where(log.tokens > 0)
    mean_isl = float(answered.isl.mean()) or None
    isl, osl = known.lengths(mean_isl, float(answered.tokens.mean()), name)
    isl_cv = 0.0 if known.isl or not mean_isl else float(answered.isl.std()) / mean_isl
    osl_cv = 0.0 if known.osl else float(answered.tokens.std()) / osl
    return Lengths(isl, osl, isl_cv, osl_cv)


def _remarks_on_run(run: ImportedRun, known: KnownFacts, offered: Offered, log: RequestLog) -> list[str]:
    found = [HEALTH_UNKNOWN]
    counted = float(log.tokens[log.tokens > 0].mean())
    if known.osl and abs(counted - known.osl) > OSL_AGREES * known.osl:
        found.append(f"OSL is the caller's {known.osl:g}, the answers have {counted:.4g} tokens on average")
    if any(request.evenly > 2 for request in run.requests):
        found.append(EVENLY)
    if run.load is None and not known.says_load:
        found.append(f"load not named in the file: {offered.value:g} requests in flight")
    if offered.open_loop and not run.late_known:
        found.append(FROM_SENDING)
    return found
