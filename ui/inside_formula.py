"""What the Simulate page says of the formula: each of its figures beside the run's."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from sizing.compared import Compared, compared
from sizing.numbers import milliseconds, percent
from sizing.queueing.agreement import TOLERANCE
from sizing.workload import METRICS, metric_name
from ui import simulating
from ui.charts.agreement import Pairs, agreement
from ui.charts.base import Chart
from ui.look import ink, show
from ui.simulating import Seen
from ui.words import plain, sentence_case


def against(seen: Seen) -> None:
    """Table and chart of the differences, or why there are none."""
    with st.spinner("Asking the formula…"):
        said = simulating.by_formula(seen.run)
    if isinstance(said, str):
        st.caption(f":material/info: No formula for this run: {plain(said)}")
        return
    for warning in said.warnings:
        st.caption(f":material/warning: {plain(sentence_case(warning))}")
    if said.saturated or seen.result.saturated:
        agree = said.saturated == seen.result.saturated
        verdict = "agree: there is no steady state" if agree else "disagree on whether this load has a steady state"
        st.markdown(f"**Formula and simulation {verdict}**, so there are no percentiles to compare.")
        return
    figures = compared(seen.result, said)
    st.markdown(_verdict(sum(figure.far for figure in figures), len(figures)))
    left, right = st.columns([2, 3])
    with left:
        show(_differences(figures), "parity")
    right.dataframe(pd.DataFrame(map(_cells, figures)), hide_index=True, height="content", row_height=28, alt=TABLE_ALT)


TABLE_ALT = "Mean and percentiles of TTFT, ITL, gaps and E2E by simulation and by formula"


def _cells(figure: Compared) -> dict[str, str]:
    low_s, high_s = figure.interval_s or (None, None)
    return {
        "Figure": figure.name,
        "Simulation": milliseconds(figure.simulated_s),
        "90 % interval": "" if low_s is None or high_s is None else f"{milliseconds(low_s)} to {milliseconds(high_s)}",
        "Formula": milliseconds(figure.formula_s),
        "Difference": f"{100 * figure.apart:+.1f} %",
        "Verdict": f"over {percent(TOLERANCE)}" if figure.far else "agrees",
    }


def _verdict(far: int, of: int) -> str:
    if not far:
        return (
            f":material/check_circle: **Formula and simulation agree** within {percent(TOLERANCE)} on all {of} figures."
        )
    return (
        f":material/warning: **Formula and simulation differ by more than {percent(TOLERANCE)}** on {far} of {of} "
        "figures. There the simulation counts: the plan's own count is checked by it."
    )


def _differences(figures: Sequence[Compared]) -> Chart:
    kinds = []
    for metric in METRICS:
        own = [figure for figure in figures if figure.metric == metric]
        first, second = [1000 * figure.simulated_s for figure in own], [1000 * figure.formula_s for figure in own]
        kinds.append(Pairs(metric_name(metric), first, second, [figure.name for figure in own]))
    return agreement("Formula against simulation", "By simulation (ms)", kinds, TOLERANCE, ink())
