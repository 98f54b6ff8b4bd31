"""What the Curves page asks of sizing, remembered between visits and visitors."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from sizing.capacity import predict_at
from sizing.curves import Point
from sizing.errors import SizingError, TimeLimitReached
from sizing.fitting.fitted import Range
from sizing.fleet_sizes import FleetSizes, fleet_sizes
from sizing.frontier import SpeedCurve, speed_curve
from sizing.length_grid import LengthCell, length_grid
from sizing.loadcurve import LoadCurve, load_curve
from sizing.plan import Candidate, Fleet, Plan
from sizing.planner import setting_of
from sizing.prediction import Prediction
from sizing.workload import Lengths
from ui import answers
from ui.answers import Measured
from ui.scenario import Scenario

LENGTHS_AGREE = 0.02
"""Mean lengths of a measured point and of the scenario may differ by this share to be drawn together."""


def points_of(scenario: Scenario) -> Measured:
    """The points that the scenario's answers may stand on: none where it asks for estimates alone."""
    return answers.measured() if scenario.use_points else Measured((), "", ())


def curve(scenario: Scenario, name: str, fleet: Fleet) -> LoadCurve:
    """Latency against load of a replica of the fleet called `name`."""
    return _curve(scenario, points_of(scenario).digest, name, fleet)


@st.cache_data(max_entries=256, show_spinner=False)
def _curve(scenario: Scenario, digest: str, name: str, _fleet: Fleet) -> LoadCurve:
    return load_curve(scenario.question, _fleet)


def prediction(scenario: Scenario, name: str, fleet: Fleet, rate_per_s: float) -> Prediction:
    """What users see when each of the fleet's working replicas gets this many requests/s, by formula."""
    return _prediction(scenario, points_of(scenario).digest, name, fleet, rate_per_s)


@st.cache_data(max_entries=256, show_spinner=False)
def _prediction(scenario: Scenario, digest: str, name: str, _fleet: Fleet, rate_per_s: float) -> Prediction:
    return predict_at(_fleet.candidate.replica, setting_of(scenario.question, _fleet.working), rate_per_s)


def sizes(scenario: Scenario, name: str, fleet: Fleet, low_per_s: float, high_per_s: float) -> FleetSizes:
    """GPUs of the fleet from one load to another."""
    return _sizes(scenario, points_of(scenario).digest, name, fleet, low_per_s, high_per_s)


@st.cache_data(max_entries=256, show_spinner=False)
def _sizes(
    scenario: Scenario, digest: str, name: str, _fleet: Fleet, low_per_s: float, high_per_s: float
) -> FleetSizes:
    return fleet_sizes(scenario.question, _fleet, low_per_s, high_per_s)


def speeds(scenario: Scenario, plan: Plan | None) -> list[SpeedCurve]:
    """Every candidate of the scenario at rising load, those that miss the SLA too; none without a question."""
    have = points_of(scenario)
    return _speeds(scenario, have.digest, have.points, plan)


@st.cache_data(max_entries=64, show_spinner=False)
def _speeds(scenario: Scenario, digest: str, _points: Sequence[Point], _plan: Plan | None) -> list[SpeedCurve]:
    try:
        # Found once for the plan and remembered: fitting the points anew would take seconds.
        found, _ = answers.found_among(scenario.model, scenario.lengths, scenario.choice, digest, _points)
        question = scenario.question
    except TimeLimitReached:
        raise
    except SizingError:
        return []
    known = {_key(fleet.candidate): fleet.capacity_per_s for fleet in _plan.fleets} if _plan else {}
    return [speed_curve(question, each, known.get(_key(each))) for each in found]


def _key(candidate: Candidate) -> tuple[str, str]:
    return candidate.label, candidate.source


def lengths(scenario: Scenario, name: str, fleet: Fleet) -> tuple[LengthCell, ...]:
    """Requests/s per GPU of the fleet's configuration at other lengths."""
    have = points_of(scenario)
    return _lengths(scenario, have.digest, name, fleet, have.points)


@st.cache_data(max_entries=64, show_spinner=False)
def _lengths(
    scenario: Scenario, digest: str, name: str, _fleet: Fleet, _points: Sequence[Point]
) -> tuple[LengthCell, ...]:
    covered = coverage(_fleet.candidate, _points)
    return length_grid(scenario.question, _fleet, lambda asked: covered is not None and covered.covers(asked, 1))


def coverage(candidate: Candidate, points: Sequence[Point]) -> Range | None:
    """Lengths and concurrency that closed-loop points of this configuration cover; None where there are none."""
    own = [point for point in points if point.load_kind == "concurrency" and is_of(point, candidate)]
    if not own:
        return None
    isl, osl = [point.isl for point in own], [point.osl for point in own]
    return Range(round(max(point.load_value for point in own)), (min(isl), max(isl)), (min(osl), max(osl)))


def open_loop(scenario: Scenario, fleet: Fleet) -> list[Point]:
    """Points of the fleet's configuration measured at offered rates, at the scenario's lengths."""
    return [
        point
        for point in points_of(scenario).points
        if point.load_kind != "concurrency" and is_of(point, fleet.candidate) and same(point.lengths, scenario.lengths)
    ]


def is_of(point: Point, candidate: Candidate) -> bool:
    """True for a point fit for use that was measured on the candidate's own configuration."""
    own = (candidate.model, candidate.gpu, candidate.tp, candidate.pp, candidate.precision)
    measured = (point.model, point.gpu, point.tp, point.pp, point.precision)
    return not point.void and [str(name).casefold() for name in measured] == [str(name).casefold() for name in own]


def same(measured: Lengths, asked: Lengths) -> bool:
    """True for lengths that agree in their means, and in whether they vary."""
    agree = all(
        abs(one - other) <= LENGTHS_AGREE * other
        for one, other in ((measured.isl, asked.isl), (measured.osl, asked.osl))
    )
    return agree and measured.fixed == asked.fixed
