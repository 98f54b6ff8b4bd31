"""What measured closed loops show beside the engine's iterations, carried over to other levels.

None of this follows from an iteration time. A tool's requests/s may include the ramp and the drain of its window; a
mean TTFT depends on who happens to meet whom in a batch, and on a burst at the start of the window. So what measured
levels show beyond the engine is carried over to the level asked for: the law gives the shape of the curve, which goes
through the measured levels. Requests that arrive at random are not concerned.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sizing.engine import Batching
from sizing.fitting.levels import (
    CLOSED_SIGMA,
    CLOSED_TTFT_SIGMA,
    ITL_SIGMA,
    RATE_SIGMA,
    concurrency,
    counting_log,
    holds_no_start,
    luck_of_lengths,
    of_one_level,
)
from sizing.numbers import Floats
from sizing.points import Point, Protocol, same_isl
from sizing.simulator.replay import MEASURES

BETWEEN_TTFT_SIGMA, ELSEWHERE_TTFT_SIGMA = 0.09, 0.4
"""Relative scatter of mean TTFT about what a fit says: between measured levels, and at lengths that were not measured
(at one ISL published mean TTFT differs by a factor of two or more between output lengths, which no iteration explains).
"""
ONE_ISL_TTFT_SIGMA = 0.57
"""The second where all prompts that were measured are equally long."""
EXPERTS_ELSEWHERE_TTFT_SIGMA, EXPERTS_ONE_ISL_TTFT_SIGMA = 0.2, 0.4
"""The same two of MoE models."""
BEYOND_SIGMA, BEYOND_TTFT_SIGMA, EXPERTS_BEYOND_TTFT_SIGMA = 0.085, 0.5, 0.35
"""Error of requests/s and ITL, and of TTFT, for each unit of ln(users) outside those that were measured: of published
servers whose two highest levels were left out. The last is of MoE models."""
STEADY_BETWEEN_TTFT_SIGMA, STEADY_BEYOND_TTFT_SIGMA = 0.05, 0.15
"""The two of TTFT where it is that of a steady window (see `holds_no_start`): of vLLM, measured here."""
USUAL_WEIGHT, REFITTED = 2, 2.0
"""At other lengths the usual scatter of requests/s and ITL counts as that of so many pairs of lengths beside the
server's own (see `surprises`); the law was fitted to these too, and errs so many times as far where it was not."""
CHANGES = 0.6
"""Of the law's error, what changes from level to level: the rest is carried over with what was measured there."""
LINE_SHARE = 0.2
"""Weight of straight lines through measured levels in an answer between them. They err about twice as far as the law,
but differently, so both together err less than either (Bates and Granger 1969, Oper. Res. Q. 20:451)."""
WAIT_GROWTH, WAIT_REACH = 2 / 3, 10.0
"""Outside the measured users, and wherever one level was measured, the wait that a mean TTFT shows beyond the engine's
grows with this power of users x prompt tokens: most of it is the burst at the start, where each prompt waits for
others; in a steady window it stays as long (see `holds_no_start`). It fades to 1/e over so many units of `_distance`.
Both from published servers, as the next."""
ONE_LEVEL_TTFT_SIGMA, UNTOLD_DISTANCE = 0.33, 3.0
"""Relative scatter of mean TTFT about what one level says, at one unit of `_distance`; it grows with the square root of
the distance. A level without a TTFT tells as much as one that far away."""
ISL_REACH, OSL_REACH, FAR_FROM_ALL = 0.5, 4.0, 0.1
"""Units of ln(ISL) and ln(OSL) over which the weight of a level falls to 1/e, and the weight of no correction at all:
from published servers, each pair of lengths predicted from the others."""
ALIKE, ALIKE_CV = 0.05, 0.1
"""Mean lengths, and prompts without their cached part, count as the same within ALIKE, in logarithms; coefficients of
variation within ALIKE_CV."""


def levels_at(levels: Sequence[Point], point: Point) -> list[Point]:
    """The closed-loop levels of the same lengths, by ascending users."""
    return sorted((level for level in levels if _is_of(point, level)), key=concurrency)


def _is_of(point: Point, level: Point) -> bool:
    ratios = level.isl / point.isl, level.computed_tokens / point.computed_tokens, level.osl / point.osl
    apart = max(abs(math.log(ratio)) for ratio in ratios)
    return level.closed and apart < ALIKE and _spread(point, level) < ALIKE_CV


def _spread(point: Point, level: Point) -> float:
    return max(abs(level.isl_cv - point.isl_cv), abs(level.osl_cv - point.osl_cv))


def between(levels: Sequence[Point], users: float, value_of: str) -> float | None:
    """A figure of the levels at so many users, on straight lines in logarithms; None outside them or where untold."""
    known = [(concurrency(level), getattr(level, value_of)) for level in levels if getattr(level, value_of)]
    each = {level for level, _ in known}
    if len(each) < 2 or not min(each) <= users <= max(each):
        return None
    return math.exp(_line([level for level, _ in known], np.log([value for _, value in known]), users))


def _line(users: Sequence[int], values: Floats, asked: float) -> float:
    """Values at so many `users`, drawn to those asked in straight lines over the logarithm; outside them the nearest.
    Of a level measured more than once the mean counts."""
    each, again = np.unique(users, return_inverse=True)
    return float(np.interp(math.log(asked), np.log(each), np.bincount(again, values) / np.bincount(again)))


def line_logs(levels: Sequence[Point], point: Point, batching: Batching, figures: Floats) -> Floats:
    """By what requests/s, TTFT and ITL of a closed-loop `point`, `figures`, move towards straight lines through the
    `levels` of its lengths, in logarithms, shape (3,): `LINE_SHARE` of the way between levels, times the
    `share_beyond_luck` of the levels. Zero where untold, outside them, and where users wait for slots or memory at one
    and not at the other."""
    queue, users = users_wait(point, batching), concurrency(point)
    alike = [level for level in levels_at(levels, point) if users_wait(level, batching) == queue]
    if not alike:
        return np.zeros(3)
    lines = [between(alike, users, name) for name in MEASURES[:3]]
    moves = [LINE_SHARE * math.log(line / own) if line else 0.0 for line, own in zip(lines, figures, strict=True)]
    everyone, shares = [concurrency(level) for level in alike], share_beyond_luck(alike, luck_ratio(levels))
    return np.array(moves) * [_line(everyone, of_figure, users) for of_figure in shares.T]


def closed_sigmas(
    levels: Sequence[Point],
    protocol: Protocol,
    point: Point,
    *,
    seen: Floats | None = None,
    has_experts: bool = False,
) -> tuple[float, float, float]:
    """Relative scatter of a closed loop's requests/s, mean TTFT and ITL about what the fit to `levels`, measured by
    `protocol`, says, beside what law and bend leave open. `seen`: the `surprises` of these levels. `has_experts`: of an
    MoE model."""
    if of_one_level(levels):
        away = min((_distance(level, point) for level in levels if level.ttft_mean_s), default=UNTOLD_DISTANCE)
        return RATE_SIGMA, math.hypot(BETWEEN_TTFT_SIGMA, ONE_LEVEL_TTFT_SIGMA * math.sqrt(away)), ITL_SIGMA
    asked, own = math.log(concurrency(point)), levels_at(levels, point)
    most = max((concurrency(level) for level in levels if level.closed), default=concurrency(point))
    beyond = BEYOND_SIGMA * max(0.0, asked - math.log(most))
    scatter = np.full(3, CLOSED_SIGMA) if own or seen is None else _usual_and(seen)
    rate, _, itl = np.hypot(scatter, beyond).tolist()
    # A level without a TTFT says no more about it for having the same lengths.
    if not (told := [math.log(concurrency(level)) for level in own if level.ttft_mean_s]):
        several, one = ELSEWHERE_TTFT_SIGMA, ONE_ISL_TTFT_SIGMA
        if has_experts:
            several, one = EXPERTS_ELSEWHERE_TTFT_SIGMA, EXPERTS_ONE_ISL_TTFT_SIGMA
        return rate, one if same_isl([level.isl for level in levels]) else several, itl
    outside = max(0.0, told[0] - asked, asked - told[-1])
    near, far = BETWEEN_TTFT_SIGMA, EXPERTS_BEYOND_TTFT_SIGMA if has_experts else BEYOND_TTFT_SIGMA
    if holds_no_start(levels, protocol):
        near, far = STEADY_BETWEEN_TTFT_SIGMA, STEADY_BEYOND_TTFT_SIGMA
    return rate, math.hypot(near, far * outside), itl


def surprises(levels: Sequence[Point], left: Floats, batching: Batching) -> Floats:
    """How far the lengths of a fit surprise each other: what the levels of each pair of lengths show beyond the engine,
    `left`, less what the other pairs would have carried over to them. The root mean square of requests/s, TTFT and ITL
    in logarithms, times `REFITTED`, shape (pairs, 3); NaN where nothing was measured, no row without other lengths.

    A server that follows the law everywhere measured will do so at the next lengths; of published servers this told
    the error there better than a constant scatter (cross-validation: Stone 1974, J. R. Statist. Soc. B 36:111).
    """
    closed = [row for row, level in enumerate(levels) if level.closed]
    pairs: dict[tuple[float, float, float], list[int]] = {}
    for row in closed:
        pairs.setdefault((levels[row].isl, levels[row].osl, levels[row].computed_tokens), []).append(row)
    if len(pairs) < 2:
        return np.empty((0, 3))
    found = []
    for rows in pairs.values():
        others = [row for row in closed if row not in rows]
        known = [levels[row] for row in others]
        carried = [carried_over(known, left[others], levels[row], batching) for row in rows]
        errors = np.ma.masked_invalid(left[rows] - np.array(carried))
        found.append(REFITTED * np.ma.sqrt((errors**2).mean(axis=0)).filled(math.nan))
    return np.array(found)


def _usual_and(seen: Floats) -> Floats:
    """`CLOSED_SIGMA` and what was seen of the scatter, shape (3,): the square root of a variance's posterior mean,
    under a conjugate prior."""
    known = np.isfinite(seen)
    squares = USUAL_WEIGHT * CLOSED_SIGMA**2 + np.square(np.where(known, seen, 0.0)).sum(axis=0)
    return np.asarray(np.sqrt(squares / (USUAL_WEIGHT + known.sum(axis=0))))


def luck_ratio(levels: Sequence[Point]) -> float:
    """How far requests/s of closed loops scatter about Little's law, as a share of what lengths drawn one by one would
    make of them (see `luck_of_lengths`): a load generator may draw them evenly, as `calibration` does, and then its
    levels hold less luck. By the Birge ratio (1932, Phys. Rev. 40:207), with 1 as one level more; at most 1."""
    drawn = [
        (counting_log(point), luck_of_lengths(point)[0])
        for point in levels
        if point.closed and point.osl_cv and point.ttft_mean_s and point.itl_mean_s
    ]
    if len(drawn) < 2:
        return 1.0
    logs, luck = np.array(drawn).T
    mean = np.average(logs, weights=luck**-2)
    return min(1.0, math.sqrt((1 + float(np.sum(((logs - mean) / luck) ** 2))) / len(drawn)))


def share_beyond_luck(points: Sequence[Point], ratio: float) -> Floats:
    """Of what closed-loop points show beside a law, in logarithms, the share that is the server's and not the luck of
    the lengths, of which they hold the share `ratio` (see `luck_ratio`): of requests/s, TTFT and ITL, shape (points,
    3); 1 where all requests are equal.

    The best linear prediction where what a server shows scatters by `CLOSED_SIGMA` and `CLOSED_TTFT_SIGMA` (Robinson
    1991, Statist. Sci. 6:15).
    """
    luck = ratio * np.array([luck_of_lengths(point) for point in points]).reshape(-1, 3)
    shown = np.square([CLOSED_SIGMA, CLOSED_TTFT_SIGMA, CLOSED_SIGMA])
    return np.asarray(shown / (shown + luck**2))


def left_over(points: Sequence[Point], means: Floats) -> Floats:
    """ln of what was measured at each point over the engine's `means`: requests/s, TTFT and ITL, shape (points, 3),
    times the `share_beyond_luck`; NaN where nothing was measured."""
    figures = [(point.requests_per_s, point.ttft_mean_s, point.itl_mean_s) for point in points]
    measured = np.array([[value or math.nan for value in row] for row in figures])
    with np.errstate(invalid="ignore"):
        return np.asarray(share_beyond_luck(points, luck_ratio(points)) * (np.log(measured) - np.log(means[:, :3])))


def carried_over(levels: Sequence[Point], left: Floats, point: Point, batching: Batching) -> Floats:
    """What the levels show beyond the engine, `left` (see `left_over`, shape (levels, 3)), for a closed-loop `point`:
    requests/s, TTFT and ITL, shape (3,), zeros where no level tells.

    Between levels of its own lengths it lies on straight lines over the logarithm of the users; outside them the
    nearest level counts, by half at half or twice its users. Without such levels it is the mean over other lengths,
    weighted by their nearness, mostly that of the prompts, and smaller the farther all of them are (kernel regression,
    Nadaraya 1964 and Watson 1964, shrunk towards zero).
    """
    series: dict[tuple[float, float], list[int]] = {}
    for row, level in enumerate(levels):
        if _is_of(point, level):
            series.setdefault((point.isl, point.osl), []).append(row)
        elif _is_like(point, level):
            series.setdefault((level.isl, level.osl), []).append(row)
    own = series.get((point.isl, point.osl))
    if own:
        share, values = _on_line(levels, left, own, point, batching)
        return np.asarray(share * np.nan_to_num(values))
    total, weights = np.zeros(3), np.full(3, FAR_FROM_ALL)
    for rows in series.values():
        share, values = _on_line(levels, left, rows, point, batching)
        weight = share * _nearness(point, levels[rows[0]])
        total += weight * np.nan_to_num(values)
        weights += weight * np.isfinite(values)
    return np.asarray(total / weights)


def ttft_outside(
    levels: Sequence[Point], protocol: Protocol, left: Floats, point: Point, engine_s: float, batching: Batching
) -> float | None:
    """ln of a closed-loop point's mean TTFT over the engine's, `engine_s`, outside the users measured at its lengths,
    and wherever one level was measured: what the nearest level shows beyond the engine, as a wait (see WAIT_GROWTH), or
    as a ratio where its TTFT is shorter than the engine's. None elsewhere, and where no level tells.
    """
    if not (one_level := of_one_level(levels)):
        users = [concurrency(level) for level in levels_at(levels, point)]
        if not users or min(users) <= concurrency(point) <= max(users):
            return None
    queue = users_wait(point, batching)
    known = [
        (level, shown)
        for level, shown in zip(levels, left[:, 1], strict=True)
        if math.isfinite(shown) and users_wait(level, batching) == queue and (one_level or _is_of(point, level))
    ]
    if not known:
        return None
    nearest = min(_distance(level, point) for level, _ in known)
    near = [(level, shown) for level, shown in known if _distance(level, point) == nearest]
    growth = 0.0 if holds_no_start(levels, protocol) else WAIT_GROWTH
    return float(np.mean([_waited(level, shown, point, engine_s, growth) for level, shown in near]))


def _waited(level: Point, shown: float, point: Point, engine_s: float, growth: float) -> float:
    assert level.ttft_mean_s is not None
    kept = math.exp(-_distance(level, point) / WAIT_REACH)
    if shown <= 0:
        return kept * shown
    there, here = (concurrency(one) * one.computed_tokens for one in (level, point))
    wait_s = -math.expm1(-shown) * level.ttft_mean_s * (here / there) ** growth
    return kept * math.log1p(wait_s / engine_s)


def _distance(level: Point, point: Point) -> float:
    """Units of ln(users), of ln(prompt tokens computed) and of ln(OSL) between two closed loops, added."""
    ratios = (
        concurrency(level) / concurrency(point),
        level.computed_tokens / point.computed_tokens,
        level.osl / point.osl,
    )
    return sum(abs(math.log(ratio)) for ratio in ratios)


def _is_like(point: Point, level: Point) -> bool:
    """True for closed loops whose lengths vary alike, and whose prompts are found cached to the same share."""
    found = level.computed_tokens / level.isl / (point.computed_tokens / point.isl)
    return level.closed and abs(math.log(found)) < ALIKE and _spread(point, level) < ALIKE_CV


def _nearness(point: Point, level: Point) -> float:
    isl, osl = abs(math.log(level.isl / point.isl)), abs(math.log(level.osl / point.osl))
    return math.exp(-isl / ISL_REACH - osl / OSL_REACH)


def _on_line(
    levels: Sequence[Point], left: Floats, rows: Sequence[int], point: Point, batching: Batching
) -> tuple[float, Floats]:
    """The share that counts, and what the levels `rows`, of one pair of lengths, show beyond the engine at the point's
    users, shape (3,); NaN where none tells. Levels where users wait for slots or memory and levels where none does say
    nothing about each other: the engine knows where a queue begins, a line does not."""
    asked, queue = math.log(concurrency(point)), users_wait(point, batching)
    everyone = [math.log(concurrency(levels[row])) for row in rows]
    values = np.full(3, math.nan)
    for place in range(3):
        alike = [row for row in rows if math.isfinite(left[row, place]) and users_wait(levels[row], batching) == queue]
        if alike:
            users = [concurrency(levels[row]) for row in alike]
            values[place] = _line(users, left[alike, place], concurrency(point))
    return math.exp(-max(0.0, min(everyone) - asked, asked - max(everyone))), values


def users_wait(point: Point, batching: Batching) -> bool:
    """True where the users of a closed loop exceed the slots, or their tokens the KV cache."""
    users = concurrency(point)
    return users > batching.max_batch_size or users * (point.isl + point.osl) > batching.kv_tokens


def as_little_counts(levels: Sequence[Point], point: Point, ttft_s: float, itl_s: float) -> float:
    """Requests/s of a closed-loop `point` without any carried over, by a tool that does not count in a steady window:
    Little's law times the median of what its counting made of it at the `levels`."""
    little_per_s = concurrency(point) / (ttft_s + (point.osl - 1) * (itl_s if round(point.osl) > 1 else 0.0))
    return little_per_s * math.exp(float(np.median([counting_log(level) for level in levels])))
