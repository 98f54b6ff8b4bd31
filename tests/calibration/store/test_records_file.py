"""Logs in Parquet files: nothing is lost on the way, no damage passes, no half-written file is left."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration.errors import StoreError
from calibration.plan import level_key
from calibration.records import RequestLog
from calibration.store.records_file import (
    METADATA,
    About,
    decoded,
    decoded_about,
    encoded,
    read_about,
    read_log,
    write_log,
)
from tests.calibration.kept import POINT, logs, same, some_log
from tests.calibration.outside import ROOT

ABOUT = About(run="some run", level=level_key(POINT), window_s=(0.1, 2.0), seed=(7, 1))
CONTENT = encoded(some_log(), ABOUT)


@settings(max_examples=30, deadline=None)
@given(log=logs)
def test_a_log_comes_back_bit_for_bit(log: RequestLog) -> None:
    content = encoded(log, ABOUT)
    assert same(
        decoded(content, "log"), replace(log, error=tuple(error.replace("\0", "\ufffd") for error in log.error))
    )
    assert decoded_about(content, "log") == ABOUT
    assert encoded(log, ABOUT) == content


def test_half_characters_in_an_error_do_not_lose_the_log() -> None:
    log = replace(some_log(1), error=("bad \ud800",))
    assert decoded(encoded(log, ABOUT), "log").error == ("bad \ufffd",)


def test_a_file_can_be_read_with_other_tools(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / ".log.parquet.7.draft").write_text("what a killed process left")
    write_log(tmp_path / "a" / "log.parquet", some_log(), ABOUT)
    table = parquet.read_table(tmp_path / "a" / "log.parquet")
    assert table.column("sent_s").to_pylist() == [0.0, 1.0, 2.0]
    assert table.column("chunk_tokens").to_pylist() == [[1, 1, 1, 1]] * 3
    assert read_about(tmp_path / "a" / "log.parquet") == ABOUT
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["log.parquet"]


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_damage_passes_unseen(data: st.DataObject) -> None:
    """A flipped byte or a cut: a StoreError, or, in a byte that carries nothing of the log, the log itself."""
    content = bytearray(CONTENT)
    at = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content[at] ^= data.draw(st.integers(1, 255))
    else:
        del content[at:]
    try:
        log = decoded(bytes(content), "the file")
    except StoreError as error:
        assert str(error).startswith("the file: not a file of request records")
        assert "\n" not in str(error)
    else:
        assert same(log, some_log())


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1PAR1", b"{}", bytes(1000)])
def test_a_file_of_another_kind(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "log").write_bytes(content)
    for read in (read_log, read_about):
        with pytest.raises(StoreError, match="log: not a file of request records"):
            read(tmp_path / "log")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be read"):
        read_log(tmp_path / "log")


def other(columns: Mapping[str, Any], metadata: Mapping[bytes, bytes] | None = None) -> bytes:
    """A Parquet file like a log, with some columns or the metadata replaced."""
    table = parquet.read_table(pa.BufferReader(CONTENT))
    for name, values in columns.items():
        at = table.schema.get_field_index(name)
        table = table.set_column(at, name, values)
    sink = pa.BufferOutputStream()
    parquet.write_table(table if metadata is None else table.replace_schema_metadata(metadata), sink)
    return bytes(sink.getvalue())


@pytest.mark.parametrize(
    ("columns", "metadata", "says"),
    [
        ({}, {}, "columns are not those"),
        ({}, {METADATA: b"{"}, "Invalid JSON"),
        ({}, {METADATA: b'{"run": "x", "level": [1, 2, 3]}'}, "level"),
        ({}, {METADATA: ABOUT.model_dump_json().replace('"version":1', '"version":2').encode()}, "version"),
        ({"isl": pa.array(["a", "b", "c"])}, None, "columns are not those"),
        ({"sent_s": pa.array([1.0, None, 2.0])}, None, "values are missing"),
        ({"chunk_tokens": pa.array([[1], [1], [1]])}, None, "do not fit together"),
        ({"chunk_tokens": pa.array([[1, None, 1, 1], [1] * 4, [1] * 4])}, None, "do not fit together"),
    ],
)
def test_parquet_that_is_no_log(columns: Mapping[str, Any], metadata: Mapping[bytes, bytes] | None, says: str) -> None:
    with pytest.raises(StoreError, match=says):
        decoded(other(columns, metadata), "log")


def test_a_file_that_claims_to_fill_the_memory_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calibration.store.records_file.MOST_VALUES", 11)  # the log has 12 responses
    with pytest.raises(StoreError, match="more than 11 values"):
        decoded(CONTENT, "log")


WRITE_TOO_MUCH = """
import resource, sys
from pathlib import Path
from calibration.errors import StoreError
from calibration.store.records_file import write_log
from tests.calibration.kept import some_log
from tests.calibration.store.test_records_file import ABOUT
path = Path(sys.argv[1])
write_log(path, some_log(), ABOUT)
kept = path.read_bytes()
resource.setrlimit(resource.RLIMIT_FSIZE, (len(kept), resource.RLIM_INFINITY))
try:
    write_log(path, some_log(requests=1000), ABOUT)
except StoreError as error:
    print(error)
assert path.read_bytes() == kept
"""


def test_a_disk_without_room_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITE_TOO_MUCH, str(tmp_path / "log")]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert "log: cannot be written (File too large): free some space" in told.stdout, told.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["log"]
