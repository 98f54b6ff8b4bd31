"""The Simulate page: its run is the answer's, its settings are in the URL, and it has a word for every state."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from streamlit.testing.v1 import AppTest

from calibration.store import DATABASE_VARIABLE, Store
from sizing import planner
from sizing.analyses.inside import learned, run_in_fleet, simulated
from sizing.candidates import find
from sizing.engine import KvPolicy, Policy
from sizing.numbers import milliseconds
from sizing.plans import Plan
from sizing.simulator import Simulated
from sizing.workload import Limit
from tests.app.conftest import ONE, keep, open_query, point, query_of, text_of
from ui import link
from ui.link import quoted
from ui.scenario import Scenario
from ui.views import inside as simulating
from ui.views.inside import RunSetup, from_text, planned, to_text
from ui.words import spelt

Open = Callable[..., AppTest]


@pytest.fixture(scope="module")
def plan() -> Plan:
    """The planner's own answer to the scenario of these tests."""
    return planner.plan(ONE.question, *find(ONE.model, ONE.lengths, ONE.choice))


@pytest.fixture(scope="module")
def run(plan: Plan) -> Simulated:
    """The run that the page opens on, made without the page."""
    fleet, usual = plan.answer, simulating.USUAL_REQUESTS
    load_per_s = float(f"{fleet.load_per_s:.6g}")  # as the page's field holds it
    return simulated(run_in_fleet(plan.question, fleet.candidate.replica, load_per_s, fleet.working, usual, 0))


@pytest.fixture
def inside(opened: Open) -> Open:
    """Open the Simulate page on a scenario."""

    def open_(scenario: Scenario = ONE, **parameters: str) -> AppTest:
        return opened(scenario, page="simulate", **parameters)

    return open_


def shown(app: AppTest) -> str:
    """All text of the page, as read."""
    parts = (*app.title, *app.markdown, *app.caption, *app.warning)
    return text_of("\n".join(str(part.value) for part in parts))


def titles(app: AppTest) -> list[str]:
    return [json.loads(chart.proto.spec)["layout"]["title"]["text"] for chart in app.get("plotly_chart")]


def test_the_page_opens_on_the_run_of_the_answer_and_says_what_it_teaches(
    inside: Open, plan: Plan, run: Simulated
) -> None:
    app = inside()
    first, *others = learned(run, plan.question.sla, plan.answer.load_per_s)
    assert text_of(app.title[0].value) == first
    assert all(line in shown(app) for line in others)
    cards = {metric.label: metric.value for metric in app.metric}
    for limit in plan.question.sla.limits:
        assert cards[f"p{limit.percentile} {limit.metric.upper()}"] == milliseconds(run.prediction().value_s(limit))
    assert cards["Not served"] == f"{run.lost:,}" and ("Pauses" in cards) == bool(run.watched.pauses)
    assert "n" not in query_of(app)


@pytest.mark.parametrize(
    ("look", "charts"),
    [("time", 2), ("close", 2), ("latency", 3), ("request", 1), ("formula", 1)],
)
def test_only_what_is_looked_at_is_drawn_and_the_url_says_which(inside: Open, look: str, charts: int) -> None:
    app = inside(**{"show.inside": look})
    assert len(titles(app)) == charts and query_of(app)["show.inside"] == look
    for chart in app.get("plotly_chart"):
        assert len(chart.proto.alt) > 40
    assert app.dataframe, "the numbers behind the charts"


def test_the_formula_is_held_against_the_run_figure_by_figure(inside: Open) -> None:
    app = inside(**{"show.inside": "formula"})
    table = app.dataframe[0].value
    assert len(table) == 4 * 5 and set(table["Verdict"]) <= {"agrees", "over 10 %"}
    far = int((table["Verdict"] != "agrees").sum())
    assert ("on all 20 figures" in shown(app)) == (far == 0)


def test_settings_are_taken_together_when_run_is_pressed_and_kept_in_the_url(inside: Open) -> None:
    app = inside()
    before = text_of(app.title[0].value)
    app.number_input(key="simulate_load_per_s").set_value(100.0)
    app.number_input(key="simulate_requests").set_value(2000)
    next(button for button in app.button if button.label == "Run").click()
    app.run()
    assert not app.exception
    assert text_of(app.title[0].value) != before and text_of(app.title[0].value).startswith("No steady state")
    assert query_of(app)["show.run"] == "load=100.0;requests=2000"
    assert "latencies only reflect how long the run lasted" in shown(app)
    app.number_input(key="simulate_requests").set_value(None)
    next(button for button in app.button if button.label == "Run").click()
    app.run()
    assert not app.exception and app.number_input(key="simulate_requests").value == 2000
    again = open_query(query_of(app), "simulate")
    assert again.title[0].value == app.title[0].value and again.number_input(key="simulate_requests").value == 2000
    next(button for button in again.button if button.label.startswith("Back to the plan")).click()
    again.run()
    assert text_of(again.title[0].value) == before and "show.run" not in query_of(again)
    assert again.number_input(key="simulate_requests").value == simulating.USUAL_REQUESTS


def test_settings_follow_the_plan_where_they_were_not_changed(inside: Open, plan: Plan) -> None:
    app = inside(**{"show.run": "seed=7"})
    app.sidebar.number_input(key="rate_per_s").set_value(1.05 * ONE.rate_per_s).run()
    assert not app.exception
    assert app.number_input(key="simulate_seed").value == 7
    load_per_s = app.number_input(key="simulate_load_per_s").value
    assert load_per_s != pytest.approx(plan.answer.load_per_s)
    replicas = 1.05 * ONE.rate_per_s / load_per_s
    assert replicas == pytest.approx(round(replicas), rel=1e-5)


LOSSES = {"Not served", "Pauses"}


def test_a_full_line_turns_requests_away_and_says_how_many(inside: Open, plan: Plan) -> None:
    load = 3 * plan.answer.capacity_per_s
    app = inside(**{"show.run": f"load={load};kv_policy=max_utilization;kv=20000;line=2;requests=3000"})
    cards = {metric.label: int(metric.value.replace(",", "")) for metric in app.metric if metric.label in LOSSES}
    assert cards.keys() == LOSSES and min(cards.values()) > 0
    assert f"{cards['Not served']:,} turned away" in text_of(app.title[0].value)
    assert f"{cards['Pauses']:,} times" in shown(app)
    delta = next(metric.delta for metric in app.metric if metric.label == "p95 TTFT")
    assert "missed" in delta, "requests without an answer are not over the limit, but among those that miss it"


def test_a_run_under_a_limit_on_rejected_requests_has_the_queue_limit_of_the_plan(inside: Open) -> None:
    app = inside(replace(ONE, queue_limit=20, rejected=Limit.rejected(1)))
    assert "at most 20 waiting" in text_of(app.main.expander[0].label)
    assert "Rejected" in {metric.label for metric in app.metric}


def test_settings_of_a_link_that_cannot_be_used_are_named(inside: Open) -> None:
    app = inside(**{"show.run": "seed=x;speed=3;kv_policy=none;slots=0;arrivals=gamma:cv=101"})
    told = text_of("\n".join(part.value for part in app.warning))
    for name in ("seed=x", "speed", "kv_policy=none", "slots=0", "arrivals=gamma:cv=101"):
        assert name in told
    assert app.number_input(key="simulate_seed").value == 0


@pytest.mark.parametrize("settings", ["kv=100", "budget=16;requests=200000"])
def test_a_run_that_cannot_be_simulated_says_why(inside: Open, settings: str) -> None:
    long = replace(ONE, isl=30_000, ttft=Limit("ttft", 95, 60.0), itl=Limit("itl", 95, 1.0), rate_per_s=0.05)
    app = inside(long if "budget" in settings else ONE, **{"show.run": settings})
    assert app.title[0].value == "This run cannot be simulated"
    assert "Change the settings" in shown(app) and not app.metric


def test_another_fleet_of_the_plan_may_be_looked_into(inside: Open) -> None:
    several = replace(ONE, precisions=("fp8", "bf16"), tps=(1, 2))
    app = inside(several)
    picker = next(box for box in app.selectbox if box.key == "show.replica")
    assert len(picker.options) > 1
    picker.select_index(1).run()
    assert not app.exception
    assert spelt(query_of(app)["show.replica"]) == picker.options[1]


@pytest.mark.parametrize(
    ("scenario", "title"),
    [
        (replace(ONE, ttft=None, itl=None), "Set at least one limit"),
        (replace(ONE, itl=Limit("itl", 99, 0.0001)), "No configuration meets this SLA"),
        (replace(ONE, gpus=("l40s",), precisions=("bf16",)), "The model does not fit on these GPUs"),
        (replace(ONE, gpus=()), "Choose a GPU or measure one"),
        (replace(ONE, model="Qwen/Qwen3-33B"), "A name in this question is not known"),
    ],
)
def test_without_a_plan_the_page_says_what_to_do(inside: Open, scenario: Scenario, title: str) -> None:
    app = inside(scenario)
    assert app.title[0].value == title
    assert "the form on the left" in shown(app).lower() and not app.metric and not titles(app)
    assert "H200_sxm" not in shown(app), "a name keeps its case at the head of a sentence"


def test_a_store_that_cannot_be_reached_does_not_stop_the_page(inside: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DATABASE_VARIABLE, "nosuchdatabase://host/name")
    assert inside().metric


def test_a_measured_replica_of_unknown_memory_is_simulated(inside: Open, store: Store) -> None:
    keep(store, [point(n, model="<b>acme</b>", gpu="x*y*z") for n in (4, 16)])
    scenario = replace(ONE, model="<b>acme</b>", gpus=(), precisions=(), isl=1000, osl=200)
    app = inside(scenario)
    assert not app.exception and app.metric
    assert "tokens; size unknown" in "\n".join(metric.delta for metric in app.metric)
    raw = "\n".join(part.value for part in (*app.title, *app.markdown, *app.caption))
    assert "x*y" not in raw and "<b>" not in raw


PLAN = RunSetup(2.5, 20_000, 0, "poisson", "chunked", 256, 8192, 10**6, "guaranteed_no_evict", 0, 0.0)


@given(
    st.builds(
        RunSetup,
        load_per_s=st.floats(1e-4, 1e5),
        requests=st.integers(500, 200_000),
        seed=st.integers(0, 1_000_000),
        arrivals=st.sampled_from(["poisson", "constant", "gamma:cv=2", "batch:size=8"]),
        policy=st.sampled_from(get_args(Policy)),
        max_batch_size=st.integers(1, 4096),
        token_budget=st.integers(16, 1_000_000),
        kv_tokens=st.integers(1, 10**12),
        kv_policy=st.sampled_from(get_args(KvPolicy)),
        max_waiting=st.integers(0, 1_000_000),
        queue_timeout_s=st.floats(0, 86_400),
    )
)
def test_settings_survive_the_url(setup: RunSetup) -> None:
    assert from_text(to_text(setup, PLAN), PLAN) == (setup, [])


PARTS = st.one_of(
    st.text(max_size=30),
    st.builds("{}={}".format, st.sampled_from([*simulating.FIELDS]), st.one_of(st.text(max_size=9), st.floats())),
)


@given(st.lists(PARTS, max_size=6).map(";".join))
def test_of_any_text_in_the_url_each_part_is_taken_or_named(text: str) -> None:
    setup, problems = from_text(text, PLAN)
    parts = [part for part in text.split(";") if part]
    named = [part for part in parts if any(line.startswith(quoted(part.split("=")[0])) for line in problems)]
    taken = [part for part in parts if part.split("=")[0] in simulating.FIELDS]
    assert len(problems) <= len(parts) and set(parts) == {*named, *taken}
    assert from_text(to_text(setup, PLAN), PLAN) == (setup, [])
    if len(problems) == len(parts):
        assert setup == PLAN


def test_the_planned_settings_are_nothing_in_the_url(plan: Plan) -> None:
    usual = planned(plan.answer, plan.question)
    assert to_text(usual, usual) == ""
    assert {field.name for field in fields(RunSetup)} == {name for name, _ in simulating.FIELDS.values()}
    assert "show.run" not in link.to_query(ONE)
