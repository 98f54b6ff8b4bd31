"""`compare`: both models get the same prompts, in alternating order, and the speed-up is the one that is built in."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from calibration.bench.commands import compare
from calibration.errors import CalibrationError
from calibration.mock.process import running
from calibration.mock.script import Script
from tests.calibration.bench.conftest import FakeServer

TEXTS = [{"input": f"text {i}", "instruction": "Summarize :", "output": "word " * i} for i in range(1, 11)]


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A data set in the folder where commands run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mini.json").write_text(json.dumps(TEXTS))


def run(line: str) -> Any:
    """The JSON of the command, which must succeed."""
    result = CliRunner().invoke(compare, [*shlex.split(line), "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_model_three_times_as_fast_is_found_to_be(server: FakeServer) -> None:
    server.first_s = 0.0
    server.token_s |= {"llama-python": 0.03, "ensemble": 0.01}
    found = run("llama-python ensemble --dataset mini.json -c 2 --num_requests 20")
    for gain in found["speed_up"].values():
        assert gain["mean"] == pytest.approx(3, rel=1e-3)
        assert gain["low"] == pytest.approx(3, rel=1e-3)
    slow, fast = found["models"]
    assert (slow["model"], fast["model"]) == ("llama-python", "ensemble")
    assert fast["mean"]["requests_per_s"] == pytest.approx(3 * slow["mean"]["requests_per_s"], rel=1e-6)


def test_both_sides_of_a_pair_get_the_same_prompts_and_pairs_alternate(server: FakeServer) -> None:
    run("llama-python ensemble --isl 12 --osl 5 -c 4 --num_requests 9 --repeats 3 --seed 5")
    warm, runs = server.jobs[:2], server.jobs[2:]
    assert [job.server.model for job, _ in warm] == ["llama-python", "ensemble"]
    a, b = "llama-python", "ensemble"
    assert [job.server.model for job, _ in runs] == [a, b, b, a, a, b]
    assert {job.users for job, _ in runs} == {4}
    prompts = [[request.prompt for request in requests] for _, requests in runs]
    assert prompts[0] == prompts[1] and prompts[2] == prompts[3] and prompts[4] == prompts[5]
    assert len({prompt for some in (prompts[0], prompts[2], prompts[4]) for prompt in some}) == 27
    assert {len(prompt.split()) for prompt in prompts[0]} == {12}
    assert {request.osl for _, requests in runs for request in requests} == {5}


@pytest.mark.parametrize(("how", "last_s"), [("--request_rate -1", 0.0), ("--time_bet_reqs 0.5", 5.0)])
def test_requests_may_be_sent_when_due_instead(server: FakeServer, how: str, last_s: float) -> None:
    run(f"llama-python ensemble --dataset mini.json {how} --repeats 1")
    job, requests = server.jobs[-1]
    assert len(requests) == 10
    if last_s:
        assert job.arrivals_s is not None and job.arrivals_s[-1] == pytest.approx(last_s)
    else:
        assert job.users == 10


def test_one_pair_gives_no_interval(server: FakeServer) -> None:
    gain = run("llama-python ensemble --dataset mini.json --repeats 1")["speed_up"]["requests_per_s"]
    assert gain["low"] is None and gain["high"] is None


def test_the_table_shows_both_models_and_three_ratios(server: FakeServer) -> None:
    server.token_s["llama-python"] = 0.05
    result = CliRunner().invoke(compare, ["llama-python", "ensemble", "--dataset", "mini.json"], catch_exceptions=False)
    assert result.stdout.count("| llama-python |") == 1
    assert result.stdout.count("x (95 % interval") == 3
    assert "llama-python: the model tells no token counts" in result.stderr


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("llama-python ensemble", "--dataset"),
        ("llama-python ensemble --isl 5", "--osl"),
        ("llama-python", "MODEL-B"),
        ("llama-python ensemble --isl 5 --osl 5 --dataset mini.json", "lengths of its own"),
        ("llama-python ensemble --isl 5 --osl 5 --max_input_len 4", "--max-input-len"),
        ("llama-python ensemble --dataset mini.json -c 3 --request_rate 3", "give one"),
        ("llama-python ensemble --dataset mini.json -c 3 --time_delay_dist constant", "--time-delay-dist"),
        ("llama-python tensorrt_llm --isl 5 --osl 5", "token ids"),
        ("llama-python ensemble --dataset mini.json -u here", "host:port"),
    ],
)
def test_wrong_input_is_one_line_that_names_it(server: FakeServer, line: str, said: str) -> None:
    error = CliRunner().invoke(compare, shlex.split(line), standalone_mode=False).exception
    assert isinstance(error, CalibrationError | click.ClickException)
    message = error.format_message() if isinstance(error, click.ClickException) else str(error)
    assert said in message.replace("_", "-")
    assert "\n" not in message


def test_a_model_against_itself_on_a_server_of_known_times() -> None:
    """Over real HTTP, answers in 40 ms + 7 * 0.5 ms: two users get at most 2 / 43.5 ms, and on a busy machine less."""
    with running(Script(ttft_s=0.04, itl_s=0.0005)) as mock:
        found = run(f"ensemble ensemble -i http -u {mock.http_url} --isl 8 --osl 8 -c 2 --num_requests 12 --repeats 2")
    for side in found["models"]:
        assert 0.5 <= side["mean"]["requests_per_s"] * 0.0435 / 2 <= 1
        assert [run["requests"] for run in side["runs"]] == [12, 12]
