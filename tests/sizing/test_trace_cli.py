"""``plan --trace``: what the command prints, its JSON and reports, and what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from sizing.cli import cli
from sizing.report.model import Quantity, from_dict, question_digest
from sizing.report.write import render
from sizing.report.xlsx import TCO_COLUMNS
from tests.sizing.report_cases import Page, pdf_text, rows_below, sheets, squeezed
from tests.sizing.test_cli import run

PLAN = [
    *"plan --model Qwen/Qwen3-32B --gpu h200_sxm --precision bf16 --tp 2 --engine vllm".split(),
    *"--ttft p95:1s --itl p95:30ms --trace".split(),
]


@pytest.fixture(scope="module")
def traffic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten hours of requests, the fifth three times as busy, from the morning of a day on."""
    rng = np.random.default_rng(0)
    rates = [2.0, 2.0, 2.0, 2.0, 6.0, 2.0, 2.0, 2.0, 2.0, 2.0]
    arrivals = np.sort(
        np.concatenate([3600 * hour + rng.uniform(0, 3600, int(3600 * rate)) for hour, rate in enumerate(rates)])
    )
    lengths = np.maximum(1, rng.lognormal((7.0, 5.0), 0.6, (len(arrivals), 2)).astype(int))
    path = tmp_path_factory.mktemp("trace") / "day.csv"
    rows = (f"{time:.6f},{isl},{osl}" for time, (isl, osl) in zip(arrivals, lengths, strict=True))
    path.write_text("\n".join(["arrival_s,isl,osl", *rows, ""]))
    return path


@pytest.fixture(scope="module")
def answer(traffic: Path) -> dict[str, Any]:
    """The JSON of the plan for all of it."""
    done = CliRunner().invoke(cli, [*PLAN, str(traffic), "--json"])
    assert done.exit_code == 0
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_answer_tells_of_hours_and_bands(traffic: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run([*PLAN, str(traffic)], capsys)
    assert code == 0
    assert "requests/s on average and 6 in the busiest hour" in out
    assert "in the worst hour, 04:00" in out
    assert "10 hours, resampled" in out and "GPU-hours if the fleet follows" in out
    assert "The worst of 10 hours" in out


def test_json_has_every_hour(answer: dict[str, Any]) -> None:
    found = answer["trace"]
    assert answer["verified_by"] == "simulation" and found["worst_hour"] == 4
    assert [hour["clock"] for hour in found["hours"]] == [f"{hour:02d}:00" for hour in range(10)]
    assert sum(hour["requests"] for hour in found["hours"]) == found["requests"]
    assert found["gpus_low_sampling"] <= answer["gpus"] <= found["gpus_high_sampling"]
    assert max(found["hours"], key=lambda hour: hour["gpus"])["clock"] == "04:00"
    assert answer["predicted"]["ttft"]["p95_s"] <= 1.0
    assert answer["planned_rate_per_s"] == pytest.approx(6.0, rel=0.01)
    assert answer["mean_rate_per_s"] == pytest.approx(2.4, rel=0.01)


def test_reports_hold_the_traffic(answer: dict[str, Any]) -> None:
    found = from_dict(answer["report"])
    assert found.traffic is not None
    assert [hour.clock for hour in found.traffic.hours] == [hour["clock"] for hour in answer["trace"]["hours"]]
    said = " ".join(found.assumptions)
    assert "recorded" in said and "independently" not in said and "steady-state" not in said
    page = Page(render(found, "html").decode())
    assert "Recorded traffic" in page.text and "in the worst hour, 04:00" in page.text
    printed = pdf_text(render(found, "pdf"))
    assert squeezed("Recorded traffic") in printed and squeezed("10 hours, resampled") in printed
    book = sheets(render(found, "xlsx"))
    assert {row[0] for row in book["Answer"]} >= set(found.traffic.lines)
    rows = rows_below(book["Recorded traffic"], "Hour")
    assert [row[0] for row in rows][:10] == [f"{hour:02d}:00" for hour in range(10)]
    (replica,) = (dict(zip(TCO_COLUMNS, row, strict=True)) for row in rows_below(book["TCO rows"], "Model"))
    working, mean_s = answer["replicas"] - answer["spare"], answer["predicted"]["e2e"]["mean_s"]
    assert replica["Requests per Second"] == pytest.approx(answer["trace"]["rate_per_s"] / working)
    assert replica["Concurrency"] == pytest.approx(replica["Requests per Second"] * mean_s)


def test_a_window_and_a_scale(traffic: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counts = {}
    for name, more in {
        "worst": ["--trace-window", "worst-hour"],
        "quiet": ["--trace-window", "00:00..01:00"],
        "scaled": ["--trace-window", "00:00..01:00", "--trace-scale", "3"],
    }.items():
        code, out, _ = run([*PLAN, str(traffic), "--json", *more], capsys)
        assert code == 0
        counts[name] = json.loads(out)
    requests = {name: answer["trace"]["requests"] for name, answer in counts.items()}
    assert requests["worst"] == pytest.approx(6 * 3600, rel=0.001)  # the most tokens: it begins some seconds early
    assert requests["scaled"] == 3 * requests["quiet"] == pytest.approx(3 * 2 * 3600, abs=3)
    gpus = {name: answer["gpus"] for name, answer in counts.items()}
    assert gpus["quiet"] < gpus["scaled"] and gpus["quiet"] < gpus["worst"]
    code, out, err = run([*PLAN, str(traffic), "--trace-window", "20:00..21:00"], capsys)
    assert (code, out) == (2, "") and "only 0 requests arrive from 20:00 to 21:00: the trace ends at 0" in err


def test_a_refused_trace_has_its_own_arrivals(traffic: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = [*PLAN, str(traffic), "--trace-window", "00:00..01:00", "--ttft", "p95:1ms", "--json"]
    code, out, _ = run([word for word in asked if not word.startswith("--ttft=")], capsys)
    inputs = {row["key"]: row["value"] for row in json.loads(out)["report"]["inputs"]}
    assert code == 3 and inputs["arrivals"] == "as recorded"


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (["--rate", "3"], "--rate does not go with --trace"),
        (["--isl", "300"], "--isl does not go with --trace"),
        (["--tune"], "--tune does not go with --trace"),
        (["--trace-window", "lunch"], "--trace-window 'lunch'"),
        (["--trace-window", "30:00..31:00"], "only 0 requests arrive"),
        (["--trace-window", "2024-05-10..2024-05-11"], "no dates"),
        (["--trace-scale", "0"], "must be above 0"),
        (["--trace-scale", "-1"], "must be above 0"),
        (["--turns", "3"], "--turns goes with --users or --sessions-per-s"),
    ],
)
def test_what_does_not_go_is_one_line(
    traffic: Path, more: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run([*PLAN, str(traffic), *more], capsys)
    assert (code, out) == (2, "") and named in err and err.count("\n") == 1


def test_a_trace_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run([*PLAN, "nowhere.csv"], capsys)
    assert code == 2 and "nowhere.csv" in err and err.count("\n") == 1


@pytest.fixture(scope="module")
def two_classes(traffic: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The traffic by turns: chat, and code with its own file."""
    header, *rows = traffic.read_text().split()
    folder = tmp_path_factory.mktemp("classes")
    paths = folder / "chat.csv", folder / "code.csv"
    for number, path in enumerate(paths):
        path.write_text("\n".join([header, *rows[number::2], ""]))
    return paths


def test_classes_have_limits_and_figures_of_their_own(
    two_classes: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    chat, code = two_classes
    asked = [*PLAN, str(chat), "--trace", f"agents={code}", "--class", "agents:ttft=p99:3s,itl=none"]
    code_, out, _ = run([*asked, "--json"], capsys)
    answer = json.loads(out)
    classes = answer["trace"]["classes"]
    assert code_ == 0 and [each["name"] for each in classes] == ["chat", "agents"]
    assert sum(each["requests"] for each in classes) == answer["trace"]["requests"]
    assert [limit["metric"] for limit in classes[1]["limits"]] == ["ttft"]
    for each in classes:
        assert [hour["clock"] for hour in each["hours"]] == [f"{hour:02d}:00" for hour in range(10)]
        for limit in each["limits"]:
            assert limit["value_s"] <= limit["limit_s"] and limit["exceeding_share"] <= 1 - limit["percentile"] / 100
    used = {
        f"p{limit['percentile']} {limit['metric'].upper()} <= {1000 * limit['limit_s']:g} ms ({each['name']})": (
            limit["value_s"] / limit["limit_s"]
        )
        for each in classes
        for limit in each["limits"]
    }
    binding, *_ = sorted(used, key=lambda name: -used[name])
    first = answer["report"]["configurations"][0]
    assert answer["binding"] == first["binding"] == binding
    assert first["room"]["value"] == pytest.approx(1 - used[binding])
    inside = sum(each["goodput"] * each["requests"] for each in classes)
    assert answer["trace"]["goodput"] == pytest.approx(inside / answer["trace"]["requests"])

    found = from_dict(answer["report"])
    page, printed = Page(render(found, "html").decode()), pdf_text(render(found, "pdf"))
    assert "SLA of each class" in page.text and squeezed("SLA of each class") in printed
    assert "over all requests of" in page.text and "Poisson arrivals of the trace's lengths" in page.text
    assert ("Arrivals", "as recorded") in [(row.name, row.value) for row in found.inputs]
    assert found.given("ttft_p95_s") == 1.0, "as asked, not the loosest of the classes' limits"
    assert answer["question"]["sla"] == {"ttft": "p95:1s", "itl": "p95:0.03s"}
    assert [row.limit.value for row in found.limits] == [3.0]
    rows = rows_below(sheets(render(found, "xlsx"))["Classes"], "Class")
    assert [(row[0], row[2]) for row in rows[:3]] == [("chat", "p95 TTFT"), ("chat", "p95 ITL"), ("agents", "p99 TTFT")]

    _, out, _ = run(asked, capsys)
    assert "agents" in out and "43,200" in out and "Binding limit" in out and "over all requests of" in out


@pytest.mark.parametrize("window", ["00:00..01:00", "00:00..00:30"])
def test_a_class_of_which_one_request_is_there_or_none_is_no_error(
    window: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rare.csv"
    rows = (f"{second},1000,100,{'rare' if second == 3000 else 'chat'}" for second in range(3600))
    path.write_text("\n".join(["arrival_s,isl,osl,class", *rows, ""]))
    asked = [*PLAN, str(path), "--trace-window", window, "--json"]
    code, out, _ = run([*asked, *(f"--class={name}:ttft=p95:1ms" for name in ("chat", "rare"))], capsys)
    said = {way.partition(":")[0] for way in json.loads(out)["ways_out"]}
    assert code == 3 and said == ({"chat", "rare"} if window.endswith("01:00") else {"chat"})


def test_a_class_of_single_tokens_has_no_itl_to_loosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "scores.csv"
    rows = (f"{second},1000,{'1,score' if second % 2 else '100,chat'}" for second in range(3600))
    path.write_text("\n".join(["arrival_s,isl,osl,class", *rows, ""]))
    code, out, _ = run([*PLAN, str(path), "--class", "chat:itl=p95:1ms", "--json"], capsys)
    assert code == 3 and {way.partition(":")[0] for way in json.loads(out)["ways_out"]} == {"chat"}


def test_where_classes_cannot_be_served_each_that_fails_says_what_its_limits_would_have_to_be(
    two_classes: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    chat, code = two_classes
    window = ["--trace-window", "00:00..01:00", "--class", "agents:itl=p95:2ms"]
    answered, out, _ = run([*PLAN, f"chat={chat}", "--trace", f"agents={code}", *window, "--json"], capsys)
    assert answered == 3
    ways = json.loads(out)["ways_out"]
    assert all(way.startswith("agents: ") for way in ways), "chat keeps its limits alone"
    assert json.loads(out)["report"]["remarks"] == [f"{way}." for way in ways]
    (itl,) = (way for way in ways if "p95 ITL: " in way)
    needed = re.search(r"p95 ITL: ([0-9.]+) ms \(by simulation\) instead of 2 ms", itl)
    assert needed
    window[-1] = f"agents:itl=p95:{1.1 * float(needed[1]):.4g}ms"
    answered, _, _ = run([*PLAN, f"chat={chat}", "--trace", f"agents={code}", *window, "--json"], capsys)
    assert answered == 0, "a tenth more leaves room for a queue"


def test_refused_plans_whose_classes_have_other_limits_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the digest in their files' names; what was asked of each class is among the inputs."""
    path = tmp_path / "rare.csv"
    rows = (f"{second},1000,100,{'rare' if second % 10 else 'chat'}" for second in range(600))
    path.write_text("\n".join(["arrival_s,isl,osl,class", *rows, ""]))
    told = {}
    for limits in ("ttft=p95:1ms", "ttft=p95:2ms", "ttft=p95:1ms,itl=none"):
        code, out, _ = run([*PLAN, str(path), "--class", f"rare:{limits}", "--json"], capsys)
        report = from_dict(json.loads(out)["report"])
        assert code == 3 and report.given("ttft_p95_s") == 1.0
        told[question_digest(report)] = [(each.name, each.value) for each in report.inputs if "rare" in each.name]
        assert "Inputs" in Page(render(report, "html").decode()).text
    ttft = "p95 TTFT limit (rare)"
    assert list(told.values()) == [
        [(ttft, Quantity(0.001, "s", "given"))],
        [(ttft, Quantity(0.002, "s", "given"))],
        [(ttft, Quantity(0.001, "s", "given")), ("p95 ITL limit (rare)", "none")],
    ]


def test_a_class_needs_a_trace_that_has_it(traffic: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for asked, named in (
        ([*PLAN, str(traffic), "--class", "chat:ttft=p95:1s"], "the trace names no classes"),
        ([*PLAN[:-1], "--isl=9", "--osl=9", "--rate=1", "--class", "chat:ttft=p95:1s"], "--class goes with --trace"),
    ):
        code, out, err = run(asked, capsys)
        assert (code, out) == (2, "") and named in err and err.count("\n") == 1


@pytest.fixture(scope="module")
def conversations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty sessions of five turns each minute, whose prompts repeat all before."""
    rng = np.random.default_rng(4)
    rows = []
    for session in range(1200):
        at_s, prompt = float(rng.uniform(0, 3600)), int(rng.integers(500, 3000))
        for _ in range(5):
            answer = int(rng.integers(20, 300))
            rows.append((at_s, prompt, answer, session))
            at_s, prompt = at_s + float(rng.uniform(20, 60)), prompt + answer + int(rng.integers(20, 200))
    path = tmp_path_factory.mktemp("sessions") / "chat.csv"
    path.write_text(
        "\n".join(["arrival_s,isl,osl,session", *(f"{a:.3f},{i},{o},{s}" for a, i, o, s in sorted(rows)), ""])
    )
    return path


def test_a_prefix_cache_finds_what_turns_repeat(conversations: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain, cached = (
        json.loads(run([*PLAN, str(conversations), "--json", *more], capsys)[1]) for more in ([], ["--prefix-cache"])
    )
    assert "hit_rate" not in plain["trace"] and 0.5 < cached["trace"]["hit_rate"] < 0.9
    assert all(0 <= hour["hit_rate"] <= 1 for hour in cached["trace"]["hours"])
    assert cached["gpus"] <= plain["gpus"]
    assert cached["predicted"]["ttft"]["p50_s"] < plain["predicted"]["ttft"]["p50_s"]
    _, out, _ = run([*PLAN, str(conversations), "--prefix-cache"], capsys)
    assert "of the prompt tokens were found in the prefix cache" in out


def test_a_prefix_cache_needs_sessions_of_a_trace(
    traffic: Path, conversations: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for asked, named in (
        ([*PLAN, str(traffic), "--prefix-cache"], "knows no sessions"),
        ([*PLAN, str(conversations), "--prefix-cache", "--prefix-tokens", "9"], "--prefix-tokens does not go with"),
        ([*PLAN[:-1], "--isl=9", "--osl=9", "--rate=1", "--prefix-cache"], "--prefix-cache goes with --trace"),
    ):
        code, out, err = run(asked, capsys)
        assert (code, out) == (2, "") and named in err and err.count("\n") == 1
