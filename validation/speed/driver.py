"""The load generator against a mock of known timings: what it adds to TTFT and ITL, what it costs, where it gives up.

Run: python -m validation.speed.driver [--seconds 4]

Client and mock share the machine here; a server elsewhere leaves the mock's cores to the client. The truth is a TTFT of
20 ms, an ITL of 5 ms and 64 tokens, one in a response. Times are in milliseconds: TTFT added is the client's mean less
the mock's own, the p99 and the mean ITL are the client's and the mock's. CPU is of all client processes, the parent
included: cores, microseconds a response, share of a core of the busiest. MB is resident memory at the end, of the
parent and of its workers together. Start-up runs from the call to the first request sent, worker processes started
anew. A row is "client-limited" where TTFT is off by over 5 ms, ITL by over 1 %, or requests/s by over 9 % of the ideal.

The goals below the rows are those of the load generator, each with what was reached. An open loop comes last, which
offers more than the mock can serve (32 slots: 95.5 requests/s): the queue grows, and the point must not pass for a
steady one. Its answered/s are the completions in the window.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from calibration.load.pool import Workers
from calibration.load.self_check import (
    MOST_ADDED_TTFT_S,
    MOST_ITL_ERROR,
    Distortion,
    TrueTimes,
    distortion,
    job,
    until,
)
from calibration.metrics import measurement as metrics
from calibration.plan import Level, Protocol
from calibration.records import Load, Measurement
from lab.mock.process import running
from lab.mock.service import Script, Truth
from sizing.numbers import significant
from sizing.points import Deployment
from sizing.workload import Arrivals, Lengths

OSL = 64
TRUTH = Script(ttft_s=0.02, itl_s=0.005)
OVERLOADED = Script(ttft_s=0.02, itl_s=0.005, slots=32)
OFFERED_PER_S = 150.0
ROWS: tuple[tuple[Protocol, int, int], ...] = (  # streams, worker processes
    ("grpc", 1, 1),
    ("grpc", 32, 1),
    ("grpc", 128, 1),
    ("grpc", 128, 2),
    ("grpc", 256, 1),
    ("grpc", 256, 2),
    ("http", 256, 1),
    ("openai", 128, 1),
    ("openai", 256, 1),
)
COLUMNS = (
    *("", "streams", "workers", "req/s", "ideal", "TTFT added", "p99", "true", "ITL", "true"),
    *("cores", "µs", "busiest", "MB", "start s", "declared"),
)
LEAST_SHARE_OF_IDEAL = 0.91
MOCK = Deployment("mock", "none", "none", 1, 1, "mock", "", "", None)


@dataclass(frozen=True, slots=True)
class Cost:
    """What the client took: cores, bytes of memory of parent and workers at the end, seconds to the first request."""

    cores: float
    parent_bytes: int
    workers_bytes: int
    start_up_s: float


@dataclass(frozen=True, slots=True)
class Row:
    """One closed loop, as the client saw it and by the mock's truth."""

    protocol: Protocol
    seen: Distortion
    cost: Cost
    ttft_p99_s: tuple[float, float]
    itl_s: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Goal:
    """What the load generator is to reach: `limit` at most, or at least where `least`."""

    name: str
    reached: float
    limit: float
    unit: str
    least: bool = False

    @property
    def met(self) -> bool:
        """Whether what was reached is on the right side of the limit, or on it."""
        return self.reached >= self.limit if self.least else self.reached <= self.limit


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4.0, help="How long each row is measured.")
    seconds = parser.parse_args().seconds
    console = Console(width=160)
    table = Table(*COLUMNS)
    import_s = imports_s()
    table.title = f"TTFT 20 ms, ITL 5 ms, {OSL} tokens; importing the client takes {import_s:.2f} s"
    rows = []
    for protocol, users, processes in ROWS:
        rows.append(closed(protocol, users, seconds, processes))
        table.add_row(*cells(rows[-1]))
    console.print(table)
    console.print(goals_table(goals(rows, import_s)))
    console.print(overload(seconds))


def closed(protocol: Protocol, users: int, seconds: float, processes: int) -> Row:
    """Measure one closed loop."""
    with running(TRUTH) as mock, Workers(processes) as workers, watched(workers) as cost:
        load = workers.drive(job(mock, TRUTH.e2e_s(OSL), users, OSL, protocol), until(seconds))
        found = cost(load)
        truth = mock.truth().between(load.start_s, load.stop_s)
    times = TrueTimes(**truth.means(load.start_s, load.stop_s))
    seen = distortion(load, times, users, TRUTH.requests_per_s(users, OSL))
    sent_s = load.log.sent_s
    log = load.log.where((sent_s >= load.start_s) & (sent_s < load.stop_s) & ~load.log.failed)
    itl_s = (log.last_token_s - log.first_token_s) / (log.tokens - log.first_chunk_tokens)
    ttft_p99_s = float(np.percentile(log.first_token_s - log.sent_s, 99)), float(np.percentile(truth.ttft_s, 99))
    return Row(protocol, seen, found, ttft_p99_s, (float(itl_s.mean()), float(truth.itl_s.mean())))


def cells(row: Row) -> list[str]:
    """The row for people."""
    seen, cost = row.seen, row.cost
    return [
        *(row.protocol, f"{seen.users}", f"{seen.processes}", f"{seen.requests_per_s:.1f}", f"{seen.ideal_per_s:.1f}"),
        f"{1e3 * seen.added_ttft_s:+.2f}",
        *(f"{1e3 * p99_s:.1f}" for p99_s in row.ttft_p99_s),
        *(f"{1e3 * itl_s:.3f}" for itl_s in row.itl_s),
        f"{cost.cores:.3f}",
        f"{1e6 * cost.cores / (seen.requests_per_s * OSL):.1f}",
        f"{seen.busiest_core:.0%}",
        f"{cost.parent_bytes / 1e6:.0f} + {cost.workers_bytes / 1e6:.0f}",
        f"{cost.start_up_s:.2f}",
        declared(seen),
    ]


def goals(rows: Sequence[Row], import_s: float) -> list[Goal]:
    """The goals, all of one worker process; where no streams are said, the worst of such rows counts.

    A cold start is the import, `import_s`, and the start-up after it.
    """
    single = {(row.protocol, row.seen.users): row for row in rows if row.seen.processes == 1}
    busy, http, idle = single["grpc", 128].seen, single["http", 256].seen, single["grpc", 1]
    memory = single["grpc", 128].cost
    start_up_s = max(row.cost.start_up_s for row in single.values())
    return [
        Goal("gRPC, 128 streams: answered", busy.requests_per_s, 350, "req/s", least=True),
        Goal("gRPC, 128 streams: TTFT off by", 1e3 * abs(busy.added_ttft_s), 1e3 * MOST_ADDED_TTFT_S, "ms"),
        Goal("gRPC, 128 streams: ITL off by", 100 * abs(busy.itl_error), 100 * MOST_ITL_ERROR, "%"),
        Goal("HTTP, 256 streams: answered", http.requests_per_s, 700, "req/s", least=True),
        Goal("gRPC, 1 stream: CPU", 100 * idle.cost.cores, 5, "% of a core"),
        Goal("cold import to the first request", import_s + start_up_s, 2, "s"),
        Goal("gRPC, 128 streams: memory", (memory.parent_bytes + memory.workers_bytes) / 1e6, 200, "MB"),
    ]


def goals_table(goals: Sequence[Goal]) -> Table:
    """Each goal with what was reached, and met or missed."""
    table = Table("goal", "wanted", "reached", "", title="goals, with one worker process")
    for goal in goals:
        limit = f"{'≥' if goal.least else '≤'} {goal.limit:g} {goal.unit}"
        table.add_row(goal.name, limit, significant(goal.reached), "met" if goal.met else "missed")
    return table


def declared(seen: Distortion) -> str:
    """Whether the row may be trusted."""
    kept_up = seen.requests_per_s >= LEAST_SHARE_OF_IDEAL * seen.ideal_per_s
    return "ok" if seen.acceptable and kept_up else "client-limited"


def overload(seconds: float) -> Table:
    """The open loop at 150 requests/s on a mock that serves 95.5."""
    count = round(OFFERED_PER_S * seconds)
    arrivals_s = Arrivals.parse("poisson").times(count, OFFERED_PER_S, np.random.default_rng(0))
    with running(OVERLOADED) as mock, Workers() as workers:
        load = workers.drive(
            job(mock, OVERLOADED.e2e_s(OSL), 1, OSL, "grpc", arrivals_s=arrivals_s), until(10 * seconds)
        )
        truth = mock.truth().between(load.start_s, load.stop_s)
    level = Level(0, Lengths(128, OSL), "poisson_rate", OFFERED_PER_S, count)
    measured = metrics.measurement(load, level, MOCK, source="validation.speed.driver")
    return overload_table(load, truth, measured)


def overload_table(load: Load, truth: Truth, measured: Measurement) -> Table:
    """Offered and achieved rate, TTFT from both clocks, and the verdict."""
    sent = load.log.sent_s
    inside = (load.log.intended_s >= load.start_s) & (load.log.intended_s < load.stop_s)
    from_due_s = (load.log.first_token_s - load.log.intended_s)[inside].mean()
    from_sent_s = (load.log.first_token_s - sent)[inside].mean()
    table = Table("offered/s", "sent/s", "answered/s", "TTFT from due", "TTFT from sent", "true TTFT", "verdict")
    table.title = f"open loop, Poisson, on a mock of {OVERLOADED.requests_per_s(1_000, OSL):.1f} requests/s"
    table.add_row(
        significant(load.offered_per_s or 0.0),
        significant(int(((sent >= load.start_s) & (sent < load.stop_s)).sum()) / load.duration_s),
        significant(measured.point.requests_per_s),
        f"{1e3 * from_due_s:.0f} ms",
        f"{1e3 * from_sent_s:.0f} ms",
        f"{1e3 * truth.ttft_s.mean():.0f} ms",
        measured.point.verdict,
    )
    return table


@contextmanager
def watched(workers: Workers) -> Iterator[Callable[[Load], Cost]]:
    """Yields what gives, for the load that `workers` drove meanwhile, its cost."""
    start_s, cpu_s = time.perf_counter(), time.process_time()

    def cost(load: Load) -> Cost:
        parent = (time.process_time() - cpu_s) / (time.perf_counter() - start_s)
        return Cost(
            cores=load.client.cpu_cores + parent,
            parent_bytes=rss_bytes(os.getpid()),
            workers_bytes=sum(rss_bytes(pid) for pid in workers.pids),
            start_up_s=float(load.log.sent_s.min()) - start_s,
        )

    yield cost


def rss_bytes(pid: int) -> int:
    """Resident memory of a process, as Linux counts it."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


def imports_s() -> float:
    """Seconds that a new Python takes until the load generator is imported."""
    start_s = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import calibration.load.pool"], check=True)
    return time.perf_counter() - start_s


if __name__ == "__main__":
    main()
