"""Recorded traffic and sessions.

A trace over time, its lengths, what each hour of it saw and needs in a replay; and at rising load of sessions what the
prefix cache holds of their prompts, and how long later turns then wait.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np

from sizing.analyses.session_plan import Seen, SessionLimit, SessionPlan
from sizing.analyses.traced import TracePlan, busiest_rate_per_s
from sizing.numbers import count_of, milliseconds, percent, significant
from sizing.trace import HOUR_S, Hour, Trace, busiest_hour
from sizing.workload import Limit
from ui.charts.base import DASHES, LOG_FROM, Chart, Ink, Plot, figure_of, legend_above, log_axis, note, planned_point
from ui.charts.latency import mark_limit, time_unit
from ui.words import UNIT, limit_name

MOST_POINTS = 2000
STRETCHES_S = (1.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, HOUR_S)
SHORT_S = 1200.0
"""Traces up to this long are drawn by the second."""
BARS = 36
CHART_PX = 210


def requests_over_time(trace: Trace, replayed_s: tuple[float, float] | None, ink: Ink) -> Chart:
    """Requests/s of a whole trace, each minute where it is no longer than a day; the busiest hour has a line.

    `replayed_s`: ends of the part that is replayed, which has a ground of its own; None where that is all of it.
    """
    every_s = stretch_s(trace.span_s)
    first = int(trace.arrival_s[0] // every_s)
    rates = np.bincount((trace.arrival_s // every_s).astype(np.int64) - first) / every_s
    edges_s = (first + np.arange(len(rates) + 1)) * every_s
    of = {1.0: "second", 60.0: "minute", HOUR_S: "hour"}.get(every_s, f"{every_s / 60:g} minutes")
    figure = figure_of(f"Requests/s, each {of}", _time_title(trace), ink, CHART_PX)
    figure.add_scatter(
        x=_times(trace, edges_s),
        y=[*rates.tolist(), float(rates[-1])],
        mode="lines",
        line={"color": ink.series[0], "width": 1, "shape": "hv"},
        fill="tozeroy",
        fillcolor=ink.band,
        hovertemplate="%{x}<br>%{y:.3g} requests/s<extra></extra>",
    )
    top = float(rates.max())
    if replayed_s:
        ends = _times(trace, replayed_s)
        figure.add_vrect(x0=ends[0], x1=ends[1], fillcolor=ink.series[1], opacity=0.18)
        note(figure, "replayed", ink.text, ends[0], 1.0, yref="paper", yanchor="top")
    said = _busiest(figure, trace, ink) if trace.span_s > HOUR_S else ""
    figure.update_yaxes(range=[0, 1.4 * top])  # room for the note on the busiest hour
    words = f"Requests/s over time: {significant(trace.rate_per_s)} on average{said}, {significant(top)} in the busiest"
    return Chart(figure, f"{words} {of}; from {trace.clock(edges_s[0])} to {trace.clock(edges_s[-1])}.")


def stretch_s(span_s: float) -> float:
    """Seconds of a point of a chart over so long a time: a minute, unless that makes too many or too few points.

    >>> stretch_s(86_400.0), stretch_s(7 * 86_400.0), stretch_s(300.0)
    (60.0, 600.0, 1.0)
    """
    least = STRETCHES_S[0] if span_s <= SHORT_S else STRETCHES_S[1]
    return next((each for each in STRETCHES_S if each >= least and span_s <= MOST_POINTS * each), STRETCHES_S[-1])


def _busiest(figure: Plot, trace: Trace, ink: Ink) -> str:
    """A line at the mean of the busiest hour, as wide as the hour; and what it says, in words."""
    hour = busiest_hour(trace)
    rate_per_s = busiest_rate_per_s(trace)
    ends = _times(trace, (hour.from_s, hour.until_s))
    line = {"color": ink.limit, "width": 3}
    text = f"busiest hour: {significant(rate_per_s)}"
    figure.add_scatter(x=ends, y=[rate_per_s] * 2, mode="lines", line=line, name=text, hoverinfo="name")
    figure.add_vline(x=ends[0], line={"color": ink.limit, "width": 1, "dash": "dot"})
    late = hour.from_s - trace.arrival_s[0] > trace.span_s / 2
    note(figure, text, ink.limit, ends[0], 0.88, yref="paper", yanchor="top", xanchor="right" if late else "left")
    return f", {significant(rate_per_s)} in the busiest hour, from {trace.clock(hour.from_s)}"


def _times(trace: Trace, seconds: Sequence[float] | np.ndarray) -> list[str] | list[float]:
    """Times of a trace as plotly takes them: dates (UTC), or seconds, minutes or hours from its start."""
    if math.isfinite(trace.began_s):
        moments = (datetime.fromtimestamp(trace.began_s + second, UTC) for second in seconds)
        return [moment.strftime("%Y-%m-%d %H:%M:%S") for moment in moments]
    return [float(second) / time_unit(float(trace.arrival_s[-1]))[1] for second in seconds]


def _time_title(trace: Trace) -> str:
    return "Time (UTC)" if math.isfinite(trace.began_s) else f"Time ({time_unit(float(trace.arrival_s[-1]))[0]})"


def lengths_of_requests(trace: Trace, ink: Ink) -> Chart:
    """Shares of the requests by prompt and output tokens, on one logarithmic axis."""
    figure = figure_of("Share of the requests, %", "Tokens", ink, CHART_PX)
    said = []
    least, most = min(trace.isl.min(), trace.osl.min()), max(trace.isl.max(), trace.osl.max())
    edges = np.unique(np.rint(np.geomspace(least, most + 1, BARS + 1)))
    for number, (name, tokens) in enumerate((("input", trace.isl), ("output", trace.osl))):
        shares = 100 * np.histogram(tokens, edges)[0] / len(trace)
        median, high = (significant(float(value)) for value in np.percentile(tokens, (50, 95)))
        said.append(f"{name} {median} at the median, {high} at p95")
        figure.add_scatter(
            x=edges.tolist(),
            y=[*shares.tolist(), float(shares[-1])],
            mode="lines",
            name=name,
            line={"color": ink.series[number], "width": 2, "shape": "hv", "dash": DASHES[number]},
            hovertemplate="from %{x:,} tokens: %{y:.3g} %<extra>%{fullData.name}</extra>",
        )
    legend_above(figure)
    figure.update_xaxes(type="log", dtick=1, tickformat=",", minor={"showgrid": False})
    figure.update_yaxes(rangemode="tozero")
    return Chart(figure, f"Tokens of a request: {'; '.join(said)}.")


def limit_by_hour(found: TracePlan, limit: Limit, ink: Ink) -> Chart:
    """The limited percentile in each hour of the replay, beside the limit, which all hours together keep."""
    seen, (unit, per_s) = found.replayed, UNIT[limit.metric]
    values = [seen.value_s(limit, hour) * per_s for hour in range(len(seen.hours))]
    allowed = limit.limit_s * per_s
    known = [value for value in values if value > 0]  # as no unknown one is
    log = max(known, default=0.0) > LOG_FROM * allowed
    figure = figure_of(f"{limit_name(limit)} of each hour ({unit})", _time_title(found.trace), ink, CHART_PX)
    _bars(figure, found.trace, seen.hours, [None if math.isnan(value) else value for value in values], ink)
    figure.update_traces(hovertemplate="%{x}<br>%{y:.4g} " + unit + "<extra></extra>")
    top = max([*known, allowed])
    if log:
        log_axis(figure.update_yaxes, min(known) / 1.5, 2 * top)
    else:
        figure.update_yaxes(range=[0, 1.25 * top])
    mark_limit(figure, allowed, limit, log, ink)
    over = sum(value > allowed for value in values)
    worst = max(known, default=0.0) / per_s
    many = f"{over} of {count_of(len(values), 'hour')}"
    words = f"{limit_name(limit)} of each hour: {limit.said(worst)} at most, limit {limit.allowed}"
    return Chart(figure, f"{words}; exceeded in {many}, for which the others make up.")


def gpus_by_hour(found: TracePlan, ink: Ink) -> Chart:
    """GPUs that the rate of each hour needs, spares included, beside those of the fleet."""
    fleet = found.plan.answer
    figure = figure_of("GPUs at the rate of each hour", _time_title(found.trace), ink, CHART_PX)
    gpus = [(working + fleet.spare) * fleet.candidate.gpus for working in found.needed]
    _bars(figure, found.trace, found.replayed.hours, gpus, ink)
    figure.update_traces(hovertemplate="%{x}<br>%{y:,} GPUs<extra></extra>")
    figure.add_hline(y=fleet.gpus, line={"color": ink.limit, "width": 1.5, "dash": "dash"})
    note(figure, f"the fleet: {count_of(fleet.gpus, 'GPU')}", ink.limit, 0, fleet.gpus, xref="paper")
    figure.update_yaxes(range=[0, 1.25 * fleet.gpus])
    words = f"GPUs at the rate of each hour: {min(gpus):,} to {max(gpus):,}"
    return Chart(figure, f"{words}; the fleet has {fleet.gpus:,}.")


def _bars(figure: Plot, trace: Trace, of: Sequence[Hour], values: Sequence[float | None], ink: Ink) -> None:
    """A bar for each hour, as wide as it; hours without requests have none."""
    dated = math.isfinite(trace.began_s)
    width = 1000 * HOUR_S if dated else HOUR_S / time_unit(float(trace.arrival_s[-1]))[1]
    figure.add_bar(
        x=_times(trace, [hour.from_s for hour in of]),
        y=list(values),
        width=0.9 * width,
        offset=0.05 * width,
        marker={"color": ink.series[0], "line": {"width": 0}},
    )
    figure.update_xaxes(range=_times(trace, (of[0].from_s, of[-1].until_s)))


SESSIONS_PX = 240
X_TITLE = "Sessions in flight, thinking ones included"


def hit_rate_over_load(found: SessionPlan, ink: Ink) -> Chart:
    """Share of prompt tokens found in the prefix cache; a line where contexts of all in flight fill the KV cache."""
    seen = found.seen
    figure = figure_of("Prompt tokens found in the cache, %", X_TITLE, ink, SESSIONS_PX)
    _steady_line(figure, found, [100 * each.hit_rate for each in _steady(found)], "%{y:.3g} % found", ink)
    full = seen.in_flight / found.filled(seen)
    if full < 1.2 * max(each.in_flight for each in _steady(found)):
        figure.add_vline(x=full, line={"color": ink.limit, "width": 1.5, "dash": "dash"})
        note(figure, "contexts fill the KV cache", ink.limit, full, 0.04, yref="paper", xanchor="right")
    _mark_cliff(figure, found, ink)
    planned_point(figure, seen.in_flight, 100 * seen.hit_rate, "planned", "bottom left", ink)
    figure.update_yaxes(range=[0, 105])
    words = f"Tokens found in the cache over sessions in flight: {percent(seen.hit_rate)} at the planned load"
    return Chart(
        figure, f"{words}{_cliff_in_words(found)}; contexts fill the KV cache at {significant(full)} in flight."
    )


def later_ttft_over_load(found: SessionPlan, ink: Ink) -> Chart:
    """p95 TTFT of later turns over sessions in flight, with its limit if there is one."""
    seen = found.seen
    limit = next(
        (each for each in found.plan.question.sla.limits if isinstance(each, SessionLimit) and each.of == "later_ttft"),
        None,
    )
    percentile = limit.percentile if limit else 95
    values = [1000 * _later_s(each, percentile) for each in _steady(found)]
    figure = figure_of(f"p{percentile} TTFT of later turns (ms)", X_TITLE, ink, SESSIONS_PX)
    _steady_line(figure, found, values, "%{y:.4g} ms", ink)
    known = [value for value in values if value > 0]
    allowed = [1000 * limit.limit_s] if limit else []
    log = max(known + allowed, default=1.0) > LOG_FROM * min(known, default=1.0)
    if log:
        low, high = min(known + allowed), max(known + allowed)
        log_axis(figure.update_yaxes, low / 1.5, 2 * high)
    else:
        figure.update_yaxes(range=[0, 1.2 * max(known + allowed, default=1.0)])
    if limit:
        mark_limit(figure, allowed[0], limit, log, ink)
    _mark_cliff(figure, found, ink)
    planned_s = _later_s(seen, percentile)
    if planned_s > 0:
        planned_point(figure, seen.in_flight, 1000 * planned_s, "planned", "bottom right", ink)
    words = f"p{percentile} TTFT of later turns over sessions in flight: {milliseconds(planned_s)} at the planned load"
    return Chart(figure, f"{words}{_cliff_in_words(found)}.")


def _steady(found: SessionPlan) -> list[Seen]:
    """Loads with a steady state."""
    return [each for each in found.curve if not each.saturated] or [found.seen]


def _later_s(seen: Seen, percentile: float) -> float:
    value_s = seen.predicted.parts["later_ttft"].at(percentile)
    return value_s if math.isfinite(value_s) else 0.0


def _steady_line(figure: Plot, found: SessionPlan, values: list[float], hover: str, ink: Ink) -> None:
    figure.add_scatter(
        x=[each.in_flight for each in _steady(found)],
        y=values,
        mode="lines+markers",
        line={"color": ink.series[0], "width": 2.5},
        marker={"size": 5},
        hovertemplate="%{x:.4g} in flight<br>" + hover + "<extra></extra>",
    )
    figure.update_xaxes(rangemode="tozero")


def _mark_cliff(figure: Plot, found: SessionPlan, ink: Ink) -> None:
    """A ground from the first load on at which contexts crowd each other out of the cache."""
    cliff, last = found.cliff, _steady(found)[-1]
    if cliff is None:
        return
    start = min(cliff.in_flight, last.in_flight) if not cliff.saturated else last.in_flight
    end = max(last.in_flight, 1.05 * start)
    figure.add_vrect(x0=start, x1=end, fillcolor=ink.limit, opacity=0.1)
    note(figure, "the cache thrashes", ink.limit, start, 0.98, yref="paper", yanchor="top", xanchor="right")


def _cliff_in_words(found: SessionPlan) -> str:
    if (cliff := found.cliff) is None:
        return ""
    times = significant(cliff.rate_per_s / found.seen.rate_per_s)
    return f"; from {times} times the load on, contexts crowd each other out of the cache"
