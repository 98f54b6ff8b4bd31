"""Requests/s per GPU over prompt lengths, a line for each output length; what was not measured is marked."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from sizing.length_grid import LengthCell
from sizing.numbers import significant
from ui.charts.base import LOG_FROM, SMALL, SYMBOLS, Chart, Ink, figure_of

WIDE = 1000.0
"""A range of values this wide has a line for each power of ten alone."""
DASHES = ("dash", "solid", "dot", "dashdot", "longdash")


def requests_over_lengths(cells: Sequence[LengthCell], isl: float, osl: float, ink: Ink) -> Chart:
    """Lines over ISL for each OSL; hollow markers are extrapolated; the scenario's own lengths have a larger marker."""
    figure = figure_of("Requests/s per GPU", "Input (tokens)", ink, height=360)
    for number, length in enumerate(sorted({cell.osl for cell in cells})):
        known = [cell for cell in cells if cell.osl == length and cell.requests_per_s_per_gpu is not None]
        if not known:
            continue
        colour, symbol = ink.series[number % len(ink.series)], SYMBOLS[number % len(SYMBOLS)]
        symbols = [f"{symbol}-open" if cell.basis == "extrapolated" else symbol for cell in known]
        figure.add_scatter(
            x=[cell.isl for cell in known],
            y=[cell.requests_per_s_per_gpu for cell in known],
            mode="lines+markers",
            name=f"{length:,g} out",
            line={"color": colour, "width": 2, "dash": DASHES[number % len(DASHES)]},
            marker={
                "color": colour,
                "opacity": 1,
                "symbol": symbols,
                "size": [_size(cell, isl, osl) for cell in known],
            },
            customdata=[cell.basis for cell in known],
            hovertemplate="%{x:,} in<br>%{y:.3g} requests/s per GPU<br>%{customdata}<extra>%{fullData.name}</extra>",
        )
    _rate_axis(figure, [cell.requests_per_s_per_gpu for cell in cells if cell.requests_per_s_per_gpu])
    figure.update_xaxes(type="log", tickvals=sorted({cell.isl for cell in cells}), tickformat=",", minor_showgrid=False)
    figure.update_layout(
        showlegend=True,
        legend={"orientation": "h", "x": 1, "xanchor": "right", "y": 1, "yanchor": "bottom", "font": {"size": SMALL}},
    )
    return Chart(figure, _in_words(cells, isl, osl))


def _rate_axis(figure: go.Figure, values: Sequence[float]) -> None:
    if values and max(values) / min(values) > LOG_FROM:
        few = max(values) / min(values) > WIDE
        figure.update_yaxes(type="log", dtick=1 if few else "D2", tickformat=",~g")
    else:
        figure.update_yaxes(rangemode="tozero")


def _size(cell: LengthCell, isl: float, osl: float) -> int:
    return 14 if (cell.isl, cell.osl) == (isl, osl) else 8


def _in_words(cells: Sequence[LengthCell], isl: float, osl: float) -> str:
    known = [cell for cell in cells if cell.requests_per_s_per_gpu is not None]
    if not known:
        return "Requests/s per GPU over lengths: the SLA holds at none of them."
    ends = (
        min(known, key=lambda cell: cell.requests_per_s_per_gpu or 0),
        max(known, key=lambda cell: cell.requests_per_s_per_gpu or 0),
    )
    own = next((cell for cell in known if (cell.isl, cell.osl) == (isl, osl)), None)
    here = f"{significant(own.requests_per_s_per_gpu or 0)} at {isl:,g} in, {osl:,g} out; " if own else ""
    low, high = (
        f"{significant(cell.requests_per_s_per_gpu or 0)} at {cell.isl:,g} in, {cell.osl:,g} out" for cell in ends
    )
    missing = len(cells) - len(known)
    return f"Requests/s per GPU over lengths: {here}lowest {low}; highest {high}; none at {missing} of {len(cells)}."
