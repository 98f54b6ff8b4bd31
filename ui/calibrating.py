"""What the Calibrate page asks of store, jobs and sizing, remembered where asking is slow."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import streamlit as st

from calibration.errors import CalibrationError
from calibration.incoming import Upload, preview
from calibration.store import DATABASE_VARIABLE, LIVE, Run, Store
from sizing.curves import Deployment, Point
from sizing.design import Choice, Option, Stop, choose
from sizing.errors import FitError, SizingError
from sizing.fitting import Fit, fit
from sizing.numbers import percent
from sizing.plan import Question
from sizing.workload import Lengths
from ui import answers
from ui.scenario import Scenario

USERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""The concurrencies that a new run offers and the advice chooses from."""
LEVEL_S = 120.0
REQUESTS = 400
"""What a level is taken to need, for the advice: as many requests as make its means known to a few per cent."""


def store() -> Store:
    """The store of this server. Raises StoreError if it cannot be reached."""
    return _store(os.environ.get(DATABASE_VARIABLE, ""))


@st.cache_resource(max_entries=4, show_spinner=False)
def _store(url: str) -> Store:
    return Store(url or None)


def live(runs: Iterable[Run]) -> list[Run]:
    """Those that are queued or running."""
    return [run for run in runs if run.state in LIVE]


def forget_points() -> None:
    """After points were accepted or discarded: every page asks the store anew."""
    answers.read_again()


@dataclass(frozen=True, slots=True)
class Trial:
    """The points of one deployment and the law fitted to them, or why there is none (`why`)."""

    deployment: Deployment
    points: tuple[Point, ...]
    fitted: Fit | None
    why: str = ""

    @property
    def void(self) -> tuple[Point, ...]:
        """Those that are never fitted."""
        return tuple(point for point in self.points if point.void)


def trials(points: Sequence[Point]) -> list[Trial]:
    """The points, each deployment with a law of its own."""
    found = []
    for deployment in dict.fromkeys(point.deployment for point in points):
        own = tuple(point for point in points if point.deployment == deployment)
        law = _law(digest(own), own)
        found.append(Trial(deployment, own, law) if isinstance(law, Fit) else Trial(deployment, own, None, law))
    return found


def digest(points: Sequence[Point]) -> str:
    """The same for the same points."""
    return hashlib.sha256("\n".join(map(repr, points)).encode()).hexdigest()


@st.cache_resource(max_entries=64, show_spinner=False)
def _law(digest: str, _points: tuple[Point, ...]) -> Fit | str:
    try:
        return fit(_points)
    except FitError as error:
        return str(error)


def read(upload: Upload) -> tuple[Point, ...] | str:
    """The points in a file that was uploaded, or what is wrong with it."""
    return _read(upload.digest, upload)


@st.cache_data(max_entries=16, show_spinner=False)
def _read(digest: str, _upload: Upload) -> tuple[Point, ...] | str:
    try:
        return preview(store(), _upload)
    except (CalibrationError, SizingError) as error:
        return str(error)


@dataclass(frozen=True, slots=True)
class Advice:
    """Where to measure next: a level and the reason for it, or only the reason why none is worth it."""

    option: Option | None
    text: str


def advice(scenario: Scenario, deployment: Deployment | None) -> Advice:
    """The next level for the scenario's question, by the accepted points of `deployment`; None: nothing is measured."""
    points = tuple(point for point in answers.measured().points if point.deployment == deployment)
    return _advice(scenario, digest(points), points)


@st.cache_data(max_entries=64, show_spinner=False)
def _advice(scenario: Scenario, digest: str, _points: tuple[Point, ...]) -> Advice:
    measured = dict.fromkeys(point.lengths for point in _points if point.load_kind == "concurrency")
    offered = dict.fromkeys([_tellable(scenario.lengths), *measured])
    options = [Option(lengths, users, REQUESTS, limit_s=LEVEL_S) for lengths in offered for users in USERS]
    try:
        question = scenario.question
        found = choose(_points, options, question, budget_s=3600.0, guess_s=lambda option: LEVEL_S)
    except SizingError as error:
        return Advice(None, str(error))
    return Advice(found.option, _why(found)) if isinstance(found, Choice) else Advice(None, _stopped(found, question))


def _tellable(lengths: Lengths) -> Lengths:
    """The scenario's lengths as a run would measure them."""
    return Lengths(lengths.isl, lengths.osl, lengths.isl_cv, lengths.osl_cv)


def _why(choice: Choice) -> str:
    now = f"Now: {choice.belief}. " if choice.belief is not None else ""
    if choice.aim == "gain":
        return f"{now}This level would narrow the band by about {percent(choice.narrows)}."
    if choice.aim == "reach":
        return f"{now}A planned replica would hold more requests at once than was measured: go there once."
    return "There is no law yet for this deployment: two levels, far apart, give a first one."


def _stopped(stop: Stop, question: Question) -> str:
    reasons = {
        "settled": "The last points no longer change the answer: nothing more need be measured for this question",
        "budget": "No level fits an hour of measuring",
        "worth": "No level within an hour would narrow the band of the answer by a tenth",
        "nothing": "Every level offered has been measured",
        "misfit": "No law fits these points: look at the void and distrusted ones, and measure the whole grid anew",
    }
    return f"{reasons[stop.because]}{f' ({stop.belief})' if stop.belief is not None else ''}."
