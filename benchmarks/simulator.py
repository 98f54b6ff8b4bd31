"""Speed of the simulator: compile time, then requests/s on one core at several loads. Run: python -m benchmarks.simulator"""

from __future__ import annotations

from time import perf_counter

from sizing.replica import POLICIES, Batching, Replica
from sizing.simulator import simulate, stable_rate_per_s
from sizing.steptime import StepLaw
from sizing.workload import ROUTINGS, Lengths, Workload

LAW = StepLaw(4.8e-3, 1e-3, 20e-6, 10e-6, 49e-9, attention_s=1.3e-9)
MIXES = (Lengths(128, 128, 0.5, 0.8), Lengths(1000, 1000, 0.5, 0.8), Lengths(2000, 256, 0.5, 0.8))
REQUESTS = 100_000


def seconds(replica: Replica, load: Workload, **options: object) -> float:
    """Wall seconds of the best of three runs of 100,000 requests, drawing lengths and arrivals included."""
    best = float("inf")
    for _ in range(3):
        start = perf_counter()
        simulate(replica, load, requests=REQUESTS, **options)  # type: ignore[arg-type]
        best = min(best, perf_counter() - start)
    return best


def main() -> None:
    start = perf_counter()
    for routing in ROUTINGS:
        simulate(Replica(LAW), Workload(MIXES[0], 1.0), replicas=2, routing=routing, requests=100)
    print(f"first use, compiling or loading machine code: {perf_counter() - start:.2f} s")
    print(f"{'policy':14} {'ISL/OSL':>10} {'load':>5} {'ms':>7} {'M requests/s':>13}")
    for policy in POLICIES:
        replica = Replica(LAW, Batching(policy, kv_tokens=400_000))
        for lengths in MIXES:
            for share in (0.3, 0.8):
                spent_s = seconds(replica, Workload(lengths, share * stable_rate_per_s(replica, lengths)))
                mix = f"{lengths.isl:g}/{lengths.osl:g}"
                print(f"{policy:14} {mix:>10} {share:5.1f} {spent_s * 1e3:7.1f} {REQUESTS / spent_s / 1e6:13.2f}")
    replica, lengths = Replica(LAW), MIXES[1]
    load = Workload(lengths, 64 * 0.8 * stable_rate_per_s(replica, lengths))
    for routing in ROUTINGS:
        spent_s = seconds(replica, load, replicas=64, routing=routing)
        print(f"64 replicas, {routing:18} {spent_s * 1e3:7.1f} ms")


if __name__ == "__main__":
    main()
