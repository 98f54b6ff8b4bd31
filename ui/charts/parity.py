"""Two ways to know the same numbers, one against the other: on the diagonal they agree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from sizing.numbers import significant
from ui.charts.base import SMALL, SYMBOLS, Chart, Ink, figure_of


class Pairs(NamedTuple):
    """Pairs of one kind; `labels` name each pair when it is pointed at."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    labels: Sequence[str]


def parity(title: str, x_title: str, kinds: Sequence[Pairs], within: float, ink: Ink) -> Chart:
    """Pairs of positive numbers on two logarithmic axes, the diagonal, and a band of ± `within` (a share) about it.

    Pairs that are not both positive and finite are left out.
    """
    figure = figure_of(title, x_title, ink, height=340)
    known = [(kind, [i for i in range(len(kind.x)) if _drawable(kind.x[i], kind.y[i])]) for kind in kinds]
    values = [value for kind, places in known for i in places for value in (kind.x[i], kind.y[i])]
    if values:
        _diagonal(figure, min(values) / 1.5, max(values) * 1.5, within, ink)
    for number, (kind, places) in enumerate(known):
        marker = {
            "color": ink.series[number],
            "symbol": SYMBOLS[number],
            "size": 9,
            "line": {"color": ink.text, "width": 1},
        }
        x, y = [kind.x[i] for i in places], [kind.y[i] for i in places]
        figure.add_scatter(
            x=x,
            y=y,
            mode="markers",
            name=kind.name,
            marker=marker,
            text=[kind.labels[i] for i in places],
            hovertemplate="%{text}<br>%{x:.4g} and %{y:.4g}<extra>%{fullData.name}</extra>",
        )
    figure.update_layout(
        showlegend=True, legend={"x": 0.02, "xanchor": "left", "y": 0.98, "yanchor": "top", "bgcolor": "rgba(0,0,0,0)"}
    )
    return Chart(figure, _in_words(title, known, within))


def _drawable(x: float, y: float) -> bool:
    return math.isfinite(x) and math.isfinite(y) and min(x, y) > 0


def _diagonal(figure: object, low: float, high: float, within: float, ink: Ink) -> None:
    for factor, name in ((1 - within, "low"), (1 + within, "high")):
        figure.add_scatter(
            x=[low, high],
            y=[low * factor, high * factor],
            mode="lines",
            line={"width": 0},
            fill="tonexty" if name == "high" else None,
            fillcolor=ink.band,
            showlegend=False,
            hoverinfo="skip",
        )
    line = {"color": ink.quiet, "width": 1, "dash": "dash"}
    figure.add_scatter(x=[low, high], y=[low, high], mode="lines", line=line, showlegend=False, hoverinfo="skip")
    span = [math.log10(low), math.log10(high)]
    figure.update_xaxes(type="log", range=span, dtick=1)
    figure.update_yaxes(type="log", range=span, dtick=1)
    figure.add_annotation(
        x=span[1],
        y=span[1] - 0.25,
        text=f"band ± {within:.0%}",
        showarrow=False,
        xanchor="right",
        font={"size": SMALL, "color": ink.quiet},
    )


def _in_words(title: str, known: Sequence[tuple[Pairs, list[int]]], within: float) -> str:
    apart = [abs(kind.y[i] / kind.x[i] - 1) for kind, places in known for i in places]
    if not apart:
        return f"{title}: nothing to compare."
    far = sum(each > within for each in apart)
    worst = significant(100 * max(apart))
    return f"{title}: {len(apart) - far} of {len(apart)} agree within {within:.0%}; the farthest are {worst} % apart."
