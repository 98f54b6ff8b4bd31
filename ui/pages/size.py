"""Size: GPUs for a load under an SLA, what GPUs that exist can serve, GPUs over a day, at rising goodput, for recorded
traffic, and for sessions."""

from collections.abc import Callable
from dataclasses import replace

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from sizing.analyses.session_plan import SessionPlan
from sizing.analyses.traced import TracePlan
from sizing.errors import TimeLimitReached
from ui import answers, link
from ui.answers import carried, day_of
from ui.scenario import Scenario
from ui.views import sessions, traced
from ui.views.answer import (
    deployment_files,
    export,
    link_to_report,
    show_no_fleet,
    show_no_plan,
    show_plan,
    show_prices,
    tell_change_since_link,
)
from ui.views.inverse import ask_fleet, show_carried
from ui.views.traced import ask_day, show_day
from ui.visit import chosen, tell, visit

QUESTIONS = {
    "gpus": "How many GPUs?",
    "load": "What can my GPUs serve?",
    "day": "Over a day",
    "goodput": "Price of goodput",
    "trace": "From a trace",
    "sessions": "Users and agents",
}


def page(scenario: Scenario) -> None:
    """The whole page for one scenario."""
    with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
        with st.container(width="content"):  # in a row a control scrolls on a phone, in a column it wraps
            asked = chosen("Question", QUESTIONS, "size")
        corner = st.container(horizontal=True, vertical_alignment="center", width="content")
    if scenario.missing and asked != "sessions":  # which have limits of their own
        st.title(scenario.missing, anchor=False)
        st.markdown("Complete the form on the left; the answer appears at once.")
        return
    replayed = gpus_for_trace(scenario) if asked == "trace" else None
    simulated = gpus_for_sessions(scenario) if asked == "sessions" else None
    if asked in ANSWERS:
        ANSWERS[asked](scenario, corner)
    query = link.to_query(scenario, visit().gpus_found, answers.stamp(scenario)) | visit().shown
    with corner:
        if asked == "trace":
            traced.export_trace(query, replayed)
        elif asked == "sessions":
            sessions.export_sessions(query, simulated)
        else:
            with export(query):
                if asked == "load":
                    link_to_report("Report on how many GPUs")
                else:
                    link_to_report()
                if asked == "gpus" and (plan := answers.outcome(scenario).plan):
                    deployment_files(plan)


def gpus_for_load(scenario: Scenario, corner: DeltaGenerator) -> None:
    """How many GPUs?"""
    with corner, st.spinner("Sizing and simulating…"):
        outcome = answers.outcome(scenario)
    if outcome.plan is None:
        show_no_plan(outcome.title, outcome.reason, outcome.rejected, scenario)
        tell_change_since_link(None, scenario)
        return
    visit().gpus_found = outcome.plan.answer.gpus
    show_plan(outcome.plan, scenario)


def load_of_gpus(scenario: Scenario, corner: DeltaGenerator) -> None:
    """What can GPUs that exist serve?"""
    ask_fleet()
    with corner, st.spinner("Sizing and simulating…"):
        found = carried(scenario)
    if found.fleets is None:
        show_no_plan(found.title, found.reason, found.rejected, scenario)
    else:
        show_carried(found.fleets, found.rejected, scenario)


def gpus_over_day(scenario: Scenario, corner: DeltaGenerator) -> None:
    """How many GPUs in each hour?"""
    with corner, st.spinner("Sizing and simulating…"):
        outcome = answers.outcome(scenario)
        day = day_of(scenario, outcome.plan) if outcome.plan else None
    if outcome.plan is None or day is None:
        show_no_plan(outcome.title, outcome.reason, outcome.rejected, scenario)
        ask_day()
        return
    visit().gpus_found = outcome.plan.answer.gpus
    show_day(outcome.plan, day, scenario)


def gpus_by_goodput(scenario: Scenario, corner: DeltaGenerator) -> None:
    """What does the last per cent of the requests cost?"""
    if not any((scenario.ttft, scenario.itl, scenario.e2e)):
        st.title("Set a limit on TTFT, ITL or E2E", anchor=False)
        st.markdown("Goodput is the share of requests that meet all of these limits at once.")
        return
    with corner, st.spinner("Sizing a fleet for each goodput by simulation…"):
        outcome = answers.outcome(scenario)
        prices = answers.goodput_prices_of(scenario, outcome.plan) if outcome.plan else ()
    if outcome.plan is None:
        show_no_plan(outcome.title, outcome.reason, outcome.rejected, scenario)
        return
    visit().gpus_found = outcome.plan.answer.gpus
    show_prices(outcome.plan, prices, scenario)


def gpus_for_trace(scenario: Scenario) -> TracePlan | None:
    """How many GPUs for recorded traffic? The trace can be looked at while fleets are tried on it."""
    recorded = traced.ask_trace()
    asked = traced.ask_part(recorded) if recorded else None
    if recorded is None or asked is None:
        return None
    answer = st.container()
    traced.show_traffic(recorded, *asked)
    with answer:
        try:
            outcome = traced.replayed(scenario, *asked)
        except TimeLimitReached as error:
            tell(error)
            st.markdown("A shorter part of the trace, or a scale below 1, takes less time.")
            return None
        if outcome.found is None:
            show_no_fleet(outcome, scenario)
            return None
        traced.show_replayed(outcome.found, scenario)
    return replace(outcome.found, notes=recorded.notes[1:])  # of its file; the first says its kind


def gpus_for_sessions(scenario: Scenario) -> SessionPlan | None:
    """How many GPUs for users or agents in sessions of several turns?"""
    asked = sessions.ask_sessions(scenario)
    if asked is None:
        return None
    try:
        outcome = sessions.simulated(scenario, *asked)
    except TimeLimitReached as error:
        tell(error)
        st.markdown(sessions.WHAT_IF_LONG)
        return None
    if outcome.found is None:
        show_no_fleet(outcome, scenario)
        return None
    sessions.show_sessions(outcome.found, scenario)
    return outcome.found


ANSWERS: dict[str, Callable[[Scenario, DeltaGenerator], None]] = {
    "gpus": gpus_for_load,
    "load": load_of_gpus,
    "day": gpus_over_day,
    "goodput": gpus_by_goodput,
}

page(visit().scenario)
