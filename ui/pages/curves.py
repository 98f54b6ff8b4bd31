"""Curves: how does the answer change with load, speed, lengths and memory, and what was measured?"""

import streamlit as st

from ui import answers, view
from ui.curves import fleet_size, interactivity, latency, lengths, measured, memory
from ui.fleets import pick_one
from ui.no_plan import tell, tell_unreadable
from ui.scenario import Scenario

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
    chart = view.chosen("Chart", CHARTS, "chart")
    tell_unreadable(answers.measured().problems)
    if chart == "measured":
        measured.draw()
        return
    if scenario.missing:
        tell(scenario, None)
        return
    with st.spinner("Working out how many GPUs, and checking the answer by simulation…"):
        outcome = answers.outcome(scenario)
    plan = outcome.plan
    if chart == "interactivity":
        interactivity.draw(scenario, outcome)
        return
    if plan is None:
        tell(scenario, outcome)
        return
    name, fleet = pick_one(plan.fleets)
    if chart == "latency":
        latency.draw(scenario, name, fleet)
    elif chart == "gpus":
        fleet_size.draw(scenario, plan, name, fleet)
    elif chart == "lengths":
        lengths.draw(scenario, name, fleet)
    else:
        memory.draw(scenario, plan, fleet)


page(st.session_state.scenario)
