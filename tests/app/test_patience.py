"""What a visit may cost: the limit on a page's computing, and work that ends when nobody waits for it any more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from streamlit.runtime.scriptrunner import get_script_run_ctx
from streamlit.testing.v1 import AppTest

from sizing import budget, planner
from sizing.plans import Plan
from sizing.workload import Limit
from tests.app.conftest import ONE, ROOT, query_of, text_of
from ui.visit import LIMIT_VARIABLE

Open = Callable[..., AppTest]
ASKED = replace(ONE, routing="least_outstanding", isl_cv=0.5)


def said(app: AppTest) -> str:
    return text_of("\n".join(part.value for part in (*app.title, *app.markdown)))


@pytest.mark.parametrize("page", ["size", "compare", "curves", "report"])
def test_a_dear_question_is_refused_with_its_reason_and_not_remembered(
    opened: Open, monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    scenario = replace(ASKED, rate_per_s=31.0 + len(page), ttft=Limit("ttft", 95, 0.9 + len(page) / 1000))
    monkeypatch.setenv(LIMIT_VARIABLE, "1e-6")
    app = opened(scenario)
    app.switch_page(f"ui/pages/{page}.py").run()
    assert not app.exception
    assert "This question takes too long" in said(app)
    assert "No answer within" in said(app) and "--time-limit" in said(app)
    assert "n" not in query_of(app)
    monkeypatch.setenv(LIMIT_VARIABLE, "0")
    app.run()
    assert not app.exception
    assert "takes too long" not in said(app)
    assert page != "size" or "n" in query_of(app)


@pytest.mark.parametrize("limit", ["soon", "-5", "nan"])
def test_a_limit_that_is_no_number_is_told(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setenv(LIMIT_VARIABLE, limit)
    app = AppTest.from_file(str(ROOT / "app.py"))
    app.run()
    assert not app.exception
    assert "must be a number of seconds" in text_of(app.error[0].value)


def test_work_for_a_visitor_who_has_left_ends_at_once_and_the_next_is_answered(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The browser is gone when the planner begins: one look later the run is over, what it held is free."""
    scenario = replace(ASKED, rate_per_s=47.0)
    answer: Callable[..., Plan] = planner.plan
    looks: list[str] = []
    look = budget.checkpoint

    def counted(doing: str = "") -> None:
        looks.append(doing)
        look(doing)

    def left(*asked: object) -> Plan:
        context = get_script_run_ctx()
        assert context is not None and context.script_requests is not None
        context.script_requests.request_stop()
        return answer(*asked)

    monkeypatch.setattr("sizing.queueing.percentiles.checkpoint", counted)
    monkeypatch.setattr(planner, "plan", left)
    gone = opened(scenario)
    assert len(looks) == 1
    assert not gone.title and not gone.metric
    monkeypatch.setattr(planner, "plan", answer)
    assert "You need" in said(opened(scenario))
