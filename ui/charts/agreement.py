"""Two ways to know the same numbers: how far the second is from the first, over the size of the number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import plotly.graph_objects as go

from sizing.numbers import percent, significant
from ui.charts.base import SMALL, SYMBOLS, Chart, Ink, figure_of
from ui.charts.legend import legend_above

WITHIN_SIGHT = 1.5
"""The axis of differences reaches this many times the band, or as far as the farthest pair."""


class Pairs(NamedTuple):
    """Positive numbers of one kind, known in two ways; `labels` name each pair when it is pointed at."""

    name: str
    first: Sequence[float]
    second: Sequence[float]
    labels: Sequence[str]

    @property
    def apart(self) -> list[float]:
        """Second over first, less 1."""
        return [second / first - 1 for first, second in zip(self.first, self.second, strict=True)]


def agreement(title: str, x_title: str, kinds: Sequence[Pairs], within: float, ink: Ink) -> Chart:
    """Differences in per cent about a zero line, with the band ± `within` (a share) that counts as agreement."""
    figure = figure_of(title, x_title, ink, height=340)
    apart = [each for kind in kinds for each in kind.apart]
    _band(figure, within, ink)
    for number, kind in enumerate(kinds):
        line = {"color": ink.text, "width": 1}
        figure.add_scatter(
            x=list(kind.first),
            y=[100 * each for each in kind.apart],
            mode="markers",
            name=kind.name,
            marker={"color": ink.series[number], "symbol": SYMBOLS[number], "size": 9, "line": line},
            text=list(kind.labels),
            hovertemplate="%{text}: %{y:+.2f} %<extra>%{fullData.name}</extra>",
        )
    reach = 100 * max([WITHIN_SIGHT * within, *(1.1 * abs(each) for each in apart)])
    figure.update_yaxes(range=[-reach, reach], ticksuffix=" %")
    _wide(figure, [value for kind in kinds for value in kind.first])
    legend_above(figure)
    return Chart(figure, _in_words(title, apart, within))


def _band(figure: go.Figure, within: float, ink: Ink) -> None:
    figure.add_hrect(y0=-100 * within, y1=100 * within, fillcolor=ink.band, line_width=0, layer="below")
    figure.add_hline(y=0, line={"color": ink.quiet, "width": 1, "dash": "dash"})
    figure.add_annotation(
        x=0,
        xref="paper",
        y=100 * within,
        text=f"± {percent(within)}",
        showarrow=False,
        xanchor="left",
        yanchor="bottom",
        font={"size": SMALL, "color": ink.quiet},
    )


def _wide(figure: go.Figure, values: Sequence[float]) -> None:
    """A logarithmic axis over whole decades: the numbers are of all sizes."""
    if values:
        low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        ticks = [10.0**power for power in range(low, max(high, low + 1) + 1)]
        names = list(map(significant, ticks))
        figure.update_xaxes(type="log", range=[low, math.log10(ticks[-1])], tickvals=ticks, ticktext=names)


def _in_words(title: str, apart: Sequence[float], within: float) -> str:
    if not apart:
        return f"{title}: nothing to compare."
    agree = sum(abs(each) <= within for each in apart)
    worst = significant(100 * max(map(abs, apart)))
    return f"{title}: {agree} of {len(apart)} within {percent(within)}; the farthest is {worst} % apart."
