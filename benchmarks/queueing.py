"""Milliseconds per analytic prediction, by batching policy: what a planner pays for each step of a bisection."""

from __future__ import annotations

import time

from rich.console import Console
from rich.table import Table

from sizing.queueing import predict, stable_rate_per_s
from sizing.replica import POLICIES, Batching, Replica
from sizing.steptime import StepLaw
from sizing.workload import Lengths, Workload

LAW = StepLaw(4.8e-3, 1e-3, 20e-6, 10e-6, 48.9e-9, 1.3e-9)
LENGTHS = (Lengths(1000, 1000), Lengths(2000, 256, 0.5, 0.8))
REPEATS = 30


def median_ms(replica: Replica, lengths: Lengths, replicas: int) -> float:
    """Median milliseconds of predictions at utilizations from 0.3 to 0.9, after one to warm the caches."""
    stable = stable_rate_per_s(replica, lengths)
    taken_s = []
    for repeat in range(-1, REPEATS):
        workload = Workload(lengths, replicas * stable * (0.3 + 0.6 * max(repeat, 0) / REPEATS))
        start_s = time.perf_counter()
        predict(replica, workload, replicas=replicas, routing="round_robin")
        taken_s.append(time.perf_counter() - start_s)
    return 1e3 * sorted(taken_s[1:])[REPEATS // 2]


def main() -> None:
    table = Table("policy", "lengths", "one replica, ms", "16 replicas, round robin, ms")
    for policy in POLICIES:
        for lengths in LENGTHS:
            replica = Replica(LAW, Batching(policy, kv_tokens=400_000))
            name = f"{lengths.isl:g}/{lengths.osl:g} {'equal' if lengths.fixed else 'lognormal'}"
            table.add_row(policy, name, *(f"{median_ms(replica, lengths, count):.1f}" for count in (1, 16)))
    Console().print(table)


if __name__ == "__main__":
    main()
