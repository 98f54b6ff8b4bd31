"""The Size page in each of its states; its numbers are the planner's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from streamlit.testing.v1 import AppTest

from calibration.store import Store
from sizing import answer, planner
from sizing.candidates import find
from sizing.numbers import milliseconds, significant
from sizing.plan import Plan
from sizing.workload import Limit
from tests.app.conftest import ONE, keep, point, query_of, text_of
from ui import link
from ui.scenario import PRESETS, Scenario

Open = Callable[..., AppTest]
NOWHERE = replace(ONE, itl=Limit("itl", 99, 0.0001))


@pytest.fixture(scope="module")
def plan() -> Plan:
    """The planner's own answer to the scenario of these tests."""
    return planner.plan(ONE.question, *find(ONE.model, ONE.lengths, ONE.choice))


def metrics(app: AppTest) -> dict[str, str]:
    return {metric.label: metric.value for metric in app.metric}


def shown(app: AppTest) -> str:
    """All text of the main page, as read."""
    parts = (*app.title, *app.markdown, *app.caption, *app.warning, *app.info, *app.expander)
    return text_of("\n".join(str(getattr(part, "value", None) or part.label) for part in parts))


def test_the_answer_in_words_and_numbers_is_the_planner_s(opened: Open, plan: Plan) -> None:
    app = opened()
    fleet = plan.answer
    assert text_of(app.title[0].value) == answer.sentence(plan)
    text = shown(app)
    for line in (answer.working(plan), answer.binding(fleet), answer.sensitivity(plan), answer.band(fleet)):
        assert line in text
    assert fleet.candidate.source in text and "checked by simulation" in text
    numbers = metrics(app)
    assert numbers["GPUs"] == str(fleet.gpus)
    assert numbers["Requests/s per GPU"] == significant(fleet.requests_per_s_per_gpu)
    for limit in plan.question.sla.limits:
        label = next(label for label in numbers if label.startswith(f"p{limit.percentile} {limit.metric.upper()}"))
        assert numbers[label] == milliseconds(fleet.predicted.value_s(limit))
        assert ("binds" in label) == (limit == fleet.binding)
    if plan.mean_based:
        assert plan.mean_based.text in text


def test_the_table_has_one_row_for_each_fleet(opened: Open, plan: Plan) -> None:
    table = opened().dataframe[0].value
    assert list(table["GPUs"]) == [fleet.gpus for fleet in plan.fleets]
    assert list(table["Requests/s per GPU"]) == [fleet.requests_per_s_per_gpu for fleet in plan.fleets]
    assert list(table["Basis"]) == [fleet.basis.capitalize() for fleet in plan.fleets]


def test_each_limit_has_its_chart_and_the_chart_says_what_it_shows(opened: Open, plan: Plan) -> None:
    charts = opened().get("plotly_chart")
    assert len(charts) == len(plan.question.sla.limits)
    for chart, limit in zip(charts, plan.question.sla.limits, strict=True):
        assert milliseconds(plan.answer.predicted.value_s(limit)) in chart.proto.alt
        assert significant(plan.answer.capacity_per_s) in chart.proto.alt


def test_the_url_holds_the_scenario_and_its_answer(opened: Open, plan: Plan) -> None:
    assert query_of(opened()) == link.to_query(ONE, plan.answer.gpus)


def test_a_changed_field_answers_again_at_once_and_is_written_to_the_url(opened: Open, plan: Plan) -> None:
    app = opened()
    app.sidebar.number_input(key="rate_per_s").set_value(200.0).run()
    assert not app.exception
    assert int(metrics(app)["GPUs"]) > plan.answer.gpus
    assert query_of(app)["rate"] == "200.0"


def test_a_preset_fills_in_lengths_and_limits(opened: Open) -> None:
    app = opened()
    app.sidebar.button_group(key="preset").set_value("Code").run()
    assert not app.exception
    scenario, problems = link.from_query(query_of(app))
    assert PRESETS["Code"].matches(scenario) and not problems
    assert scenario.gpus == ONE.gpus
    assert app.sidebar.number_input(key="isl").value == PRESETS["Code"].isl


def test_users_become_requests_per_second(opened: Open) -> None:
    app = opened()
    app.number_input(key="users").set_value(600).run()
    app.number_input(key="per_user").set_value(3.0).run()
    next(button for button in app.button if button.label == "Use 30 requests/s").click().run()
    assert app.sidebar.number_input(key="rate_per_s").value == 30.0


def test_an_sla_that_nothing_meets_names_the_nearest_miss_and_no_count(opened: Open) -> None:
    app = opened(NOWHERE)
    assert app.title[0].value == "No configuration meets this SLA"
    assert "Nearest miss" in shown(app) and "0.1 ms" in shown(app)
    assert not app.metric and "n" not in app.query_params
    assert "1 misses the SLA" in shown(app)
    assert len(app.dataframe[0].value) == 1


def test_a_model_that_does_not_fit_says_how_much_is_missing(opened: Open) -> None:
    app = opened(replace(ONE, gpus=("l40s",), precisions=("bf16",)))
    assert app.title[0].value == "The model does not fit on these GPUs"
    assert "GB more per GPU" in shown(app)
    assert not app.metric


@pytest.mark.parametrize("unknown", [{"model": "Qwen/Qwen3-33B"}, {"gpu": "h200_smx"}])
def test_an_unknown_name_is_shown_with_the_nearest_ones_and_not_replaced(opened: Open, unknown: dict[str, str]) -> None:
    app = opened(**unknown)
    assert app.title[0].value == "A name in this question is not known"
    assert next(iter(unknown.values())) in shown(app) and "did you mean" in shown(app)
    assert not app.metric
    assert query_of(app).items() >= unknown.items()


def test_bad_values_of_a_link_are_named_until_something_is_edited(opened: Open) -> None:
    app = opened(rate="-3", itl="fast")
    problems = text_of(app.warning[0].value)
    assert "rate=-3" in problems and "itl=fast" in problems
    assert query_of(app)["rate"] == repr(Scenario().rate_per_s)
    app.sidebar.number_input(key="spare").set_value(2).run()
    assert not app.warning


def test_a_link_made_when_the_answer_was_another_says_so(opened: Open, plan: Plan) -> None:
    app = opened(n=str(plan.answer.gpus + 5))
    assert str(plan.answer.gpus + 5) in app.info[0].value and str(plan.answer.gpus) in app.info[0].value
    assert not opened(n=str(plan.answer.gpus)).info


def test_without_a_limit_or_without_a_gpu_there_is_no_question(opened: Open) -> None:
    assert opened(ttft="off", itl="off").title[0].value == "Set at least one limit"
    assert opened(gpu="any", points="off").title[0].value == "Choose at least one GPU"
    assert opened(gpu="any").title[0].value == "Choose a GPU or measure one"


def test_measured_points_come_before_estimates(opened: Open, store: Store) -> None:
    keep(store, [point(n, model=ONE.model, gpu="h200_sxm") for n in (1, 2, 4, 8, 16, 32)])
    scenario = replace(ONE, isl=1000, osl=200)
    measured, estimated = opened(scenario), opened(scenario, points="off")
    assert measured.dataframe[0].value["Basis"][0] in ("Fitted", "Extrapolated")
    assert estimated.dataframe[0].value["Basis"][0] == "Estimated"


def test_a_price_adds_the_cost(opened: Open, plan: Plan) -> None:
    app = opened(price="2.5")
    assert list(app.dataframe[0].value["Cost per hour"]) == [2.5 * plan.answer.gpus]


def test_markup_in_a_name_is_shown_as_text(opened: Open) -> None:
    name = "<img src=x onerror=alert(1)> **bold** [a](http://b) $x$ :red[c]"
    app = opened(model=name)
    shown_raw = "\n".join(part.value for part in (*app.title, *app.markdown, *app.caption))
    assert not app.exception
    assert name in text_of(shown_raw)
    for live, escaped in (("<img", "\\<img"), ("**bold", "\\*\\*bold"), ("[a]", "\\[a\\]"), (":red[", "\\:red\\[")):
        assert escaped in shown_raw and live not in shown_raw.replace(escaped, "")
