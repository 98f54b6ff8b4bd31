"""Open loops of four models on vLLM 0.15: the law fitted to all stages of a server but one, the stage left out
simulated.

Each stage offers requests at a constant rate for ten to twenty minutes. The client sent the same hundred prompts round
and round, so from the hundred and first on vLLM found all but the last partial block of each in its prefix cache; the
first stage of a run began cold, and also holds compilation in its highest percentiles. Overloaded stages are not asked.
Batch limit and token budget are the published ones, what else the engine does follows from its name and version.

Beside stand a straight line in logarithms through the same figure of the other stages, over their rates, and the rule
of means: that line through the mean, taken for the percentile.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.random import SeedSequence

from sizing.fitting import fit
from sizing.points import Point, read_points
from sizing.simulator import simulate
from sizing.workload import Arrivals, Metric, Workload
from validation.evidence.claim import Claim, Setup
from validation.evidence.measured_design import on_line
from validation.evidence.measured_tables import find_table
from validation.evidence.table import EvidenceRow, Goal, beside, missing, noted, of_saturated, row_of_errors

NAME, DATA = "open loops, a stage left out", "vLLM 0.15.1 on H100, four models"
COLUMNS = ("load_kind", "load_value", "ttft_p95_s", "e2e_p99_s", "verdict")
PROMPTS = 100
"""Distinct prompts."""
BLOCK_TOKENS = 16
TOKEN_BUDGET = 2048
SIMULATED = 20_000


class Figure(NamedTuple):
    """A metric and its percentile (None: the mean), with what its errors may be."""

    metric: Metric
    percentile: int | None
    goal: Goal | None

    @property
    def statistic(self) -> str:
        """As in the columns of the points table."""
        return "mean" if self.percentile is None else f"p{self.percentile}"

    def known(self, point: Point) -> bool:
        """Whether it was measured."""
        return bool(getattr(point, f"{self.metric}_{self.statistic}_s"))

    def of(self, point: Point, statistic: str = "") -> float:
        """What was measured, in seconds."""
        return float(getattr(point, f"{self.metric}_{statistic or self.statistic}_s"))


FIGURES = (
    Figure("ttft", 50, None),
    Figure("ttft", 95, Goal(0.10, 0.30)),
    Figure("itl", None, Goal(0.035)),
    Figure("e2e", 95, Goal(0.08)),
    Figure("e2e", 99, Goal(0.08)),
)


@dataclass(frozen=True, slots=True)
class Case:
    """A stage, and the others of the same server."""

    stage: Point
    others: tuple[Point, ...]


class Errors(NamedTuple):
    """Relative errors of FIGURES, above 0 where the prediction is too short."""

    simulated: list[float]
    line: list[float]
    means: list[float]


def cases(setup: Setup) -> list[Case]:
    """Every stage that kept up; quick: one in five. None without the table."""
    path = find_table(setup.data, COLUMNS)
    if path is None:
        return []
    points = stages(path)
    found = [
        Case(stage, tuple(other for other in points if other is not stage and other.deployment == stage.deployment))
        for stage in points
    ]
    return found[:: 5 if setup.quick else 1]


def stages(path: Path) -> list[Point]:
    """The stages that kept up, with the prefix that each found in the cache."""
    return [_with_prefix(point) for point in read_points(path) if not point.void]


def _with_prefix(point: Point) -> Point:
    return replace(
        point,
        batching="chunked",
        prefix_tokens=BLOCK_TOKENS * (math.ceil(point.isl) // BLOCK_TOKENS),
        prefix_hit=1 - PROMPTS / (point.requests or math.inf) if _is_cold(point) else 1.0,
    )


def _is_cold(point: Point) -> bool:
    """Whether the stage is the first of its run, which began with an empty cache and kernels to compile."""
    return "stage 0" in point.source


def answer(case: Case, seed: SeedSequence) -> Errors:
    """Fit the others, simulate the stage."""
    fitted = fit(case.others, open_loop=True, token_budget=TOKEN_BUDGET)
    stage = case.stage
    engine = fitted.at(stage.isl, stage.osl).engine
    workload = Workload(stage.lengths, stage.load_value, Arrivals("constant", 0.0), stage.prefix)
    prediction = simulate(engine, workload, requests=SIMULATED).prediction()
    simulated, line, means = [], [], []
    for figure in FIGURES:
        of = prediction.of(figure.metric)
        measured_s = figure.of(stage)
        simulated.append(1 - (of.mean_s if figure.percentile is None else of.at(figure.percentile)) / measured_s)
        line.append(1 - _on_line(case, figure, figure.statistic) / measured_s)
        means.append(1 - _on_line(case, figure, "mean") / measured_s)
    return Errors(simulated, line, means)


def _on_line(case: Case, figure: Figure, statistic: str) -> float:
    """A figure at the stage's rate on straight lines through the other stages, in logarithms, the last drawn out."""
    known = sorted((other.load_value, figure.of(other, statistic)) for other in case.others)
    rates, times_s = np.array(known).T
    return float(on_line(rates, times_s, case.stage.load_value))


def rows(cases: Sequence[Case], answers: Sequence[Errors]) -> list[EvidenceRow]:
    """Each figure over all stages."""
    if not answers:
        return [missing(NAME, DATA, "TTFT, ITL, E2E", "the table is not at hand")]
    found = []
    for place, figure in enumerate(FIGURES):
        simulated, line, means = ([of[place] for of in part] for part in zip(*answers, strict=True))
        row = row_of_errors(NAME, DATA, f"{figure.metric.upper()} {figure.statistic}", simulated, figure.goal)
        row = beside(noted(row, of_saturated(simulated)), "line in load", line)
        row = row if figure.percentile is None else beside(row, "rule of means", means)
        warm = [error for case, error in zip(cases, simulated, strict=True) if not _is_cold(case.stage)]
        found.append(beside(row, f"the {len(warm)} warm stages", warm) if figure.percentile == 99 and warm else row)
    return found


STAGES = Claim("measured-stages", cases, answer, rows)
