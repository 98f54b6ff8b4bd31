"""``python -m sizing bench``: how fast the planner and its parts are on this machine, beside their goals."""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from sizing import candidates, planner
from sizing.candidates import Choice
from sizing.catalog import Layout, timed_gpus
from sizing.engine import Replica
from sizing.errors import SizingError
from sizing.fitting import fit
from sizing.numbers import significant
from sizing.plans import Candidate, NoFeasiblePlan
from sizing.points import Point
from sizing.question import Question
from sizing.queueing import predict
from sizing.simulator import simulate, simulated_stable_rate_per_s
from sizing.simulator.fleet import run_stream
from sizing.simulator.recorded import replay
from sizing.simulator.state import engine_of, idle_states, requests_of, work_space
from sizing.trace import Trace
from sizing.workload import Lengths, Limit, Sla, Workload
from validation.evidence.server import LAW, POLICIES, Design, calibrate
from validation.plain_loop import serve

SERVER = Replica(LAW)
SHORT = Lengths(512, 128)
LOAD = 0.8
REQUESTS = 20_000
TIMES = ("first_token_s", "done_s")
NINE_LEVELS = Design(((128, 128), (1000, 1000), (4000, 500)), (1, 2, 4, 8, 16, 32, 64, 128, 256))
TWO_MIXES = Design(((1000, 1000), (4000, 200)), (1, 4, 16, 64, 256))
FIVE_MIXES = Design(
    ((128, 128), (500, 200), (1000, 1000), (4000, 200), (200, 1000)), (1, 2, 4, 8, 16, 32, 64, 128, 192, 256)
)
SIXTEEN_LENGTHS = tuple(Lengths(isl, osl, 0.3, 0.3) for isl in (200, 500, 1500, 4000) for osl in (100, 200, 500, 1000))
SEVEN_LOADS = (0.1, 0.2, 0.35, 0.5, 0.6, 0.7, 0.8)
SLA = Sla(Limit("ttft", 95, 1.0), Limit("itl", 95, 0.03))
MODEL = "Qwen/Qwen3-32B"
PLAN = (
    f"plan --model {MODEL} --gpu h200_sxm --precision bf16 --tp 2 --isl 2000 --osl 256 --rate 20 "
    "--ttft p95:1s --itl p95:30ms --json"
)
FRESH = count(1)


@dataclass(frozen=True, slots=True)
class Figure:
    """One speed. `goal`: seconds at most, or requests/s at least where `least`; None = shown for comparison."""

    name: str
    value: float
    what: str
    goal: float | None = None
    least: bool = False

    @property
    def met(self) -> bool | None:
        """Whether the goal is reached, which a figure that could not be measured (NaN) never does; None without one."""
        if self.goal is None:
            return None
        return self.value >= self.goal if self.least else self.value <= self.goal


def figures() -> Iterator[Figure]:
    """All of them, one by one as they are measured."""
    yield from simulators()
    yield Figure("replay_per_s", replay_per_s(), "requests/s, a trace of two million on 16 replicas", 1e6, least=True)
    yield Figure("analytic_s", best_s(analytic, 10), "one prediction by formula", 0.015)
    points = calibrate(SERVER, NINE_LEVELS, True, np.random.default_rng(0))
    yield Figure("fit_s", best_s(lambda: fit(points, batching=SERVER.batching), 3), "three curves of 9 levels", 0.5)
    yield from fits()
    yield Figure("plan_s", best_s(lambda: plan(20.0), 5), "one deployment, 20 requests/s", 0.5)
    yield Figure("plan_20000_s", best_s(lambda: plan(20_000.0), 3), "the same, 20,000 requests/s", 0.5)
    yield Figure("plan_all_s", plan_all_s(), f"every GPU, TP and precision of {MODEL}, caches empty", 3.0)
    yield Figure("fresh_process_s", fresh_process_s(), "a new Python answers a plan, compiled code on disk", 2.0)


def replay_per_s(requests: int = 2_000_000) -> float:
    """Requests/s of a replayed trace: 16 replicas, random routing, lengths and rate of every hour its own."""
    rng = np.random.default_rng(0)
    rate_per_s = 16 * LOAD * simulated_stable_rate_per_s(SERVER, SHORT)
    gaps_s = rng.exponential(1 / rate_per_s, requests) * (1.2 + np.sin(np.linspace(0, 40 * np.pi, requests)))
    isl, osl = SHORT.sample(requests, rng)
    trace = Trace(np.cumsum(gaps_s), isl.astype(np.int32), osl.astype(np.int32))
    return requests / best_s(lambda: replay(SERVER, trace, Workload(SHORT, 1.0), SLA, replicas=16), 2)


def fits() -> Iterator[Figure]:
    """Fits of an engine of which nothing is known: batching rule and way to start are searched."""
    rng = np.random.default_rng(0)
    ten, fifty = (
        [replace(point, batching="", max_batch_size=None) for point in calibrate(SERVER, design, True, rng)]
        for design in (TWO_MIXES, FIVE_MIXES)
    )
    yield Figure("fit_10_s", best_s(lambda: fit(ten), 3), "two curves of 5 levels, engine unknown", 0.3)
    yield Figure("fit_50_s", best_s(lambda: fit(fifty), 3), "five curves of 10 levels, engine unknown", 2.0)
    offered = [offer(lengths, share, rng) for lengths in SIXTEEN_LENGTHS for share in SEVEN_LOADS]
    what = f"{len(offered)} open-loop points of {len(SIXTEEN_LENGTHS)} lengths, engine unknown"
    yield Figure("fit_open_s", best_s(lambda: fit(offered, open_loop=True), 1), what, 8.0)


def offer(lengths: Lengths, share: float, rng: np.random.Generator) -> Point:
    """A level of Poisson arrivals at a share of the load that can be carried, each figure off by 2 % of its own."""
    workload = Workload(lengths, share * simulated_stable_rate_per_s(SERVER, lengths))
    run = simulate(SERVER, workload, requests=1000, seed=int(rng.integers(10**6)))
    luck = np.exp(0.02 * rng.standard_normal(5))
    return Point(
        model="synthetic",
        precision="bf16",
        gpu="synthetic",
        tp=1,
        isl=lengths.isl,
        osl=lengths.osl,
        isl_cv=lengths.isl_cv,
        osl_cv=lengths.osl_cv,
        load_kind="poisson_rate",
        load_value=workload.rate_per_s,
        requests=1000,
        requests_per_s=run.requests_per_s,
        ttft_mean_s=float(run.ttft_s.mean() * luck[0]),
        ttft_p50_s=float(np.median(run.ttft_s) * luck[1]),
        ttft_p95_s=float(np.percentile(run.ttft_s, 95) * luck[2]),
        itl_mean_s=float(np.nanmean(run.itl_s) * luck[3]),
        e2e_mean_s=float(run.e2e_s.mean() * luck[4]),
    )


def best_s(work: Callable[[], object], runs: int) -> float:
    """Wall seconds of the fastest of `runs` runs, after one that compiles."""
    work()
    spent_s = []
    for _ in range(runs):
        start_s = perf_counter()
        work()
        spent_s.append(perf_counter() - start_s)
    return min(spent_s)


def simulators() -> Iterator[Figure]:
    """The compiled simulator and the plain Python loop on the same requests, their results compared."""
    arrival_s, isl, osl = stream(REQUESTS)
    lists = [values.tolist() for values in (arrival_s, isl, osl)]
    engine, space = engine_of(SERVER), work_space(SERVER, 1)

    def compiled() -> Any:
        run = requests_of(isl, osl, arrival_s)
        run_stream(engine, idle_states(1), space, run)
        return run

    run, plain_s = compiled(), serve(SERVER, *lists)
    apart_s = max(np.abs(run[name] - times_s).max() for name, times_s in zip(TIMES, plain_s, strict=True))
    if apart_s > 1e-6:
        raise SizingError(f"the plain Python loop and the simulator differ by {apart_s:.3g} s: one of them is wrong")
    fast_s, plain_loop_s = best_s(compiled, 9), best_s(lambda: serve(SERVER, *lists), 5)
    what = "compiled, one core, ISL 512, OSL 128, 80 % of what can be carried"
    yield Figure("simulator_requests_per_s", REQUESTS / fast_s, what, 3e6, least=True)
    what = f"the same iterations in plain Python, the same results; {plain_loop_s / fast_s:.0f} times slower"
    yield Figure("python_loop_requests_per_s", REQUESTS / plain_loop_s, what)


def stream(requests: int) -> tuple[Any, Any, Any]:
    """Arrivals, ISL and OSL of requests at 80 % of what the server carries."""
    rng = np.random.default_rng(0)
    gaps_s = rng.exponential(1 / (LOAD * simulated_stable_rate_per_s(SERVER, SHORT)), requests)
    return (np.cumsum(gaps_s), *SHORT.sample(requests, rng))


def fresh_server() -> Replica:
    """A server that differs from all before in the ninth digit: nothing remembered of another helps."""
    return Replica(LAW.scaled(1 + 1e-9 * next(FRESH)), POLICIES[1])


def analytic() -> None:
    """One prediction at two thirds of the load that can be carried."""
    predict(fresh_server(), Workload(Lengths(1000, 1000, 0.5, 0.8), 4.0))


def plan(rate_per_s: float) -> None:
    """The smallest fleet of one deployment."""
    question = Question("synthetic", Workload(Lengths(2000, 256, 0.5, 0.8), rate_per_s), SLA)
    planner.plan(question, [Candidate("synthetic", "synthetic", Layout(), "bf16", fresh_server(), "fitted", "", 0.05)])


def plan_all_s() -> float:
    """Seconds for day-zero estimates of every configuration and the plan; once, as the second time is remembered."""
    question = Question(MODEL, Workload(Lengths(2000, 256), 20.0), SLA)
    start_s = perf_counter()
    try:
        planner.plan(question, *candidates.find(MODEL, question.workload.lengths, Choice(gpus=timed_gpus())))
    except NoFeasiblePlan:
        return math.nan
    return perf_counter() - start_s


def fresh_process_s() -> float:
    """Seconds of the fastest of three new interpreters; NaN where one cannot answer.

    They find their bytecode on disk, as pip leaves it, also where this machine writes none (PYTHONDONTWRITEBYTECODE).
    """
    command = [sys.executable, "-m", "sizing", *PLAN.split()]
    with TemporaryDirectory() as folder:
        compiled = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": folder}
        if subprocess.run(command, capture_output=True, env=compiled).returncode:
            return math.nan
        return best_s(lambda: subprocess.run(command, capture_output=True, check=True, env=compiled), 3)


@click.command("bench", epilog="\b\nExample:\n  python -m sizing bench --json\n")
@click.option("--json", "json_", is_flag=True, help="Print JSON for machines.")
def bench_command(json_: bool) -> None:
    """Speeds of the planner on this machine: the best of several runs each, beside the goals."""
    found = []
    with Console(stderr=True).status("measuring") as status:
        for figure in figures():
            found.append(figure)
            status.update(f"{figure.name}: {significant(figure.value)}")
    if json_:
        click.echo(json.dumps(as_json(found), indent=2))
    else:
        Console().print(drawn(found))


def as_json(found: list[Figure]) -> dict[str, Any]:
    """Figures by name, the goals, and the machine."""
    values = {figure.name: None if math.isnan(figure.value) else figure.value for figure in found}
    goals = {figure.name: figure.goal for figure in found if figure.goal is not None}
    missed = [figure.name for figure in found if figure.met is False]
    machine = {"cpus": os.cpu_count(), "python": platform.python_version(), "processor": platform.machine()}
    return {**values, "goals": goals, "missed": missed, **machine}


def drawn(found: list[Figure]) -> Table:
    """For a terminal."""
    table = Table("figure", "measured", "goal", "", "what")
    table.title = f"{os.cpu_count()} CPUs, Python {platform.python_version()}"
    for figure in found:
        goal = "" if figure.goal is None else f"{'≥' if figure.least else '≤'} {significant(figure.goal)}"
        met = {True: "met", False: "missed", None: ""}[figure.met]
        table.add_row(figure.name, significant(figure.value), goal, met, figure.what)
    return table
