"""Logs in Parquet files: nothing is lost on the way, no damage passes, no half-written file is left."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
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
    assert same(decoded(content, "log"), log)
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
    assert decoded_about((tmp_path / "a" / "log.parquet").read_bytes(), "log") == ABOUT
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
    with pytest.raises(StoreError, match="log: not a file of request records"):
        read_log(tmp_path / "log")
    with pytest.raises(StoreError, match="log: not a file of request records"):
        decoded_about(content, "log")


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


# Files made to fill the memory


@pytest.mark.parametrize(
    ("limit", "most", "says"),
    [
        ("MOST_REQUESTS", 3, "requests"),
        ("MOST_VALUES", 6 * 3 + 2 * 12, "values"),  # six columns of 3 requests, two of their 12 responses
        ("MOST_TEXT_BYTES", 1000, "bytes of error texts"),
    ],
)
def test_a_log_that_claims_to_fill_the_memory_is_neither_read_nor_written(
    monkeypatch: pytest.MonkeyPatch, limit: str, most: int, says: str
) -> None:
    monkeypatch.setattr(f"calibration.store.records_file.{limit}", most)
    assert same(decoded(encoded(some_log(), ABOUT), "log"), some_log())
    larger = RequestLog.joined([some_log(), replace(some_log(1), error=("long " * 300,))])
    monkeypatch.undo()
    content = encoded(larger, ABOUT)
    monkeypatch.setattr(f"calibration.store.records_file.{limit}", most)
    with pytest.raises(StoreError, match=f"log: .*it claims to hold more than {most} {says}"):
        decoded(content, "log")
    with pytest.raises(StoreError, match=f"holds more than {most} {says}: measure it for a shorter time"):
        encoded(larger, ABOUT)


def failed(error: str, requests: int) -> bytes:
    """A file that anybody could write: all of many requests failed with the same text."""
    rows = {name: pa.array([0.0] * requests) for name in ("intended_s", "sent_s", "end_s")}
    rows |= {name: pa.array([1] * requests) for name in ("isl", "osl")}
    rows["error"] = pa.DictionaryArray.from_arrays(pa.array([0] * requests, pa.int32()), [error]).cast(pa.string())
    rows["chunk_at_s"] = pa.array([[]] * requests, pa.list_(pa.float64()))
    rows["chunk_tokens"] = pa.array([[]] * requests, pa.list_(pa.int64()))
    sink = pa.BufferOutputStream()
    table = pa.table(rows).replace_schema_metadata({METADATA: ABOUT.model_dump_json()})
    parquet.write_table(table, sink, compression="zstd", dictionary_pagesize_limit=10**8)
    return bytes(sink.getvalue())


def test_a_long_text_that_stands_there_often_is_refused() -> None:
    content = failed("A" * 1_000_000, 100)
    assert len(content) < 10_000
    with pytest.raises(StoreError, match="error text is longer than 2000 characters"):
        decoded(content, "log")


def test_a_text_takes_its_room_once_however_many_requests_failed_with_it() -> None:
    content = failed("A" * 2000, 20_000)
    before = pa.default_memory_pool().max_memory()
    log = decoded(content, "log")
    assert log.error == ("A" * 2000,) * 20_000
    assert len({id(error) for error in log.error}) == 1
    assert pa.default_memory_pool().max_memory() <= max(before, 2000 * 20_000 / 2)


def test_errors_are_short_lines_that_do_nothing_to_a_terminal() -> None:
    log = replace(some_log(2), error=("two\nlines \x1b]52;c;cm0=\a", "long " * 1000))
    assert decoded(encoded(log, ABOUT), "log").error == ("two lines \ufffd]52;c;cm0=\ufffd", "long " * 400)
    assert decoded(failed("\x1b[2J", 2), "log").error == ("\ufffd[2J", "\ufffd[2J")


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


def test_only_files_of_sessions_have_turns() -> None:
    """What was written before there were sessions is read, and written again byte for byte."""
    log = some_log()
    assert "turn" not in parquet.read_schema(pa.BufferReader(encoded(log, ABOUT))).names
    assert decoded(CONTENT, "log").turn.tolist() == [0, 0, 0]
    turns = replace(log, turn=np.array([0, 1, 2], np.int64))
    assert decoded(encoded(turns, ABOUT), "log").turn.tolist() == [0, 1, 2]
    assert turns.where(turns.turn > 0).turn.tolist() == [1, 2]
    assert RequestLog.joined([log, turns]).turn.tolist() == [0, 0, 0, 0, 1, 2]
