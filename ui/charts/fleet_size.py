"""GPUs against load: the steps of the answer's fleet with its band, and those of other GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import plotly.graph_objects as go

from sizing.fleet_sizes import FleetSizes
from sizing.numbers import significant
from ui.charts.base import SMALL, Chart, Ink, figure_of

DASHES = ("solid", "dash", "dot")


class Steps(NamedTuple):
    """One configuration's steps and the name at their end."""

    name: str
    sizes: FleetSizes


def gpus_against_load(
    steps: Sequence[Steps], high_per_s: float, load_per_s: float, gpus: int, today: str, ink: Ink
) -> Chart:
    """Step lines up to `high_per_s` requests/s of the fleet, the first with its band; a dot at the planned load."""
    figure = figure_of("GPUs to own", "Load (requests/s of the whole fleet)", ink, height=340)
    _band(figure, steps[0].sizes, high_per_s, ink)
    for number, one in enumerate(steps):
        line = {
            "color": _colour(number, ink),
            "width": 2.5 if number == 0 else 1.5,
            "dash": DASHES[number % len(DASHES)],
        }
        x, y = _to_the_end(one.sizes.rates_per_s, one.sizes.gpus, high_per_s)
        figure.add_scatter(x=x, y=y, mode="lines", line_shape="hv", name=one.name, line=line, showlegend=True)
    figure.add_scatter(
        x=[load_per_s],
        y=[gpus],
        mode="markers+text",
        name="planned load",
        showlegend=False,
        text=[today],
        textposition="top left",
        textfont={"color": ink.text, "size": SMALL},
        marker={"color": ink.series[1], "size": 11, "line": {"color": ink.text, "width": 1}},
    )
    figure.update_traces(hovertemplate="%{x:.4g} requests/s<br>%{y:,} GPUs<extra>%{fullData.name}</extra>")
    figure.update_xaxes(range=[steps[0].sizes.rates_per_s[0], high_per_s])
    figure.update_yaxes(rangemode="tozero")
    legend = {"orientation": "h", "x": 1, "xanchor": "right", "y": 1, "yanchor": "bottom", "font": {"size": SMALL}}
    figure.update_layout(showlegend=True, legend=legend)
    return Chart(figure, _in_words(steps, high_per_s, load_per_s, gpus))


def _colour(number: int, ink: Ink) -> str:
    """The second colour is the planned load's."""
    return (ink.series[0], *ink.series[2:])[number % (len(ink.series) - 1)]


def _to_the_end(x: Sequence[float], y: Sequence[int], end: float) -> tuple[list[float], list[int]]:
    return [*x, end], [*y, y[-1]]


def _band(figure: go.Figure, sizes: FleetSizes, high_per_s: float, ink: Ink) -> None:
    """The 90 % band as a filled area between two step lines; nothing where its slow end has no answer."""
    if sizes.high is None:
        return
    thin = {"line": {"color": ink.band, "width": 1}, "mode": "lines", "line_shape": "hv", "showlegend": False}
    for name, gpus, fill in (("90 % band, low", sizes.low, None), ("90 % band, high", sizes.high, "tonexty")):
        x, y = _to_the_end(sizes.rates_per_s, gpus, high_per_s)
        figure.add_scatter(x=x, y=y, name=name, fill=fill, fillcolor=ink.band, **thin)


def _in_words(steps: Sequence[Steps], high_per_s: float, load_per_s: float, gpus: int) -> str:
    ends = "; ".join(f"{one.name} {one.sizes.gpus[-1]:,} GPUs" for one in steps)
    return (
        f"GPUs against load: {gpus:,} GPUs at the planned {significant(load_per_s)} requests/s; "
        f"at {significant(high_per_s)} requests/s {ends}."
    )
