"""The charts: values in, a plotly figure and the sentence that it shows out. No data is fetched here."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import plotly.graph_objects as go

from sizing.loadcurve import LoadCurve
from sizing.numbers import milliseconds, significant
from sizing.plan import Fleet
from sizing.workload import Limit
from ui.words import UNIT, limit_name


class Chart(NamedTuple):
    """A figure and its alternative text: what one learns from it."""

    figure: go.Figure
    alt: str


@dataclass(frozen=True, slots=True)
class Ink:
    """Colours of a theme: six for series, in the order of .streamlit/config.toml, then lines that carry meaning."""

    series: tuple[str, ...]
    limit: str
    text: str
    quiet: str
    grid: str
    band: str


LIGHT = Ink(
    ("#0072B2", "#D55E00", "#009E73", "#A64D79", "#7A5C00", "#4B4BB0"),
    "#B42318",
    "#1B2430",
    "#4A5563",
    "#E3E7EC",
    "#0072B21F",
)
DARK = Ink(
    ("#56B4E9", "#E69F00", "#2FC99A", "#E09BC2", "#F0E442", "#A9A9F5"),
    "#FF8A7A",
    "#E8ECF1",
    "#A9B4C0",
    "#2B333D",
    "#56B4E926",
)

CONFIG = {
    "displaylogo": False,
    "showSendToCloud": False,
    "displayModeBar": False,
    "scrollZoom": False,
    "responsive": True,
}
"""For every chart: no tool bar, nothing that sends data anywhere."""

LOG_FROM = 20.0
"""A range of values this wide is drawn on a logarithmic axis."""

SMALL = 11
"""Size of the labels inside a chart, in pixels."""


def latency_against_load(curve: LoadCurve, fleet: Fleet, limit: Limit, headroom: float, ink: Ink) -> Chart:
    """One limited latency against requests/s per replica: the limit, today's load, and the capacity with its headroom.

    Line by formula; the dot is the plan's own prediction, which for the answer is a simulation.
    """
    unit, per_s = UNIT[limit.metric]
    loads = [(rate, p.value_s(limit) * per_s) for rate, p in zip(curve.rates_per_s, curve.predictions, strict=True)]
    stable = [(rate, value) for rate, value in loads if math.isfinite(value)]
    rates, values = [rate for rate, _ in stable], [value for _, value in stable]
    planned, allowed = fleet.predicted.value_s(limit) * per_s, limit.limit_s * per_s
    figure = _figure(f"{limit_name(limit)} ({unit})", "Load (requests/s per replica)", ink)
    log = _limited_axis(figure, [*values, planned], allowed)
    _mark_capacity(figure, curve.capacity_per_s, headroom, ink)
    _mark_limit(figure, allowed, limit, log, ink)
    line = {"color": ink.series[0], "width": 2.5}
    figure.add_scatter(x=rates, y=values, mode="lines", name=limit_name(limit), line=line)
    _mark_planned(figure, curve.planned_per_s, planned, planned < 0.7 * allowed, ink)
    hover = "%{x:.3g} requests/s per replica<br>%{y:.4g} " + unit + "<extra>%{fullData.name}</extra>"
    figure.update_traces(hovertemplate=hover)
    figure.update_xaxes(range=[0, max([*rates, curve.capacity_per_s]) * 1.02])
    return Chart(figure, _load_in_words(curve, fleet, limit))


def _load_in_words(curve: LoadCurve, fleet: Fleet, limit: Limit) -> str:
    return (
        f"{limit_name(limit)} against load: {milliseconds(fleet.predicted.value_s(limit))} at the planned "
        f"{significant(curve.planned_per_s)} requests/s per replica, limit {milliseconds(limit.limit_s)}; the SLA "
        f"fails above {significant(curve.capacity_per_s)} requests/s per replica."
    )


def _limited_axis(figure: go.Figure, values: Sequence[float], limit: float) -> bool:
    """An axis that shows the limit: what lies far above it is cut off. True when it is logarithmic."""
    low, top = min(values), limit * (1.5 if max(values) > limit else 1.2)
    if top / low > LOG_FROM:
        figure.update_yaxes(type="log", range=[math.log10(low / 1.5), math.log10(top * 1.2)], dtick=1)
        return True
    figure.update_yaxes(range=[0, top], rangemode="tozero")
    return False


def _mark_limit(figure: go.Figure, allowed: float, limit: Limit, log: bool, ink: Ink) -> None:
    figure.add_hline(y=allowed, line={"color": ink.limit, "width": 1.5, "dash": "dash"})
    figure.add_annotation(
        x=0,
        xref="paper",
        y=math.log10(allowed)
        if log
        else allowed,  # on a logarithmic axis plotly places lines by value, text by exponent
        text=f"limit {milliseconds(limit.limit_s)}",
        showarrow=False,
        xanchor="left",
        yanchor="bottom",
        font={"color": ink.limit, "size": SMALL},
    )


def _mark_planned(figure: go.Figure, rate_per_s: float, value: float, far_below: bool, ink: Ink) -> None:
    figure.add_scatter(
        x=[rate_per_s],
        y=[value],
        mode="markers+text",
        name="planned load",
        text=["planned"],
        textposition="top left" if far_below else "bottom right",
        textfont={"color": ink.text, "size": SMALL},
        marker={"color": ink.series[1], "size": 11, "line": {"color": ink.text, "width": 1}},
    )


def _mark_capacity(figure: go.Figure, capacity_per_s: float, headroom: float, ink: Ink) -> None:
    figure.add_vline(x=capacity_per_s, line={"color": ink.text, "width": 1, "dash": "dot"}, opacity=0.7)
    figure.add_annotation(
        x=capacity_per_s,
        y=0,
        yref="paper",
        text=f"capacity {significant(capacity_per_s)}",
        showarrow=False,
        xanchor="right",
        yanchor="bottom",
        font={"color": ink.text, "size": SMALL},
    )
    if headroom:
        left = capacity_per_s * (1 - headroom)
        figure.add_vrect(x0=left, x1=capacity_per_s, fillcolor=ink.band, line_width=0, layer="below")


def _figure(title: str, x_title: str, ink: Ink, height: int = 240) -> go.Figure:
    figure = go.Figure()
    figure.update_layout(
        title={"text": title, "x": 0, "xanchor": "left", "y": 0.98, "yanchor": "top", "font": {"size": 14}},
        height=height,
        margin={"l": 44, "r": 12, "t": 30, "b": 40},
        showlegend=False,
        dragmode=False,
        font={"color": ink.text},
    )
    quiet = {"color": ink.quiet}
    axis = {"gridcolor": ink.grid, "zeroline": False, "tickfont": quiet, "separatethousands": True}
    figure.update_xaxes(**axis, title={"text": x_title, "standoff": 6, "font": quiet}, nticks=8)
    figure.update_yaxes(**axis, nticks=6)
    return figure


class Series(NamedTuple):
    """One measured quantity over the loads, and what the fitted law says of it (empty where there is no fit)."""

    name: str
    x: Sequence[float]
    measured: Sequence[float | None]
    law: Sequence[float]


def measured_and_law(title: str, x_title: str, series: Sequence[Series], ink: Ink) -> Chart:
    """Measured points as markers, the fitted law as a line; more than one series get their names at the end."""
    figure = _figure(title, x_title, ink, height=270)
    for number, one in enumerate(series):
        colour = ink.series[number]
        if len(one.law):
            line = {"color": colour, "width": 2}
            figure.add_scatter(x=one.x, y=one.law, mode="lines", name=f"{one.name}, fitted law", line=line)
        marker = {"color": colour, "size": 9, "symbol": SYMBOLS[number], "line": {"color": ink.text, "width": 1}}
        figure.add_scatter(x=one.x, y=one.measured, mode="markers", name=f"{one.name}, measured", marker=marker)
    figure.update_traces(hovertemplate="%{x:.4g}<br>%{y:.4g}<extra>%{fullData.name}</extra>")
    _wide_axis(figure.update_xaxes, [x for one in series for x in one.x], most_ticks=7)
    _wide_axis(figure.update_yaxes, [y for one in series for y in one.measured if y is not None], most_ticks=5)
    return Chart(figure, f"{title} against {x_title}: " + "; ".join(map(_range_in_words, series)) + ".")


SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star")


def _wide_axis(update: Callable[..., object], values: Sequence[float], most_ticks: int) -> None:
    """A linear axis from zero; logarithmic, with ticks at measured values, once they span a wide range."""
    positive = sorted({value for value in values if value > 0})
    if not positive or positive[-1] / positive[0] <= LOG_FROM:
        update(rangemode="tozero")
        return
    ticks = positive[:: -(-len(positive) // most_ticks)]
    update(type="log", tickvals=ticks, ticktext=list(map(significant, ticks)), minor={"showgrid": False})


def _range_in_words(series: Series) -> str:
    known = [(x, y) for x, y in zip(series.x, series.measured, strict=True) if y is not None]
    if not known:
        return f"{series.name} not measured"
    (first, low), (last, high) = known[0], known[-1]
    return f"{series.name} {significant(low)} at {significant(first)}, {significant(high)} at {significant(last)}"
