"""One measured level of a server of the sample scales its day-zero law: the other loads and lengths predicted.

Each series that was kept apart is fitted to one of its levels: the one in the middle, and beside it the lowest and the
highest. *Other loads*: the rest of the series. *Other lengths*: the series kept apart of the same server whose lengths
are nearest. Beside each stand the day-zero estimate alone, and the fit of four levels of the series (at levels that it
has not seen).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from sizing.analyses.closed_loop import point_at
from sizing.engine import UNLIMITED_KV_TOKENS, Batching, Replica
from sizing.estimate import prior_law
from sizing.fitting import Fit, fit
from sizing.fitting.levels import concurrency, point_runs
from sizing.numbers import Floats, percent
from sizing.points import Point
from sizing.simulator.replay import Replay
from sizing.stats import Z90
from validation.evidence.claim import Claim, Setup
from validation.evidence.measured_silicon import DATA, METRICS, four
from validation.evidence.measured_silicon_rows import Series, is_kept_apart, read_sample, sample_path
from validation.evidence.table import EvidenceRow, Goal, beside, missing, noted, row_of_band, row_of_errors, shown

ITL_GOALS: Mapping[bool, Goal] = {True: Goal(0.11), False: Goal(0.06)}
"""Median error of ITL at other loads, of dense models and of mixtures: found by others with one point each."""
LEVELS = ("middle", "lowest", "highest")


@dataclass(frozen=True, slots=True)
class Case:
    """A series to fit to one level, and the server's series of the nearest other lengths, if there is any."""

    series: Series
    other: Series | None


class Found(NamedTuple):
    """Rows for the points asked, columns METRICS: ln of predicted over measured, of the day-zero estimate and of fits
    to four levels (NaN at those) and to one, and the half-width of the last one's 90 % band, in logarithms too."""

    estimate: Floats
    four: Floats
    fit: Floats
    half_width: Floats


Answer = Mapping[tuple[str, str], Found]
"""By the level fitted, of LEVELS, and what was asked: other loads or other lengths."""


def cases(setup: Setup) -> list[Case]:
    """The series that were kept apart and have a day-zero law; quick: one in sixteen. None without the sample."""
    path = sample_path()
    if path is None:
        return []
    apart = [series for series in read_sample(path).series if is_kept_apart(series.key)]
    known = [series for series in apart if prior_law(series.points[0].deployment, series.points[0].lengths)]
    return [Case(series, _nearest(series, apart)) for series in known[:: 16 if setup.quick else 1]]


def _nearest(series: Series, apart: Sequence[Series]) -> Series | None:
    def distance(other: Series) -> float:
        one, two = series.points[0], other.points[0]
        return abs(math.log(one.isl / two.isl)) + abs(math.log(one.osl / two.osl))

    others = [one for one in apart if one.server == series.server and one.lengths != series.lengths]
    return min(others, key=distance, default=None)


def answer(case: Case, seed: SeedSequence) -> Answer:
    """Fit and predict."""
    points = case.series.points
    places = dict(zip(LEVELS, (len(points) // 2, 0, len(points) - 1), strict=True))
    others = case.other.points if case.other else ()
    used = four(points)
    alone, usual = estimated((*points, *others)), banded(fit(used), (*points, *others))[0]
    usual[[place for place, point in enumerate(points) if point in used]] = np.nan
    found = {}
    for level, place in places.items():
        predicted, half_width = banded(fit([points[place]]), (*points, *others))
        off = [np.log(figures / measured_figures((*points, *others))) for figures in (alone, usual, predicted)]
        rest = [row for row in range(len(points)) if row != place]
        for asked, rows in (("other loads", rest), ("other lengths", list(range(len(points), len(alone))))):
            found[level, asked] = Found(*(part[rows] for part in (*off, half_width)))
    return found


def banded(fitted: Fit, points: Sequence[Point]) -> tuple[Floats, Floats]:
    """METRICS of closed loops as the product gives them, shape (points, 3), and their bands' half-widths. Of
    `closed_loop` these are the means alone: its percentiles take ten times as long."""
    asked = [point_at(fitted, point.lengths, point.prefix, concurrency(point)) for point in points]
    sigmas = np.concatenate([fitted.mean_sigmas([point]) for point in asked])  # each asked by itself, as there
    return fitted.means(asked)[:, : len(METRICS)], Z90 * sigmas


def estimated(points: Sequence[Point]) -> Floats:
    """METRICS of closed loops by the day-zero law, shape (points, 3); no limit on the batch, which nobody told."""
    found = []
    for point in points:
        told = prior_law(point.deployment, point.lengths)
        assert told is not None and told.law is not None
        users = concurrency(point)
        batching = Batching(max_batch_size=max(256, users), kv_tokens=told.kv_tokens or UNLIMITED_KV_TOKENS)
        step_s = float(told.law.decode_s(users, users * (point.isl + point.osl / 2)))
        rough = replace(point, requests_per_s=users / (point.osl * step_s + told.law.prefill_alone_s(point.isl)))
        replica = Replica(told.law, batching)
        found.append(Replay(point_runs([rough]), replica).means(replica)[0, : len(METRICS)])
    return np.array(found)


def measured_figures(points: Sequence[Point]) -> Floats:
    """METRICS, shape (points, 3)."""
    return np.array([(p.requests_per_s, p.ttft_mean_s or math.nan, p.itl_mean_s or math.nan) for p in points])


def rows(cases: Sequence[Case], answers: Sequence[Answer]) -> list[EvidenceRow]:
    """Errors by what was asked and kind of model, then how often the bands hold."""
    if not answers:
        return [missing("dense servers, one level", DATA, "ITL mean", "aiconfigurator-core is not installed")]
    errors, bands = [], []
    for asked in ("other loads", "other lengths"):
        for dense in (True, False):
            mine = [one for case, one in zip(cases, answers, strict=True) if case.series.dense == dense]
            by_level = {level: joined([one[level, asked] for one in mine]) for level in LEVELS if mine}
            if not by_level or not len(by_level["middle"].fit):
                continue
            name = f"{'dense servers' if dense else 'mixtures of experts'}, one level, {asked}"
            for place in range(len(METRICS)):
                goal = ITL_GOALS[dense] if METRICS[place].startswith("ITL") and asked == "other loads" else None
                errors.append(_errors(name, place, by_level, goal))
                bands.append(_band(name, place, by_level))
    return errors + bands


def joined(found: Sequence[Found]) -> Found:
    """All rows together."""
    return Found(*(np.concatenate(part) for part in zip(*found, strict=True)))


def _errors(name: str, place: int, by_level: Mapping[str, Found], goal: Goal | None) -> EvidenceRow:
    middle = by_level["middle"]
    row = row_of_errors(name, DATA, METRICS[place], _signed(middle.fit, place), goal)
    unseen = int(np.isfinite(middle.four[:, place]).sum())
    fours = "four levels" if unseen == len(middle.four) else f"four levels (the {unseen} that they leave)"
    rivals = {"day-zero estimate": middle.estimate, fours: middle.four}
    rivals |= {f"{level} level": by_level[level].fit for level in LEVELS[1:]}
    for rival, off in rivals.items():
        if errors := _signed(off, place):
            row = beside(row, rival, errors)
    return row


def _signed(logs: Floats, place: int) -> list[float]:
    """Relative errors, above 0 where more is promised; those that are not known left out."""
    off = np.expm1(logs[:, place][np.isfinite(logs[:, place])])
    errors: list[float] = (off if METRICS[place] == "requests/s" else -off).tolist()
    return errors


def _band(name: str, place: int, by_level: Mapping[str, Found]) -> EvidenceRow:
    def held(found: Found) -> NDArray[np.bool_]:
        return np.asarray(np.abs(found.fit[:, place]) <= found.half_width[:, place])

    middle = by_level["middle"]
    off, half_width = middle.fit[:, place], middle.half_width[:, place]
    row = row_of_band(f"band, {name}", DATA, METRICS[place], np.expm1(off), held(middle), np.sinh(half_width))
    row = noted(row, f"median width ± {shown(float(np.median(np.sinh(half_width))))}")
    others = ", ".join(f"{level} {percent(float(np.mean(held(by_level[level]))))}" for level in LEVELS[1:])
    return noted(row, f"fitted to another level: {others}")


ONE_POINT = Claim("one-point", cases, answer, rows)
