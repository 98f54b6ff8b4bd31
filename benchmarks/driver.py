"""The load generator against a mock of known timings: what it adds to TTFT and ITL, what it costs, where it gives up.

Run: python -m benchmarks.driver [--seconds 4]

Client and mock share the machine here; a server elsewhere leaves the mock's cores to the client. The truth is a TTFT of
20 ms, an ITL of 5 ms and 64 tokens, one in a response. Times are in milliseconds: TTFT added is the client's mean less
the mock's own, the p99 and the mean ITL are the client's and the mock's. CPU is of all client processes, the parent
included: cores, microseconds a response, share of a core of the busiest; RSS is theirs in MB at the end. Start-up runs
from the call to the first request sent, worker processes started anew. A row is "client-limited" where TTFT is off by
over 5 ms, ITL by over 1 %, or requests/s by over 9 % of the ideal.

The last table offers more than the mock can serve (32 slots: 95.5 requests/s) in an open loop: the queue grows, and the
point must not pass for a steady one.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from calibration.load.arrivals import arrival_times
from calibration.load.self_check import Distortion, Protocol, distortion, job, until
from calibration.load.shards import Workers
from calibration.metrics import measurement as metrics
from calibration.mock import Script, Truth, running
from calibration.plan import Level
from calibration.records import Load, Measurement
from sizing.curves import Deployment
from sizing.numbers import significant
from sizing.workload import Arrivals, Lengths, Seconds

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
)
COLUMNS = (
    *("", "streams", "workers", "req/s", "ideal", "TTFT added", "p99", "true", "ITL", "true"),
    *("cores", "µs", "busiest", "RSS", "start s", "declared"),
)
LEAST_SHARE_OF_IDEAL = 0.91
MOCK = Deployment("mock", "none", "none", 1, 1, "mock", "", "", None)


@dataclass(frozen=True, slots=True)
class Cost:
    """What the client's processes took: cores, bytes of memory at the end, seconds until the first request."""

    cores: float
    rss_bytes: int
    start_up_s: float


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4.0, help="How long each row is measured.")
    seconds = parser.parse_args().seconds
    console = Console(width=150)
    table = Table(*COLUMNS)
    table.title = f"TTFT 20 ms, ITL 5 ms, {OSL} tokens; importing the client takes {imports_s():.2f} s"
    for protocol, users, processes in ROWS:
        table.add_row(protocol, f"{users}", f"{processes}", *closed(protocol, users, seconds, processes))
    console.print(table)
    console.print(overload(seconds))


def closed(protocol: Protocol, users: int, seconds: float, processes: int) -> list[str]:
    """The row of one closed loop."""
    with running(TRUTH) as mock, Workers(processes) as workers, watched() as cost:
        load = workers.drive(job(mock, TRUTH, users, OSL, protocol), until(seconds))
        found = cost(load)
        truth = mock.truth().between(load.start_s, load.stop_s)
    seen = distortion(load, truth, users, TRUTH.requests_per_s(users, OSL), mock_cores=0.0)
    log = load.log.where((load.log.sent_s >= load.start_s) & (load.log.sent_s < load.stop_s))
    ttft_p99_s = np.percentile(log.first_token_s - log.sent_s, 99)
    itl_s = float(np.mean((log.last_token_s - log.first_token_s) / (log.tokens - log.first_chunk_tokens)))
    return [
        f"{seen.requests_per_s:.1f}",
        f"{seen.ideal_per_s:.1f}",
        f"{1e3 * seen.added_ttft_s:+.2f}",
        f"{1e3 * ttft_p99_s:.1f}",
        f"{1e3 * np.percentile(truth.ttft_s, 99):.1f}",
        f"{1e3 * itl_s:.3f}",
        f"{1e3 * truth.itl_s.mean():.3f}",
        f"{found.cores:.3f}",
        f"{1e6 * found.cores / (seen.requests_per_s * OSL):.1f}",
        f"{load.client.busiest_core:.0%}",
        f"{found.rss_bytes / 1e6:.0f}",
        f"{found.start_up_s:.2f}",
        declared(seen),
    ]


def declared(seen: Distortion) -> str:
    """Whether the row may be trusted."""
    kept_up = seen.requests_per_s >= LEAST_SHARE_OF_IDEAL * seen.ideal_per_s
    return "ok" if seen.acceptable and kept_up else "client-limited"


def overload(seconds: float) -> Table:
    """The open loop at 150 requests/s on a mock that serves 95.5."""
    count = round(OFFERED_PER_S * seconds)
    arrivals_s = poisson_s(count)
    with running(OVERLOADED) as mock, Workers() as workers:
        load = workers.drive(job(mock, OVERLOADED, 1, OSL, "grpc", arrivals_s=arrivals_s), until(10 * seconds))
        truth = mock.truth().between(load.start_s, load.stop_s)
    level = Level(0, Lengths(128, OSL), "poisson_rate", OFFERED_PER_S, count)
    measured = metrics.measurement(load, level, MOCK, source="benchmarks.driver")
    return overload_table(load, truth, measured)


def poisson_s(count: int) -> Seconds:
    """`count` arrivals at the offered rate, in seconds from the start."""
    return arrival_times(Arrivals.parse("poisson"), OFFERED_PER_S, count, np.random.default_rng(0))


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
def watched() -> Iterator[Callable[[Load], Cost]]:
    """Yields what gives, for the load that was driven meanwhile, its cost."""
    start_s, cpu_s = time.perf_counter(), time.process_time()

    def cost(load: Load) -> Cost:
        parent = (time.process_time() - cpu_s) / (time.perf_counter() - start_s)
        pids = [os.getpid(), *(child.pid for child in multiprocessing.active_children() if child.pid)]
        return Cost(
            cores=load.client.cpu_cores + parent,
            rss_bytes=sum(rss_bytes(pid) for pid in pids),
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
    subprocess.run([sys.executable, "-c", "import calibration.load.shards"], check=True)
    return time.perf_counter() - start_s


if __name__ == "__main__":
    main()
