"""What has been measured, what the present question's answer stands on, and which level to measure next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple

import pandas as pd
import streamlit as st

from sizing import answer
from sizing.curves import Deployment, Point
from sizing.design import Option
from sizing.plan import Plan
from sizing.workload import Lengths
from ui import answers, calibrating
from ui.calibrate import fields
from ui.scenario import Scenario
from ui.view import PREFIX
from ui.words import BASIS_HELP, BASIS_LOOK, plain

state = st.session_state
ROW_PX, HEADER_PX, ROWS_SEEN = 28, 38, 10
ENOUGH = 2
"""Load levels from which a law can be fitted."""


def coverage_view(scenario: Scenario, waiting: int) -> None:
    """`waiting` points of the store are not accepted yet."""
    if waiting:
        st.info(f"{waiting} points wait to be accepted, and are not counted here: see Runs.")
    if points := answers.measured().points:
        _measured(points)
    else:
        st.markdown("**Nothing has been measured yet.** Plan a run under New run, or bring in a file under Import.")
    _stands_on(scenario)


def _measured(points: Sequence[Point]) -> None:
    groups = _groups(points)
    table = pd.DataFrame([_row(deployment, lengths, group) for (deployment, lengths), group in groups.items()])
    st.dataframe(
        table,
        hide_index=True,
        row_height=ROW_PX,
        height=ROW_PX * min(len(table), ROWS_SEEN) + HEADER_PX,
        column_config={
            "Deployment": st.column_config.TextColumn(width="large"),
            "Levels (users)": st.column_config.TextColumn(help="Closed loops that are not void: these are fitted."),
            "Open loops": st.column_config.NumberColumn(help="At a rate: these check predictions."),
            "Basis of answers": st.column_config.TextColumn(help="Inside the range measured; outside: extrapolated."),
        },
        alt=f"What has been measured: {len(points)} points in {len(table)} rows of deployment and lengths",
    )


Group = dict[tuple[Deployment, Lengths], list[Point]]


def _groups(points: Sequence[Point]) -> Group:
    """The points by deployment and lengths; those of the scenario's model come first."""
    found: Group = {}
    for point in points:
        found.setdefault((point.deployment, point.lengths), []).append(point)
    wanted = state.scenario.model
    return dict(sorted(found.items(), key=lambda i: (i[0][0].model != wanted, i[0][0].label, astuple(i[0][1]))))


def _row(deployment: Deployment, lengths: Lengths, group: Sequence[Point]) -> dict[str, object]:
    good = [point for point in group if not point.void]
    users = sorted({point.load_value for point in good if point.load_kind == "concurrency"})
    void = sorted({point.verdict.replace("_", " ") for point in group if point.void})
    varied = "" if lengths.fixed else f" (CV {lengths.isl_cv:g}, {lengths.osl_cv:g})"
    return {
        "Deployment": deployment.label,
        "ISL, OSL (tokens)": f"{lengths.isl:,g}, {lengths.osl:,g}{varied}",
        "Levels (users)": ", ".join(f"{value:,g}" for value in users),
        "Open loops": sum(point.load_kind != "concurrency" for point in good),
        "Void": f"{len(group) - len(good)}: {', '.join(void)}" if void else "none",
        "Last measured": max((point.measured_at for point in group), default="")[:10] or "not said",
        "Basis of answers": "Fitted" if len(users) >= ENOUGH else "None: two levels are needed",
    }


def _stands_on(scenario: Scenario) -> None:
    """What the present question's answer rests on, and what would make it surer."""
    st.subheader("What the present question's answer stands on", anchor=False)
    if scenario.missing:
        st.markdown(f"{scenario.missing}: then there is an answer to look behind.")
        return
    with st.spinner("Working out what the answer stands on…"):
        outcome = answers.outcome(scenario)
    if outcome.plan is None:
        st.markdown(f"**{plain(outcome.title)}.** {plain(outcome.reason)}")
    else:
        _basis(outcome.plan)
    _next(scenario, outcome.plan)


def _basis(plan: Plan) -> None:
    fleet = plan.answer
    icon, colour = BASIS_LOOK[fleet.basis]
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.badge(fleet.basis.capitalize(), icon=icon, color=colour)
        st.markdown(plain(answer.sentence(plan)))
    st.caption(plain(f"{BASIS_HELP[fleet.basis]} {answer.band(fleet)}; {fleet.candidate.source}."))


def _next(scenario: Scenario, plan: Plan | None) -> None:
    """Which level to measure next: seconds of work, so only when asked for, and for that question alone."""
    deployment = _deployment(scenario, plan)
    if st.button("Where to measure next?", icon=":material/explore:", help=NEXT_HELP):
        state.advice_for = scenario
    if state.get("advice_for") != scenario:
        return
    with st.spinner("Weighing every level by what it would tell…"):
        advice = calibrating.advice(scenario, deployment)
    if advice.option is None:
        st.markdown(plain(advice.text))
        return
    option = advice.option
    level = f"{option.users} users, {option.lengths.isl:,g} in, {option.lengths.osl:,g} out"
    st.markdown(f"**Measure {plain(level)}.** {plain(advice.text)}")
    st.button("Plan this run", icon=":material/add:", on_click=_plan, args=(option, deployment))


NEXT_HELP = "Weighs every level not measured yet by how much it would narrow the band of this answer, for its time."


def _deployment(scenario: Scenario, plan: Plan | None) -> Deployment | None:
    """The measured deployment that the question is about: the answer's, else the first of the model."""
    own = [p.deployment for p in answers.measured().points if p.model.lower() == scenario.model.lower()]
    if plan is not None:
        best = plan.answer.candidate
        same = [d for d in own if (d.gpu, d.tp, d.precision) == (best.gpu, best.tp, best.precision)]
        return same[0] if same else None
    return own[0] if own else None


def _plan(option: Option, deployment: Deployment | None) -> None:
    """Fill the form of a new run with that level, and go there."""
    fields.fill(option.lengths, (option.users,) if deployment else (1, 4, 16, 64), deployment)
    state[PREFIX + "calibrate"] = "new"
