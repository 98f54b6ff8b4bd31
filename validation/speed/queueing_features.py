"""What the analytic model makes of each feature of engines and workloads, against the simulator of the same law.

Run: python -m validation.speed.queueing_features [--feature NAME] [--requests 100000] [--cases]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from sizing.engine import Batching, Replica, Speculation
from sizing.numbers import Floats
from sizing.queueing import stable_rate_per_s
from sizing.workload import Arrivals, Lengths, Prefix, Routing
from validation.speed.queueing import LAW, RULES, SHOWN, Case, read

MIXES = ((2000, 256), (1000, 1000))
POLICIES = ("chunked 8192", "prefill_first")
UTILIZATIONS = (0.3, 0.6, 0.8)
COSTLY = LAW.scaled(0.15)
"""A draft whose passes take 15 % of the model's."""

Change = Callable[[Case], Case]


def engine(**fields: object) -> Change:
    """A change of the batching rule."""
    return lambda case: replace(case, replica=replace(case.replica, batching=_batching(case, **fields)))


def _batching(case: Case, **fields: object) -> Batching:
    return replace(case.replica.batching, **fields)  # type: ignore[arg-type]


def prefix(hit_rate: float) -> Change:
    """Three quarters of the mean prompt, found with this chance."""
    return lambda case: replace(case, prefix=Prefix(round(0.75 * case.lengths.isl), hit_rate))


def speculation(asked: Speculation) -> Change:
    """Speculative decoding."""
    return lambda case: replace(case, replica=replace(case.replica, speculation=asked))


def fleet(replicas: int, routing: Routing) -> Change:
    """Several replicas behind a router."""
    return lambda case: replace(case, replicas=replicas, routing=routing)


def correlated(correlation: float) -> Change:
    """Long prompts with long, or with short, answers."""
    return lambda case: replace(case, lengths=replace(case.lengths, correlation=correlation))


FEATURES: Mapping[str, Change] = MappingProxyType(
    {
        "plain": lambda case: case,
        "prefix .5": prefix(0.5),
        "prefix .9": prefix(0.9),
        "free draft": speculation(Speculation(4, 0.7)),
        "costly draft": speculation(Speculation(4, 0.7, COSTLY)),
        "max_tokens 4x": lambda case: engine(max_tokens=round(4 * case.lengths.osl))(case),
        "blocks 64": engine(kv_block_tokens=64, kv_tokens=100_000),
        "KV limited": engine(kv_tokens=60_000),
        "max_utilization": engine(kv_policy="max_utilization", kv_tokens=60_000),
        "power of two, 8": fleet(8, "power_of_two"),
        "batches of 8": lambda case: replace(case, arrivals=Arrivals("batch", size=8)),
        "correlation +.7": correlated(0.7),
        "correlation -.7": correlated(-0.7),
        "64 slots": engine(max_batch_size=64),
    }
)


def cases(change: Change) -> list[Case]:
    """Two mixes, equal and lognormal, under two policies."""
    plain = [
        Case(f"{policy} {isl}/{osl} {kind}", Replica(LAW, RULES[policy]), lengths)
        for policy in POLICIES
        for isl, osl in MIXES
        for kind, lengths in (("equal", Lengths(isl, osl)), ("lognormal", Lengths(isl, osl, 0.5, 0.8)))
    ]
    return [change(case) for case in plain]


def errors(case: Case, requests: int) -> Floats:
    """Relative errors, (utilizations, SHOWN)."""
    rows = []
    for load in UTILIZATIONS:
        found, true = case.by_formula(load), case.by_simulation(load, requests)
        rows.append([read(found, name) / read(true, name) - 1 for name in SHOWN])
    return np.array(rows)


def stable_error(case: Case) -> float:
    """Relative error of the stable rate."""
    rate_per_s = case.at(1.0).rate_per_s / case.replicas
    return stable_rate_per_s(case.replica, case.lengths, case.prefix) / rate_per_s - 1


def main() -> None:
    """For each feature the errors at each utilization: median, and the worst with its sign."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--feature", choices=FEATURES, help="One feature; all by default.")
    parser.add_argument("--requests", type=int, default=100_000, help="Requests of each simulated run.")
    parser.add_argument("--cases", action="store_true", help="A line for each case too.")
    asked = parser.parse_args()
    table = Table("feature", "case", "stable rate", "load", *SHOWN)
    for name in track([asked.feature] if asked.feature else list(FEATURES)):
        chosen = cases(FEATURES[name])
        found = np.array([errors(case, asked.requests) for case in chosen])
        stable = np.array([stable_error(case) for case in chosen])
        for place, load in enumerate(UTILIZATIONS):
            row = [spread(found[:, place, column]) for column in range(len(SHOWN))]
            table.add_row(name, f"all {len(chosen)}", spread(stable), str(load), *row)
            for number, case in enumerate(chosen if asked.cases else ()):
                cells = [f"{error:+.1%}" for error in found[number, place]]
                table.add_row(name, case.name, f"{stable[number]:+.1%}", str(load), *cells)
    Console(width=170).print(table)


def spread(errors: Floats) -> str:
    """Median of the absolute error, and the worst; what is infinite (saturated by formula) is worst."""
    worst = errors[np.argmax(np.abs(errors))]
    return f"{np.median(np.abs(errors)):.1%}, worst {worst:+.0%}"


if __name__ == "__main__":
    main()
