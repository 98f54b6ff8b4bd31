"""The pure parts of the load generator's benchmark: goals met or missed, memory of all processes, rows as text."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from rich.console import Console
from rich.table import Table

from calibration.load.pool import Workers
from calibration.load.self_check import Distortion, Protocol
from calibration.records import ClientHealth, Load
from tests.calibration.timings import Timing, logged
from validation.speed import driver

MB = 1_000_000
NAMES = {
    "requests": "gRPC, 128 streams: answered",
    "ttft": "gRPC, 128 streams: TTFT off by",
    "itl": "gRPC, 128 streams: ITL off by",
    "http": "HTTP, 256 streams: answered",
    "idle": "gRPC, 1 stream: CPU",
    "start": "cold import to the first request",
    "memory": "gRPC, 128 streams: memory",
}


def row(protocol: Protocol, users: int, processes: int = 1, **seen: float) -> driver.Row:
    """A row that meets every goal: 100 % of the ideal, 5 ms and 1 % off, 4 % of a core, 90 + 110 MB, 1.5 s."""
    per_s = {"grpc": 350.0, "http": 700.0}[protocol]
    good = Distortion(users, processes, -0.005, -0.01, per_s, per_s, 0.03, 0.03)
    cost = driver.Cost(0.04, 90 * MB, 110 * MB, 1.5)
    return driver.Row(protocol, replace(good, **cast(Any, seen)), cost, (0.021, 0.02), (0.005, 0.005))


def rows() -> list[driver.Row]:
    return [row("grpc", 1), row("grpc", 128), row("grpc", 128, 2), row("http", 256)]


def missed(measured: list[driver.Row], import_s: float = 0.5) -> list[str]:
    return [goal.name for goal in driver.goals(measured, import_s) if not goal.met]


def printed(table: Table) -> list[str]:
    """The lines of `table`."""
    console = Console(width=120, file=StringIO(), record=True)
    console.print(table)
    return console.export_text().splitlines()


def test_goals_reached_to_the_digit_are_met() -> None:
    assert [goal.name for goal in driver.goals(rows(), 0.5)] == list(NAMES.values())
    assert missed(rows()) == []


@pytest.mark.parametrize(
    ("place", "change", "goal"),
    [
        (1, {"requests_per_s": 349.9}, "requests"),
        (1, {"added_ttft_s": 0.0051}, "ttft"),
        (1, {"added_ttft_s": -0.0051}, "ttft"),
        (1, {"itl_error": -0.011}, "itl"),
        (3, {"requests_per_s": 699.0}, "http"),
    ],
)
def test_a_worse_figure_misses_its_goal_and_no_other(place: int, change: dict[str, float], goal: str) -> None:
    measured = rows()
    measured[place] = replace(measured[place], seen=replace(measured[place].seen, **cast(Any, change)))
    assert missed(measured) == [NAMES[goal]]


@pytest.mark.parametrize("place", [0, 1, 3])
def test_start_up_is_that_of_the_worst_row_and_memory_that_at_128_streams(place: int) -> None:
    measured = rows()
    cost = measured[place].cost
    measured[place] = replace(measured[place], cost=replace(cost, start_up_s=1.6))
    assert missed(measured) == [NAMES["start"]]
    measured[place] = replace(measured[place], cost=replace(cost, workers_bytes=111 * MB))
    assert missed(measured) == ([NAMES["memory"]] if place == 1 else [])


def test_the_import_is_part_of_a_cold_start() -> None:
    assert missed(rows(), import_s=0.6) == [NAMES["start"]]


def test_one_stream_is_to_leave_the_core_alone() -> None:
    measured = rows()
    measured[0] = replace(measured[0], cost=replace(measured[0].cost, cores=0.051))
    assert missed(measured) == [NAMES["idle"]]
    busy = replace(measured[1], cost=replace(measured[1].cost, cores=0.9))
    assert missed([rows()[0], busy, *rows()[2:]]) == []


def test_rows_of_more_processes_have_no_goal() -> None:
    measured = rows()
    measured[2] = row("grpc", 128, 2, requests_per_s=1.0, added_ttft_s=1.0)
    assert missed(measured) == []


def test_each_goal_is_printed_with_what_was_wanted_and_reached() -> None:
    lines = printed(driver.goals_table(driver.goals(rows(), 0.7)))
    text = {name: next(line for line in lines if name in line) for name in NAMES.values()}
    assert "≥ 350 req/s" in text[NAMES["requests"]] and "met" in text[NAMES["requests"]]
    assert "≤ 2 s" in text[NAMES["start"]] and "2.2" in text[NAMES["start"]] and "missed" in text[NAMES["start"]]
    assert sum("missed" in line for line in lines) == 1


def test_a_row_shows_the_memory_of_parent_and_workers_apart() -> None:
    cells = driver.cells(row("grpc", 1))
    assert len(cells) == len(driver.COLUMNS)
    assert cells[driver.COLUMNS.index("MB")] == "90 + 110"
    assert cells[driver.COLUMNS.index("declared")] == "ok"


@pytest.mark.parametrize("change", [{"added_ttft_s": 0.006}, {"itl_error": 0.02}, {"requests_per_s": 300.0}])
def test_a_row_that_may_not_be_trusted_is_declared(change: dict[str, float]) -> None:
    assert driver.cells(row("grpc", 128, **change))[-1] == "client-limited"


@pytest.fixture
def worker() -> Iterator[int]:
    """The pid of a process that is up and holds 64 MB, as a worker is: a program, no child of multiprocessing."""
    program = "import sys; held = b'x' * 64_000_000; print('up', flush=True); sys.stdin.read()"
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", program], **pipes) as process:
        assert process.stdout is not None and process.stdin is not None
        process.stdout.readline()
        yield process.pid
        process.stdin.close()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_the_memory_of_workers_counts(worker: int) -> None:
    log = logged([Timing(1e9, 1e9, 1e9 + 1, ((1e9 + 1, 1),), 1, 1)])
    load = Load(log, 1e9, 1e9 + 1, 1, "count", ClientHealth(cpu_cores=0.5))
    with driver.watched(cast(Workers, SimpleNamespace(pids=(worker, worker)))) as cost:
        found = cost(load)
    assert found.workers_bytes >= 2 * 64 * MB
    assert 0 < found.parent_bytes != found.workers_bytes
    assert found.cores >= 0.5
    assert found.start_up_s > 0


def test_an_open_loop_that_is_not_kept_up_with_shows_completions_and_its_verdict() -> None:
    """Ten arrivals a second apart, each answered 3 s later: in the window of 10 s come 7 answers, and TTFT is 3 s."""
    at_s = np.arange(10.0)
    log = logged(Timing(t, t + 1, t + 3, ((t + 3, 1),), 1, 1) for t in at_s)
    load = Load(log, 0.0, 10.0, 10, "schedule", offered_per_s=1.0)
    truth = driver.Truth(at_s + 1, at_s + 3, at_s + 3, at_s + 3, np.ones(10, np.int64), np.ones(10, np.int64))
    level = driver.Level(0, driver.Lengths(1, 1), "poisson_rate", 1.0, 10)
    measured = driver.metrics.measurement(load, level, driver.MOCK, source="test")
    line = printed(driver.overload_table(load, truth, measured))[-2]
    cells = [cell.strip() for cell in line.strip("│").split("│")]
    assert cells[:6] == ["1", "0.9", "0.7", "3000 ms", "2000 ms", "2000 ms"]
