"""From a scenario to its report, and from a report to the bytes that a button hands out."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from urllib.parse import urlencode

import streamlit as st

from sizing.errors import SizingError
from sizing.plan import Plan, Question
from sizing.report.build import Cover, refusal_of, report_of
from sizing.report.json import question_digest, with_cover
from sizing.report.model import Report
from sizing.report.write import WRITERS, file_name, render
from sizing.sensitivity import Sensitivity, sensitivities
from ui import answers, link, view
from ui.answers import Outcome
from ui.scenario import Scenario
from ui.size.asks import Ways, day_of, ways_out

NO_COVER = Cover(made_at="")
MOMENT_S = 3.0
"""Between a click and the run of the page that a change of the form has started just before it, at most."""
OVER_DAY = {f"{view.PREFIX}size": "day"}
"""What a link has that opens the page Size on the GPUs over a day."""


def report(
    scenario: Scenario, outcome: Outcome, *, title: str, author: str, notes: str, address: str, over_day: bool = False
) -> Report:
    """The report of an outcome, made now. Quick where only the cover has changed. `address`: of the app.

    `over_day`: with the GPUs of each hour of the scenario's day.
    """
    found = _answered(scenario, over_day, outcome.plan) if outcome.plan else _refused(scenario, outcome)
    gpus = outcome.plan.answer.gpus if outcome.plan else None
    made = dataclasses.replace(found, made_at=datetime.now(UTC).isoformat(timespec="seconds"))
    where = link_of(scenario, gpus, address, over_day)
    return with_cover(made, title=title or None, author=author, notes=notes, link=where)


def link_of(scenario: Scenario, gpus: int | None, address: str, over_day: bool = False) -> str:
    """The link that opens the scenario, with the answer of today; `address` without path and query."""
    shown = OVER_DAY if over_day else {}
    return f"{address.rstrip('/')}/?{urlencode(link.to_query(scenario, gpus) | shown)}"


def day_is_asked() -> bool:
    """True while the page Size asks for the GPUs of each hour; its choice then stands in this page's link too."""
    asked = all(st.session_state.get(name) == value for name, value in OVER_DAY.items())
    if asked:
        st.session_state.shown |= OVER_DAY
    return asked


def _answered(scenario: Scenario, over_day: bool, plan: Plan) -> Report:
    digest = answers.measured().digest if scenario.use_points else ""
    return _of_plan(scenario, digest, over_day, plan)


@st.cache_resource(max_entries=64, show_spinner=False)
def _of_plan(scenario: Scenario, digest: str, over_day: bool, _plan: Plan) -> Report:
    points = answers.measured().points if scenario.use_points else ()
    curve = answers.curve(scenario, _plan)
    daily = day_of(scenario, _plan) if over_day else None
    return report_of(_plan, curve, _sensitivities(_plan), NO_COVER, points, daily)


def _sensitivities(plan: Plan) -> tuple[Sensitivity, ...]:
    return sensitivities(plan.question, plan.answer)


def _refused(scenario: Scenario, outcome: Outcome) -> Report:
    question = _question(scenario)
    ways = ways_out(scenario) if question and any(each.kind == "sla" for each in outcome.rejected) else Ways((), None)
    cover = (outcome.title, outcome.reason, outcome.rejected, NO_COVER)
    return refusal_of(question, *cover, ways.alone, ways.together)


def _question(scenario: Scenario) -> Question | None:
    try:
        return scenario.question
    except SizingError:
        return None


class Handed:
    """The file that a session was given last: of which question, and when. Files are made away from the page's run."""

    def __init__(self) -> None:
        self._question, self._at_s = "", -math.inf

    def out(self, found: Report, suffix: str) -> bytes:
        """The file, whose question is remembered from the moment it was asked for."""
        self._question, self._at_s = question_digest(found), time.monotonic()
        return render(found, suffix)

    def belated(self, found: Report, since_s: float) -> bool:
        """True when a file of another question was asked for later than a moment before `since_s`."""
        return self._at_s > since_s - MOMENT_S and self._question != question_digest(found)


def download(found: Report, suffix: str, handed: Handed) -> tuple[str, str, Callable[[], bytes]]:
    """File name, media type and a function that makes the file when the button is pressed, away from the page.

    The button belongs to the run that drew it: pressed together with a change of the form it still gives the file of
    the question before, which its name and content say; `handed` then lets the page say it too.
    """
    return file_name(found, suffix), WRITERS[suffix][2], partial(handed.out, found, suffix)
