"""What only the Size page asks of sizing, remembered: relaxations, what fits, what a fleet carries, a day's GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import streamlit as st

from sizing.candidates import Choice
from sizing.curves import Point
from sizing.errors import NoFeasiblePlan
from sizing.fits import Misfit, elsewhere, misfits
from sizing.fleets.daily import Daily, gpus_by_hour
from sizing.fleets.existing import Existing, best_first
from sizing.plan import Candidate, Plan, Question, Rejection
from sizing.rejections import distance_from_sla
from sizing.relax import Relaxation, Together, relaxations, together
from sizing.workload import Lengths
from ui.answers import answered, found_among, nothing_to_choose_from, points_for
from ui.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Carried:
    """What a fleet that exists carries: the best way to run it first, or the reason why it carries nothing."""

    fleets: tuple[Existing, ...] | None
    title: str = ""
    reason: str = ""
    rejected: tuple[Rejection, ...] = ()


@dataclass(frozen=True, slots=True)
class Ways:
    """Ways out of an SLA that nothing meets: each limit loosened alone, and all that the nearest candidate misses."""

    alone: tuple[Relaxation, ...]
    together: Together | None


def carried(scenario: Scenario) -> Carried:
    """The inverse question of a scenario: what its number of GPUs can serve. Never raises for what a user may type."""
    have = points_for(scenario)
    if nothing := nothing_to_choose_from(scenario, have):
        return Carried(None, nothing.title, nothing.reason)
    return answered(
        lambda: _carried(_at_no_rate(scenario), scenario.fleet_gpus, scenario.choice, have.digest, have.points), Carried
    )


def _at_no_rate(scenario: Scenario) -> Question:
    """The question without its load, which does not matter, so that a change of it is no new question."""
    return replace(scenario, rate_per_s=1.0).question


@st.cache_data(max_entries=128, show_spinner=False)
def _carried(question: Question, gpus: int, choice: Choice, digest: str, _points: Sequence[Point]) -> Carried:
    def ask() -> Carried:
        found, left_out = found_among(question.model, question.workload.lengths, choice, digest, _points)
        fleets, rejected = best_first(question, found, gpus)
        rejected = sorted([*rejected, *left_out], key=distance_from_sla)
        if not fleets:
            raise NoFeasiblePlan(f"{gpus} GPUs carry no load under {question.sla}", tuple(rejected))
        return Carried(tuple(fleets), rejected=tuple(rejected))

    return answered(ask, Carried)


def ways_out(scenario: Scenario) -> Ways:
    """What would have to give, for a scenario whose candidates all miss the SLA."""
    have = points_for(scenario)
    return _ways_out(_at_no_rate(scenario), scenario.choice, have.digest, have.points)


@st.cache_data(max_entries=64, show_spinner=False)
def _ways_out(question: Question, choice: Choice, digest: str, _points: Sequence[Point]) -> Ways:
    found, _ = found_among(question.model, question.workload.lengths, choice, digest, _points)
    return Ways(relaxations(question, found), together(question, found))


@st.cache_data(max_entries=64, show_spinner=False)
def what_fits(model: str, lengths: Lengths, rejected: tuple[Rejection, ...]) -> tuple[Misfit, ...]:
    """What would fit instead of each configuration left out for memory."""
    return misfits(model, lengths, rejected)


@st.cache_data(max_entries=64, show_spinner=False)
def fits_elsewhere(model: str, lengths: Lengths, besides: tuple[str, ...]) -> Candidate | None:
    """The smallest configuration that fits on a GPU other than these."""
    return elsewhere(model, lengths, besides)


def day_of(scenario: Scenario, plan: Plan) -> Daily:
    """GPUs hour by hour, the answer's fleet at the busiest."""
    return _day(scenario.question, scenario.choice, points_for(scenario).digest, scenario.day_per_s, plan)


@st.cache_data(max_entries=128, show_spinner=False)
def _day(question: Question, choice: Choice, digest: str, rates_per_s: tuple[float, ...], _plan: Plan) -> Daily:
    return gpus_by_hour(_plan.question, _plan.answer, rates_per_s)
