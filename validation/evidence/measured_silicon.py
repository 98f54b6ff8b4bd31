"""Measured servers of the kernel database's own sample: the law fitted to a few loads of each, the others predicted.

Four questions, of dense models and of mixtures of experts apart. *Other loads*: four levels of a series are fitted
(the lowest, the highest, two between) and the rest predicted. *Other lengths*: four levels of each of a server's other
pairs of lengths are fitted, and all levels of the pair left out predicted. *One mix, other prompts*: four levels of a
single pair are fitted, and all levels of another predicted whose prompts are four times as long, or a quarter. *More
users*: the two highest levels are left out. Only the half of the series (of the servers, for other lengths and prompts)
that nothing was tuned on is asked.

Beside each stands what a planner would do without a law: straight lines in logarithms through the same fitted points,
those of the nearest pair for other lengths, drawn out for more users.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.random import SeedSequence

from sizing.fitting import fit
from sizing.numbers import Floats
from sizing.points import Point
from sizing.stats import Z90
from validation.evidence.claim import Claim, Setup
from validation.evidence.measured_design import on_line
from validation.evidence.measured_silicon_rows import Series, is_kept_apart, read_sample, sample_path
from validation.evidence.table import EvidenceRow, Goal, beside, missing, noted, row_of_band, row_of_errors

DATA = "sample in aiconfigurator-core"
METRICS = ("requests/s", "TTFT mean", "ITL mean")


@dataclass(frozen=True, slots=True)
class Question:
    """`rival`: what the lines beside are. `goals`, of METRICS; `never_worse`: whether the lines are a goal as well."""

    name: str
    rival: str
    goals: tuple[Goal | None, Goal | None, Goal | None]
    never_worse: bool = False


WITHIN = Question("other loads", "interpolation", (None, None, Goal(0.035)), never_worse=True)
LENGTHS = Question("other lengths", "nearest lengths", (None, Goal(0.15), Goal(0.05)))
PROMPTS = Question("one mix, other prompts", "the mix", (None, None, None))
BEYOND = Question("more users", "extrapolation", (Goal(0.05), None, None))


@dataclass(frozen=True, slots=True)
class Case:
    """One series: the points fitted, those asked for, and those that the lines go through, by rising users."""

    question: Question
    dense: bool
    fitted: tuple[Point, ...]
    asked: tuple[Point, ...]
    line: tuple[Point, ...]


class Found(NamedTuple):
    """Rows for the points asked, columns METRICS: ln of predicted over measured, of the fit and of the lines, and the
    half-width of the 90 % band, in logarithms too."""

    fit: Floats
    line: Floats
    half_width: Floats


def cases(setup: Setup) -> list[Case]:
    """All questions to the series that were kept apart; quick: one case in sixteen. None without the sample."""
    path = sample_path()
    if path is None:
        return []
    sample = read_sample(path).series
    apart = [series for series in sample if is_kept_apart(series.key)]
    found = [_within(series) for series in apart] + [_beyond(series) for series in apart]
    for series in sample:
        others = [one for one in sample if one.server == series.server and one.lengths != series.lengths]
        if others and is_kept_apart(series.server):
            found.append(_lengths(series, others))
            found += _prompts(series, others)
    return found[:: 16 if setup.quick else 1]


def four(points: Sequence[Point]) -> tuple[Point, ...]:
    """The lowest, the highest and two between, evenly by place; all where there are no more."""
    last = len(points) - 1
    return tuple(points[place] for place in sorted({0, round(last / 3), round(2 * last / 3), last}))


def _within(series: Series) -> Case:
    fitted = four(series.points)
    return Case(WITHIN, series.dense, fitted, tuple(point for point in series.points if point not in fitted), fitted)


def _beyond(series: Series) -> Case:
    fitted = four(series.points[:-2])
    return Case(BEYOND, series.dense, fitted, series.points[-2:], fitted)


def _lengths(series: Series, others: Sequence[Series]) -> Case:
    asked = series.points[0]

    def distance(one: Series) -> float:
        return abs(math.log(one.points[0].isl / asked.isl)) + abs(math.log(one.points[0].osl / asked.osl))

    fitted = tuple(point for one in others for point in four(one.points))
    return Case(LENGTHS, series.dense, fitted, series.points, four(min(others, key=distance).points))


FAR_PROMPTS = 3.5
"""Ratio of ISLs, either way, from which prompts count as four times as long."""


def _prompts(series: Series, others: Sequence[Series]) -> list[Case]:
    """The series by the one of those far in ISL whose OSL is nearest; nothing where none is."""
    asked = series.points[0]

    def apart(name: str, one: Series) -> float:
        return abs(math.log(getattr(one.points[0], name) / getattr(asked, name)))

    far = [one for one in others if apart("isl", one) >= math.log(FAR_PROMPTS)]
    fitted = [four(min(far, key=lambda one: apart("osl", one)).points)] if far else []
    return [Case(PROMPTS, series.dense, own, series.points, own) for own in fitted]


def answer(case: Case, seed: SeedSequence) -> Found:
    """Fit and predict; a closed loop's requests/s, which say how users were spread at first, are roughly the line's."""
    users = np.array([point.load_value for point in case.line])
    line = np.stack([on_line(users, _figures(case.line), point.load_value) for point in case.asked])
    asked = [
        replace(point, requests_per_s=float(row[0]), ttft_mean_s=None, itl_mean_s=None)
        for point, row in zip(case.asked, line, strict=True)
    ]
    found = fit(case.fitted)
    measured = _figures(case.asked)
    predicted = found.means(asked)[:, : len(METRICS)]
    return Found(np.log(predicted / measured), np.log(line / measured), Z90 * found.mean_sigmas(asked))


def _figures(points: Sequence[Point]) -> Floats:
    """METRICS, shape (points, 3)."""
    return np.array([(p.requests_per_s, p.ttft_mean_s or math.nan, p.itl_mean_s or math.nan) for p in points])


def rows(cases: Sequence[Case], answers: Sequence[Found]) -> list[EvidenceRow]:
    """Errors by question and kind of model, then how often the bands hold."""
    path = sample_path()
    if path is None or not answers:
        return [missing("dense servers, other loads", DATA, "requests/s", "aiconfigurator-core is not installed")]
    errors, bands = [], []
    for question in (WITHIN, LENGTHS, PROMPTS, BEYOND):
        for dense in (True, False):
            mine = [
                found
                for case, found in zip(cases, answers, strict=True)
                if case.question.name == question.name and case.dense == dense
            ]
            if mine:
                name = f"{'dense servers' if dense else 'mixtures of experts'}, {question.name}"
                together = Found(*(np.concatenate(part) for part in zip(*mine, strict=True)))
                errors += [_errors(name, question, place, together) for place in range(len(METRICS))]
                bands += [_band(name, place, together) for place in range(len(METRICS))]
    errors[0] = noted(errors[0], f"the half not tuned on; the sample: {read_sample(path)}")
    return errors + bands


def _errors(name: str, question: Question, place: int, found: Found) -> EvidenceRow:
    row = row_of_errors(name, DATA, METRICS[place], _signed(found.fit, place), question.goals[place])
    return beside(row, question.rival, _signed(found.line, place), question.never_worse)


def _signed(logs: Floats, place: int) -> list[float]:
    """Relative errors, above 0 where more is promised: more requests/s, or shorter times."""
    off = np.expm1(logs[:, place])
    errors: list[float] = (off if METRICS[place] == "requests/s" else -off).tolist()
    return errors


def _band(name: str, place: int, found: Found) -> EvidenceRow:
    off, half_width = found.fit[:, place], found.half_width[:, place]
    return row_of_band(
        f"band, {name}", DATA, METRICS[place], np.expm1(off), np.abs(off) <= half_width, np.sinh(half_width)
    )


SILICON = Claim("measured-silicon", cases, answer, rows)
