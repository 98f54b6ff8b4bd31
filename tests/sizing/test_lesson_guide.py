"""What the guided steps of the lesson say is what their runs show; and the lesson on the command line."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from learn.lesson import Load, Outcome, figures, run
from learn.lesson.guide import guide, guides
from sizing.cli import main
from sizing.errors import CatalogueError


def of(name: str) -> Outcome:
    return run(guides()[name].setting)


def test_every_number_that_a_step_tells_is_that_of_its_run() -> None:
    assert [mark.latency_ticks for mark in (*of("one").first, *of("one").last)] == [2, 5]
    assert {mark.at for mark in of("two").first} == {4}
    static = of("static")
    assert (static.steps[0].ticks, static.steps[0].queue, {mark.at for mark in static.first[:4]}) == (8, 96, {8})
    assert 0.2 < figures(static).empty < 0.25
    assert (figures(static).completed, figures(of("in-flight")).completed) == (19, 27)
    assert figures(of("in-flight")).empty == 0
    assert figures(of("one-prompt")).completed == 36 and set(of("one-prompt").itl_ticks) == {1}
    settled = of("concurrency").steps[20:]
    assert 1.5 < sum(step.queue for step in settled) / len(settled) < 3
    rate = guides()["rate"]
    assert figures(of("rate")).queue > 0
    told = re.search(r"about (\S+) requests per tick", rate.text)
    assert told and float(told[1]) == pytest.approx(
        figures(run(replace(rate.setting, ticks=10_000))).requests_per_1k / 1000, abs=0.005
    )
    slow = replace(rate.setting, load=Load("rate", 0.2))
    assert {mark.latency_ticks for mark in run(slow).first} == {2}


def test_each_way_to_batch_completes_more_than_the_one_before() -> None:
    done = [figures(of(name)).completed for name in ("static", "in-flight", "chunks", "one-prompt")]
    assert done == sorted(set(done))


@pytest.mark.parametrize("text", ["", "no title\nrun: \ntext", "# T\ntext", "# T\nrun: speed=3\ntext"])
def test_a_faulty_step_names_its_file(text: str) -> None:
    with pytest.raises(CatalogueError, match=r"9-x\.md"):
        guide(text, "9-x.md")


def command(arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(["lesson", *arguments.split()])
    captured = capsys.readouterr()
    return int(stopped.value.code or 0), captured.out, captured.err


def test_the_command_draws_the_first_picture(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = command("", capsys)
    assert (code, err) == (0, "")
    assert "slot 1  p-------ddddddddddd....." in out and "queue  96" in out and "19 requests completed" in out


def test_options_change_a_guided_step_and_json_holds_the_whole_run(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = command("--step rate --load rate:0.2 --json", capsys)
    told = json.loads(out)
    assert code == 0 and told["setting"]["batching"] == "one_prefill" and told["setting"]["load"] == "rate:0.2"
    assert told["figures"]["completed"] == len(told["e2e"]) == 17
    assert len(told["steps"][0]["slots"]) == 4


def test_all_steps_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(command("--all --json", capsys)[1]).keys() == guides().keys()
    assert "one-prompt" in command("--all", capsys)[1]


@pytest.mark.parametrize(
    "wrong",
    [
        *("--step nine", "--slots 0", "--load users:3", "--batching magic", "--ticks x"),
        *("--all --slots 8", "--all --step rate", "--all --show 9"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = command(wrong, capsys)
    assert code == 2 and out == "" and err.startswith("error: ") and err.count("\n") == 1
