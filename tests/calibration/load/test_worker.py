"""A process of the load generator: what it has done before it says that it is ready, and how it is scheduled."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Iterator
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest

from calibration.load import system, worker
from calibration.load.pool import Workers
from calibration.load.worker import STOP, Begin, Finished, Go, Ready
from calibration.metrics.precision import Until
from tests.calibration.load.test_shards import job_at
from tests.calibration.mock_server import Script, subprocess_server

CAP_SYS_NICE = 23


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with subprocess_server(Script()) as address:
        yield address


def test_no_garbage_is_collected_once_the_start_is_named(url: str) -> None:
    """A collection of 100,000 prompts takes longer than the 20 ms to the start."""
    ours, theirs = Pipe()
    job = job_at(url, users=1)
    seen: list[tuple[bool, bool]] = []
    reports: list[Any] = []

    def parent() -> None:
        ours.send(Begin(job, 0, 1, frozenset(system.usable())))
        reports.append(ours.recv())
        seen.append((gc.isenabled(), gc.get_freeze_count() > 0))
        ours.send(Go(time.perf_counter()))
        ours.send(STOP)
        while not isinstance(reports[-1], Finished):
            reports.append(ours.recv())
        ours.close()

    thread = threading.Thread(target=parent)
    thread.start()
    worker.serve(theirs)
    thread.join()
    theirs.close()
    assert isinstance(reports[0], Ready)
    assert seen == [(False, True)]
    assert gc.isenabled()


def may_be_put_first() -> bool:
    status = Path("/proc/self/status")
    if not status.exists():
        return False
    rights = next(line for line in status.read_text().splitlines() if line.startswith("CapEff"))
    return bool(int(rights.split()[1], 16) >> CAP_SYS_NICE & 1)


def test_workers_come_before_what_else_runs_on_their_cores(url: str) -> None:
    if not may_be_put_first():
        pytest.skip("needs the right to raise priorities (root)")
    with Workers() as one:
        one.drive(job_at(url, users=1), Until(requests_min=1, requests_max=2))
        (pid,) = one.pids
        assert os.getpriority(os.PRIO_PROCESS, pid) == worker.PRIORITY
        group = Path(f"/proc/{pid}/autogroup")
        if group.exists():
            assert group.read_text().split()[-1] == str(worker.PRIORITY)


def test_without_the_right_to_it_a_worker_stays_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def refused(*what: Any) -> None:
        asked.append(what)
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", refused)
    monkeypatch.setattr(Path, "write_text", refused)
    worker.be_woken_first()
    assert len(asked) == 2
