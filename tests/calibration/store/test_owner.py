"""Who measures a run: the living are left alone, the dead are lost and taken over, several stay apart."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
import sqlalchemy as sql

from calibration.errors import StoreError
from calibration.store import Store
from calibration.store.database import (
    CONNECT_WITHIN_S,
    LONGEST_WAIT_S,
    NETWORK_GONE_AFTER_S,
    TRY_AGAIN_FOR_S,
    runs,
)
from calibration.store.runs import HEARTBEAT_S, LOST_AFTER_S, Owner
from tests.calibration.kept import POINT
from tests.calibration.outside import altered, begun_elsewhere, ended, first_line, go_on, python


def test_a_run_that_lives_is_left_alone_and_one_killed_is_lost_and_resumed(store: Store, database_url: str) -> None:
    process, run_id = begun_elsewhere(database_url)
    with process:
        assert store.run(run_id).state == "running"
        with pytest.raises(StoreError, match=f"run {run_id} is being measured by process {process.pid} on"):
            store.restart_run(run_id)
        with pytest.raises(StoreError, match="adds nothing"):
            store.add_point(run_id, POINT)
        store.finish_run(run_id, "failed", "not mine")
        assert (store.run(run_id).state, store.run(run_id).error) == ("running", "")
        process.kill()
        while store.run(run_id).state == "running":  # until the kill has come through; the zombie is not waited for
            pass
        assert store.run(run_id).state == "lost"
        store.restart_run(run_id)
    assert (store.run(run_id).state, store.run(run_id).owner) == ("running", str(Owner.here()))
    store.add_point(run_id, POINT)


def test_a_run_that_ends_while_it_is_looked_for_is_done_and_not_lost(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = store.create_run("plan")

    def ends_and_is_gone(_owner: Owner, _silent_s: float) -> bool:
        store.finish_run(run_id, "done")
        return False

    monkeypatch.setattr(Owner, "lives", ends_and_is_gone)
    assert store.run(run_id).state == "done"


def test_one_missed_heartbeat_does_not_make_a_run_look_dead() -> None:
    """Two in a row may be caught in connections that are cut off, or that do not come about."""
    assert 2 * (HEARTBEAT_S + max(NETWORK_GONE_AFTER_S, CONNECT_WITHIN_S)) < LOST_AFTER_S


def test_a_run_that_outlives_the_absence_of_the_database_does_not_look_dead() -> None:
    """It keeps what it measures for so long, waits for one more trial, and beats."""
    assert TRY_AGAIN_FOR_S + LONGEST_WAIT_S + HEARTBEAT_S < LOST_AFTER_S


def test_elsewhere_only_the_heartbeat_tells(store: Store, database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = store.create_run("plan")
    altered(database_url, "UPDATE runs SET host = 'another machine'")
    assert store.run(run_id).state == "running"
    altered(database_url, "UPDATE runs SET heartbeat = heartbeat - 91")
    assert store.run(run_id).state == "lost"
    with ExitStack() as meanwhile:
        with monkeypatch.context() as there:
            there.setattr("socket.gethostname", lambda: "another machine")
            meanwhile.enter_context(store.kept_alive(run_id, every_s=0.01))
        while store.run(run_id).state == "lost":  # the next beat ends it; a missing one, the test's time limit
            pass
    assert store.run(run_id).state == "running"


TAKE_OVER = """
import sys
from dataclasses import replace
from calibration.store import Store
from tests.calibration.kept import POINT
store, run_id = Store(sys.argv[1]), int(sys.argv[2])
store.restart_run(run_id)
store.add_point(run_id, replace(POINT, load_value=8))
store.finish_run(run_id, "done")
"""


def test_a_run_that_was_taken_over_is_not_written_by_its_old_owner_even_when_it_has_ended(
    store: Store, database_url: str
) -> None:
    run_id = store.create_run("plan")
    altered(database_url, "UPDATE runs SET host = 'cut off for a while', heartbeat = heartbeat - 91")
    ended(python(TAKE_OVER, database_url, run_id))
    before = store.run(run_id)
    assert (before.state, before.points) == ("done", 1)
    with pytest.raises(StoreError, match=f"run {run_id} belongs to process .*: this one adds nothing"):
        store.add_point(run_id, POINT)
    store.finish_run(run_id, "failed", "the network was away")
    altered(database_url, "UPDATE runs SET heartbeat = 1")
    with store.kept_alive(run_id, every_s=0.001):
        time.sleep(0.05)
    assert store.run(run_id) == before
    with store.database.reading() as connection:
        assert connection.execute(sql.select(runs.c.heartbeat)).scalar_one() == 1


def test_a_process_number_that_came_back_is_another_process() -> None:
    here = Owner.here()
    assert here.lives(silent_s=1e9)
    assert not replace(here, born=here.born + "0").lives(silent_s=0)
    assert not replace(here, pid=2**31 - 1).lives(silent_s=0)


def test_another_machine_of_the_same_name_is_elsewhere() -> None:
    here, boot = Owner.here(), Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    other = replace(here, pid=2**31 - 1, born=here.born.replace(boot, str(uuid4())))
    assert other.lives(silent_s=0)
    assert not other.lives(silent_s=91)


ADD_MANY = """
import sys
from calibration.store import Store
from sizing.points import Point
known = dict(model="toy", precision="fp32", gpu="cpu", tp=1, isl=64, osl=32, requests_per_s=9.5)
print("ready", flush=True)
sys.stdin.readline()
store = Store(sys.argv[1])
run_id = store.create_run("plan")
for users in range(1, 9):
    store.add_point(run_id, Point(load_kind="concurrency", load_value=users, **known))
store.finish_run(run_id, "done")
"""


@pytest.mark.long
def test_several_runs_at_once_on_a_store_that_none_has_opened_yet(database_url: str) -> None:
    processes = [python(ADD_MANY, database_url) for _ in range(2)]
    assert [first_line(process) for process in processes] == ["ready"] * 2
    for process in processes:
        go_on(process)
    assert [ended(process) for process in processes] == ["", ""]
    store = Store(database_url)
    assert [(run.state, run.points) for run in store.runs()] == [("done", 8)] * 2
