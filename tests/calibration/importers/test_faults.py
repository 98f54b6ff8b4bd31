"""Faulty files: one line that names the file and the key or place at fault."""

from __future__ import annotations

import codecs
import json
import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from calibration.errors import FileError
from calibration.importers import perf_analyzer, read, reading
from calibration.importers import points as rebuild
from calibration.importers.reading import clean
from calibration.importers.vllm import Details
from tests.calibration.importers.samples import ALL_SAID, FEW, SAMPLES, imported
from tests.calibration.importers.traffic import guidellm


def fault(raw: bytes | str, folder: Path, **said: object) -> str:
    with pytest.raises(FileError) as caught:
        imported(raw, folder, **said)
    message = str(caught.value)
    assert "\n" not in message and str(folder / "file") in message
    assert len(message) <= 290
    return message


def edited(name: str, keys: tuple[str | int, ...], value: object) -> str:
    document = json.loads(SAMPLES[name])
    inner: Any = document
    for key in keys[:-1]:
        inner = inner[key]
    if value is KeyError:
        del inner[keys[-1]]
    else:
        inner[keys[-1]] = value
    return json.dumps(document)


@pytest.mark.parametrize(
    ("name", "keys", "value", "words"),
    [
        ("aiperf.json", ("request_latency", "avg"), math.nan, "key 'request_latency.avg': Input should be a finite"),
        ("aiperf.json", ("request_throughput", "avg"), math.inf, "key 'request_throughput.avg'"),
        ("aiperf.json", ("time_to_first_token", "p90"), -1.0, "key 'time_to_first_token.p90'"),
        ("aiperf.json", ("time_to_first_token", "avg"), "100", "key 'time_to_first_token.avg'"),
        ("aiperf.json", ("time_to_first_token", "unit"), "tokens", "unit 'tokens' is not one of time"),
        ("aiperf.json", ("request_latency", "avg"), 10**400, "key 'request_latency.avg'"),
        ("aiperf.json", ("request_throughput",), KeyError, "key 'request_throughput': is missing"),
        ("aiperf.json", ("input_config", "phases", 1, "type"), "fixed_schedule", "type 'fixed_schedule'"),
        ("genai_perf.json", ("inter_token_latency", "avg"), None, "key 'inter_token_latency.avg'"),
        ("vllm.json", ("mean_ttft_ms",), math.nan, "key 'mean_ttft_ms'"),
        ("vllm.json", ("p90_ttft_ms",), True, "ttft, key 'p90'"),
        ("vllm.json", ("completed",), 0, "key 'completed'"),
        ("vllm.json", ("ramp_up_strategy",), "linear", "key 'ramp_up_strategy': the rate rose during the run"),
        ("vllm_detailed.json", ("ttfts", 1), math.nan, "key 'ttfts.1'"),
        ("vllm_detailed.json", ("output_lens",), [1, 2], "key 'output_lens': 2 entries where 'start_times' has 8"),
        ("guidellm_v2.json", ("benchmarks", 0, "duration"), 0.0, "key 'benchmarks.0.duration'"),
        ("guidellm_v2.json", ("benchmarks",), [], "key 'benchmarks': the list is empty"),
        ("guidellm_requests.json", ("benchmarks", 0, "requests", "successful", 3, "info", "timings", "request_start"),
         None, "requests.successful.3: key 'info.timings.request_start': is missing"),
        ("triton_export.json", ("experiments", 0, "requests", 2, "timestamp"), -5, "requests.2.timestamp"),
        ("triton_export.json", ("experiments", 0, "requests", 2, "response_outputs"), [], "request 3: key"),
        ("triton_export.json", ("experiments", 0, "experiment", "mode"), "cake", "'cake' is not a load"),
    ],
)  # fmt: skip
def test_the_key_at_fault_is_named(
    name: str, keys: tuple[str | int, ...], value: object, words: str, tmp_path: Path
) -> None:
    assert words in fault(edited(name, keys, value), tmp_path)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "the file is empty"),
        (b"  \n\n", "the file is empty"),
        (b"[1, 2]", "a JSON object was expected"),
        (b'{"a": 1, "b"', "cut short or not JSON at line 1, column 13"),
        (b'{"a": 1, "a": 2}', "a key is there twice"),
        (b'{"a": ' * 100_000, "nested too deeply"),
        (b'{"a": 1' + b"0" * 5000 + b"}", "a whole number of 5001 digits"),
        (b"\x1f\x8b\x08\x00gzip", "not UTF-8 text"),
        (b"\xff\xfe{\x00", "not UTF-8 text"),
        (b'{"x": 1}', "not a file of any known kind"),
        (b"a,b,c\n1,2,3\n", "not a file of any known kind"),
        (b'a,"b\n', "cannot be read as CSV"),
        (b'{"metadata": {"request_start_ns": 1}}\n{"meta', "line 2"),
        (b'{"metadata": {"request_start_ns": 1}}\n[]\n', "line 2: a JSON object was expected"),
        (b'{"metadata": {"request_start_ns": 1}}\n{"metadata": {}}\n', "record 2, key 'metadata.request_start_ns'"),
    ],
)
def test_a_file_that_is_no_such_file_says_where(raw: bytes, words: str, tmp_path: Path) -> None:
    assert words in fault(raw, tmp_path)


@pytest.mark.parametrize(
    ("name", "old", "new", "words"),
    [
        ("perf_analyzer.csv", "4,80,", "4,nan,", "line 3, column 'Inferences/Second': nan is not a possible value"),
        ("perf_analyzer.csv", "4,80,", "4,fast,", "'fast' is not a number"),
        ("perf_analyzer.csv", ",53000,55000", "", "line 3: 11 cells where the header has 13"),
        ("op_stats.csv", "OP tokens/sec", "tokens/sec", "column 'OP tokens/sec' is missing"),
        ("op_stats.csv", "Avg. InFlight requests", "Total requests", "column 'Total requests' is there twice"),
        ("aiperf.csv", "Request Throughput (requests/sec),18.00", "", "key 'request_throughput': is missing"),
        ("aiperf.csv", "Request Count,720.00", "Request Count,-1", "line 14, column 'Value': -1 is not"),
        ("aiperf.csv", "Length (tokens),200.00", "Length (tokens),1e-300", "gives no valid point; key 'isl_cv'"),
        ("genai_perf.csv", "Request Count", "Request Throughput", "is there twice"),
        ("guidellm.csv", ",720,0,0,", ",0,0,0,", "no request succeeded"),
        ("genai_perf.csv", '"1,234.56"', '"1,23.56"', "'1,23.56' is not a number"),
        ("guidellm.csv", "Duration", "Lasting", "column 'Timings / Duration / Sec' is missing"),
    ],
)  # fmt: skip
def test_the_cell_at_fault_is_named(name: str, old: str, new: str, words: str, tmp_path: Path) -> None:
    text = SAMPLES[name].decode()
    assert old in text
    assert words in fault(text.replace(old, new), tmp_path, concurrency=2)


def test_a_strategy_beyond_measure_is_named(tmp_path: Path) -> None:
    text = SAMPLES["guidellm.csv"].decode()
    assert "concurrent@8" in text
    message = fault(text.replace("concurrent@8", "concurrent@99999999999"), tmp_path)
    assert "line 4, column 'Benchmark / Strategy', key 'streams'" in message


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    for name, raw in SAMPLES.items():
        said = {**ALL_SAID, "concurrency": None if name.startswith("perf_analyzer") else 2}
        (tmp_path / name).write_bytes(codecs.BOM_UTF8 + raw)
        (tmp_path / f"plain_{name}").write_bytes(raw)
        assert read(tmp_path / name, deployment=said) == read(tmp_path / f"plain_{name}", deployment=said)


def test_a_missing_file_a_folder_and_too_large_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path, words in ((tmp_path / "none", "no such file"), (tmp_path, "cannot be read"), (Path("a\0b"), "cannot")):
        with pytest.raises(FileError, match=words):
            read(path, deployment=ALL_SAID)
    monkeypatch.setattr(reading, "LIMIT_BYTES", 100)
    assert "larger than" in fault(b"x" * 101, tmp_path)


def test_a_claim_of_endless_tokens_takes_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebuild, "CHUNK_LIMIT", 10)
    assert "more than 10 tokens" in fault(guidellm(FEW), tmp_path)


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b'{"a": [' + 101 * b"[]," + b"1]}", "more than 100 lists and objects"),
        (20 * b'{"a": 1}\n', "more than 10 lines"),
        (20 * b"a,b\n", "line 11: more than 10 rows"),
        (b"Concurrency,Inferences/Second" + 30 * b",", "line 1: more than 10 rows or 20 cells"),
    ],
    ids=["lists", "lines", "rows", "cells"],
)
def test_a_small_file_cannot_be_large_in_memory(
    raw: bytes, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, most in (("MOST_PARTS", 100), ("MOST_LINES", 10), ("MOST_CELLS", 20)):
        monkeypatch.setattr(reading, name, most)
    assert says in fault(raw, tmp_path)


def test_a_log_is_given_up_at_its_first_line_that_is_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = []
    parse = reading._json
    monkeypatch.setattr(reading, "_json", lambda text, name: parsed.append(text) or parse(text, name))
    assert "not a file of any known kind" in fault(1000 * b"{}\n", tmp_path)
    assert len(parsed) == 1


def test_a_list_is_given_up_at_its_first_fault(tmp_path: Path) -> None:
    """Of the faults one is told; a fault each of a million entries would be a gigabyte."""
    for field in ("ttfts", "itls", "start_times", "errors"):
        found = edited("vllm_detailed.json", (field,), [None, {}, {}, {}])
        with pytest.raises(ValidationError) as caught:
            Details.model_validate(json.loads(found))
        assert sum(error["loc"][0] == field for error in caught.value.errors()) == 1


def test_an_event_in_endless_pieces_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pieces that are looked at again with each further one stay few."""
    looked = []
    split = perf_analyzer._split
    monkeypatch.setattr(perf_analyzer, "_split", lambda text: looked.append(len(text)) or split(text))
    pieces = [{"response": "}"}] * 5000
    assert perf_analyzer.events_of(pieces) == ([], None)
    assert len(looked) == 5000 and max(looked) <= perf_analyzer.MOST_PIECES
    whole = 'data: {"choices": [{"text": "a"}]}\n\n'
    assert perf_analyzer.events_of([{"response": part} for part in (whole[:9], whole[9:20], whole[20:])]) == ([2], None)


def test_text_of_a_file_is_made_harmless(tmp_path: Path) -> None:
    name = "=cmd\x1b[31m\u202e\ud800 \n" + "x" * 5000
    (point,) = imported(edited("vllm.json", ("model_id",), name), tmp_path, model=None)
    assert point.model == ("=cmd[31m " + "x" * 5000)[:120]


HARM = "\x1b[31m\x07\u202e\x9b2J\r"


def texts(document: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Where in a document texts are, of a list's entries those of the first."""
    if isinstance(document, dict):
        return [found for key, inner in document.items() for found in texts(inner, (*path, key))]
    if isinstance(document, list):
        return [found for i, inner in enumerate(document[:1]) for found in texts(inner, (*path, i))]
    return [path] if isinstance(document, str) else []


@pytest.mark.parametrize("name", [name for name in SAMPLES if name.endswith(".json")])
def test_no_text_of_a_file_reaches_a_point_with_control_characters(name: str, tmp_path: Path) -> None:
    document = json.loads(SAMPLES[name])
    for keys in texts(document):
        try:
            points = imported(edited(name, keys, f"a{HARM}b"), tmp_path, model=None)
        except FileError as error:
            assert str(error).isprintable()
        else:
            said = [getattr(point, field.name) for point in points for field in fields(point)]
            assert all(value.isprintable() for value in said if isinstance(value, str))


@pytest.mark.parametrize("name", [name for name in SAMPLES if name.endswith(".csv")])
def test_no_cell_reaches_a_message_with_control_characters(name: str, tmp_path: Path) -> None:
    rows = SAMPLES[name].decode().split("\n")
    for place, row in enumerate(rows):
        harmed = "\n".join([*rows[:place], row.replace(",", f"{HARM.strip()},"), *rows[place + 1 :]])
        try:
            imported(harmed, tmp_path, concurrency=None if name.startswith("perf") else 2)
        except FileError as error:
            assert str(error).isprintable()


def test_the_model_in_a_cell_is_made_harmless(tmp_path: Path) -> None:
    written = json.dumps(f"a{HARM}b")[1:-1]
    (point,) = imported(SAMPLES["guidellm.csv"].decode().replace("tiny-chat", written), tmp_path, model=None)
    assert point.model == "a[31m2J b"


def test_what_the_caller_says_is_made_harmless_too(tmp_path: Path) -> None:
    (point,) = imported(SAMPLES["vllm.json"], tmp_path, engine=f"tensorrt{HARM} llm", gpu=f"L4{HARM}")
    assert (point.engine, point.gpu) == ("tensorrt[31m2J llm", "L4[31m2J")


@given(st.text(max_size=400))
def test_clean_text_is_one_bounded_line_and_stays_as_it_is(text: str) -> None:
    cleaned = clean(text)
    assert len(cleaned) <= 120
    assert cleaned == clean(cleaned)
    assert cleaned.isprintable() or cleaned == ""


def test_requests_of_no_duration_are_no_measurement(tmp_path: Path) -> None:
    document = json.loads(SAMPLES["openai_export.json"])
    document["experiments"][0]["experiment"]["value"] = 1e-12
    for request in document["experiments"][0]["requests"]:
        request["timestamp"] = 5
        request["response_timestamps"] = [5] * len(request["response_timestamps"])
    assert "all begin and end at the same moment" in fault(json.dumps(document), tmp_path)


def test_a_wrong_clock_takes_no_memory(tmp_path: Path) -> None:
    """A pause of three hundred years in a log of requests that take a second: 10^11 parts of an E2E."""
    lines = SAMPLES["aiperf.jsonl"].decode().splitlines()
    late = json.loads(lines[-1])
    for key in ("request_start_ns", "request_end_ns"):
        late["metadata"][key] += 9 * 10**15
    (point,) = imported("\n".join([*lines[:-1], json.dumps(late)]), tmp_path, concurrency=2)
    assert point.void
