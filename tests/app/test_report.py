"""The Report page: what it shows is the planner's, what it hands out is one report in four formats."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from urllib.parse import parse_qsl

import pytest
from streamlit.testing.v1 import AppTest

from sizing import planner, text
from sizing.analyses.daily import gpus_by_hour
from sizing.candidates import find
from sizing.catalog import Layout
from sizing.numbers import milliseconds
from sizing.plans import Plan, Rejection
from sizing.report.model import Report, question_digest
from sizing.report.write import WRITERS
from sizing.workload import Limit
from tests.app.conftest import ONE, open_query, query_of, text_of
from ui import answers, link
from ui.answers import ways_out
from ui.computing import Outcome
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
        return opened(scenario, page="report", **parameters)

    return open_


def shown(app: AppTest) -> str:
    parts = (*app.title, *app.subheader, *app.markdown, *app.caption)
    return text_of("\n".join(part.value for part in parts))


def buttons(app: AppTest) -> list[object]:
    return [each.proto for each in app.get("download_button")]


def test_the_preview_is_the_planner_s_answer(at_report: Open, plan: Plan) -> None:
    app = at_report()
    assert text_of(app.subheader[0].value) == text.sentence(plan)
    assert text.working(plan) in shown(app) and text.band(plan.answer) in shown(app)
    table = app.table[0].value
    for row, limit in zip(table.itertuples(index=False), plan.question.sla.limits, strict=True):
        cells = [text_of(cell) for cell in row]
        assert cells[1:3] == [milliseconds(limit.limit_s), milliseconds(plan.answer.predicted.value_s(limit))]


def test_the_contents_keep_the_spelling_of_names_and_count_in_words(at_report: Open, plan: Plan) -> None:
    told = shown(at_report(replace(ONE, ttft=None)))
    assert "**Will it hold?** · SLA at the planned load (1 row)" in told
    assert "**Sensitivity** · GPUs if one input changes (" in told
    assert "**Latency against load** · 1 chart" in told
    assert f"**Left out** · {len(plan.rejected)} rows" in told


def test_four_files_are_offered_and_made_only_when_asked_for(at_report: Open) -> None:
    found = buttons(at_report())
    assert [each.label for each in found] == [f"Download {name}" for name in ("PDF", "HTML", "XLSX", "JSON")]  # type: ignore[attr-defined]
    assert all(each.deferred_file_id and not each.disabled for each in found)  # type: ignore[attr-defined]


def test_the_page_takes_title_author_and_notes(at_report: Open) -> None:
    app = at_report()
    app.text_input(key="report_title").set_value("Chat <b>")
    app.text_area(key="report_notes").set_value("x" * 5_000)
    next(button for button in app.button if button.label == "Apply to the report").click().run()
    assert not app.exception
    assert "Chat <b>" in shown(app) and "<b>" not in app.caption[1].value


def made(scenario: Scenario, outcome: Outcome, at_report: Open) -> Report:
    at_report(scenario)  # the app's caches need a session once
    return answers.report(scenario, outcome, **COVER)


def test_every_file_is_made_away_from_the_page(at_report: Open, plan: Plan) -> None:
    found = made(ONE, Outcome(plan), at_report)
    files: dict[str, bytes] = {}

    def work() -> None:
        for suffix in WRITERS:
            name, _, make = answers.download(found, suffix, answers.Handed())
            asked = question_digest(found)
            assert name == f"sizing-qwen-qwen3-32b-h200-sxm-20rps-{found.made_at[:10]}-{asked}.{suffix}"
            files[suffix] = make()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert files.keys() == WRITERS.keys()
    assert files["pdf"].startswith(b"%PDF") and files["xlsx"].startswith(b"PK")
    assert b"A. Planner" in files["html"]
    again = Report.from_json(files["json"])
    assert again == found and (again.title, again.notes) == ("Chat", "One.\nTwo.")


def test_a_file_of_the_question_before_is_told_from_one_of_this(at_report: Open, plan: Plan) -> None:
    """A field changed and a button pressed at once: the button is still that of the run before."""
    before = made(ONE, Outcome(plan), at_report)
    limits = replace(ONE, ttft=Limit("ttft", 95, 2.0))
    after = answers.report(
        limits, Outcome(planner.plan(limits.question, *find(ONE.model, ONE.lengths, ONE.choice))), **COVER
    )
    handed, now_s = answers.Handed(), time.monotonic()
    assert not handed.belated(after, now_s)
    names = {answers.download(each, "json", handed)[0] for each in (before, after)}
    assert len(names) == 2  # though model, GPU, load and day are the same
    _, _, make = answers.download(before, "json", handed)
    assert Report.from_json(make()).given("ttft_p95_s") == 1.0
    assert handed.belated(after, now_s) and handed.belated(after, time.monotonic())
    assert not handed.belated(before, now_s) and not handed.belated(after, now_s + 60)


def test_the_page_says_that_a_file_was_of_the_question_before(at_report: Open) -> None:
    app = at_report()
    assert not app.warning
    handed = app.session_state.visit.report_handed
    handed.out(answers.report(ONE, Outcome(None, "title", "why"), **COVER | {"address": ""}), "json")
    assert not app.run().warning  # the same question, whatever its answer was
    handed.out(answers.report(NOWHERE, Outcome(None, "title", "why"), **COVER), "json")
    app.run()
    assert [box.value for box in app.warning] and "before the last change" in app.warning[0].value


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
    (why,) = app.table[-1].value["Why"]
    assert text_of(why).endswith("the limit is 0.1 ms") and not app.dataframe and len(buttons(app)) == 4
    found = answers.report(NOWHERE, Outcome(None, "No configuration meets this SLA", "why"), **COVER)
    assert found.answer is None and "&n=" not in found.link
    assert answers.download(found, "pdf", answers.Handed())[0].startswith("sizing-qwen-qwen3-32b-no-answer-20rps-")


def test_the_way_out_is_that_of_the_size_page(at_report: Open) -> None:
    app = at_report(NOWHERE)
    ways = ways_out(NOWHERE)
    assert any(way.smallest for way in ways.alone)
    page = "\n".join(text_of(str(cell)) for table in app.table for cell in table.value.to_numpy().ravel())
    rejected = Rejection("h200_sxm", Layout(1), "fp8", "sla", "misses")
    found = answers.report(NOWHERE, Outcome(None, "No configuration meets this SLA", "why", (rejected,)), **COVER)
    for way, row in zip(ways.alone, found.ways_out, strict=True):
        smallest = way.smallest.limit_s if way.smallest else None
        assert row.smallest.value == smallest
        assert smallest is None or smallest <= way.limit.limit_s or milliseconds(smallest) in page
    memory = Outcome(None, "It does not fit", "why", (Rejection("h200_sxm", Layout(1), "fp8", "memory", "short"),))
    assert not answers.report(NOWHERE, memory, **COVER).ways_out


def test_a_day_chosen_on_the_size_page_is_in_the_report_and_its_links(opened: Open, plan: Plan) -> None:
    app = opened(ONE, **{"show.size": "day"}).switch_page(PAGE).run()
    assert not app.exception
    assert query_of(app)["show.size"] == "day" and "With the GPUs of each hour" in shown(app)
    assert "Over a day" in shown(app)  # among the sections
    found = answers.report(ONE, Outcome(plan), **COVER, beside="day")
    assert found.day is not None
    day = gpus_by_hour(ONE.question, plan.answer, ONE.day_per_s)
    assert list(found.day.gpus.values) == [hour.gpus for hour in day.hours]
    assert dict(parse_qsl(found.link.partition("?")[2]))["show.size"] == "day"
    app = open_query(query_of(app)).switch_page(PAGE).run()
    assert "With the GPUs of each hour" in shown(app)


def test_a_token_of_a_day_costs_what_the_mean_load_makes_of_the_fleet(plan: Plan) -> None:
    priced = replace(ONE, price_per_gpu_hour=3.5)
    found = answers.report(priced, Outcome(replace(plan, question=priced.question)), **COVER, beside="day")
    figures = {row.name: row.value.value for row in found.cost}
    tokens_per_hour = sum(ONE.day_per_s) / len(ONE.day_per_s) * ONE.osl * 3600
    per_million = 3.5 * plan.answer.gpus / tokens_per_hour * 1e6
    assert figures["Cost per million output tokens"] == pytest.approx(per_million)
    power_kw = figures["Power of the GPUs, at most"]
    assert power_kw is not None and figures["Energy, at most"] == pytest.approx(power_kw / tokens_per_hour * 1e6)


def test_the_price_of_goodput_chosen_on_the_size_page_is_in_the_report(opened: Open, plan: Plan) -> None:
    app = opened(ONE, **{"show.size": "goodput"}).switch_page(PAGE).run()
    assert not app.exception
    assert "With the GPUs at rising goodput" in shown(app) and query_of(app)["show.size"] == "goodput"
    found = answers.report(ONE, Outcome(plan), **COVER, beside="goodput")
    prices = answers.goodput_prices_of(ONE, plan)
    assert [row.gpus.value for row in found.goodput] == [price.fleet and price.fleet.gpus for price in prices]
    assert not answers.report(ONE, Outcome(plan), **COVER).goodput


def test_without_a_day_the_page_says_how_to_have_one(at_report: Open, plan: Plan) -> None:
    app = at_report()
    assert "choose Over a day" in shown(app).replace("*", "") and "show.size" not in query_of(app)
    found = answers.report(ONE, Outcome(plan), **COVER)
    assert found.day is None and "show.size" not in found.link


def test_without_a_question_there_is_nothing_to_report(at_report: Open) -> None:
    for missing in ({"ttft": "off", "itl": "off"}, {"gpu": "any", "points": "off"}):
        app = at_report(**missing)
        assert not buttons(app) and "the report follows" in shown(app)


def test_an_unknown_name_with_markup_is_shown_as_text(at_report: Open) -> None:
    app = at_report(model="<img src=x onerror=alert(1)> **bold** :red[c]")
    raw = "\n".join(part.value for part in (*app.subheader, *app.markdown, *app.caption))
    assert "<img src=x onerror=alert(1)> **bold** :red[c]" in text_of(raw)
    assert "<img" not in raw.replace("\\<img", "") and ":red[" not in raw.replace("\\:red\\[", "")
