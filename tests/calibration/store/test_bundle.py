"""A run as one file: the same bytes from every store, whole or not at all, and nothing from a file that was touched."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sql
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calibration.errors import CalibrationError, FileError, StoreError
from calibration.records import Measurement
from calibration.store import Store
from calibration.store.bundle import export_bundle, import_bundle, is_bundle
from calibration.store.database import points
from calibration.store.runs import at_work
from tests.calibration.kept import POINT, measurement, same, some_log
from tests.calibration.outside import altered, begun_elsewhere
from tests.calibration.postgres import new_schema

LOADS = (1.0, 4.0, 16.0)


def measured(url: str) -> tuple[Store, int]:
    """A store with a run of three points, the last of them without log, void, and measured before the others."""
    store = Store(url)
    store.finish_run(store.create_run("another run"), "done")
    run_id = store.create_run("the plan", folder="/plans", label="toy, naïve", levels=4)
    store.add_point(run_id, replace(POINT, load_value=LOADS[2], verdict="overloaded", notes="= 1 + 1"))
    for users in LOADS[:2]:
        store.add_point(run_id, measurement(replace(POINT, load_value=users), some_log(int(users) + 2)))
    store.finish_run(run_id, "interrupted", "stopped at level 4")
    return store, run_id


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of `measured`."""
    folder = tmp_path_factory.mktemp("made")
    store, run_id = measured(f"sqlite:///{folder / 'points.db'}")
    export_bundle(store, run_id, folder / "run.zip")
    return folder / "run.zip"


@pytest.fixture
def empty(tmp_path: Path) -> Store:
    return Store(f"sqlite:///{tmp_path / 'empty.db'}")


def told(store: Store, run_id: int) -> object:
    """All that a store says of a run, without what is the store's own."""
    logs = {key: store.log(run_id, key) for key in store.records(run_id)}
    run = replace(store.run(run_id), id=0, owner="")
    return (
        run,
        store.measurements(run_id, as_measured=True),
        {key: (len(log), log.error) for key, log in logs.items() if log},
    )


def untouched(store: Store) -> bool:
    return store.runs() == [] and not store.database.records.exists()


def test_a_run_is_the_same_in_every_store_and_so_is_its_file(database_url: str, made: Path, tmp_path: Path) -> None:
    store = Store(database_url)
    run_id, new = import_bundle(store, made)
    assert new
    origin = Store(f"sqlite:///{made.parent / 'points.db'}")
    assert told(store, run_id) == told(origin, 2)
    for key in origin.records(2):
        log, first = store.log(run_id, key), origin.log(2, key)
        assert log is not None
        assert first is not None
        assert same(log, first)
    export_bundle(store, run_id, tmp_path / "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == made.read_bytes()


def test_importing_twice_or_where_it_came_from_changes_nothing(database_url: str, tmp_path: Path) -> None:
    store, run_id = measured(database_url)
    export_bundle(store, run_id, tmp_path / "run.zip")
    before = told(store, run_id), len(store.runs())
    assert import_bundle(store, tmp_path / "run.zip") == (run_id, False)
    assert (told(store, run_id), len(store.runs())) == before


def test_a_run_that_went_on_elsewhere_gains_its_new_points(empty: Store, database_url: str, tmp_path: Path) -> None:
    origin, run_id = measured(database_url)
    export_bundle(origin, run_id, tmp_path / "early.zip")
    origin.restart_run(run_id)
    origin.add_point(run_id, measurement(replace(POINT, load_value=64.0)))
    origin.finish_run(run_id, "done")
    export_bundle(origin, run_id, tmp_path / "late.zip")
    here, _ = import_bundle(empty, tmp_path / "early.zip")
    assert import_bundle(empty, tmp_path / "late.zip") == (here, False)
    assert told(empty, here) == told(origin, run_id)
    assert import_bundle(empty, tmp_path / "early.zip") == (here, False)
    assert told(empty, here) == told(origin, run_id)


def test_logs_that_lie_elsewhere_are_counted_and_come_with_the_whole_file(
    database_url: str, empty: Store, tmp_path: Path
) -> None:
    """Two machines at one PostgreSQL server, or a database that was copied without its folder of records."""
    store, run_id = measured(database_url)
    assert export_bundle(store, run_id, tmp_path / "whole.zip") == 0
    before = told(store, run_id)
    store.database.records.rename(tmp_path / "elsewhere")
    assert len(store.logs_elsewhere(run_id)) == 2
    assert export_bundle(store, run_id, tmp_path / "bare.zip") == 2
    here, _ = import_bundle(empty, tmp_path / "bare.zip")
    assert (empty.records(here), empty.logs_elsewhere(here)) == ({}, set())
    for other, number in ((empty, here), (store, run_id)):
        assert import_bundle(other, tmp_path / "whole.zip") == (number, False)
        assert told(other, number) == before
        export_bundle(other, number, tmp_path / "again.zip")
        assert (tmp_path / "again.zip").read_bytes() == (tmp_path / "whole.zip").read_bytes()


def test_a_run_that_ended_later_here_keeps_its_state_and_gains_the_points(empty: Store, tmp_path: Path) -> None:
    origin, run_id = measured(f"sqlite:///{tmp_path / 'points.db'}")
    export_bundle(origin, run_id, tmp_path / "early.zip")
    here, _ = import_bundle(empty, tmp_path / "early.zip")
    origin.restart_run(run_id)
    origin.add_point(run_id, replace(POINT, load_value=64.0))
    origin.finish_run(run_id, "failed", "there")
    export_bundle(origin, run_id, tmp_path / "late.zip")
    empty.restart_run(here)
    empty.finish_run(here, "done")
    altered(str(empty.database.url), "UPDATE runs SET ended = '2999-01-01T00:00:00+00:00'")
    import_bundle(empty, tmp_path / "late.zip")
    run = empty.run(here)
    assert (run.state, run.ended, run.error, run.points) == ("done", "2999-01-01T00:00:00+00:00", "", 4)


def test_points_that_come_while_the_import_waits_for_the_run_are_seen(
    postgres_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIZING_RECORDS", str(tmp_path / "records"))
    url = new_schema(postgres_folder, f"test_{uuid4().hex}")
    store, run_id = measured(url)
    export_bundle(store, run_id, tmp_path / "run.zip")
    altered(url, "DELETE FROM points WHERE load_value = 16")
    last = Measurement(replace(POINT, load_value=LOADS[2], verdict="overloaded", notes="= 1 + 1"))
    with ThreadPoolExecutor(1) as pool:
        with store.database.writing() as connection:
            at_work(connection, run_id, store.database.clock)
            importing = pool.submit(import_bundle, store, tmp_path / "run.zip")
            waits = sql.text("SELECT count(*) FROM pg_locks WHERE NOT granted")
            while not connection.execute(waits).scalar():  # until the import waits for this very run
                assert not importing.done()
            connection.execute(sql.insert(points).values(run=run_id, number=9, **asdict(last.point)))
        assert importing.result() == (run_id, False)
    assert store.run(run_id).points == 3


def test_two_who_import_a_run_at_once_bring_it_in_once(database_url: str, made: Path) -> None:
    Store(database_url)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda url: import_bundle(Store(url), made), [database_url] * 2))
    store = Store(database_url)
    (run,) = store.runs()
    assert sorted(found) == [(run.id, False), (run.id, True)]
    assert (run.points, len(store.records(run.id))) == (3, 2)


def test_other_points_of_the_same_run_are_not_mixed(empty: Store, made: Path) -> None:
    run_id, _ = import_bundle(empty, made)
    altered(str(empty.database.url), "UPDATE points SET requests_per_s = 1 WHERE load_value = 4")
    before = told(empty, run_id)
    with pytest.raises(StoreError, match="a different point than the file"):
        import_bundle(empty, made)
    assert told(empty, run_id) == before


def test_a_run_that_is_being_measured_is_neither_exported_nor_imported(store_url: str, tmp_path: Path) -> None:
    process, run_id = begun_elsewhere(store_url)
    with process:
        with pytest.raises(StoreError, match="is being measured by process"):
            export_bundle(Store(store_url), run_id, tmp_path / "run.zip")
        process.kill()
    export_bundle(Store(store_url), run_id, tmp_path / "run.zip")
    other = Store(f"sqlite:///{tmp_path / 'other.db'}")
    assert other.run(import_bundle(other, tmp_path / "run.zip")[0]).state == "interrupted"


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'points.db'}"


def test_a_damaged_log_is_told_at_the_export(store_url: str, tmp_path: Path) -> None:
    store, run_id = measured(store_url)
    file = next(iter(store.records(run_id).values()))
    file.write_bytes(file.read_bytes()[:-1])
    (tmp_path / "run.zip").write_text("what was there")
    with pytest.raises(StoreError, match=file.name):
        export_bundle(store, run_id, tmp_path / "run.zip")
    assert (tmp_path / "run.zip").read_text() == "what was there"


def test_an_export_that_cannot_be_written(store_url: str) -> None:
    store, run_id = measured(store_url)
    with pytest.raises(StoreError, match="cannot be written"):
        export_bundle(store, run_id, Path("/proc/run.zip"))


def test_records_that_cannot_be_written_leave_no_half_run(
    empty: Store, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = iter((tmp_path / "records", Path("/proc/nowhere")))
    monkeypatch.setattr("calibration.store.database.Database.records", property(lambda _: next(writes)))
    with pytest.raises(StoreError, match="cannot be written"):
        import_bundle(empty, made)
    monkeypatch.undo()
    assert empty.runs() == []
    assert list((tmp_path / "records").rglob("*")) == []
    assert import_bundle(empty, made) == (1, True)


# Files that are not what they should be


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(path: Path, content: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return path


def signed(content: dict[str, bytes], **changes: Any) -> dict[str, bytes]:
    """The members with a manifest that fits them: what somebody could make who knows the format."""
    rest = {name: data for name, data in content.items() if not name.startswith("manifest")}
    sums = {name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in rest.items()}
    manifest = json.dumps(json.loads(content["manifest.json"]) | {"members": sums} | changes).encode()
    return rest | {"manifest.json": manifest, "manifest.sha256": hashlib.sha256(manifest).hexdigest().encode()}


def test_a_bundle_packed_anew_is_still_good(made: Path, empty: Store, tmp_path: Path) -> None:
    """So that the refusals below are for what they change and not for how they are packed."""
    assert import_bundle(empty, packed(tmp_path / "b.zip", signed(members(made)))) == (1, True)


def points_changed(old: str, new: str) -> Callable[[dict[str, bytes]], dict[str, bytes]]:
    def change(content: dict[str, bytes]) -> dict[str, bytes]:
        changed = content["points.json"].replace(old.encode(), new.encode(), 1)
        assert changed != content["points.json"]
        return signed(content | {"points.json": changed})

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda c: c | {"run.json": c["run.json"].replace(b"plan", b"plot")}, "run.json is not what the manifest"),
        (lambda c: c | {"manifest.json": c["manifest.json"] + b" "}, "manifest is not what its checksum"),
        (lambda c: {name: data for name, data in c.items() if name != "manifest.sha256"}, "manifest.sha256 is missing"),
        (lambda c: {name: data for name, data in c.items() if "level-2" not in name}, "not those that its manifest"),
        (lambda c: signed(c) | {"../../evil.py": b"x"}, "'../../evil.py' does not belong"),
        (lambda c: signed(c | {"records/../../level-2.parquet": b"x"}), "does not belong"),
        (lambda c: signed(c | {"records/level-9.parquet": b"x"}), "not those that its manifest lists"),
        (lambda c: signed(c, version=2), "newer version of this program (format 2, this one knows 1)"),
        (lambda c: signed(c, format="cooking recipe"), "format"),
        (lambda c: signed(c, run="0" * 36), "not those that its manifest lists"),
        (lambda c: signed(c | {"run.json": c["run.json"].replace(b"interrupted", b"running")}), "state"),
        (lambda c: signed(c | {"run.json": b'{"uuid": "../../../etc"}'}), "uuid"),
        (lambda c: signed(c | {"run.json": b"[" * 100_000}), "run"),
        (lambda c: signed(c | {"run.json": c["run.json"].replace(b'"created": "2', b'"created": "soon')}), "created"),
        (lambda c: signed(c | {"run.json": c["run.json"].replace(b'"label"', b'"\\u001b[2J"')}), "[2J: unknown key"),
        (points_changed('"late_p99_s": 0.001', '"\\u001b[2J": "x"'), "1.facts. [2J: "),
        (lambda c: signed(c | {"points.json": b"\xff"}), "Invalid JSON"),
        (lambda c: signed(c | {"records/level-2.parquet": b"PAR1"}), "level-2.parquet: not a file of request records"),
        (lambda c: signed(c | {"records/level-2.parquet": c["records/level-3.parquet"]}), "another run or level"),
        (points_changed('"requests_per_s": 9.5', '"requests_per_s": NaN'), "requests_per_s"),
        (points_changed('"tp": 1', '"tp": 0'), "tp"),
        (points_changed('"load_value": 16.0', '"load_value": 4.0'), "at the same level"),
        (points_changed('"late_p99_s": 0.001', '"late_p99_s": "__import__"'), "late_p99_s"),
        (points_changed('"records/level-3.parquet"', '"records/level-2.parquet"'), "not those that its manifest lists"),
        (points_changed('"records/level-3.parquet"', '"/etc/passwd"'), "not those that its manifest lists"),
    ],
)
def test_a_file_that_was_changed_is_refused_and_nothing_of_it_kept(
    made: Path, empty: Store, tmp_path: Path, change: Callable[[dict[str, bytes]], dict[str, bytes]], says: str
) -> None:
    path = packed(tmp_path / "b.zip", change(members(made)))
    with pytest.raises(FileError) as caught:
        import_bundle(empty, path)
    assert str(caught.value).startswith(f"{path}: ")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)
    assert untouched(empty)


def test_orders_to_a_terminal_stay_out_and_the_run_is_the_same_when_it_comes_again(
    made: Path, empty: Store, tmp_path: Path
) -> None:
    content = points_changed('"notes": "= 1 + 1"', r'"notes": "\u001b]52;c;x\u0007\n"')(members(made))
    run = content["run.json"].replace("toy, naïve".encode(), rb"\u001b[2J").replace(b"stopped at", rb"\u009b\u202e")
    path = packed(tmp_path / "b.zip", signed(content | {"run.json": run}))
    assert import_bundle(empty, path) == (1, True)
    assert import_bundle(empty, path) == (1, False)
    assert (empty.run(1).label, empty.run(1).error) == ("\ufffd[2J", "\ufffd\ufffd level 4")
    assert empty.points(1)[2].notes == "\ufffd]52;c;x\ufffd "


def test_a_number_that_no_store_holds(made: Path, empty: Store, tmp_path: Path) -> None:
    for value, fault, says in (
        (10**12, StoreError, "max_batch_size of a point is larger"),
        (10**20, FileError, r"point\.max_batch_size: Input should be less than or equal to"),
    ):
        changed = points_changed('"max_batch_size": null', f'"max_batch_size": {value}')
        path = packed(tmp_path / "b.zip", changed(members(made)))
        with pytest.raises(fault, match=says):
            import_bundle(empty, path)
        assert untouched(empty)


def test_a_bomb_is_refused_before_it_is_unpacked(empty: Store, tmp_path: Path) -> None:
    path = packed(tmp_path / "b.zip", {"run.json": bytes(50_000_000)}, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 100_000
    with pytest.raises(FileError, match="compressed"):
        import_bundle(empty, path)
    assert untouched(empty)


def test_a_member_there_twice(made: Path, empty: Store, tmp_path: Path) -> None:
    path = packed(tmp_path / "b.zip", members(made))
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "a") as archive:
        archive.writestr("run.json", b"{}")
    with pytest.raises(FileError, match="twice"):
        import_bundle(empty, path)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"model,gpu\n", bytes(500)])
def test_files_of_another_kind(empty: Store, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(FileError, match="not a calibration run"):
        import_bundle(empty, tmp_path / "file")


def test_files_that_are_not_there_or_no_files(empty: Store, tmp_path: Path) -> None:
    with pytest.raises(FileError, match="no such file"):
        import_bundle(empty, tmp_path / "file")
    with pytest.raises(FileError, match="directory"):
        import_bundle(empty, tmp_path)


def test_bundles_are_told_from_points_files(made: Path, tmp_path: Path) -> None:
    (tmp_path / "points.csv").write_text("model,gpu\n")
    assert is_bundle(made)
    assert not is_bundle(tmp_path / "points.csv")
    assert not is_bundle(tmp_path / "absent")


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_damage_is_imported(made: Path, empty: Store, tmp_path: Path, data: st.DataObject) -> None:
    """A flipped byte, a cut or bytes doubled: a typed error and nothing kept, or, where it does not matter, the run."""
    content = bytearray(made.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    match data.draw(st.sampled_from(["flip", "cut", "double"])):
        case "flip":
            content[at] ^= data.draw(st.integers(1, 255))
        case "cut":
            del content[at:]
        case _:
            content[at:at] = content[at : at + data.draw(st.integers(1, 64))]
    path = tmp_path / "b.zip"
    path.write_bytes(content)
    store = Store(f"sqlite:///{tmp_path / 'fresh.db'}")
    try:
        run_id, _ = import_bundle(store, path)
    except CalibrationError as error:
        assert "\n" not in str(error)
        assert store.runs() == []
    else:
        origin = Store(f"sqlite:///{made.parent / 'points.db'}")
        assert told(store, run_id) == told(origin, 2)
        for file in tmp_path.glob("fresh.db*"):
            file.unlink()
