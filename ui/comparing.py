"""What the Compare page asks of sizing, remembered between visits and visitors."""

from __future__ import annotations

import streamlit as st

from sizing.plan import Fleet, Plan
from sizing.sla_use import sla_use
from ui.curving import points_of
from ui.fleets import named
from ui.scenario import Scenario


def ranked(plan: Plan) -> dict[str, Fleet]:
    """Every fleet by name: the answer first, then fewest GPUs first, among equals the one with the most room."""
    rest = sorted(plan.fleets[1:], key=lambda fleet: (fleet.gpus, -room_share(fleet)))
    return named([plan.answer, *rest])


def room_share(fleet: Fleet) -> float:
    """What the limit that binds leaves free at the planned load, as a share of it."""
    return 1 - fleet.predicted.value_s(fleet.binding) / fleet.binding.limit_s


def small_curves(scenario: Scenario, plan: Plan) -> dict[str, tuple[float, ...]]:
    """For each fleet of `ranked`, how the SLA is used up from no load to just beyond the capacity; 1 is the limit."""
    return _small_curves(scenario, points_of(scenario).digest, plan)


@st.cache_data(max_entries=256, show_spinner=False)
def _small_curves(scenario: Scenario, digest: str, _plan: Plan) -> dict[str, tuple[float, ...]]:
    return {name: sla_use(scenario.question, fleet) for name, fleet in ranked(_plan).items()}
