"""Sessions at rising load: what the prefix cache holds of their prompts, and how long later turns then wait."""

from __future__ import annotations

import math

from sizing.analyses.session_plan import Seen, SessionLimit, SessionPlan
from sizing.numbers import milliseconds, percent, significant
from ui.charts.base import LOG_FROM, Chart, Ink, Plot, figure_of, note, planned_point
from ui.charts.latency import mark_limit

CHART_PX = 240
X_TITLE = "Sessions in flight, those who think included"


def hit_rate_over_load(found: SessionPlan, ink: Ink) -> Chart:
    """Share of prompt tokens found in the prefix cache; a line where contexts of all in flight fill the KV cache."""
    seen = found.seen
    figure = figure_of("Prompt tokens found in the cache, %", X_TITLE, ink, CHART_PX)
    _line(figure, found, [100 * each.hit_rate for each in _steady(found)], "%{y:.3g} % found", ink)
    full = seen.in_flight / found.filled(seen)
    if full < 1.2 * max(each.in_flight for each in _steady(found)):
        figure.add_vline(x=full, line={"color": ink.limit, "width": 1.5, "dash": "dash"})
        note(figure, "contexts fill the KV cache", ink.limit, full, 0.04, yref="paper", xanchor="right")
    _mark_cliff(figure, found, ink)
    planned_point(figure, seen.in_flight, 100 * seen.hit_rate, "planned", "bottom center", ink)
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
    figure = figure_of(f"p{percentile} TTFT of later turns (ms)", X_TITLE, ink, CHART_PX)
    _line(figure, found, values, "%{y:.4g} ms", ink)
    known = [value for value in values if value > 0]
    allowed = [1000 * limit.limit_s] if limit else []
    log = max(known + allowed, default=1.0) > LOG_FROM * min(known, default=1.0)
    if log:
        low, high = min(known + allowed), max(known + allowed)
        figure.update_yaxes(type="log", range=[math.log10(low / 1.5), math.log10(2 * high)], dtick=1)
    else:
        figure.update_yaxes(range=[0, 1.2 * max(known + allowed, default=1.0)])
    if limit:
        mark_limit(figure, allowed[0], limit, log, ink)
    _mark_cliff(figure, found, ink)
    planned_s = _later_s(seen, percentile)
    if planned_s > 0:
        planned_point(figure, seen.in_flight, 1000 * planned_s, "planned", "top left", ink)
    words = f"p{percentile} TTFT of later turns over sessions in flight: {milliseconds(planned_s)} at the planned load"
    return Chart(figure, f"{words}{_cliff_in_words(found)}.")


def _steady(found: SessionPlan) -> list[Seen]:
    """Loads with a steady state."""
    return [each for each in found.curve if not each.saturated] or [found.seen]


def _later_s(seen: Seen, percentile: float) -> float:
    value_s = seen.predicted.parts["later_ttft"].at(percentile)
    return value_s if math.isfinite(value_s) else 0.0


def _line(figure: Plot, found: SessionPlan, values: list[float], hover: str, ink: Ink) -> None:
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
    return f"; from {times} times the load on contexts crowd each other out of the cache"
