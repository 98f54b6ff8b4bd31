"""The Size page in each of its states; its numbers are the planner's own."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable
from dataclasses import replace
from urllib.parse import parse_qsl

import pytest
from streamlit.testing.v1 import AppTest

from calibration.store import Store
from sizing import planner
from sizing import text as answer
from sizing.analyses.sensitivity import goodput_prices
from sizing.candidates import find
from sizing.deploy.formats import archive
from sizing.deploy.settings import deployment_of
from sizing.numbers import milliseconds, significant
from sizing.plans import Plan
from sizing.workload import Limit
from tests.app.conftest import ONE, keep, point, query_of, text_of
from ui import link
from ui.scenario import PRESETS
from ui.words import spelt

Open = Callable[..., AppTest]


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
    assert spelt(fleet.candidate.source) in text and "checked by simulation" in text
    numbers = metrics(app)
    assert numbers["GPUs"] == str(fleet.gpus)
    assert numbers["Requests/s per GPU"] == significant(fleet.requests_per_s_per_gpu)
    for limit in plan.question.sla.limits:
        label = f"p{limit.percentile} {limit.metric.upper()}"
        assert numbers[label] == milliseconds(fleet.predicted.value_s(limit))
    if means := answer.sizing_by_means(plan):
        assert means in text


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


@pytest.mark.parametrize("limit_s", [4, 12])
def test_a_card_has_one_unit(opened: Open, limit_s: float) -> None:
    card = opened(replace(ONE, e2e=Limit("e2e", 95, limit_s))).metric[-1]
    assert re.fullmatch(r"[\d.]+ s", card.value) and re.fullmatch(rf"[\d.]+ s under {limit_s} s", card.delta)


def test_the_url_holds_the_scenario_and_its_answer(opened: Open, plan: Plan) -> None:
    query = query_of(opened())
    assert query.items() >= link.to_query(ONE, plan.answer.gpus).items()
    assert set(query) - set(link.to_query(ONE, plan.answer.gpus)) == {"data", "show.size"}


def test_a_changed_field_answers_again_at_once_and_is_written_to_the_url(opened: Open, plan: Plan) -> None:
    app = opened()
    app.sidebar.number_input(key="rate_per_s").set_value(200.0).run()
    assert not app.exception
    assert int(metrics(app)["GPUs"]) > plan.answer.gpus
    assert query_of(app)["rate"] == "200.0"


def test_the_least_limit_is_a_number_that_can_be_read(opened: Open) -> None:
    assert str(opened().sidebar.number_input(key="ttft_limit").min) == "1e-06"


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


def test_the_working_ends_in_servers(opened: Open, plan: Plan) -> None:
    assert f"{plan.answer.gpus} GPUs in {-(-plan.answer.gpus // 8)} servers of 8" in shown(opened())
    assert f"in {plan.answer.gpus} servers of 1" in shown(opened(server="1"))


def test_a_shared_prefix_saves_gpus_and_a_peak_changes_the_cost_of_a_token_alone(opened: Open, plan: Plan) -> None:
    assert int(metrics(opened(prefix="0.9", prefix_hit="1"))["GPUs"]) < plan.answer.gpus
    per_token = re.compile(r"([\d.,]+) per million output tokens")
    mean, peak = (shown(opened(price="2", peak_factor=factor)) for factor in ("1", "2"))
    costs = [float(found[1]) for text in (mean, peak) if (found := per_token.search(text))]
    assert costs[1] == pytest.approx(2 * costs[0], rel=0.01)
    assert "2 × the mean" in peak and "× the mean" not in mean


@pytest.mark.parametrize(("kind", "key"), [("gamma", "arrivals_cv"), ("batch", "arrivals_size")])
def test_burstiness_comes_back_after_another_kind_of_arrivals(opened: Open, kind: str, key: str) -> None:
    app = opened(ttft="off", itl="off")
    for chosen in (kind, "poisson", kind):
        app.selectbox(key="arrivals").set_value(chosen).run()
        assert not app.exception
    assert app.number_input(key=key).value == 1


def test_the_export_holds_the_link_and_the_way_to_the_report(opened: Open, plan: Plan) -> None:
    app = opened()
    assert dict(parse_qsl(app.code[0].value.partition("?")[2])) == query_of(app)


def test_the_export_has_the_files_that_start_the_servers(opened: Open, plan: Plan) -> None:
    """One file for this question, of the plan that the page shows."""
    (button,) = opened().get("download_button")
    assert button.proto.label == "Deployment files (ZIP)"
    content = archive(deployment_of(answer.as_json(plan)))
    with zipfile.ZipFile(io.BytesIO(content)) as packed:
        values = packed.read("helm/values.yaml").decode()
    assert f"replicaCount: {plan.answer.replicas}\n" in values
    assert plan.question.model in values


def test_the_view_survives_another_page(opened: Open) -> None:
    app = opened(**{"show.size": "day"})
    app.switch_page("ui/pages/method.py").run()
    assert "show.size" not in app.query_params
    app.switch_page("ui/pages/size.py").run()
    assert query_of(app)["show.size"] == "day"


GOODPUT = {"ttft": "1.0s", "itl": "0.03s", "goodput": "99%"}


def test_goodput_is_asked_answered_and_told(opened: Open) -> None:
    app = opened(**GOODPUT)
    scenario, problems = link.from_query(query_of(app))
    assert not problems and scenario.goodput is not None
    fleet = planner.plan(scenario.question, *find(ONE.model, ONE.lengths, ONE.choice)).answer
    numbers = metrics(app)
    assert numbers["GPUs"] == str(fleet.gpus)
    assert numbers["99 % goodput"] == fleet.predicted.said(fleet.binding)
    assert "of the requests keep all limits" in shown(app)
    assert app.sidebar.selectbox(key="ttft_percentile").value == 0


def test_without_goodput_every_limit_has_a_percentile_again(opened: Open) -> None:
    app = opened(**GOODPUT)
    app.sidebar.toggle(key="goodput_on").set_value(False).run()
    assert not app.exception
    assert (query_of(app)["ttft"], query_of(app)["itl"]) == ("p95:1.0s", "p95:0.03s")
    assert "goodput" not in query_of(app)
    app.sidebar.toggle(key="goodput_on").set_value(True).run()
    assert query_of(app)["goodput"] == "99%" and "99 % goodput" in " ".join(metrics(app))


def test_what_goodput_and_rejections_need_is_said(opened: Open) -> None:
    alone = opened(ttft="off", itl="off", gap="p99:0.1s", goodput="99%")
    assert alone.title[0].value == "Set a limit on TTFT, ITL or E2E, which goodput needs"
    assert opened(rejected="1%").title[0].value.startswith("Set a queue limit or timeout")


def test_an_answer_with_a_queue_limit_says_that_it_is_simulated(opened: Open) -> None:
    app = opened(rejected="1%", queue_limit="16")
    assert "Rejected" in " ".join(metrics(app)) and "the answer is sized by simulation" in shown(app)


def test_the_last_per_cent_has_its_price(opened: Open, plan: Plan) -> None:
    app = opened(**{"show.size": "goodput"})
    rows = app.dataframe[0].value
    assert list(rows["Goodput"]) == ["90 %", "95 %", "99 %", "99.9 %"]
    prices = goodput_prices(plan.question, plan.answer.candidate)
    assert list(rows["GPUs"]) == [f"{price.fleet.gpus:,}" for price in prices if price.fleet]
    assert query_of(app)["show.size"] == "goodput"
    assert opened(ttft="off", itl="off", gap="p99:0.1s", **{"show.size": "goodput"}).title[0].value == (
        "Set a limit on TTFT, ITL or E2E"
    )
