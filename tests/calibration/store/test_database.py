"""The database itself: older and newer versions, faults told in one line, nothing corrupt; SQLite and PostgreSQL."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sql

from calibration.errors import StoreError
from calibration.store import Store
from calibration.store.database import DATABASE_VARIABLE, SCHEMA
from sizing.points import COLUMNS
from tests.calibration.kept import POINT, measurement
from tests.calibration.outside import altered, ended, python

# Databases of older and newer versions

OLD_RUNS = """CREATE TABLE runs (id INTEGER NOT NULL PRIMARY KEY, plan TEXT NOT NULL, folder TEXT NOT NULL,
    label TEXT NOT NULL, levels INTEGER NOT NULL, state TEXT NOT NULL, created TEXT NOT NULL, ended TEXT,
    error TEXT NOT NULL)"""
OLD_COLUMNS = [name for name in COLUMNS if name not in ("verdict", "prefix_tokens", "prefix_hit")]
OLD_POINTS = f"""CREATE TABLE points (run INTEGER NOT NULL REFERENCES runs (id),
    {", ".join(OLD_COLUMNS)}, PRIMARY KEY (run, isl, osl, isl_cv, osl_cv, load_kind, load_value))"""


def old_database(path: Path) -> str:
    """A SQLite database as the first version of the store made it, with two runs and a point."""
    engine = sql.create_engine(f"sqlite:///{path}", poolclass=sql.NullPool)
    with engine.begin() as connection:
        connection.exec_driver_sql(OLD_RUNS)
        connection.exec_driver_sql(OLD_POINTS)
        for run_id, state in ((1, "done"), (2, "running")):
            row = (run_id, "the plan", "/plans", "toy", 3, state, "2025-01-01T00:00:00+00:00", None, "")
            connection.exec_driver_sql("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        values = (1, *(getattr(POINT, name) for name in OLD_COLUMNS))
        connection.exec_driver_sql(f"INSERT INTO points VALUES ({', '.join('?' * len(values))})", values)
    return f"sqlite:///{path}"


def test_a_database_of_the_first_version_opens_with_all_it_holds(tmp_path: Path) -> None:
    url = old_database(tmp_path / "old.db")
    store = Store(url)
    assert store.points() == [POINT]
    assert [(run.id, run.state, run.points, run.plan) for run in store.runs()] == [
        (2, "lost", 0, "the plan"),  # nobody knows of a process that measures it
        (1, "done", 1, "the plan"),
    ]
    assert len({run.uuid for run in store.runs()}) == 2
    store.restart_run(2)
    store.add_point(2, measurement(replace(POINT, verdict="overloaded")))
    assert Store(url).measurements(2) == [replace(measurement(replace(POINT, verdict="overloaded")), log=None)]
    assert [run.uuid for run in Store(url).runs()] == [run.uuid for run in store.runs()]


@pytest.mark.long
def test_several_processes_may_open_an_old_database_at_once(tmp_path: Path) -> None:
    url = old_database(tmp_path / "old.db")
    code = "import sys; from calibration.store import Store; print([run.uuid for run in Store(sys.argv[1]).runs()])"
    told = [ended(process) for process in [python(code, url) for _ in range(2)]]
    assert len(set(told)) == 1


def test_a_database_from_the_future_is_left_alone(store: Store, database_url: str) -> None:
    altered(database_url, f"UPDATE schema SET version = {SCHEMA + 1}")
    with pytest.raises(StoreError, match="newer version of this program"):
        Store(database_url)


def test_a_new_column_of_the_points_table_comes_with_a_new_version_of_the_schema() -> None:
    assert {2: 43, 3: 43, 4: 45, 5: 46, 6: 47, 7: 50, 8: 51, 9: 53, 10: 54}[SCHEMA] == len(COLUMNS), (
        "raise SCHEMA in calibration/store/database.py, and note its number here"
    )


# Faults


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:////proc/nowhere/points.db",
        "sqlite://",
        "postgresql://user:secret@127.0.0.1:1/points",
        "postgres://user:secret@127.0.0.1:1/points",
        "postgresql://127.0.0.1:1/points?user=me&password=secret",
        "postgresql://user:secret/points",
        "mysql://user:secret@127.0.0.1:1/points",
        "nosuchdatabase://x",
        "not a url with a secret",
    ],
)
def test_a_database_that_cannot_be_used_is_one_line_without_the_password(url: str) -> None:
    with pytest.raises(StoreError) as caught:
        Store(url)
    message = str(caught.value)
    assert message.startswith("database ")
    assert DATABASE_VARIABLE in message
    assert "secret" not in message
    assert "\n" not in message


@pytest.mark.timeout(30)
def test_a_database_from_which_no_answer_comes_is_given_up_soon() -> None:
    silent = socket.create_server(("127.0.0.1", 0))  # the system accepts for it, and nobody ever answers
    with silent, pytest.raises(StoreError, match="timeout"):
        Store(f"postgresql://user:secret@127.0.0.1:{silent.getsockname()[1]}/points?connect_timeout=2")


def test_the_environment_names_the_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DATABASE_VARIABLE, f"sqlite:///{tmp_path / 'deep' / 'mine.db'}")
    Store().create_run("plan")
    assert (tmp_path / "deep" / "mine.db").exists()


def test_a_full_disk_is_one_line_and_what_was_kept_stays(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'points.db'}"
    store = Store(url)
    run_id = store.create_run("plan")
    store.add_point(run_id, POINT)

    def full(connection: Any, _record: object) -> None:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count={pages}")

    sql.event.listen(sql.Engine, "connect", full)
    try:
        crowded = Store(url)
        with pytest.raises(StoreError, match=r"points\.db: database or disk is full; free some space"):
            for users in range(10, 1000):
                crowded.add_point(run_id, replace(POINT, load_value=users, notes="long " * 100))
    finally:
        sql.event.remove(sql.Engine, "connect", full)
    users = len(store.points(run_id))
    store.add_point(run_id, replace(POINT, load_value=users + 1000))
    assert len(store.points(run_id)) == users + 1
    with store.database.reading() as connection:
        assert connection.execute(sql.text("PRAGMA integrity_check")).scalar() == "ok"


def test_a_database_that_may_only_be_read(tmp_path: Path) -> None:
    run_id = Store(f"sqlite:///{tmp_path / 'points.db'}").create_run("plan")
    store = Store(f"sqlite:///file:{tmp_path / 'points.db'}?mode=ro&uri=true")
    assert store.points(run_id) == []
    with pytest.raises(StoreError, match="readonly database"):
        store.add_point(run_id, POINT)


def test_a_locked_database_is_waited_for_and_then_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calibration.store.database.WAIT_FOR_LOCK_S", 0.1)
    store = Store(f"sqlite:///{tmp_path / 'points.db'}")
    with store.database.writing(), pytest.raises(StoreError, match="locked; another program has locked it"):
        store.create_run("plan")
    store.create_run("plan")


@pytest.mark.parametrize("content", [b"no database at all, but long enough to be taken for one" * 40, os.urandom(8192)])
def test_a_file_that_is_no_database(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "points.db"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"points\.db: file is not a database"):
        Store(f"sqlite:///{path}")
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("requests_per_s = -1", "column requests_per_s"),
        ("verdict = 'splendid'", "column verdict"),
        ("facts = '[1]'", "facts of a point"),
    ],
)
def test_what_others_wrote_into_the_store_is_checked(store: Store, database_url: str, change: str, says: str) -> None:
    run_id = store.create_run("plan")
    store.add_point(run_id, POINT)
    altered(database_url, f"UPDATE points SET {change}")
    with pytest.raises(StoreError, match=f"impossible value: .*{says}"):
        store.measurements(run_id)


def test_a_run_that_others_wrote_is_checked(store: Store, database_url: str) -> None:
    store.create_run("plan")
    altered(database_url, "UPDATE runs SET state = 'exploded'")
    with pytest.raises(StoreError, match="impossible value: run 1, column state"):
        store.runs()


def test_a_version_that_is_no_number_is_a_damaged_store(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'points.db'}"
    Store(url)
    altered(url, "UPDATE schema SET version = 'six'")
    with pytest.raises(StoreError, match="it has no version: it is damaged"):
        Store(url)
