"""What the pages ask of sizing and of the store of points, remembered between visits and visitors."""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import streamlit as st

from calibration.errors import CalibrationError
from calibration.store import DATABASE_VARIABLE, Store
from sizing import catalog, planner
from sizing.candidates import Choice, Found, find
from sizing.curves import Deployment, Point, read_points
from sizing.errors import CatalogueError, FitError, NoFeasiblePlan, SizingError, TimeLimitReached
from sizing.fitting import Fit, fit
from sizing.loadcurve import LoadCurve, load_curve
from sizing.plan import Plan, Question, Rejection
from sizing.workload import Lengths
from ui.link import Stamp
from ui.scenario import Scenario

DATA = Path(__file__).parents[1] / "data"
SHIPPED = DATA / "curves"
ESTIMATES = ("catalog", "laws")
"""Folders of the data that estimates stand on."""
DATE = re.compile(r"\d{4}-\d\d-\d\d")
NEW_POINTS_WITHIN_S = 10
"""New points of the store are seen after at most this long."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The points to hand and a digest of them, the key of every cache; `problems` are sources that cannot be read."""

    points: tuple[Point, ...]
    digest: str
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """An answered question: a plan, or the reason in a few words (`title`), in a line, and row by row."""

    plan: Plan | None
    title: str = ""
    reason: str = ""
    rejected: tuple[Rejection, ...] = ()


def measured() -> Measured:
    """The points of the store and of the files shipped in data/curves."""
    return _measured(os.environ.get(DATABASE_VARIABLE, ""), str(SHIPPED))


def read_again() -> None:
    """Let the next question see what has just come into the store."""
    _measured.clear()


@st.cache_resource(ttl=NEW_POINTS_WITHIN_S, show_spinner=False)
def _measured(database: str, folder: str) -> Measured:
    points: list[Point] = []
    problems: list[str] = []
    for path in sorted(Path(folder).glob("*.csv")):
        try:
            points += read_points(path)
        except SizingError as error:
            problems.append(str(error))
    try:
        points += Store(database or None).points()
    except CalibrationError as error:
        problems.append(str(error))
    digest = hashlib.sha256("\n".join(map(repr, points)).encode()).hexdigest()
    return Measured(tuple(points), digest, tuple(problems))


def outcome(scenario: Scenario) -> Outcome:
    """The plan of a scenario, or why there is none. Never raises for what a user may type."""
    have = points_for(scenario)
    nothing = nothing_to_choose_from(scenario, have)
    return nothing or answered(lambda: _outcome(scenario.question, scenario.choice, have.digest, have.points), Outcome)


def points_for(scenario: Scenario) -> Measured:
    """The points that may count for a scenario; none where it leaves them out."""
    return measured() if scenario.use_points else Measured((), "", ())


def nothing_to_choose_from(scenario: Scenario, have: Measured) -> Outcome | None:
    """The answer where neither a GPU was chosen nor anything was measured; None where there is something."""
    if scenario.gpus or any(point.model.lower() == scenario.model.lower() and not point.void for point in have.points):
        return None
    reason = f"No point of {scenario.model} fit for use has been measured: choose a GPU for an estimate."
    return Outcome(None, "Choose a GPU or measure one", reason)


@st.cache_data(max_entries=256, show_spinner=False)
def _outcome(question: Question, choice: Choice, digest: str, _points: Sequence[Point]) -> Outcome:
    def plan() -> Outcome:
        found, left_out = found_among(question.model, question.workload.lengths, choice, digest, _points)
        return Outcome(planner.plan(question, found, left_out))

    return answered(plan, Outcome)


Answer = TypeVar("Answer")


def answered(ask: Callable[[], Answer], no: Callable[..., Answer]) -> Answer:
    """What `ask` answers; where it raises, `no(None, title, reason, rejected)` says why in words for the page.

    Raises TimeLimitReached as it is: that is said by the door, and nothing to remember.
    """
    try:
        return ask()
    except TimeLimitReached:
        raise
    except NoFeasiblePlan as error:
        return no(None, _title(error.rejected), str(error), error.rejected)
    except CatalogueError as error:
        return no(None, "A name in this question is not known", str(error), ())
    except SizingError as error:
        return no(None, "This question has no answer yet", str(error), ())


def stamp(scenario: Scenario) -> Stamp:
    """Which data the answer to a scenario stands on."""
    have = points_for(scenario)
    return _stamp(scenario.model, have.digest, have.points)


@st.cache_data(max_entries=256, show_spinner=False)
def _stamp(model: str, digest: str, _points: Sequence[Point]) -> Stamp:
    """Of this model's points that can be used, and of the files that estimates stand on."""
    points = [point for point in _points if point.model.lower() == model.lower() and not point.void]
    sha = hashlib.sha256(_estimates_digest())
    sha.update("\n".join(map(repr, points)).encode())
    dates = [date for point in points if DATE.fullmatch(date := point.measured_at[:10])]
    return Stamp(max(dates, default=""), sha.hexdigest()[:8])


@functools.cache
def _estimates_digest() -> bytes:
    sha = hashlib.sha256()
    for path in sorted(path for folder in ESTIMATES for path in (DATA / folder).iterdir() if path.is_file()):
        sha.update(path.read_bytes())
    return sha.digest()


@st.cache_resource(max_entries=64, show_spinner=False)
def found_among(model: str, lengths: Lengths, choice: Choice, digest: str, _points: Sequence[Point]) -> Found:
    """Candidates do not depend on load and SLA, and take longer to find than to plan with."""
    return find(model, lengths, choice, _points)


def _title(rejected: Sequence[Rejection]) -> str:
    kinds = {rejection.kind for rejection in rejected}
    if kinds == {"memory"}:
        return "The model does not fit on these GPUs"
    if "too_few" in kinds and "sla" not in kinds:
        return "These GPUs are too few"
    if kinds == {"no_data"}:
        return "There is no data for these configurations"
    return "No configuration meets this SLA"


def curve(scenario: Scenario, plan: Plan) -> LoadCurve:
    """Latency against load of the answer's replicas."""
    return _curve(scenario.question, scenario.choice, points_for(scenario).digest, plan)


@st.cache_data(max_entries=256, show_spinner=False)
def _curve(question: Question, choice: Choice, digest: str, _plan: Plan) -> LoadCurve:
    return load_curve(_plan.question, _plan.answer)


def fitted(deployment: Deployment) -> Fit | str:
    """The law fitted to the points of one deployment, or why there is none."""
    have = measured()
    return _fitted(deployment, have.digest, have.points)


@st.cache_resource(max_entries=64, show_spinner=False)
def _fitted(deployment: Deployment, digest: str, _points: Sequence[Point]) -> Fit | str:
    try:
        return fit([point for point in _points if point.deployment == deployment])
    except FitError as error:
        return str(error)


def model_names() -> list[str]:
    """Models of the catalogue and of the measured points."""
    return sorted({*catalog.models(), *(point.model for point in measured().points)}, key=str.lower)


def gpu_names() -> list[str]:
    """GPUs of the catalogue and of the measured points."""
    return sorted({*catalog.gpus(), *(point.gpu for point in measured().points)})


def precision_names(model: str, gpus: Sequence[str]) -> list[str]:
    """Precisions in which the model can run on one of the GPUs, by the catalogue or by what was measured."""
    known_model = catalog.models().get(model)
    known = [catalog.gpus()[gpu] for gpu in gpus if gpu in catalog.gpus()]
    by_catalogue = [name for gpu in known for name in catalog.precisions(gpu, known_model)] if known_model else []
    by_points = [point.precision for point in measured().points if point.model == model]
    return list(dict.fromkeys([*by_catalogue, *by_points]))
