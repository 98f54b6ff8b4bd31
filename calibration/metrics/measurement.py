"""A load becomes a measurement: latencies, rates and requests in flight in the window, a verdict, facts.

Requests that overlap an edge of the window count by the share w = (time inside the window) / E2E that lies inside. With

    requests/s = Σ w / T        mean E2E = Σ w E2E / Σ w        in flight = Σ (time inside the window) / T

over a window of T seconds, Little's law, requests/s x mean E2E = in flight, holds exactly however short the window is,
also where requests run in lockstep and come and go in bursts. Percentiles use the same weights. In an open loop
requests/s are the completions in the window: where a queue grows, shares of requests that end later are no throughput.
What a request's TTFT, ITL and E2E are is said in `window`; which percentiles are told in `percentiles`; what else is
known in `facts`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from calibration.errors import NothingAnswered
from calibration.levels import Level
from calibration.metrics import chunks
from calibration.metrics.facts import facts, remarks
from calibration.metrics.percentiles import gap_percentiles, statistics
from calibration.metrics.verdict import closed, judge
from calibration.metrics.window import Sample, failed_inside, mean_in_flight, sample, wrong_inside
from calibration.records import Load, Measurement
from sizing.curves import Deployment, Point


def measurement(
    load: Load,
    level: Level,
    deployment: Deployment,
    *,
    source: str,
    notes: Iterable[str] = (),
    server: Mapping[str, float] | None = None,
) -> Measurement:
    """The point of `level` with its verdict, facts and log. A void point keeps its numbers.

    Latencies and rates are those of answered requests, of a wrong length too; `errors` counts both kinds of failure.
    Raises NothingAnswered if no answered request lies in the window.
    """
    seen = sample(load)
    if not len(seen):
        raise NothingAnswered(f"{level.label}: every request failed, the first with: {_first_error(load)}")
    verdict, reasons = judge(load, level, seen)
    known = facts(load, level, seen)
    point = Point(
        **deployment._asdict(),
        isl=level.lengths.isl,
        osl=level.lengths.osl,
        isl_cv=level.lengths.isl_cv,
        osl_cv=level.lengths.osl_cv,
        load_kind=level.kind,
        load_value=level.value,
        **_rates(load, level, seen),
        **_latencies(seen),
        **_gaps(load, seen),
        source=source,
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        notes="; ".join([*notes, *reasons, *remarks(load, level, seen, known)]),
        verdict=verdict,
    )
    return Measurement(point, known, dict(server or {}), load.log)


def _rates(load: Load, level: Level, seen: Sample) -> dict[str, Any]:
    finished = float(seen.weight.sum()) if closed(level) else seen.completed or float(seen.weight.sum())
    return {
        "duration_s": load.duration_s,
        "requests": seen.completed,
        "errors": int(failed_inside(load).sum() + wrong_inside(load).sum()),
        "requests_per_s": finished / load.duration_s,
        "output_tokens_per_s": chunks.tokens_inside(seen.log, load) / load.duration_s or None,
        "mean_in_flight": mean_in_flight(load),
    }


def _latencies(seen: Sample) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, values_s in seen.latencies:
        found |= statistics(name, values_s, seen.weight, seen.ended_inside)
    return found


def _gaps(load: Load, seen: Sample) -> dict[str, Any]:
    gaps_s = chunks.gaps_s(seen.log, load, single_tokens=True)
    return {**gap_percentiles("gap", gaps_s, mean_in_flight(load))}


def _first_error(load: Load) -> str:
    return next((error for error in load.log.error if error), "no answer in the measured time")
