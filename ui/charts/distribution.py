"""How a latency is spread over the requests: the share served within a time, and where the limit stands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go

from sizing.numbers import milliseconds, significant
from sizing.workload import Limit, Metric, Seconds, metric_name
from ui.charts.base import SMALL, Chart, Ink, figure_of
from ui.charts.legend import legend_above
from ui.words import UNIT, limit_name, sentence_case

DASHES = ("solid", "dash", "dot")
"""Of the lines, in order: nothing is told by colour alone."""
FAR = 4.0
"""A limit further out than this, in p99.9s, is named at the edge of the chart instead of drawn."""


class Spread(NamedTuple):
    """Seconds that the shares of the requests stay at or below; `name` as it stands in the legend."""

    name: str
    seconds: Sequence[float] | Seconds


def distribution(
    metric: Metric, shares: Sequence[float] | Seconds, spreads: Sequence[Spread], limit: Limit | None, ink: Ink
) -> Chart:
    """Cumulative shares of one latency, the first of `spreads`, and of parts of it; the limit as a vertical line.

    The axis ends a little above p99.9, or at the limit where that is not far.
    """
    name, (unit, per_s) = sentence_case(metric_name(metric)), UNIT[metric]
    figure = figure_of(f"{name}: {_many(metric)} within, %", f"{name} ({unit})", ink, height=270)
    for number, spread in enumerate(spreads):
        line = {"color": ink.series[number], "width": 2.5 if number == 0 else 1.5, "dash": DASHES[number]}
        x, y = [value * per_s for value in spread.seconds], [100 * share for share in shares]
        figure.add_scatter(x=x, y=y, mode="lines", name=spread.name, line=line)
    if len(spreads) > 1:
        legend_above(figure)
    far_s = float(np.interp(0.999, shares, spreads[0].seconds))
    end_s = 1.08 * max(far_s, limit.limit_s if limit and limit.limit_s <= FAR * far_s else 0.0)
    figure.update_xaxes(range=[0, end_s * per_s], nticks=6, exponentformat="none")
    figure.update_yaxes(range=[0, 102])
    figure.update_traces(hovertemplate="%{y:.4g} % within %{x:.4g} " + unit + "<extra>%{fullData.name}</extra>")
    if limit:
        _mark_limit(figure, limit, end_s, per_s, ink)
    return Chart(figure, _in_words(metric, shares, spreads[0], limit))


def _mark_limit(figure: go.Figure, limit: Limit, end_s: float, per_s: float, ink: Ink) -> None:
    """The limit, and the share that must stay within it; beyond the axis only its name, at the edge."""
    inside = limit.limit_s <= end_s
    if inside:
        figure.add_vline(x=limit.limit_s * per_s, line={"color": ink.limit, "width": 1.5, "dash": "dash"})
    figure.add_hline(y=limit.percentile, line={"color": ink.quiet, "width": 1, "dash": "dot"})
    figure.add_annotation(
        x=min(limit.limit_s, end_s) * per_s,
        y=0.5,
        yref="paper",
        text=f"limit {milliseconds(limit.limit_s)}" + ("" if inside else " →"),
        showarrow=False,
        xanchor="left" if limit.limit_s < end_s / 2 else "right",
        font={"color": ink.limit, "size": SMALL},
    )


def _many(metric: Metric) -> str:
    return "gaps" if metric == "gap" else "requests"


def _in_words(metric: Metric, shares: Sequence[float] | Seconds, spread: Spread, limit: Limit | None) -> str:
    at = {share: float(np.interp(share, shares, spread.seconds)) for share in (0.5, 0.95, 0.99)}
    told = ", ".join(
        f"{significant(100 * share)} % of the {_many(metric)} within {milliseconds(s)}" for share, s in at.items()
    )
    name = sentence_case(metric_name(metric))
    if limit is None:
        return f"{name}: {told}; no limit is set."
    value_s = float(np.interp(limit.percentile / 100, shares, spread.seconds))
    verdict = "within" if value_s <= limit.limit_s else "over"
    return (
        f"{name}: {told}. {limit_name(limit)} is {milliseconds(value_s)}, {verdict} the limit of "
        f"{milliseconds(limit.limit_s)}."
    )
