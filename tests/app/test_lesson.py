"""The lesson and the course's method on the Simulate page: steps, changes, links, faults, what is drawn."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from streamlit.testing.v1 import AppTest

from calibration.store import DATABASE_VARIABLE
from learn import course_form, course_view
from learn.course import example
from learn.course_form import Asked, from_text, to_text
from learn.lesson import Setting, figures, guide, run
from learn.lesson.guide import guides
from learn.lesson_chart import slots_and_queue
from sizing.plans import NoFeasiblePlan
from tests.app.conftest import ONE, open_query, query_of, text_of
from ui.charts.base import DARK, LIGHT

Open = Callable[..., AppTest]
IDLE = replace(ONE, ttft=None, itl=None)
"""A first page that has nothing to work out."""


@pytest.fixture
def simulate(opened: Open) -> Open:
    """Open the Simulate page on one of its views."""

    def open_(**parameters: str) -> AppTest:
        return opened(IDLE, page="simulate", **{"show.simulate": "lesson", **parameters})

    return open_


def shown(app: AppTest) -> str:
    parts = (*app.title, *app.markdown, *app.caption, *app.warning, *app.info)
    return text_of("\n".join(str(part.value) for part in parts))


def cards(app: AppTest) -> dict[str, str]:
    return {metric.label: metric.value for metric in app.metric}


@pytest.mark.parametrize("step", guides())
def test_each_step_opens_from_its_link_with_its_text_its_run_and_its_picture(simulate: Open, step: str) -> None:
    app = simulate(**{"show.lesson": step})
    found = figures(run(guides()[step].setting))
    assert query_of(app)["show.lesson"] == step and "show.lesson_run" not in query_of(app)
    assert text_of(app.title[0].value) == guides()[step].title
    assert guides()[step].text in [part.value for part in app.markdown]
    assert cards(app)["Waiting at the end"] == f"{found.queue:,}"
    assert f"{found.completed} request" in shown(app)
    (chart,) = app.get("plotly_chart")
    assert len(chart.proto.alt) > 100 and f"{found.completed} requests end" in chart.proto.alt
    assert len(app.dataframe) == 3


def test_a_change_takes_effect_at_once_and_survives_the_link(simulate: Open) -> None:
    app = simulate(**{"show.lesson": "static"})
    app.selectbox(key="lesson_batching").set_value("one_prefill").run()
    app.number_input(key="lesson_chunks").set_value(2).run()
    assert not app.exception
    assert cards(app)["Requests/1,000 ticks"] == "360"
    again = open_query(query_of(app), "simulate")
    assert cards(again) == cards(app) and again.number_input(key="lesson_chunks").value == 2
    next(button for button in again.button if button.label.startswith("Back to this step")).click()
    again.run()
    assert cards(again)["Requests/1,000 ticks"] == "190" and "show.lesson_run" not in query_of(again)


def test_changes_belong_to_their_step(simulate: Open) -> None:
    app = simulate(**{"show.lesson": "in-flight", "show.lesson_run": "static|slots=2"})
    assert app.number_input(key="lesson_slots").value == 4
    app = simulate(**{"show.lesson": "static", "show.lesson_run": "static|slots=2"})
    assert app.number_input(key="lesson_slots").value == 2


@pytest.mark.parametrize("kind", ["batch", "concurrency", "rate"])
def test_every_kind_of_load_can_be_chosen(simulate: Open, kind: str) -> None:
    app = simulate(**{"show.lesson": "rate"})
    app.selectbox(key="lesson_kind").set_value(kind).run()
    assert not app.exception and not app.warning
    assert app.number_input(key=f"lesson_{kind}").value > 0 and cards(app)


def test_the_button_leads_to_the_next_step(simulate: Open) -> None:
    app = simulate(**{"show.lesson": "one"})
    app.button(key="lesson_next").click().run()
    assert app.title[0].value == "Two requests" and query_of(app)["show.lesson"] == "two"


@pytest.mark.parametrize("text", ["static|speed=3", "static|slots=x", "static|slots=0", "static|load=rate:99"])
def test_settings_of_a_link_that_cannot_be_run_are_named(simulate: Open, text: str) -> None:
    app = simulate(**{"show.lesson": "static", "show.lesson_run": text})
    assert text_of(app.warning[0].value).startswith(text.split("|")[1].split("=")[0].replace("speed", "'speed'"))
    assert cards(app)["Requests/1,000 ticks"] == "190"


def test_a_long_run_is_drawn_in_part_and_says_so(simulate: Open) -> None:
    app = simulate(**{"show.lesson": "rate", "show.lesson_run": "rate|load=rate:0.46;ticks=5000"})
    assert "Only the first 200 of" in shown(app)


@pytest.mark.parametrize("ink", [LIGHT, DARK])
def test_the_picture_has_a_column_for_each_step_and_a_mark_for_each_latency(ink: object) -> None:
    outcome = run(Setting())
    figure = slots_and_queue(outcome, ink, 1000).figure  # type: ignore[arg-type]
    traces = json.loads(figure.to_json())["data"]
    slots, queue, ttft, e2e = traces
    assert slots["x"] == [*(step.start for step in outcome.steps), outcome.end]
    for place, row in enumerate(slots["text"]):
        assert row == [step.letters[place] for step in outcome.steps]
    assert queue["y"][:-1] == [step.queue for step in outcome.steps] and queue["yaxis"] == "y3"
    assert [*zip(ttft["x"], ttft["y"], strict=True)][:4] == [(8, 8)] * 4
    assert [*zip(e2e["x"], e2e["y"], strict=True)][:4] == [(16, 16), (19, 19), (20, 20), (24, 24)]


def test_without_its_texts_the_lesson_says_what_is_missing(
    simulate: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guide, "FOLDER", tmp_path)
    guides.cache_clear()
    try:
        assert "no folder data/lesson" in shown(simulate())
        (tmp_path / "1-x.md").write_text("no title")
        guides.cache_clear()
        assert "1-x.md" in shown(simulate())
    finally:
        guides.cache_clear()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the fit behind our planner's answer, which has tests of its own."""
    monkeypatch.setattr(course_view, "ours", refuse)


def refuse(*_: object) -> None:
    raise NoFeasiblePlan("no law", ())


@pytest.mark.usefixtures("quick")
def test_the_worked_example_is_what_the_view_opens_on(simulate: Open) -> None:
    app = simulate(**{"show.simulate": "course"})
    assert app.title[0].value == "39 GPUs by the course's method" and "4.8 servers" in shown(app)
    assert cards(app)["Requests/s, 8 GPUs"] == "41.6" and cards(app)["Concurrency, 8 GPUs"] == "80"
    cost = app.table[0].value
    assert [text_of(cell) for cell in cost["Per 1,000 requests, mean load"]] == ["0.661", "0.636", "2.6"]
    points = app.dataframe[0].value
    assert len(points) == len(example.measured()) and list(points)[:6] == [
        "Model",
        "Precision",
        "ISL",
        "OSL",
        "Concurrency",
        "TP",
    ]
    app.number_input(key="course_limit_ms").set_value(500.0).run()
    assert app.title[0].value == "23 GPUs by the course's method"
    assert query_of(app)["show.course_form"] == "limit_ms=500.0"
    app.number_input(key="course_limit_ms").set_value(1.0).run()
    assert app.title[0].value == "No measured point keeps this limit" and "nearest is" in shown(app)


@pytest.mark.usefixtures("quick")
def test_the_course_s_method_needs_no_store(simulate: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DATABASE_VARIABLE, "nosuchdatabase://host/name")
    assert cards(simulate(**{"show.simulate": "course"}))


@pytest.mark.usefixtures("quick")
def test_parts_of_a_link_that_cannot_be_taken_are_named(simulate: Open) -> None:
    app = simulate(**{"show.simulate": "course", "show.course_form": "limit_ms=x;metric=e9;years=0;speed=1"})
    told = text_of(app.warning[0].value)
    assert all(part in told for part in ("limit_ms=x", "metric=e9", "years=0", "speed=1"))
    assert app.title[0].value == "39 GPUs by the course's method"


@settings(max_examples=50)
@given(
    st.builds(
        Asked,
        metric=st.sampled_from(list(course_form.METRICS)),
        statistic=st.sampled_from(list(course_form.STATISTICS)),
        limit_ms=st.floats(0.1, 1e6),
        mean_per_s=st.floats(0.001, 1e6),
        gpus_per_server=st.integers(1, 128),
    )
)
def test_the_form_survives_its_text(asked: Asked) -> None:
    assert from_text(to_text(asked)) == (asked, [])


@settings(max_examples=50)
@given(st.text(max_size=60))
def test_any_text_is_read_without_an_error(text: str) -> None:
    asked, _ = from_text(text)
    assert from_text(to_text(asked)) == (asked, [])
