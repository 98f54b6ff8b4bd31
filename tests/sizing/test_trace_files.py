"""Files of traces: each kind read as its source describes it, the same whatever it is written to, and what is wrong
with a file said in one line."""

from __future__ import annotations

import csv
import gzip
import io
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from sizing import trace_files
from sizing.lazy_group import missing_extra
from sizing.text import capital
from sizing.trace import TraceError, hours
from sizing.trace_files import Reading, read_trace_noted, read_traces
from tests.sizing.trace_samples import (
    AZURE_2023,
    AZURE_2024,
    BURST_1,
    BURST_3,
    GATEWAY,
    MOONCAKE,
    OTLP,
    OWN,
    PAIRS,
    RESPONSES,
    SPANS,
    VLLM_SPANS,
    json_lines,
)

ROOT = Path(__file__).parents[2]


class Expected(NamedTuple):
    """What a file's source says it holds."""

    arrival_s: list[float]
    isl: list[int]
    osl: list[int]
    began: str = ""
    session: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()


EXAMPLES = {
    "own": (OWN, "own", Expected([0.5, 2, 2], [10, 20, 30], [1, 2, 3], "", (0, 1, 0), classes=("chat", "batch"))),
    "azure 2023": (
        AZURE_2023,
        "azure",
        Expected([0, 0.052, 0.098189], [4808, 3180, 110], [10, 8, 27], "2023-11-16T18:17:03.979960", (), ("as UTC",)),
    ),
    "azure 2024": (
        AZURE_2024,
        "azure",
        Expected([0, 0.007405, 0.99007], [2162, 2399, 76], [5, 6, 15], "2024-05-10T00:00:00.009930"),
    ),
    "mooncake": (
        MOONCAKE,
        "mooncake",
        Expected([0, 0, 27.482], [6758, 7322, 6955], [500, 490, 52], notes=("hash_ids is not used",)),
    ),
    "burstgpt 1": (
        BURST_1,
        "burstgpt",
        Expected([5, 45, 118], [472, 1087, 417], [18, 230, 276], notes=("1 of 4 rows left out: no output tokens",)),
    ),
    "burstgpt 3": (  # 225 days of 86,400 s are 19,440,000 s
        BURST_3,
        "burstgpt",
        Expected([110, 161, 192], [906, 36, 1360], [446, 29, 210], "", (0, 1, 0), ("begin on day 225",)),
    ),
    "otlp": (
        OTLP,
        "otel",
        Expected([0, 1.5], [120, 7], [30, 9], "2020-02-11T20:26:12", (0, 1), ("2 of 4 spans left out",)),
    ),
    "spans": (SPANS, "otel", Expected([0, 1.25], [11, 12], [5, 6], "2024-05-10T14:00:00.25", (), ("1 of 3 spans",))),
    "vllm spans": (VLLM_SPANS, "otel", Expected([0, 1.25], [11, 12], [5, 6], "2024-05-10T14:00:00.25")),
    "responses": (RESPONSES, "log", Expected([0, 2], [9, 8], [3, 2], "2024-05-10T14:00:00")),
    "gateway": (GATEWAY, "log", Expected([0, 2.25], [9, 8], [3, 2], "2024-05-10T14:00:00.25", (0, 0))),
    "pairs": (PAIRS, "log", Expected([0, 2.25], [9, 8], [3, 2], "2024-05-10T14:00:00.25", (0, 1), ("as UTC",))),
}


def began(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() if text else float("nan")


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("packed", [False, True])
def test_each_kind_is_read_as_its_source_describes_it(name: str, packed: bool, tmp_path: Path) -> None:
    raw, kind, expected = EXAMPLES[name]
    path = tmp_path / "trace"
    path.write_bytes(gzip.compress(raw) if packed else raw)
    found = read_trace_noted(path)
    assert found.kind == kind
    assert found.trace.arrival_s == pytest.approx(expected.arrival_s, abs=1e-6)
    assert (found.trace.isl.tolist(), found.trace.osl.tolist()) == (expected.isl, expected.osl)
    assert found.trace.began_s == pytest.approx(began(expected.began), abs=1e-6, nan_ok=True)
    assert found.trace.session.tolist() == list(expected.session)
    assert found.trace.classes == expected.classes
    assert len(found.notes) == len(expected.notes)
    assert all(part in note for part, note in zip(expected.notes, found.notes, strict=True))
    assert [found.trace.arrival_s.dtype.itemsize, found.trace.isl.dtype.itemsize, found.trace.osl.itemsize] == [8, 4, 4]


class Request(NamedTuple):
    """A request of a trace to be written: microseconds from its start."""

    us: int
    isl: int
    osl: int
    session: str | None


START = datetime(2024, 5, 10, 13, 59, 58, tzinfo=UTC)
REQUESTS = st.lists(
    st.builds(
        Request,
        st.integers(0, 3 * 86_400_000_000),
        st.integers(1, 2**31 - 1),
        st.integers(1, 10**6),
        st.sampled_from([None, "a", "b", "7", 'ü,"']),
    ),
    min_size=2,
    max_size=30,
).map(lambda requests: sorted(requests, key=lambda request: request.us))
Rows = Sequence[Request]


def table(header: list[str], rows: list[list[object]]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows([header, *rows])  # with CRLF, as RFC 4180 has it
    return text.getvalue().encode()


def date(request: Request) -> datetime:
    return START + timedelta(microseconds=request.us)


def nanoseconds(request: Request) -> int:
    return round(START.timestamp()) * 10**9 + request.us * 1000


def own_csv(rows: Rows) -> bytes:
    return table(["arrival_s", "osl", "isl", "session"], [[r.us / 1e6, r.osl, r.isl, r.session] for r in rows])


def own_lines(rows: Rows) -> bytes:
    return json_lines([{"arrival_s": r.us / 1e6, "isl": r.isl, "osl": r.osl, "session": r.session} for r in rows])


def parquet_of(columns: Mapping[str, object]) -> bytes:
    sink = io.BytesIO()
    parquet.write_table(pa.table(columns), sink)
    return sink.getvalue()


def own_parquet(rows: Rows) -> bytes:
    columns = {"arrival_s": [r.us / 1e6 for r in rows], "isl": [r.isl for r in rows], "osl": [r.osl for r in rows]}
    return parquet_of(columns | {"session": pa.array([r.session for r in rows], pa.string())})


def azure_parquet(rows: Rows) -> bytes:
    return parquet_of(
        {
            "TIMESTAMP": pa.array([date(r) for r in rows], pa.timestamp("us", "UTC")),
            "ContextTokens": [r.isl for r in rows],
            "GeneratedTokens": pa.array([r.osl for r in rows], pa.float64()),
        }
    )


def azure(rows: Rows) -> bytes:
    return table(
        ["TIMESTAMP", "ContextTokens", "GeneratedTokens"],
        [[f"{date(r):%Y-%m-%d %H:%M:%S.%f}+00:00", r.isl, r.osl] for r in rows],
    )


def azure_no_zone(rows: Rows) -> bytes:
    return azure(rows).replace(b"+00:00", b"0")  # seven digits of a second


def burst(rows: Rows) -> bytes:
    return table(
        ["Timestamp", "Session ID", "Model", "Request tokens", "Response tokens", "Log Type"],
        [[r.us / 1e6, r.session, "GPT-4", r.isl, r.osl, "API log"] for r in rows],
    )


def mooncake(rows: Rows) -> bytes:
    return json_lines([{"timestamp": r.us / 1e3, "input_length": r.isl, "output_length": r.osl} for r in rows])


def flat_spans(rows: Rows) -> bytes:
    return json_lines(
        [
            {
                "start_time_unix_nano": nanoseconds(r),
                "attributes": {
                    "gen_ai.usage.input_tokens": r.isl,
                    "gen_ai.usage.output_tokens": r.osl,
                    "gen_ai.conversation.id": r.session,
                },
            }
            for r in rows
        ]
    )


def exported_spans(rows: Rows) -> bytes:
    """Two exports, each with a part of the spans."""

    def span(r: Request) -> dict[str, object]:
        values = {"gen_ai.usage.input_tokens": r.isl, "gen_ai.usage.output_tokens": r.osl}
        attributes: list[object] = [{"key": key, "value": {"intValue": str(each)}} for key, each in values.items()]
        if r.session is not None:
            attributes.append({"key": "gen_ai.conversation.id", "value": {"stringValue": r.session}})
        return {"startTimeUnixNano": str(nanoseconds(r)), "attributes": attributes}

    parts = [rows[:1], rows[1:]]
    return json_lines([{"resourceSpans": [{"scopeSpans": [{"spans": [*map(span, part)]}]}]} for part in parts])


def log(rows: Rows) -> bytes:
    return json_lines(
        [
            {
                "ts": date(r).isoformat(),
                "usage": {"prompt_tokens": r.isl, "completion_tokens": r.osl},
                "session": r.session,
            }
            for r in rows
        ]
    )


def log_of_milliseconds(rows: Rows) -> bytes:
    return json_lines(
        [{"time": nanoseconds(r) / 1e6, "prompt_tokens": r.isl, "completion_tokens": r.osl} for r in rows]
    )


def pairs(rows: Rows) -> bytes:
    lines = [f"time={date(r).isoformat()} prompt_tokens={r.isl} completion_tokens={r.osl}" for r in rows]
    return "\n".join(lines).encode()


WITH_SESSIONS: list[Callable[[Rows], bytes]] = [own_csv, own_lines, own_parquet, burst, flat_spans, exported_spans, log]
WITHOUT: list[Callable[[Rows], bytes]] = [azure_parquet, azure, azure_no_zone, mooncake, log_of_milliseconds, pairs]
FROM_START = (own_csv, own_lines, own_parquet, burst, mooncake)


def written(raw: bytes, folder: Path) -> Path:
    path = folder / "trace"
    path.write_bytes(raw)
    return path


def numbered(names: Sequence[str | None]) -> list[int]:
    """Sessions by order of first appearance; no name is a session of its own."""
    seen: dict[object, int] = {}
    return [seen.setdefault(object() if name is None else name, len(seen)) for name in names]


@pytest.mark.parametrize("write", [*WITH_SESSIONS, *WITHOUT])
@settings(max_examples=40)
@given(rows=REQUESTS)
@example(rows=[Request(0, 1, 1, "a")] * 2)
def test_what_was_written_is_read(
    write: Callable[[Rows], bytes], rows: Rows, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Times to a microsecond, from the start of the trace or since 1970."""
    trace = read_trace_noted(written(write(rows), tmp_path_factory.mktemp("trace"))).trace
    us = np.array([row.us for row in rows])
    if write in FROM_START:
        us -= us[0] - us[0] % 86_400_000_000
        assert np.isnan(trace.began_s)
    else:
        assert trace.began_s == pytest.approx(date(rows[0]).timestamp(), abs=1e-6)
        us -= us[0]
    assert trace.arrival_s == pytest.approx(us / 1e6, abs=1e-6)
    assert trace.isl.tolist() == [row.isl for row in rows]
    assert trace.osl.tolist() == [row.osl for row in rows]
    names = [row.session for row in rows]
    expected = numbered(names) if write in WITH_SESSIONS and any(names) else []
    assert trace.session.tolist() == expected


@settings(max_examples=60)
@given(rows=st.lists(st.integers(0, 20), min_size=2, max_size=40))
def test_rows_out_of_order_are_sorted_and_equal_times_stay_in_order(
    rows: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each request is known by its ISL; the note says how many rows come after a later one, and by how much at most."""
    raw = table(["arrival_s", "isl", "osl"], [[second, 1 + place, 1] for place, second in enumerate(rows)])
    found = read_trace_noted(written(raw, tmp_path_factory.mktemp("trace")))
    order = sorted(range(len(rows)), key=lambda place: rows[place])
    assert found.trace.isl.tolist() == [1 + place for place in order]
    assert found.trace.arrival_s.tolist() == [float(rows[place]) for place in order]
    back = [max(rows[: place + 1]) - second for place, second in enumerate(rows)]
    said = [note for note in found.notes if "sorted" in note]
    if max(back):
        late = sum(step > 0 for step in back)
        assert said == [f"times out of order were sorted: {late} of {len(rows)} rows, largest step back {max(back)} s"]
    else:
        assert not said


def long_trace(requests: int) -> list[Request]:
    rng = np.random.default_rng(5)
    us = np.cumsum(rng.integers(0, 10**6, requests))
    isl, osl = rng.integers(1, 9000, (2, requests))
    rows = zip(us.tolist(), isl.tolist(), osl.tolist(), strict=True)
    return [Request(*row, f"s{row[0] % 40}") for row in rows]


@pytest.mark.parametrize("write", [own_csv, own_lines, own_parquet, azure, exported_spans, pairs])
def test_a_file_read_in_small_parts_is_the_same_trace(
    write: Callable[[Rows], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(write(long_trace(3000)), tmp_path)
    whole = read_trace_noted(path).trace
    monkeypatch.setattr(trace_files, "BLOCK_BYTES", 200)
    monkeypatch.setattr(trace_files, "BATCH_ROWS", 7)
    parts = read_trace_noted(path).trace
    for name in ("arrival_s", "isl", "osl", "session"):
        assert np.array_equal(getattr(whole, name), getattr(parts, name)), name
    assert whole.began_s == parts.began_s or np.isnan(whole.began_s)


PEAK = """
import sys, tracemalloc
import pyarrow
from sizing.trace_files import read_trace_noted
read_trace_noted(sys.argv[2])
tracemalloc.start()
assert len(read_trace_noted(sys.argv[1]).trace) == 25_000
print((tracemalloc.get_traced_memory()[1] + pyarrow.default_memory_pool().max_memory()) / 1e6)
"""


@pytest.mark.parametrize("kind", ["csv", "lines"])
@pytest.mark.long
def test_memory_is_that_of_the_requests_and_not_of_the_file(kind: str, tmp_path: Path) -> None:
    """25,000 requests in 40 MB of text are 0.4 MB; the rest are the parts in hand, and those read ahead, 32 at most.

    Libraries are loaded by a first, small file.
    """
    filler = "x" * 1570
    path, small = tmp_path / "trace", tmp_path / "small"
    small.write_bytes(OWN if kind == "csv" else MOONCAKE)
    with path.open("w") as file:
        if kind == "csv":
            file.write("arrival_s,isl,osl,prompt\n")
            file.writelines(f"{place / 8},10,20,{filler}\n" for place in range(25_000))
        else:
            last = f'"isl": 10, "osl": 20, "prompt": "{filler}"}}\n'
            file.writelines(f'{{"arrival_s": {place / 8}, {last}' for place in range(25_000))
    assert path.stat().st_size > 39_000_000
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(path), str(small)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    path.unlink()
    assert float(done.stdout) < 25, "MB"


def test_only_numbers_are_kept(tmp_path: Path) -> None:
    kept = pickle.dumps(read_trace_noted(written(BURST_3, tmp_path)))
    assert b"1722ac82" not in kept and b"GPT-4" not in kept and b"Conversation" not in kept


def test_pyarrow_is_loaded_by_the_first_file_and_named_where_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sys, sizing, sizing.trace_files; print('pyarrow' in sys.modules)"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "False\n"
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ModuleNotFoundError) as lacking:
        read_trace_noted(written(OWN, tmp_path))
    assert "pip install 'sizing[measure]'" in str(missing_extra(lacking.value))


def noted(raw: bytes, folder: Path) -> Reading:
    return read_trace_noted(written(raw, folder))


def test_a_file_with_the_columns_of_two_kinds_is_of_the_first(tmp_path: Path) -> None:
    raw = b"arrival_s,isl,osl,ts,prompt_tokens,completion_tokens\n0,1,1,1715349600,5,6\n1,2,2,1715349609,7,8\n"
    assert noted(raw, tmp_path).trace.isl.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("cells", "arrival_s", "since"),
    [
        (("0", "0"), [0, 0], ""),
        (("1e3", "1000.5"), [1000, 1000.5], ""),
        (("90000", "90001"), [3600, 3601], ""),
        (("1715349600", "1715349600.5"), [0, 0.5], "2024-05-10T14:00:00"),
        (("2024-05-10T14:00:00Z", "2024-05-10 16:00:01.5+02:00"), [0, 1.5], "2024-05-10T14:00:00"),
        (("2024-05-10 14:00", "2024-05-10T10:00:01-0400"), [0, 1], "2024-05-10T14:00:00"),
        ((" 2024-05-10 14:00:00 ", "2024-05-10 13:59:59"), [0, 1], "2024-05-10T13:59:59"),
        (("2199-12-31 23:59:58", "2199-12-31 23:59:59"), [0, 1], "2199-12-31T23:59:58"),
    ],
)
def test_times(cells: tuple[str, str], arrival_s: list[float], since: str, tmp_path: Path) -> None:
    rows = "".join(f"{cell},5,5\n" for cell in cells)
    trace = noted(f"arrival_s,isl,osl\n{rows}".encode(), tmp_path).trace
    assert trace.arrival_s == pytest.approx(arrival_s, abs=1e-6)
    assert trace.began_s == pytest.approx(began(since), abs=1e-6, nan_ok=True)


@pytest.mark.parametrize("scale", [1, 10**3, 10**6, 10**9])
def test_a_log_may_count_in_any_unit_since_1970(scale: int, tmp_path: Path) -> None:
    raw = json_lines([{"ts": s * scale, "prompt_tokens": 1, "completion_tokens": 1} for s in (1715349600, 1715349604)])
    trace = noted(raw, tmp_path).trace
    assert trace.arrival_s == pytest.approx([0, 4], abs=1e-6)
    assert trace.began_s == pytest.approx(1715349600, abs=1e-6)


def test_notes_say_what_was_taken_for_granted(tmp_path: Path) -> None:
    raw = b"arrival_s,isl,osl\n0,5,5\n0,6,\n0,7,7\n3,0,8\n4,9,9\n"
    assert noted(raw, tmp_path).notes == (
        "1 of 5 rows left out: no output tokens",
        "1 of 5 rows left out: no prompt tokens",
        "times are whole seconds: requests of one second arrive at once",
    )


HEAD = b"arrival_s,isl,osl\n0,5,5\n"
JSON = b'{"arrival_s": 0, "isl": 5, "osl": 5}\n'
PARQUET = own_parquet(long_trace(300))
BROKEN: dict[str, tuple[bytes, str]] = {
    "empty file": (b"", "the file is empty"),
    "empty file, packed": (gzip.compress(b""), "the file is empty"),
    "header only": (b"arrival_s,isl,osl\n", "this has 0"),
    "header without an end": (b"arrival_s,isl,osl", "one line only"),
    "one request": (HEAD, "this has 1"),
    "binary": (bytes(range(256)) * 20, "neither text in UTF-8 nor Parquet"),
    "UTF-16": ("arrival_s,isl,osl\n0,5,5\n1,5,5\n".encode("utf-16"), "neither text in UTF-8 nor Parquet"),
    "UTF-16 without a mark": ("arrival_s,isl,osl\n0,5,5\n".encode("utf-16-le"), "neither text in UTF-8 nor Parquet"),
    "Latin-1 in a number": (HEAD + b"1,5\xe9,5\n", "row 3, column 'isl'"),
    "a spreadsheet": (b"PK\x03\x04\x14\x00\x06\x00" + bytes(200), "neither text in UTF-8 nor Parquet"),
    "an unknown table": (b"when,how,much\n0,5,5\n1,5,5\n", "write arrival_s (seconds), isl and osl"),
    "seconds of nobody's format": (
        b"timestamp,input_toks,output_toks\n0.5,5,5\n1,5,5\n",
        "milliseconds (kind mooncake): add or rename, or write arrival_s (seconds), isl and osl",
    ),
    "a column missing": (b"arrival_s,isl\n0,5\n1,5\n", "osl is missing for a trace of this program (kind own)"),
    "two columns missing": (
        b"TIMESTAMP,Model\n2024-05-10 14:00:00,x\n",
        "ContextTokens, GeneratedTokens are missing for an Azure LLM inference trace",
    ),
    "a column twice": (b"arrival_s,isl,osl,isl\n0,5,5,5\n1,5,5,5\n", "column 'isl' is there twice"),
    "semicolons": (b"arrival_s;isl;osl\n0,5;5;5\n", "separated by semicolons"),
    "tabs": (b"arrival_s\tisl\tosl\n0\t5\t5\n", "separated by tabs"),
    "an empty first line": (b"\narrival_s,isl,osl\n0,5,5\n1,5,5\n", "the first line is empty"),
    "a quote that never closes": (HEAD + b'"1,5,5\n2,5,5\n3,5,5\n', "row 3"),
    "a quote that never closes in the header": (b'arrival_s,"isl,osl\n0,5,5\n', "row 1"),
    "a short row": (HEAD + b"1,5\n2,5,5\n", "row 3: 2 cells where the header names 3"),
    "a long row after empty lines": (HEAD + b"\n\r\n1,5,5,5\n", "row 5: 4 cells where the header names 3"),
    "words for tokens": (HEAD + b"\n1,five,5\n", "row 4, column 'isl': 'five' is no whole number"),
    "tokens below 0": (HEAD + b"1,5,-5\n", "row 3, column 'osl': '-5' is no whole number"),
    "tokens that are NaN": (HEAD + b"1,nan,5\n", "row 3, column 'isl': 'nan' is no whole number"),
    "endless tokens": (HEAD + b"1,inf,5\n", "row 3, column 'isl': 'inf' is no whole number"),
    "half a token": (HEAD + b"1,2.5,5\n", "row 3, column 'isl': '2.5' is no whole number"),
    "too many tokens": (HEAD + b"1,2147483648,5\n", "row 3, column 'isl': '2147483648' is no whole number"),
    "digits without end": (HEAD + b"1," + b"9" * 5000 + b",5\n", "row 3, column 'isl'"),
    "thousands in groups": (HEAD + b'1,"1,000",5\n', "row 3, column 'isl': '1,000' is no whole number"),
    "no output tokens in most rows": (HEAD + b"1,5,0\n2,5,\n3,5,0\n", "3 of 4 rows have no output tokens"),
    "no prompt tokens in most rows": (HEAD + b"1,,1\n2,0,1\n3,0,1\n", "(column 'isl' is empty or 0)"),
    "no time": (HEAD + b",5,5\n", "row 3, column 'arrival_s': no time is written"),
    "thousands in groups in pairs": (PAIRS.replace(b"=9", b"=1,009"), "row 1, column 'prompt_tokens': '1,009' is no"),
    "a time that is NaN": (HEAD + b"nan,5,5\n", "row 3, column 'arrival_s': 'nan' is no time"),
    "a time before the start": (HEAD + b"-1,5,5\n", "row 3, column 'arrival_s': '-1' is before the start"),
    "a date in an unknown form": (HEAD + b"10/May/2024:14:00:00,5,5\n", "is no time: write 2024-05-10T14:00:00Z"),
    "30 February": (
        b"arrival_s,isl,osl\n2024-02-29 14:00:00,5,5\n2024-02-30 14:00:00,5,5\n",
        "row 3, column 'arrival_s': '2024-02-30 14:00:00' is no time",
    ),
    "dates after seconds": (HEAD + b"2024-05-10 14:00:00,5,5\n", "row 3, column 'arrival_s'"),
    "since 1970 after seconds": (HEAD + b"1715349600,5,5\n", "is not written as the times before it"),
    "the year 1601": (b"arrival_s,isl,osl\n1601-01-01 00:00:00,5,5\n", "is not between 1973 and 2200"),
    "the year 1970": (b"arrival_s,isl,osl\n1970-01-01 00:00:01,5,5\n", "is not between 1973 and 2200"),
    "the year 2200": (b"arrival_s,isl,osl\n2200-01-01 00:00:00,5,5\n", "is not between 1973 and 2200"),
    "the year 9999": (b"arrival_s,isl,osl\n9999-01-01 00:00:00Z,5,5\n", "is not between 1973 and 2200"),
    "the year 0000": (b"arrival_s,isl,osl\n0000-01-01 00:00:00Z,5,5\n", "is not between 1973 and 2200"),
    "after 2200 in seconds": (b"arrival_s,isl,osl\n1e30,5,5\n", "is not between 1973 and 2200"),
    "a log from 0": (b"ts,prompt_tokens,completion_tokens\n0,5,5\n1,5,5\n", "row 2, column 'ts': '0' is no time since"),
    "a gzip cut off": (gzip.compress(own_csv(long_trace(5000)))[:-2000], "cut off or damaged"),
    "a gzip cut off in JSON lines": (gzip.compress(own_lines(long_trace(5000)))[:-2000], "cut off or damaged"),
    "a gzip of nothing": (b"\x1f\x8b\x08", "cut off or damaged"),
    "a gzip with a fault": (gzip.compress(HEAD * 9)[:20] + bytes(60), "cut off or damaged"),
    "a Parquet cut off": (PARQUET[:-50], "the Parquet file is cut off or damaged"),
    "a Parquet with a fault": (PARQUET[:40] + PARQUET[240:], "no Parquet table of times and numbers, or damaged"),
    "a Parquet with names in no language": (PARQUET.replace(b"session", b"sess\xebon"), "damaged"),
    "a Parquet of lists": (parquet_of({"arrival_s": [0, 1], "isl": [[1], [2]], "osl": [1, 2]}), "table of times"),
    "a Parquet of words": (parquet_of({"arrival_s": [0, 1], "isl": ["a", "b"], "osl": [1, 2]}), "row 1, column 'isl'"),
    "a Parquet of a long text": (
        parquet_of({"arrival_s": [0, 1], "isl": [1, 2], "osl": [1, 2], "session": 2 * ["a" * 70_000]}),
        "column 'session': a value of 70,000 bytes",
    ),
    "a Parquet within gzip": (gzip.compress(PARQUET), "the Parquet file is cut off or damaged"),
    "a JSON list": (b"[" + JSON.strip() + b"]", "a JSON list: write each request on a line of its own"),
    "a line that is a list": (JSON + b"[0, 5, 5]\n", "row 2: no JSON object on one line"),
    "a line that is cut off": (JSON + b'{"arrival_s": 1, "is', "row 2: no JSON object on one line"),
    "JSON over many lines": (b'{\n "arrival_s": 0\n}\n', "row 1: no JSON object on one line"),
    "deep JSON": (JSON + b'{"a": ' + b"[" * 50_000 + b"\n", "row 2: no JSON object on one line"),
    "JSON in Latin-1": (JSON + b'{"model": "caf\xe9"}\n', "row 2: no JSON object on one line"),
    "a huge line": (JSON + b'{"a": "' + b"x" * (1 << 24) + b'"}\n', "row 2: a line of more than 16,777,216 bytes"),
    "a huge row": (HEAD + b"1,5," + b"5" * (1 << 21) + b"\n", "a row is longer than 524,288 bytes"),
    "a huge header": (b"a" * (1 << 17) + b"\n", "longer than 65,536 bytes"),
    "an object for tokens": (JSON + b'{"arrival_s": 1, "isl": {"n": 5}, "osl": 5}\n', "row 2, column 'isl': a mapping"),
    "true for tokens": (JSON + b'{"arrival_s": 1, "isl": true, "osl": 5}\n', "row 2, column 'isl': True is no number"),
    "a missing key in JSON": (b'{"arrival_s": 0, "isl": 5}\n' * 2, "osl is missing for a trace of this program"),
    "no time in a line": (JSON + b'{"isl": 5, "osl": 5}\n', "row 2, column 'arrival_s'"),
    "half a character": (JSON + b'{"arrival_s": 1, "isl": "\\ud800", "osl": 5}\n', "row 2, column 'isl'"),
    "spans that are none": (
        VLLM_SPANS + b'\n{"resourceSpans": [{"scopeSpans": {"spans": []}}]}\n',
        "row 3, column 'scopeSpans': is no list of objects",
    ),
    "spans without usage": (
        b'{"start_time": "2024-05-10T14:00:00Z", "attributes": {"http.method": "GET"}}\n' * 3,
        "gen_ai.usage.input_tokens or gen_ai.usage.prompt_tokens",
    ),
}  # fmt: skip


def refused(path: Path | str) -> str:
    with pytest.raises(TraceError) as error:
        read_trace_noted(path)
    line = str(error.value)
    assert len(line) < 300 and "\n" not in line and line.isprintable()
    return line


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_refused_in_one_line(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw, said = BROKEN[name]
    written(raw, tmp_path)
    monkeypatch.chdir(tmp_path)
    line = refused("trace")
    assert line.startswith("trace") and said in line


def test_what_is_no_file_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    assert refused("folder") == "folder: is a folder: name the file in it"
    assert refused("missing.csv") == "missing.csv: no such trace file"
    assert refused("/dev/null") == "/dev/null: no such trace file"
    assert refused("zero\0byte").endswith("no such trace file")
    assert refused("long" * 500).startswith("longlong")


def test_a_fault_far_into_a_file_is_found_on_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever part of the file it is read in."""
    lines = own_csv(long_trace(5000)).split(b"\r\n")
    lines[1] = b'0,5,5,"a\nb"'
    lines[3210] = b"1,x,5,a"
    lines[1000:1000] = [b"", b""]
    raw = b"\r\n".join(lines)
    at = raw[: raw.index(b"1,x")].count(b"\n") + 1
    written(raw, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trace_files, "BLOCK_BYTES", 4096)
    assert refused("trace").startswith(f"trace, row {at}, column 'osl': 'x' is no whole number of tokens")


@settings(max_examples=200)
@given(data=st.data())
def test_no_damage_does_more_than_one_line(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A trace, or a TraceError: bytes of a good file cut out, doubled, or written over."""
    raw = data.draw(st.sampled_from([raw for raw, _, _ in EXAMPLES.values()] + [PARQUET, gzip.compress(AZURE_2023)]))
    low, high = sorted((data.draw(st.integers(0, len(raw))), data.draw(st.integers(0, len(raw)))))
    other = data.draw(st.one_of(st.just(b""), st.just(raw[low:high] * 2), st.binary(max_size=40)))
    path = written(raw[:low] + other + raw[high:], tmp_path_factory.mktemp("trace"))
    try:
        read_trace_noted(path)
    except TraceError as error:
        assert len(str(error)) < 300 and "\n" not in str(error)


@pytest.mark.parametrize("microsecond", [1, 120_034, 123_456, 777_777, 999_999])
def test_requests_on_the_hour_are_of_that_hour_and_of_a_window_from_it(microsecond: int, tmp_path: Path) -> None:
    """Seconds since 1970 as floating-point numbers are exact to a quarter of a microsecond only."""
    path = tmp_path / "trace.csv"
    times = [f"2024-05-10T13:37:21.{microsecond:06d}Z", *["2024-05-10T14:00:00Z"] * 3, *["2024-05-10T15:00:00Z"] * 2]
    path.write_text("\n".join(["arrival_s,isl,osl", *(f"{time},7,5" for time in times), ""]))
    trace = read_trace_noted(path).trace
    assert [(trace.clock(each.from_s)[-5:], each.last - each.first) for each in hours(trace)] == [
        ("13:00", 1),
        ("14:00", 3),
        ("15:00", 2),
    ]
    assert len(trace.window("2024-05-10T14:00..2024-05-10T15:00")) == 3


# --- Classes: a column, or a file each


def rows_of(classes: Sequence[str], shape: str, path: Path) -> Path:
    """A trace with a class for each request, one a second."""
    columns = {"arrival_s": list(range(len(classes))), "isl": [7] * len(classes), "osl": [5] * len(classes)}
    table = pa.table({**columns, "class": list(classes)})
    if shape == "parquet":
        parquet.write_table(table, path)
    elif shape == "json":
        path.write_bytes(json_lines(table.to_pylist()))
    else:
        lines = [",".join(map(str, row.values())) for row in table.to_pylist()]
        path.write_text("\n".join(["arrival_s,isl,osl,class", *lines, ""]))
    return path


@pytest.mark.parametrize("shape", ["csv", "json", "parquet"])
def test_classes_are_read_by_name(shape: str, tmp_path: Path) -> None:
    found = read_trace_noted(rows_of(["chat", "", "code", "chat"], shape, tmp_path / "trace")).trace
    assert found.classes == ("chat", "other", "code")
    assert found.of_class.tolist() == [0, 1, 2, 0]


def test_classes_that_are_numbers_are_read_in_json_too(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    rows = [{"arrival_s": second, "isl": 7, "osl": 5, "class": second % 2} for second in range(4)]
    path.write_bytes(json_lines(rows))
    found = read_trace_noted(path).trace
    assert found.classes == ("0", "1") and found.of_class.tolist() == [0, 1, 0, 1]


def test_a_column_with_too_many_values_is_no_class(tmp_path: Path) -> None:
    found = read_trace_noted(rows_of([str(number) for number in range(9)], "csv", tmp_path / "trace"))
    assert found.trace.classes == () and not len(found.trace.of_class)
    assert found.notes[-1] == "class is not used: it has more than 8 values"
    assert read_trace_noted(rows_of([""] * 3, "csv", tmp_path / "trace")).trace.classes == ()


def test_notes_on_several_files_leave_their_names_as_they_are_where_a_sentence_begins(tmp_path: Path) -> None:
    paths = [tmp_path / "chat.csv", tmp_path / "code.csv"]
    for path in paths:
        path.write_text("arrival_s,isl,osl\n0,1,1\n1,1,0\n2,2,2\n")
    said = [capital(note) for note in read_traces([str(path) for path in paths]).notes if "left out" in note]
    assert said == [f"In {path.name}: 1 of 3 rows left out: no output tokens" for path in paths]


def test_several_files_are_a_class_each(tmp_path: Path) -> None:
    """A name in front goes before the column, the column before the name of the file."""
    plain, named = tmp_path / "plain.csv", rows_of(["chat", "code"], "csv", tmp_path / "named.csv")
    plain.write_text("arrival_s,isl,osl\n0.5,1,1\n0.6,2,2\n")
    found = read_traces([str(plain), str(named)])
    assert found.trace.classes == ("plain", "chat", "code")
    assert found.trace.arrival_s.tolist() == [0, 0.5, 0.6, 1]
    assert found.trace.of_class.tolist() == [1, 0, 0, 2]
    assert read_traces([f"mine={plain}", f"mine={named}"]).trace.classes == ("mine",)
    assert read_traces([f"mine={named}"]).trace.classes == ("mine",)
    assert read_traces([str(plain)]).trace.classes == ()
    odd = tmp_path / "a=b.csv"
    odd.write_bytes(plain.read_bytes())
    assert read_traces([str(odd), str(plain)]).trace.classes == ("a=b", "plain")
    with pytest.raises(TraceError, match="no such trace file"):
        read_traces([str(plain), "x=nowhere.csv"])


@st.composite
def conversations(draw: st.DrawFn) -> list[tuple[int, list[int], int]]:
    """Conversation, tokens of the prompt and output tokens of requests in order; all begin with one system prompt."""
    system = [0] * draw(st.integers(0, 1100))
    texts = [list(system) for _ in range(draw(st.integers(1, 4)))]
    found = []
    for which in draw(st.lists(st.integers(0, len(texts) - 1), min_size=2, max_size=10)):
        said = draw(st.integers(1, 1400))
        texts[which] += [which + 1] * said
        found.append((which, list(texts[which]), osl := draw(st.integers(1, 300))))
        texts[which] += [which + 1] * osl
    return found


def hash_ids(prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Blocks of each prompt as Mooncake has them: equal numbers are equal beginnings."""
    known: dict[tuple[int, ...], int] = {}
    return [
        [known.setdefault(tuple(prompt[: at + 512]), len(known)) for at in range(0, len(prompt), 512)]
        for prompt in prompts
    ]


def write_blocks(path: Path, requests: Sequence[tuple[int, list[int], int]]) -> None:
    rows = [
        {"timestamp": 1000 * at, "input_length": len(prompt), "output_length": osl, "hash_ids": ids}
        for at, ((_, prompt, osl), ids) in enumerate(
            zip(requests, hash_ids([prompt for _, prompt, _ in requests]), strict=True)
        )
    ]
    path.write_bytes(json_lines(rows))


@given(requests=conversations())
def test_blocks_join_no_two_conversations_and_claim_no_block_that_is_not_shared(
    requests: list[tuple[int, list[int], int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each request of a session begins with all full blocks of the one before it; the share is that of a set."""
    path = tmp_path_factory.mktemp("blocks") / "trace.jsonl"
    write_blocks(path, requests)
    reading = read_trace_noted(path)
    of = reading.trace.session.tolist()
    seen: set[tuple[int, ...]] = set()
    repeated = 0
    for request, (which, prompt, _) in enumerate(requests):
        for at in range(0, len(prompt), 512):
            block = tuple(prompt[: at + 512])
            repeated += len(prompt[at : at + 512]) if block in seen else 0
            seen.add(block)
        before = [earlier for earlier in range(request) if of[earlier] == of[request]]
        if before:
            earlier, their_prompt, osl = requests[before[-1]]
            assert len(prompt) >= len(their_prompt) + osl
            full = len(their_prompt) // 512 * 512
            assert full and prompt[:full] == their_prompt[:full]
            assert earlier == which or full <= 1100  # within the system prompt, which one of the two does not leave
    share = repeated / sum(len(prompt) for _, prompt, _ in requests)
    assert f"{share:.0%} of prompt tokens were in earlier prompts" in "".join(reading.notes)


def test_turns_of_a_block_and_more_are_one_session_whatever_system_prompt_they_share(tmp_path: Path) -> None:
    """Three conversations of four turns by turns: three sessions, and each turn finds all that was said before it."""
    texts = [[0] * 700 for _ in range(3)]
    requests = []
    for _ in range(4):
        for which, text in enumerate(texts):
            text += [which + 1] * 600
            requests.append((which, list(text), 50))
            text += [which + 1] * 50
    write_blocks(tmp_path / "trace.jsonl", requests)
    trace = read_trace_noted(tmp_path / "trace.jsonl").trace
    assert trace.session.tolist() == [which for which, _, _ in requests]
    assert trace.continued().session.tolist() == trace.session.tolist()


@pytest.mark.parametrize("ids", [[1], [1, 2, 3, 4], None, "1 2", [[1], [2], [3]], ["\ud800", 2, 3]])
def test_blocks_that_do_not_fit_the_prompt_are_not_used(ids: object, tmp_path: Path) -> None:
    row = {"timestamp": 0, "input_length": 1300, "output_length": 5, "hash_ids": [1, 2, 3]}
    (tmp_path / "trace.jsonl").write_bytes(json_lines([row, row | {"hash_ids": ids}, row]))
    reading = read_trace_noted(tmp_path / "trace.jsonl")
    if isinstance(ids, list) and len(ids) == 3:
        assert reading.trace.session.tolist() == [0, 1, 2]
        return
    assert not len(reading.trace.session)
    assert any("hash_ids is not used: it needs a number for each 512 tokens" in note for note in reading.notes)
