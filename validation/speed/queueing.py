"""Accuracy of the analytic model against the simulator of the same law, and what one prediction costs.

Run: python -m validation.speed.queueing [--requests 100000] [--arrivals gamma:cv=2]
         [--replicas 8 --routing round_robin]
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from sizing.engine import Batching, Replica, StepLaw
from sizing.numbers import Floats
from sizing.prediction import Prediction
from sizing.queueing import predict
from sizing.simulator import simulate, simulated_stable_rate_per_s
from sizing.workload import NO_PREFIX, ROUTINGS, Arrivals, Lengths, Limit, Prefix, Routing, Sla, Workload

LAW = StepLaw(4.8e-3, 1e-3, 20e-6, 10e-6, 48.9e-9, 1.3e-9)
RULES = {
    "prefill_first": Batching("prefill_first", kv_tokens=400_000),
    "chunked 8192": Batching("chunked", kv_tokens=400_000),
    "chunked 2048": Batching("chunked", token_budget=2048, kv_tokens=400_000),
    "whole_prompt": Batching("whole_prompt", kv_tokens=400_000),
}
MIXES = ((128, 128), (1000, 1000), (2000, 256), (200, 1000))
PROMISES_S = ((0.1, 0.015), (0.15, 0.010), (0.2, 0.012), (0.3, 0.020), (0.5, 0.030), (1.0, 0.025), (2.0, 0.050))
SLAS = tuple(
    Sla(Limit("ttft", percentile, ttft_s), Limit("itl", percentile, itl_s))
    for percentile in (95, 99)
    for ttft_s, itl_s in PROMISES_S
)
UTILIZATIONS = (0.3, 0.6, 0.8, 0.9)
STEP = 0.015
"""Spacing of the log rates at which both are asked; between them, linear interpolation of the log excess."""

LOWEST = round(math.log(1.05 / 0.04) / STEP)
"""The index of the lowest rate: SLAs that fail there are left out, no queue decides on them."""

SHOWN = ("ttft p95", "ttft p99", "itl p95", "itl p99", "e2e p95")
Solver = Callable[[float], Prediction]
"""Prediction at a share of the simulated stable rate."""

POISSON = Arrivals()


simulated_stable_per_s = cache(simulated_stable_rate_per_s)


@dataclass(frozen=True, slots=True)
class Case:
    """One engine and one mix of lengths, with what sends the requests and how they are shared out."""

    name: str
    replica: Replica
    lengths: Lengths
    arrivals: Arrivals = POISSON
    replicas: int = 1
    routing: Routing = "random"
    prefix: Prefix = NO_PREFIX

    def at(self, load: float) -> Workload:
        """The workload at a share of the simulated stable rate."""
        rate_per_s = self.replicas * load * simulated_stable_per_s(self.replica, self.lengths, self.prefix)
        return Workload(self.lengths, rate_per_s, self.arrivals, self.prefix)

    def by_formula(self, load: float) -> Prediction:
        """The model under test."""
        return predict(self.replica, self.at(load), replicas=self.replicas, routing=self.routing)

    def by_simulation(self, load: float, requests: int, seed: int = 0) -> Prediction:
        """The truth it is held against."""
        load_at, fleet, routing = self.at(load), self.replicas, self.routing
        run = simulate(self.replica, load_at, replicas=fleet, routing=routing, requests=requests, seed=seed)
        return run.prediction()


def cases(arrivals: Arrivals, replicas: int, routing: Routing) -> list[Case]:
    """Every policy with every mix, equal and lognormal lengths."""
    return [
        Case(f"{rule} {isl}/{osl} {kind}", Replica(LAW, RULES[rule]), lengths, arrivals, replicas, routing)
        for rule in RULES
        for isl, osl in MIXES
        for kind, lengths in (("equal", Lengths(isl, osl)), ("lognormal", Lengths(isl, osl, 0.5, 0.8)))
    ]


OTHER_LAW = StepLaw(9e-3, 2e-3, 40e-6, 20e-6, 30e-9, 2e-9, 1e-3, 5e-3)
OTHER_MIXES = ((500, 150), (3000, 600), (64, 512))
OTHER_SPREADS = ((0.0, 0.0), (0.5, 0.8), (1.0, 1.2))


def other_cases(arrivals: Arrivals, replicas: int, routing: Routing) -> list[Case]:
    """27 cases on which the model was not refined: another law, half the slots and memory, other mixes and spreads."""
    rules = {name: replace(rule, max_batch_size=128, kv_tokens=200_000) for name, rule in RULES.items()}
    del rules["chunked 8192"]
    return [
        Case(
            f"{name} {isl}/{osl} cv {isl_cv:g} {osl_cv:g}",
            Replica(OTHER_LAW, rules[name]),
            Lengths(isl, osl, isl_cv, osl_cv),
            arrivals,
            replicas,
            routing,
        )
        for name in rules
        for isl, osl in OTHER_MIXES
        for isl_cv, osl_cv in OTHER_SPREADS
    ]


def log_excess(prediction: Prediction, sla: Sla) -> float:
    """Log of the latency over its limit, for the limit with the least room."""
    if prediction.saturated:
        return 3.0
    limit = prediction.binding(sla)
    return min(3.0, math.log(prediction.value_s(limit) / limit.limit_s))


def largest_load(solve: Solver, sla: Sla) -> float:
    """Largest share of the stable rate that meets the SLA, by bisection; 0 when the lowest load does not."""

    def excess(index: int) -> float:
        return log_excess(solve(load_at(index)), sla)

    fails, holds = 0, LOWEST
    if excess(holds) > 0:
        return 0.0
    if excess(fails) <= 0:
        return load_at(fails)
    while holds - fails > 1:
        middle = (fails + holds) // 2
        fails, holds = (fails, middle) if excess(middle) <= 0 else (middle, holds)
    below, above = excess(holds), excess(fails)
    return load_at(holds) * math.exp(STEP * below / (below - above)) if above < 3 else load_at(holds)


def load_at(index: int) -> float:
    """Shares of the stable rate, falling from 1.05 in equal steps of their logarithm."""
    return 1.05 * math.exp(-STEP * index)


def capacity_errors(found: Solver, truth: Solver) -> list[float]:
    """Relative error of the largest rate, for each SLA that the truth can meet at 5 % of the stable rate."""
    stars = [(largest_load(found, sla), largest_load(truth, sla)) for sla in SLAS]
    return [star / true - 1 for star, true in stars if true > 0.05]


def percentile_errors(found: Solver, truth: Solver) -> Floats:
    """Relative errors, (utilizations, SHOWN)."""
    rows = []
    for load in UTILIZATIONS:
        pairs = [(read(found(load), name), read(truth(load), name)) for name in SHOWN]
        rows.append([ours / true - 1 for ours, true in pairs])
    return np.array(rows)


def read(prediction: Prediction, name: str) -> float:
    """The value behind a name like "ttft p95"."""
    metric, percentile = name.split(" p")
    return float(prediction.as_dict()[metric][f"p{percentile}_s"])


def summary(errors: Floats) -> str:
    """Median and 90th centile of the absolute error, the worst two, in %."""
    size = np.abs(errors)
    return f"{np.median(size):.1%} / {np.percentile(size, 90):.1%} / {errors.min():+.0%} {errors.max():+.0%}"


def cost_ms(case: Case, repeats: int = 20) -> float:
    """Median CPU milliseconds of a prediction at utilizations from 0.3 to 0.9, caches warm."""
    taken_s = []
    case.by_formula(0.3)
    for repeat in range(repeats):
        start_s = time.process_time()
        case.by_formula(0.3 + 0.6 * repeat / repeats)
        taken_s.append(time.process_time() - start_s)
    return 1e3 * sorted(taken_s)[repeats // 2]


def main() -> None:
    """Print one row per case, then the summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000, help="Requests of each simulated run.")
    parser.add_argument("--arrivals", default="poisson", help="As in the CLI: poisson, gamma:cv=2, batch:size=8.")
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--routing", choices=ROUTINGS, default="random")
    parser.add_argument("--others", action="store_true", help="Cases on which the model was not refined.")
    asked = parser.parse_args()
    table = Table("case", "ms", "rate: SLAs", "median error", "worst", *SHOWN, title="percentiles at 0.8")
    of_rates: list[float] = []
    of_percentiles = []
    chosen = other_cases if asked.others else cases
    for case in track(chosen(Arrivals.parse(asked.arrivals), asked.replicas, asked.routing)):
        truth = cache(lambda load, case=case: case.by_simulation(load, asked.requests))
        found = cache(case.by_formula)
        rates, percentiles = capacity_errors(found, truth), percentile_errors(found, truth)
        worst = max(rates, key=abs, default=math.nan)
        middle = float(np.median(rates)) if rates else math.nan
        cells = (f"{cost_ms(case):.1f}", str(len(rates)), f"{middle:+.1%}", f"{worst:+.1%}")
        table.add_row(case.name, *cells, *(f"{error:+.1%}" for error in percentiles[UTILIZATIONS.index(0.8)]))
        of_rates += rates
        of_percentiles.append(percentiles)
    console = Console(width=160)
    console.print(table)
    console.print("median / 90th centile of the absolute error / worst")
    high = float(np.mean(np.array(of_rates) > 0.05))
    console.print(f"largest rate under an SLA, {len(of_rates)} questions: {summary(np.array(of_rates))}")
    console.print(f"too high by more than 5 %: {high:.1%}")
    for place, load in enumerate(UTILIZATIONS):
        lines = [f"{name} {summary(np.array(of_percentiles)[:, place, k])}" for k, name in enumerate(SHOWN)]
        console.print(f"utilization {load}: " + ",  ".join(lines))


if __name__ == "__main__":
    main()
