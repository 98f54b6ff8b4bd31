"""How charts and tables are put on the page: the theme's ink, no tool bars, text for those who cannot see them."""

from __future__ import annotations

import streamlit as st

from ui.charts.base import CONFIG, DARK, LIGHT, Chart, Ink


def ink() -> Ink:
    """The ink of the theme that the visitor sees."""
    return DARK if st.context.theme.type == "dark" else LIGHT


def show(chart: Chart, key: str) -> None:
    """Draw a chart with its alternative text."""
    st.plotly_chart(chart.figure, key=f"chart_{key}", config=CONFIG, alt=chart.alt)
