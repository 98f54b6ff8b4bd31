"""A real vLLM on a CPU, measured by this program: the law fitted to its closed loops, its random arrivals predicted.

`python -m validation.measure_vllm` measured the table beside this file: closed loops of six levels at each mix of
lengths, each measured twice, and between them Poisson arrivals at 50, 70 and 85 % of the highest requests/s of a closed
loop, in three rounds. All closed loops of a server are fitted together, by what the server tells of itself alone. The
truth of an arrival rate is the mean of its rounds; how far the rounds, and the two measurements of a closed loop, lie
apart is said beside every error. API server and client share one core, the engine has the other.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.random import SeedSequence

from sizing.edge import Z90
from sizing.fitting import Fit, fit
from sizing.points import Point, read_points
from sizing.prediction import Prediction
from sizing.queueing import predict
from sizing.simulator import simulate
from sizing.workload import Arrivals, Prefix, Workload
from validation.evidence.claim import Claim, Setup
from validation.evidence.measured_stages import Figure
from validation.evidence.table import EvidenceRow, Goal, beside, missing, noted, row_of_band, row_of_errors, shown

NAME, DATA = "random arrivals from closed loops", "vLLM on a CPU, measured here"
TABLE = Path(__file__).with_name("vllm-cpu.csv")
SIMULATED = 20_000
COVERS = (0.85, 0.95)
FIGURES = (
    Figure("ttft", 50, Goal(0.08)),
    Figure("ttft", 95, Goal(0.12)),
    Figure("itl", None, Goal(0.05)),
    Figure("e2e", 95, Goal(0.08)),
)


@dataclass(frozen=True, slots=True)
class Case:
    """One server: its closed loops, and its random arrivals, the rounds of one rate together."""

    server: str
    closed: tuple[Point, ...]
    rates: tuple[tuple[Point, ...], ...]


class Cell(NamedTuple):
    """One rate; arrays of the length of FIGURES: ln of predicted over measured by simulation and by formula, standard
    errors of ln that the fit leaves, and of ln measured."""

    simulated: list[float]
    formula: list[float]
    sigmas: list[float]
    luck: list[float]


def cases(setup: Setup) -> list[Case]:
    """Every server of the table; quick: the first."""
    return of_table(read_points(TABLE))[: 1 if setup.quick else None]


def of_table(points: Sequence[Point]) -> list[Case]:
    """The servers among `points`, void points apart; a rate counts with two good rounds or more."""
    found = []
    for server, group in groupby((point for point in points if not point.void), lambda point: point.model):
        own = list(group)
        rounds: dict[tuple[float, float], list[Point]] = {}
        for point in own:
            if point.load_kind == "poisson_rate":
                rounds.setdefault((point.isl, point.load_value), []).append(point)
        closed = tuple(point for point in own if point.load_kind == "concurrency")
        found.append(Case(server, closed, tuple(tuple(of) for of in rounds.values() if len(of) > 1)))
    return found


def answer(case: Case, seed: SeedSequence) -> list[Cell]:
    """Fit the closed loops together, predict each rate."""
    fitted = fit(case.closed)
    return [_cell(fitted, rounds) for rounds in case.rates]


def _cell(fitted: Fit, rounds: Sequence[Point]) -> Cell:
    point = rounds[0]
    local = fitted.at(point.isl, point.osl)
    found = statistics.mean(each.prefix.hit_rate for each in rounds)
    prefix = Prefix(point.prefix.tokens, found)
    workload = Workload(point.lengths, point.load_value, Arrivals("poisson"), prefix)
    logs = [np.log([figure.of(each) for figure in FIGURES]) for each in rounds]
    measured, luck = np.mean(logs, axis=0), np.std(logs, axis=0, ddof=1) / math.sqrt(len(logs))

    def told(prediction: Prediction) -> np.ndarray:
        return np.log([_value_s(prediction, figure) for figure in FIGURES])

    pairs = [(told(predict(one, workload)), told(predict(other, workload))) for one, other in local.variants]
    sigmas = np.sqrt(sum(((one - other) / 2) ** 2 for one, other in pairs))
    return Cell(
        (told(simulate(local.engine, workload, requests=SIMULATED).prediction()) - measured).tolist(),
        (told(predict(local.engine, workload)) - measured).tolist(),
        sigmas.tolist(),
        luck.tolist(),
    )


def _value_s(prediction: Prediction, figure: Figure) -> float:
    of = prediction.of(figure.metric)
    return of.mean_s if figure.percentile is None else of.at(figure.percentile)


def rows(cases: Sequence[Case], answers: Sequence[list[Cell]]) -> list[EvidenceRow]:
    """Errors of each figure over all rates, then how often the bands hold."""
    if not answers:
        return [missing(NAME, DATA, "TTFT, ITL, E2E", "the table is empty")]
    cells = [(case.server, cell) for case, of in zip(cases, answers, strict=True) for cell in of]
    errors, bands = [], []
    for place, figure in enumerate(FIGURES):
        off = np.array([cell.simulated[place] for _, cell in cells])
        luck = np.array([cell.luck[place] for _, cell in cells])
        half = Z90 * np.hypot([cell.sigmas[place] for _, cell in cells], luck)
        metric = f"{figure.metric.upper()} {figure.statistic}"
        row = row_of_errors(NAME, DATA, metric, (-np.expm1(off)).tolist(), figure.goal)
        row = beside(row, "by formula", [-math.expm1(cell.formula[place]) for _, cell in cells])
        row = noted(row, f"standard error of what was measured {shown(float(np.median(luck)))}")
        each = (
            f"{server} {shown(_median(cells, server, place))}" for server in dict.fromkeys(name for name, _ in cells)
        )
        errors.append(noted(row, ", ".join(each)))
        bands.append(
            row_of_band(f"band, {NAME}", DATA, metric, np.expm1(off), np.abs(off) <= half, np.sinh(half), COVERS)
        )
    errors[0] = noted(errors[0], f"closed loops measured again: {_repeated(cases)}")
    return errors + bands


def _median(cells: Sequence[tuple[str, Cell]], server: str, place: int) -> float:
    return statistics.median(abs(math.expm1(cell.simulated[place])) for name, cell in cells if name == server)


REPEATED: dict[str, Callable[[Point], float]] = {
    "requests/s": lambda point: point.requests_per_s,
    "TTFT mean": lambda point: point.ttft_mean_s or math.nan,
    "ITL mean": lambda point: point.itl_mean_s or math.nan,
}


def _repeated(cases: Sequence[Case]) -> str:
    """Median change of a closed loop from its first measurement to the second."""
    pairs = [
        (first, again)
        for case in cases
        for first in case.closed
        for again in case.closed
        if first.source != again.source
        and "first" in first.source
        and "again" in again.source
        and (first.isl, first.load_value) == (again.isl, again.load_value)
    ]
    if not pairs:
        return "none"
    changes = (
        f"{name} {shown(statistics.median(abs(of(again) / of(first) - 1) for first, again in pairs))}"
        for name, of in REPEATED.items()
    )
    return f"{', '.join(changes)} apart in the median of {len(pairs)}"


VLLM = Claim("measured-vllm", cases, answer, rows)
