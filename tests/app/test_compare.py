"""The Compare page: the planner's own numbers row by row, picks that live in the URL, and each state without a plan."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as some
from streamlit.testing.v1 import AppTest

from calibration.store import DATABASE_VARIABLE, Store
from sizing import planner
from sizing.analyses.curves import versus
from sizing.analyses.pools import Pools, pools_of
from sizing.candidates import find
from sizing.catalog import Layout
from sizing.numbers import gpus, significant
from sizing.plans import Plan, Rejection, cost_of
from sizing.workload import Limit
from tests.app.conftest import ONE, keep, point, query_of, text_of
from ui.answers import named
from ui.views import compare
from ui.words import WAYS_OUT, spelt

Open = Callable[..., AppTest]
SOME = replace(ONE, gpus=("h200_sxm", "h100_sxm"), precisions=("fp8",), tps=(1, 2), price_per_gpu_hour=2.5)
NOWHERE = replace(ONE, itl=Limit("itl", 99, 0.0001))


@pytest.fixture(scope="module")
def plan() -> Plan:
    """The planner's own answer to the scenario of these tests."""
    return planner.plan(SOME.question, *find(SOME.model, SOME.lengths, SOME.choice))


@pytest.fixture
def compared(opened: Open) -> Open:
    """Open the Compare page."""

    def open_(*scenario: object, **parameters: str) -> AppTest:
        return opened(*scenario, page="compare", **parameters)

    return open_


def shown(app: AppTest) -> str:
    """All text of the main page, as read."""
    parts = (*app.title, *app.markdown, *app.caption, *app.warning, *app.expander)
    return text_of("\n".join(str(getattr(part, "value", None) or part.label) for part in parts))


def picked(app: AppTest) -> list[str]:
    return list(app.multiselect(key=compare.LIST).value)


def press(app: AppTest, label: str) -> AppTest:
    app = next(button for button in app.button if text_of(button.label) == label).click().run()
    assert not app.exception
    return app


def test_every_fleet_has_its_row_in_the_order_of_the_plan(compared: Open) -> None:
    tied = replace(SOME, precisions=("fp8", "fp8_block"), rate_per_s=10.0)
    plan = planner.plan(tied.question, *find(tied.model, tied.lengths, tied.choice))
    assert len({fleet.gpus for fleet in plan.fleets}) < len(plan.fleets)
    rows = compared(tied).dataframe[0].value
    fleets = plan.fleets
    assert list(rows["GPUs"]) == [fleet.gpus for fleet in fleets]
    assert list(rows["GPU"]) == [fleet.candidate.gpu for fleet in fleets]
    assert list(rows["Requests/s per GPU"]) == [fleet.requests_per_s_per_gpu for fleet in fleets]
    assert list(rows[compare.ROOM]) == pytest.approx([100 * fleet.room for fleet in fleets])
    # Of requests turned away 4 % use up four fifths of the 5 % that p95 leaves, however fast the others are.
    turning_away = replace(fleets[0], predicted=replace(fleets[0].predicted, rejected=0.04))
    assert turning_away.room == pytest.approx(min(fleets[0].room, 0.2))
    costs = [cost_of(plan.question, fleet) for fleet in fleets]
    assert list(rows[compare.PER_HOUR]) == [cost.per_hour for cost in costs if cost]
    assert all(len(curve) > 2 for curve in rows[compare.CURVE])


def test_a_curve_that_leaves_its_axis_ends_at_the_top_of_it(compared: Open) -> None:
    late = replace(SOME, tps=(1,), ttft=Limit("ttft", 95, 3.0), itl=None)  # of no queue to that of an overload at once
    curves = compared(late).dataframe[0].value[compare.CURVE]
    assert all(min(curve) < 0.1 and max(curve) == compare.MOST_USE for curve in curves)


def test_the_usual_pick_is_the_answer_and_the_best_of_another_gpu_and_is_in_the_url(compared: Open, plan: Plan) -> None:
    app = compared(SOME)
    names = picked(app)
    fleets = named(plan.fleets)
    assert fleets[names[0]] is plan.answer
    assert fleets[names[1]].candidate.gpu != plan.answer.candidate.gpu
    assert query_of(app)["show.pick"] == compare.written(names)
    side = app.table[0].value
    assert [text.strip("*") for text in side.loc["GPUs"]] == [f"{fleets[name].gpus:,}" for name in names]
    assert spelt(versus(plan.question, *(fleets[name] for name in names))) in shown(app)


def test_a_link_opens_on_its_picks_and_the_list_changes_them(compared: Open, plan: Plan) -> None:
    names = list(named(plan.fleets))
    app = compared(SOME, **{"show.pick": compare.written([names[2], names[1], "no such thing"])})
    assert picked(app) == [names[2], names[1]]
    app.multiselect(key=compare.LIST).set_value([names[1], names[0], names[2]]).run()
    assert not app.exception
    assert query_of(app)["show.pick"] == compare.written([names[1], names[0], names[2]])
    assert shown(app).count(" the GPUs of ") + shown(app).count("needs as many GPUs as") == 2
    app.multiselect(key=compare.LIST).set_value([]).run()
    assert not app.exception and not app.table
    assert "Pick two to four" in shown(app)


def test_using_a_configuration_narrows_the_form_and_it_can_be_opened_again(compared: Open, plan: Plan) -> None:
    app = compared(SOME)
    other = named(plan.fleets)[picked(app)[1]].candidate
    app = press(app, f"Use {spelt(other.label)}")
    query = query_of(app)
    assert (query["gpu"], query["tp"], query["precision"]) == (other.gpu, str(other.layout.tp), other.precision)
    assert len(app.dataframe[0].value) == 1 and app.title[0].value.startswith("One configuration meets")
    app = press(app, "Compare every layout, precision and engine")
    assert query_of(app)["tp"] == "any" and len(app.dataframe[0].value) > 1


def test_costs_can_be_hidden_and_without_a_price_it_is_said_how_to_see_them(compared: Open) -> None:
    assert compare.PER_HOUR not in compared(SOME, **{"show.cost": "off"}).dataframe[0].value
    unpriced = compared(replace(SOME, price_per_gpu_hour=None))
    assert compare.PER_HOUR not in unpriced.dataframe[0].value and "Enter a price" in shown(unpriced)


def test_two_pools_are_shown_beside_the_one_fleet(compared: Open, plan: Plan) -> None:
    """Where they are asked for: the counts of the planner, memory by role, and what they rest on."""
    assert "Disaggregated prefill and decode:" not in shown(compared(SOME))
    app = compared(SOME, **{"show.pools": "on"})
    text = shown(app)
    pools = pools_of(plan.question, find(SOME.model, SOME.lengths, SOME.choice)[0])
    assert isinstance(pools, Pools)
    assert (
        f"Disaggregated prefill and decode: {gpus(pools.gpus)}" in text
        and f"in one fleet {gpus(plan.answer.gpus)}" in text
    )
    for role, fleet in (("Prefill", pools.prefill), ("Decode", pools.decode)):
        assert f"{role}: {spelt(fleet.candidate.source)}" in text
    roles = next(table.value for table in app.table if list(table.value.index) == ["Prefill", "Decode"])
    assert {"Weights (GiB)", "KV cache in use (GiB)"} <= set(roles.columns) and "no other traffic" in text


def test_the_matrix_has_a_cell_for_every_configuration(compared: Open, plan: Plan) -> None:
    matrix = compared(SOME, **{"show.view": "matrix"}).table[0].value
    assert {text_of(name) for name in matrix.index} == {"h200_sxm fp8 TensorRT-LLM", "h100_sxm fp8 TensorRT-LLM"}
    for fleet in plan.fleets:
        row = next(name for name in matrix.index if fleet.candidate.gpu in text_of(name))
        assert f"**{fleet.gpus:,}**" in matrix.loc[row, gpus(fleet.candidate.gpus)]


def test_what_was_left_out_is_grouped_by_reason(compared: Open) -> None:
    app = compared(replace(SOME, gpus=("h200_sxm", "l40s"), precisions=("bf16",)))
    folds = [fold for fold in app.expander if fold.label.startswith("Left out")]
    memory = next(fold for fold in folds if "fit in memory" in fold.label)
    left_out = memory.table[0].value
    assert all("GB more per GPU" in why for why in left_out["Why"])
    assert f"{len(left_out)} do" in memory.label
    assert all(text_of(one).startswith("l40s TP") for one in left_out["Configuration"])


def test_the_file_has_every_configuration_and_no_formula(plan: Plan) -> None:
    nasty = replace(plan.answer.candidate, source='=HYPERLINK("http://x")')
    missed = Rejection("l40s", Layout(1), "bf16", "memory", "too large", engine="vllm")
    changed = replace(plan, fleets=(replace(plan.answer, candidate=nasty), *plan.fleets[1:]), rejected=(missed,))
    rows = list(csv.DictReader(io.StringIO(compare.as_csv(changed, named(changed.fleets)))))
    assert len(rows) == len(plan.fleets) + 1
    assert rows[0]["Source"] == '\'=HYPERLINK("http://x")'
    assert [int(float(row["GPUs"])) for row in rows if row["GPUs"]] == [f.gpus for f in named(changed.fleets).values()]
    assert [row["Engine"] for row in rows] == [f.candidate.engine for f in named(changed.fleets).values()] + ["vllm"]


def test_shares_have_no_seconds_in_the_file() -> None:
    asked = replace(ONE, goodput=Limit.goodput(99), rejected=Limit.rejected(1), queue_limit=100)
    found = planner.plan(asked.question, *find(ONE.model, ONE.lengths, ONE.choice))
    columns = csv.DictReader(io.StringIO(compare.as_csv(found, named(found.fleets)))).fieldnames or ()
    assert {"p95 TTFT (s)", "99 % goodput (share of the limits)", "Rejected (share)"} <= set(columns)


@pytest.mark.parametrize(
    ("scenario", "parameters", "title"),
    [
        (NOWHERE, {}, "No configuration meets this SLA"),
        (replace(ONE, gpus=("l40s",), precisions=("bf16",)), {}, "The model does not fit on these GPUs"),
        (ONE, {"ttft": "off", "itl": "off"}, "Set at least one limit"),
        (ONE, {"gpu": "any"}, "Choose a GPU or measure one"),
        (ONE, {"model": "no/such"}, "A name in this question is not known"),
    ],
)
def test_without_a_plan_one_sentence_says_what_to_do_and_there_is_no_count(
    compared: Open, scenario: object, parameters: dict[str, str], title: str
) -> None:
    app = compared(scenario, **parameters)
    assert text_of(app.title[0].value) == title
    assert app.markdown and not app.metric
    links = [link.proto.label for link in app.main.get("page_link")]
    assert links == ([] if title.startswith("Set") else [WAYS_OUT])
    assert all([*table.value] == ["Configuration", "Why"] for table in app.table)
    assert "n" not in app.query_params


def test_a_store_that_cannot_be_read_is_named_and_the_page_goes_on(
    compared: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DATABASE_VARIABLE, "nosuchdatabase://host/name")
    app = compared(ONE)
    assert DATABASE_VARIABLE in text_of(app.warning[0].value) and len(app.dataframe[0].value) == 1


def test_two_engines_on_one_gpu_are_told_apart(compared: Open, store: Store) -> None:
    levels = (1, 2, 4, 8, 16, 32)
    keep(store, [point(n) for n in levels])
    keep(store, [point(n, engine="vLLM", requests_per_s=0.9 * point(n).requests_per_s) for n in levels])
    scenario = replace(
        ONE, model="acme/tiny", gpus=(), precisions=(), tps=(), engines=(), isl=1000, osl=200, ttft=None, rate_per_s=1.0
    )
    app = compared(scenario)
    names = app.multiselect(key=compare.LIST).options
    assert len(names) == len(set(names)) == len(app.dataframe[0].value) == 2
    assert any("vLLM" in name for name in names)
    assert "vLLM" in [*app.dataframe[0].value["Engine"]]


@given(some.lists(some.text(min_size=1), max_size=4))
def test_picks_survive_their_url(names: list[str]) -> None:
    assert compare.read(compare.written(names)) == names


def test_the_best_of_a_row_is_marked_only_where_values_differ(compared: Open, plan: Plan) -> None:
    side = compared(SOME).table[0].value
    fewest = min(int(text.strip("*").replace(",", "")) for text in side.loc["GPUs"])
    assert f"**{fewest:,}**" in list(side.loc["GPUs"]) or len(set(side.loc["GPUs"])) == 1
    per_hour = [significant(float(text.replace(",", ""))) for text in side.loc[compare.PER_HOUR]]
    assert per_hour == list(side.loc[compare.PER_HOUR])
