"""The Curves page: each chart holds sizing's own numbers, and each state without a plan says what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from calibration.store import DATABASE_VARIABLE, Store
from sizing import planner
from sizing.analyses.curves import gpus_for
from sizing.candidates import find
from sizing.memory_use import WEIGHTS, MemoryUse, memory_use
from sizing.numbers import significant
from sizing.plans import Plan
from sizing.workload import Limit
from tests.app.conftest import ONE, keep, point, query_of, text_of
from ui.words import spelt

Open = Callable[..., AppTest]
CHARTS = ("latency", "gpus", "interactivity", "lengths", "memory")
TWO = replace(ONE, gpus=("h200_sxm", "h100_sxm"))
NOWHERE = replace(ONE, itl=Limit("itl", 99, 0.0001))
MEASURED = replace(ONE, model="acme/tiny", gpus=("h100_sxm",), isl=1000, osl=200, ttft=None, rate_per_s=2.0)
LEVELS = (1, 2, 4, 8, 16, 32)


@pytest.fixture(scope="module")
def plan() -> Plan:
    """The planner's own answer to the scenario of these tests."""
    return planner.plan(TWO.question, *find(TWO.model, TWO.lengths, TWO.choice))


@pytest.fixture
def drawn(opened: Open) -> Open:
    """Open one chart of the Curves page on a scenario."""

    def open_(chart: str, scenario: object = TWO, **parameters: str) -> AppTest:
        return opened(scenario, page="curves", **{"show.chart": chart, **parameters})

    return open_


def figures(app: AppTest) -> list[dict[str, Any]]:
    return [json.loads(chart.proto.spec) for chart in app.get("plotly_chart")]


def trace(figure: dict[str, Any], name: str) -> dict[str, Any]:
    return next(each for each in figure["data"] if each.get("name") == name)


def shown(app: AppTest) -> str:
    parts = (*app.title, *app.markdown, *app.caption, *app.warning, *app.main.expander)
    return text_of("\n".join(str(getattr(part, "value", None) or part.label) for part in parts))


def press(app: AppTest, label: str) -> AppTest:
    app = next(button for button in app.main.button if button.label == label).click().run()
    assert not app.exception
    return app


@pytest.mark.parametrize("chart", CHARTS)
def test_every_chart_says_what_it_shows_and_has_its_table(drawn: Open, chart: str) -> None:
    app = drawn(chart)
    assert query_of(app)["show.chart"] == chart
    assert all(len(each.proto.alt) > 40 for each in app.get("plotly_chart")) and app.get("plotly_chart")
    assert app.main.dataframe or app.main.table


def test_latency_has_a_panel_for_each_limit_with_the_capacity_and_the_planned_load(drawn: Open, plan: Plan) -> None:
    app = drawn("latency")
    assert significant(plan.answer.capacity_per_s) in text_of(app.title[0].value)
    panels = figures(app)
    assert len(panels) == len(plan.question.sla.limits)
    for panel, limit in zip(panels, plan.question.sla.limits, strict=True):
        dot = trace(panel, "planned load")
        assert dot["x"] == [plan.answer.load_per_s]
        assert dot["y"] == pytest.approx([1000 * plan.answer.predicted.value_s(limit)])
    assert "no point measured at offered rates" in shown(app)


def test_a_load_that_is_tried_is_judged_and_can_be_taken(drawn: Open, plan: Plan) -> None:
    app = drawn("latency")
    for rate_per_s, said in (
        (0.9 * plan.answer.stable_per_s, "misses p95"),
        (2 * plan.answer.stable_per_s, "grows without bound"),
        (1.5, "meets p95"),
    ):
        field = next(each for each in app.main.number_input if each.label.startswith("Load to try"))
        field.set_value(rate_per_s).run()
        assert said in shown(app)
    app = press(app, f"Use {significant(1.5 * plan.answer.working)} requests/s")
    assert float(query_of(app)["rate"]) == pytest.approx(1.5 * plan.answer.working)


def test_what_is_not_drawn_is_not_explained(drawn: Open) -> None:
    assert "Shaded" in shown(drawn("latency", ONE)) and "Shaded" not in shown(
        drawn("latency", replace(ONE, headroom=0))
    )


def test_a_button_says_the_load_that_it_sets(drawn: Open) -> None:
    label = "Use 19.98 requests/s"  # 9 working replicas at 2.22, as the field has it
    assert query_of(press(drawn("latency", ONE), label))["rate"] == "19.98"


def test_another_configuration_is_drawn_when_picked_and_kept_in_the_url(drawn: Open, plan: Plan) -> None:
    other = plan.fleets[1]
    app = drawn("latency", **{"show.fleet": other.candidate.label})
    assert spelt(other.candidate.label) in text_of(app.title[0].value)
    assert trace(figures(app)[0], "planned load")["x"] == [other.load_per_s]
    assert query_of(app)["show.fleet"] == other.candidate.label
    unknown = drawn("latency", **{"show.fleet": "abacus"})
    assert spelt(plan.answer.candidate.label) in text_of(unknown.title[0].value)


def test_the_steps_of_gpus_pass_through_the_answer(drawn: Open, plan: Plan) -> None:
    app = drawn("gpus")
    figure = figures(app)[0]
    dot = trace(figure, "planned load")
    assert (dot["x"], dot["y"]) == ([TWO.rate_per_s], [plan.answer.gpus])
    steps = trace(figure, spelt(plan.answer.candidate.label))
    before = max(place for place, rate in enumerate(steps["x"]) if rate < TWO.rate_per_s)
    assert steps["y"][before] == plan.answer.gpus and steps["line"]["shape"] == "hv"
    assert {each["name"] for each in figure["data"]} >= {spelt(fleet.candidate.label) for fleet in plan.fleets}
    assert f"{gpus_for(plan.question, plan.answer, 2 * TWO.rate_per_s):,} at twice" in text_of(app.title[0].value)


def test_the_data_of_thousands_of_gpus_reach_to_the_end_of_the_chart(drawn: Open) -> None:
    app = drawn("gpus", replace(ONE, rate_per_s=1000.0))
    last = app.main.dataframe[0].value["From load (requests/s)"].iloc[-1]
    assert float(last.replace(",", "")) > 0.98 * figures(app)[0]["layout"]["xaxis"]["range"][1]


def test_the_range_of_loads_is_typed_and_a_load_can_be_taken(drawn: Open, plan: Plan) -> None:
    app = drawn("gpus")
    start, end = (
        next(each for each in app.main.number_input if each.label.startswith(name)) for name in ("From", "To")
    )
    start.set_value(10.0)
    end.set_value(30.0).run()
    assert figures(app)[0]["layout"]["xaxis"]["range"] == [10, 30]
    link = {key: value for key, value in query_of(app).items() if key in ("show.from", "show.to")}
    assert figures(drawn("gpus", **link))[0]["layout"]["xaxis"]["range"] == [10, 30]
    end.set_value(5.0).run()
    assert not app.exception and "ends before it starts" in shown(app)
    app = press(drawn("gpus", **link), f"Use {significant(2 * TWO.rate_per_s)} requests/s")
    assert float(query_of(app)["rate"]) == 2 * TWO.rate_per_s
    assert figures(app)[0]["layout"]["xaxis"]["range"] == [0, 6 * TWO.rate_per_s], "another rate, another range"


def test_the_front_is_bold_where_it_keeps_the_sla_and_names_what_is_on_it(drawn: Open, plan: Plan) -> None:
    app = drawn("interactivity")
    figure = figures(app)[0]
    bold = [each for each in figure["data"] if each["mode"] == "lines" and each["line"]["width"] > 2]
    assert any(each["line"]["dash"] == "solid" for each in bold)
    assert {each["name"] for each in bold} <= {spelt(fleet.candidate.label) for fleet in plan.fleets}
    dot = trace(figure, f"{spelt(plan.answer.candidate.label)}, planned load")
    assert dot["y"] == [plan.answer.load_per_s / plan.answer.candidate.gpus]
    assert "Enter a price" in shown(app)
    app.main.number_input(key="show.interactivity").set_value(1e6).run()
    assert "No configuration gives more than" in shown(app)
    again = drawn("interactivity", **{"show.interactivity": query_of(app)["show.interactivity"]})
    assert again.main.number_input(key="show.interactivity").value == 1e6


def test_with_a_price_the_front_may_be_of_cost(drawn: Open) -> None:
    app = drawn("interactivity", replace(TWO, price_per_gpu_hour=2.5), **{"show.against": "cost"})
    assert text_of(app.title[0].value).startswith("Lowest cost per million output tokens")
    assert query_of(app)["show.against"] == "cost"
    assert query_of(drawn("interactivity", TWO, **{"show.against": "cost"}))["show.against"] == "requests"


def test_the_front_is_drawn_also_where_nothing_meets_the_sla(drawn: Open) -> None:
    app = drawn("interactivity", NOWHERE)
    assert text_of(app.title[0].value) == "No configuration meets this SLA"
    assert all(each["line"]["dash"] == "dot" for each in figures(app)[0]["data"] if each["line"].get("width", 0) > 2)
    assert "n" not in app.query_params


def test_the_most_under_the_sla_may_stand_behind_a_front_that_misses_it(drawn: Open) -> None:
    """At the speed that TP8 gives under this limit, TP4 gives more, with longer waits."""
    tight = replace(ONE, tps=(4, 8), ttft=Limit("ttft", 95, 0.15), itl=None)
    found = planner.plan(tight.question, *find(tight.model, tight.lengths, tight.choice))
    most = max(fleet.capacity_per_s / fleet.candidate.gpus for fleet in found.fleets)
    assert f"under this SLA: {significant(most)} with" in text_of(drawn("interactivity", tight).title[0].value)


def test_lengths_hold_the_answer_and_say_that_all_is_estimated(drawn: Open, plan: Plan) -> None:
    app = drawn("lengths", ONE)
    own = planner.plan(ONE.question, *find(ONE.model, ONE.lengths, ONE.choice)).answer.requests_per_s_per_gpu
    grid = app.main.table[0].value
    assert grid.loc[f"{ONE.isl:,}\N{NO-BREAK SPACE}in", f"{ONE.osl:,} out"] == significant(own)
    assert significant(own) in text_of(app.title[0].value) and "All estimated" in shown(app)
    assert "the formula leads to the others" in shown(app)


def test_extrapolated_lengths_are_marked(drawn: Open, store: Store) -> None:
    keep(store, [point(n) for n in LEVELS])
    grid = drawn("lengths", MEASURED).main.table[0].value
    assert grid.loc["4,000\N{NO-BREAK SPACE}in", "200 out"].endswith("(extrapolated)")
    assert "extrapolated" not in grid.loc["1,000\N{NO-BREAK SPACE}in", "200 out"]


def test_memory_is_the_parts_of_the_gpu(drawn: Open, plan: Plan) -> None:
    app = drawn("memory")
    use = memory_use(plan.answer, TWO.lengths)
    assert isinstance(use, MemoryUse)
    bars = figures(app)[0]["data"]
    assert sum(bar["x"][0] for bar in bars) == pytest.approx(use.capacity_bytes / 2**30)
    weights = next(bar for bar in bars if bar["name"] == WEIGHTS)
    assert weights["x"][0] == pytest.approx(use.of(WEIGHTS) / 2**30)


def test_memory_of_a_model_of_one_s_own_is_said_not_to_be_known(drawn: Open, store: Store) -> None:
    keep(store, [point(n) for n in LEVELS])
    app = drawn("memory", MEASURED)
    assert "is unknown" in app.title[0].value and "acme/tiny" in shown(app)


def test_open_loop_points_at_these_lengths_are_marked_and_others_are_not(drawn: Open, store: Store) -> None:
    keep(store, [point(n) for n in LEVELS])
    open_loop = {"load_kind": "poisson_rate", "load_value": 1.5, "itl_p95_s": 0.02}
    for other in ({}, {"isl": 3000}, {"tp": 2}, {"verdict": "overloaded"}):
        keep(store, [point(1, **{**open_loop, **other})])
    app = drawn("latency", replace(MEASURED, itl=Limit("itl", 95, 0.03)))
    marks = trace(figures(app)[0], "measured, open loop")
    assert (marks["x"], marks["y"]) == ([1.5], [20])
    assert "1 point measured at offered rates" in shown(app)


@pytest.mark.parametrize("chart", CHARTS)
@pytest.mark.parametrize(
    ("scenario", "parameters", "title"),
    [
        (ONE, {"ttft": "off", "itl": "off"}, "Set at least one limit"),
        (ONE, {"gpu": "any"}, "Choose a GPU or measure one"),
        (ONE, {"model": "no/such"}, "A name in this question is not known"),
    ],
)
def test_without_a_question_one_sentence_says_what_to_do(
    drawn: Open, chart: str, scenario: object, parameters: dict[str, str], title: str
) -> None:
    app = drawn(chart, scenario, **parameters)
    assert text_of(app.title[0].value) == title
    assert app.markdown and not app.get("plotly_chart")


@pytest.mark.parametrize("chart", [chart for chart in CHARTS if chart != "interactivity"])
def test_an_sla_that_nothing_meets_has_no_chart_but_its_nearest_miss(drawn: Open, chart: str) -> None:
    app = drawn(chart, NOWHERE)
    assert app.title[0].value == "No configuration meets this SLA" and "Nearest miss" in shown(app)
    assert not app.get("plotly_chart") and "n" not in app.query_params


@pytest.mark.parametrize("itl", [None, Limit("itl", 95, 0.03)])
def test_outputs_of_a_single_token_have_no_front_and_the_page_says_why(drawn: Open, itl: Limit | None) -> None:
    app = drawn("interactivity", replace(ONE, osl=1, itl=itl))
    assert not app.get("plotly_chart") and "gaps" in shown(app)


def test_a_model_that_fits_nowhere_is_said_so(drawn: Open) -> None:
    app = drawn("interactivity", replace(ONE, gpus=("l40s",), precisions=("bf16",)))
    assert not app.get("plotly_chart") and "GB more per GPU" in shown(app)


def test_a_store_that_cannot_be_read_is_named_and_the_chart_is_drawn(
    drawn: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DATABASE_VARIABLE, "nosuchdatabase://host/name")
    app = drawn("latency", ONE)
    assert DATABASE_VARIABLE in text_of(app.warning[0].value) and app.get("plotly_chart")


def test_the_loads_drawn_end_at_a_number_that_fits_its_field(drawn: Open) -> None:
    """3 × 33.3 in floating point is 99.89999999999999."""
    assert drawn("gpus", replace(TWO, rate_per_s=33.3)).number_input(key="show.to").value == 99.9
