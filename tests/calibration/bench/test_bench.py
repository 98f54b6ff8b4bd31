"""`bench`: the brief's own command lines, their prompts and output, and flags that contradict each other."""

from __future__ import annotations

import csv
import json
import shlex
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner, Result
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from calibration.errors import CalibrationError, ServerError
from calibration.records import ClientHealth
from lab.mock.process import running
from lab.mock.service import Script
from tests.calibration.bench.conftest import FakeServer
from triton_tools.clients.commands import bench
from triton_tools.clients.replay import WARM_UP_OSL, WARM_UPS

ROUNDED_S = 1e-6  # the clients round latencies to a thousandth of a millisecond
TEXTS = [
    {"input": "a gift " * 40, "instruction": "Summarize :", "output": "gifts multiply when shared ."},
    {"input": "one two three", "instruction": "Summarize :", "output": "numbers"},
    {"input": "four five six", "instruction": "Summarize :", "output": "more  numbers"},
]
BRIEF = [
    "-i grpc --request_rate 10 dataset --dataset mini.json --tokenizer_dir words --tokenizer_type llama"
    " --num_requests 5000",
    "-i grpc --request_rate 10 token_norm_dist --input_mean 128 --input_stdev 5 --output_mean 20 --output_stdev 2"
    " --num_requests 500",
    "tools/inflight_batcher_llm/identity_test.py -i grpc -u 192.168.1.3:8001 --max_input_len 2048"
    " --op_stats_csv v1.csv --dataset mini.json --tokenizer_dir words --tokenizer_type llama",
    "end_to_end_test.py --dataset mini.json",
    "scripts/identity_test_python_vs_trtllm.py -u localhost:8001 --max_input_len 100 --dataset mini.json -i grpc"
    ' --model_name "llama-python"',
    "scripts/identity_test_python_vs_trtllm.py -u localhost:8001 --max_input_len 100 --dataset mini.json -i grpc"
    ' --model_name "ensemble"',
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where commands run: a data set and a tokenizer of whole words lie there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mini.json").write_text(json.dumps(TEXTS))
    words = " ".join(f"{text['input']} {text['instruction']}" for text in TEXTS).split()
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(dict.fromkeys(words))}, words[0]))
    tokenizer.pre_tokenizer = Whitespace()
    (tmp_path / "words").mkdir()
    tokenizer.save(str(tmp_path / "words" / "tokenizer.json"))
    return tmp_path


def run(line: str) -> Result:
    """The command, which must succeed."""
    result = CliRunner().invoke(bench, shlex.split(line), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def refused(line: str) -> str:
    """The one line with which the command ends."""
    result = CliRunner().invoke(bench, shlex.split(line), standalone_mode=False)
    error = result.exception
    assert isinstance(error, CalibrationError | click.ClickException), result.output
    message = error.format_message() if isinstance(error, click.ClickException) else str(error)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("line", BRIEF)
def test_the_command_lines_of_the_brief_run_as_they_stand(server: FakeServer, line: str) -> None:
    result = run(line)
    assert "[INFO] Warm up for benchmarking.\n[INFO] Start benchmarking on " in result.stdout
    assert "|   Avg. InFlight requests   |" in result.stdout
    assert ("Expected op tokens" in result.stdout) == ("identity_test" in line)


@pytest.mark.parametrize("line", [BRIEF[0], BRIEF[2]])
def test_spelling_and_place_of_flags_do_not_matter(server: FakeServer, line: str) -> None:
    words = shlex.split(line.replace("v1.csv", "v2.csv"))
    flags = [(words[i], words[i + 1]) for i, word in enumerate(words) if word.startswith("-")]
    names = [word for i, word in enumerate(words) if not word.startswith("-") and not words[i - 1].startswith("-")]
    hyphens = [part for flag, value in reversed(flags) for part in (flag.replace("_", "-"), value)]
    one, other = run(line), run(shlex.join([*hyphens, *(name.replace("_", "-") for name in names)]))
    assert one.stdout == other.stdout


def test_the_clients_are_sent_to_the_engine_with_ids_and_warm_it_up_first(server: FakeServer) -> None:
    run("identity_test --max_input_len 20 --dataset mini.json --tokenizer_dir words -i grpc")
    (warm, ten), (job, sent) = server.jobs
    assert (warm.users, len(ten)) == (1, WARM_UPS)
    assert {(request.prompt, request.osl) for request in ten} == {(sent[0].prompt, WARM_UP_OSL)}
    assert [request.prompt for request in sent] == ["one two three Summarize :", "four five six Summarize :"]
    assert [len(request.token_ids or ()) for request in sent] == [5, 5]
    assert [request.osl for request in sent] == [1, 3]  # 1 and 3 pieces between spaces, 1.3 tokens each, rounded down
    assert (job.server.url, job.server.model, job.contract.takes_token_ids) == ("localhost:8001", "tensorrt_llm", True)
    assert job.users == 2  # both at once


def test_figures_are_those_of_what_was_sent(server: FakeServer) -> None:
    """Two users, answers of 1 and 3 tokens at 0.1 s + 10 ms a token: 0.11 and 0.13 s, both from the start."""
    figures = json.loads(run("--max_input_len 20 --dataset mini.json --tokenizer_dir words -i grpc --json").stdout)
    assert figures["duration_s"] == pytest.approx(0.13)
    assert figures["requests_per_s"] == pytest.approx(2 / 0.13)
    assert figures["output_tokens_per_s"] == pytest.approx(4 / 0.13)
    assert figures["latency_p90_s"] == pytest.approx(0.13)
    assert figures["isl_mean"] == 5
    assert any("1 prompts were longer" in note for note in figures["notes"])


@pytest.mark.parametrize(("dist", "cv"), [("exponential_dist", 1.0), ("constant", 0.0)])
def test_requests_leave_at_the_rate_asked_for(server: FakeServer, dist: str, cv: float) -> None:
    lengths = "token_norm_dist --input_mean 8 --input_stdev 0 --output_mean 4 --output_stdev 0"
    run(f"-i grpc --request_rate 50 --time_delay_dist {dist} {lengths} --num_requests 4000")
    arrivals_s = server.jobs[-1][0].arrivals_s
    assert arrivals_s is not None
    gaps_s = np.diff(arrivals_s, prepend=0.0)
    assert gaps_s.mean() == pytest.approx(0.02, rel=0.05)  # 3 standard errors of 4,000 exponential gaps
    assert gaps_s.std() / gaps_s.mean() == pytest.approx(cv, abs=0.1)


def test_given_gaps_are_used_in_turn(server: FakeServer) -> None:
    run("--dataset mini.json -i grpc --model_name ensemble --time_bet_reqs 0.1 0.3 --num_requests 3")
    assert server.jobs[-1][0].arrivals_s == pytest.approx([0.1, 0.4, 0.5])
    result = run("--dataset mini.json --model_name ensemble --time_bet_reqs 0.5")
    total_ms = float(result.stdout.split("Total Latency: ")[1].split()[0])
    assert total_ms >= 1500  # the gap before the first request is in it


def test_lengths_follow_the_distribution_and_the_seed(server: FakeServer) -> None:
    line = "token_norm_dist --input_mean 128 --input_stdev 5 --output_mean 20 --output_stdev 2 --num_requests 3000"
    for seed in (1, 1, 2):
        run(f"{line} -i grpc --seed {seed} --vocab_size 50")
    one, same, other = (server.jobs[i][1] for i in (1, 3, 5))
    assert one == same != other
    isl, osl = np.array([(request.isl, request.osl) for request in one]).T
    # rounded up, a mean is half a token higher: the brief prints 128.53 and 20.51; 4 standard errors
    assert isl.mean() == pytest.approx(128.5, abs=4 * 5 / 3000**0.5)
    assert osl.mean() == pytest.approx(20.5, abs=4 * 2.02 / 3000**0.5)
    assert isl.std() == pytest.approx(5, rel=0.06)
    assert all(len(request.token_ids or ()) == request.isl for request in one)
    assert max(max(request.token_ids or ()) for request in one) == 49
    assert len({request.token_ids for request in one}) == len(one)


def test_rows_go_to_the_csv(server: FakeServer, folder: Path) -> None:
    run(BRIEF[2])
    run(BRIEF[2])
    rows = list(csv.DictReader((folder / "v1.csv").read_text().splitlines()))
    assert [float(row["Total requests"]) for row in rows] == [3, 3]


def test_the_trace_lies_in_the_folder(server: FakeServer, folder: Path) -> None:
    run(f"{BRIEF[2]} --dump_perfetto_trace")
    assert len(json.loads((folder / "prfetto_dump.json").read_text())) == 3


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("-v", "-v"),
        ("-i grpc -c 32", "not a limit over gRPC"),
        ("-c 32 --request_rate 5", "only requests that are sent all at once"),
        ("--seed 3", "--seed"),
        ("--seed 3 --request_rate 5 --time_delay_dist constant", "--seed"),
        ("--exclude_input_in_output", "only new tokens"),
        ("--decoupled", "own config"),
        ("--tokenizer-type t5", "tokenizer.json"),
        ("-t 30", "each request"),
        ("--num_requests 7", "leaves 3"),
    ],
)
def test_flags_that_do_nothing_here_are_said(server: FakeServer, flag: str, said: str) -> None:
    assert said in run(f"--dataset mini.json --model_name ensemble {flag}").stderr


@pytest.mark.parametrize("flags", ["--seed 3 --request_rate 5", "-c 2"])
def test_flags_that_do_something_are_not_said_to_be_idle(server: FakeServer, flags: str) -> None:
    stderr = run(f"--dataset mini.json --model_name ensemble {flags}").stderr
    assert "--seed" not in stderr and "-c:" not in stderr


def test_a_tokenizer_beside_a_vocabulary_is_said_not_to_be_read(server: FakeServer) -> None:
    line = "token_norm_dist --input_mean 8 --input_stdev 0 --output_mean 4 --output_stdev 0 --num_requests 2"
    assert "--tokenizer_dir: not read" in run(f"{line} --tokenizer_dir words --vocab_size 5").stderr
    assert "--tokenizer_dir: not read" not in run(f"{line} --tokenizer_dir words").stderr


@pytest.mark.parametrize(("flags", "users"), [("", 128), ("-c 32", 32), ("-c 5000", 300), ("-i grpc -c 32", 300)])
def test_all_at_once_over_http_keeps_to_the_connections(server: FakeServer, flags: str, users: int) -> None:
    line = "token_norm_dist --input_mean 8 --input_stdev 0 --output_mean 4 --output_stdev 0 --num_requests 300"
    result = run(f"{line} {flags}")
    assert server.jobs[-1][0].users == users
    assert (f"at most {users} of 300" in result.stderr) == (users < 300)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "--dataset"),
        ("benchmrk --dataset mini.json", "'benchmrk'"),
        ("identity_test token_norm_dist", "--dataset"),
        ("dataset token_norm_dist --dataset mini.json", "one workload"),
        ("token_norm_dist --input_mean 3", "--input_stdev, --output_mean, --output_stdev"),
        ("token_from_histogram --histogram-key example", "token_from_histogram"),
        ("dataset --dataset mini.json --input_mean 3", "--input_mean belongs to token_norm_dist"),
        ("--dataset mini.json --check-perf-json x.json", "--check_perf_json"),
        ("--dataset mini.json --test-llmapi", "--test_llmapi"),
        ("--dataset mini.json --request_rate 0", "--request_rate 0"),
        ("--dataset mini.json --request_rate nan", "nan"),
        ("--dataset mini.json --request_rate 3 --time_bet_reqs 1", "one of them"),
        ("--dataset mini.json --time_delay_dist constant", "--request_rate"),
        ("--dataset mini.json --time_bet_reqs -1", "--time_bet_reqs"),
        ("--dataset mini.json --time_bet_reqs 1 --request_rate -1", "give one"),
        ("--dataset mini.json --op_tokens_per_word 0", "0 is not a finite number above 0"),
        ("--dataset mini.json --model_name a --model_name b", "compare"),
        ("--dataset mini.json -u http://x", "host:port"),
        ("--dataset mini.json --tokenizer_dir nowhere", "nowhere"),
        ("--dataset mini.json", "--tokenizer_dir"),
        ("--dataset none.json --tokenizer_dir words", "none.json"),
        ("--dataset mini.json --tokenizer_dir words --max_input_len 4", "shortest has 5 tokens"),
        ("--dataset mini.json --tokenizer_dir mini.json", "not a tokenizer"),
        ("--dataset mini.json --tokenizer_dir words --op_stats_csv no/such.csv", "no/such.csv"),
        ("--dataset mini.json --op_stats_csv mini.json", "other columns"),
        ("--dataset mini.json --num_requests 0", "num_requests"),
        (
            "token_norm_dist --input_mean 9 --input_stdev 0 --output_mean 9 --output_stdev 0 --max_input_len 5",
            "--max_input_len 5",
        ),
        (
            "token_norm_dist --input_mean 9 --input_stdev 0 --output_mean 9 --output_stdev 0 --model_name ensemble",
            "takes text",
        ),
    ],
)
def test_wrong_input_is_one_line_that_names_it(server: FakeServer, line: str, said: str) -> None:
    assert said.replace("_", "-") in refused(line).replace("_", "-")


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_where_nothing_answers_the_flag_is_named(protocol: str) -> None:
    lengths = "--input_mean 9 --input_stdev 0 --output_mean 9 --output_stdev 0"
    assert "or correct -u" in refused(f"-i {protocol} -u 127.0.0.1:9 token_norm_dist {lengths} --num_requests 5")


def test_failures_are_counted_and_said(server: FakeServer) -> None:
    server.fail_every = 3
    result = run("--dataset mini.json --model_name ensemble --json")
    figures: dict[str, Any] = json.loads(result.stdout)
    assert (figures["requests"], figures["errors"]) == (2, 1)
    assert "1 of 3 requests failed" in result.stderr
    assert "out of blocks" in result.stderr


def test_answers_of_another_length_count_and_are_said(server: FakeServer) -> None:
    """Outputs of 5, 1 and 3 pieces, twice as many tokens asked for: the second answer has 1 token in place of 2."""
    server.short_every = 2
    result = run("--dataset mini.json --model_name ensemble --op_tokens_per_word 2 --json")
    figures: dict[str, Any] = json.loads(result.stdout)
    assert (figures["requests"], figures["errors"], figures["other_lengths"]) == (3, 0, 1)
    assert figures["osl_mean"] == pytest.approx((10 + 1 + 6) / 3)
    assert "1 of 3 answers had another length" in result.stderr
    assert "1 tokens in the answer where 2 were asked for" in result.stderr
    assert "failed" not in result.stderr


@pytest.mark.parametrize(
    ("client", "said"),
    [(ClientHealth(busiest_core=0.97), "97% of a core"), (ClientHealth(loop_lag_p99_s=0.02), "lagged 20.0 ms")],
)
def test_a_client_at_its_limit_says_so(server: FakeServer, client: ClientHealth, said: str) -> None:
    assert "client-limited" not in run("--dataset mini.json --model_name ensemble").stderr
    server.client = client
    stderr = run("--dataset mini.json --model_name ensemble").stderr
    assert "client-limited" in stderr and said in stderr


def test_nothing_answered_is_an_error(server: FakeServer) -> None:
    server.fail_every = 1
    with pytest.raises(ServerError, match="out of blocks"):
        CliRunner().invoke(bench, ["--dataset", "mini.json", "--model_name", "ensemble"], catch_exceptions=False)


def test_a_model_that_counts_no_tokens_is_given_those_asked_for(server: FakeServer) -> None:
    result = run("--dataset mini.json --model_name llama-python --json")
    assert json.loads(result.stdout)["osl_mean"] == pytest.approx((6 + 1 + 3) / 3)  # 5, 1, 3 pieces times 1.3
    assert "reports no token counts" in result.stderr


def test_against_a_server_of_known_times() -> None:
    """Answers of 6, 1 and 3 tokens over real gRPC: no latency is shorter than the mock's own, which lies within it."""
    with running(Script(ttft_s=0.05, itl_s=0.0005)) as mock:
        result = run(f"-i grpc -u {mock.grpc_url} --model_name ensemble --dataset mini.json --json")
        truth = mock.truth()
    figures = json.loads(result.stdout)
    assert (figures["requests"], figures["errors"]) == (3, 0)
    assert figures["osl_mean"] == pytest.approx(10 / 3)
    assert len(truth) == WARM_UPS + 3
    received_s, final_s = truth.received_s[WARM_UPS:], truth.final_sent_s[WARM_UPS:]
    assert figures["latency_mean_s"] >= np.mean(final_s - received_s) - ROUNDED_S
    assert final_s.max() - received_s.min() <= figures["duration_s"] <= figures["wall_s"] + ROUNDED_S
    assert figures["latency_mean_s"] <= figures["latency_p99_s"] <= figures["duration_s"] + ROUNDED_S
