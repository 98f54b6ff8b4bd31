"""Requests as bars from arrival to last token: waiting, prompt, decoding."""

from __future__ import annotations

import math

from sizing.inside import Lives
from sizing.numbers import milliseconds
from ui.charts.base import SMALL, Chart, Ink, figure_of
from ui.charts.timeline import time_unit

PATTERNS = ("/", "x", "")
"""Of the three parts of a bar: nothing is told by colour alone."""


def lives_of_requests(lives: Lives, ink: Ink) -> Chart:
    """One bar for each request, the first arrival on top; the slowest first token is named.

    Requests that were not served are crosses at their arrival.
    """
    count, begin_s = len(lives.arrival_s), float(lives.arrival_s[0])
    ends = [
        a + w + p + d
        for a, w, p, d in zip(lives.arrival_s, lives.waiting_s, lives.prompt_s, lives.decoding_s, strict=True)
    ]
    unit, seconds = time_unit(max((end for end in ends if math.isfinite(end)), default=begin_s) - begin_s)
    figure = figure_of("Requests around the slowest first token", f"Time ({unit})", ink, height=60 + 12 * count)
    base = [(a - begin_s) / seconds for a in lives.arrival_s]
    parts = (("waiting", lives.waiting_s), ("prompt", lives.prompt_s), ("decoding", lives.decoding_s))
    for number, (name, part_s) in enumerate(parts):
        length = [value / seconds if math.isfinite(value) else 0.0 for value in part_s]
        marker = {
            "color": ink.series[(1, 2, 0)[number]],
            "line": {"width": 0},
            "pattern": {
                "shape": PATTERNS[number],
                "size": 5,
                "fgcolor": ink.text,
                "fillmode": "overlay",
                "fgopacity": 0.5,
            },
        }
        figure.add_bar(
            y=list(range(count)),
            x=length,
            base=list(base),
            orientation="h",
            name=name,
            marker=marker,
            hovertemplate=f"{name} %{{customdata}}<extra>request %{{y}}</extra>",
            customdata=[milliseconds(value) if math.isfinite(value) else "" for value in part_s],
        )
        base = [start + more for start, more in zip(base, length, strict=True)]
    lost = [i for i in range(count) if not math.isfinite(lives.prompt_s[i])]
    if lost:
        marker = {"symbol": "x", "size": 9, "color": ink.limit}
        x = [(float(lives.arrival_s[i]) - begin_s) / seconds for i in lost]
        figure.add_scatter(x=x, y=lost, mode="markers", name="not served", marker=marker)
    figure.update_layout(
        barmode="overlay",
        bargap=0.25,
        showlegend=True,
        legend={"orientation": "h", "x": 1, "xanchor": "right", "y": 1, "yanchor": "bottom", "traceorder": "normal"},
    )
    figure.update_yaxes(autorange="reversed", showticklabels=False, showgrid=False)
    figure.add_annotation(
        x=(float(lives.arrival_s[lives.slowest]) - begin_s) / seconds,
        y=lives.slowest,
        text="slowest",
        showarrow=False,
        xanchor="right",
        font={"size": SMALL, "color": ink.text},
    )
    return Chart(figure, _in_words(lives))


def _in_words(lives: Lives) -> str:
    slow = lives.slowest
    ttft_s = float(lives.waiting_s[slow] + lives.prompt_s[slow])
    return (
        f"{len(lives.arrival_s)} requests that arrived around the one with the slowest first token: it took "
        f"{milliseconds(ttft_s)}, of which {milliseconds(float(lives.waiting_s[slow]))} waiting for its prompt to begin."
    )
