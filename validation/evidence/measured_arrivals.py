"""A real vLLM and a real SGLang, measured here: the law fitted to their closed loops, their random arrivals predicted.

`python -m validation.measure_servers` measured the tables beside this file: closed loops of six levels at each mix of
lengths, each measured twice, and between them Poisson arrivals at 50, 70 and 85 % of the highest requests/s of a closed
loop, in three rounds. All closed loops of a server are fitted together, by what the server tells of itself alone; as
`calibration size` measures, four levels of each mix alone; and, as `calibration run` does, these with one round of
random arrivals, at the middle rate. What is asked of the law is the very arrivals that a round sent, drawn again from
their seed: all servers were sent the same few streams, whose luck would else be taken for errors of the law. The
requests' lengths are drawn again too where their seed was kept, as it is since 29 November; before, they are left to
chance. The error of a rate is the mean of its rounds, those that were fitted left
out; how far the rounds, and the two measurements of a closed loop, lie apart is said beside the errors. Bands are those
that `size --verify` shows of a measurement, and each round is one. The client keeps off the last core, which is the
engine's. On a real GPU, of which there were minutes (lab/gpu), most rates have one round.
"""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby, islice
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.random import SeedSequence

from calibration.requests.lengths import LengthsPlan
from calibration.requests.source import RequestSource
from sizing.analyses.verification import Sent, compared, measurements
from sizing.candidates import from_fit
from sizing.files import resource
from sizing.fitting import Fit, fit
from sizing.points import Point, read_points
from sizing.prediction import Quantiles
from sizing.question import Question
from sizing.queueing import predict
from sizing.simulator import simulate
from sizing.workload import (
    OF_REQUESTS,
    Arrivals,
    Limit,
    Metric,
    Prefix,
    RequestMetric,
    Sla,
    Tokens,
    Workload,
    metric_name,
)
from validation.evidence.claim import Claim, Setup
from validation.evidence.measured_capacity import GOAL, PERCENTILE, Capacity, capacity, rows_of
from validation.evidence.measured_silicon import four
from validation.evidence.measured_stages import Figure
from validation.evidence.table import EvidenceRow, Goal, beside, missing, noted, row_of_band, row_of_errors, shown

NAME = "random arrivals from closed loops"
HERE = ", measured here"
ON_GPU, SGLANG = f"vLLM on an H200{HERE}", f"SGLang at the pace of GPUs{HERE}"
TABLES = {
    f"vLLM at the pace of GPUs{HERE}": (Path(__file__).with_name("vllm-paced.csv"),),
    f"vLLM on a CPU{HERE}": (Path(__file__).with_name("vllm-cpu.csv"),),
    ON_GPU: (resource("data/curves/h200-vllm.csv"), resource("data/curves/h200-vllm-qwen3.csv")),
    SGLANG: (Path(__file__).with_name("sglang-paced.csv"),),
}
GPU, REQUESTS = resource("data/gpu"), "requests.csv.gz"
DRAWN = Path(__file__).with_name("arrivals.csv")
FEWEST_ROUNDS = {ON_GPU: 1}
"""Good rounds that a rate needs to count; of other tables two, which tell how far they lie apart."""
FITTED = {
    "all": "",
    "alone": ", four levels of the mix alone",
    "checked": ", four levels of the mix and one of random arrivals",
}
"""What the name of a row says of the levels that were fitted."""
SIZED = ("all", "alone")
"""Those whose fits are asked for the largest rate."""
SIMULATED = 20_000
FIGURES = (
    Figure("ttft", 50, Goal(0.08)),
    Figure("ttft", 95, Goal(0.12)),
    Figure("itl", None, Goal(0.05)),
    Figure("itl", 95, None),
    Figure("e2e", 95, Goal(0.08)),
    Figure("gap", 95, None),
    Figure("gap", 99, None),
)
BANDED: tuple[tuple[Metric, int], ...] = (("ttft", 50), ("ttft", 95), ("itl", 50), ("e2e", 95))
UNLIMITED = Sla(Limit("ttft", 95, 1e6))


@dataclass(frozen=True, slots=True)
class Case:
    """One server of a table of `TABLES`: its closed loops, and its random arrivals, the rounds of one rate together;
    `levels`, a name of FITTED: of all its mixes of lengths, or of one alone, with a round of random arrivals to fit,
    `check`, or without."""

    data: str
    server: str
    closed: tuple[Point, ...]
    rates: tuple[tuple[Point, ...], ...]
    levels: Literal["all", "alone", "checked"] = "all"
    check: tuple[Point, ...] = ()


class Banded(NamedTuple):
    """A percentile of one round: ln of predicted over measured, half the width of the band, and whether it held."""

    off: float
    half_width: float
    held: bool


class Cell(NamedTuple):
    """One rate: by place in FIGURES, ln of predicted over measured by simulation of its arrivals, the standard error of
    that by its rounds, and the same of any arrivals and by formula; by place in BANDED, the rounds; by metric, what a
    plan makes of the measured p95 as a limit, where that was known and the law not fitted to random arrivals."""

    simulated: list[float]
    luck: list[float]
    of_any: list[float]
    formula: list[float]
    bands: list[list[Banded]]
    capacities: dict[RequestMetric, Capacity]


def cases(setup: Setup) -> list[Case]:
    """Every server of the tables, then every mix of each alone; quick: two rates of the first."""
    found = [case for data in TABLES for case in of_table(data, measured(data))]
    if setup.quick:
        return [replace(case, rates=case.rates[:2]) for case in found[:1]]
    alone = [mix for case in found for mix in mixes_of(case)]
    return [*found, *alone, *map(checked, alone)]


def mixes_of(case: Case) -> list[Case]:
    """Each mix of lengths by itself, with the first measurement of four of its levels."""
    found = []
    for isl in dict.fromkeys(point.isl for point in case.closed):
        first = {point.load_value: point for point in reversed(case.closed) if point.isl == isl}
        rates = tuple(rounds for rounds in case.rates if rounds[0].isl == isl)
        found.append(replace(case, closed=four([first[users] for users in sorted(first)]), rates=rates, levels="alone"))
    return found


def checked(mix: Case) -> Case:
    """The mix with the first round at the middle one of its rates to fit, and not to judge."""
    middle = sorted(mix.rates, key=lambda rounds: rounds[0].load_value)[len(mix.rates) // 2]
    rates = tuple(rounds[1:] if rounds is middle else rounds for rounds in mix.rates)
    return replace(mix, rates=tuple(filter(None, rates)), levels="checked", check=middle[:1])


def measured(data: str) -> list[Point]:
    """The points of TABLES called `data`."""
    return [point for table in TABLES[data] for point in read_points(table)]


def of_table(data: str, points: Sequence[Point]) -> list[Case]:
    """The servers among `points`, void points apart; a rate counts with so many good rounds as FEWEST_ROUNDS says."""
    found, fewest = [], FEWEST_ROUNDS.get(data, 2)
    servers: dict[str, list[Point]] = {}
    for point in points:
        if not point.void:
            servers.setdefault(point.model if data == ON_GPU else server_of(point), []).append(point)
    for server, own in servers.items():
        rounds: dict[tuple[float, float], list[Point]] = {}
        for point in own:
            if point.load_kind == "poisson_rate":
                rounds.setdefault((point.isl, point.load_value), []).append(point)
        closed = tuple(point for point in own if point.closed)
        found.append(Case(data, server, closed, tuple(tuple(of) for of in rounds.values() if len(of) >= fewest)))
    return found


def server_of(point: Point) -> str:
    """The server in words: of one model there may be several, each named before the round in its points' source."""
    name, named, _ = point.source.partition("; ")
    return f"{point.model}, {name}" if named else point.model


class Drawn(NamedTuple):
    """How the arrivals of a point were drawn: the seed, how many there would have been, and how many of them came
    before the measurement; and the seed of their lengths, empty where it was not kept."""

    seed: tuple[int, ...]
    arrivals: int
    warm: int
    lengths_seed: tuple[int, ...] = ()


Identity = tuple[str, ...]
IDENTITY = ("measured_at", "model", "source", "load_value")


def identity(point: Point) -> Identity:
    """What names a point among those measured."""
    return tuple(str(getattr(point, name)) for name in IDENTITY)


@cache
def read_drawn(table: Path) -> dict[Identity, Drawn]:
    """How arrivals were drawn, by `identity` of their points; nothing where there is no table."""
    if not table.is_file():
        return {}
    with table.open(encoding="utf-8", newline="") as file:
        return {
            tuple(row[name] for name in IDENTITY): Drawn(
                _numbers(row["seed"]), int(row["arrivals"]), int(row["warm"]), _numbers(row["lengths_seed"])
            )
            for row in csv.DictReader(file)
        }


def _numbers(cell: str) -> tuple[int, ...]:
    return tuple(map(int, cell.split()))


def write_drawn(table: Path, more: Mapping[Identity, Drawn]) -> None:
    """Add to the table."""
    rows = {**read_drawn(table), **more}
    with table.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*IDENTITY, *Drawn._fields])
        for name, drawn in rows.items():
            writer.writerow([*name, *(" ".join(map(str, each)) if isinstance(each, tuple) else each for each in drawn)])
    read_drawn.cache_clear()


def sent(point: Point) -> Sent | None:
    """The requests of a point: as they were kept, or drawn again; None where neither is possible."""
    if kept := read_sent(GPU / point.source.partition("; ")[0]).get(identity(point)):
        return kept
    drawn = read_drawn(DRAWN).get(identity(point))
    if drawn is None or point.duration_s is None:
        return None
    times_s = Arrivals().times(drawn.arrivals, point.load_value, np.random.default_rng(drawn.seed))
    start_s = float(times_s[drawn.warm])
    stop_s = start_s + point.duration_s
    arrival_s = times_s[times_s < stop_s]
    return Sent(arrival_s, start_s, stop_s, *lengths_of(point, drawn.lengths_seed, len(arrival_s)))


def lengths_of(point: Point, seed: tuple[int, ...], requests: int) -> tuple[Tokens, Tokens] | tuple[None, None]:
    """ISL and OSL of the first requests of a level, drawn as they were; None where their seed was not kept."""
    if not seed:
        return None, None
    shared = round(point.prefix_tokens or 0)
    law = LengthsPlan(isl=point.isl, osl=point.osl, isl_cv=point.isl_cv, osl_cv=point.osl_cv, shared_prefix=shared)
    drawn = islice(RequestSource(law, None, False, seed).requests(), requests)
    isl, osl = np.array([(request.isl, request.osl) for request in drawn], np.int64).T
    return isl, osl


@cache
def read_sent(folder: Path) -> dict[Identity, Sent]:
    """The requests kept by `lab.gpu.home`, by `identity` of the point they were measured for, of which some are known
    to have counted; nothing where there is no such folder."""
    if not (folder / REQUESTS).is_file():
        return {}
    of_point = dict(tuple(pd.read_csv(folder / REQUESTS).sort_values("due_s", kind="stable").groupby("point")))
    return {
        identity(point): _sent_of(of_point[number])
        for number, point in enumerate(read_points(folder / "points.csv"))
        if point.load_kind == "poisson_rate" and of_point[number]["counted"].any()
    }


def _sent_of(requests: pd.DataFrame) -> Sent:
    due_s = requests["due_s"].to_numpy(float) - requests["due_s"].iloc[0]
    counted_s = due_s[requests["counted"] == 1]
    lengths = (requests[name].to_numpy(np.int64) for name in ("isl", "osl"))
    return Sent(due_s, float(counted_s[0]), float(np.nextafter(counted_s[-1], np.inf)), *lengths)


def answer(case: Case, seed: SeedSequence) -> list[Cell]:
    """Fit the levels together, predict each rate."""
    fitted = fit([*case.closed, *case.check])
    return [_cell(fitted, rounds, sized=case.levels in SIZED) for rounds in case.rates]


def _cell(fitted: Fit, rounds: Sequence[Point], sized: bool) -> Cell:
    point = rounds[0]
    prefix = Prefix(point.prefix.tokens, statistics.mean(each.prefix.hit_rate for each in rounds))
    workload = Workload(point.lengths, point.load_value, Arrivals(), prefix)
    candidate, question = from_fit(fitted, point.lengths), Question(point.model, workload, UNLIMITED)
    alone_s = float(simulate(candidate.replica, workload, requests=SIMULATED).e2e_s.mean())

    def simulated(each: Point, sent: Sent | None) -> list[float]:
        runs = measurements(candidate.replica, workload, each.requests or 0, alone_s, sent, token_gaps=True)
        told = [[_of(run.quantiles(figure.metric), figure) for run in runs] for figure in FIGURES]
        return [statistics.mean(map(math.log, values)) for values in told]

    bands: list[list[Banded]] = [[] for _ in BANDED]
    for each in rounds:
        found = compared(candidate, question, each, sent=sent(each))
        figures = {(one.of.metric, one.of.percentile): one for one in found.figures}
        for place, wanted in enumerate(BANDED):
            if (one := figures.get(wanted)) and one.measured_s:
                half_width = math.sqrt(one.high_s / one.low_s) - 1
                bands[place].append(Banded(math.log(one.predicted_s / one.measured_s), half_width, one.verdict == "in"))
    off, luck = _over(rounds, [simulated(each, sent(each)) for each in rounds])
    of_any, _ = _over(rounds, [simulated(point, None)] * len(rounds))
    steady = predict(candidate.replica, workload, gaps=True)
    by_formula = [math.log(_of(steady.of(figure.metric), figure)) for figure in FIGURES]
    formula, _ = _over(rounds, [by_formula] * len(rounds))
    capacities = {}
    for place, figure in enumerate(FIGURES):
        if sized and figure.metric != "gap" and figure.percentile == PERCENTILE and not math.isnan(off[place]):
            limit_s = statistics.geometric_mean(figure.of(each) for each in rounds if figure.known(each))
            of_rate = off[place], luck[place]
            capacities[figure.metric] = capacity(candidate, workload, figure.metric, limit_s, *of_rate)
    return Cell(off, luck, of_any, formula, bands, capacities)


def _over(rounds: Sequence[Point], told: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    """By place in FIGURES, the mean over the rounds of ln predicted, a row of `told` for each, over measured, and its
    standard error, which one round does not tell: NaN. Both are NaN where fewer than two of several rounds had requests
    enough for the percentile."""
    means, errors = [], []
    for place, figure in enumerate(FIGURES):
        logs = [
            own[place] - math.log(figure.of(point))
            for point, own in zip(rounds, told, strict=True)
            if figure.known(point)
        ]
        several = len(logs) > 1
        means.append(statistics.mean(logs) if several or len(logs) == len(rounds) else math.nan)
        errors.append(statistics.stdev(logs) / math.sqrt(len(logs)) if several else math.nan)
    return means, errors


def _of(quantiles: Quantiles, figure: Figure) -> float:
    return quantiles.mean_s if figure.percentile is None else quantiles.at(figure.percentile)


def rows(cases: Sequence[Case], answers: Sequence[list[Cell]]) -> list[EvidenceRow]:
    """Of each table errors of each figure over all rates, then how often the bands hold."""
    found = []
    for (data, levels), both in groupby(zip(cases, answers, strict=True), lambda pair: (pair[0].data, pair[0].levels)):
        own = list(both)
        found += _rows(f"{NAME}{FITTED[levels]}", data, [case for case, _ in own], [cells for _, cells in own])
    for levels in SIZED:
        pairs = [pair for pair in zip(cases, answers, strict=True) if pair[0].levels == levels]
        for metric in OF_REQUESTS if pairs else ():
            of_table: dict[str, list[Capacity]] = {}
            for case, cells in pairs:
                known = [cell.capacities[metric] for cell in cells if metric in cell.capacities]
                of_table.setdefault(case.data.removesuffix(HERE), []).extend(known)
            found += rows_of(f"{NAME}{FITTED[levels]}", metric, of_table, GOAL if levels == "all" else None)
    return found or [missing(NAME, "vLLM, measured here", "TTFT, ITL, E2E", "no rate was measured twice")]


def _rows(name: str, data: str, cases: Sequence[Case], answers: Sequence[list[Cell]]) -> list[EvidenceRow]:
    of_servers: dict[str, list[Cell]] = {}
    for case, own in zip(cases, answers, strict=True):
        of_servers[case.server] = of_servers.get(case.server, []) + own
    cells = [cell for own in of_servers.values() for cell in own]
    if not cells:
        return [missing(name, data, "TTFT, ITL, E2E", "no rate was measured twice")]
    found = []
    for place, figure in enumerate(FIGURES):
        goal = figure.goal if cases[0].levels == "all" else None
        row = row_of_errors(name, data, f"{metric_name(figure.metric)} {figure.statistic}", _errors(cells, place), goal)
        if not row.n:
            found.append(noted(row, "too few requests in a round for this percentile"))
            continue
        for rival, of in (("of any arrivals", "of_any"), ("by formula", "formula")):
            row = beside(row, rival, [-math.expm1(getattr(cell, of)[place]) for cell in _known(cells, place)])
        if luck := [cell.luck[place] for cell in cells if not math.isnan(cell.luck[place])]:
            row = noted(row, f"standard error of a rate {shown(statistics.median(luck))}")
        each = (f"{server} {shown(_median(off))}" for server, own in of_servers.items() if (off := _errors(own, place)))
        found.append(noted(row, f"median of {', '.join(each)}"))
    if cases[0].levels == "all":
        found[0] = noted(found[0], _repeated(cases))
    for place, (metric, percentile) in enumerate(BANDED):
        rounds = [one for cell in cells for one in cell.bands[place]]
        what = f"{metric_name(metric)} p{percentile}"
        if not rounds:
            found.append(missing(f"band, {name}", data, what, "too few requests in a round for this percentile"))
            continue
        errors, held = np.expm1([one.off for one in rounds]), [one.held for one in rounds]
        widths = [one.half_width for one in rounds]
        row = row_of_band(f"band, {name}", data, what, errors, held, widths)
        found.append(noted(row, f"median width ± {shown(statistics.median(widths))}"))
    return found


def _errors(cells: Iterable[Cell], place: int) -> list[float]:
    return [-math.expm1(cell.simulated[place]) for cell in _known(cells, place)]


def _known(cells: Iterable[Cell], place: int) -> list[Cell]:
    """Those with enough requests for the figure."""
    return [cell for cell in cells if not math.isnan(cell.simulated[place])]


def _median(errors: Iterable[float]) -> float:
    return statistics.median(map(abs, errors))


REPEATED: dict[str, Callable[[Point], float]] = {
    "requests/s": lambda point: point.requests_per_s,
    "TTFT mean": lambda point: point.ttft_mean_s or math.nan,
    "ITL mean": lambda point: point.itl_mean_s or math.nan,
}


def _repeated(cases: Sequence[Case]) -> str:
    """The median change of a closed loop from its first measurement to the second."""
    levels: dict[tuple[str, float, float], list[Point]] = {}
    for case in cases:
        for point in case.closed:
            levels.setdefault((case.server, point.isl, point.load_value), []).append(point)
    pairs = [(of[0], of[1]) for of in levels.values() if len(of) == 2]
    if not pairs:
        return "no closed loop was measured twice"
    changes = (f"{name} {shown(_median(of(two) / of(one) - 1 for one, two in pairs))}" for name, of in REPEATED.items())
    return f"{len(pairs)} closed loops measured again: {', '.join(changes)} apart in the median"


ARRIVALS = Claim("measured-arrivals", cases, answer, rows)
