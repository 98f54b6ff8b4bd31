"""Models of demand from the command line: a trace to a model, a model to a trace, a trace to a plan."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sizing.demand_model import DemandModel, Mmpp, as_json, read_model
from sizing.errors import ScenarioError
from sizing.files import write
from tests.sizing.test_cli import run
from tests.sizing.token_laws import law_of

pytest.importorskip("pyarrow")

LENGTHS = law_of("points:200@0.5,1000@0.3,4000@0.2"), law_of("points:50@0.4,300@0.6")
MODEL = DemandModel((3.0,), Mmpp(0.5, 120.0, 30.0), *LENGTHS, 0.3)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "demand.json"
    path.write_text(as_json(MODEL))
    return path


def draw(model: Path, out: Path, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    code, printed, err = run(["demand", "draw", str(model), "--out", str(out), *words], capsys)
    assert (code, err) == (0, "")
    return printed


def test_a_drawn_trace_is_fitted_again_and_drawn_again(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, again = tmp_path / "trace.csv", tmp_path / "again.json"
    told = json.loads(draw(model, trace, capsys, "--days", "1.5", "--seed", "1", "--json"))
    lines = trace.read_text().splitlines()
    assert lines[0] == "arrival_s,isl,osl" and len(lines) == told["requests"] + 1
    arrival_s, isl, osl = np.array([line.split(",") for line in lines[1:]], dtype=float).T
    assert (np.diff(arrival_s) >= 0).all() and set(isl) <= {200, 1000, 4000} and set(osl) <= {50, 300}
    assert told["requests_per_s"] == pytest.approx(3.0, rel=0.05)
    code, out, err = run(["demand", "fit", str(trace), "--out", str(again), "--json"], capsys)
    assert (code, err) == (0, "")
    answer = json.loads(out)
    found = read_model(again)
    assert answer["model"] == json.loads(as_json(found)) and answer["requests"] == told["requests"]
    assert found.arrivals.kind == "mmpp" and len(found.rates_per_s) == 24
    assert {row["figure"] for row in answer["compared"]} >= {"p99 of ISL", "dispersion of requests in 60 s"}
    assert "meets" in answer["verdict"] or "Not met" in answer["verdict"]
    third = [tmp_path / f"third.csv{suffix}" for suffix in ("", ".gz")]
    for file in third:
        draw(again, file, capsys, "--days", "0.1")
    assert gzip.decompress(third[1].read_bytes()) == third[0].read_bytes()


def test_people_read_sentences_and_a_table(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.csv"
    told = draw(model, trace, capsys, "--days", "0.25")
    assert str(trace) in told and "requests in 0.25 days" in told
    code, out, _ = run(["demand", "fit", str(trace)], capsys)
    assert code == 0
    for words in ("360 minutes", "shorter than a day", "bursts (MMPP)", "ISL 1,", "rank correlation of ISL and OSL"):
        assert words in out


def test_the_same_seed_draws_the_same_file_and_scale_more_of_it(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / f"{name}.csv" for name in ("one", "same", "other", "double")]
    for file, words in zip(files, ("--seed 3", "--seed 3", "--seed 4", "--seed 3 --scale 2"), strict=True):
        draw(model, file, capsys, "--days", "0.2", *words.split())
    one, same, other, double = (file.read_bytes() for file in files)
    assert one == same != other
    assert double.count(b"\n") == pytest.approx(2 * one.count(b"\n"), rel=0.05)


def test_a_fleet_is_planned_for_a_drawn_trace(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.csv"
    draw(model, trace, capsys, "--days", "0.05")
    fleet = "--model Qwen/Qwen3-32B --gpu h200_sxm --precision bf16 --tp 2 --engine trtllm --ttft p95:1s --json"
    code, out, err = run(["plan", "--trace", str(trace), *fleet.split()], capsys)
    assert (code, err) == (0, "")
    assert json.loads(out)["gpus"] >= 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("demand fit absent.csv", "absent.csv"),
        ("demand fit few.csv", "needs 100 requests"),
        ("demand draw absent.json --days 1 --out x.csv", "absent.json: cannot be read"),
        ("demand draw few.csv --days 1 --out x.csv", "few.csv: not JSON"),
        ("demand draw demand.json --out x.csv", "--days"),
        ("demand draw demand.json --days 1", "--out"),
        ("demand draw demand.json --days 0 --out x.csv", "days must be a number above 0"),
        ("demand draw demand.json --days 1 --scale nan --out x.csv", "scale must be a number above 0"),
        ("demand draw demand.json --days 1e7 --out x.csv", "at most"),
        ("demand draw demand.json --days 0.1 --out absent/x.csv", "absent/x.csv: cannot be written"),
        ("demand", "Missing command"),
        ("demand dream", "No such command 'dream'"),
    ],
)
def test_bad_input_is_one_line(
    words: str, says: str, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(model.parent)
    Path("few.csv").write_text("arrival_s,isl,osl\n0,1,1\n1,1,1\n")
    code, out, err = run(words.split(), capsys)
    assert (code, out) == (2, "")
    assert says in err and err.startswith("error: ") and err.count("\n") == 1 and len(err) < 300


@pytest.mark.parametrize("words", ["demand", "demand fit", "demand draw"])
def test_help_shows_an_example(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run([*words.split(), "--help"], capsys)
    assert code == 0
    assert f"python -m sizing {words}" in out


def test_a_trace_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    """Half a trace looks like one: what a writer that fails leaves is the file before, and nothing beside it."""
    target = tmp_path / "week.csv"

    def failing() -> Iterator[str]:
        yield "arrival_s,isl,osl\n0,5,5\n1,5,5\n"
        raise OSError(28, "No space left on device")

    for before in (None, "as it was"):
        if before:
            target.write_text(before)
        with pytest.raises(ScenarioError, match="No space left"):
            write(target, failing())
        assert [path.name for path in tmp_path.iterdir()] == (["week.csv"] if before else [])
        assert not before or target.read_text() == before


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write(pipe, ["text"])
    assert os.read(reader, 10) == b"text" and pipe.is_fifo()
    os.close(reader)
