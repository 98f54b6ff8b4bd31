"""How charts and tables are put on the page: the theme's ink, no tool bars, text for those who cannot see them."""

from __future__ import annotations

import streamlit as st

from ui.charts.base import CONFIG, DARK, LIGHT, Chart, Ink

CHOSEN_SEGMENT = """<style>
[data-testid="stMain"] [data-variant="segmented_control"][data-selected="true"],
[data-testid="stMain"] [data-variant="segmented_control"][data-selected="true"] p { color: inherit; }
</style>"""
"""Streamlit writes the chosen segment in the primary colour on a tint of it: 3.8:1 in the dark theme, where 4.5:1 can
be read by everybody (WCAG 2.2, 1.4.3). White in that colour must have as much, and no colour has both."""


def mend() -> None:
    """Put what the theme cannot say on the page."""
    st.html(CHOSEN_SEGMENT)


def ink() -> Ink:
    """The ink of the theme that the visitor sees."""
    return DARK if st.context.theme.type == "dark" else LIGHT


def show(chart: Chart, key: str) -> None:
    """Draw a chart with its alternative text."""
    st.plotly_chart(chart.figure, key=f"chart_{key}", config=CONFIG, alt=chart.alt)
