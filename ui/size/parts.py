"""What the answers of the Size page have in common: badge and band, cards, sources that failed, what was left out."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from sizing.numbers import milliseconds
from sizing.plan import Basis, Rejection
from sizing.prediction import Prediction
from sizing.workload import Limit, Sla
from ui import answers
from ui.words import BASIS_HELP, BASIS_LOOK, LEFT_OUT_ONE, counted, limit_name, plain, room, sentence_case

CALIBRATE = "ui/pages/calibrate.py"
ROWS_SEEN = 4
"""Rows of a table of configurations before it scrolls."""
ROW_PX, HEADER_PX = 28, 36


def tell_unreadable_sources() -> None:
    """A line for each source of points that cannot be read; the answer goes on from the others."""
    for problem in answers.measured().problems:
        st.warning(plain(problem), title="Measured points could not be read; the answer goes on without them")


def link_to_calibrate(label: str = "Measure it") -> None:
    """To the page where one's own points come from."""
    st.page_link(CALIBRATE, label=label, icon=":material/speed:")


def basis_line(basis: Basis, words: str, why_wide: str = "") -> None:
    """The badge of the basis, the band, the source, and where the answer is not measured how to measure it."""
    icon, colour = BASIS_LOOK[basis]
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        help_ = f"{BASIS_HELP[basis]} {plain(why_wide)}".rstrip()
        st.badge(basis.capitalize(), icon=icon, color=colour, help=help_)
        st.caption(plain(words), width="content")
        if basis in ("estimated", "extrapolated"):
            link_to_calibrate()


def limit_cards(predicted: Prediction, sla: Sla, binding: Limit | None) -> None:
    """One card for each limit: what is predicted, and how far it is from the limit."""
    for limit in sla.limits:
        value_s = predicted.value_s(limit)
        kept = value_s <= limit.limit_s
        binds = " (binds)" if limit == binding else ""
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


def card(label: str, value: str, below: str, help_: str) -> None:
    """A card with a plain line below its number."""
    st.metric(label, value, below, delta_color="off", delta_arrow="off", border=True, help=help_)


def table_height(rows: int) -> int:
    """Pixels of a table of configurations."""
    return ROW_PX * min(ROWS_SEEN, rows) + HEADER_PX


def warnings(basis: Basis, lines: Sequence[str], measure: str = "") -> None:
    """What the reader must know before buying: loud where the law is used outside what was measured."""
    if basis == "extrapolated":
        text = [*map(sentence_case, lines), *([measure] if measure else [])]
        st.warning("  \n".join(map(plain, text)), title="Measure before buying", icon=":material/warning:")
        return
    for line in lines:
        st.caption(f":material/warning: {plain(sentence_case(line))}")


def left_out(rejected: Sequence[Rejection], expanded: bool = False) -> None:
    """Every configuration that is no answer, and why, behind a line that counts the reasons."""
    if not rejected:
        st.caption("No configuration was left out.")
        return
    several = "configurations" if len(rejected) > 1 else "configuration"
    with st.expander(f"{len(rejected)} {several} left out: {counted([r.kind for r in rejected])}", expanded=expanded):
        rows = [(r.gpu, r.tp, r.precision, sentence_case(LEFT_OUT_ONE[r.kind]), r.why) for r in rejected]
        table = pd.DataFrame(rows, columns=["GPU", "TP", "Precision", "Reason", "Why"])
        wide = {"Why": st.column_config.TextColumn(width="large")}
        st.dataframe(table, hide_index=True, column_config=wide, alt="Configurations left out, and why")
