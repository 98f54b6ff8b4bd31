"""How charts and tables are put on the page: the theme's ink, no tool bars, text for those who cannot see them."""

from __future__ import annotations

import math

import pandas as pd
import pyarrow as pa
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from sizing.plans import Basis
from ui.charts.base import CONFIG, DARK, LIGHT, Chart, Ink
from ui.words import BASIS_HELP, BASIS_LOOK, plain

STYLE = """<style>
[data-testid="stMain"] [data-variant="segmented_control"][data-selected="true"],
[data-testid="stMain"] [data-variant="segmented_control"][data-selected="true"] p { color: inherit; }
[data-testid="stMetricLabel"] p { white-space: normal; }
@media (min-width: 60rem) { [data-testid="stMainBlockContainer"] { padding-left: 2.5rem; padding-right: 2.5rem; } }
[data-testid="stNumberInput"]:has([placeholder=""]) [data-testid="stNumberInputClearButton"] { display: none; }
[data-testid="stNumberInput"] [data-testid="InputInstructions"] { display: none; }
[data-testid="stTable"] td [data-testid="stMarkdownContainer"] { max-width: none; }
</style>"""
"""Streamlit writes the chosen segment in the primary colour on a tint of it: 3.8:1 in the dark theme, where 4.5:1 can
be read by everybody (WCAG 2.2, 1.4.3). White in that colour must have as much, and no colour has both.

Of the label of a card it shows a line and cuts the rest, on a phone "p95 TTFT of first t…". Left and right of a page
at a desk it leaves 80 pixels each, which tables need. It offers to empty every number that has no default; here those
that may be empty have a placeholder. It writes "Press Enter to apply" over the digits of a number field; leaving the
field applies the number too. It breaks the lines of a table's cell at 350 pixels, however wide its column is."""


def mend() -> None:
    """Put what the theme cannot say on the page."""
    st.html(STYLE)


def ink() -> Ink:
    """The ink of the theme that the visitor sees."""
    return DARK if st.context.theme.type == "dark" else LIGHT


def show(chart: Chart, key: str) -> None:
    """Draw a chart with its alternative text."""
    st.plotly_chart(chart.unchecked, key=f"chart_{key}", config=CONFIG, alt=chart.alt)


def data_behind(table: pd.DataFrame | pa.Table, alt: str) -> None:
    """The numbers that charts draw, as a table in a fold below them."""
    with st.expander("Data behind the charts"):
        st.dataframe(table, hide_index=True, alt=alt)


def basis_line(basis: Basis, words: str, why: str = "") -> DeltaGenerator:
    """The badge of a basis, `why` in its help, and `words` beside it; the row, for what else is to stand in it."""
    icon, colour = BASIS_LOOK[basis]
    row = st.container(horizontal=True, vertical_alignment="center", gap="small")
    row.badge(basis.capitalize(), icon=icon, color=colour, help=f"{BASIS_HELP[basis]} {plain(why)}".rstrip())
    row.caption(plain(words), width="content")
    return row


def rows_of_cards(count: int) -> DeltaGenerator:
    """A grid for `count` cards, in rows of equal length or nearly so; on a phone two beside each other."""
    rows = math.ceil(count / MOST_IN_ROW)
    return st.grid(math.ceil(count / rows), min_column_width=150)


MOST_IN_ROW = 5
"""Cards beside each other at a desk: of more their words are cut."""


def card(label: str, value: str, below: str, help_: str) -> None:
    """A card with a plain line below its number."""
    st.metric(label, value, below, delta_color="off", delta_arrow="off", border=True, help=help_)
