"""Recommendations of aisimulate: what is kept of them, and that no search is run twice."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from lab.environment import Environment
from validation.evidence import recommended
from validation.evidence.recommend import (
    ENUMERATED,
    MODES,
    QUESTIONS,
    SEARCHED,
    WIDER,
    Answer,
    Fleet,
    Pool,
    asked,
    configuration,
    drawn,
    read_answers,
    write_answers,
)

ROOT = Path(__file__).parents[2]
SIZES = st.sampled_from([1, 2, 4, 8, 16])
POOLS = st.builds(
    Pool, st.sampled_from(["agg", "prefill", "decode"]), SIZES, SIZES, st.just(1), SIZES, SIZES, SIZES, st.integers(1)
)
SECONDS = st.floats(0.001, 1e4)
FLEETS = st.builds(Fleet, st.integers(1), st.tuples(POOLS, POOLS), SECONDS, SECONDS, SECONDS, SECONDS | st.none())
ANSWERS = st.builds(
    Answer,
    st.sampled_from(QUESTIONS),
    st.sampled_from([SEARCHED, ENUMERATED]),
    st.sampled_from(list(MODES)),
    st.text(),
    SECONDS,
    st.lists(FLEETS, max_size=2).map(tuple),
    st.integers(0) | st.none(),
    st.none(),
    st.text(),
)


@given(st.lists(ANSWERS))
def test_a_file_gives_back_the_answers(tmp_path_factory: pytest.TempPathFactory, answers: list[Answer]) -> None:
    path = tmp_path_factory.mktemp("answers") / "answers.json"
    write_answers(path, answers)
    assert read_answers(path) == answers


def test_no_file_is_no_answers(tmp_path: Path) -> None:
    assert read_answers(tmp_path / "none.json") == []


def test_what_is_known_is_not_asked_again(tmp_path: Path) -> None:
    """In an environment that is not there, in which nothing can be asked."""
    for search in (SEARCHED, ENUMERATED):
        known = [Answer(QUESTIONS[0], search, mode, "", 1.0, ()) for mode in MODES]
        assert list(asked(QUESTIONS[0], search, known, Environment(tmp_path), 1, 0.1)) == []


def test_a_question_goes_over_in_the_units_of_the_tool() -> None:
    question = replace(QUESTIONS[0], rate_per_s=40, ttft_s=1.5, itl_s=0.025)
    told = json.loads(json.dumps(configuration(question, "name", "disagg", 7, 0.5)))
    assert told["evaluation"]["sla"] == {"ttft_ms": 1500.0, "itl_ms": 25.0}
    assert told["optimization"]["constraints"]["min_goodput_rps"] == 20.0
    assert set(told["engine"]["workers"]) == {"prefill", "decode"}


def test_a_problem_stands_in_the_table() -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(drawn([Answer(QUESTIONS[0], SEARCHED, "agg", "", 3.0, (), 20, 0, "out of reach")]))
    assert "out of reach" in console.export_text()


@pytest.mark.parametrize(("workers", "verdict"), [(4, "p95 holds"), (1, "queues grow")])
def test_a_recommended_fleet_is_simulated_with_the_planners_laws(workers: int, verdict: str) -> None:
    """Four engines carry 40 requests/s of an 8B model and one does not; two roles are run as two pools."""
    asked = QUESTIONS[0]
    pool = Pool("agg", workers, 1, 1, 1, 1, 1, batch=96)
    fleet = Fleet(workers, (pool,), 0.5, 0.027, 50.0)
    told = recommended.theirs(Answer(asked, ENUMERATED, "agg", "1.3.0rc20", 35.0, (fleet,)))
    (line,) = recommended.table(asked, [told])
    assert told.gpus == workers and told.workers == f"{workers} × TP1" and line.endswith(f"{verdict} |")
    apart = replace(fleet, pools=(replace(pool, role="prefill", workers=3), replace(pool, role="decode", workers=3)))
    both = recommended.theirs(Answer(asked, ENUMERATED, "disagg", "1.3.0rc20", 35.0, (apart,)))
    assert both.seen is not None and not both.seen.saturated and both.seen.itl.mean_s < 0.03


def test_no_answer_is_a_row_too() -> None:
    asked = QUESTIONS[0]
    told = recommended.theirs(Answer(asked, ENUMERATED, "agg", "", 1.0, (), problem="nothing within the limits"))
    assert told.gpus is None and "| none |" in next(recommended.table(asked, [told]))


def test_the_page_counts_the_fleets_that_were_answered() -> None:
    """Of each question the smaller count of the two searches; without any, the page would name none."""
    page = (ROOT / "docs/how-it-works.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^,|]+), (\w+), ([\d,]+)/([\d,]+), .*?\| (\d+), [^|]*\| (\d+), ", page, re.MULTILINE)
    answers = read_answers(recommended.KEPT)
    for question, (name, gpu, isl, osl, *told) in zip(QUESTIONS, rows, strict=True):
        assert (name, gpu) == (question.model.rpartition("/")[2], question.gpu)
        assert (isl, osl) == (f"{question.isl:,}", f"{question.osl:,}")
        for mode, gpus in zip(MODES, told, strict=True):
            own = [each for each in answers if (each.question, each.mode) == (question, mode)]
            assert {each.search for each in own} == {ENUMERATED, WIDER}
            assert int(gpus) == min(each.fleets[0].gpus for each in own if each.fleets)
