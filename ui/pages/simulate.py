"""Simulate: what happens inside a replica? One run of the answer's replica, or of another, over time and request by
request, beside what the formula says of it; a lesson on batching; and sizing by the usual method."""

from importlib import import_module

import streamlit as st

from sizing.analyses.inside import exceedances, learned
from sizing.errors import ScenarioError
from sizing.numbers import significant
from sizing.plans import Fleet, Plan
from sizing.simulator import Simulated
from sizing.text import spelt
from sizing.workload import Limit
from ui import answers
from ui.charts.latency import time_unit
from ui.computing import Outcome
from ui.link import PREFIX
from ui.look import basis_line, card, rows_of_cards
from ui.scenario import Scenario
from ui.views import inside
from ui.views.inside import UNLIMITED_KV_TOKENS, RunSetup, SeenRun
from ui.visit import chosen, visit
from ui.words import limit_name, plain, sentence_case, tell, tell_unreadable

VIEWS = {
    "replica": "A replica of the plan",
    "lesson": "Lesson: batching",
    "course": "By the course's method",
}
LEARN = {"lesson": "learn.lesson_view", "course": "learn.course_view"}
"""Views of another room, found by name."""
LOOKS = {
    "time": "Over time",
    "close": "Close-up",
    "latency": "Latencies",
    "request": "Slowest request",
    "formula": "Against the formula",
}


def page(scenario: Scenario) -> None:
    """The whole page: the replica of a scenario's plan, or what is shown beside it."""
    shown = chosen("What to inspect", VIEWS, "simulate")
    if shown in LEARN:
        import_module(LEARN[shown]).page(scenario)
    else:
        _replica(scenario)


def _replica(scenario: Scenario) -> None:
    if scenario.missing:
        st.title(scenario.missing, anchor=False)
        st.markdown("Complete the form on the left; the replica to inspect appears at once.")
        return
    with st.spinner("Computing the plan whose replica is simulated…"):
        outcome = answers.outcome(scenario)
    tell_unreadable(answers.measured_points().problems)
    if outcome.plan is None:
        _no_plan(scenario, outcome)
        return
    head = st.container()
    left, right = st.columns([1, 3])
    with left:
        fleet = _picked(outcome.plan)
    with right:
        setup = inside.draw(inside.planned(fleet, outcome.plan.question))
    seen = _seen(outcome.plan, fleet, setup, head)
    if seen is None:
        return
    with head:
        _headline(seen)
    _cards(seen)
    _look(seen)


def _no_plan(scenario: Scenario, outcome: Outcome) -> None:
    tell(scenario, outcome)
    st.markdown("The simulation needs the load of a plan, and there is none: change the form on the left.")


def _picked(plan: Plan) -> Fleet:
    """The answer, or another fleet of the plan; the choice is in the URL."""
    fleets = answers.named(plan.fleets)
    key = PREFIX + "replica"
    if st.session_state.get(key) not in fleets:
        st.session_state[key] = next(iter(fleets))
    label = st.selectbox(
        "Replica to inspect",
        list(fleets),
        format_func=spelt,
        key=key,
        label_visibility="collapsed",
        persist_state="session",
    )
    visit().shown[key] = label
    return fleets[label]


def _seen(plan: Plan, fleet: Fleet, setup: RunSetup, head: st.delta_generator.DeltaGenerator) -> SeenRun | None:
    """The run and its result; None, and why on the page, where it cannot be simulated."""
    try:
        run = inside.run_of(setup, fleet, plan.question)
        with st.spinner(f"Simulating {setup.requests:,} requests…"):
            result = inside.outcome(run)
    except ScenarioError as error:
        result = str(error)
    if isinstance(result, str):
        head.title("This run cannot be simulated", anchor=False)
        head.markdown(f"{plain(sentence_case(result))}. Change the settings of the run below.")
        return None
    return SeenRun(plan, fleet, setup, run, result)


def _headline(seen: SeenRun) -> None:
    first, *others = learned(seen.result, seen.plan.question.sla, seen.setup.load_per_s)
    st.title(plain(first), anchor=False)
    if others:
        st.markdown(plain(". ".join(others) + "."))
    basis_line(seen.fleet.basis, _provenance(seen))


def _provenance(seen: SeenRun) -> str:
    unit, seconds = time_unit(seen.run.lasts_s)
    lasted = significant(seen.run.lasts_s / seconds)
    alone = seen.run.together == 1 and seen.fleet.working > 1
    behind = f"one replica represents all {seen.fleet.working}" if alone else f"replicas simulated: {seen.run.together}"
    return f"{seen.run.requests:,} requests in {lasted} {unit}, {behind} · {seen.fleet.candidate.source}"


def _cards(seen: SeenRun) -> None:
    result = seen.result
    limited = exceedances(result, seen.plan.question.sla)
    with rows_of_cards(len(limited) + 3 + bool(result.watched.pauses)):
        for limit, share, allowed in limited:
            _limit_card(result, limit, share, allowed)
        in_flight = significant(result.mean_in_flight / seen.run.replicas)
        card("In flight", in_flight, "running and waiting", IN_FLIGHT_HELP)
        card("Peak KV cache", *_kv_peak(seen), KV_HELP)
        if result.watched.pauses:
            card("Pauses", f"{result.watched.pauses:,}", "because the KV cache was full", PAUSES_HELP)
        card("Not served", f"{result.lost:,}", _losses(result), LOST_HELP)


def _losses(result: Simulated) -> str:
    counts = {"rejected": result.rejected, "timed out": result.timed_out, "cancelled": result.cancelled}
    served = "all served" if result.watched.pauses else "all served, no pauses"
    return ", ".join(f"{count:,} {name}" for name, count in counts.items() if count) or served


CLOSE_HELP = "Close-up: about two request lifetimes, iteration by iteration where there are few."
IN_FLIGHT_HELP = "Requests in a replica at once, running and waiting, averaged over time."
KV_HELP = "Most tokens that running requests held at once in the first replica, and the size of its cache."
PAUSES_HELP = "How often a running request was paused and lost its KV cache to others, over the whole run."
LOST_HELP = "Requests rejected by a full queue, or dropped from it after the timeout."


def _limit_card(result: Simulated, limit: Limit, share: float, allowed: float) -> None:
    kept = share <= allowed + 1e-9 and not result.saturated
    predicted = result.prediction(limit.within)
    lost = bool(result.lost) and limit.metric != "gap"
    over = "" if limit.metric == "rejected" else " missed" if lost else " over"
    beyond = f"over {limit.said(limit.limit_s)}{' or not served' if lost else ''}"
    what = "gaps" if limit.metric == "gap" else "requests"
    st.metric(
        limit_name(limit),
        predicted.said(limit),
        "no steady state" if result.saturated else f"{_percent(share)}{over} (max {_percent(allowed)})",
        delta_color="green" if kept else "red",
        delta_arrow="off",
        icon=":material/check_circle:" if kept else ":material/cancel:",
        border=True,
        help=f"In this run, with the share of {what} {beyond} and the share allowed.",
    )


def _percent(share: float) -> str:
    return f"{significant(100 * share)} %"


def _kv_peak(seen: SeenRun) -> tuple[str, str]:
    peak = float(max(seen.result.watched.series[0].kv_tokens, default=0.0))
    if seen.setup.kv_tokens >= UNLIMITED_KV_TOKENS:
        return significant(peak), "tokens; size unknown"
    return _percent(peak / seen.setup.kv_tokens), f"of {seen.setup.kv_tokens:,} tokens"


def _look(seen: SeenRun) -> None:
    """Only what is looked at is drawn."""
    if seen.result.saturated:
        st.warning("The queue grows throughout the run: latencies only reflect how long the run lasted.")
    LOOK[chosen("What to look at", LOOKS, "inside", help=CLOSE_HELP)](seen)


LOOK = {
    "time": inside.over_time,
    "close": inside.close_look_view,
    "latency": inside.latencies,
    "request": inside.slowest,
    "formula": inside.against,
}

page(visit().scenario)
