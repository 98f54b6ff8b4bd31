"""The price of the last per cent: GPUs of the answer's configuration at rising goodput."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from sizing import text
from sizing.analyses.sensitivity import GoodputPrice
from sizing.numbers import significant
from sizing.plans import Plan
from ui import answers
from ui.scenario import Scenario
from ui.views.answer import ROW_PX, basis_line, tell_change_since_link, warnings
from ui.words import plain, tell_unreadable


def show_prices(plan: Plan, prices: Sequence[GoodputPrice], scenario: Scenario) -> None:
    """The table, and what the step to the highest goodput takes."""
    tell_unreadable(answers.measured_points().problems)
    fleet = plan.answer
    with st.container(gap="xsmall"):
        st.title(plain(text.goodput_sentence(prices)), anchor=False)
        st.markdown(plain(text.GOODPUT_JUDGED))
        basis_line(fleet.basis, f"{fleet.candidate.label} · {fleet.candidate.source}")
    tell_change_since_link(fleet.gpus, scenario)
    st.dataframe(
        pd.DataFrame(rows(prices)),
        hide_index=True,
        row_height=ROW_PX,
        column_config={
            "Goodput": st.column_config.TextColumn(help="Share of all requests that keep every limit at once."),
            "GPUs": st.column_config.TextColumn(alignment="right"),
            "More than the row above": st.column_config.TextColumn(
                help="GPUs that the better service takes.", alignment="right"
            ),
            "Requests/s per GPU": st.column_config.TextColumn(alignment="right"),
        },
        alt=f"{text.GOODPUT_PRICE}: {text.goodput_sentence(prices)}.",
    )
    warnings(fleet.basis, fleet.warnings)


def rows(prices: Sequence[GoodputPrice]) -> list[dict[str, str]]:
    """A row for each goodput, as read."""
    before: int | None = None
    found = []
    for price in prices:
        fleet = price.fleet
        more = "" if before is None or fleet is None else f"+{fleet.gpus - before:,}"
        found.append(
            {
                "Goodput": f"{price.percent:g} %",
                "GPUs": "SLA fails" if fleet is None else f"{fleet.gpus:,}",
                "More than the row above": more,
                "Replicas": "" if fleet is None else f"{fleet.working:,} + {fleet.spare:,} spare",
                "Requests/s per GPU": "" if fleet is None else significant(fleet.requests_per_s_per_gpu),
            }
        )
        before = fleet.gpus if fleet else None
    return found
