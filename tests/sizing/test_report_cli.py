"""``python -m sizing report`` as outsiders use it: from a saved plan to each format; one line for each mistake."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from sizing.cli import main
from sizing.cli.saved import EXAMPLES
from sizing.report.model import Report, as_json
from sizing.report.write import WRITERS
from tests.sizing.report_cases import refusal, report

PLAN = [
    *"plan --model Qwen/Qwen3-32B --gpu h200_sxm --precision fp8 --tp 1 --isl 2000 --osl 256 --rate 20".split(),
    *"--engine trtllm --ttft p95:1s --itl p95:30ms --json".split(),
]


def run(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    captured = capsys.readouterr()
    assert isinstance(stopped.value.code, int)
    return stopped.value.code, captured.out, captured.err


def test_a_plan_becomes_a_report_in_every_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(PLAN, capsys)
    assert code == 0
    saved, answer = tmp_path / "plan.json", json.loads(out)
    saved.write_text(out)
    cover = ["--title", "Chat", "--author", "A", "--notes", "N", "--link", "http://x.test/"]
    for suffix in WRITERS:
        path = tmp_path / f"x.{suffix}"
        assert run(["report", "--plan", str(saved), "--out", str(path), *cover], capsys) == (0, "", "")
        assert path.stat().st_size > 10_000
    found = Report.from_json((tmp_path / "x.json").read_text())
    assert found.answer is not None and found.answer.gpus.value == answer["gpus"]
    assert (found.title, found.author, found.notes, found.link) == ("Chat", "A", "N", "http://x.test/")
    assert found.sentence == answer["sentence"] and found.working == answer["working"]
    assert [row.predicted.value for row in found.limits] == [
        answer["predicted"]["ttft"]["p95_s"],
        answer["predicted"]["itl"]["p95_s"],
    ]
    again = tmp_path / "again.json"
    assert run(["report", "--plan", str(tmp_path / "x.json"), "--out", str(again)], capsys)[0] == 0
    assert again.read_bytes() == (tmp_path / "x.json").read_bytes()


@pytest.mark.parametrize(
    ("engine", "settings", "later_s", "sentence"),
    [
        ("trtllm", {"lookahead_steps": 1}, 0.005, "The engine fixes what an iteration holds 1 iteration before"),
        ("sglang", {"receive_interval_steps": 30}, 0.1, "The engine looks for new requests every 30 decode steps"),
        (
            "trtllm",
            {"batch_wait_steps": 20, "batch_wait_ratio": 0.9},
            0.1,
            "Prompts wait for others, 20 decode steps at most",
        ),
    ],
)
def test_how_the_engine_takes_up_prompts_is_part_of_the_plan_and_said(
    engine: str,
    settings: dict[str, float],
    later_s: float,
    sentence: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Median TTFT is later by what prompts wait for."""
    asked = f"plan --model Qwen/Qwen3-32B --gpu h100_sxm --tp 2 --precision bf16 --engine {engine} --isl 2000 --osl 256"
    options = [part for name, value in settings.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    at_once, later = (
        json.loads(run([*f"{asked} --rate 4 --ttft p95:2s --json".split(), *more], capsys)[1]) for more in ([], options)
    )
    assert not settings.keys() & at_once.keys() and settings.items() <= later.items()
    assert not settings.items() & at_once["engine_settings"].items()
    assert settings.items() <= later["engine_settings"].items()
    assert later["predicted"]["ttft"]["p50_s"] > at_once["predicted"]["ttft"]["p50_s"] + later_s
    saved, page = tmp_path / "plan.json", tmp_path / "report.html"
    saved.write_text(json.dumps(later))
    assert run(["report", "--plan", str(saved), "--out", str(page)], capsys)[0] == 0
    assert sentence in page.read_text()


def test_without_an_answer_the_report_says_why_and_the_status_is_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run([each.replace("30ms", "1ms") for each in PLAN], capsys)
    assert code == 3
    asked = Report.from_json(json.dumps(json.loads(out)["report"]))
    assert asked.given("rate_per_s") == 20 and [way.name for way in asked.ways_out] == ["p95 TTFT", "p95 ITL"]
    assert (asked.ways_out[1].smallest.value or 0) > 0.001 == asked.ways_out[1].limit.value
    old = {key: value for key, value in json.loads(out).items() if key != "report"}  # as once printed
    for saved in (out, json.dumps(old), as_json(refusal())):
        (tmp_path / "plan.json").write_text(saved)
        path = tmp_path / "x.json"
        code, out, err = run(["report", "--plan", str(tmp_path / "plan.json"), "--out", str(path)], capsys)
        assert (code, out, err.count("\n")) == (3, "", 1) and err.startswith("error: no configuration meets")
        found = Report.from_json(path.read_text())
        assert found.answer is None and found.left_out


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[]", "JSON object"),
        ("{}", "it contains no report"),
        ('{"gpus": 3, "report": 7}', "it contains no report"),
        ('{"gpus": 3, "workloads": [{"name": "chat"}]}', "a plan of several workloads has no report"),
        ('{"feasible": false, "why": "w", "rejected": [{"gpu": 1}]}', "rejected"),
        ('{"feasible": false, "why": "w"}', "rejected"),
        ('{"schema": "sizing-report/9"}', "sizing-report/1"),
        ('{"gpus": 3, "report": {"schema": "sizing-report/1"}}', "title"),
    ],
)
def test_a_bad_file_is_one_line(content: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.json"
    path.write_text(content)
    code, out, err = run(["report", "--plan", str(path), "--out", str(tmp_path / "x.json")], capsys)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err and "plan.json" in err
    assert not (tmp_path / "x.json").exists()


def test_bad_names_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = tmp_path / "report.json"
    good.write_text(as_json(report()))
    for plan, out, said in (
        ("nowhere.json", "x.json", "nowhere.json"),
        (".", "x.json", "cannot be read"),
        ("report.json", "x.docx", ".html, .pdf, .xlsx, .json"),
        ("report.json", "none/x.json", "cannot be written"),
        ("report.json", f"{'x' * 300}.json", "cannot be written"),
        ("report.json", "report.json/x.json", "cannot be written"),
    ):
        code, printed, err = run(["report", "--plan", str(tmp_path / plan), "--out", str(tmp_path / out)], capsys)
        assert (code, printed, err.count("\n")) == (2, "", 1), plan
        assert said in err
    code, _, err = run(
        ["report", "--plan", str(good), "--out", str(tmp_path / "x.json"), "--title", "x" * 200_000], capsys
    )
    assert code == 2 and "title" in err and len(err) < 300


def test_a_plan_over_a_day_brings_it_to_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rates = ",".join(str(20 * (hour + 1) / 24) for hour in range(24))
    load = PLAN.index("--rate")
    code, out, _ = run([*PLAN[:load], "--daily", rates, *PLAN[load + 2 :]], capsys)
    assert code == 0
    saved, path, without = tmp_path / "plan.json", tmp_path / "x.json", tmp_path / "y.json"
    saved.write_text(out)
    found = {}
    for option in ("--daily", ""):
        assert run(["report", "--plan", str(saved), "--out", str(path), *option.split()], capsys) == (0, "", "")
        found[option] = Report.from_json(path.read_text()).day
    assert found["--daily"] is not None and found["--daily"] == found[""]
    hours = json.loads(out)["daily"]["hours"]
    assert list(found[""].gpus.values) == [hour["gpus"] for hour in hours]
    assert run(["report", "--plan", str(path), "--no-daily", "--out", str(without)], capsys)[0] == 0
    assert Report.from_json(without.read_text()).day is None
    code, printed, err = run(["report", "--plan", str(without), "--daily", "--out", str(path)], capsys)
    assert (code, printed, err.count("\n")) == (2, "", 1) and "y.json" in err and "--daily" in err


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["report", "--help"], capsys)
    assert code == 0 and "python -m sizing report --plan plan.json --out sizing.pdf" in out


def test_a_gap_limit_is_in_every_format_and_a_report_without_one_still_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limited = [*PLAN[:-1], "--gap", "p99:100ms", "--json"]
    for words, has in ((limited, True), (PLAN, False)):
        answer = json.loads(run(words, capsys)[1])
        saved = tmp_path / "plan.json"
        saved.write_text(json.dumps(answer))
        limits = {row["metric"] for row in answer["report"]["limits"]}
        latencies = {each["metric"] for each in answer["report"]["configurations"][0]["latencies"]}
        assert ("gap" in limits, "gap" in latencies) == (has, has)
        for suffix in WRITERS:
            path = tmp_path / f"x.{suffix}"
            assert run(["report", "--plan", str(saved), "--out", str(path)], capsys) == (0, "", "")
        assert ("p99 gap" in (tmp_path / "x.html").read_text()) is has


def test_the_examples_read_plans_that_an_example_before_them_wrote() -> None:
    written: set[str] = set()
    for used, made in re.findall(r"--plan (\S+)|(?:> |--out )(\S+\.json)", EXAMPLES):
        assert not used or used in written
        written.add(made)
    assert len(written) > 1
