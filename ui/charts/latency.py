"""A latency against the load of a replica, with what limits it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sizing.analyses.curves import LoadCurve, knee_per_s
from sizing.analyses.inside import Lives
from sizing.numbers import count_of, milliseconds, per_second, significant
from sizing.plans import Fleet
from sizing.points import Point
from sizing.workload import Limit, Metric, Seconds, metric_name
from ui.charts.base import (
    DASHES,
    LOG_FROM,
    SMALL,
    Chart,
    Ink,
    Plot,
    figure_of,
    legend_above,
    log_axis,
    note,
    patterned,
    planned_point,
)
from ui.words import UNIT, limit_name, sentence_case

NEAR_EDGE = 0.15
"""Share of the axis within which a label does not fit to the left of its dot."""
LOW_LINE = 0.3
"""Share of the axis below which a line runs through a label at the bottom."""


def latency_against_load(
    curve: LoadCurve, fleet: Fleet, limit: Limit, headroom: float, ink: Ink, points: Sequence[Point] = ()
) -> Chart:
    """One limited latency against requests/s per replica: the limit, today's load, and the capacity with its headroom.

    Line by formula; the dot is the plan's own prediction, which for the answer is a simulation. Its axes have room for
    `points`, which `with_measured` marks.
    """
    unit, per_s = UNIT[limit.metric]
    loads = [(rate, p.value_s(limit) * per_s) for rate, p in zip(curve.rates_per_s, curve.predictions, strict=True)]
    stable = [(rate, value) for rate, value in loads if math.isfinite(value)]
    rates, values = [rate for rate, _ in stable], [value for _, value in stable]
    planned, allowed = fleet.predicted.value_s(limit) * per_s, limit.limit_s * per_s
    figure = figure_of(f"{limit_name(limit)} ({unit})", "Load (requests/s per replica)", ink)
    measured = [(point.load_value, value * per_s) for point, value in _known(points, limit)]
    log = _limited_axis(figure, [*values, planned], allowed, [value for _, value in measured])
    at_capacity = float(np.interp(curve.capacity_per_s, rates, values)) if rates else math.inf
    _mark_capacity(figure, curve.capacity_per_s, headroom, ink, below=_height(figure, at_capacity, log) < LOW_LINE)
    mark_limit(figure, allowed, limit, log, ink)
    line = {"color": ink.series[0], "width": 2.5}
    figure.add_scatter(x=rates, y=values, mode="lines", name=limit_name(limit), line=line)
    farthest = max([*rates, curve.capacity_per_s, *(load for load, _ in measured)]) * 1.02
    side = "right" if curve.planned_per_s < NEAR_EDGE * farthest else "left"
    position = f"top {side}" if planned < 0.7 * allowed else "bottom right"
    planned_point(figure, curve.planned_per_s, planned, "planned", position, ink)
    hover = "%{x:.3g} requests/s per replica<br>%{y:.4g} " + unit + "<extra>%{fullData.name}</extra>"
    figure.update_traces(hovertemplate=hover)
    figure.update_xaxes(range=[0, farthest])
    return Chart(figure, _load_in_words(curve, fleet, limit))


def _load_in_words(curve: LoadCurve, fleet: Fleet, limit: Limit) -> str:
    return (
        f"{limit_name(limit)} against load: {limit.said(fleet.predicted.value_s(limit))} at the planned "
        f"{per_second(curve.planned_per_s)} per replica, limit {limit.said(limit.limit_s)}; the SLA "
        f"fails above {per_second(curve.capacity_per_s)} per replica."
    )


def _limited_axis(figure: Plot, values: Sequence[float], limit: float, measured: Sequence[float]) -> bool:
    """An axis that shows the limit and what was measured: of `values` what lies far above the limit is cut off. True
    when it is logarithmic."""
    low = min([*values, *measured])
    top = max([limit * (1.5 if max(values) > limit else 1.2), *(1.1 * value for value in measured)])
    if top / low > LOG_FROM:
        log_axis(figure.update_yaxes, low / 1.5, top * 1.2)
        return True
    figure.update_yaxes(range=[0, top], rangemode="tozero")
    return False


def _height(figure: Plot, value: float, log: bool) -> float:
    """Where a value lies on the vertical axis: 0 at its bottom, 1 at its top."""
    low, top = map(float, figure.layout["yaxis"]["range"])
    return ((math.log10(value) if log else value) - low) / (top - low)


def mark_limit(figure: Plot, allowed: float, limit: Limit, log: bool, ink: Ink) -> None:
    """A dashed line at a limit, `allowed` in the units of the axis, and its name."""
    figure.add_hline(y=allowed, line={"color": ink.limit, "width": 1.5, "dash": "dash"})
    y = math.log10(allowed) if log else allowed  # on a logarithmic axis plotly places lines by value, text by exponent
    note(figure, f"limit {limit.said(limit.limit_s)}", ink.limit, 0, y, xref="paper")


def _mark_capacity(figure: Plot, capacity_per_s: float, headroom: float, ink: Ink, *, below: bool) -> None:
    """The capacity with its headroom; its name at the top where the line runs `below`, else at the bottom."""
    figure.add_vline(x=capacity_per_s, line={"color": ink.text, "width": 1, "dash": "dot"}, opacity=0.7)
    text = f"capacity {significant(capacity_per_s)}"
    y, yanchor = (1, "top") if below else (0, "bottom")
    note(figure, text, ink.text, capacity_per_s, y, yref="paper", xanchor="right", yanchor=yanchor)
    if headroom:
        left = capacity_per_s * (1 - headroom)
        figure.add_vrect(x0=left, x1=capacity_per_s, fillcolor=ink.band)


def measured_s(point: Point, limit: Limit) -> float | None:
    """What was measured of the metric and percentile that a limit speaks of; None = not measured."""
    value = getattr(point, f"{limit.metric}_p{limit.percentile}_s", None)  # points have no p90 of gaps
    return None if value is None else float(value)


def _known(points: Sequence[Point], limit: Limit) -> list[tuple[Point, float]]:
    return [(point, value) for point in points if (value := measured_s(point, limit)) is not None]


def with_measured(chart: Chart, points: Sequence[Point], limit: Limit, ink: Ink) -> Chart:
    """The chart with a diamond for every open-loop point that has the limited percentile."""
    known = _known(points, limit)
    if not known:
        return chart
    unit, per_s = UNIT[limit.metric]
    hover = "%{x:.3g} requests/s per replica<br>%{y:.4g} " + unit + "<br>%{customdata}<extra>%{fullData.name}</extra>"
    chart.plot.add_scatter(
        x=[point.load_value for point, _ in known],
        y=[value * per_s for _, value in known],
        mode="markers",
        name="measured, open loop",
        marker={"color": ink.series[2], "symbol": "diamond", "size": 10, "line": {"color": ink.text, "width": 1}},
        customdata=[point.load_kind.replace("_", " ") for point, _ in known],
        hovertemplate=hover,
    )
    return Chart(chart.plot, f"{chart.alt} Marked: {count_of(len(known), 'point')} measured at offered rates.")


BESIDE = 0.87
"""Share of an axis beyond which a note has no room to the right of its line."""


def with_knee(chart: Chart, curve: LoadCurve, ink: Ink) -> Chart:
    """The chart with a thin line at its knee, where the curve has one within the loads drawn."""
    knee = knee_per_s(curve)
    if knee is None:
        return chart
    chart.plot.add_vline(x=knee, line={"color": ink.quiet, "width": 1, "dash": "dashdot"})
    text = f"knee {significant(knee)}"
    side = "left" if knee < BESIDE * chart.plot.layout["xaxis"]["range"][1] else "right"
    note(chart.plot, text, ink.quiet, knee, 1, yref="paper", xanchor=side, yanchor="top")
    return Chart(chart.plot, f"{chart.alt} The knee is at {per_second(knee)} per replica.")


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
    figure.update_xaxes(range=[0, end_s * per_s], nticks=6)
    figure.update_yaxes(range=[0, 102])
    figure.update_traces(hovertemplate="%{y:.4g} % within %{x:.4g} " + unit + "<extra>%{fullData.name}</extra>")
    if limit:
        _mark_limit_across(figure, limit, end_s, per_s, ink)
    return Chart(figure, _spread_in_words(metric, shares, spreads[0], limit))


def _mark_limit_across(figure: Plot, limit: Limit, end_s: float, per_s: float, ink: Ink) -> None:
    """The limit, and the share that must stay within it; beyond the axis only its name, at the edge."""
    inside = limit.limit_s <= end_s
    if inside:
        figure.add_vline(x=limit.limit_s * per_s, line={"color": ink.limit, "width": 1.5, "dash": "dash"})
    figure.add_hline(y=limit.percentile, line={"color": ink.quiet, "width": 1, "dash": "dot"})
    text = f"limit {limit.allowed}" + ("" if inside else " →")
    side = "left" if limit.limit_s < end_s / 2 else "right"
    note(figure, text, ink.limit, min(limit.limit_s, end_s) * per_s, 0.5, yref="paper", xanchor=side, yanchor="middle")


def _many(metric: Metric) -> str:
    return "gaps" if metric == "gap" else "requests"


def _spread_in_words(metric: Metric, shares: Sequence[float] | Seconds, spread: Spread, limit: Limit | None) -> str:
    at = {share: float(np.interp(share, shares, spread.seconds)) for share in (0.5, 0.95, 0.99)}
    said = limit.said if limit else milliseconds
    told = ", ".join(f"{significant(100 * share)} % of the {_many(metric)} within {said(s)}" for share, s in at.items())
    name = sentence_case(metric_name(metric))
    if limit is None:
        return f"{name}: {told}; no limit is set."
    value_s = float(np.interp(limit.percentile / 100, shares, spread.seconds))
    verdict = "within" if value_s <= limit.limit_s else "over"
    return f"{name}: {told}. {limit_name(limit)} is {limit.said(value_s)}, {verdict} the limit of {limit.allowed}."


class NamedLine(NamedTuple):
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
    lines: Sequence[NamedLine],
    ink: Ink,
    *,
    most: tuple[str, float] | None = None,
    height: int = 220,
) -> Chart:
    """Steps over time, the first a line and the second an area.

    `most`: a bound to be drawn as a dashed line, with its name, such as the size of the KV cache.
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
        name, bound = most
        figure.add_hline(y=bound, line={"color": ink.limit, "width": 1.5, "dash": "dash"})
        note(figure, name, ink.limit, 0, bound, xref="paper", yanchor="top")
    top = max([value for line in lines for value in line.values] + [most[1] if most else 0.0], default=1.0)
    figure.update_yaxes(range=[0, 1.08 * top or 1.0])
    figure.update_xaxes(tickfont={"size": SMALL})
    figure.update_traces(hovertemplate="%{x:.4g} " + unit + "<br>%{y:.4g}<extra>%{fullData.name}</extra>")
    return Chart(figure, f"{title} over time: " + "; ".join(map(_line_in_words, lines)) + ".")


def _line_in_words(line: NamedLine) -> str:
    if not len(line.values):
        return f"{line.name}: nothing recorded"
    mean = sum(line.values) / len(line.values)
    return f"{line.name} {significant(mean)} on average, {significant(max(line.values))} at most"


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
        marker = {"color": ink.series[number], "line": {"width": 0}, "pattern": patterned(pattern, ink)}
        _bars(figure, name, begin, length, part_s, marker)
        begin = begin + length
    _crosses(figure, np.flatnonzero(np.isnan(lives.prompt_s)), since_s / seconds, ink)
    figure.update_layout(barmode="overlay", bargap=0.25)
    legend_above(figure)
    figure.update_yaxes(autorange="reversed", showticklabels=False, showgrid=False)
    slowest_at = float(since_s[lives.slowest]) / seconds
    note(figure, "slowest ", ink.text, slowest_at, lives.slowest, xanchor="right", yanchor="middle")
    return Chart(figure, lives_in_words(lives))


def _bars(figure: Plot, name: str, begin: Seconds, length: Seconds, part_s: Seconds, marker: object) -> None:
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


def _crosses(figure: Plot, lost: np.ndarray, begin: Seconds, ink: Ink) -> None:
    if len(lost):
        marker = {"symbol": "x", "size": 9, "color": ink.limit}
        figure.add_scatter(x=list(begin[lost]), y=list(lost), mode="markers", name="not served", marker=marker)


def lives_in_words(lives: Lives) -> str:
    """What the slowest request spent its time on, and how many are shown beside it."""
    slow = lives.slowest
    waiting_s, prompt_s = float(lives.waiting_s[slow]), float(lives.prompt_s[slow])
    return (
        f"The slowest first token took {milliseconds(waiting_s + prompt_s)}, of which {milliseconds(waiting_s)} "
        f"waiting before its prompt was begun. Shown with the {len(lives.arrival_s) - 1} requests that arrived just "
        "before and after it."
    )
