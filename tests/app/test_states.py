"""The Size page in every state: what it says, what it offers, and no GPU count where there is no answer."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from streamlit.testing.v1 import AppTest

from calibration.store import DATABASE_VARIABLE, Store
from sizing import planner
from sizing.analyses.daily import gpus_by_hour
from sizing.analyses.existing import best_first
from sizing.analyses.relax import ways
from sizing.candidates import find
from sizing.numbers import milliseconds, percent, significant
from sizing.plans import Plan
from sizing.workload import Limit
from tests.app.conftest import ONE, ROOT, keep, point, query_of, text_of
from ui.scenario import DAYS, Scenario
from ui.views.traced import LOAD, edited

Open = Callable[..., AppTest]
COUNT = re.compile(r"\d+ GPUs|You need|\d+ ×")
NOWHERE = replace(ONE, itl=Limit("itl", 99, 0.0001))
TINY = replace(ONE, model="acme/tiny", gpus=(), precisions=(), isl=1000, osl=200)


@pytest.fixture(scope="module")
def plan() -> Plan:
    """The planner's own answer to the scenario of these tests."""
    return planner.plan(ONE.question, *find(ONE.model, ONE.lengths, ONE.choice))


def shown(app: AppTest) -> str:
    """All text of the main page, as read."""
    main = app.main
    parts = (*main.title, *main.markdown, *main.caption, *main.warning, *main.info, *main.expander)
    return text_of("\n".join(str(getattr(part, "value", None) or part.label) for part in parts))


def buttons(app: AppTest) -> list[str]:
    return [text_of(button.label) for button in app.main.button]


def click(app: AppTest, label: str) -> AppTest:
    next(button for button in app.main.button if text_of(button.label) == label).click().run()
    assert not app.exception
    return app


def pages_linked(app: AppTest) -> list[str]:
    return [link.proto.page for link in app.main.get("page_link")]


def assert_no_answer(app: AppTest) -> None:
    """No count anywhere on the page, nor in the link."""
    assert not app.metric and "n" not in app.query_params
    assert not COUNT.search(shown(app)), shown(app)
    assert not app.get("plotly_chart")


def test_feasible(opened: Open, plan: Plan) -> None:
    app = opened()
    assert f"You need {plan.answer.gpus} × {plan.answer.candidate.gpu}" in text_of(app.title[0].value)
    assert query_of(app)["n"] == str(plan.answer.gpus)
    assert not app.warning and not app.info


def test_an_estimate_is_marked_and_leads_to_calibrate(opened: Open) -> None:
    app = opened()
    assert app.dataframe[0].value["Basis"][0] == "Estimated"
    assert "Estimated" in shown(app) and "calibrate" in pages_linked(app)


def test_feasible_only_by_extrapolation(opened: Open, store: Store) -> None:
    keep(store, [point(n) for n in (1, 2, 4)])
    app = opened(TINY)
    assert "You need" in app.title[0].value
    banner = app.warning[0].proto
    text = text_of(app.warning[0].value)
    assert "Measure before buying" in str(banner)
    assert "1,000 input and 200 output tokens" in text and "at concurrency 1," in text
    assert "up to 4 requests at once" in text
    assert "calibrate" in pages_linked(app)


def test_measured_well_enough_needs_no_banner(opened: Open, store: Store) -> None:
    keep(store, [point(n) for n in (1, 2, 4, 8, 16, 32, 64)])
    app = opened(TINY)
    assert "Fitted" in shown(app) and not app.warning
    assert query_of(app)["data"].startswith("2026-11-20.")


def test_infeasible_names_the_nearest_miss_and_what_would_do(opened: Open) -> None:
    app = opened(NOWHERE)
    assert app.title[0].value == "No configuration meets this SLA"
    assert_no_answer(app)
    text = shown(app)
    assert "Nearest miss: h200_sxm TP1 fp8 TensorRT-LLM: misses ITL" in text.replace("*", "")
    assert "ms by formula, the limit is 0.1 ms" in text and "ms or more (by simulation)" in text
    assert "0.1 ms" in text and "1 misses the SLA" in text
    needed, _ = ways(NOWHERE.question, find(ONE.model, ONE.lengths, ONE.choice)[0])
    assert needed[0].smallest is None and "p95 TTFT:** no value is enough alone" in text
    assert needed[1].smallest and f"{milliseconds(needed[1].smallest.limit_s)} or more" in text


def test_nothing_is_announced_where_no_limit_is_enough_alone() -> None:
    def page() -> None:
        from ui.answers import Reply
        from ui.scenario import Scenario
        from ui.views.answer import show_no_fleet

        way = "p95 TTFT: no value is enough alone, because another limit fails too"
        show_no_fleet(Reply(None, "No configuration meets this SLA", "why", (), (way,)), Scenario())

    text = shown(AppTest.from_function(page).run())
    assert "no value of a single limit is enough" in text and "What the limits would have to be" not in text


def test_each_offer_of_an_infeasible_sla_leads_to_an_answer(opened: Open) -> None:
    offers = [label for label in buttons(opened(NOWHERE)) if label.startswith("Use ")]
    assert len(offers) == 2
    for offer in offers:
        app = click(opened(NOWHERE), offer)
        assert "You need" in app.title[0].value
        assert not app.warning


def test_a_narrow_choice_can_be_widened_where_it_is_infeasible(opened: Open) -> None:
    narrow = replace(ONE, itl=Limit("itl", 95, 0.010))
    app = opened(narrow)
    assert_no_answer(app)
    app = click(app, "Allow any precision, TP and engine")
    assert "You need" in app.title[0].value and query_of(app)["tp"] == "any"


@pytest.mark.parametrize(
    "changed", [{"precision": "fp7"}, {"engine": "abacus"}, {"tp": "3"}, {"routing": "least_outstanding"}]
)
def test_no_option_of_the_command_line_is_named(opened: Open, changed: dict[str, str]) -> None:
    text = shown(opened(**changed))
    assert next(iter(changed)) in text.casefold() and "--" not in text and "_outstanding" not in text


def test_a_caution_is_a_sentence(opened: Open) -> None:
    cautions = [one.value for one in opened(routing="least_outstanding").caption if ":material/warning:" in one.value]
    assert cautions and all(one.endswith(".") for one in cautions)


def test_the_reason_for_leaving_a_configuration_out_is_not_cut_by_a_grid(opened: Open) -> None:
    app = opened(NOWHERE)
    (why,) = app.main.table[0].value["Why"]
    assert text_of(why).startswith("Misses ") and "the limit is" in why and not app.main.dataframe


def test_two_limits_that_nothing_meets_are_loosened_together(opened: Open) -> None:
    strict = replace(NOWHERE, ttft=Limit("ttft", 95, 0.001))
    app = opened(strict)
    text = shown(app)
    assert "no value is enough alone" not in text and "Together:" in text and "No single limit is enough" in text
    assert_no_answer(app)
    smallest = click(app, "Use the smallest limits").title[0].value
    looser = click(opened(strict), "Use the looser limits").title[0].value
    assert "You need" in smallest and "You need" in looser
    of_smallest, of_looser = (int(title.split()[2].replace(",", "")) for title in (smallest, looser))
    assert of_looser < of_smallest


def test_a_lower_percentile_is_offered_where_it_is_kept(opened: Open) -> None:
    varied = replace(ONE, isl_cv=1.5, itl=None)
    (needed,), _ = ways(replace(varied, ttft=Limit("ttft", 99, 0.001)).question, find(*chosen(varied))[0])
    (median,), _ = ways(replace(varied, ttft=Limit("ttft", 50, 0.001)).question, find(*chosen(varied))[0])
    assert needed.smallest and median.smallest
    between = Limit("ttft", 99, round((needed.smallest.limit_s * median.smallest.limit_s) ** 0.5, 3))
    app = opened(replace(varied, ttft=between))
    assert_no_answer(app)
    lower = next(label for label in buttons(app) if re.fullmatch(r"Use p\d+", label))
    app = click(app, lower)
    assert "You need" in app.title[0].value
    assert query_of(app)["ttft"] == f"{lower.removeprefix('Use ')}:{between.limit_s!r}s"


def chosen(scenario: Scenario) -> tuple[object, ...]:
    return scenario.model, scenario.lengths, scenario.choice


def test_what_does_not_fit_says_how_much_is_lacking_and_what_fits(opened: Open) -> None:
    app = opened(replace(ONE, gpus=("l40s",), precisions=("bf16",)))
    assert app.title[0].value == "The model does not fit on these GPUs"
    assert_no_answer(app)
    text = shown(app)
    assert re.search(r"l40s TP1 bf16\*\* lacks \d+\.\d GB on each GPU", text)
    assert "l40s TP2 bf16 TensorRT-LLM or l40s TP1 fp8 TensorRT-LLM" in text
    for label in ("Use l40s TP2 bf16 TensorRT-LLM", "Use l40s TP1 fp8 TensorRT-LLM"):
        again = click(opened(replace(ONE, gpus=("l40s",), precisions=("bf16",))), label)
        assert again.title[0].value != "The model does not fit on these GPUs"


def test_a_model_too_large_for_a_server_is_sent_elsewhere(opened: Open) -> None:
    app = opened(replace(ONE, model="deepseek-ai/DeepSeek-R1", gpus=("l40s",), precisions=(), tps=(1, 2, 4, 8)))
    assert app.title[0].value == "The model does not fit on these GPUs"
    assert "TP8 PP4" in shown(app)
    assert_no_answer(app)
    offer = next(label for label in buttons(app) if label.startswith("Use "))
    assert click(app, offer).title[0].value != "The model does not fit on these GPUs"


def test_no_measurements_and_no_gpu_to_estimate(opened: Open) -> None:
    app = opened(gpu="any")
    assert app.title[0].value == "Choose a GPU or measure one"
    assert ONE.model in shown(app) and "calibrate" in pages_linked(app)
    assert_no_answer(app)


@pytest.mark.parametrize("view", ["gpus", "load", "day"])
@pytest.mark.parametrize(
    "question",
    [
        {"ttft": "off", "itl": "off"},
        {"gpu": "any", "points": "off"},
        {"gpu": "any"},
        {"osl": "1"},
        {"precision": "int4", "gpu": "b200_sxm"},
        {"tp": "3"},
        {"isl": "1000000"},
        {"model": "nobody/nothing"},
        {"itl": "p99:0.0001s"},
        {"gpu": "l40s", "precision": "bf16"},
    ],
    ids=lambda question: "_".join(question),
)
def test_a_question_without_an_answer_never_shows_a_count(opened: Open, view: str, question: dict[str, str]) -> None:
    app = opened(**{"show.size": view, **question})
    assert_no_answer(app)
    assert len(app.title) == 1


@pytest.mark.parametrize("unknown", [{"model": "Qwen/Qwen3-33B"}, {"gpu": "h200_smx"}])
def test_an_unknown_name_is_asked_about_with_the_nearest_ones_and_not_replaced(
    opened: Open, unknown: dict[str, str]
) -> None:
    app = opened(**unknown)
    assert app.title[0].value == "A name in this question is not known"
    assert next(iter(unknown.values())) in shown(app) and "did you mean" in shown(app)
    assert_no_answer(app)
    assert query_of(app).items() >= unknown.items()


def test_a_broken_link_is_told_until_something_is_edited(opened: Open) -> None:
    app = opened(rate="-3", itl="fast", nonsense="1")
    problems = text_of(app.warning[0].value)
    assert "rate=-3" in problems and "itl=fast" in problems and "nonsense" in problems
    assert query_of(app)["rate"] == repr(Scenario().rate_per_s)
    assert app.run().warning
    app.sidebar.number_input(key="spare").set_value(2).run()
    assert not app.warning


def test_a_parameter_that_comes_twice_is_told(opened: Open) -> None:
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=120)
    app.query_params["rate"] = ["5", "75"]
    app.run()
    assert not app.exception and "Repeated in the link" in text_of(app.warning[0].value)
    assert query_of(app)["rate"] == "75.0"


def test_a_link_whose_answer_was_another_tells_both_and_both_data(opened: Open, store: Store) -> None:
    keep(store, [point(n) for n in (1, 2, 4, 8, 16, 32)])
    app = opened(TINY, n="77", data="2026-01-31.00000000")
    said = app.info[0].value
    assert "77 GPUs (measured up to 2026-01-31)" in said and "today's data and program" in said
    assert f"it is {query_of(app)['n']} (measured up to 2026-11-20)" in said
    app.sidebar.number_input(key="rate_per_s").set_value(21.0).run()
    assert not app.info


def test_a_link_of_the_same_data_and_answer_is_silent_and_of_other_data_says_so(opened: Open, plan: Plan) -> None:
    first = opened()
    same = opened(**{key: query_of(first)[key] for key in ("n", "data")})
    assert not same.info and "changed" not in shown(same)
    assert "data have changed" in shown(opened(n=str(plan.answer.gpus), data="none.00000000"))
    other = opened(n=str(plan.answer.gpus + 5), data=query_of(first)["data"])
    assert "with today's program" in other.info[0].value


def test_a_link_whose_answer_is_gone_does_not_repeat_the_count(opened: Open) -> None:
    app = opened(NOWHERE, n="77")
    assert "there is none" in app.info[0].value and "77" not in shown(app)


def test_a_store_that_is_down_is_told_in_one_line_without_its_password(
    opened: Open, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DATABASE_VARIABLE, "postgresql://me:topsecret@127.0.0.1:1/points")
    app = opened()
    assert len(app.warning) == 1 and "topsecret" not in shown(app)
    assert DATABASE_VARIABLE in text_of(app.warning[0].value) and "\n" not in app.warning[0].value
    assert f"You need {plan.answer.gpus}" in app.title[0].value


def test_gpus_that_exist_serve_what_the_planner_says(opened: Open) -> None:
    app = opened(**{"show.size": "load", "have": "5"})
    found, _ = best_first(ONE.question, find(*chosen(ONE))[0], 5)
    rate = significant(found[0].rate_per_s)
    assert text_of(app.title[0].value) == f"5 × h200_sxm serve {rate} requests/s of {ONE.model}"
    text = shown(app)
    assert "5 GPUs ÷ 1 per replica" in text and f"= {rate} requests/s" in text and "90 % band" in text
    assert {metric.label for metric in app.metric} >= {"Requests/s", "Requests/s per GPU"}
    assert "n" not in app.query_params and query_of(app)["have"] == "5"
    told = next(card for card in app.metric if card.label == "Requests/s")
    assert "fails" in told.delta and "fails" not in told.help  # it said so of the planned load


def test_the_number_of_gpus_is_kept_in_the_link_and_over_pages(opened: Open) -> None:
    app = opened(**{"show.size": "load"})
    app.main.number_input(key="fleet_gpus").set_value(7).run()
    assert query_of(app)["have"] == "7" and "7 ×" in text_of(app.title[0].value)
    app.switch_page("ui/pages/method.py").run()
    assert query_of(app)["have"] == "7"
    app.switch_page("ui/pages/size.py").run()
    assert app.main.number_input(key="fleet_gpus").value == 7


def test_one_gpu_is_counted_as_one(opened: Open) -> None:
    app = opened(spare="0", have="1", **{"show.size": "load"})
    assert "1 GPU ÷ 1 per replica (TP1, fp8) = 1 replica × " in shown(app)
    assert "1 GPU is too few" in shown(opened(spare="1", have="1", **{"show.size": "load"}))


def test_too_few_gpus_for_a_replica_and_its_spares_serve_nothing(opened: Open) -> None:
    app = opened(replace(ONE, tps=(4,)), **{"show.size": "load", "have": "7"})
    assert app.title[0].value == "These GPUs are too few"
    assert "a replica of 4 and 1 spare need 8" in shown(app)
    assert not app.metric
    assert all("Measure" not in link.proto.label for link in app.get("page_link"))  # more GPUs help, no measurement


def test_an_sla_that_nothing_meets_gives_gpus_that_exist_no_rate(opened: Open) -> None:
    app = opened(NOWHERE, **{"show.size": "load"})
    assert app.title[0].value == "No configuration meets this SLA"
    assert_no_answer(app)
    assert "requests/s" not in shown(app)


def test_a_day_follows_the_load_hour_by_hour(opened: Open, plan: Plan) -> None:
    day = DAYS["Evening peak"]
    app = opened(replace(ONE, day=day), **{"show.size": "day"})
    daily = gpus_by_hour(plan.question, plan.answer, [ONE.rate_per_s * load / 100 for load in day])
    numbers = {metric.label: metric.value for metric in app.metric}
    assert numbers["GPU-hours a day"] == f"{daily.gpu_hours:,}" and numbers["Saved"] == percent(daily.saved)
    assert numbers["GPUs at the peak"] == str(plan.answer.gpus) == query_of(app)["n"]
    table = app.main.expander[0].dataframe[0].value
    assert list(table["GPUs"]) == [hour.gpus for hour in daily.hours]
    assert f"{daily.gpu_hours:,} GPU-hours" in app.get("plotly_chart")[0].proto.alt


def test_a_flat_day_saves_nothing(opened: Open) -> None:
    app = opened(**{"show.size": "day"})
    app.main.button_group(key="day_shape").set_value("Flat").run()
    assert not app.exception
    assert {metric.label: metric.value for metric in app.metric}["Saved"] == "0 %"
    assert query_of(app)["day"] == ",".join(["100"] * 24)


@pytest.mark.parametrize("change", [-1, 101, None, "x", float("nan")])
def test_a_change_that_is_no_load_leaves_the_day_as_it_was(change: object) -> None:
    day = DAYS["Flat"]
    assert edited(day, {3: {LOAD: change}}) == day


def test_a_day_without_any_load_is_not_taken() -> None:
    day = (0.0,) * 23 + (50.0,)
    assert edited(day, {23: {LOAD: 0}}) == day
    assert edited(day, {0: {LOAD: 25}}) == (25.0, *day[1:])


def test_what_a_link_does_not_say_of_the_view_is_as_usual() -> None:
    """Values that are usual are not in links: a newer one must not outlive the browser's Back."""

    def page() -> None:
        import streamlit as st

        from ui.visit import fill_view

        st.session_state["show.users"], st.session_state["other"] = "900", "kept"
        fill_view({"show.to": "60", "rate": "5"})

    state = AppTest.from_function(page).run().session_state
    assert "show.users" not in state and "rate" not in state
    assert (state["show.to"], state["other"]) == ("60", "kept")
