"""From a load to a measurement: latencies, rates and requests in flight in the window, a verdict, facts.

Requests that overlap an edge of the window count by the fraction w = (time inside the window) / E2E. With

    requests/s = Σ w / T        mean E2E = Σ w E2E / Σ w        in flight = Σ (time inside the window) / T

over a window of T seconds, Little's law, requests/s x mean E2E = in flight, holds exactly however short the window is,
even if requests run in lockstep and come and go in bursts. Percentiles use the same weights. In an open loop,
requests/s are the completions in the window: when a queue grows, parts of requests that end later are no throughput.
`window` defines TTFT, ITL and E2E of a request. A percentile is reported only with enough samples, and its bounds
assume no particular distribution.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any

import numpy as np
from scipy.special import bdtr, bdtrik

from calibration.errors import NothingAnswered
from calibration.metrics import window
from calibration.metrics.precision import half_widths, series
from calibration.metrics.verdict import ERROR_SHARE, answers, judge, lateness_s, little, others_allowed
from calibration.metrics.window import Sample, failed_inside, mean_in_flight, sample, within, wrong_inside
from calibration.plan import Level
from calibration.records import Load, Mask, Measurement
from sizing.numbers import Floats, count_of, milliseconds, significant
from sizing.points import UNSAID, Deployment, Point, Scheduling, Start
from sizing.stats import weighted_quantiles
from sizing.workload import GAP_PERCENTILES, PERCENTILES, Tokens

ALWAYS = 50
SURE = 0.99
BOUNDS_CONFIDENCE = 0.95


@cache
def samples_needed(percentile: int) -> int:
    """Samples needed to report a percentile: 64 for p90, 130 for p95, 662 for p99; a median is always reported.

    With this many, the second largest sample is above the true percentile in 99 % of cases. With fewer, any upper bound
    would depend on a single request. MLPerf's early stopping of tail latencies has the same rule, at one query allowed
    over the bound; it holds for independent samples of any distribution.

    >>> samples_needed(99)
    662
    """
    if percentile <= ALWAYS:
        return 1
    above = 1 - percentile / 100
    n = 2
    while bdtr(1, n, above) > 1 - SURE:
        n += 1
    return n


def told(percentiles: Sequence[int], samples: float) -> list[int]:
    """Those of `percentiles` for which `samples` independent samples are enough."""
    return [percentile for percentile in percentiles if samples >= samples_needed(percentile)]


def bounds(percentile: int, samples: int) -> tuple[float, float] | None:
    """Shares of the sample, lower and upper, between whose values the true percentile lies with 95 % confidence.

    Order statistics of `samples` independent samples of any distribution (the number below is binomial); None if there
    are too few. Correlated samples count for fewer: then the bounds are too narrow.

    >>> bounds(percentile=50, samples=100)
    (0.4, 0.61)
    """
    if samples < 1:
        return None
    tail = (1 - BOUNDS_CONFIDENCE) / 2
    lower, upper = (int(np.ceil(bdtrik(chance, samples, percentile / 100))) for chance in (tail, 1 - tail))
    if lower < 1 or upper + 1 > samples:
        return None
    return lower / samples, (upper + 1) / samples


def statistics(name: str, values: Floats, weight: Floats, counted: Mask) -> dict[str, float]:
    """`name` _mean_s and the percentiles with enough samples, by `weight`; NaN values are left out.

    `counted`, shape (n,), marks the samples that count as one; the others are parts of requests at a window's edge.
    """
    known = np.isfinite(values)
    if not known.any():
        return {}
    values, weight = values[known], weight[known]
    found = {f"{name}_mean_s": float(np.average(values, weights=weight))}
    chosen = told(PERCENTILES, int(counted[known].sum()))
    quantiles = weighted_quantiles(values, weight, np.array(chosen) / 100).tolist()
    return found | {f"{name}_p{q}_s": value for q, value in zip(chosen, quantiles, strict=True)}


def bound_statistics(name: str, values: Floats, weight: Floats, counted: Mask) -> dict[str, float]:
    """The bounds of each percentile in `statistics`: `name` _p95_low_s and `name` _p95_high_s."""
    known = np.isfinite(values)
    samples = int(counted[known].sum())
    found: dict[str, float] = {}
    for q in told(PERCENTILES, samples):
        shares = bounds(q, samples)
        if shares is not None:
            low, high = weighted_quantiles(values[known], weight[known], np.array(shares)).tolist()
            found |= {f"{name}_p{q}_low_s": low, f"{name}_p{q}_high_s": high}
    return found


def gap_percentiles(name: str, gaps_s: Floats, in_flight: float) -> dict[str, float]:
    """Percentiles of gaps between responses, if there are enough.

    Gaps of requests in flight at the same time end with the same step of the engine, so together they count as one
    sample.
    """
    if not gaps_s.size:
        return {}
    chosen = told(GAP_PERCENTILES, gaps_s.size / max(1.0, in_flight))
    return {f"{name}_p{q}_s": float(value) for q, value in zip(chosen, np.percentile(gaps_s, chosen), strict=True)}


# --- Beyond the columns of a level's point: figures by name with unit, and remarks for its notes

CONFIDENCE = 0.95
TOKENS_PER_CHUNK = 1.05
LAG_SHARE_OF_ITL = 0.05
FEWEST_IN_STEP = 4
PHASES = 10
IN_LOCKSTEP = 1.0


def facts(load: Load, level: Level, seen: Sample) -> dict[str, float]:
    """Figures behind a point; times in seconds, cores as a number of them, half widths relative, at 95 %.

    `achieved_per_s` are completions in the window, `sent_per_s` requests sent in it, `offered_per_s` those planned.
    ``ttft_sent`` and ``e2e_sent`` count from the sending, without a late client's delay. With sessions, ``first_ttft``
    and ``later_ttft`` are those of first turns and of all others.
    """
    found = {
        "window_start_s": load.start_s,
        "window_stop_s": load.stop_s,
        "client_cores": load.client.cpu_cores,
        "busiest_core": load.client.busiest_core,
        "processes": float(load.client.processes),
        "loop_lag_p99_s": load.client.loop_lag_p99_s,
        "achieved_per_s": seen.completed / load.duration_s,
        "failed": float(failed_inside(load).sum()),
        "wrong_lengths": float(wrong_inside(load).sum()),
        "tokens_per_chunk": window.tokens_per_chunk(seen.log),
    }
    found |= _closed_loop(load, level, seen) if level.kind == "concurrency" else _open_loop(load, seen)
    found |= _turns(seen) if seen.log.turn.any() else {}
    means = series(answers(seen), (load.start_s, load.stop_s))
    found |= {f"{name}_half_width": width for name, width in half_widths(means, CONFIDENCE).items()}
    for name, values_s in seen.latencies:
        found |= bound_statistics(name, values_s, seen.weight, seen.ended_inside)
    chunk_gaps_s = window.gaps_s(seen.log, load, single_tokens=False)
    return found | gap_percentiles("chunk_gap", chunk_gaps_s, mean_in_flight(load))


def _closed_loop(load: Load, level: Level, seen: Sample) -> dict[str, float]:
    plain, whole = little(load, level.value)
    return {"little": plain, "little_without_edges": whole, "clumping": clumping(load, seen)}


def _open_loop(load: Load, seen: Sample) -> dict[str, float]:
    late_s, log = lateness_s(load), seen.log
    found = {
        "offered_per_s": load.offered_per_s or load.issued / load.duration_s,
        "sent_per_s": float(within(load, load.log.sent_s).sum()) / load.duration_s,
        "late_p50_s": float(np.percentile(late_s, 50)),
        "late_p99_s": float(np.percentile(late_s, 99)),
        "late_max_s": float(late_s.max()),
    }
    found |= statistics("ttft_sent", log.first_token_s - log.sent_s, seen.weight, seen.ended_inside)
    return found | statistics("e2e_sent", seen.last_s - log.sent_s, seen.weight, seen.ended_inside)


def _turns(seen: Sample) -> dict[str, float]:
    """TTFT of first turns of sessions, of which a prefix cache has at most the system prompt, and of later turns."""
    found: dict[str, float] = {}
    for name, chosen in (("first_ttft", seen.log.turn == 0), ("later_ttft", seen.log.turn > 0)):
        found |= statistics(name, seen.ttft_s[chosen], seen.weight[chosen], seen.ended_inside[chosen])
    return found


def clumping(load: Load, seen: Sample) -> float:
    """How bursty completions are: 0 at random, 9 if a wave ends within a tenth of its E2E, below 0 if even.

    (variance - mean) / mean^2 of the completions in parts of the window that are a tenth of the mean E2E long. B bursts
    of equal size within an E2E give nearly 10/B - 1 if they are large.
    """
    part_s = float(np.average(seen.e2e_s, weights=seen.weight)) / PHASES
    if not part_s:
        return 0.0
    parts = min(max(1.0, float(np.floor(load.duration_s / part_s))), 1e15)
    number = np.floor((seen.last_s[seen.ended_inside] - load.start_s) / load.duration_s * parts)
    # parts without completions are only counted: with a file's wrong clock there may be 10^13
    _, counts = np.unique(np.minimum(number, parts - 1), return_counts=True)
    mean = float(counts.sum()) / parts
    return (float((counts**2).sum()) / parts - mean**2 - mean) / mean**2 if mean else 0.0


def remarks(load: Load, level: Level, seen: Sample, known: Mapping[str, float]) -> Iterator[str]:
    """Remarks on the point besides the reasons of its verdict; `known` are its facts."""
    if load.ended == "budget":
        yield f"ended by the time budget after {significant(load.duration_s)} s{_half_width(known)}"
    if load.ended == "failing":
        yield f"ended after {significant(load.duration_s)} s because more requests failed than were answered"
    if 0 < known["failed"] <= ERROR_SHARE * (known["failed"] + seen.completed):
        first = load.log.error[int(np.argmax(failed_inside(load)))]
        yield f"{count_of(int(known['failed']), 'request')} failed, the first with: {first}"
    if load.served and 0 < load.of_others <= others_allowed(load.served):
        yield f"the server also answered {count_of(load.of_others, 'request')} of other clients"
    if known["tokens_per_chunk"] > TOKENS_PER_CHUNK:
        yield f"{known['tokens_per_chunk']:.2f} tokens per response: ITL is over the tokens after the first response"
    if level.value >= FEWEST_IN_STEP and known.get("clumping", 0.0) > IN_LOCKSTEP:
        yield f"lockstep: completions come in bursts (clumping {known['clumping']:.1f}); vary OSL or spread the starts"
    yield from _other_lengths(level, seen)
    yield from _jittered_gaps(load, seen)


def _other_lengths(level: Level, seen: Sample) -> Iterator[str]:
    """Mean requested lengths in the window that differ from the level's by more than chance."""
    if seen.log.turn.any():  # with sessions, a window begins with first turns
        return
    asked = level.lengths
    for name, tokens, mean, cv in (
        ("ISL", seen.log.isl, asked.isl, asked.isl_cv),
        ("OSL", seen.log.osl, asked.osl, asked.osl_cv),
    ):
        found = float(np.average(tokens, weights=seen.weight))
        chance = CHANCE_SIGMAS * max(float(tokens.std()), cv * mean) / math.sqrt(len(seen))
        if abs(found - mean) > chance + OTHER_LENGTHS * mean:
            means = f"{significant(found, 4)} instead of {significant(mean, 4)}"
            yield f"requests in the window had a mean {name} of {means}"


def _half_width(known: Mapping[str, float]) -> str:
    width = known.get("e2e_mean_half_width")
    return "" if width is None else f", mean E2E known to ± {width:.1%}"


def _jittered_gaps(load: Load, seen: Sample) -> Iterator[str]:
    lag_s, itl_s = load.client.loop_lag_p99_s, seen.itl_s[np.isfinite(seen.itl_s)]
    if itl_s.size and lag_s > LAG_SHARE_OF_ITL * itl_s.mean() > 0:  # 0: each answer came in one piece
        yield (
            f"gaps between tokens include up to {milliseconds(lag_s)} of the client's own lag (p99), "
            f"{lag_s / itl_s.mean():.0%} of the mean ITL"
        )


def measurement(
    load: Load,
    level: Level,
    deployment: Deployment,
    *,
    source: str,
    notes: Iterable[str] = (),
    server: Mapping[str, float] | None = None,
    shared_prefix: int = 0,
    protocol: Start = "",
    scheduling: Scheduling = UNSAID,
) -> Measurement:
    """The point of `level` with its verdict, facts and log. A void point keeps its numbers.

    Latencies and rates are those of answered requests, including those of a wrong length; `errors` counts both kinds of
    failure. `shared_prefix`: tokens that the plan puts at the start of all prompts; `server` may say how many were
    cached. `protocol`: how the users of a closed loop started; `scheduling`: how the engine schedules. Raises
    NothingAnswered if the window has no answered request.
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
        **prefix_columns(seen.log.isl, shared_prefix, server or {}, seen.weight),
        kv_tokens=_whole((server or {}).get("kv_cache_tokens")),
        kv_block_tokens=_whole((server or {}).get(BLOCK_TOKENS)),
        protocol=protocol,
        **scheduling._asdict(),
    )
    return Measurement(point, known, dict(server or {}), load.log)


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


OTHER_LENGTHS, CHANCE_SIGMAS = 0.05, 4.0
"""A mean length counts as different beyond this fraction of it plus this many standard errors."""
CACHE_BLOCK = 16
"""Tokens of a KV cache block, if the server does not say: shorter prefixes are not found."""
BLOCK_TOKENS = "kv_cache_tokens_per_block"
ALL_FOUND = 0.98
"""From this fraction on, everything that can be found counts as found: of prompts at the window's edges, some are
counted only by the server and others only here."""


def prefix_columns(
    isl: Tokens, shared_prefix: int, server: Mapping[str, float], weight: Floats | None = None
) -> dict[str, Any]:
    """`prefix_tokens` and `prefix_hit` of a point; empty if its prompts have nothing in common.

    `isl`, shape (n,): tokens of its prompts, with their `weight`. The server's counters give the fraction of all prompt
    tokens found in its cache (``prefix_tokens_found_share``), or else the mean number per prompt
    (``prefix_tokens_found_mean``), which is off if more prompts were admitted than requests finished. `prefix_hit` is
    the found part of what can be found of the plan's `shared_prefix`: shorter prompts contain less of it, the last
    token of a prompt is always computed, and caches find whole blocks. If more was found, prompts had been sent before:
    then the mean number found counts as shared by all. Without counters, `prefix_hit` is unknown.
    """
    mean = float(np.average(isl, weights=weight))
    share = server.get("prefix_tokens_found_share")
    found = server.get("prefix_tokens_found_mean") if share is None else share * mean
    block = _whole(server.get(BLOCK_TOKENS)) or CACHE_BLOCK
    if found is None:
        return {"prefix_tokens": shared_prefix} if shared_prefix else {}
    if shared_prefix and found <= shared_prefix + block:
        whole_blocks = np.minimum(shared_prefix, isl - 1) // block * block
        most = float(np.average(whole_blocks, weights=weight))
        hit = found / most if most else 0.0
        return {"prefix_tokens": shared_prefix, "prefix_hit": hit if hit < ALL_FOUND else 1.0}
    if found < block:
        return {}
    return {"prefix_tokens": min(block * round(found / block), mean), "prefix_hit": 1.0}


def _rates(load: Load, level: Level, seen: Sample) -> dict[str, Any]:
    finished = float(seen.weight.sum()) if level.closed else seen.completed or float(seen.weight.sum())
    return {
        "duration_s": load.duration_s,
        "requests": seen.completed,
        "errors": int(failed_inside(load).sum() + wrong_inside(load).sum()),
        "requests_per_s": finished / load.duration_s,
        "output_tokens_per_s": window.tokens_inside(seen.log, load) / load.duration_s or None,
        "mean_in_flight": mean_in_flight(load),
    }


def _latencies(seen: Sample) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, values_s in seen.latencies:
        found |= statistics(name, values_s, seen.weight, seen.ended_inside)
    return found


def _gaps(load: Load, seen: Sample) -> dict[str, Any]:
    gaps_s = window.gaps_s(seen.log, load, single_tokens=True)
    return {**gap_percentiles("gap", gaps_s, mean_in_flight(load))}


def _first_error(load: Load) -> str:
    return next((error for error in load.log.error if error), "no answer in the measured time")
