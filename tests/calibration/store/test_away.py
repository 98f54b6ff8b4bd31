"""A database that is away for a moment loses nothing and doubles nothing; one that may only be read is still listed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
import sqlalchemy as sql

from calibration.errors import StoreAway, StoreError
from calibration.plan import level_key
from calibration.records import Measurement
from calibration.store import DATABASE_VARIABLE, Store
from calibration.store import runs as store_runs
from calibration.store.database import RECORDS_VARIABLE, patient
from tests.calibration.kept import POINT, measurement
from tests.calibration.outside import ROOT
from tests.calibration.postgres import new_schema

SECOND = measurement(replace(POINT, load_value=8))


def silence(text: str) -> None: ...


@pytest.fixture
def on_postgres(postgres_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store on PostgreSQL that gives a connection two seconds."""
    monkeypatch.setenv(RECORDS_VARIABLE, str(tmp_path / "records"))
    return Store(f"{new_schema(postgres_folder, f'test_{uuid4().hex}')}&connect_timeout=2")


def kept_once(store: Store, run_id: int) -> None:
    """Two points, each with its log under a name of its own."""
    assert store.measurements(run_id, as_measured=True) == [
        replace(measurement(), log=None),
        replace(SECOND, log=None),
    ]
    files = store.records(run_id)
    assert sorted(file.name for file in files.values()) == ["level-1.parquet", "level-2.parquet"]
    assert all(store.log(run_id, key) is not None for key in files)


def test_a_level_measured_while_postgresql_stands_still_is_kept_once_it_goes_on(
    on_postgres: Store, postgres_folder: str
) -> None:
    run_id = on_postgres.create_run("plan")
    on_postgres.add_point(run_id, measurement())
    server = int((Path(postgres_folder) / "data" / "postmaster.pid").read_text().split()[0])
    told: list[str] = []

    def goes_on(text: str) -> None:
        told.append(text)
        os.kill(server, signal.SIGCONT)

    os.kill(server, signal.SIGSTOP)
    try:
        patient(partial(on_postgres.add_point, run_id, SECOND), goes_on)
    finally:
        os.kill(server, signal.SIGCONT)
    assert len(told) == 1 and "retrying for up to 60 s" in told[0] and "timeout" in told[0]
    kept_once(on_postgres, run_id)


def test_a_connection_lost_before_the_commit_is_made_anew(
    on_postgres: Store, postgres_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = on_postgres.create_run("plan")
    on_postgres.add_point(run_id, measurement())
    keep, cut = store_runs.keep, []

    def cut_off(
        connection: sql.Connection, folder: Path, number: int, kept: Sequence[Measurement], *, seed: object
    ) -> None:
        keep(connection, folder, number, kept)
        if not cut:
            cut.append(connection.execute(sql.text("SELECT pg_backend_pid()")).scalar_one())
            with psycopg.connect(host=postgres_folder, user="postgres", dbname="postgres", autocommit=True) as other:
                other.execute("SELECT pg_terminate_backend(%s, 10000)", (cut[0],))

    monkeypatch.setattr(store_runs, "keep", cut_off)
    patient(partial(on_postgres.add_point, run_id, SECOND), silence)
    assert len(cut) == 1
    kept_once(on_postgres, run_id)


def test_an_answer_lost_after_the_commit_doubles_nothing(store: Store) -> None:
    run_id = store.create_run("plan")
    store.add_point(run_id, measurement())
    tries: list[int] = []

    def unheard() -> None:
        store.add_point(run_id, SECOND)
        tries.append(len(tries))
        if len(tries) == 1:
            raise StoreAway("the answer did not come")

    patient(unheard, silence)
    assert tries == [0, 1]
    kept_once(store, run_id)
    with pytest.raises(StoreError, match="has a point at this level already"):
        store.add_point(run_id, replace(SECOND, point=replace(SECOND.point, requests_per_s=1.0)))


def test_a_locked_file_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calibration.store.database.WAIT_FOR_LOCK_S", 0.1)
    store = Store(f"sqlite:///{tmp_path / 'points.db'}")
    run_id = store.create_run("plan")
    lock = store.database.writing()
    lock.__enter__()
    patient(partial(store.add_point, run_id, POINT), lambda text: print(lock.__exit__(None, None, None)))
    assert store.points(run_id) == [POINT]


@pytest.mark.parametrize("fault", [StoreError("the disk is full"), StoreAway("gone for good")])
def test_what_does_not_pass_is_told(fault: StoreError, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other faults at once; one of a database that stays away when the minute is over."""
    clock = [0.0]
    monkeypatch.setattr("calibration.store.database.time.monotonic", lambda: clock[0])
    monkeypatch.setattr("calibration.store.database.time.sleep", lambda wait_s: clock.append(clock.pop() + wait_s))
    tries = []

    def act() -> None:
        tries.append(clock[0])
        raise fault

    with pytest.raises(StoreError, match=str(fault)):
        patient(act, silence)
    assert (len(tries) == 1) if type(fault) is StoreError else (tries[:3] == [0, 0.5, 1.5] and 45 < tries[-1] <= 60)


# A folder in which nothing can be written

READING = ("list", "show", "export")
READ_ONLY = """
mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" || exit 77
shift
exec "$@"
"""
COMMANDS = """
from click.testing import CliRunner
from calibration.__main__ import main
for words in ("list --json", "show 1 --details", "export 1", "accept 1"):
    done = CliRunner().invoke(main, words.split())
    print(f"{done.output}{words}: exit {done.exit_code}")
"""


def on_a_read_only_mount(folder: Path) -> str:
    """What the commands print, and how they end, where `folder` is mounted so that root cannot write there either."""
    environment = os.environ | {DATABASE_VARIABLE: f"sqlite:///{folder / 'points.db'}"}
    shell = ["unshare", "-m", "sh", "-c", READ_ONLY, "sh", str(folder), sys.executable, "-c", COMMANDS]
    try:
        done = subprocess.run(shell, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    except FileNotFoundError:
        pytest.skip("there is no unshare here")
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("only root may mount here")
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout


def as_it_is(store: Store) -> None: ...


def with_a_log(store: Store) -> None:
    """Leave the write-ahead log and its index behind, as a killed process does, with a point only there."""
    code = (
        "import os, sys; from calibration.store import Store; from tests.calibration.kept import POINT\n"
        "from dataclasses import replace; import sqlite3\n"
        "other = sqlite3.connect(sys.argv[2]); other.execute('SELECT * FROM runs').fetchall()\n"
        "Store(sys.argv[1]).add_point(Store(sys.argv[1]).create_run('p'), replace(POINT, load_value=99))\n"
        "os._exit(0)"
    )
    url = store.database.url
    subprocess.run([sys.executable, "-c", code, str(url), str(url.database)], cwd=ROOT, check=True)
    assert Path(f"{url.database}-wal").stat().st_size


@pytest.mark.parametrize("left", [as_it_is, with_a_log])
@pytest.mark.long
def test_a_store_on_a_read_only_mount_is_listed_shown_and_exported(
    left: Callable[[Store], None], tmp_path: Path
) -> None:
    folder = tmp_path / "store"
    store = Store(f"sqlite:///{folder / 'points.db'}")
    run_id = store.create_run("plan", label="toy at gpu-7")
    store.add_point(run_id, measurement())
    store.finish_run(run_id, "done")
    left(store)
    told = on_a_read_only_mount(folder)
    assert "toy at gpu-7" in told and f"{POINT.load_value:g} users" in told
    assert "it is read-only: it can be listed and exported" in told
    assert re.findall(r"(\w+) .*: exit (\d)$", told, re.M) == [*((name, "0") for name in READING), ("accept", "2")]
    if left is with_a_log:
        assert '"run": 2' in told
    assert store.run(run_id).points == 1
    assert level_key(POINT) in store.records(run_id)


@pytest.mark.long
def test_a_log_without_its_index_is_not_passed_over_on_a_read_only_mount(tmp_path: Path) -> None:
    """As a copy of the two files that were seen to hold something: its points are not missing without a word."""
    folder = tmp_path / "store"
    with_a_log(Store(f"sqlite:///{folder / 'points.db'}"))
    (folder / "points.db-shm").unlink()
    told = on_a_read_only_mount(folder)
    refused = told.count("the points in its log points.db-wal cannot be read")
    assert refused == told.count(": exit 2") == len(READING) + 1
