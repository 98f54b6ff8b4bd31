"""Runs that wait, work and are asked to stop, and points that wait to be accepted; SQLite and PostgreSQL alike."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sql

from calibration.errors import StoreError
from calibration.store import Run, Store
from calibration.store.bundle import export_bundle, import_bundle, import_measurements
from calibration.store.runs import LOST_AFTER_S, Owner, update_run
from calibration.store.work import accept, ask_to_stop, discard, enqueue, give_up, hand_over, requeue, work
from tests.calibration.kept import POINT, measurement
from tests.calibration.outside import altered, first_line, go_on, python

TARGET = "gpu-7:8001"


def queued(store: Store, target: str = TARGET) -> int:
    return enqueue(store, "a plan", label="toy", target=target)


def shown(run: Run) -> tuple[object, ...]:
    return run.state, run.points, run.pending, run.discarded


def test_a_queued_run_is_taken_over_told_of_and_its_points_wait(store: Store) -> None:
    run_id = queued(store)
    assert shown(store.run(run_id)) == ("queued", 0, 0, 0)
    store.restart_run(run_id, levels=2)
    store.add_point(run_id, POINT)
    with store.kept_alive(run_id, news=lambda: {"phase": "level 2", "share": 0.5, "left_s": 9.0, "log": "one\ntwo"}):
        pass
    now = work(store, run_id)
    assert (now.phase, now.share, now.left_s, now.log, now.stopping_for_s) == ("level 2", 0.5, 9.0, "one\ntwo", None)
    assert now.owner == Owner.here() and 0 <= now.silent_s < LOST_AFTER_S
    store.finish_run(run_id, "done")
    assert shown(store.run(run_id)) == ("done", 1, 1, 0)
    assert store.points() == [] and store.points(run_id) == [POINT]


def test_points_of_the_command_line_are_accepted_and_those_of_a_resumed_run_of_the_page_wait(store: Store) -> None:
    by_hand, by_page = store.create_run("plan"), queued(store)
    store.add_point(by_hand, POINT)
    store.restart_run(by_page)
    store.add_point(by_page, replace(POINT, load_value=8))
    assert accept(store, by_page) == 1
    store.add_point(by_page, replace(POINT, load_value=16))
    assert store.points() == [POINT, replace(POINT, load_value=8)]
    assert shown(store.run(by_page))[1:] == (2, 1, 0)
    assert discard(store, by_page) == 2 and store.points() == [POINT]


def test_who_imports_by_hand_what_was_discarded_accepts_it(store: Store, tmp_path: Path) -> None:
    ((run_id, new),) = import_measurements(store, "imported", [measurement()])
    assert new and discard(store, run_id) == 1
    assert import_measurements(store, "imported", [measurement()]) == [(run_id, False)]
    assert store.points() == [POINT]
    export_bundle(store, run_id, tmp_path / "run.zip")
    discard(store, run_id)
    assert import_bundle(store, tmp_path / "run.zip") == (run_id, False) and store.points() == [POINT]


def test_one_run_at_a_server_others_elsewhere(store: Store) -> None:
    def begin(target: str) -> int | None:
        try:
            return queued(store, target)
        except StoreError as error:
            assert f"{target} is being measured by run" in str(error)
            return None

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(begin, [TARGET] * 4))
    assert len([run_id for run_id in found if run_id is not None]) == 1
    assert begin("gpu-8:8001") is not None


def test_a_server_measured_from_the_command_line_is_not_free_either(store: Store) -> None:
    run_id = store.create_run("plan", target=TARGET)
    with pytest.raises(StoreError, match=f"is being measured by run {run_id}"):
        queued(store)
    store.finish_run(run_id, "failed", "why")
    requeue(store, run_id)
    assert (store.run(run_id).state, store.run(run_id).error) == ("queued", "")


def test_a_run_that_is_queued_again_has_no_progress(store: Store) -> None:
    run_id = store.create_run("plan", target=TARGET)
    with store.database.writing() as connection:
        update_run(connection, run_id, {"phase": "level 3", "share": 0.7, "left_s": 300.0})
    store.finish_run(run_id, "failed", "why")
    requeue(store, run_id)
    progress = work(store, run_id)
    assert (progress.phase, progress.share, progress.left_s) == ("", 0.0, None)


BEGIN = """
import sys
from calibration.errors import StoreError
from calibration.store import Store
print("ready", flush=True)
sys.stdin.readline()
try:
    print(Store(sys.argv[1]).create_run("plan", target=sys.argv[2]), flush=True)
    sys.stdin.readline()
except StoreError as error:
    print(error)
"""


@pytest.mark.long
def test_of_processes_that_begin_at_one_server_at_once_one_does_and_when_it_is_killed_another_may(
    store: Store, database_url: str
) -> None:
    processes = [python(BEGIN, database_url, target) for target in ("Gpu-7:8001", TARGET, TARGET)]
    with ExitStack() as until_the_end:
        for process in processes:
            until_the_end.enter_context(process)
            until_the_end.callback(process.kill)
            assert first_line(process) == "ready"
        for process in processes:
            go_on(process)
        (run,) = wait_for(store.runs)
        said = [first_line(process) for process in processes]
        holder = processes[said.index(str(run.id))]
        refusal = f"is being measured by run {run.id} (process {holder.pid} on {socket.gethostname()}), started"
        refused = [line for line in said if line != str(run.id)]
        assert len(refused) == 2 and all(refusal in line and run.created in line for line in refused)
        resumed = store.create_run("plan", target="gpu-8:8001")
        store.finish_run(resumed, "interrupted")
        with pytest.raises(StoreError, match=f"is being measured by run {run.id}"):
            store.restart_run(resumed, target=TARGET)
        holder.kill()
        holder.wait()
        store.restart_run(resumed, target=TARGET)
    assert (store.run(run.id).state, store.run(resumed).state) == ("lost", "running")
    with pytest.raises(StoreError, match=f"is being measured by run {resumed}"):
        store.create_run("plan", target=TARGET)
    store.finish_run(resumed, "done")
    store.create_run("plan", target=TARGET)


def wait_for(found: Callable[[], list[Run]]) -> list[Run]:
    deadline_s = time.monotonic() + 60
    while not (there := found()):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    return there


def test_an_address_of_the_machine_itself_is_another_server_on_another_machine(store: Store, database_url: str) -> None:
    here = store.create_run("plan", target="127.0.0.1:8001")
    with pytest.raises(StoreError, match=f"localhost:8001 is being measured by run {here}"):
        store.create_run("plan", target="localhost:8001")
    altered(database_url, "UPDATE runs SET host = 'elsewhere'")
    store.create_run("plan", target="localhost:8001")


def test_a_machine_that_is_silent_frees_its_server_after_half_a_minute(store: Store, database_url: str) -> None:
    run_id = store.create_run("plan", target=TARGET)
    altered(database_url, f"UPDATE runs SET host = 'elsewhere', heartbeat = heartbeat - {LOST_AFTER_S - 5}")
    with pytest.raises(StoreError, match=f"run {run_id}"):
        store.create_run("plan", target=TARGET)
    altered(database_url, "UPDATE runs SET heartbeat = heartbeat - 6")
    store.create_run("plan", target=TARGET)


def test_a_run_that_nobody_hears_of_is_lost_and_its_server_free(store: Store, database_url: str) -> None:
    run_id = queued(store)
    altered(database_url, f"UPDATE runs SET host = 'elsewhere', heartbeat = heartbeat - {LOST_AFTER_S - 5}")
    assert store.run(run_id).state == "queued"
    altered(database_url, "UPDATE runs SET heartbeat = heartbeat - 6")
    assert store.run(run_id).state == "lost"
    queued(store)
    give_up(store, run_id, "interrupted", "nobody knows")
    assert store.run(run_id).state == "interrupted"


def test_a_run_whose_process_dies_before_it_begins_is_lost_at_once(store: Store) -> None:
    process = python("import sys; sys.stdin.readline()")
    run_id = queued(store)
    hand_over(store, run_id, process.pid)
    assert (store.run(run_id).state, work(store, run_id).owner.pid) == ("queued", process.pid)
    with process:
        process.kill()
        process.wait()
        assert store.run(run_id).state == "lost"


def test_a_process_that_has_begun_is_not_taken_from(store: Store) -> None:
    run_id = queued(store)
    store.restart_run(run_id)
    hand_over(store, run_id, 1)
    assert work(store, run_id).owner.pid == os.getpid()
    give_up(store, run_id, "failed", "too late")
    assert store.run(run_id).state == "running"


def test_the_request_to_stop_is_heard_once_and_forgotten_by_the_next_attempt(store: Store) -> None:
    heard: list[float] = []
    run_id = queued(store)
    ask_to_stop(store, run_id)  # before it has begun: it is heard as soon as it does
    store.restart_run(run_id)
    first = work(store, run_id).stopping_for_s
    assert first is not None
    ask_to_stop(store, run_id)
    with store.kept_alive(run_id, every_s=0.01, on_stop=lambda: heard.append(time.monotonic())):
        deadline_s = time.monotonic() + 10
        while not heard:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
    again = work(store, run_id).stopping_for_s
    assert again is not None and again >= first  # the second request did not start the clock anew
    store.finish_run(run_id, "interrupted")
    requeue(store, run_id)
    assert work(store, run_id).stopping_for_s is None


def test_there_is_no_work_of_a_run_that_is_not_there(store: Store) -> None:
    with pytest.raises(StoreError, match="there is no run 7"):
        work(store, 7)


NEW = {
    "runs": "target review phase share left_s log stop_asked".split(),
    "points": ["standing", "protocol", "policy", "receive_interval_steps", "batch_wait_steps", "kv_block_tokens"],
}


def test_a_database_of_the_second_version_is_brought_up_to_date(store: Store, database_url: str) -> None:
    run_id = store.create_run("plan")
    store.add_point(run_id, measurement())
    store.finish_run(run_id, "interrupted")
    for table, columns in NEW.items():
        for column in columns:
            altered(database_url, f"ALTER TABLE {table} DROP COLUMN {column}")
    altered(database_url, "UPDATE schema SET version = 2")
    newer = Store(database_url)
    assert newer.points() == [POINT] and shown(newer.run(run_id)) == ("interrupted", 1, 0, 0)
    newer.restart_run(run_id)
    newer.add_point(run_id, replace(POINT, load_value=8))
    assert len(newer.points()) == 2 and work(newer, run_id).phase == ""
    with newer.database.reading() as connection:
        assert connection.execute(sql.text("SELECT version FROM schema")).scalars().all() == [10]
