"""Closed loops of real engines, percentiles included: the law fitted to four levels of a mix, other levels predicted.

The tables are those of `validation.evidence.measured_arrivals`. *Other loads*: the levels between four of each mix are
predicted; *more users*: the two highest levels, from those below. Each measurement of a level left out counts. What is
asked is `predict --concurrency`. Beside it stand straight lines in logarithms through the same figure of the fitted
levels, drawn out for more users, on the levels where two of these have the figure: a percentile needs requests enough.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.random import SeedSequence

from sizing.analyses.closed_loop import closed_loop
from sizing.fitting import fit
from sizing.fitting.levels import concurrency
from sizing.points import Point
from validation.evidence.claim import Claim, Setup
from validation.evidence.measured_arrivals import TABLES, measured, of_table
from validation.evidence.measured_design import on_line
from validation.evidence.measured_silicon import four
from validation.evidence.table import EvidenceRow, Goal, beside, noted, row_of_band, row_of_errors, shown

NAME = "closed loops of"
FIGURES = {
    "requests_per_s": "requests/s",
    "ttft_mean_s": "TTFT mean",
    "ttft_p90_s": "TTFT p90",
    "ttft_p95_s": "TTFT p95",
    "itl_mean_s": "ITL mean",
    "itl_p90_s": "ITL p90",
    "e2e_p90_s": "E2E p90",
    "e2e_p95_s": "E2E p95",
    "gap_p95_s": "gap p95",
}
"""Column of the points table: the words for it."""
NEVER_WORSE = ("requests_per_s", "ttft_mean_s", "itl_mean_s", "e2e_p95_s")
"""Figures between levels of which straight lines are the goal."""
BANDED = ("requests_per_s", "ttft_mean_s", "ttft_p95_s", "itl_mean_s", "e2e_p95_s", "gap_p95_s")

Asked = Literal["other loads", "more users"]


@dataclass(frozen=True, slots=True)
class Case:
    """One mix of lengths of a server of the table `data`: the levels fitted, and the measurements predicted."""

    data: str
    asked_for: Asked
    fitted: tuple[Point, ...]
    asked: tuple[Point, ...]

    @property
    def engine(self) -> str:
        """The table's first word."""
        return self.data.partition(" ")[0]


class Found(NamedTuple):
    """Of a figure of one measurement, in logarithms: predicted over measured, half the width of the band, and the lines
    over measured (NaN: none)."""

    off: float
    half_width: float
    line: float


Answer = list[dict[str, Found]]


def cases(setup: Setup) -> list[Case]:
    """Every mix, asked both ways; quick: the first."""
    found = []
    for data in TABLES:
        for server in of_table(data, measured(data)):
            for isl in dict.fromkeys(point.isl for point in server.closed):
                own = [point for point in server.closed if point.isl == isl]
                first = {concurrency(point): point for point in reversed(own)}
                levels = [first[users] for users in sorted(first)]
                found += [
                    _case(data, "other loads", four(levels), own),
                    _case(data, "more users", four(levels[:-2]), own),
                ]
    found = [case for case in found if len(case.fitted) > 2 and case.asked]
    return found[:1] if setup.quick else found


def _case(data: str, asked_for: Asked, fitted: tuple[Point, ...], own: Sequence[Point]) -> Case:
    users = {concurrency(point) for point in fitted}
    between = asked_for == "other loads"
    asked = (
        point for point in own if (concurrency(point) not in users if between else concurrency(point) > max(users))
    )
    return Case(data, asked_for, fitted, tuple(asked))


def answer(case: Case, seed: SeedSequence) -> Answer:
    """Fit, and predict every measurement."""
    fitted = fit(case.fitted)
    found = []
    for point in case.asked:
        users = concurrency(point)
        loop = closed_loop(fitted, point.lengths, point.prefix, users, requests=point.requests)
        told = {"requests_per_s": loop.requests_per_s, **loop.latencies}
        found.append(
            {
                name: Found(
                    math.log(told[name].value / value),
                    math.log(told[name].high / told[name].value),
                    _line(case.fitted, name, users, value),
                )
                for name in FIGURES
                if (value := getattr(point, name))
            }
        )
    return found


def _line(levels: Sequence[Point], name: str, users: int, measured: float) -> float:
    known = [level for level in levels if getattr(level, name)]
    if len(known) < 2:
        return math.nan
    loads, figures = (
        np.array([of(level) for level in known], float) for of in (concurrency, lambda p: getattr(p, name))
    )
    return math.log(float(on_line(loads, figures, users)) / measured)


def rows(cases: Sequence[Case], answers: Sequence[Answer]) -> list[EvidenceRow]:
    """Errors of each figure, then how often the bands hold, for both questions to each engine."""
    groups: dict[tuple[str, Asked], list[tuple[str, dict[str, Found]]]] = {}
    for case, told in zip(cases, answers, strict=True):
        groups.setdefault((case.engine, case.asked_for), []).extend((case.data, figures) for figures in told)
    found: list[EvidenceRow] = []
    for (engine, asked_for), own in groups.items():
        found += [row for name in FIGURES if (row := _errors(engine, asked_for, name, own))]
        found += [row for name in BANDED if (row := _band(engine, asked_for, name, own))]
    return found


def _errors(
    engine: str, asked_for: Asked, name: str, own: Sequence[tuple[str, dict[str, Found]]]
) -> EvidenceRow | None:
    figures = [(data, told[name]) for data, told in own if name in told]
    if not figures:
        return None
    between = asked_for == "other loads"
    goal = Goal(0.05) if name == "requests_per_s" and not between else None
    errors = [_signed(name, one.off) for _, one in figures]
    row = row_of_errors(f"{NAME} {engine}, {asked_for}", f"{engine}, measured here", FIGURES[name], errors, goal)
    both = [one for _, one in figures if not math.isnan(one.line)]
    rival = "interpolation" if between else "extrapolation"
    if len(both) == len(figures):
        row = beside(row, rival, [_signed(name, one.line) for one in both], between and name in NEVER_WORSE)
    elif both:
        line, same = _median(name, [one.line for one in both]), _median(name, [one.off for one in both])
        row = noted(row, f"{rival} {line} in the median of {len(both)}, this {same} there")
    tables = dict.fromkeys(data for data, _ in figures)
    each = ((of, [one.off for data, one in figures if data == of]) for of in tables)
    medians = (f"{of.removesuffix(', measured here')} {_median(name, logs)}" for of, logs in each)
    return noted(row, f"median of {', '.join(medians)}") if len(tables) > 1 else row


def _median(name: str, logs: Sequence[float]) -> str:
    return shown(statistics.median(abs(_signed(name, log)) for log in logs))


def _band(engine: str, asked_for: Asked, name: str, own: Sequence[tuple[str, dict[str, Found]]]) -> EvidenceRow | None:
    figures = [told[name] for _, told in own if name in told]
    if not figures:
        return None
    off, half_width = (np.array([getattr(one, of) for one in figures]) for of in ("off", "half_width"))
    errors, held, widths = np.expm1(off), np.abs(off) <= half_width, np.sinh(half_width)
    what = f"band, {NAME} {engine}, {asked_for}"
    return row_of_band(what, f"{engine}, measured here", FIGURES[name], errors, held, widths)


def _signed(name: str, log: float) -> float:
    """A relative error, above 0 where more is promised: more requests/s, or shorter times."""
    return math.expm1(log) if name == "requests_per_s" else -math.expm1(log)


LEVELS = Claim("measured-levels", cases, answer, rows)
