"""What all charts share: a figure with its sentence, the inks of the two themes, axes. No data is fetched here."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import plotly.graph_objects as go
from plotly import io
from plotly.basedatatypes import BaseFigure

from sizing.numbers import significant


class Plot:
    """A plotly figure in the making: its methods have the names and arguments of plotly's, nested ones as dicts.

    plotly checks a figure's parts again with every change, which takes ten times as long as to check it once, when it
    is whole; and that as long as drawing the rest of a page's answer.
    """

    def __init__(self, layout: dict[str, Any]) -> None:
        self.traces: list[dict[str, Any]] = []
        self.layout = layout | {"shapes": [], "annotations": []}

    def add_trace(self, kind: str, **trace: object) -> None:
        """A trace, by plotly's name of its type; what is None is not said."""
        self.traces.append({"type": kind} | {name: value for name, value in trace.items() if value is not None})

    def add_scatter(self, **trace: object) -> None:
        """A trace of lines or markers."""
        self.add_trace("scatter", **trace)

    def add_bar(self, **trace: object) -> None:
        """A trace of bars."""
        self.add_trace("bar", **trace)

    def add_hline(self, y: float, **shape: object) -> None:
        """A line across the chart."""
        self.layout["shapes"].append({"type": "line", "y0": y, "y1": y, **ACROSS, **shape})

    def add_vline(self, x: float | str, **shape: object) -> None:
        """A line from bottom to top."""
        self.layout["shapes"].append({"type": "line", "x0": x, "x1": x, **UPWARDS, **shape})

    def add_hrect(self, **shape: object) -> None:
        """A ground across the chart, from `y0` to `y1`."""
        self.layout["shapes"].append({"type": "rect", **ACROSS, **GROUND, **shape})

    def add_vrect(self, **shape: object) -> None:
        """A ground from bottom to top, from `x0` to `x1`."""
        self.layout["shapes"].append({"type": "rect", **UPWARDS, **GROUND, **shape})

    def add_annotation(self, **annotation: object) -> None:
        """A text."""
        self.layout["annotations"].append(annotation)

    def update_traces(self, **changes: object) -> None:
        """The same for every trace that is there."""
        self.traces = [_merged(trace, changes) for trace in self.traces]

    def update_layout(self, **changes: object) -> None:
        """What `changes` has anew; dicts are merged."""
        self.layout = _merged(self.layout, changes)

    def update_xaxes(self, **changes: object) -> None:
        """Of the horizontal axis."""
        self.update_layout(xaxis=changes)

    def update_yaxes(self, **changes: object) -> None:
        """Of the vertical axis."""
        self.update_layout(yaxis=changes)


ACROSS = {"xref": "x domain", "x0": 0, "x1": 1}
UPWARDS = {"yref": "y domain", "y0": 0, "y1": 1}
GROUND = {"line": {"width": 0}, "layer": "below"}


def _merged(known: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    both = {key: _merged(known[key], changes[key]) for key in changes if isinstance(known.get(key), dict)}
    return {**known, **changes, **both}


class Chart(NamedTuple):
    """A plot and its alternative text: what one learns from it."""

    plot: Plot
    alt: str

    @property
    def figure(self) -> go.Figure:
        """Checked by plotly: ValueError for what it does not know."""
        return go.Figure(data=self.plot.traces, layout=self.plot.layout)

    @property
    def unchecked(self) -> Unchecked:
        """The same for a page, which is drawn again with every change. The tests have plotly check all they draw."""
        return Unchecked(self.plot)


class Unchecked(BaseFigure):  # type: ignore[misc]
    """A plot as a figure from which nothing is asked but what it is made of."""

    def __init__(self, plot: Plot) -> None:
        self._plot = plot

    def to_dict(self) -> dict[str, Any]:
        """The parts, with the template that figures have."""
        layout = {name: value for name, value in self._plot.layout.items() if value != []}
        return {"data": self._plot.traces, "layout": {"template": _template(io.templates.default), **layout}}


@cache
def _template(name: str) -> dict[str, Any]:
    whole: dict[str, Any] = io.templates[name].to_plotly_json()
    return whole


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
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star")
"""Of the series, in the order of their colours: nothing is told by colour alone."""
DASHES = ("solid", "dash", "dot")
"""Of lines, likewise."""
LOG_FROM = 20.0
"""A range of values this wide is drawn on a logarithmic axis."""
MANY_DECADES = 300.0
"""A range of values this wide has a tick for each decade alone."""
SMALL = 11
"""Size of the labels inside a chart, in pixels."""


def figure_of(title: str, x_title: str, ink: Ink, height: int = 240) -> Plot:
    """An empty chart."""
    quiet = {"color": ink.quiet}
    numbers = {"separatethousands": True, "exponentformat": "none"}  # 10,000, not 10k beside 1,000
    axis = {"gridcolor": ink.grid, "zeroline": False, "tickfont": quiet, **numbers}
    return Plot(
        {
            "title": {"text": title, "x": 0, "xanchor": "left", **AT_THE_TOP, "font": {"size": 14}},
            "height": height,
            "margin": {"l": 44, "r": 12, "t": 34, "b": 40},
            "showlegend": False,
            "dragmode": False,
            "font": {"color": ink.text},
            "xaxis": {**axis, "title": {"text": x_title, "standoff": 6, "font": quiet}, "nticks": 8},
            "yaxis": {**axis, "nticks": 6},
        }
    )


AT_THE_TOP = {"y": 1, "yanchor": "top", "pad": {"t": 2}}
"""Of a title: clear of the legend below it, however high the chart is."""


def wide_axis(update: Callable[..., object], values: Sequence[float], most_ticks: int) -> None:
    """A linear axis from zero; logarithmic, with ticks at measured values, once they span a wide range.

    Ticks are as far apart as `most_ticks` in equal ratios are, or their labels would lie on each other.
    """
    positive = sorted({value for value in values if value > 0})
    if not positive or positive[-1] / positive[0] <= LOG_FROM:
        update(rangemode="tozero")
        return
    apart = 0.999 * (positive[-1] / positive[0]) ** (1 / most_ticks)
    ticks = positive[:1]
    for value in positive:
        ticks += [value] if value >= apart * ticks[-1] else []
    update(type="log", tickvals=ticks, ticktext=list(map(significant, ticks)), minor={"showgrid": False})


def log_axis(update: Callable[..., object], low: float, high: float) -> None:
    """A logarithmic axis from `low` to `high`: with ticks at 2 and 5 too, unless decades alone are many."""
    dtick = 1 if high / low > MANY_DECADES else "D2"
    update(type="log", range=[math.log10(low), math.log10(high)], dtick=dtick, tickformat=",~g")


def legend_above(figure: Plot, order: str = "normal") -> None:
    """Name the series in a row above the plot, clear of the data; `order` "reversed" where the last is drawn first."""
    row = {"orientation": "h", "x": 1, "xanchor": "right", "y": 1, "yanchor": "bottom", "traceorder": order}
    figure.update_layout(showlegend=True, legend={**row, "font": {"size": SMALL}})


def note(figure: Plot, text: str, colour: str, x: float | str, y: float, **where: object) -> None:
    """A small text in the chart, to the right of and above (x, y) unless `where` has other anchors or references."""
    anchors = {"xanchor": "left", "yanchor": "bottom", **where}
    figure.add_annotation(x=x, y=y, text=text, showarrow=False, font={"color": colour, "size": SMALL}, **anchors)


def patterned(shape: str, ink: Ink) -> dict[str, object]:
    """The pattern of a bar, by plotly's name of its shape, drawn over its colour."""
    return {"shape": shape, "size": 5, "fgcolor": ink.text, "fillmode": "overlay", "fgopacity": 0.45}


def planned_point(figure: Plot, x: float, y: float, text: str, position: str, ink: Ink) -> None:
    """The dot of the planned load, with `text` at the `position` that plotly's textposition names."""
    figure.add_scatter(
        x=[x],
        y=[y],
        mode="markers+text",
        cliponaxis=False,
        name="planned load",
        showlegend=False,
        text=[text],
        textposition=position,
        textfont={"color": ink.text, "size": SMALL},
        marker={"color": ink.series[1], "size": 11, "line": {"color": ink.text, "width": 1}},
    )
