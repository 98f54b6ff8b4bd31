"""The command line as outsiders use it: keys, exit codes, one line for each mistake."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from sizing.cli import main
from sizing.report.model import from_dict, question_digest

PLAN = [
    *"plan --model Qwen/Qwen3-32B --gpu h200_sxm --precision bf16 --tp 2,4 --isl 2000 --osl 256 --rate 20".split(),
    *"--ttft p95:1s --itl p95:30ms".split(),
]
KEYS = {
    *("gpus", "replicas", "tp", "gpu", "precision", "requests_per_s_per_gpu", "requests_per_s_per_replica"),
    *(
        "utilization",
        "predicted",
        "binding",
        "basis",
        "gpus_low",
        "gpus_high",
        "verified_by",
        "alternatives",
        "rejected",
    ),
}
LOOP = "predict --points data/curves/reference-cpu.csv --isl 64 --osl 32 --concurrency 2".split()
POINTS_HEADER = "model,precision,gpu,tp,isl,osl,load_kind,load_value,requests_per_s,ttft_mean_s,itl_mean_s,e2e_mean_s"


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    captured = capsys.readouterr()
    assert isinstance(stopped.value.code, int)
    return stopped.value.code, captured.out, captured.err


def replaced(**values: str) -> list[str]:
    arguments = list(PLAN)
    for name, value in values.items():
        if f"--{name}" in arguments:
            arguments[arguments.index(f"--{name}") + 1] = value
        else:
            arguments += [f"--{name}", value]
    return arguments


def test_plan_prints_the_keys_of_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run([*PLAN, "--json"], capsys)
    answer = json.loads(out)
    assert (code, err) == (0, "")
    assert answer.keys() >= KEYS
    assert answer["gpus"] == answer["replicas"] * answer["tp"]
    assert answer["predicted"]["ttft"]["p95_s"] <= 1.0
    assert answer["predicted"]["itl"]["p95_s"] <= 0.030
    assert answer["verified_by"] == "simulation"
    assert answer["basis"] == "estimated"


def test_percentiles_need_more_gpus_than_means(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run([*PLAN, "--headroom", "0", "--spare", "0", "--json"], capsys)
    answer = json.loads(out)
    assert answer["gpus"] > answer["mean_based"]["gpus"]
    assert "p95" in answer["mean_based"]["why"]


def test_an_sla_that_cannot_be_met_prints_no_count(capsys: pytest.CaptureFixture[str]) -> None:
    for extra in ([], ["--json"]):
        code, out, err = run([*replaced(itl="p95:2ms"), *extra], capsys)
        assert code == 3
        assert err.count("\n") == 1
        assert '"gpus"' not in out
        assert "misses ITL even at 1 % of the load that it carries: ITL is" in " ".join(out.split())
        assert "ms by formula, the limit is 2 ms" in " ".join(re.sub("[│ ]+", " ", out).split())
        assert "p95 ITL: " in out and " (by simulation) instead of 2 ms, with h200_sxm TP" in out, "ways to meet it"


@pytest.mark.parametrize(
    "arguments,words",
    [
        (replaced(rate="-1"), "rate"),
        (replaced(rate="nan"), "rate"),
        (replaced(rate="many"), "many"),
        (replaced(osl="0"), "OSL"),
        (replaced(model="Qwen/Qwen3-33B"), "Qwen/Qwen3-32B"),
        (replaced(gpu="h201_sxm"), "h200_sxm"),
        (replaced(tp="two"), "--tp"),
        (replaced(ttft="1s"), "p95:1s"),
        (replaced(headroom="1"), "headroom"),
        (replaced(arrivals="sometimes"), "poisson"),
        (replaced(routing="magic"), "round_robin"),
        (replaced(points="none.csv"), "none.csv"),
        (["plan"], "--model"),
        (["plan", "--colour", "red"], "--colour"),
        (["guess"], "guess"),
        ([word for word in PLAN if word not in ("--rate", "20")], "--daily"),
        (replaced(daily="1,2"), "--rate or --daily"),
        (replaced(arrivals="batch:size=0"), "size"),
        (replaced(price="cheap"), "--price"),
        (replaced(**{"peak-factor": "0.5"}), "peak factor"),
        (replaced(**{"prefix-hit": "2"}), "hit_rate"),
        (replaced(correlation="3"), "correlation"),
        (replaced(isl="50000"), "40,960"),
        (["capacity", "--gpus", "0"], "--gpus"),
        (replaced(protocol="burst"), "--protocol goes with --points"),
        (replaced(**{"points-replicas": "2"}), "--points-replicas goes with --points"),
        (replaced(**{"trace-scale": "2"}), "--trace-scale goes with --trace"),
        (replaced(**{"trace-window": "all"}), "--trace-window goes with --trace"),
        (replaced(owned="h200_sxm=2"), "--owned goes with --mix"),
        (replaced(**{"batch-wait-ratio": "0.5"}), "--batch-wait-ratio goes with --batch-wait-steps"),
        ([*LOOP, "--batch-wait-ratio", "0.5"], "--batch-wait-ratio goes with --batch-wait-steps"),
        (
            "simulate --weights 5ms --isl 1000 --osl 200 --rate 3 --batch-wait-ratio 0.5".split(),
            "--batch-wait-ratio goes with --batch-wait-steps",
        ),
        ([*replaced(workload="chat:isl=1"), "--tune"], "--tune cannot be combined with --workload"),
        ([*LOOP, "--arrivals", "constant"], "--arrivals does not go with --concurrency"),
        ([*LOOP, "--routing", "random"], "--routing does not go with --concurrency"),
        ([*LOOP, "--isl-law", "uniform:60-68"], "--isl-law does not go with --concurrency"),
        ([*LOOP, "--correlation", "0.5"], "--correlation does not go with --concurrency"),
        ([*LOOP, "--method", "analytic"], "--method analytic does not go with --concurrency"),
        ([*LOOP, "--rate", "1"], "either --rate or --concurrency"),
    ],
)
def test_each_mistake_is_one_line_and_exit_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(arguments, capsys)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert words in err


def test_of_two_limits_on_a_metric_the_last_counts_and_it_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run([*ONE, "--itl", "p50:25ms", "--json"], capsys)
    assert code == 0
    assert json.loads(out)["gpus"] > 0
    assert err == "--itl: p50:25ms counts, not p95:30ms: give one limit\n"
    code, out, err = run([*ONE, "--itl", "p50:25ms", "--rate", "-3"], capsys)
    assert (code, out, err.count("\n")) == (2, "", 1), "an error stays the only line"


ONE = replaced(tp="2", engine="trtllm")
"""A single configuration: quick to answer."""


def test_the_plan_for_a_peak_says_so_and_costs_what_the_mean_brings(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*ONE, "--price", "2", "--json"]
    plain = json.loads(run(arguments, capsys)[1])
    peak = json.loads(run([*arguments, "--peak-factor", "2"], capsys)[1])
    assert (plain["planned_rate_per_s"], plain["mean_rate_per_s"]) == (20, 20)
    assert (peak["planned_rate_per_s"], peak["mean_rate_per_s"]) == (40, 20)
    assert peak["gpus"] > plain["gpus"]
    assert plain["cost_per_hour"] == pytest.approx(2 * plain["gpus"])
    assert peak["cost_per_1000_requests"] == pytest.approx(2 * peak["gpus"] / (20 * 3600) * 1000)
    assert peak["power_kw_at_most"] == pytest.approx(0.7 * peak["gpus"])
    names = {row["name"] for row in plain["sensitivity"]}
    assert names == {"ISL", "OSL", "rate", "p95 TTFT limit", "p95 ITL limit", "headroom"}


def test_a_day_is_planned_for_its_busiest_hour(capsys: pytest.CaptureFixture[str]) -> None:
    at = ONE.index("--rate")
    rates = [5.0] * 20 + [20.0] * 4
    daily = ",".join(f"{rate:g}" for rate in rates)
    answer = json.loads(run([*ONE[:at], *ONE[at + 2 :], "--daily", daily, "--json"], capsys)[1])
    constant = json.loads(run([*ONE, "--json"], capsys)[1])
    assert answer["gpus"] == constant["gpus"]
    assert answer["mean_rate_per_s"] == pytest.approx(7.5)
    assert [hour["rate_per_s"] for hour in answer["daily"]["hours"]] == rates
    assert answer["daily"]["gpu_hours"] < answer["daily"]["constant_gpu_hours"] == 24 * constant["gpus"]


def test_refused_days_of_one_peak_and_mean_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    at, told = ONE.index("--rate"), {}
    for hours in (["20", *["5"] * 23], [*["5"] * 23, "20"]):
        asked = [*ONE[:at], *ONE[at + 2 :], "--daily", ",".join(hours), "--ttft", "p95:1ms", "--json"]
        code, out, _ = run(asked, capsys)
        report = from_dict(json.loads(out)["report"])
        assert code == 3 and report.given("rate_per_s") == 20
        told[question_digest(report)] = next(each.value for each in report.inputs if each.key == "daily")
    assert list(told.values()) == ["20" + 23 * ", 5", 23 * "5, " + "20"]


def test_the_planned_fleet_carries_the_rate_it_was_planned_for(capsys: pytest.CaptureFixture[str]) -> None:
    planned = json.loads(run([*ONE, "--json"], capsys)[1])
    at = ONE.index("--rate")
    asked = ["capacity", "--gpus", str(planned["gpus"]), *ONE[1:at], *ONE[at + 2 :]]
    code, out, _ = run([*asked, "--json"], capsys)
    carried = json.loads(out)
    assert code == 0
    assert carried["rate_per_s"] >= 20 * 0.99
    assert carried["rate_low_per_s"] < carried["rate_per_s"] < carried["rate_high_per_s"]
    assert "requests/s" in run(asked, capsys)[1]
    code, _, err = run(["capacity", "--gpus", "2", *asked[3:]], capsys)
    assert code == 3
    assert err.count("\n") == 1


def test_the_text_names_cost_energy_and_sensitivity(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run([*ONE, "--price", "2.5", "--tune"], capsys)
    assert code == 0
    for words in ("per million output tokens", "kWh", "Sensitivity", "Batch limit", "GPUs"):
        assert words in out


@pytest.mark.parametrize(("arrivals", "said"), [("poisson", False), ("constant", True), ("gamma:cv=2", True)])
def test_counts_at_higher_loads_say_what_they_keep(
    capsys: pytest.CaptureFixture[str], arrivals: str, said: bool
) -> None:
    """Of a fleet whose size changes what a replica's stream is like."""
    code, out, _ = run([*replaced(rate="40"), "--arrivals", arrivals], capsys)
    assert code == 0
    (line,) = (line for line in out.splitlines() if "Load +10 %" in line)
    assert ("a new plan may differ" in " ".join(out[out.index(line) :].split())) == said


def test_help_loads_no_command() -> None:
    """`--help` is read often: it must not wait for numba."""
    code = "import sys; from sizing.cli import cli; cli.main(['--help'], standalone_mode=False); "
    loaded = subprocess.run(
        [sys.executable, "-c", code + "sys.exit('numpy' in sys.modules)"], capture_output=True, check=True
    )
    assert b"capacity" in loaded.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
@pytest.mark.parametrize("program", ["sizing", "calibration"])
def test_a_disk_that_is_full_is_one_line_and_a_reader_that_leaves_is_none(program: str) -> None:
    command = [sys.executable, "-m", program, "--help"]
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (2, "error: the output cannot be written: No space left on device\n")
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as pipe:
        ended = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (1, "")


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [("ascii", "2 × h200_sxm".encode()), ("koi8-r", b"2 ? h200_sxm")],
)
def test_any_encoding_of_the_output_will_do(encoding: str, expected: bytes) -> None:
    """ASCII is what a system without a locale has: its readers know UTF-8, as those of click's own messages must."""
    words = [*replaced(tp="2", engine="trtllm", precision="bf16", rate="1"), "--spare", "0"]
    ended = subprocess.run(
        [sys.executable, "-m", "sizing", *words],
        env={**os.environ, "PYTHONIOENCODING": encoding},
        capture_output=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert b"You need " + expected in ended.stdout


def test_a_points_file_without_tp_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "points.csv"
    path.write_text("model,precision,gpu,isl,osl,load_kind,load_value,requests_per_s\nm,p,g,1,1,concurrency,1,1\n")
    code, _, err = run(replaced(points=str(path)), capsys)
    assert code == 2
    assert "'tp' is missing" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", ["plan", "capacity", "predict", "fit", "simulate"])
def test_help_shows_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run([command, "--help"], capsys)
    assert code == 0
    assert f"python -m sizing {command}" in out


@pytest.fixture
def points(tmp_path: Path) -> Path:
    """A closed loop whose engine takes 10 ms a step up to 8 users and 50 ms for a prompt: round figures by hand."""
    rows = []
    for users in (1, 2, 4, 8):
        ttft, itl, osl = 0.05 + 0.002 * users, 0.010 + 0.0005 * users, 20
        e2e = ttft + itl * (osl - 1)
        rows.append(f"m,bf16,g,1,100,{osl},concurrency,{users},{users / e2e},{ttft},{itl},{e2e}")
    path = tmp_path / "points.csv"
    path.write_text("\n".join([POINTS_HEADER, *rows]) + "\n")
    return path


@pytest.mark.parametrize("method", ["analytic", "simulate"])
def test_predict_from_points(points: Path, method: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = f"predict --points {points} --isl 100 --osl 20 --rate 5 --method {method} --json".split()
    code, out, err = run(arguments, capsys)
    predicted = json.loads(out)
    assert (code, err) == (0, "")
    assert predicted["saturated"] is False
    assert predicted["basis"] == "fitted"
    for metric in ("ttft", "itl", "e2e"):
        values = [predicted["predicted"][metric][f"{name}_s"] for name in ("p50", "p90", "p95", "p99")]
        assert values == sorted(values)
        assert predicted["predicted"][metric]["mean_s"] > 0


def test_predict_beyond_saturation_says_so_and_holds_no_numbers(
    points: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(f"predict --points {points} --isl 100 --osl 20 --rate 5000 --json".split(), capsys)
    predicted = json.loads(out)
    assert code == 0
    assert predicted["saturated"] is True
    assert predicted["predicted"]["ttft"]["p95_s"] is None


def test_fit_prints_coefficients_with_intervals(points: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["fit", "--points", str(points), "--json"], capsys)
    fitted = json.loads(out)
    assert code == 0
    for coefficient in fitted["coefficients"].values():
        assert coefficient["low_s"] <= coefficient["value_s"] <= coefficient["high_s"]
    assert len(fitted["points"]) == 4
    assert fitted["lockstep"] is False
    assert {"name", "ratio", "measure"} == fitted["unknown"][0].keys()
    assert sum(fitted["regime"]["decode"].values()) == pytest.approx(1)
    assert fitted["regime"]["decode_bound"] in fitted["regime"]["decode"]


def test_fit_tells_what_binds_and_what_is_not_known(points: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["fit", "--points", str(points), "--kv-tokens", "90000", "--token-budget", "512"], capsys)
    assert code == 0
    assert "its matrix products are " in out
    assert "Not known: " in out
    assert "points barely constrain it" in out


def test_open_loops_are_fitted_unless_it_is_asked_not_to(points: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A point at random arrivals that kept up: one more point with its rate, or left aside."""
    row = "m,bf16,g,1,100,20,poisson_rate,5,5,0.060,0.0105,0.260"
    points.write_text(points.read_text() + row + "\n")
    counts = []
    for more in (["--no-open-loop"], []):
        code, out, _ = run(["fit", "--points", str(points), *more, "--json"], capsys)
        assert code == 0
        counts.append([point["load_kind"] for point in json.loads(out)["points"]])
    assert counts[1] == [*counts[0], "poisson_rate"]


def test_a_plan_leans_on_open_loops_as_the_fit_does(points: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A sweep of rates alone is enough for an answer, and its law is that of `fit`."""
    header, *rows = points.read_text().splitlines()
    rates = [
        f"m,bf16,g,1,100,20,poisson_rate,{rate},{rate},0.0{rate + 55},0.010{rate},0.2{rate + 55}" for rate in (5, 9)
    ]
    points.write_text("\n".join([header, rows[0], *rates]) + "\n")
    arguments = f"plan --model m --points {points} --isl 100 --osl 20 --rate 50 --e2e p95:290ms --json".split()
    code, out, _ = run(arguments, capsys)
    assert code == 0
    assert json.loads(out)["basis"] != "estimated"
    assert "3 measured points" in json.dumps(json.loads(out))


def test_a_plan_from_measured_points(points: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = f"plan --model m --points {points} --isl 100 --osl 20 --rate 50 --e2e p95:290ms --json".split()
    code, out, _ = run(arguments, capsys)
    answer = json.loads(out)
    assert code == 0
    assert (answer["gpu"], answer["basis"]) == ("g", "fitted")


H200 = "--points data/curves/h200-vllm-qwen3.csv --isl 2000 --osl 256"


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ("", "Missing command"),
        (f"predict --model Qwen/Qwen3-32B {H200} --rate 1 --isl 100000", "takes 40,960 at most"),
        (f"predict --model Qwen/Qwen3-8B {H200} --rate 1", "the points hold: Qwen/Qwen3-30B-A3B on h200_sxm TP1 bf16;"),
        (f"capacity --gpus 1 --model Qwen/Qwen3-32B {H200} --itl p95:30ms", "no working replica is left of 1 GPU"),
        (
            "capacity --gpus 1 --spare 0 --tp 2 --gpu h200_sxm --model Qwen/Qwen3-32B --isl 9 --osl 9 --itl p95:1s",
            "no replica fits",
        ),
    ],
)
def test_what_was_wrong_is_said(asked: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(asked.split(), capsys)
    assert code in (2, 3) and why in err and "Traceback" not in err


@pytest.mark.parametrize("option", ["--points", "--ttft", "--itl", "--goodput"])
def test_an_option_left_empty_is_an_error_and_not_left_out(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As a variable of the shell that is not set leaves it."""
    code, out, err = run([*PLAN, option, ""], capsys)
    assert (code, out) == (2, "") and err.startswith("error: ") and err.count("\n") == 1


def test_names_of_points_are_read_as_plans_read_them(capsys: pytest.CaptureFixture[str]) -> None:
    asked = f"predict {H200} --rate 1 --json".split()
    told = [run([*asked, "--model", name, "--gpu", gpu], capsys)[1] for name, gpu in NAMES]
    assert told[0] and len(set(told)) == 1


NAMES = [("Qwen/Qwen3-32B", "h200_sxm"), ("Qwen3-32B", "H200_SXM"), ("qwen/qwen3-32b", "h200_sxm")]


def test_simulate_repeats_with_its_seed(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (
        "simulate --weights 4.8ms --overhead 1ms --token 20us --isl 500 --osl 100 --rate 5 --requests 2000 --json"
    )
    first, again, other = (run([*arguments.split(), "--seed", seed], capsys)[1] for seed in ("7", "7", "8"))
    assert first == again
    assert first != other
    assert json.loads(first)["requests_per_s"] == pytest.approx(5, rel=0.1)


def test_a_gap_limit_is_asked_for_and_answered_like_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run([*ONE, "--gap", "p99:100ms", "--json"], capsys)
    answer = json.loads(out)
    assert (code, err) == (0, "")
    assert answer["predicted"]["gap"].keys() == answer["predicted"]["itl"].keys()
    assert answer["predicted"]["gap"]["p99_s"] <= 0.1
    assert answer["question"]["sla"]["gap"] == "p99:0.1s"
    assert "gap" not in json.loads(run([*ONE, "--json"], capsys)[1])["predicted"]
    assert "p99 gap" in run([*ONE, "--gap", "p99:100ms"], capsys)[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--gap p98:100ms", "gap: percentile p98 is not one of p50, p90, p95, p99"),
        ("--gap 100ms", "--gap '100ms': write it as percentile:time"),
        ("--gap p99:100ms --osl 1", "a limit on gaps between tokens needs OSL of 2 or more"),
    ],
)
def test_a_gap_limit_that_is_none_is_one_line(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    without_itl = PLAN[: PLAN.index("--itl")]
    code, _, err = run([*without_itl, *words.split()], capsys)
    assert code == 2 and said in err and err.count("\n") == 1


def test_pools_apart_say_that_they_know_no_gaps(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["whatif", *PLAN[1:], "--tp", "2", "--gap", "p99:100ms", "--disaggregated"]
    code, _, err = run(words, capsys)
    assert code == 2 and "gaps between tokens are not simulated over two pools" in err


@pytest.mark.parametrize(
    "arguments",
    [
        [10_000 * "x"],
        ["plan", f"--{10_000 * 'x'}"],
        replaced(isl=10_000 * "x"),
        replaced(ttft=10_000 * "x"),
        replaced(tp=10_000 * "9"),
        replaced(arrivals="\x1b[2J" + 10_000 * "x"),
    ],
    ids=lambda arguments: str(arguments)[:20],
)
def test_a_line_of_error_is_short_whatever_it_quotes(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(arguments, capsys)
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and err.count("\n") == 1
    assert len(err.rstrip("\n")) <= 300 and err.rstrip("\n").isprintable()


def test_a_report_tells_of_other_fleets_what_the_terminal_does(capsys: pytest.CaptureFixture[str]) -> None:
    """Disaggregated prefill and decode, the cheapest mix of GPUs, and engine settings."""
    asked = [*PLAN, *"--price h200_sxm=4 --mix --disaggregated --tune".split()]
    _, said, _ = run(asked, capsys)
    _, out, _ = run([*asked, "--json"], capsys)
    found = [
        line
        for line in json.loads(out)["report"]["remarks"]
        if line.startswith(("Disaggregated", "Prefill", "Cheapest mix", "Batch limit"))
    ]
    words = " ".join(said.split())
    assert len(found) == 4 and all(line in words for line in found)


ENGINE = "--model Qwen/Qwen3-32B --gpu h200_sxm --tp 2 --precision fp8 --engine vllm"
LENGTHS = "--isl 1000 --osl 200"
UNMET = {
    "capacity": f"capacity --gpus 8 {ENGINE} {LENGTHS} --itl p95:LIMIT",
    "share": f"share {ENGINE} --workload chat:isl=1000,osl=200,rate=5,itl=p95:LIMIT "
    "--workload bulk:isl=2000,osl=50,rate=1,e2e=p95:60s",
    "whatif": f"whatif --change batch_limit=64 {ENGINE} {LENGTHS} --rate 5 --itl p95:LIMIT",
    "sessions": f"plan {ENGINE} --users 50 --turns 4 --first-tokens 600 --user-tokens 120 --output-tokens 200 "
    "--think 5s --later-ttft p95:LIMIT --headroom 0",
}


@pytest.mark.parametrize("asked", UNMET.values(), ids=UNMET)
def test_an_sla_that_cannot_be_met_is_told_with_a_limit_that_can(
    asked: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run([*asked.replace("LIMIT", "2ms").split(), "--json"], capsys)
    (line,) = json.loads(out)["ways_out"]
    enough = re.search(r"(\d[\d.]*) ms \(by simulation\) instead of 2 ms", line)
    assert code == 3 and enough
    code, out, _ = run(asked.replace("LIMIT", "2ms").split(), capsys)
    assert code == 3 and f"Ways to meet the SLA:\n  - {line}." in out
    assert run([*asked.replace("LIMIT", f"{enough[1]}ms").split(), "--json"], capsys)[0] == 0
    less = 0.95 * float(enough[1])
    assert run([*asked.replace("LIMIT", f"{less}ms").split(), "--json"], capsys)[0] == 3


def screens(terminal: int) -> Iterator[str]:
    """What is written to a terminal, until nobody has it open."""
    with suppress(OSError):
        while written := os.read(terminal, 4096):
            yield written.decode(errors="replace")
    os.close(terminal)


@pytest.mark.parametrize("asked", UNMET.values(), ids=UNMET)
def test_what_takes_long_says_on_a_terminal_what_it_computes(asked: str, tmp_path: Path) -> None:
    """Nothing of it is in the answer, and nothing is said to a file."""
    arguments = [*asked.replace("LIMIT", "200ms").split(), "--json"]
    code = f"from sizing.cli import main, options; options.SHOWN_AFTER_S = 0.0; main({arguments!r})"
    answer, to_file = tmp_path / "answer.json", tmp_path / "said"
    terminal, end = pty.openpty()
    with answer.open("w") as out, subprocess.Popen([sys.executable, "-c", code], stdout=out, stderr=end) as command:
        os.close(end)
        said = "".join(screens(terminal))
    assert command.returncode == 0
    assert "prediction by formula" in said or "simulation of" in said
    assert json.loads(answer.read_text())
    with to_file.open("w") as log:
        subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=log, check=True)
    assert to_file.read_text() == ""
