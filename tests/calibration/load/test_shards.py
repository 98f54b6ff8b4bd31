"""The load generator as a whole, in processes of its own, against a mock in another: windows, stops, deaths."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from calibration.errors import Cancelled, PlanError, ServerError, WorkerError
from calibration.load import pool
from calibration.load.loops import Job
from calibration.load.pool import Workers
from calibration.metrics.precision import Until
from calibration.metrics.verdict import LITTLE_ALLOWED, judge, little
from calibration.metrics.window import sample
from calibration.plan import ALL_OF_THEM, Level, ServerPlan
from calibration.requests.lengths import LengthsPlan
from calibration.requests.source import RequestSource
from calibration.target import describe
from sizing.workload import Lengths
from tests.calibration.mock_server import ROOT, Script, subprocess_server

OSL = 4
SCRIPT = Script(ttft_s=0.02, itl_s=0.005)
SECOND = Until(requests_min=10**6, budget_s=1.0)


def job_at(url: str, **changes: object) -> Job:
    server = ServerPlan(url=url, timeout_s=30)
    contract = asyncio.run(describe(server)).contract
    source = RequestSource(LengthsPlan(isl=3, osl=OSL), None, False, (1, 2))
    return replace(Job(server, contract, source, users=4, warm_up=1, ahead=40), **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with subprocess_server(SCRIPT) as address:
        yield address


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers(2) as both:
        yield both


def test_two_processes_keep_the_load_of_one_job(url: str, workers: Workers) -> None:
    """Users, window and log are those of the whole, and in flight are exactly the users, by Little's law."""
    told: list[float] = []
    load = workers.drive(job_at(url, users=5, ramp_s=0.05), SECOND, on_share=told.append)
    log = load.log
    assert load.client.processes == 2
    assert load.ended == "budget"
    assert load.offered_per_s is None
    assert load.duration_s >= 1.0
    assert not log.failed.any()
    inside_s = np.minimum(log.end_s, load.stop_s) - np.maximum(log.sent_s, load.start_s)
    assert np.maximum(0, inside_s).sum() / load.duration_s == pytest.approx(5, rel=0.1)
    assert load.issued == ((log.sent_s >= load.start_s) & (log.sent_s < load.stop_s)).sum()
    assert (log.end_s <= load.start_s).sum() >= 5
    assert 0 < load.client.busiest_core <= load.client.cpu_cores
    assert 0 <= load.client.loop_lag_p99_s < 10
    assert told and min(told) >= 0 and max(told) <= 1


def test_an_open_loop_over_two_processes_sends_every_arrival_once(url: str, workers: Workers) -> None:
    arrivals_s = 0.1 + np.arange(40) * 0.01
    load = workers.drive(job_at(url, users=None, arrivals_s=arrivals_s, warm_up=10), SECOND)
    planned_s = load.start_s - arrivals_s[10] + arrivals_s
    assert np.sort(load.log.intended_s) == pytest.approx(planned_s, abs=1e-6)
    assert load.ended == "schedule"
    assert load.stop_s == pytest.approx(planned_s[-1])
    assert load.issued == 29
    assert load.offered_per_s == pytest.approx(29 / load.duration_s)
    assert (load.log.sent_s >= load.log.intended_s - 1e-6).all()


def test_the_share_of_arrivals_that_are_all_sent_is_that_of_their_time(url: str, workers: Workers) -> None:
    told: list[float] = []
    arrivals_s = 0.02 * np.arange(1, 41)
    whole = Until(requests_min=ALL_OF_THEM)
    workers.drive(job_at(url, users=None, arrivals_s=arrivals_s, warm_up=0), whole, on_share=told.append)
    assert told == sorted(told) and told[0] < 0.5 and told[-1] == 1


def test_an_open_loop_is_cut_where_the_rule_says(url: str, workers: Workers) -> None:
    arrivals_s = 0.01 * np.arange(1, 2_001)
    until = Until(requests_min=1, requests_max=20)
    load = workers.drive(job_at(url, users=None, arrivals_s=arrivals_s, warm_up=5), until)
    assert load.ended == "count"
    assert 20 <= load.issued < 1_000
    assert load.log.sent_s.max() <= load.stop_s + 1.0


def test_requests_made_while_it_runs_are_those_of_the_plan_too(url: str, workers: Workers) -> None:
    load = workers.drive(job_at(url, ahead=0), Until(requests_min=1, requests_max=30))
    assert set(load.log.isl.tolist()) == {3}
    assert set(load.log.osl.tolist()) == {OSL}
    assert load.log.tokens.tolist() == [OSL] * len(load.log)


def trace_of(rows: int, folder: Path) -> RequestSource:
    trace = folder / f"{rows}.csv"
    trace.write_text("arrival_s,isl,osl\n" + "".join(f"{number},3,{OSL}\n" for number in range(rows)))
    return RequestSource(LengthsPlan(trace=str(trace)), None, False, (1,))


def test_requests_that_run_out_end_the_level(tmp_path: Path, url: str, workers: Workers) -> None:
    load = workers.drive(job_at(url, source=trace_of(40, tmp_path)), SECOND)
    assert load.ended == "schedule"
    assert 30 <= len(load.log) <= 40
    with Workers() as one, pytest.raises(PlanError, match="before every user was warm"):
        one.drive(job_at(url, source=trace_of(2, tmp_path)), SECOND)


def test_requests_that_run_out_end_the_window_of_an_open_loop_in_every_process(
    tmp_path: Path, url: str, workers: Workers
) -> None:
    """The rate is that of the arrivals which had a request, not thinned by those to come."""
    arrivals_s = 0.01 * np.arange(1, 151)
    open_job = job_at(url, users=None, arrivals_s=arrivals_s, warm_up=5, source=trace_of(40, tmp_path))
    load = workers.drive(open_job, Until(requests_min=10**6))
    assert load.ended == "schedule"
    assert load.duration_s == pytest.approx(arrivals_s[40] - arrivals_s[5])
    assert len(load.log) == 40
    assert load.issued == 35
    assert load.offered_per_s == pytest.approx(100)


def test_how_the_client_fared_is_that_of_the_window_alone() -> None:
    """The worker stands still for 0.3 s while the last answer is waited for: nothing in the window is late by it."""
    looks: list[float] = []

    def hold(share: float) -> None:
        looks.append(share)
        if sum(look >= 1 for look in looks) == 3:  # the stop was told after the first
            os.kill(one.pids[0], signal.SIGSTOP)
            time.sleep(0.3)
            os.kill(one.pids[0], signal.SIGCONT)

    with subprocess_server(Script(ttft_s=0.9)) as slow, Workers() as one:
        until = Until(requests_min=10**6, budget_s=0.3)
        load = one.drive(job_at(slow, users=1, warm_up=0), until, on_share=hold)
    assert load.log.end_s.max() - load.stop_s > 0.3
    assert load.client.loop_lag_p99_s < 0.15


def test_users_who_wait_for_a_late_final_response_are_busy_by_littles_law(workers: Workers) -> None:
    with subprocess_server(Script(ttft_s=0.05, itl_s=0.01, late_final_s=0.04)) as late:
        load = workers.drive(job_at(late, users=4), SECOND)
    at = Level(0, Lengths(3, OSL), "concurrency", 4, 1)
    _, whole = little(load, 4)
    assert whole == pytest.approx(1, abs=LITTLE_ALLOWED)
    assert not any(reason.startswith("little") for reason in judge(load, at, sample(load))[1])


def test_workers_stay_off_the_cores_that_the_parent_leaves_to_the_engine(url: str, workers: Workers) -> None:
    if not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores and a system that binds processes to them")
    seen: list[set[int]] = []
    before = os.sched_getaffinity(0)
    left = set(sorted(before)[:1])
    short = Until(requests_min=1, requests_max=2)
    workers.drive(job_at(url, users=1), short)
    try:
        os.sched_setaffinity(0, left)
        tell = lambda share: seen.append(os.sched_getaffinity(workers.pids[0]))  # noqa: E731
        workers.drive(job_at(url, users=1), short, on_share=tell)
    finally:
        os.sched_setaffinity(0, before)
    assert seen
    assert all(cores == left for cores in seen)


def test_an_open_loop_needs_arrivals_beyond_its_warm_up(url: str) -> None:
    with pytest.raises(PlanError, match="3 arrivals, of which 2 are warm-up"):
        Workers().drive(job_at(url, users=None, arrivals_s=np.arange(3.0), warm_up=2), SECOND)


def test_failures_end_a_level_that_no_interval_will_ever_end(workers: Workers) -> None:
    with subprocess_server(Script(ttft_s=0.001, itl_s=0, error_every=1)) as bad:
        load = workers.drive(job_at(bad), Until())
    assert load.log.failed.all()
    assert set(load.log.error) == {"out of blocks"}
    assert load.ended == "failing"


@pytest.mark.long
def test_a_server_that_dies_is_a_server_error_and_the_workers_go_on_afterwards(url: str) -> None:
    with Workers(2) as both:
        with subprocess_server(Script(die_after=30)) as mortal, pytest.raises(ServerError, match="stopped answering"):
            both.drive(job_at(mortal), Until(requests_min=10**6))
        assert not both.pids
        load = both.drive(job_at(url, users=1), Until(requests_min=1, requests_max=10))
        assert not load.log.failed.any()


def test_nobody_at_the_address_is_a_server_error(url: str) -> None:
    job = job_at(url)
    with Workers() as workers, pytest.raises(ServerError, match=r"127\.0\.0\.1:9: no Triton server"):
        workers.drive(replace(job, server=ServerPlan(url="127.0.0.1:9")), SECOND)


@pytest.mark.long
def test_a_worker_that_dies_is_named_and_leaves_nobody_behind(url: str) -> None:
    pids: tuple[int, ...] = ()

    def kill_one(share: float) -> None:
        nonlocal pids
        pids = both.pids
        os.kill(pids[0], signal.SIGKILL)

    with Workers(2) as both, pytest.raises(WorkerError, match="exit code -9"):
        both.drive(job_at(url), Until(requests_min=10**6), on_share=kill_one)
    assert len(pids) == 2
    assert gone(pids)


def test_cancel_takes_effect_while_requests_are_in_flight() -> None:
    cancel = threading.Event()
    with subprocess_server(Script(ttft_s=60)) as slow, Workers() as one:
        threading.Timer(1.0, cancel.set).start()
        with pytest.raises(Cancelled):
            one.drive(job_at(slow), Until(), cancel=cancel)
        assert not one.pids


@pytest.mark.long
def test_workers_end_with_a_parent_that_is_killed(url: str) -> None:
    """A parent of its own is killed with -9 in the middle of a level; its workers are gone soon after."""
    code = (
        "import sys; from tests.calibration.load.test_shards import job_at, Workers, Until\n"
        "with Workers() as one:\n"
        "    tell = lambda share: print(*one.pids, flush=True)\n"
        "    one.drive(job_at(sys.argv[1]), Until(requests_min=10**6), on_share=tell)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, url], stdout=subprocess.PIPE, cwd=ROOT, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        parent.kill()
    assert len(pids) == 1
    assert gone(pids)


@pytest.mark.long
def test_ctrl_c_ends_a_level_and_its_workers(url: str) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell ignores for what it runs in the background
    pids: tuple[int, ...] = ()

    def interrupt(share: float) -> None:
        nonlocal pids
        pids = one.pids
        signal.raise_signal(signal.SIGINT)

    with Workers() as one, pytest.raises(KeyboardInterrupt):
        one.drive(job_at(url), Until(requests_min=10**6), on_share=interrupt)
    assert gone(pids)


def test_a_level_can_be_driven_without_a_pool(url: str) -> None:
    load = pool.drive(job_at(url, users=1), Until(requests_min=1, requests_max=5), processes=4)
    assert load.client.processes == 1  # no more than users
    assert load.ended == "count"


def alive(pid: int) -> bool:
    """False for a process that has ended, also where nobody has asked for its exit code yet."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def gone(pids: Sequence[int]) -> bool:
    """True as soon as none of `pids` is a process any more, within ten seconds."""
    ends_s = time.monotonic() + 10
    while any(map(alive, pids)):
        if time.monotonic() > ends_s:
            return False
        time.sleep(0.02)
    return bool(pids)
