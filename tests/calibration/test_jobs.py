"""Runs started from the app: processes of their own that are watched, stopped, lost, resumed and accepted."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration import jobs
from calibration.errors import PlanError, ServerError, StoreAway, StoreError
from calibration.plan import Answering, PlanFile, parse_plan
from calibration.store import DATABASE_VARIABLE, LIVE, Run, Store
from calibration.store.work import accept, discard, enqueue, hand_over, work
from tests.calibration.mock_server import Script, subprocess_server
from tests.calibration.openai_server import MODEL, Manners, openai_server

WITHIN_S = 60.0
QUICK = "concurrency: [1, 3]\nrequests_per_level: 12\n"
LONG = "concurrency: [1, 2]\nuntil: {half_width: 0.0001, requests_min: 1000000}\nbudget_s: 60\n"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with subprocess_server(Script(ttft_s=0.004, itl_s=0.001)) as url:
        yield url


@pytest.fixture
def allowed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(jobs.ALLOW_VARIABLE, "1")
    monkeypatch.setenv(jobs.TARGETS_VARIABLE, f"gpu-7:8001, {url}")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store; what runs on it at the end of a test is ended."""
    store = Store(f"sqlite:///{tmp_path / 'points.db'}")
    yield store
    for run in store.runs():
        if run.state in LIVE:
            os.killpg(work(store, run.id).owner.pid, signal.SIGKILL)
    for child in jobs._children:
        child.wait(10)


def plan(url: str, levels: str = QUICK) -> PlanFile:
    head = f"server: {{url: '{url}'}}\nlengths: [{{isl: 6, osl: 4, isl_cv: 0, osl_cv: 0}}]\n"
    return parse_plan(f"{head}{levels}check_load: 0\nclient: {{self_check: false}}\n")


def when(store: Store, run_id: int, reached: Callable[[Run], bool]) -> Run:
    """The run, once it is so."""
    deadline_s = time.monotonic() + WITHIN_S
    while not reached(run := store.run(run_id)):
        assert time.monotonic() < deadline_s, (run, jobs.log_tail(store, run_id))
        time.sleep(0.05)
    return run


def measuring(store: Store, run_id: int) -> None:
    """Wait until the first level is being measured."""
    when(store, run_id, lambda run: "concurrency" in work(store, run_id).phase)


def ended(store: Store, run_id: int) -> Run:
    return when(store, run_id, lambda run: run.state not in LIVE)


@pytest.mark.usefixtures("allowed")
def test_a_run_goes_on_by_itself_and_its_points_wait_to_be_accepted(
    store: Store, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OIDC_CLIENT_SECRET", "not for runs")
    run_id = jobs.start(store, plan(url))
    owner = work(store, run_id).owner
    assert owner.pid not in (0, os.getpid()) and os.getsid(owner.pid) == owner.pid
    environment = Path(f"/proc/{owner.pid}/environ").read_bytes()
    assert DATABASE_VARIABLE.encode() in environment and b"not for runs" not in environment
    run = ended(store, run_id)
    assert (run.state, run.points, run.levels, run.pending, run.error) == ("done", 2, 2, 2, "")
    assert run.target == url
    assert len(store.points(run_id)) == 2 and store.points() == []
    told = work(store, run_id)
    assert [line for line in told.log.split("\n") if line.startswith("ISL 6, OSL 4, concurrency 3: ")]
    assert (accept(store, run_id), accept(store, run_id)) == (2, 0)
    assert store.points() == store.points(run_id)
    assert (discard(store, run_id), store.points(), store.run(run_id).discarded) == (2, [], 2)
    folder = store.folder(run_id)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert (folder / jobs.PLAN_FILE).read_text() == run.plan
    assert "concurrency 3" in jobs.log_tail(store, run_id)


@pytest.mark.usefixtures("allowed")
def test_a_run_that_is_stopped_drops_its_level_and_is_resumed_by_the_page_or_by_hand(store: Store, url: str) -> None:
    run_id = jobs.start(store, plan(url, LONG))
    measuring(store, run_id)
    with pytest.raises(StoreError, match=f"{url} is being measured by run {run_id}"):
        jobs.start(store, plan(url))
    with pytest.raises(StoreError, match="is being measured"):
        jobs.go_on(store, run_id)
    jobs.stop(store, run_id)
    run = ended(store, run_id)
    assert (run.state, run.points) == ("interrupted", 0) and "cancelled" in run.error
    jobs.go_on(store, run_id)
    measuring(store, run_id)  # the request to stop was for the run before
    assert work(store, run_id).stopping_for_s is None
    jobs.stop(store, run_id)
    ended(store, run_id)


@pytest.mark.usefixtures("allowed")
def test_a_killed_run_is_lost_with_its_points_kept_and_goes_on(store: Store, url: str) -> None:
    slow = "concurrency: [1, 2]\nrequests_per_level: 60\n"
    run_id = jobs.start(store, plan(url, slow))
    when(store, run_id, lambda run: run.points == 1)
    os.killpg(work(store, run_id).owner.pid, signal.SIGKILL)
    assert when(store, run_id, lambda run: run.state != "running").state == "lost"
    jobs.go_on(store, run_id)
    run = ended(store, run_id)
    assert (run.state, run.points, run.pending) == ("done", 2, 2)


@pytest.mark.usefixtures("allowed")
def test_a_run_that_does_not_answer_is_ended_by_force(store: Store, url: str) -> None:
    run_id = jobs.start(store, plan(url, LONG))
    measuring(store, run_id)
    os.kill(work(store, run_id).owner.pid, signal.SIGSTOP)
    jobs.ask_to_stop(store, run_id)
    jobs.seen_to(store, run_id, patience_s=0.4)
    run = store.run(run_id)
    assert (run.state, run.error) == ("interrupted", "it did not stop when requested, and was terminated")


@pytest.mark.usefixtures("allowed")
def test_a_run_is_seen_to_although_the_database_is_away_for_a_moment(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program locks the file while a run that does not react is waited for."""
    monkeypatch.setattr("calibration.store.database.WAIT_FOR_LOCK_S", 0.05)
    monkeypatch.setattr(jobs, "ASK_AGAIN_AFTER_S", 0.05)
    store = Store(f"sqlite:///{tmp_path / 'locked.db'}")
    sleeper = subprocess.Popen(["sleep", "600"], start_new_session=True)
    with sleeper, ExitStack() as at_last:
        at_last.callback(sleeper.kill)
        other = at_last.enter_context(closing(sqlite3.connect(tmp_path / "locked.db", isolation_level=None)))
        run_id = enqueue(store, "plan", label="", target=url)
        hand_over(store, run_id, sleeper.pid)
        other.execute("PRAGMA locking_mode=EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreAway):
            store.run(run_id)
        watch = threading.Thread(target=jobs.seen_to, args=(store, run_id, 0.4))
        watch.start()
        watch.join(1.0)
        assert watch.is_alive() and sleeper.poll() is None, "the time without a database does not count"
        other.close()
        watch.join(WITHIN_S)
        assert sleeper.wait(WITHIN_S) == -signal.SIGTERM
        watch.join(WITHIN_S)
    run = store.run(run_id)
    assert (run.state, run.error) == ("interrupted", "it did not stop when requested, and was terminated")


@pytest.mark.usefixtures("allowed")
def test_a_run_whose_process_never_started_can_be_stopped(
    store: Store, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database is away between the queueing and the start: the run has the app itself for an owner, which lives."""

    def away(run_id: int) -> Path:
        raise StoreAway("the database does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(store, "folder", away)
        with pytest.raises(StoreAway):
            jobs.start(store, plan(url))
    (run,) = store.runs()
    assert run.state == "queued"
    jobs.ask_to_stop(store, run.id)
    jobs.seen_to(store, run.id, patience_s=0.3)
    ended_run = store.run(run.id)
    assert (ended_run.state, ended_run.error) == ("interrupted", "it was stopped before its process had started")
    jobs.stop(store, jobs.start(store, plan(url)))  # the server is free again


def test_a_run_that_ended_of_itself_is_not_said_to_be_terminated(store: Store, url: str) -> None:
    run_id = store.create_run("plan", target=url)
    store.finish_run(run_id, "failed", "why")
    jobs.seen_to(store, run_id, patience_s=0.3)
    assert (store.run(run_id).state, store.run(run_id).error) == ("failed", "why")


@pytest.mark.usefixtures("allowed")
def test_a_run_that_cannot_begin_says_why(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(jobs.TARGETS_VARIABLE, "127.0.0.1:9")
    run_id = jobs.start(store, plan("127.0.0.1:9"))
    run = ended(store, run_id)
    assert run.state == "failed" and "127.0.0.1:9" in run.error
    jobs.go_on(store, run_id)  # the server may be up now
    assert ended(store, run_id).state == "failed"


def test_nothing_starts_unless_the_operator_says_so(store: Store, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(jobs.TARGETS_VARIABLE, url)
    monkeypatch.delenv(jobs.ALLOW_VARIABLE, raising=False)
    with pytest.raises(PlanError, match=f"{jobs.ALLOW_VARIABLE}=1"):
        jobs.start(store, plan(url))
    with pytest.raises(PlanError, match=f"{jobs.ALLOW_VARIABLE}=1"):
        jobs.stop(store, 1)
    monkeypatch.setenv(jobs.ALLOW_VARIABLE, "1")
    with pytest.raises(PlanError, match=r"^gpu-8:8001 is not on the operator's list"):
        jobs.start(store, plan("gpu-8:8001"))
    metrics = plan(url).text.replace("server: {", "server: {metrics_url: 'http://10.0.0.1:80/metrics', ")
    with pytest.raises(PlanError, match=r"^10\.0\.0\.1:80 is not on the operator's list"):
        jobs.start(store, parse_plan(metrics))
    monkeypatch.delenv(jobs.TARGETS_VARIABLE)
    with pytest.raises(PlanError, match="not on the operator's list"):
        jobs.start(store, plan(url))
    assert store.runs() == []


def test_runs_of_the_command_line_cannot_be_resumed_at_servers_off_the_list(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(jobs.ALLOW_VARIABLE, "1")
    run_id = store.create_run("plan", target="gpu-9:8001")
    store.finish_run(run_id, "interrupted")
    with pytest.raises(PlanError, match="gpu-9:8001 is not on"):
        jobs.go_on(store, run_id)
    assert store.run(run_id).state == "interrupted"


host = st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,10}[a-z0-9])?", fullmatch=True)


@given(st.lists(st.tuples(host, st.integers(1, 65535)), max_size=4), st.sampled_from([",", " ,", ", "]))
def test_a_list_of_servers_comes_back(pairs: list[tuple[str, int]], between: str) -> None:
    named = [f"{name}:{port}" for name, port in pairs]
    assert jobs.parse_targets(between.join(named).upper()) == (tuple(dict.fromkeys(named)), ())


@pytest.mark.parametrize(
    "entry", ["gpu-7", "gpu-7:0", "gpu-7:65536", "http://a:1", "a b:1", "a:1/x", "user@a:1", "$(id):1", "-x:1", ":1"]
)
def test_what_is_no_host_and_port_is_not_a_server(entry: str) -> None:
    assert jobs.parse_targets(f"{entry},ok:1") == (("ok:1",), (entry,))


@pytest.mark.parametrize("key", ["", "sk-right", "sk-wrong"])
def test_only_a_listed_server_is_asked_what_it_speaks_and_the_key_goes_to_who_wants_one(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(jobs.ALLOW_VARIABLE, "1")
    monkeypatch.setenv(jobs.KEY_VARIABLE, key)
    for wants in ("", "sk-right"):
        with openai_server(Manners(key=wants)) as server:
            target = server.url.removeprefix("http://")
            monkeypatch.setenv(jobs.TARGETS_VARIABLE, "gpu-7:8001")
            with pytest.raises(PlanError, match="not on the operator's list"):
                jobs.answering_at(target)
            assert server.heads == []
            monkeypatch.setenv(jobs.TARGETS_VARIABLE, target)
            listed = (MODEL,) if wants in ("", key) else ()
            assert jobs.answering_at(target) == Answering("openai", listed)
            sent = ["Authorization" in head for head in server.heads]
            assert sent == ([False, True] if wants and key else [False])
    monkeypatch.delenv(jobs.ALLOW_VARIABLE)
    with pytest.raises(PlanError, match=f"{jobs.ALLOW_VARIABLE}=1"):
        jobs.answering_at(target)


def test_an_answer_that_does_not_come_ends_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that listens and never answers."""
    monkeypatch.setenv(jobs.ALLOW_VARIABLE, "1")
    monkeypatch.setattr(jobs, "ASK_WITHIN_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        target = f"127.0.0.1:{mute.getsockname()[1]}"
        monkeypatch.setenv(jobs.TARGETS_VARIABLE, target)
        with pytest.raises(ServerError, match=r"no answer within 0\.3 s; correct the address$"):
            jobs.answering_at(target)
