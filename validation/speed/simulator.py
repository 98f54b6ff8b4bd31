"""Speed of the simulator: compile time, then requests/s on one core at several loads.

Run: python -m validation.speed.simulator
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import numpy as np

from sizing.engine import POLICIES, Batching, Replica, StepLaw
from sizing.simulator import simulate, simulated_stable_rate_per_s
from sizing.simulator.fleet import run_stream
from sizing.simulator.state import engine_of, idle_states, requests_of, work_space
from sizing.workload import ROUTINGS, Lengths, Workload

LAW = StepLaw(4.8e-3, 1e-3, 20e-6, 10e-6, 49e-9, attention_s=1.3e-9)
MIXES = (Lengths(128, 128, 0.5, 0.8), Lengths(1000, 1000, 0.5, 0.8), Lengths(2000, 256, 0.5, 0.8))
REQUESTS = 100_000


def best_s(work: Callable[[], object]) -> float:
    """Wall seconds of the best of five runs."""
    spent_s = []
    for _ in range(5):
        start = perf_counter()
        work()
        spent_s.append(perf_counter() - start)
    return min(spent_s)


def events_s(replica: Replica, load: Workload) -> float:
    """Seconds of the events alone: lengths and arrivals are drawn beforehand."""
    rng = np.random.default_rng(0)
    isl, osl = load.lengths.sample(REQUESTS, rng)
    run = requests_of(isl, osl, np.cumsum(load.arrivals.gaps(REQUESTS, load.rate_per_s, rng)))
    engine = engine_of(replica)
    return best_s(lambda: run_stream(engine, idle_states(1), work_space(replica, 1), run))


def main() -> None:
    start = perf_counter()
    for routing in ROUTINGS:
        simulate(Replica(LAW), Workload(MIXES[0], 1.0), replicas=2, routing=routing, requests=100)
    print(f"first use, compiling or loading machine code: {perf_counter() - start:.2f} s")
    print(f"{REQUESTS} requests   ISL/OSL   load   events ms   M requests/s   whole call ms")
    for policy in POLICIES:
        replica = Replica(LAW, Batching(policy, kv_tokens=400_000))
        for lengths in MIXES:
            for share in (0.3, 0.8):
                load = Workload(lengths, share * simulated_stable_rate_per_s(replica, lengths))
                events, whole = events_s(replica, load), best_s(lambda: simulate(replica, load))  # noqa: B023
                mix = f"{lengths.isl:g}/{lengths.osl:g}"
                speed = REQUESTS / events / 1e6
                print(f"{policy:14} {mix:>11} {share:6.1f} {events * 1e3:11.1f} {speed:14.2f} {whole * 1e3:15.1f}")
    replica, lengths = Replica(LAW), MIXES[1]
    load = Workload(lengths, 64 * 0.8 * simulated_stable_rate_per_s(replica, lengths))
    for routing in ROUTINGS:
        whole = best_s(lambda: simulate(replica, load, replicas=64, routing=routing))  # noqa: B023
        print(f"64 replicas, {routing:18} whole call {whole * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
