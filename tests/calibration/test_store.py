"""Runs and points in the database: what goes in comes out, at once, and never twice."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calibration.errors import StoreError
from calibration.plan import level_key
from calibration.store import DATABASE_VARIABLE, Store
from sizing.curves import COLUMNS, LoadKind, Point

POINT = Point(
    model="toy",
    precision="fp32",
    gpu="cpu",
    tp=1,
    isl=64,
    osl=32,
    load_kind="concurrency",
    load_value=4,
    requests_per_s=9.5,
)

positive = st.floats(1e-9, 1e12)
text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
named = text.filter(bool)
NEEDED: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("model", "precision", "gpu"), named),
    **dict.fromkeys(("tp", "pp"), st.integers(1, 1024)),
    **dict.fromkeys(("isl", "osl", "load_value", "requests_per_s"), positive),
    **dict.fromkeys(("isl_cv", "osl_cv"), st.floats(0, 10)),
    **dict.fromkeys(("engine", "engine_version", "batching", "source", "measured_at", "notes"), text),
    "load_kind": st.sampled_from(get_args(LoadKind)),
}
unknown_or = {name: st.none() | positive for name in COLUMNS if name not in NEEDED}
unknown_or |= {name: st.none() | st.integers(0, 2**31 - 1) for name in ("max_batch_size", "requests", "errors")}
points = st.fixed_dictionaries(NEEDED | unknown_or).map(lambda values: Point(**values))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(f"sqlite:///{tmp_path / 'points.db'}")


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(point=points)
def test_a_point_comes_back_as_it_went_in(store: Store, point: Point) -> None:
    run_id = store.create_run("plan")
    store.add_point(run_id, point)
    assert store.points(run_id) == [point]
    assert store.done_levels(run_id) == {level_key(point)}


def test_points_are_there_for_others_at_once(store: Store, tmp_path: Path) -> None:
    store.add_point(store.create_run("plan"), POINT)
    with sqlite3.connect(tmp_path / "points.db") as other:
        assert other.execute("SELECT model, requests_per_s FROM points").fetchall() == [("toy", 9.5)]
        assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    other.close()


def test_no_level_of_a_run_twice(store: Store) -> None:
    first, second = store.create_run("plan"), store.create_run("plan")
    store.add_point(first, POINT)
    store.add_point(second, POINT)
    with pytest.raises(StoreError, match="already"):
        store.add_point(first, replace(POINT, requests_per_s=1.0))
    assert store.points() == [POINT, POINT]


def test_a_run_goes_through_its_states(store: Store) -> None:
    run_id = store.create_run("the plan", folder="/plans", label="ensemble at x:1", levels=3)
    begun = store.run(run_id)
    assert (begun.state, begun.ended, begun.points, begun.levels) == ("running", None, 0, 3)
    assert (begun.plan, begun.folder, begun.label) == ("the plan", "/plans", "ensemble at x:1")
    store.finish_run(run_id, "failed", "it broke")
    assert (store.run(run_id).state, store.run(run_id).error) == ("failed", "it broke")
    assert store.run(run_id).ended is not None
    store.restart_run(run_id)
    assert (store.run(run_id).state, store.run(run_id).error, store.run(run_id).ended) == ("running", "", None)


def test_runs_come_newest_first_with_their_points_counted(store: Store) -> None:
    first, second = store.create_run("a"), store.create_run("b")
    store.add_point(first, POINT)
    assert [(run.id, run.points) for run in store.runs()] == [(second, 0), (first, 1)]


@pytest.mark.parametrize("act", [Store.run, Store.points, Store.done_levels, Store.restart_run])
def test_an_unknown_run_is_named(store: Store, act: Any) -> None:
    with pytest.raises(StoreError, match="no run 7"):
        act(store, 7)


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:////proc/nowhere/points.db",
        "postgresql://user:secret@127.0.0.1:1/points",
        "nosuchdatabase://x",
        "not a url",
    ],
)
def test_an_unreachable_database_is_one_line_without_the_password(url: str) -> None:
    with pytest.raises(StoreError) as caught:
        Store(url)
    message = str(caught.value)
    assert message.startswith("database ")
    assert DATABASE_VARIABLE in message
    assert "secret" not in message
    assert "\n" not in message


def test_the_environment_names_the_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DATABASE_VARIABLE, f"sqlite:///{tmp_path / 'deep' / 'mine.db'}")
    Store().create_run("plan")
    assert (tmp_path / "deep" / "mine.db").exists()
