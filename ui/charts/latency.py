"""A latency against the load of a replica, with what limits it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import plotly.graph_objects as go

from sizing.loadcurve import LoadCurve
from sizing.numbers import milliseconds, significant
from sizing.plan import Fleet
from sizing.workload import Limit
from ui.charts.base import LOG_FROM, SMALL, Chart, Ink, figure_of
from ui.words import UNIT, limit_name


def latency_against_load(curve: LoadCurve, fleet: Fleet, limit: Limit, headroom: float, ink: Ink) -> Chart:
    """One limited latency against requests/s per replica: the limit, today's load, and the capacity with its headroom.

    Line by formula; the dot is the plan's own prediction, which for the answer is a simulation.
    """
    unit, per_s = UNIT[limit.metric]
    loads = [(rate, p.value_s(limit) * per_s) for rate, p in zip(curve.rates_per_s, curve.predictions, strict=True)]
    stable = [(rate, value) for rate, value in loads if math.isfinite(value)]
    rates, values = [rate for rate, _ in stable], [value for _, value in stable]
    planned, allowed = fleet.predicted.value_s(limit) * per_s, limit.limit_s * per_s
    figure = figure_of(f"{limit_name(limit)} ({unit})", "Load (requests/s per replica)", ink)
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
