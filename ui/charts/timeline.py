"""What a replica holds over time: lines over one axis of seconds, minutes or hours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sizing.numbers import significant
from sizing.workload import Seconds
from ui.charts.base import SMALL, Chart, Ink, figure_of
from ui.charts.legend import legend_above


class Line(NamedTuple):
    """One quantity over time, with its name as it stands beside the line."""

    name: str
    values: Sequence[float] | Seconds


def time_unit(longest_s: float) -> tuple[str, float]:
    """The unit in which a stretch of time is read with ease, and its seconds."""
    if longest_s <= 600:
        return "s", 1.0
    return ("min", 60.0) if longest_s <= 3 * 3600 else ("h", 3600.0)


def over_time(
    title: str,
    time_s: Sequence[float] | Seconds,
    lines: Sequence[Line],
    ink: Ink,
    *,
    most: float | None = None,
    height: int = 220,
) -> Chart:
    """Steps over time, the first a line and the second an area.

    `most`: a bound to be drawn as a dashed line, such as the size of the KV cache.
    """
    unit, seconds = time_unit(max(time_s, default=0.0))
    figure = figure_of(title, f"Time ({unit})", ink, height)
    for number, line in reversed(list(enumerate(lines))):  # the line is drawn over the area
        stroke = {"color": ink.series[number], "width": 1.5, "shape": "hv"}
        fill = "tozeroy" if number else None  # an area beside a line: nothing is told by colour alone
        x = [time / seconds for time in time_s]
        figure.add_scatter(x=x, y=list(line.values), mode="lines", name=line.name, line=stroke, fill=fill)
    if len(lines) > 1:
        legend_above(figure, "reversed")
    if most is not None:
        figure.add_hline(y=most, line={"color": ink.limit, "width": 1.5, "dash": "dash"})
    top = max([value for line in lines for value in line.values] + [most or 0.0], default=1.0)
    figure.update_yaxes(exponentformat="none", range=[0, 1.08 * top or 1.0])
    figure.update_xaxes(tickfont={"size": SMALL})
    figure.update_traces(hovertemplate="%{x:.4g} " + unit + "<br>%{y:.4g}<extra>%{fullData.name}</extra>")
    return Chart(figure, f"{title} over time: " + "; ".join(map(_in_words, lines)) + ".")


def _in_words(line: Line) -> str:
    if not len(line.values):
        return f"{line.name}: nothing recorded"
    mean = sum(line.values) / len(line.values)
    return f"{line.name} {significant(mean)} on average, {significant(max(line.values))} at most"
