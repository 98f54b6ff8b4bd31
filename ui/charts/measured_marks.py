"""Open-loop measurements on a chart of latency against load, and the knee of its curve."""

from __future__ import annotations

from collections.abc import Sequence

from sizing.curves import Point
from sizing.knee import knee_per_s
from sizing.loadcurve import LoadCurve
from sizing.numbers import significant
from sizing.workload import Limit
from ui.charts.base import SMALL, Chart, Ink
from ui.words import UNIT


def measured_s(point: Point, limit: Limit) -> float | None:
    """What was measured of the metric and percentile that a limit speaks of; None = not measured."""
    value = getattr(point, f"{limit.metric}_p{limit.percentile}_s", None)  # points have no p90 of gaps
    return None if value is None else float(value)


def with_measured(chart: Chart, points: Sequence[Point], limit: Limit, ink: Ink) -> Chart:
    """The chart with a diamond for every open-loop point that has the limited percentile."""
    known = [(point, value) for point in points if (value := measured_s(point, limit)) is not None]
    if not known:
        return chart
    per_s = UNIT[limit.metric][1]
    chart.figure.add_scatter(
        x=[point.load_value for point, _ in known],
        y=[value * per_s for _, value in known],
        mode="markers",
        name="measured, open loop",
        marker={"color": ink.series[2], "symbol": "diamond", "size": 10, "line": {"color": ink.text, "width": 1}},
        customdata=[point.load_kind.replace("_", " ") for point, _ in known],
        hovertemplate="%{x:.3g} requests/s<br>%{y:.4g}<br>%{customdata}<extra>%{fullData.name}</extra>",
    )
    several = "points" if len(known) > 1 else "point"
    return Chart(chart.figure, f"{chart.alt} Marked: {len(known)} {several} measured at offered rates.")


def with_knee(chart: Chart, curve: LoadCurve, ink: Ink) -> Chart:
    """The chart with a thin line at its knee, where the curve has one within the loads drawn."""
    knee = knee_per_s(curve)
    if knee is None:
        return chart
    chart.figure.add_vline(x=knee, line={"color": ink.quiet, "width": 1, "dash": "dashdot"})
    chart.figure.add_annotation(
        x=knee,
        y=1,
        yref="paper",
        text=f"knee {significant(knee)}",
        showarrow=False,
        xanchor="right",
        yanchor="top",
        font={"color": ink.quiet, "size": SMALL},
    )
    return Chart(chart.figure, f"{chart.alt} The knee is at {significant(knee)} requests/s per replica.")
