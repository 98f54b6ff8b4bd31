"""Users and agents on the Size page: the form, the answer beside the command's, presets, and what a link carries."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime

import pytest
from click.testing import CliRunner
from streamlit.testing.v1 import AppTest

from calibration.store import DATABASE_VARIABLE
from sizing.analyses import session_plan
from sizing.analyses.session_plan import SessionPlan
from sizing.cli import cli
from sizing.text import SESSION_ROUTING, sentence, sessions_lines
from sizing.workload import Limit
from tests.app.conftest import ONE, ROOT, open_query, query_of, text_of
from tests.sizing.test_session_plan import ShorterRuns
from ui import answers, computing, link
from ui.charts.base import DARK, LIGHT
from ui.charts.traced import hit_rate_over_load, later_ttft_over_load
from ui.scenario import CHATS, PRESETS, TASKS
from ui.values import SESSION_FIELDS
from ui.views.sessions import IN_PLACE, NUMBERS, json_of
from ui.visit import Visit

Open = Callable[..., AppTest]
TO_SESSIONS = {"show.size": "sessions"}
FEW = {**TO_SESSIONS, "show.users": "50", "show.later_ttft_ms": "500"}


@pytest.fixture(scope="module", autouse=True)
def shorter_runs() -> Iterator[None]:
    """A tenth of the turns, on the page and on the command line: the page shows what was simulated, however long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session_plan, "SessionRuns", ShorterRuns)
        patch.setattr(session_plan, "CURVE_TURNS", session_plan.CURVE_TURNS // 10)
        yield


def found_by(app: AppTest) -> SessionPlan:
    """The last answer of the visit."""
    visit: Visit = app.session_state["visit"]
    found: answers.Reply[SessionPlan] = list(visit.session_answers.values())[-1]
    assert found.found is not None
    return found.found


def shown(app: AppTest) -> str:
    """All text of the main page, as read."""
    parts = (*app.main.title, *app.main.markdown, *app.main.caption, *app.main.error)
    return text_of("\n".join(str(part.value) for part in parts))


def plan(app: AppTest) -> None:
    """Press the button of the form."""
    next(button for button in app.main.button if button.label == "Plan for these sessions").click().run()
    assert not app.exception


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AppTest]:
    """The page opened on few users, for tests that only look at it."""
    folder = tmp_path_factory.mktemp("few")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(DATABASE_VARIABLE, f"sqlite:///{folder / 'calibration.db'}")
        patch.setattr(computing, "SHIPPED", folder)
        yield open_query({**link.to_query(ONE), **FEW})


@pytest.fixture(scope="module")
def by_command() -> dict[str, object]:
    """What the command line answers to what the form opens on, with 50 users and a limit on later turns."""
    choice = ["--model", ONE.model, "--gpu", "h200_sxm", "--precision", "fp8", "--tp", "1", "--engine", "trtllm"]
    shape = [
        *("--users", "50", "--turns", "3.5", "--first-tokens", "296", "--user-tokens", "296", "--output-tokens", "441"),
        *("--first-cv", "1", "--user-cv", "1", "--output-cv", "0.7", "--think", "100s", "--system-tokens", "500"),
    ]
    limits = ["--ttft", "p95:1s", "--itl", "p95:30ms", "--later-ttft", "p95:500ms"]
    done = CliRunner().invoke(cli, ["plan", *choice, *shape, *limits, "--json"])
    assert done.exit_code == 0, done.output
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def test_the_answer_is_that_of_the_command_line(few: AppTest, by_command: dict[str, object]) -> None:
    found = found_by(few)
    assert text_of(few.title[0].value) == by_command["sentence"] == sentence(found.plan)
    numbers = {metric.label: metric.value for metric in few.metric}
    assert numbers["GPUs"] == str(by_command["gpus"])
    whole_s = found.seen.predicted.parts["session"].p95_s
    assert whole_s > 600 and numbers["p95 time of a session"] == f"{whole_s:,.0f} s"  # as in every sentence
    assert {"p95 TTFT of later turns", "Found in the cache", "GPUs per 100 sessions"} <= numbers.keys()
    for line in sessions_lines(found):
        assert line in shown(few)
    assert IN_PLACE in shown(few)
    whole = json.loads(json_of(found))
    assert whole.keys() <= by_command.keys() and whole["sessions"] == by_command["sessions"]
    assert whole["report"]["sessions"] == by_command["report"]["sessions"]  # type: ignore[index]
    assert datetime.fromisoformat(whole["report"]["made_at"])


def test_a_link_carries_the_sessions(opened: Open) -> None:
    view = {**FEW, "show.turns": "2", "show.think_s": "10", "show.session_routing": "random", "show.percentile": "99"}
    app = opened(**view)
    assert query_of(app).items() >= view.items() and "n" not in query_of(app)
    load = found_by(app).load
    assert (load.users, load.routing, load.sessions.turns, load.sessions.think_s) == (50, "random", 2.0, 10.0)
    assert [limit.percentile for limit in found_by(app).plan.question.sla.limits] == [95, 99, 95]
    usual = {f"show.{name}" for name in NUMBERS} - set(view)
    assert not usual & set(query_of(app))


def test_the_form_plans_when_its_button_is_pressed(opened: Open, few: AppTest) -> None:
    app = opened(replace(ONE, ttft=None, itl=None), **TO_SESSIONS)  # without a limit nothing is planned yet
    app.main.number_input(key="show.later_ttft_ms").set_value(500.0)
    app.main.number_input(key="show.users").set_value(400.0)
    plan(app)
    assert found_by(app).plan.answer.working > found_by(few).plan.answer.working
    assert query_of(app)["show.users"] == "400"
    app.main.button_group(key="show.many").set_value("rate").run()
    assert not app.exception
    assert found_by(app).load.users is None and "to start 1 session/s" in text_of(app.title[0].value)


@pytest.mark.parametrize(
    "view",
    [
        {"show.users": "nan", "show.turns": "many", "show.turn_law": "zeta"},
        {"show.users": "-1", "show.session_routing": "none", "show.first_ttft_ms": "soon"},
    ],
)
def test_what_nobody_can_choose_is_as_usual(opened: Open, view: dict[str, str]) -> None:
    app = opened(**(FEW | view))
    assert "You need" in app.title[0].value
    for key, value in view.items():
        assert query_of(app).get(key) != value


def test_presets_bring_sessions_of_their_kind(opened: Open) -> None:
    app = opened(replace(ONE, ttft=None, itl=None), **(FEW | {"show.later_ttft_ms": "", "show.users": "10"}))
    app.sidebar.pills(key="preset").set_value("Agent").run()
    assert not app.exception
    assert {name: app.session_state[f"show.{name}"] for name in SESSION_FIELDS} == {
        name: getattr(TASKS, name) for name in SESSION_FIELDS
    }
    assert query_of(app)["show.turns"] == "31"
    assert "on average, not 31" in shown(app)  # the model's context is full before
    app.sidebar.pills(key="preset").set_value("Chat").run()
    assert found_by(app).load.sessions == replace(CHATS, context_tokens=40_960)


def test_every_preset_says_where_it_is_from() -> None:
    assert set(PRESETS) == {"Chat", "RAG", "Summarise", "Code", "Agent", "Reasoning"}
    for name, preset in PRESETS.items():
        assert "ssumption" in preset.source, name
        assert "https://" in preset.source or "assumptions throughout" in preset.source, name
    documented = (ROOT / "docs" / "app.md").read_text(encoding="utf-8")
    for preset in PRESETS.values():
        for address in (word.strip("(),.;") for word in preset.source.split() if "https://" in word):
            assert address in documented


def test_routings_have_one_name_and_the_table_below_them_has_a_heading(few: AppTest) -> None:
    offered = next(box for box in few.main.selectbox if box.label == "Routing of turns").options
    assert [name.casefold() for name in offered] == list(SESSION_ROUTING.values())
    assert "**Configurations that meet the SLA**" in [text.value for text in few.main.markdown]


def test_charts_end_at_the_cliff(few: AppTest) -> None:
    found = found_by(few)
    for ink in (LIGHT, DARK):
        hits, ttft = hit_rate_over_load(found, ink), later_ttft_over_load(found, ink)
        steady = [seen for seen in found.curve if not seen.saturated]
        assert list(hits.figure.data[0].y) == [100 * seen.hit_rate for seen in steady]
        assert list(ttft.figure.data[0].x) == [seen.in_flight for seen in steady]
        assert "crowd each other out" in hits.alt and "at the planned load" in ttft.alt


def test_no_fleet_is_told_without_a_count(opened: Open) -> None:
    app = opened(replace(ONE, itl=Limit("itl", 99, 0.0001)), **FEW)
    assert app.title[0].value == "No configuration meets this SLA"
    assert not app.metric and "You need" not in shown(app) and "Nearest miss" in shown(app)
    assert "instead of 0.1 ms" in shown(app), shown(app)
    assert "these changes do" not in shown(app)  # a line may say that no change of a limit is enough alone


def test_goodput_does_not_count_and_its_limits_have_their_usual_percentile(opened: Open, few: AppTest) -> None:
    shares = {"goodput": Limit.goodput(99), "rejected": Limit.rejected(1), "queue_limit": 10, "queue_timeout_s": 1.0}
    app = opened(replace(ONE, ttft=Limit("ttft", 0, 1.0), **shares), **FEW)
    assert found_by(app).plan.question == found_by(few).plan.question
    assert text_of(app.title[0].value) == text_of(few.title[0].value)
    assert all(word in IN_PLACE for word in ("goodput", "queue limit and timeout", "p95"))


def test_sessions_that_cannot_be_are_told_in_a_line(opened: Open) -> None:
    app = opened(**FEW, **{"show.turn_law": "fixed"})
    assert "whole number" in shown(app) and not app.metric
    no_limits = opened(replace(ONE, ttft=None, itl=None), **TO_SESSIONS)
    assert "needs at least one limit" in shown(no_limits) and not no_limits.metric


def test_a_dear_question_is_refused_below_its_form(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIZING_TIME_LIMIT_S", "1e-6")
    app = opened(**FEW)
    assert "takes too long" in shown(app) and IN_PLACE in shown(app)
    app.main.number_input(key="show.users").set_value(60.0)
    plan(app)
    assert "takes too long" in shown(app) and IN_PLACE in shown(app)
