"""A point from what a file says of a whole run: the tool's own figures, where single requests are unknown.

Where a tool means something else by a word, its importer converts it or leaves it out; what is left different is said
in the point's notes. Every tool's rate is requests over the whole run, the starting and the draining of it included.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import TypeAdapter, ValidationError

from calibration.errors import FileError
from calibration.importers.edge import clean, first_fault
from calibration.importers.known import ArrivalsName, Known, Offered
from calibration.records import Measurement
from sizing.curves import Point, Verdict

SAMPLES_FOR_P99 = 100
SHORTFALL = 0.02
LATE_SHARE_OF_TTFT = 0.05
ERROR_SHARE = 0.01
BUSY_SHARE = (0.9, 1.05)
TOKENS_PER_CHUNK = 1.05
WHOLE_RUN = "rates are of the whole run, its start and drain included"

_POINTS = TypeAdapter(Point)


@dataclass(frozen=True, slots=True)
class Times:
    """Mean and percentiles of a latency over requests, in seconds; None where the file does not say them."""

    mean_s: float | None = None
    p50_s: float | None = None
    p90_s: float | None = None
    p95_s: float | None = None
    p99_s: float | None = None

    def columns(self, metric: str, *, with_p99: bool) -> dict[str, float | None]:
        """The columns of the points table for `metric`: ttft, itl or e2e."""
        tail = self.p99_s if with_p99 else None
        values = {"mean": self.mean_s, "p50": self.p50_s, "p90": self.p90_s, "p95": self.p95_s, "p99": tail}
        return {f"{metric}_{name}_s": value for name, value in values.items()}

    def later(self, by_s: float) -> Times:
        """Counted from `by_s` seconds earlier on average: the mean is known then, percentiles no longer are."""
        return Times(None if self.mean_s is None else self.mean_s + by_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One load level as a tool sums it up. Times in seconds, rates per second; None where the file does not say it.

    `late_mean_s` is by how much requests were sent after they were due, on average. `tokens_per_chunk` is how many
    output tokens came in one response.
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


def measurement(summary: Summary, known: Known, name: str) -> Measurement:
    """The measurement that `summary` of file `name` and the caller's knowledge make; it has no request log.

    Raises FileError if something needed is in neither, or the values make no possible point.
    """
    columns = {**known.deployment(summary.model, name)._asdict(), **_columns(summary, known, name)}
    try:
        point = _POINTS.validate_python(columns)
    except ValidationError as error:
        raise FileError(f"{name}: makes no possible point; {first_fault(error)}") from None
    return Measurement(point, facts=dict(summary.facts), server=dict(summary.server))


def _columns(summary: Summary, known: Known, name: str) -> dict[str, object]:
    load = known.load(summary.load, name, arrivals=summary.usual_arrivals)
    isl, osl = known.lengths(summary.isl, summary.osl, name)
    enough = summary.requests is None or summary.requests >= SAMPLES_FOR_P99
    return {
        "isl": isl,
        "osl": osl,
        "isl_cv": summary.isl_cv,
        "osl_cv": summary.osl_cv,
        "load_kind": load.kind,
        "load_value": load.value,
        **_rates(summary),
        **summary.ttft.columns("ttft", with_p99=enough),
        **summary.itl.columns("itl", with_p99=enough),
        **summary.e2e.columns("e2e", with_p99=enough),
        "source": clean(summary.source),
        "measured_at": summary.measured_at,
        "notes": "; ".join([*summary.notes, *_remarks(summary, load, osl, enough)]),
        "verdict": summary.verdict or _verdict(summary, load),
    }


def _rates(summary: Summary) -> dict[str, float | int | None]:
    names = ("duration_s", "requests", "errors", "requests_per_s", "output_tokens_per_s", "mean_in_flight")
    return {name: getattr(summary, name) for name in names}


def _remarks(summary: Summary, load: Offered, osl: float, enough: bool) -> list[str]:
    found = [WHOLE_RUN]
    if not enough and any(times.p99_s is not None for times in (summary.ttft, summary.itl, summary.e2e)):
        found.append(f"p99 left out: {summary.requests} requests are too few for it")
    if load.open_loop and summary.late_mean_s is None:
        found.append("how late requests were sent is not in the file: latencies are from the sending")
    chunk = summary.tokens_per_chunk
    if chunk is not None and chunk > TOKENS_PER_CHUNK and osl > chunk:
        low = 1 - (osl - chunk) / (osl - 1)
        found.append(f"{chunk:.1f} tokens a response: ITL is too low by about {low:.1%}, for those that came first")
    return found


def _verdict(summary: Summary, load: Offered) -> Verdict:
    """What speaks against the point, as far as a summary can tell; "" where nothing does: it is not proven steady."""
    errors = summary.errors or 0
    if errors > ERROR_SHARE * (errors + (summary.requests or 0)):
        return "errors"
    if load.open_loop:
        return _open_loop_verdict(summary, load)
    if summary.e2e.mean_s is None:
        return ""
    busy = summary.requests_per_s * summary.e2e.mean_s / load.value
    if busy < BUSY_SHARE[0]:
        return "unsteady"
    return "little" if busy > BUSY_SHARE[1] else ""


def _open_loop_verdict(summary: Summary, load: Offered) -> Verdict:
    """Whether the rate was held: requests due while they were being sent, against those that came."""
    late_s, ttft_s = summary.late_mean_s, summary.ttft.mean_s
    if late_s is not None and ttft_s is not None and late_s > LATE_SHARE_OF_TTFT * ttft_s:
        return "client_limited"
    if summary.duration_s is None or summary.requests is None:
        return ""
    sending_s = summary.duration_s - (summary.e2e.mean_s or 0.0)
    lacking = load.value * sending_s - summary.requests
    by_chance = 3 * math.sqrt(summary.requests)
    return "overloaded" if lacking > SHORTFALL * summary.requests + by_chance else ""
