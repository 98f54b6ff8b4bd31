"""Curves: how does the answer change with load, speed, lengths and memory, and what was measured?"""

import streamlit as st

from ui import answers
from ui.answers import pick_one
from ui.scenario import Scenario
from ui.views import curves, measured
from ui.visit import chosen, visit
from ui.words import tell, tell_unreadable

CHARTS = {
    "latency": "Latency against load",
    "gpus": "GPUs against load",
    "interactivity": "Throughput against interactivity",
    "lengths": "Token lengths",
    "memory": "Memory",
    "measured": "Measured points",
}


def page(scenario: Scenario) -> None:
    """The chooser and the chart chosen; nothing is worked out for the others."""
    chart = chosen("Chart", CHARTS, "chart")
    tell_unreadable(answers.measured_points().problems)
    if chart == "measured":
        measured.draw()
        return
    if scenario.missing:
        tell(scenario, None)
        return
    with st.spinner("Computing the number of GPUs and verifying it by simulation…"):
        outcome = answers.outcome(scenario)
    plan = outcome.plan
    if chart == "interactivity":
        curves.draw_interactivity(scenario, outcome)
        return
    if plan is None:
        tell(scenario, outcome)
        return
    name, fleet = pick_one(plan.fleets)
    if chart == "latency":
        curves.draw_latency(scenario, name, fleet)
    elif chart == "gpus":
        curves.draw_fleet_sizes(scenario, plan, name, fleet)
    elif chart == "lengths":
        curves.draw_lengths(scenario, name, fleet)
    else:
        curves.draw_memory(scenario, plan, fleet)


page(visit().scenario)
