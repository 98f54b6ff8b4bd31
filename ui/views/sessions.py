"""Users and agents: a form for their sessions, the fleet that serves them, where its prefix cache begins to thrash."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from typing import NamedTuple

import pandas as pd
import streamlit as st

from sizing.analyses.session_plan import OF_METRIC, Seen, SessionLimit, SessionLoad, SessionPlan, within_context
from sizing.cli.shapes import extras_json, finite_only
from sizing.errors import SizingError
from sizing.numbers import milliseconds, percent, significant
from sizing.prediction import Quantiles
from sizing.question import VARIATION, Range
from sizing.report.build import Cover, report_of
from sizing.report.model import as_dict
from sizing.simulator.sessions import SessionLatency
from sizing.text import SESSION_ROUTING, Extras, as_json, sessions_lines, share_of_load
from sizing.workload import PERCENTILES, Sessions
from ui import answers
from ui.charts.traced import hit_rate_over_load, later_ttft_over_load
from ui.look import card, data_behind, ink, rows_of_cards, show
from ui.scenario import CHATS, Scenario
from ui.views.answer import alternatives, cards, export, headline, left_out, remarks
from ui.visit import chosen, number_typed, one_picked
from ui.words import plain, sentence_case, tell_unreadable

MANY = {"users": "Users at once", "rate": "Sessions/s"}
MANY_HELP = (
    "Users or agents with a session open at once, including those who read or wait for a tool; or sessions that start."
)
TURN_LAWS: dict[str, str] = {"geometric": "Geometric", "fixed": "All the same"}
ROUTINGS = {routing: sentence_case(words) for routing, words in SESSION_ROUTING.items()}
ROUTING_HELP = (
    "Which replica gets a turn: that of its session, the one that has most of it cached, the one with the fewest "
    "requests, or any. The answer compares all four."
)
IN_PLACE = (
    "From the form on the left, the model, GPUs, limits on TTFT, ITL and E2E (of any turn), headroom, spares and price "
    "count; load, lengths, routing, arrivals, prefix, goodput, rejected requests, queue limit and timeout do not. A "
    "limit without a percentile counts at p95. The presets Chat and Agent fill in sessions of their kind."
)
NO_GAPS = "The limit on gaps between tokens does not count: gaps are not simulated for sessions."
LINK_SAYS = "This link opens the same question with the same sessions and shows today's answer."
WHAT_IF_LONG = "Comparing fewer GPUs, precisions and engines takes less time."


class Number(NamedTuple):
    """A number of the form: its label, range, usual value (None: not asked) and help."""

    label: str
    allowed: Range
    usual: float | None
    help: str


SHAPE = CHATS
"""What the form opens on."""
TOKENS = Range(1, 1_000_000, "tokens")
LIMITED = Range(0.001, 1e6)
HOW_MANY = {
    "users": Number("Users or agents at once", Range(1, 1_000_000), 200, MANY_HELP),
    "rate": Number("Sessions started per second", Range(1e-4, 10_000), 1.0, MANY_HELP),
}
NUMBERS = {
    "turns": Number("Turns", Range(1, 1000), SHAPE.turns, "Mean of a session: questions, or steps of an agent."),
    "think_s": Number(
        "Think or tool time (s)",
        Range(0, 86_400),
        SHAPE.think_s,
        "Mean time from an answer to the next turn, exponential: a user reads and writes, or a tool runs.",
    ),
    "first_tokens": Number("First prompt (tokens)", TOKENS, SHAPE.first_tokens, "Mean, the system prompt excluded."),
    "first_cv": Number("First prompt variation (CV)", VARIATION, SHAPE.first_cv, "Standard deviation over mean."),
    "user_tokens": Number(
        "Later turn (tokens)",
        TOKENS,
        SHAPE.user_tokens,
        "Mean of what a later turn adds to the conversation: a question, or what a tool returned.",
    ),
    "user_cv": Number("Later turn variation (CV)", VARIATION, SHAPE.user_cv, "Standard deviation over mean."),
    "output_tokens": Number("Answer (tokens)", TOKENS, SHAPE.output_tokens, "Mean, reasoning included."),
    "output_cv": Number("Answer variation (CV)", VARIATION, SHAPE.output_cv, "Standard deviation over mean."),
    "system_tokens": Number(
        "System prompt (tokens)", Range(0, 1_000_000), SHAPE.system_tokens, "With which all sessions begin."
    ),
    "context_tokens": Number(
        "Longest context (tokens)",
        Range(0, 10_000_000),
        0,
        "A turn that would exceed it ends its session; 0: what the model takes.",
    ),
}
"""Fields of `Sessions` by name."""
LIMITS: dict[str, tuple[SessionLatency, float, Number]] = {
    "first_ttft_ms": (
        "first_ttft",
        1e-3,
        Number("TTFT, first turns (ms)", LIMITED, None, "Limit on TTFT of first turns alone. Empty: none."),
    ),
    "later_ttft_ms": (
        "later_ttft",
        1e-3,
        Number("TTFT, later turns (ms)", LIMITED, None, "Limit on TTFT of later turns alone. Empty: none."),
    ),
    "session_s": (
        "session",
        1.0,
        Number("Time of a session (s)", LIMITED, None, "Or of a task, tools and thinking included. Empty: none."),
    ),
}
"""Limits that only sessions have, by name of their field: on what, and seconds of its unit."""


def ask_sessions(scenario: Scenario) -> tuple[SessionLoad, tuple[SessionLimit, ...]] | None:
    """The sessions that the form holds, and their own limits; None, and why on the page, where they cannot be."""
    many = chosen("How many", MANY, "many", help=MANY_HELP)
    with st.form("sessions", border=True):
        with st.grid(6, min_column_width=140, vertical_alignment="bottom"):  # a label may take two lines
            count = number_typed(many, *HOW_MANY[many])
            values = {name: number_typed(name, *number) for name, number in NUMBERS.items()}
            law = one_picked("turn_law", "Number of turns", TURN_LAWS, help="How it varies between sessions.")
            routing = one_picked("session_routing", "Routing of turns", ROUTINGS, help=ROUTING_HELP)
            limits = {name: number_typed(name, *number) for name, (_, _, number) in LIMITS.items()}
            percentiles = {str(each): f"p{each}" for each in PERCENTILES}
            percentile = one_picked("percentile", "Percentile of these limits", percentiles, usual="95")
        st.form_submit_button("Plan for these sessions", icon=":material/forum:")
    st.caption(IN_PLACE + (f" {NO_GAPS}" if scenario.gap else ""))
    try:
        whole = {field.name for field in fields(Sessions) if field.type == "int"}
        shape = {name: int(value or 0) if name in whole else value or 0.0 for name, value in values.items()}
        sessions = Sessions(1.0 if many == "users" else count or 1.0, turn_law=law, **shape)  # type: ignore[arg-type]
        sessions = within_context(scenario.model, sessions)
        load = SessionLoad(sessions, int(count or 1) if many == "users" else None, routing)  # type: ignore[arg-type]
        own = (
            SessionLimit(OF_METRIC[of], int(percentile), value * unit_s, of=of)
            for (of, unit_s, _), value in zip(LIMITS.values(), limits.values(), strict=True)
            if value is not None
        )
        return load, tuple(own)
    except SizingError as error:
        st.error(plain(sentence_case(str(error))), icon=":material/block:")
        return None


def simulated(scenario: Scenario, load: SessionLoad, limits: tuple[SessionLimit, ...]) -> answers.Reply[SessionPlan]:
    """The answer; which fleet is being simulated is told meanwhile, with how far the search has come."""
    with st.spinner("Sizing and simulating sessions…", show_time=True):
        bar = st.progress(0.0)
        number = 0

        def progress(doing: str) -> None:
            nonlocal number
            number += 1
            bar.progress(number / (number + USUAL_RUNS), plain(f"{sentence_case(doing)} (no. {number})"))

        found = answers.for_sessions(scenario, load, limits, progress)
        bar.empty()
    return found


USUAL_RUNS = 12
"""Fleets that are still to be simulated, as the bar has it: how many there will be nobody knows before."""


def show_sessions(found: SessionPlan, scenario: Scenario) -> None:
    """The answer: the fleet as for any load, what its prefix cache does, and how it would do with more sessions."""
    plan = found.plan
    tell_unreadable(answers.measured_points().problems)
    with st.container(gap="xsmall"):
        headline(plan, scenario)
    cards(plan)
    _cards(found)
    with st.container(gap="xsmall"):
        st.markdown("  \n".join(f"{plain(line)}." for line in sessions_lines(found)))
        remarks(plan)
    with st.grid(2, min_column_width=320):
        show(hit_rate_over_load(found, ink()), "hit_rate")
        show(later_ttft_over_load(found, ink()), "later_ttft")
    if found.routings:
        st.markdown("**Routings on the same fleet**")
        st.dataframe(_routings(found), hide_index=True, alt="Tokens found and latencies with each routing of turns")
    st.markdown("**Configurations that meet the SLA**")
    alternatives(plan, scenario)
    left_out(plan.rejected)
    data_behind(_rising(found), "Sessions at rising load, as drawn in the charts")


def _cards(found: SessionPlan) -> None:
    seen, parts = found.seen, found.seen.predicted.parts
    with rows_of_cards(5):
        hundred = f"{significant(seen.in_flight)} in flight"
        card("GPUs per 100 sessions", significant(found.gpus_per_100), hundred, "All GPUs over sessions in flight.")
        filled = f"contexts: {percent(found.filled(seen))} of it"
        found_help = "Share of all prompt tokens, at the planned load; and what all contexts take of the KV cache."
        card("Found in the cache", percent(seen.hit_rate), filled, found_help)
        for turns, label in ((parts["first_ttft"], "first turns"), (parts["later_ttft"], "later turns")):
            shown = _with_median(turns) if turns.known else ("none", "")
            card(f"p95 TTFT, {label}", *shown, "Simulated, at the planned load.")
        whole = parts["session"]
        card(
            "p95 time of a session",
            *_with_median(whole),
            "Of a task, for agents.",
        )


def _with_median(of: Quantiles) -> tuple[str, str]:
    """A p95 and, in its unit, the median."""
    return milliseconds(of.p95_s), f"median {milliseconds(of.p50_s, of.p95_s)}"


def _routings(found: SessionPlan) -> pd.DataFrame:
    return pd.DataFrame({"Routing": ROUTINGS[name]} | _row(found, seen) for name, seen in found.routings)


def _rising(found: SessionPlan) -> pd.DataFrame:
    planned = found.seen.rate_per_s
    return pd.DataFrame(
        {"Load": share_of_load(seen.rate_per_s / planned), "Sessions/s": significant(seen.rate_per_s)}
        | _row(found, seen)
        for seen in found.curve
    )


def _row(found: SessionPlan, seen: Seen) -> dict[str, str]:
    """What a fleet shows under one load."""
    parts = seen.predicted.parts
    return {
        "In flight": "grows" if seen.saturated else significant(seen.in_flight),
        "Found in the cache": percent(seen.hit_rate),
        "Contexts over KV cache": "" if seen.saturated else percent(found.filled(seen)),
        "p95 TTFT, first turns": "" if seen.saturated else milliseconds(parts["first_ttft"].p95_s),
        "p95 TTFT, later turns": "" if seen.saturated else milliseconds(parts["later_ttft"].p95_s),
        "p95 time of a session": "" if seen.saturated else milliseconds(parts["session"].p95_s),
        "SLA": "kept" if seen.meets else "missed",
    }


def export_sessions(query: Mapping[str, str], found: SessionPlan | None) -> None:
    """The link, and the plan as the command line writes it, of which it makes reports."""
    with export(query, LINK_SAYS):
        if found is not None:
            st.download_button(
                "The plan as JSON",
                data=partial(json_of, found),
                file_name=f"sessions-plan-{found.plan.answer.gpus}-gpus.json",
                mime="application/json",
                on_click="ignore",
                icon=":material/data_object:",
                help="As python -m sizing plan --users N --json writes it; python -m sizing report --plan makes it a "
                "report.",
            )


def json_of(found: SessionPlan) -> bytes:
    """The plan with every load and routing, and its report, as the command line writes it."""
    report = as_dict(report_of(found.plan, None, Extras(sessions=found), Cover(answers.now())))
    whole = {**as_json(found.plan), **extras_json(Extras(sessions=found), found.plan.question), "report": report}
    return json.dumps(finite_only(whole), indent=2).encode()
