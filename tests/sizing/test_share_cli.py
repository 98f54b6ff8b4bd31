"""Several workloads on one fleet, from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from sizing.cli import cli
from sizing.deploy.formats import FORMATS
from sizing.deploy.settings import deployment_of
from tests.sizing.test_cli import run

pytest.importorskip("sizing.simulator.runs")

CHAT = "chat:isl=1000,osl=200,rate=8,ttft=p95:1s,itl=p95:30ms"
BATCH = "batch:isl=4000,osl=300,rate=1,e2e=p95:60s,priority=1"
FLEET = "--model Qwen/Qwen3-32B --gpu h200_sxm --precision bf16 --tp 2 --engine trtllm".split()


@pytest.fixture(scope="module")
def shared() -> str:
    """What `share` prints."""
    done = CliRunner().invoke(cli, ["share", *FLEET, "--workload", CHAT, "--workload", BATCH, "--json"])
    assert (done.exit_code, done.stderr) == (0, "")
    return done.stdout


def test_two_workloads_share_a_fleet(shared: str) -> None:
    answer = json.loads(shared)
    assert answer["gpus"] == 2 * answer["replicas"]
    chat, batch = answer["workloads"]
    assert chat["predicted"]["ttft"]["p95_s"] <= 1.0
    assert batch["predicted"]["e2e"]["p95_s"] <= 60.0


def test_a_shared_fleet_can_be_deployed(shared: str) -> None:
    """Its engines take the longest request of all workloads, and hold what Little's law gives for both together."""
    answer = json.loads(shared)
    plan = deployment_of(answer)
    settings, working = plan.fleet.engine_settings, plan.fleet.replicas - plan.fleet.spare
    assert settings.max_model_tokens == 4000 + 300
    held = sum(each["rate_per_s"] * each["predicted"]["e2e"]["mean_s"] for each in answer["workloads"])
    assert settings.in_flight == pytest.approx(held / working)
    assert all(files_of(plan) for files_of in FORMATS.values())


def test_plan_with_workloads_is_share_and_a_file_says_the_same(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, shared: str
) -> None:
    words = [*FLEET, "--workload", CHAT, "--workload", BATCH, "--json"]
    path = tmp_path / "fleet.yaml"
    path.write_text(
        "model: Qwen/Qwen3-32B\ngpu: [h200_sxm]\nprecision: [bf16]\ntp: [2]\nworkloads:\n"
        "  - {name: chat, isl: 1000, osl: 200, rate: 8, ttft: 'p95:1s', itl: 'p95:30ms'}\n"
        "  - {name: batch, isl: 4000, osl: 300, rate: 1, e2e: 'p95:60s', priority: 1}\n"
    )
    for arguments in (["plan", *words], ["share", "--scenario", str(path), "--json"]):
        assert run(arguments, capsys)[1] == shared
    assert json.loads(shared)["replicas"] > 1


def test_a_faulty_workload_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(["share", *FLEET, "--workload", "chat:isl=1,rate=2"], capsys)
    assert code == 2
    assert "osl" in err
    assert err.count("\n") == 1


def test_a_workload_beyond_the_models_context_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(
        ["share", *FLEET, "--workload", CHAT, "--workload", "books:isl=100000,osl=200,rate=1,e2e=p95:60s"], capsys
    )
    assert code == 2
    assert "workload 'books': ISL + OSL are 100,200 tokens" in err


def test_each_workload_keeps_a_gap_limit_of_its_own(capsys: pytest.CaptureFixture[str], shared: str) -> None:
    """Long prompts of one make stalls for the other: its gaps are told, and only where somebody asked for gaps."""
    limited = f"{CHAT},gap=p99:150ms"
    _, out, _ = run(["share", *FLEET, "--workload", limited, "--workload", BATCH, "--json"], capsys)
    chat, batch = json.loads(out)["workloads"]
    assert chat["predicted"]["gap"]["p99_s"] <= 0.15
    assert batch["predicted"]["gap"]["p50_s"] > 0
    assert "gap" not in json.loads(shared)["workloads"][0]["predicted"]


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (BATCH.replace("e2e=p95:60s", "ttft=1s"), "workload 'batch': the TTFT limit needs a percentile"),
        (BATCH.replace("rate=1,", "rate=0,"), "workload 'batch': rate"),
        (BATCH.replace("priority=1", "priority=16"), "workload 'batch': priority must be from 0 (first) to 15"),
        (BATCH.replace("batch:", "chat:"), "two are named 'chat'"),
    ],
)
def test_a_workload_at_fault_is_named(second: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(["share", *FLEET, "--workload", CHAT, "--workload", second], capsys)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err


def test_a_workload_of_too_few_requests_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    rare = BATCH.replace("rate=1,", "rate=1e-6,")
    code, out, err = run(["share", *FLEET, "--workload", CHAT, "--workload", rare], capsys)
    assert (code, out) == (2, "")
    assert err == (
        "error: batch: 1e-06 of all 8 requests/s are too few to be judged: leave this workload out, or size it alone\n"
    )
