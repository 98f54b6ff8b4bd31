"""Size: how many GPUs for this load under this SLA? One sentence, its arithmetic, and how sure it is."""

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from sizing import answer
from sizing.numbers import milliseconds, significant
from sizing.plan import Fleet, Plan, Rejection
from sizing.workload import Limit
from ui import answers
from ui.answers import Outcome
from ui.charts.latency import latency_against_load
from ui.look import ink, show
from ui.scenario import Scenario
from ui.words import BASIS_HELP, BASIS_LOOK, LEFT_OUT_ONE, counted, gpus_band, limit_name, plain, room, sentence_case

ROWS_SEEN = 5
"""Rows of the table of alternatives before it scrolls."""
ROW_PX, HEADER_PX = 28, 36

PER_GPU_HELP = (
    "What a working replica is planned for, SLA met and headroom kept, over its GPUs. Over all GPUs owned: {}."
)


def page(scenario: Scenario) -> None:
    """The whole page for one scenario."""
    if scenario.missing:
        st.title(scenario.missing, anchor=False)
        st.markdown("The form on the left says what is asked; the answer appears at once.")
        return
    with st.spinner("Working out how many GPUs, and checking the answer by simulation…"):
        outcome = answers.outcome(scenario)
        curve = answers.curve(scenario, outcome.plan) if outcome.plan else None
    _tell_unreadable_sources()
    if outcome.plan is None or curve is None:
        _no_answer(outcome)
        return
    plan = outcome.plan
    st.session_state.gpus_found = plan.answer.gpus
    _headline(plan)
    _tell_change_since_link(plan, scenario)
    _cards(plan)
    _remarks(plan)
    limits = plan.question.sla.limits
    for column, limit in zip(st.columns(len(limits)), limits, strict=True):
        with column:
            show(latency_against_load(curve, plan.answer, limit, plan.question.headroom, ink()), limit.metric)
    _alternatives(plan)
    _left_out(plan.rejected)


def _tell_unreadable_sources() -> None:
    for problem in answers.measured().problems:
        st.warning(plain(problem), title="Measured points could not be read")


def _headline(plan: Plan) -> None:
    fleet = plan.answer
    st.title(plain(answer.sentence(plan)), anchor=False)
    st.markdown(plain(answer.working(plan)))
    icon, colour = BASIS_LOOK[fleet.basis]
    checked = "checked by simulation" if fleet.verified else "by formula"
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.badge(
            fleet.basis.capitalize(),
            icon=icon,
            color=colour,
            help=f"{BASIS_HELP[fleet.basis]} {plain(answer.why_wide(fleet))}".rstrip(),
        )
        st.caption(plain(f"{answer.band(fleet)} · {fleet.candidate.source} · {checked}"))


def _tell_change_since_link(plan: Plan, scenario: Scenario) -> None:
    then, now = st.session_state.linked_gpus, plan.answer.gpus
    if then is not None and then != now and scenario == st.session_state.linked:
        st.info(f"When this link was made the answer was {then} GPUs; with today's data and program it is {now}.")


def _cards(plan: Plan) -> None:
    fleet, price = plan.answer, plan.question.price_per_gpu_hour
    with st.grid(2 + len(plan.question.sla.limits), min_column_width=150):
        cost = f", {significant(price * fleet.gpus)} per hour" if price is not None else ""
        replicas = f"{fleet.working} + {fleet.spare} replicas{cost}"
        st.metric(
            "GPUs", f"{fleet.gpus:,}", replicas, delta_color="off", delta_arrow="off", border=True, help=GPUS_HELP
        )
        owned = significant(plan.question.workload.rate_per_s / fleet.gpus)
        st.metric(
            "Requests/s per GPU",
            significant(fleet.requests_per_s_per_gpu),
            f"{significant(fleet.requests_per_s_per_replica)} per replica",
            delta_color="off",
            delta_arrow="off",
            border=True,
            help=PER_GPU_HELP.format(owned),
        )
        for limit in plan.question.sla.limits:
            _limit_card(fleet, limit)


GPUS_HELP = "GPUs to own: all replicas, spares included, times the GPUs of each."


def _limit_card(fleet: Fleet, limit: Limit) -> None:
    value_s = fleet.predicted.value_s(limit)
    kept = value_s <= limit.limit_s
    binds = " (binds)" if limit == fleet.binding else ""
    st.metric(
        f"{limit_name(limit)}{binds}",
        milliseconds(value_s),
        room(value_s, limit),
        delta_color="green" if kept else "red",
        delta_arrow="off",
        icon=":material/check_circle:" if kept else ":material/cancel:",
        border=True,
        help=f"Predicted at the planned load; the limit is {milliseconds(limit.limit_s)} at p{limit.percentile}.",
    )


def _remarks(plan: Plan) -> None:
    """What binds and what a higher load would need; then what the reader must know before buying."""
    fleet = plan.answer
    st.markdown(f"**Bound by** {plain(answer.binding(fleet))}. {plain(answer.sensitivity(plan))}.")
    if plan.mean_based:
        st.markdown(f":material/lightbulb: {plain(plan.mean_based.text)}")
    if fleet.basis == "extrapolated":
        st.warning(
            "  \n".join(plain(sentence_case(line)) for line in (BASIS_HELP["extrapolated"], *fleet.warnings)),
            icon=":material/warning:",
        )
    else:
        for warning in fleet.warnings:
            st.caption(f":material/warning: {plain(sentence_case(warning))}")


def _alternatives(plan: Plan) -> None:
    table = pd.DataFrame([_row(fleet, plan.question.price_per_gpu_hour) for fleet in plan.fleets])
    number = st.column_config.NumberColumn
    st.dataframe(
        table,
        hide_index=True,
        row_height=ROW_PX,
        height=ROW_PX * min(ROWS_SEEN, len(table)) + HEADER_PX,
        column_config={
            "GPU": st.column_config.TextColumn(help="The first row is the answer."),
            "GPUs": number(format="%d", help=GPUS_HELP),
            "Requests/s per GPU": number(format="%.3g", help="Planned for a working replica, over its GPUs."),
            "Room to the SLA": number(format="%.0f %%", help="Left of the limit that binds, at the planned load."),
            "90 % band (GPUs)": st.column_config.TextColumn(
                help="The count at both ends of what is known of the times."
            ),
        },
        alt=f"Configurations that meet the SLA, fewest GPUs first: {'; '.join(map(_in_words, plan.fleets[:3]))}.",
    )


def _row(fleet: Fleet, price_per_gpu_hour: float | None) -> dict[str, object]:
    candidate, limit = fleet.candidate, fleet.binding
    row: dict[str, object] = {
        "GPU": candidate.gpu,
        "TP": candidate.tp,
        "Precision": candidate.precision,
        "GPUs": fleet.gpus,
        "Requests/s per GPU": fleet.requests_per_s_per_gpu,
        "Room to the SLA": 100 * (1 - fleet.predicted.value_s(limit) / limit.limit_s),
        "Limit that binds": limit_name(limit),
        "Basis": fleet.basis.capitalize(),
        "90 % band (GPUs)": gpus_band(fleet),
    }
    return row if price_per_gpu_hour is None else {**row, "Cost per hour": price_per_gpu_hour * fleet.gpus}


def _in_words(fleet: Fleet) -> str:
    return f"{fleet.gpus} GPUs as {fleet.candidate.label}"


def _left_out(rejected: Sequence[Rejection], expanded: bool = False) -> None:
    if not rejected:
        st.caption("No configuration was left out.")
        return
    several = "configurations" if len(rejected) > 1 else "configuration"
    with st.expander(f"{len(rejected)} {several} left out: {counted([r.kind for r in rejected])}", expanded=expanded):
        rows = [(r.gpu, r.tp, r.precision, sentence_case(LEFT_OUT_ONE[r.kind]), r.why) for r in rejected]
        table = pd.DataFrame(rows, columns=["GPU", "TP", "Precision", "Reason", "Why"])
        wide = {"Why": st.column_config.TextColumn(width="large")}
        st.dataframe(table, hide_index=True, column_config=wide, alt="Configurations left out, and why")


def _no_answer(outcome: Outcome) -> None:
    st.title(outcome.title, anchor=False)
    nearest = next((rejection for rejection in outcome.rejected if rejection.nearest_s is not None), None)
    if nearest is not None and nearest.limit is not None and nearest.nearest_s is not None:
        st.markdown(
            f"**Nearest miss:** {plain(f'{nearest.gpu} TP{nearest.tp} {nearest.precision}')}: "
            f"{limit_name(nearest.limit)} is {milliseconds(nearest.nearest_s)} even without load, "
            f"{room(nearest.nearest_s, nearest.limit)}. More GPUs do not help; a looser limit, another GPU, TP or "
            "precision may."
        )
    else:
        st.markdown(plain(sentence_case(outcome.rejected[0].why if outcome.rejected else outcome.reason)))
    if outcome.rejected:
        _left_out(outcome.rejected, expanded=True)


page(st.session_state.scenario)
