"""Requests as bars from arrival to last token: waiting, prompt, decoding."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from sizing.inside import Lives
from sizing.numbers import milliseconds
from sizing.workload import Seconds
from ui.charts.base import SMALL, Chart, Ink, figure_of
from ui.charts.legend import legend_above
from ui.charts.timeline import time_unit

PARTS = (("waiting", 1, "/"), ("prompt", 2, "x"), ("decoding", 0, ""))
"""Name, number of the ink and pattern of the parts of a bar: nothing is told by colour alone."""


def lives_of_requests(lives: Lives, ink: Ink) -> Chart:
    """One bar for each request, the first arrival on top; the slowest first token is named.

    Requests that were not served are crosses at their arrival.
    """
    parts_s = (lives.waiting_s, lives.prompt_s, lives.decoding_s)
    since_s = lives.arrival_s - lives.arrival_s[0]
    unit, seconds = time_unit(float(np.nanmax(since_s + sum(parts_s))))
    figure = figure_of("Around the slowest first token", f"Time ({unit})", ink, height=60 + 12 * len(since_s))
    begin = since_s / seconds
    for (name, number, pattern), part_s in zip(PARTS, parts_s, strict=True):
        length = np.nan_to_num(part_s) / seconds
        marker = {"color": ink.series[number], "line": {"width": 0}, "pattern": _pattern(pattern, ink)}
        _bars(figure, name, begin, length, part_s, marker)
        begin = begin + length
    _crosses(figure, np.flatnonzero(np.isnan(lives.prompt_s)), since_s / seconds, ink)
    figure.update_layout(barmode="overlay", bargap=0.25)
    legend_above(figure)
    figure.update_yaxes(autorange="reversed", showticklabels=False, showgrid=False)
    _name_slowest(figure, float(since_s[lives.slowest]) / seconds, lives.slowest, ink)
    return Chart(figure, in_words(lives))


def _pattern(shape: str, ink: Ink) -> dict[str, object]:
    return {"shape": shape, "size": 5, "fgcolor": ink.text, "fillmode": "overlay", "fgopacity": 0.5}


def _bars(figure: go.Figure, name: str, begin: Seconds, length: Seconds, part_s: Seconds, marker: object) -> None:
    figure.add_bar(
        y=list(range(len(begin))),
        x=list(length),
        base=list(begin),
        orientation="h",
        name=name,
        marker=marker,
        customdata=[milliseconds(float(value)) for value in np.nan_to_num(part_s)],
        hovertemplate=f"{name} %{{customdata}}<extra></extra>",
    )


def _crosses(figure: go.Figure, lost: np.ndarray, begin: Seconds, ink: Ink) -> None:
    if len(lost):
        marker = {"symbol": "x", "size": 9, "color": ink.limit}
        figure.add_scatter(x=list(begin[lost]), y=list(lost), mode="markers", name="not served", marker=marker)


def _name_slowest(figure: go.Figure, x: float, row: int, ink: Ink) -> None:
    font = {"size": SMALL, "color": ink.text}
    figure.add_annotation(x=x, y=row, text="slowest ", showarrow=False, xanchor="right", font=font)


def in_words(lives: Lives) -> str:
    """What the slowest request spent its time on, and how many are shown beside it."""
    slow = lives.slowest
    waiting_s, prompt_s = float(lives.waiting_s[slow]), float(lives.prompt_s[slow])
    return (
        f"The slowest first token took {milliseconds(waiting_s + prompt_s)}, of which {milliseconds(waiting_s)} "
        f"waiting for its prompt to be begun; with it the {len(lives.arrival_s) - 1} requests that arrived just before "
        "and after."
    )
