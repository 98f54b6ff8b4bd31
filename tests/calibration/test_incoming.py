"""Files that come in by a browser: seen before they are kept, bounded, called by their names and never laid there."""

from __future__ import annotations

import io
import json
import unicodedata
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration import incoming
from calibration.errors import FileError
from calibration.incoming import Upload, preview, take_in
from calibration.store import Store
from calibration.store.bundle import export_bundle
from sizing.errors import PointsError
from sizing.files import resource
from sizing.points import write_points
from tests.calibration.kept import POINT, measurement

ANYWHERE = ["../../x", "/etc/passwd", "..\\..\\x", "C:\\x", "a/../../../x", "\x1b[2J", "", "....//x"]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(f"sqlite:///{tmp_path / 'store' / 'points.db'}")


def files(folder: Path) -> set[Path]:
    """Everything below a folder, the database itself apart."""
    return {path for path in folder.rglob("*") if ".db" not in path.name and path.name != "points-records"}


def table() -> bytes:
    text = io.StringIO()
    write_points([POINT], text)
    return text.getvalue().encode()


def test_a_table_whose_header_is_quoted_as_spreadsheets_do_is_known(store: Store) -> None:
    header, rows = table().decode().split("\n", 1)
    quoted = ",".join(f'"{name}"' for name in header.split(","))
    assert preview(store, Upload("table.csv", f"{quoted}\n{rows}".encode())) == (POINT,)


def exported(store: Store, path: Path) -> bytes:
    """A run in a file, exported from another store."""
    run_id = store.create_run("plan")
    store.add_point(run_id, measurement())
    store.finish_run(run_id, "done")
    export_bundle(store, run_id, path)
    return path.read_bytes()


@pytest.mark.parametrize("name", ANYWHERE)
def test_a_name_is_only_shown(store: Store, tmp_path: Path, name: str) -> None:
    before = files(tmp_path)
    upload = Upload(name, table())
    assert preview(store, upload) == (POINT,)
    assert files(tmp_path) == before and store.runs() == []
    ((run_id, new),) = take_in(store, upload)
    assert new and store.points() == [POINT]
    label = store.run(run_id).label
    assert label.startswith("imported from ") and not set(label) & set("/\\\x1b")
    assert files(tmp_path) == before


@given(st.text(max_size=200))
def test_what_is_shown_of_a_name_is_one_short_line_without_folders(name: str) -> None:
    shown = Upload(name, b"x").shown_name
    assert 0 < len(shown) <= incoming.LONGEST_NAME and not set(shown) & set("/\\")
    assert not {unicodedata.category(sign) for sign in shown} & {"Cc", "Cs", "Zl", "Zp"}


def test_a_run_is_the_same_by_upload_as_by_path(store: Store, tmp_path: Path) -> None:
    content = exported(Store(f"sqlite:///{tmp_path / 'other.db'}"), tmp_path / "run.zip")
    before = files(tmp_path)
    assert preview(store, Upload("run.zip", content)) == (POINT,)
    assert store.runs() == [] and files(tmp_path) == before
    ((run_id, _),) = take_in(store, Upload("run.zip", content))
    export_bundle(store, run_id, tmp_path / "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == content


def zipped(name: str, content: bytes, kind: int = zipfile.ZIP_DEFLATED) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", kind) as archive:
        archive.writestr(name, content)
    return sink.getvalue()


BOMB = zipped("records/level-1.parquet", bytes(50_000_000))
REFUSED = [
    (b"", "the file is empty"),
    (b" \n", "the file is empty"),
    (b'{"sk-secret": "hunter2"}', "not a file of any known kind"),
    (b"sk-secret,hunter2\n1,2\n", "not a file of any known kind"),
    (b"model,gpu,isl,osl,load_kind\nsk-secret,hunter2,1,1,1\n", "a points table needs "),
    (b'{"sk-secret": 1}\n{"hunter2": 2}\n', "not a file of any known kind"),
    (b'{"sk-secret": 1, "sk-secret": 2}', "a key is there twice"),
    (BOMB, "is compressed or encrypted"),
    (zipped("../../x", b"x", zipfile.ZIP_STORED), "does not belong into a calibration run"),
    (zipped("/etc/cron.d/x", b"x", zipfile.ZIP_STORED), "does not belong into a calibration run"),
    (b"PK\x03\x04", "not a calibration run, or damaged"),
    (zipped("[Content_Types].xml", b"<Types/>"), "save the sheet with its table as CSV"),
    (b"model;gpu;isl;osl;load_kind\nsk-secret;hunter2;1;1;1\n", "columns are separated by semicolons"),
    (b"\x80\x04\x95\x00cos\nsystem\n", "not UTF-8 text"),
]


@pytest.mark.parametrize(("content", "says"), REFUSED, ids=[says for _, says in REFUSED])
def test_what_is_refused_is_told_in_a_line_without_its_words(
    store: Store, tmp_path: Path, content: bytes, says: str
) -> None:
    before = files(tmp_path)
    for act in (preview, take_in):
        with pytest.raises((FileError, PointsError), match=says) as caught:
            act(store, Upload("mine.bin", content))
        message = str(caught.value)
        assert message.startswith("mine.bin: ") and "\n" not in message
        assert not any(word in message for word in ("sk-secret", "hunter2", str(tmp_path)))
    assert store.runs() == [] and files(tmp_path) == before


def test_a_file_over_the_limit_is_not_even_laid_down(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming, "MOST_UPLOAD_BYTES", 1_000_000)
    with pytest.raises(
        FileError, match=r"^big\.csv: larger than 1 MB: import it by python -m calibration import FILE$"
    ):
        preview(store, Upload("big.csv", bytes(1_000_001)))
    assert not store.database.records.exists()


HEADER = "model,precision,gpu,tp,isl,osl,load_kind,load_value,requests_per_s\n"


def levels(count: int, row: str = "m,bf16,g,1,64,32,concurrency,{},1\n") -> bytes:
    return (HEADER + "".join(row.format(n) for n in range(1, count + 1))).encode()


def test_a_point_that_stands_twice_is_named(store: Store) -> None:
    upload = Upload("x.csv", levels(50) + b"m,bf16,g,1,64,32,concurrency,7,1\n")
    for act in (preview, take_in):
        with pytest.raises(PointsError, match=r"^x\.csv, row 52: the point of row 8 again: keep one of them"):
            act(store, upload)
    assert store.runs() == []


def test_levels_measured_again_are_runs_of_their_own(store: Store) -> None:
    """Of 3 levels the first is there three times, the second twice."""
    again = "".join(f"m,bf16,g,1,64,32,concurrency,{users},{rate}\n" for users, rate in ((1, 2), (2, 3), (1, 4)))
    upload = Upload("x.csv", levels(3) + again.encode())
    assert len(preview(store, upload)) == 6 and store.runs() == []
    assert take_in(store, upload) == [(1, True), (2, True), (3, True)]
    measured = [[(point.load_value, point.requests_per_s) for point in store.points(run)] for run in (1, 2, 3)]
    assert measured == [[(1, 1), (2, 1), (3, 1)], [(1, 2), (2, 3)], [(1, 4)]]
    assert take_in(store, upload) == [(1, False), (2, False), (3, False)]
    assert len(store.points()) == 6


def test_of_one_level_only_so_many_measurements_are_taken(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run for each: a file may not fill the store with runs."""
    monkeypatch.setattr(incoming, "MOST_TIMES", 3)
    rows = [f"m,bf16,g,1,64,32,concurrency,1,{rate}\n" for rate in (2, 3, 4)]
    assert len(preview(store, Upload("x.csv", levels(1) + "".join(rows[:2]).encode()))) == 3
    with pytest.raises(FileError, match=r"^x\.csv: more than 3 measurements at ISL 64, OSL 32, concurrency 1: split"):
        preview(store, Upload("x.csv", levels(1) + "".join(rows).encode()))


def test_levels_that_one_replica_sees_as_the_same_are_measured_twice(tmp_path: Path) -> None:
    """Of four replicas each has one user where one or four of them ask."""
    path = tmp_path / "x.csv"
    rows = "".join(f"m,bf16,g,1,64,32,concurrency,{users},{rate},4\n" for users, rate in ((1, 1.1), (4, 4), (16, 9)))
    path.write_text(HEADER.replace("\n", ",replicas\n") + rows)
    found = [(each.point.load_value, each.point.requests_per_s) for each in incoming.read_file(path, None, {})]
    assert found == [(1, 1.1), (1, 1.0), (4, 2.25)]


def test_the_curves_of_the_h200_come_in_whole(store: Store) -> None:
    """Their rates were measured in rounds."""
    raw = resource("data/curves/h200-vllm.csv").read_bytes()
    points = preview(store, Upload("h200-vllm.csv", raw))
    assert len(take_in(store, Upload("h200-vllm.csv", raw))) > 1
    assert len(store.points()) == len(points)


@pytest.mark.parametrize("kind", ["points", "perf-analyzer", "perf-analyzer json", "guidellm"])
def test_too_many_points_are_refused_before_they_are_looked_at(
    store: Store, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of what stands there could be taken: it is counted first."""
    monkeypatch.setattr(incoming, "MOST_UPLOAD_POINTS", 3)
    content = {
        "points": levels(3) + b"no point\n",
        "perf-analyzer": b"Concurrency,Inferences/Second\n" + 4 * b"no,number\n",
        "perf-analyzer json": json.dumps({"experiments": [1, 2, 3, 4]}).encode(),
        "guidellm": json.dumps({"benchmarks": [1, 2, 3, 4]}).encode(),
    }[kind]
    with pytest.raises((FileError, PointsError), match=r"^x: more than 3 points: split it$"):
        preview(store, Upload("x", content))


def test_as_many_points_as_may_be_are_taken(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming, "MOST_UPLOAD_POINTS", 3)
    assert len(preview(store, Upload("x.csv", levels(3)))) == 3
    with pytest.raises(PointsError, match="more than 3 points"):
        preview(store, Upload("x.csv", levels(4)))


def test_a_log_that_would_fill_the_memory_is_refused_by_what_it_claims(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = exported(Store(f"sqlite:///{tmp_path / 'other.db'}"), tmp_path / "run.zip")
    monkeypatch.setattr(incoming, "MOST_UPLOAD_VALUES", 10)
    with pytest.raises(FileError, match=r"^run\.zip: .*more than 10 values"):
        preview(store, Upload("run.zip", content))


def test_a_folder_that_cannot_be_written_is_one_line(store: Store) -> None:
    store.database.records.write_text("in the way")
    with pytest.raises(FileError, match=r"^x\.csv: cannot be stored for reading"):
        preview(store, Upload("x.csv", table()))


def test_options_with_a_file_that_says_all_itself_are_refused(store: Store) -> None:
    with pytest.raises(FileError, match="--gpu: a points table already says it"):
        preview(store, Upload("x.csv", table(), said=(("gpu", "h100"),)))


def test_the_digest_tells_uploads_apart() -> None:
    one = Upload("a", b"x")
    others = [Upload("b", b"x"), Upload("a", b"y"), Upload("a", b"x", "vllm"), Upload("a", b"x", said=(("tp", 1),))]
    assert len({upload.digest for upload in (one, *others)}) == 5 and Upload("a", b"x").digest == one.digest
    assert np.all([len(upload.digest) == 64 for upload in others])
