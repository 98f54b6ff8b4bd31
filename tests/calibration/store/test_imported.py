"""Points of other tools as a run: all of a file or none, once however often it comes, with the logs they were in."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any
from uuid import uuid4

import pytest

from calibration.errors import StoreError
from calibration.plan import level_key
from calibration.records import Measurement
from calibration.store import Store
from calibration.store.bundle import export_bundle, import_bundle, import_measurements
from calibration.store.runs import insert_run
from tests.calibration.kept import POINT, measurement, same, some_log
from tests.calibration.postgres import new_schema

FOUND = [measurement(replace(POINT, source="a tool")), Measurement(replace(POINT, load_value=8.0))]


def test_measurements_come_in_once_with_their_logs(store: Store, tmp_path: Path) -> None:
    assert import_measurements(store, "from a\x1b[2J file", FOUND) == [(1, True)]
    assert import_measurements(store, "again", FOUND) == [(1, False)]
    assert (store.run(1).label, store.run(1).state, store.run(1).points) == ("from a\ufffd[2J file", "done", 2)
    assert store.measurements(1) == [replace(item, log=None) for item in FOUND]
    log = store.log(1, level_key(POINT))
    assert log is not None
    assert same(log, some_log())
    assert export_bundle(store, 1, tmp_path / "run.zip") == 0
    assert import_bundle(store, tmp_path / "run.zip") == (1, False)


@pytest.mark.parametrize("level", [16, POINT.load_value])
def test_all_or_nothing(store: Store, level: float) -> None:
    """The last of its run, or a run of its own."""
    with pytest.raises(StoreError):
        import_measurements(store, "label", [*FOUND, Measurement(replace(POINT, requests=2**31, load_value=level))])
    assert store.runs() == []
    assert list(store.database.records.rglob("*")) == []


def test_two_who_import_a_file_at_once_bring_it_in_once(
    postgres_folder: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On PostgreSQL, where both may have seen that the run is not there; on SQLite one waits for the other."""
    monkeypatch.setenv("SIZING_RECORDS", str(tmp_path / "records"))
    store, both = Store(new_schema(postgres_folder, f"test_{uuid4().hex}")), Barrier(2, timeout=30)

    def together(*arguments: Any) -> int:
        both.wait()
        return insert_run(*arguments)

    monkeypatch.setattr("calibration.store.bundle.insert_run", together)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda _: import_measurements(store, "label", FOUND), range(2)))
    (run,) = store.runs()
    assert sorted(found) == [[(run.id, False)], [(run.id, True)]]
    assert (run.points, len(store.records(run.id))) == (2, 1)
