"""How many GPUs: the answer as a sentence, its arithmetic, how sure it is, what binds, and the other ways."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import streamlit as st

from sizing import answer
from sizing.loadcurve import LoadCurve
from sizing.numbers import milliseconds, significant
from sizing.plan import Fleet, Plan
from sizing.servers import servers, usual_server
from ui import answers
from ui.charts.latency import latency_against_load
from ui.look import ink, show
from ui.scenario import Scenario
from ui.size.measure import to_measure
from ui.size.parts import (
    ROW_PX,
    basis_line,
    card,
    left_out,
    limit_cards,
    table_height,
    tell_unreadable_sources,
    warnings,
)
from ui.values import use_candidate
from ui.words import gpus_band, limit_name, plain

PER_GPU_HELP = (
    "What a working replica is planned for, SLA met and headroom kept, over its GPUs. Over all GPUs owned: {}."
)
GPUS_HELP = "GPUs to own: all replicas, spares included, times the GPUs of each."
CHART_PX = 210
"""Height of a chart here: low, so that the whole answer is seen at once."""
COMPARE = "ui/pages/compare.py"


def show_plan(plan: Plan, scenario: Scenario) -> None:
    """The whole answer, the sentence first: the curve behind the charts is worked out when the rest can be read."""
    tell_unreadable_sources()
    with st.container(gap="xsmall"):
        headline(plan, scenario)
    tell_change_since_link(plan.answer.gpus, scenario)
    _cards(plan)
    with st.container(gap="xsmall"):
        _remarks(plan, scenario)
    curve = answers.curve(scenario, plan)
    limits = plan.question.sla.limits
    for column, limit in zip(st.columns(len(limits)), limits, strict=True):
        with column:
            chart = latency_against_load(curve, plan.answer, limit, plan.question.headroom, ink())
            chart.figure.update_layout(height=CHART_PX)
            show(chart, limit.metric)
    _alternatives(plan, scenario)
    one, other = st.columns(2)
    with one:
        left_out(plan.rejected)
    with other, st.expander("Data behind the charts"):
        st.dataframe(_chart_data(plan, curve), hide_index=True, alt="Latencies at rising load, as drawn in the charts")


def headline(plan: Plan, scenario: Scenario) -> None:
    """The sentence, the arithmetic, and how sure it is."""
    fleet = plan.answer
    st.title(plain(answer.sentence(plan)), anchor=False)
    st.markdown(plain(working(plan, scenario)))
    checked = "checked by simulation" if fleet.verified else "by formula"
    basis_line(fleet.basis, f"{answer.band(fleet)} · {fleet.candidate.source} · {checked}", answer.why_wide(fleet))


def working(plan: Plan, scenario: Scenario) -> str:
    """The arithmetic from the load to the GPUs, and on to servers where their size is known."""
    fleet = plan.answer
    per_server = scenario.gpus_per_server or usual_server(fleet.candidate.gpu)
    if per_server is None:
        return answer.working(plan)
    count = servers(fleet.replicas, fleet.candidate.gpus, per_server)
    return f"{answer.working(plan)} in {count:,} server{'s' if count > 1 else ''} of {per_server}"


def tell_change_since_link(gpus: int | None, scenario: Scenario) -> None:
    """Where a link brought an answer, or its data, other than today's: both, until the scenario is edited."""
    then, old = st.session_state.linked_gpus, st.session_state.linked_data
    if then is None or scenario != st.session_state.linked:
        return
    new = answers.stamp(scenario)
    of_old, of_new = (f" ({stamp.words})" if stamp else "" for stamp in (old, new))
    cause = "with today's program" if old == new else "with today's data and program"
    if gpus is None:
        st.info(f"When this link was made{of_old} there was an answer; {cause}{of_new} there is none.")
    elif gpus != then:
        st.info(f"When this link was made the answer was {then:,} GPUs{of_old}; {cause} it is {gpus:,}{of_new}.")
    elif old not in (None, new):
        st.caption(f"The data have changed since this link was made{of_old}; the answer is the same{of_new}.")


def _cards(plan: Plan) -> None:
    fleet, price = plan.answer, plan.question.price_per_gpu_hour
    with st.grid(2 + len(plan.question.sla.limits), min_column_width=150):
        cost = f", {significant(price * fleet.gpus)} per hour" if price is not None else ""
        energy = answer.energy_line(plan)
        gpus_help = f"{GPUS_HELP} {energy}." if energy else GPUS_HELP
        card("GPUs", f"{fleet.gpus:,}", f"{fleet.working} + {fleet.spare} replicas{cost}", gpus_help)
        owned = significant(plan.question.workload.rate_per_s / fleet.gpus)
        each = f"{significant(fleet.requests_per_s_per_replica)} per replica"
        card("Requests/s per GPU", significant(fleet.requests_per_s_per_gpu), each, PER_GPU_HELP.format(owned))
        limit_cards(fleet.predicted, plan.question.sla, fleet.binding)


def _remarks(plan: Plan, scenario: Scenario) -> None:
    """What binds and what a higher load would need; costs; then what the reader must know before buying."""
    fleet = plan.answer
    st.markdown(f"**Bound by** {plain(answer.binding(fleet))}. {plain(answer.sensitivity(plan))}.")
    if plan.mean_based:
        st.markdown(f":material/lightbulb: {plain(plan.mean_based.text)}")
    for line in (answer.cost_line(plan), answer.peak(plan.question) if plan.question.price_per_gpu_hour else None):
        if line:
            st.caption(f":material/payments: {plain(line)}.")
    measure = to_measure(fleet.candidate, scenario.lengths, fleet.in_flight, answers.measured().points)
    warnings(fleet.basis, fleet.warnings, measure)


def _alternatives(plan: Plan, scenario: Scenario) -> None:
    table = pd.DataFrame([_row(fleet, plan.question.price_per_gpu_hour) for fleet in plan.fleets])
    number = st.column_config.NumberColumn
    picked = st.dataframe(
        table,
        hide_index=True,
        row_height=ROW_PX,
        height=table_height(len(table)),
        key="alternatives",
        on_select="rerun",
        selection_mode="single-row",
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
    for row in picked.selection.rows[:1]:
        if row < len(plan.fleets):  # a row picked before the table changed
            _picked(replace(plan, fleets=(plan.fleets[row],)), scenario)


def _picked(plan: Plan, scenario: Scenario) -> None:
    """The working of a row that was picked, and what to do with it; `plan` holds that fleet alone."""
    fleet = plan.answer
    with st.container(border=True):
        st.markdown(f"**{plain(fleet.candidate.label)}:** {plain(working(plan, scenario))}")
        st.caption(plain(f"{answer.band(fleet)} · bound by {answer.binding(fleet)} · {fleet.candidate.source}"))
        with st.container(horizontal=True, vertical_alignment="center"):
            st.button("Plan with this one", on_click=use_candidate, args=(fleet.candidate,))
            st.page_link(COMPARE, label="Compare", icon=":material/table_rows:")


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


def _chart_data(plan: Plan, curve: LoadCurve) -> pd.DataFrame:
    """A row for each load of the charts; infinite where the queue grows without end."""
    limits = plan.question.sla.limits
    rows = [
        {"Load (requests/s per replica)": significant(rate)}
        | {limit_name(limit): milliseconds(said.value_s(limit)) for limit in limits}
        for rate, said in zip(curve.rates_per_s, curve.predictions, strict=True)
    ]
    return pd.DataFrame(rows)


def _in_words(fleet: Fleet) -> str:
    return f"{fleet.gpus} GPUs as {fleet.candidate.label}"
