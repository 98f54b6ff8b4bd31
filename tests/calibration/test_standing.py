"""accept and discard: which points answers may rest on, decided from the command line; one line for each mistake."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from calibration.store import Store
from calibration.store.work import enqueue
from tests.calibration.called import call, refused
from tests.calibration.kept import POINT

PLAN = "server: {url: 'gpu-7:8001'}"


@pytest.fixture
def store(database: str) -> Store:
    return Store(database)


def reviewed(store: Store, *verdicts: str) -> int:
    """A finished run as the page starts them: its points wait."""
    run_id = enqueue(store, PLAN, label="toy", target="gpu-7:8001")
    for load, verdict in enumerate(verdicts, start=1):
        store.add_point(run_id, replace(POINT, load_value=load, verdict=verdict))  # type: ignore[arg-type]
    store.finish_run(run_id, "done")
    return run_id


def test_points_count_once_they_are_accepted_and_no_more_when_discarded(store: Store) -> None:
    run_id = reviewed(store, "steady", "overloaded", "")
    other = store.create_run("measured by the command line")
    store.add_point(other, replace(POINT, load_value=9))
    assert [point.load_value for point in store.points()] == [9]
    accepted = call("accept", run_id)
    assert accepted.exit_code == 0 and "3 points accepted (1 void" in accepted.stdout
    assert len(store.points()) == 4 and store.run(run_id).pending == 0
    discarded = call("discard", run_id)
    assert discarded.exit_code == 0 and "3 points discarded" in discarded.stdout
    assert [point.load_value for point in store.points()] == [9]
    of_other, of_run = call("list").stdout.splitlines()
    assert "(1 void), 3 discarded  " in of_run and "discarded" not in of_other
    assert store.run(run_id).discarded == 3 and len(store.points(run_id)) == 3  # kept, for the record


def test_deciding_twice_changes_nothing_and_says_so(store: Store) -> None:
    run_id = reviewed(store, "steady", "steady")
    found = [json.loads(call("accept", run_id, "--json").stdout) for _ in range(2)]
    assert [each["changed"] for each in found] == [2, 0]
    assert found[0] == {"run": run_id, "standing": "accepted", "points": 2, "changed": 2}
    assert "2 points accepted, 2 of them before" in call("accept", run_id).stdout


@pytest.mark.parametrize("command", ["accept", "discard"])
def test_a_mistake_is_one_line_and_changes_nothing(command: str, store: Store) -> None:
    run_id = reviewed(store, "steady")
    assert "99" in refused(call(command, 99))
    refused(call(command, "three"))
    refused(call(command))
    empty = reviewed(store)
    assert "no points" in refused(call(command, empty))
    going_on = enqueue(store, PLAN, label="toy", target="gpu-8:8001")
    store.add_point(going_on, POINT)
    assert "queued" in refused(call(command, going_on))
    assert store.run(run_id).pending == 1 and store.run(going_on).pending == 1
