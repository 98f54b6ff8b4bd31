"""The Report page: what it shows is the planner's, what it hands out is one report in four formats."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from urllib.parse import parse_qsl

import pytest
from streamlit.testing.v1 import AppTest

from sizing import answer, planner
from sizing.candidates import find
from sizing.numbers import milliseconds
from sizing.plan import Plan
from sizing.report.model import Report
from sizing.report.write import WRITERS
from sizing.workload import Limit
from tests.app.conftest import ONE, query_of, text_of
from ui import link, reporting
from ui.answers import Outcome
from ui.scenario import Scenario

Open = Callable[..., AppTest]
NOWHERE = replace(ONE, itl=Limit("itl", 99, 0.0001))
PAGE = "ui/pages/report.py"
COVER = {"title": "Chat", "author": "A. Planner", "notes": "One.\nTwo.", "address": "http://planner.test"}


@pytest.fixture(scope="module")
def plan() -> Plan:
    return planner.plan(ONE.question, *find(ONE.model, ONE.lengths, ONE.choice))


@pytest.fixture
def at_report(opened: Open) -> Open:
    """Open the Report page on a scenario."""

    def open_(scenario: Scenario = ONE, **parameters: str) -> AppTest:
        app = opened(scenario, **parameters).switch_page(PAGE).run()
        assert not app.exception
        return app

    return open_


def shown(app: AppTest) -> str:
    parts = (*app.title, *app.subheader, *app.markdown, *app.caption)
    return text_of("\n".join(part.value for part in parts))


def buttons(app: AppTest) -> list[object]:
    return [each.proto for each in app.get("download_button")]


def test_the_preview_is_the_planner_s_answer(at_report: Open, plan: Plan) -> None:
    app = at_report()
    assert text_of(app.subheader[0].value) == answer.sentence(plan)
    assert answer.working(plan) in shown(app) and answer.band(plan.answer) in shown(app)
    table = app.table[0].value
    for row, limit in zip(table.itertuples(index=False), plan.question.sla.limits, strict=True):
        cells = [text_of(cell) for cell in row]
        assert cells[1:3] == [milliseconds(limit.limit_s), milliseconds(plan.answer.predicted.value_s(limit))]


def test_four_files_are_offered_and_made_only_when_asked_for(at_report: Open) -> None:
    found = buttons(at_report())
    assert [each.label for each in found] == [f"Download {name}" for name in ("PDF", "HTML", "XLSX", "JSON")]  # type: ignore[attr-defined]
    assert all(each.deferred_file_id and not each.disabled for each in found)  # type: ignore[attr-defined]


def test_the_page_takes_title_author_and_notes(at_report: Open) -> None:
    app = at_report()
    app.text_input(key="report_title").set_value("Chat <b>")
    app.text_area(key="report_notes").set_value("x" * 5_000)
    next(button for button in app.button if button.label == "Put on the report").click().run()
    assert not app.exception
    assert "Chat <b>" in shown(app) and "<b>" not in app.caption[1].value


def made(scenario: Scenario, outcome: Outcome, at_report: Open) -> Report:
    at_report(scenario)  # the app's caches need a session once
    return reporting.report(scenario, outcome, **COVER)


def test_every_file_is_made_away_from_the_page(at_report: Open, plan: Plan) -> None:
    found = made(ONE, Outcome(plan), at_report)
    files: dict[str, bytes] = {}

    def work() -> None:
        for suffix in WRITERS:
            name, _, make = reporting.download(found, suffix)
            assert name == f"sizing-qwen-qwen3-32b-h200-sxm-20rps-{found.made_at[:10]}.{suffix}"
            files[suffix] = make()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert files.keys() == WRITERS.keys()
    assert files["pdf"].startswith(b"%PDF") and files["xlsx"].startswith(b"PK")
    assert b"A. Planner" in files["html"]
    again = Report.from_json(files["json"])
    assert again == found and (again.title, again.notes) == ("Chat", "One.\nTwo.")


def test_the_link_opens_the_scenario_with_its_answer(at_report: Open, plan: Plan) -> None:
    found = made(ONE, Outcome(plan), at_report)
    address, _, query = found.link.partition("/?")
    assert address == "http://planner.test"
    assert link.from_query(dict(parse_qsl(query))) == (ONE, [])
    assert link.answer_of(dict(parse_qsl(query))) == plan.answer.gpus


def test_without_a_plan_the_report_says_why_and_holds_no_count(at_report: Open) -> None:
    app = at_report(NOWHERE)
    assert app.subheader[0].value == "No configuration meets this SLA"
    assert "n" not in query_of(app) and "GPUs" not in text_of(app.subheader[0].value)
    assert len(app.table[0].value) == 1 and len(buttons(app)) == 4
    found = reporting.report(NOWHERE, Outcome(None, "No configuration meets this SLA", "why"), **COVER)
    assert found.answer is None and "&n=" not in found.link
    assert reporting.download(found, "pdf")[0].startswith("sizing-qwen-qwen3-32b-no-answer-20rps-")


def test_without_a_question_there_is_nothing_to_report(at_report: Open) -> None:
    for missing in ({"ttft": "off", "itl": "off"}, {"gpu": "any", "points": "off"}):
        app = at_report(**missing)
        assert not buttons(app) and "something to report" in shown(app)


def test_an_unknown_name_with_markup_is_shown_as_text(at_report: Open) -> None:
    app = at_report(model="<img src=x onerror=alert(1)> **bold** :red[c]")
    raw = "\n".join(part.value for part in (*app.subheader, *app.markdown, *app.caption))
    assert "<img src=x onerror=alert(1)> **bold** :red[c]" in text_of(raw)
    assert "<img" not in raw.replace("\\<img", "") and ":red[" not in raw.replace("\\:red\\[", "")
