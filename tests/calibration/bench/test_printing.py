"""The table as the brief shows it, the CSV and the trace as their readers expect them."""

from __future__ import annotations

import csv
import json
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration.errors import FileError
from tests.calibration.bench.logs import log_of
from triton_tools.clients import printing
from triton_tools.clients.stats import Stats, stats

STATS = Stats(8.0508, 334.029, 6.2974589, 12.15095, 10.77546, 799.6633, 41.4898, 50.7490, 12.17266, 98)
SHOWN = """\
+----------------------------+----------+
|            Stat            |  Value   |
+----------------------------+----------+
|        Requests/Sec        |   8.05   |
|       OP tokens/sec        |  334.03  |
|     Avg. latency (ms)      | 6297.46  |
|      P99 latency (ms)      | 12150.95 |
|      P90 latency (ms)      | 10775.46 |
| Avg. IP tokens per request |  799.66  |
| Avg. OP tokens per request |  41.49   |
|   Avg. InFlight requests   |  50.75   |
|     Total latency (ms)     | 12172.66 |
|       Total requests       |  98.00   |
+----------------------------+----------+"""
CSV_HEAD = (
    "Requests/Sec,OP tokens/sec,Avg. latency (ms),P99 latency (ms),P90 latency (ms),Avg. Input tokens per request,"
    "Avg. Output tokens per request,Avg. InFlight requests,Total latency (ms),Total requests"
)
POSITIVE = st.floats(1e-6, 1e9)


def test_the_table_is_the_one_of_the_brief() -> None:
    assert printing.summary_table(STATS) == SHOWN


@given(st.lists(st.tuples(st.text("abc xyz", max_size=12), st.text("0123.", max_size=9)), max_size=5))
def test_every_line_of_a_box_is_as_wide_as_the_others(rows: list[tuple[str, str]]) -> None:
    assert len({len(line) for line in printing.boxed(("a", "b"), rows).splitlines()}) == 1


def test_a_csv_gets_its_header_once_and_a_row_for_each_run(tmp_path: Path) -> None:
    path = tmp_path / "v1.csv"
    printing.check_csv(path)
    for _ in range(2):
        printing.append_csv(path, STATS)
        printing.check_csv(path)
    lines = path.read_text().splitlines()
    assert lines[0] == CSV_HEAD
    assert len(lines) == 3


@given(st.builds(Stats, *[POSITIVE] * 9, requests=st.integers(1, 10**6)))
def test_a_csv_row_keeps_every_digit(tmp_path_factory: pytest.TempPathFactory, run: Stats) -> None:
    path = tmp_path_factory.mktemp("csv") / "ops.csv"
    printing.append_csv(path, run)
    [row] = csv.DictReader(path.read_text().splitlines())
    assert float(row["Requests/Sec"]) == run.requests_per_s
    assert float(row["P90 latency (ms)"]) == run.latency_p90_s * 1000
    assert int(row["Total requests"]) == run.requests
    assert len(row) == len(asdict(run))


def test_a_csv_of_another_kind_is_not_written_into(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("model,price\nllama,3\n")
    with pytest.raises(FileError, match="other columns"):
        printing.check_csv(path)
    assert path.read_text() == "model,price\nllama,3\n"


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="no/such"):
        printing.check_csv(tmp_path / "no" / "such")
    with pytest.raises(FileError, match="cannot be written"):
        printing.write_perfetto(tmp_path, log_of([0.0], [1.0]))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_full_disk_is_said() -> None:
    with pytest.raises(FileError, match="No space left"):
        printing.append_csv(Path("/dev/full"), STATS)
    with pytest.raises(FileError):
        printing.check_csv(Path("/dev/full"))


def test_the_trace_shows_each_answered_request_when_it_was_sent(tmp_path: Path) -> None:
    log = log_of([5.0, 4.0, 4.5], [1.0, 2.0, 9.0], failed=[2], short=[1])
    printing.write_perfetto(tmp_path / "trace.json", log)
    bars = json.loads((tmp_path / "trace.json").read_text())
    assert [(bar["name"], bar["ts"], bar["dur"]) for bar in bars] == [("req_0", 0.0, 2e6), ("req_1", 1e6, 1e6)]
    assert {bar["ph"] for bar in bars} == {"X"}
    assert [bar["args"] for bar in bars] == [{"isl": 10, "osl": 3}, {"isl": 10, "osl": 4}]
    assert sum(bar["dur"] for bar in bars) == pytest.approx(stats(log).latency_sum_s * 1e6)
