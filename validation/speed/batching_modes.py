"""In-flight against static batching on the real local Triton server: the same model, users and mixed output lengths."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table

from calibration.plan import parse_plan
from calibration.run import run
from calibration.store import Store
from lab.reference.server import ReferenceServer
from lab.reference.settings import Settings
from sizing.numbers import milliseconds, significant
from sizing.points import Point

USERS = (8, 16, 32)
PLAN = """
server: {{url: "{url}"}}
lengths: [{{isl: 64, osl: 32, isl_cv: 0.3, osl_cv: 0.8}}]
concurrency: {users}
requests_per_level: 200
"""


def measure(batching: Literal["in_flight", "static"], folder: Path) -> list[Point]:
    """The points of one batching mode, on a server of its own."""
    store = Store(f"sqlite:///{folder / batching}.db")
    with ReferenceServer(Settings(batching=batching, grpc_port=0, http_port=0, metrics_port=0)) as server:
        plan = parse_plan(PLAN.format(url=server.grpc_url, users=list(USERS)), name=batching, folder=folder)
        return store.points(run(plan, store))


def main() -> None:
    """Print requests/s and latencies of both modes."""
    table = Table("batching", "users", "requests/s", "TTFT p50", "TTFT p95", "ITL p50", "E2E p95")
    table.title = "ISL 64 (cv 0.3), OSL 32 (cv 0.8)"
    with tempfile.TemporaryDirectory() as folder:
        for mode in ("in_flight", "static"):
            for point in measure(mode, Path(folder)):
                seconds = (point.ttft_p50_s, point.ttft_p95_s, point.itl_p50_s, point.e2e_p95_s)
                cells = (milliseconds(value or float("nan")) for value in seconds)
                table.add_row(mode, significant(point.load_value), significant(point.requests_per_s), *cells)
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
