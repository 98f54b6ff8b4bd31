"""A point from what a file says of a whole run: the tool's own figures, where single requests are unknown.

Where a tool means something else by a word, its importer converts it or leaves it out; what is left different is said
in the point's notes. Every tool's rate is requests over the whole run, the starting and the draining of it included.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from pydantic import TypeAdapter, ValidationError

from calibration.errors import FileError
from calibration.importers.edge import clean, first_fault
from calibration.importers.known import ArrivalsName, Known, Offered
from calibration.metrics.percentiles import PERCENTILES, samples_needed, told
from calibration.records import Measurement
from sizing.curves import Point, Verdict

SHORTFALL = 0.02
LATE_SHARE_OF_TTFT = 0.05
ERROR_SHARE = 0.01
BUSY_SHARE = (0.9, 1.05)
TOKENS_PER_CHUNK = 1.05
HEALTH_UNKNOWN = "client's health unknown: how busy the load generator was is not in the file"
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

    @property
    def percentiles(self) -> dict[int, float]:
        """Those that are known, in seconds."""
        values = {50: self.p50_s, 90: self.p90_s, 95: self.p95_s, 99: self.p99_s}
        return {q: value for q, value in values.items() if value is not None}

    def columns(self, metric: str, chosen: Collection[int]) -> dict[str, float | None]:
        """The columns of the points table for `metric`, ttft, itl or e2e: the mean and the `chosen` percentiles."""
        tail = {f"{metric}_p{q}_s": value for q, value in self.percentiles.items() if q in chosen}
        return {f"{metric}_mean_s": self.mean_s, **tail}

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

    @property
    def given(self) -> list[int]:
        """The percentiles that the file has of any latency, rising."""
        return sorted({q for times in (self.ttft, self.itl, self.e2e) for q in times.percentiles})

    @property
    def chosen(self) -> list[int]:
        """The percentiles that there are enough requests for; all of them where their number is unknown."""
        return list(PERCENTILES) if self.requests is None else told(PERCENTILES, self.requests)


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
        "notes": "; ".join([*summary.notes, *_remarks(summary, load, osl)]),
        "verdict": summary.verdict or _verdict(summary, load),
    }


def _rates(summary: Summary) -> dict[str, float | int | None]:
    names = ("duration_s", "requests", "errors", "requests_per_s", "output_tokens_per_s", "mean_in_flight")
    return {name: getattr(summary, name) for name in names}


def held_back(limit: int) -> str:
    """The remark on an open loop that let at most `limit` requests be in flight: not every one was sent when due."""
    return f"at most {limit} requests in flight: later ones were held back"


def _remarks(summary: Summary, load: Offered, osl: float) -> list[str]:
    found = [WHOLE_RUN, HEALTH_UNKNOWN, *_on_percentiles(summary)]
    if load.open_loop and summary.late_mean_s is None:
        found.append("how late requests were sent is not in the file: latencies are from the sending")
    chunk = summary.tokens_per_chunk
    if chunk is not None and chunk > TOKENS_PER_CHUNK and osl > chunk:
        low = 1 - (osl - chunk) / (osl - 1)
        found.append(f"{chunk:.1f} tokens a response: ITL is too low by about {low:.1%}, for those that came first")
    return found


def _on_percentiles(summary: Summary) -> list[str]:
    lacking = [q for q in summary.given if q not in summary.chosen]
    if lacking:
        needed = ", ".join(f"p{q} needs {samples_needed(q)}" for q in lacking)
        return [f"percentiles left out: {summary.requests} requests are too few, {needed}"]
    if summary.requests is None and any(samples_needed(q) > 1 for q in summary.given):
        return ["the number of requests is not in the file: percentiles may be of too few"]
    return []


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
