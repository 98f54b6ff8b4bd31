"""Questions and options that are refused, each in one line that names what was wrong."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from sizing import planner
from sizing.analyses.sharing import Share, Terms
from sizing.cli.options import counts_of, prices_of
from sizing.errors import ScenarioError
from sizing.workload import Lengths, Limit, Prefix, Sla, Workload
from tests.sizing.engines import SLA, candidate, question
from tests.sizing.test_cli import PLAN, replaced, run

ONE = replaced(tp="2")
FLEET = "--model Qwen/Qwen3-32B --gpu h200_sxm --precision bf16 --tp 2".split()
CHAT = ["--workload", "chat:isl=1000,osl=200,rate=8,ttft=p95:1s"]
TWO_GPUS = replaced(gpu="h100_sxm,h200_sxm")


@pytest.mark.parametrize(
    "arguments,words",
    [
        ([*TWO_GPUS, "--price", "h100_sxm=2"], ["h100_sxm", "not h200_sxm"]),
        ([*ONE, "--price", "h20_sxm=2"], ["--price", "h20_sxm", "h200_sxm"]),
        ([*ONE, "--price", "-1"], ["price", "from 0"]),
        ([*ONE, "--price", "1e9"], ["price", "1,000,000"]),
        ([*ONE, "--prefix-hit", "0.9"], ["prefix tokens"]),
        ([*ONE, "--mix", "--price", "2", "--available", "2"], ["--available", "name the GPU"]),
        ([*ONE, "--mix", "--price", "2", "--owned", "h200_sxm=nan"], ["--owned", "whole number"]),
        ([*ONE, "--mix", "--price", "2", "--owned", "h200_sxm=2.7"], ["--owned", "whole number"]),
        ([*ONE, "--mix", "--price", "2", "--available", "h200_sxm=inf"], ["--available", "whole number"]),
        ([*ONE, "--mix", "--price", "2", "--owned", "b200_sxm=2"], ["--owned", "b200_sxm"]),
        ([*ONE, "--owned", "h200_sxm=2"], ["--owned", "--mix"]),
        ([*ONE, "--available", "h200_sxm=2"], ["--available", "--mix"]),
        (replaced(**{"peak-factor": "0"}), ["peak factor"]),
        (replaced(**{"peak-factor": "nan"}), ["peak factor"]),
        (replaced(rate="2e6"), ["rate", "1,000,000"]),
        (replaced(spare="10001"), ["spare", "10,000"]),
        (replaced(headroom="0.96"), ["headroom", "0.95"]),
        (replaced(**{"prefix-tokens": "2001"}), ["prefix", "2000"]),
        (replaced(**{"max-tokens": "255"}), ["--max-tokens", "256"]),
        (replaced(precision="fp9"), ["fp9", "bf16"]),
        (replaced(tp="3"), ["TP 3", "1, 2, 4, 8"]),
        (["plan", *FLEET, *CHAT, "--peak-factor", "3"], ["--peak-factor", "--workload"]),
        (["plan", *FLEET, *CHAT, "--isl", "10", "--tune"], ["--isl", "--tune"]),
        (["share", "--scenario", "fleet.yaml", "--headroom", "0.5"], ["--headroom", "--scenario"]),
        (["share", "--scenario", "fleet.yaml", *CHAT], ["--workload", "--scenario"]),
        (["share", *FLEET, "--workload", "one:isl=1000,osl=1,rate=2,itl=p95:30ms"], ["ITL", "OSL"]),
        (["share", *FLEET, *CHAT, "--spare", "-1"], ["spare"]),
        (["share", *FLEET, *CHAT, "--max-tokens", "100"], ["--max-tokens", "200"]),
        (["share", *FLEET, *CHAT, "--price", "h100_sxm=1"], ["--price", "h100_sxm"]),
    ],
)
def test_each_is_one_line_and_exit_2(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(arguments, capsys)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert all(word in err for word in words)


def test_the_bad_hour_of_a_day_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    day = ["1"] * 24
    day[17] = "x"
    without_rate = [word for word in PLAN if word not in ("--rate", "20")]
    _, _, err = run([*without_rate, "--daily", ",".join(day)], capsys)
    assert "hour 17" in err
    assert "'x'" in err


def test_gpus_are_named_in_any_letter_case() -> None:
    gpus = ["AMD EPYC", "h200_sxm"]
    assert prices_of("amd epyc=2,H200_SXM=3", gpus)["prices"] == (("AMD EPYC", 2.0), ("h200_sxm", 3.0))
    assert counts_of("--owned", "H200_sxm=8", gpus) == {"h200_sxm": 8}


def test_a_gpu_without_a_price_does_not_cost_one() -> None:
    asked = question(prices=(("g", 9.0),))
    with pytest.raises(ScenarioError, match="not h"):
        planner.plan(asked, [candidate(gpu="g"), candidate(gpu="h")])
    # a price for all beside the one by name settles it
    answer = planner.plan(dataclasses.replace(asked, price_per_gpu_hour=1.0), [candidate(gpu="g"), candidate(gpu="h")])
    assert answer.answer.candidate.gpu == "h"


@pytest.mark.parametrize(
    "lengths,prefix,sla,rate",
    [
        (Lengths(100, 1), Prefix(), SLA, 1.0),
        (Lengths(100, 20), Prefix(101, 0.5), SLA, 1.0),
        (Lengths(100, 20), Prefix(), Sla(Limit("ttft", 95, 1.0)), 1.1e6),
    ],
)
def test_a_shared_workload_has_the_bounds_of_a_question(
    lengths: Lengths, prefix: Prefix, sla: Sla, rate: float
) -> None:
    with pytest.raises(ScenarioError):
        Share("one", Workload(lengths, rate, prefix=prefix), sla)


@pytest.mark.parametrize("values", [{"headroom": 0.96}, {"spare": 10_001}, {"prices": (("g", -1.0),)}])
def test_the_terms_of_a_shared_fleet_are_bounded(values: dict[str, object]) -> None:
    with pytest.raises(ScenarioError):
        Terms(**values)  # type: ignore[arg-type]


def test_points_match_in_any_letter_case(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "points.csv"
    rows = [
        f"own,FP32,My GPU,1,64,32,concurrency,{users},{users / (0.2 + 0.01 * users)},0.03,{0.005 + 0.0003 * users},"
        for users in (1, 4, 16)
    ]
    header = "model,precision,gpu,tp,isl,osl,load_kind,load_value,requests_per_s,ttft_mean_s,itl_mean_s,e2e_mean_s"
    path.write_text("\n".join([header, *rows]) + "\n")
    words = "capacity --gpus 3 --model own --gpu my\tgpu --precision fp32 --isl 64 --osl 32 --ttft p95:2s".split(" ")
    code, out, err = run([word.replace("\t", " ") for word in words] + ["--points", str(path), "--json"], capsys)
    assert (code, err) == (0, "")
    assert '"My GPU"' in out
