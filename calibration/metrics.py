"""Request timings become a point: latencies, rates and requests in flight inside the window of steady load.

Requests that overlap an edge of the window count by the share w = (time inside the window) / E2E that lies inside. With

    requests/s = Σ w / T        mean E2E = Σ w E2E / Σ w        in flight = Σ (time inside the window) / T

over a window of T seconds, Little's law, requests/s x mean E2E = in flight, holds exactly however short the window is,
also where requests run in lockstep and come and go in bursts. Percentiles use the same weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibration.errors import ServerError
from calibration.load import Load, Timing
from calibration.plan import Level
from sizing.curves import Deployment, Point

SAMPLES_FOR_P99 = 100
CLIENT_BOUND_CPU = 0.8
LATE_SHARE_OF_TTFT = 0.05
TOKENS_PER_CHUNK = 1.05

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Sample:
    """Answered requests in the window, arrays of one value a request; `itl_s` is NaN where one token was asked."""

    weight: Floats
    ttft_s: Floats
    itl_s: Floats
    e2e_s: Floats


def point(load: Load, level: Level, deployment: Deployment, *, source: str, notes: Iterable[str] = ()) -> Point:
    """The point of `level`. Requests with an error count in `errors` only.

    Raises ServerError if no request that was answered lies in the window.
    """
    answered = [timing for timing in load.timings if not timing.error and _inside_s(timing, load) > 0]
    if not answered:
        raise ServerError(f"{level.label}: every request failed, the first with: {_first_error(load)}")
    lengths = level.lengths
    return Point(
        **deployment._asdict(),
        isl=lengths.isl,
        osl=lengths.osl,
        isl_cv=lengths.isl_cv,
        osl_cv=lengths.osl_cv,
        load_kind=level.kind,
        load_value=level.value,
        **_rates(answered, load),
        **_latencies(answered, load),
        **_gap_statistics(_gaps_s(answered, load)),
        source=source,
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        notes="; ".join([*notes, *_doubts(load, level, answered)]),
    )


def _rates(answered: Sequence[Timing], load: Load) -> dict[str, Any]:
    duration_s = load.stop_s - load.start_s
    inside_s = np.array([_inside_s(timing, load) for timing in load.timings])
    return {
        "duration_s": duration_s,
        "requests": _completed(answered, load),
        "errors": sum(_failed_inside(timing, load) for timing in load.timings),
        "requests_per_s": float(_sample(answered, load).weight.sum()) / duration_s,
        "output_tokens_per_s": _tokens_inside(answered, load) / duration_s or None,
        "mean_in_flight": float(inside_s.sum()) / duration_s,
    }


def _latencies(answered: Sequence[Timing], load: Load) -> dict[str, Any]:
    sample = _sample(answered, load)
    enough = _completed(answered, load) >= SAMPLES_FOR_P99
    found: dict[str, Any] = {}
    for name in ("ttft", "itl", "e2e"):
        found |= _statistics(name, getattr(sample, f"{name}_s"), sample.weight, enough)
    return found


def _completed(answered: Sequence[Timing], load: Load) -> int:
    return sum(load.start_s <= timing.last_token_s < load.stop_s for timing in answered)


def _inside_s(timing: Timing, load: Load) -> float:
    """Seconds of the request, from its intended start to its last token, that lie in the window."""
    return max(0.0, min(timing.last_token_s, load.stop_s) - max(timing.intended_s, load.start_s))


def _failed_inside(timing: Timing, load: Load) -> bool:
    return bool(timing.error) and load.start_s <= timing.end_s < load.stop_s


def _sample(answered: Sequence[Timing], load: Load) -> _Sample:
    start_s = np.array([timing.intended_s for timing in answered])
    first_s = np.array([timing.tokens[0][0] for timing in answered])
    last_s = np.array([timing.last_token_s for timing in answered])
    inside_s = np.array([_inside_s(timing, load) for timing in answered])
    osl = np.array([sum(count for _, count in timing.tokens) for timing in answered], float)
    itl_s = np.where(osl > 1, (last_s - first_s) / np.maximum(1, osl - 1), np.nan)
    return _Sample(inside_s / (last_s - start_s), first_s - start_s, itl_s, last_s - start_s)


def _statistics(name: str, values_s: Floats, weight: Floats, enough_for_p99: bool) -> dict[str, float | None]:
    known = np.isfinite(values_s)
    if not known.any():
        return {}
    values_s, weight = values_s[known], weight[known]
    found: dict[str, float | None] = {f"{name}_mean_s": float(np.average(values_s, weights=weight))}
    percentiles = (50, 90, 95, 99) if enough_for_p99 else (50, 90, 95)
    quantiles = np.percentile(values_s, percentiles, weights=weight, method="inverted_cdf")
    return found | {f"{name}_p{q}_s": float(value) for q, value in zip(percentiles, quantiles, strict=True)}


def _gaps_s(answered: Iterable[Timing], load: Load) -> Floats:
    """Gaps before single tokens that arrived in the window; a response of several tokens tells no gap between them."""
    return np.array(
        [
            at_s - before_s
            for timing in answered
            for (before_s, _), (at_s, count) in zip(timing.tokens, timing.tokens[1:], strict=False)
            if count == 1 and load.start_s <= at_s < load.stop_s
        ]
    )


def _gap_statistics(gaps_s: Floats) -> dict[str, Any]:
    if not gaps_s.size:
        return {}
    percentiles = (50, 95, 99) if gaps_s.size >= SAMPLES_FOR_P99 else (50, 95)
    return {f"gap_p{q}_s": float(np.percentile(gaps_s, q)) for q in percentiles}


def _tokens_inside(answered: Iterable[Timing], load: Load) -> int:
    return sum(count for timing in answered for at_s, count in timing.tokens if load.start_s <= at_s < load.stop_s)


def _doubts(load: Load, level: Level, answered: Sequence[Timing]) -> list[str]:
    """What a reader of the point must know: errors, a slow client, cut budgets, several tokens in a response."""
    found = []
    failed = [timing for timing in load.timings if _failed_inside(timing, load)]
    if failed:
        found.append(f"{len(failed)} requests failed, the first with: {failed[0].error}")
    if load.issued < level.requests:
        found.append(f"cut by budget_s: {load.issued} of {level.requests} requests")
    if load.client_cpu > CLIENT_BOUND_CPU:
        found.append(f"client-bound: this client used {load.client_cpu:.0%} of a core")
    found += _lateness(answered)
    chunks = sum(len(timing.tokens) for timing in answered)
    tokens = sum(count for timing in answered for _, count in timing.tokens)
    if tokens > TOKENS_PER_CHUNK * chunks:
        found.append(f"{tokens / chunks:.1f} tokens a response: ITL is too low by those that came with the first")
    return found


def _lateness(answered: Sequence[Timing]) -> list[str]:
    late_s = float(np.percentile([timing.sent_s - timing.intended_s for timing in answered], 99))
    ttft_s = float(np.mean([timing.tokens[0][0] - timing.intended_s for timing in answered]))
    if late_s <= LATE_SHARE_OF_TTFT * ttft_s:
        return []
    return [f"client-bound: p99 of requests sent {late_s * 1000:.1f} ms late, mean TTFT {ttft_s * 1000:.1f} ms"]


def _first_error(load: Load) -> str:
    return next((timing.error for timing in load.timings if timing.error), "no answer in the measured time")
