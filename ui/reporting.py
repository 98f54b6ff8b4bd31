"""From a scenario to its report, and from a report to the bytes that a button hands out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from urllib.parse import urlencode

import streamlit as st

from sizing.errors import SizingError
from sizing.plan import Plan, Question
from sizing.report.build import Cover, refusal_of, report_of
from sizing.report.json import with_cover
from sizing.report.model import Report
from sizing.report.write import WRITERS, file_name, render
from sizing.sensitivity import Sensitivity, sensitivities
from ui import answers, link
from ui.answers import Outcome
from ui.scenario import Scenario

NO_COVER = Cover(made_at="")


def report(scenario: Scenario, outcome: Outcome, *, title: str, author: str, notes: str, address: str) -> Report:
    """The report of an outcome, made now. Quick where only the cover has changed. `address`: of the app."""
    found = _answered(scenario, outcome.plan) if outcome.plan else _refused(scenario, outcome)
    gpus = outcome.plan.answer.gpus if outcome.plan else None
    made = dataclasses.replace(found, made_at=datetime.now(UTC).isoformat(timespec="seconds"))
    return with_cover(made, title=title or None, author=author, notes=notes, link=link_of(scenario, gpus, address))


def link_of(scenario: Scenario, gpus: int | None, address: str) -> str:
    """The link that opens the scenario, with the answer of today; `address` without path and query."""
    return f"{address.rstrip('/')}/?{urlencode(link.to_query(scenario, gpus))}"


def _answered(scenario: Scenario, plan: Plan) -> Report:
    digest = answers.measured().digest if scenario.use_points else ""
    return _of_plan(scenario, digest, plan)


@st.cache_resource(max_entries=64, show_spinner=False)
def _of_plan(scenario: Scenario, digest: str, _plan: Plan) -> Report:
    points = answers.measured().points if scenario.use_points else ()
    curve = answers.curve(scenario, _plan)
    return report_of(_plan, curve, _sensitivities(_plan), NO_COVER, points)


def _sensitivities(plan: Plan) -> tuple[Sensitivity, ...]:
    return sensitivities(plan.question, plan.answer)


def _refused(scenario: Scenario, outcome: Outcome) -> Report:
    return refusal_of(_question(scenario), outcome.title, outcome.reason, outcome.rejected, NO_COVER)


def _question(scenario: Scenario) -> Question | None:
    try:
        return scenario.question
    except SizingError:
        return None


def download(found: Report, suffix: str) -> tuple[str, str, Callable[[], bytes]]:
    """File name, media type and a function that makes the file when the button is pressed, away from the page."""
    return file_name(found, suffix), WRITERS[suffix][2], partial(render, found, suffix)
