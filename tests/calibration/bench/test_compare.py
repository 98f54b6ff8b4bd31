"""`compare`: both models get the same prompts, in alternating order, and the speed-up is the one that is built in."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner

from calibration.errors import CalibrationError
from lab.mock.process import running
from lab.mock.service import Script
from tests.calibration.bench.conftest import FakeServer
from triton_tools.clients.commands import compare
from triton_tools.clients.replay import WARM_UPS

ROUNDED_S = 1e-6
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
    found = run("llama-python ensemble --isl 12 --osl 5 -c 4 --num_requests 9 --repeats 4 --seed 5")
    warm, runs = server.jobs[:2], server.jobs[2:]
    assert [job.server.model for job, _ in warm] == ["llama-python", "ensemble"]
    a, b = "llama-python", "ensemble"
    assert [job.server.model for job, _ in runs] == [a, b, b, a, a, b, b, a]
    assert {job.users for job, _ in runs} == {4}
    prompts = [[request.prompt for request in requests] for _, requests in runs]
    assert prompts[0] == prompts[1] and prompts[2] == prompts[3] and prompts[4] == prompts[5]
    assert len({prompt for some in prompts[::2] for prompt in some}) == 36
    assert {len(prompt.split()) for prompt in prompts[0]} == {12}
    assert {request.osl for _, requests in runs for request in requests} == {5}
    assert not any("same prompts" in note or "--repeats" in note for note in found["notes"])


@pytest.mark.parametrize(("flag", "pairs"), [("", 4), ("--repeats 1", 2), ("--repeats 5", 6), ("--repeats 6", 6)])
def test_each_model_comes_first_as_often_as_the_other(server: FakeServer, flag: str, pairs: int) -> None:
    found = run(f"llama-python ensemble --dataset mini.json {flag}")
    first = [job.server.model for job, _ in server.jobs[2::2]]
    assert first.count("llama-python") == first.count("ensemble") == pairs / 2
    assert any(f"{pairs} pairs" in note for note in found["notes"]) == (flag in ("--repeats 1", "--repeats 5"))


def test_a_data_set_comes_with_a_word_on_caches(server: FakeServer) -> None:
    notes = run("llama-python ensemble --dataset mini.json --repeats 2")["notes"]
    assert any("same prompts" in note and "cache" in note for note in notes)


@pytest.mark.parametrize(("how", "last_s"), [("--request_rate -1", 0.0), ("--time_bet_reqs 0.5", 5.0)])
def test_requests_may_be_sent_when_due_instead(server: FakeServer, how: str, last_s: float) -> None:
    run(f"llama-python ensemble --dataset mini.json {how} --repeats 2")
    job, requests = server.jobs[-1]
    assert len(requests) == 10
    if last_s:
        assert job.arrivals_s is not None and job.arrivals_s[-1] == pytest.approx(last_s)
    else:
        assert job.users == 10


def test_a_burst_over_http_is_said_to_be_bounded(server: FakeServer) -> None:
    line = "llama-python ensemble --dataset mini.json --request_rate -1 --num_requests 200 --repeats 2"
    assert any("at most 128 of 200" in note for note in run(f"{line} -i http")["notes"])
    assert {job.users for job, _ in server.jobs[2:]} == {128}
    assert not any("at most" in note for note in run(f"{line} -i grpc")["notes"])


def test_a_seed_of_which_nothing_is_drawn_is_said(server: FakeServer) -> None:
    line = "llama-python ensemble --dataset mini.json --repeats 2"
    assert any("--seed" in note for note in run(f"{line} --seed 3")["notes"])
    assert not any("--seed" in note for note in run(f"{line} --seed 3 --request_rate 5")["notes"])
    assert not any("--seed" in note for note in run(line)["notes"])


def test_the_table_shows_both_models_and_three_ratios(server: FakeServer) -> None:
    server.token_s["llama-python"] = 0.05
    result = CliRunner().invoke(compare, ["llama-python", "ensemble", "--dataset", "mini.json"], catch_exceptions=False)
    assert result.stdout.count("| llama-python |") == 1
    assert result.stdout.count("x (95 % interval") == 3
    assert "llama-python: the model reports no token counts" in result.stderr


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
        ("llama-python ensemble --dataset mini.json --op_tokens_per_word 0", "op-tokens-per-word"),
    ],
)
def test_wrong_input_is_one_line_that_names_it(server: FakeServer, line: str, said: str) -> None:
    error = CliRunner().invoke(compare, shlex.split(line), standalone_mode=False).exception
    assert isinstance(error, CalibrationError | click.ClickException)
    message = error.format_message() if isinstance(error, click.ClickException) else str(error)
    assert said in message.replace("_", "-")
    assert "\n" not in message


def test_a_model_against_itself_on_a_server_of_known_times() -> None:
    """Over real HTTP: the rate of each run lies between the bounds that the mock's own times put on it.

    A run begins after the run before it had its last request read, and before its own first is; it ends after its own
    last answer has left, and before the first request of the next run is read. No speed of the machine changes that.
    """
    with running(Script(ttft_s=0.04, itl_s=0.0005)) as mock:
        found = run(f"ensemble ensemble -i http -u {mock.http_url} --isl 8 --osl 8 -c 2 --num_requests 12 --repeats 2")
        truth = mock.truth()
    a, b = (side["runs"] for side in found["models"])
    runs = [a[0], b[0], b[1], a[1]]
    assert len(truth) == 2 * WARM_UPS + 12 * len(runs)
    for number, figures in enumerate(runs):
        own = slice(start := 2 * WARM_UPS + 12 * number, start + 12)
        at_least_s = truth.final_sent_s[own].max() - truth.received_s[own].min()
        assert figures["requests"] == 12
        assert figures["requests_per_s"] <= 12 / at_least_s
        if number < len(runs) - 1:
            at_most_s = truth.received_s[own.stop] - truth.received_s[own.start - 1]
            assert figures["requests_per_s"] >= 12 / at_most_s
        assert figures["latency_mean_s"] >= np.mean((truth.final_sent_s - truth.received_s)[own]) - ROUNDED_S
