"""Who measures a run: the living are left alone, the dead are lost and taken over, several stay apart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from calibration.errors import StoreError
from calibration.store import Store
from calibration.store.owner import Owner
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


def test_elsewhere_only_the_heartbeat_tells(store: Store, database_url: str) -> None:
    run_id = store.create_run("plan")
    altered(database_url, "UPDATE runs SET host = 'another machine'")
    assert store.run(run_id).state == "running"
    altered(database_url, "UPDATE runs SET heartbeat = heartbeat - 61")
    assert store.run(run_id).state == "lost"
    with store.kept_alive(run_id, every_s=0.01):
        while store.run(run_id).state == "lost":  # the next beat ends it; a missing one, the test's time limit
            pass
    assert store.run(run_id).state == "running"


def test_a_process_number_that_came_back_is_another_process() -> None:
    here = Owner.here()
    assert here.lives(silent_s=1e9)
    assert not replace(here, born=here.born + "0").lives(silent_s=0)
    assert not replace(here, pid=2**31 - 1).lives(silent_s=0)


ADD_MANY = """
import sys
from calibration.store import Store
from sizing.curves import Point
known = dict(model="toy", precision="fp32", gpu="cpu", tp=1, isl=64, osl=32, requests_per_s=9.5)
print("ready", flush=True)
sys.stdin.readline()
store = Store(sys.argv[1])
run_id = store.create_run("plan")
for users in range(1, 9):
    store.add_point(run_id, Point(load_kind="concurrency", load_value=users, **known))
store.finish_run(run_id, "done")
"""


def test_several_runs_at_once_on_a_store_that_none_has_opened_yet(database_url: str) -> None:
    processes = [python(ADD_MANY, database_url) for _ in range(2)]
    assert [first_line(process) for process in processes] == ["ready"] * 2
    for process in processes:
        go_on(process)
    assert [ended(process) for process in processes] == ["", ""]
    store = Store(database_url)
    assert [(run.state, run.points) for run in store.runs()] == [("done", 8)] * 2
