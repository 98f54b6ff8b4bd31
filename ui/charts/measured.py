"""Points as they were measured, and the law that was fitted to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sizing.numbers import significant
from ui.charts.base import SYMBOLS, Chart, Ink, figure_of, wide_axis


class Series(NamedTuple):
    """One measured quantity over the loads, and what the fitted law says of it (empty where there is no fit)."""

    name: str
    x: Sequence[float]
    measured: Sequence[float | None]
    law: Sequence[float]


def measured_and_law(title: str, x_title: str, series: Sequence[Series], ink: Ink) -> Chart:
    """Measured points as markers, the fitted law as a line; more than one series get their names at the end."""
    figure = figure_of(title, x_title, ink, height=270)
    for number, one in enumerate(series):
        colour = ink.series[number]
        if len(one.law):
            line = {"color": colour, "width": 2}
            figure.add_scatter(x=one.x, y=one.law, mode="lines", name=f"{one.name}, fitted law", line=line)
        marker = {"color": colour, "size": 9, "symbol": SYMBOLS[number], "line": {"color": ink.text, "width": 1}}
        figure.add_scatter(x=one.x, y=one.measured, mode="markers", name=f"{one.name}, measured", marker=marker)
    figure.update_traces(hovertemplate="%{x:.4g}<br>%{y:.4g}<extra>%{fullData.name}</extra>")
    wide_axis(figure.update_xaxes, [x for one in series for x in one.x], most_ticks=7)
    wide_axis(figure.update_yaxes, [y for one in series for y in one.measured if y is not None], most_ticks=5)
    return Chart(figure, f"{title} against {x_title}: " + "; ".join(map(_range_in_words, series)) + ".")


def _range_in_words(series: Series) -> str:
    known = [(x, y) for x, y in zip(series.x, series.measured, strict=True) if y is not None]
    if not known:
        return f"{series.name} not measured"
    (first, low), (last, high) = known[0], known[-1]
    return f"{series.name} {significant(low)} at {significant(first)}, {significant(high)} at {significant(last)}"
