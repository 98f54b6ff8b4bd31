"""Predicted against measured: does the law that was fitted to these points give them back?"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from sizing.fitting import PointError
from sizing.numbers import percent, significant
from ui.charts.base import LOG_FROM, SMALL, SYMBOLS, Chart, Ink, Plot, figure_of, legend_above, wide_axis

BAND = 0.10
"""Either side of the diagonal."""


class Compared(NamedTuple):
    """One figure of a point, measured and by the law; None where it was not measured, or the law not asked for it."""

    name: str
    unit: str
    measured: Callable[[PointError], float | None]
    predicted: Callable[[PointError], float]

    @property
    def title(self) -> str:
        """The name with its unit, which some names say already."""
        return self.name if self.unit in self.name.lower() else f"{self.name} ({self.unit})"


QUANTITIES = (
    Compared(
        "Requests/s",
        "requests/s",
        lambda e: None if math.isnan(e.requests_per_s_error) else e.point.requests_per_s,
        lambda e: e.requests_per_s,
    ),
    Compared("Mean TTFT", "ms", lambda e: _ms(e.point.ttft_mean_s), lambda e: e.ttft_mean_s * 1000),
    Compared("Mean ITL", "ms", lambda e: _ms(e.point.itl_mean_s), lambda e: e.itl_mean_s * 1000),
)


def parity(quantity: Compared, errors: Sequence[PointError], distrusted: frozenset[int], ink: Ink) -> Chart | None:
    """Markers over the diagonal and a band of 10 %; `distrusted` are places in `errors`. None if nothing is known."""
    pairs = [(quantity.measured(e), quantity.predicted(e), place in distrusted) for place, e in enumerate(errors)]
    known = [(m, p, odd) for m, p, odd in pairs if m is not None and m > 0 and math.isfinite(p)]
    if not known:
        return None
    figure = figure_of(quantity.title, f"Measured ({quantity.unit})", ink, height=270)
    figure.update_layout(margin={"l": 76})
    values = [value for m, p, _ in known for value in (m, p)]
    ends = [min(values) * 0.9 if max(values) > LOG_FROM * min(values) else 0.0, max(values) * 1.1]
    ways = {"x": [*ends, *reversed(ends)], "fill": "toself", "fillcolor": ink.band, "hoverinfo": "skip"}
    low, high = 1 - BAND, 1 + BAND
    band = [ends[0] * low, ends[1] * low, ends[1] * high, ends[0] * high]
    figure.add_scatter(y=band, mode="lines", line={"width": 0}, name="within 10 %", **ways)
    figure.add_scatter(x=ends, y=ends, mode="lines", line={"color": ink.quiet, "dash": "dot"}, hoverinfo="skip")
    for number, (name, odd) in enumerate((("fitted", False), ("distrusted", True))):
        group = [(m, p) for m, p, flag in known if flag == odd]
        marker = {"color": ink.series[number], "size": 9, "symbol": SYMBOLS[4 * number], "line": {"width": 1}}
        figure.add_scatter(
            x=[m for m, _ in group],
            y=[p for _, p in group],
            mode="markers",
            name=name,
            marker=marker,
            hovertemplate="measured %{x:.4g}<br>by the law %{y:.4g}<extra>%{fullData.name}</extra>",
        )
    figure.update_yaxes(title={"text": f"By the law ({quantity.unit})", "standoff": 6, "font": {"color": ink.quiet}})
    wide_axis(figure.update_xaxes, values, most_ticks=5)  # one scale for both, or the diagonal is not y = x
    wide_axis(figure.update_yaxes, values, most_ticks=5)
    worst, at = max((abs(p / m - 1), m) for m, p, _ in known)
    inside = sum(abs(p / m - 1) <= BAND for m, p, _ in known)
    take_away = f"{inside} of {len(known)} points within 10 %, the worst {percent(worst, 1)} off, at {significant(at)}"
    return Chart(figure, f"{quantity.name} by the fitted law against measured: {take_away} {quantity.unit}.")


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


# --- Points as they were measured, and the law that was fitted to them


class ComparedSeries(NamedTuple):
    """One measured quantity over the loads, and what the fitted law says of it (empty where there is no fit)."""

    name: str
    x: Sequence[float]
    measured: Sequence[float | None]
    law: Sequence[float]


def measured_and_law(title: str, x_title: str, series: Sequence[ComparedSeries], ink: Ink) -> Chart:
    """Measured points as markers, the fitted law as a line; more than one series get their names at the end."""
    figure = figure_of(title, x_title, ink, height=270)
    for number, one in enumerate(series):
        colour = ink.series[number]
        if len(one.law):
            line = {"color": colour, "width": 2}
            figure.add_scatter(x=one.x, y=one.law, mode="lines", name=f"{one.name}, fitted law", line=line)
        marker = {"color": colour, "size": 9, "symbol": SYMBOLS[number], "line": {"color": ink.text, "width": 1}}
        figure.add_scatter(x=one.x, y=one.measured, mode="markers", name=f"{one.name}, measured", marker=marker)
    figure.update_traces(hovertemplate="%{x:.4g}<br>%{y:.4g}<extra>%{fullData.name}</extra>")
    wide_axis(figure.update_xaxes, [x for one in series for x in one.x], most_ticks=7)
    wide_axis(figure.update_yaxes, [y for one in series for y in one.measured if y is not None], most_ticks=5)
    return Chart(figure, f"{title} against {x_title}: " + "; ".join(map(_range_in_words, series)) + ".")


def _range_in_words(series: ComparedSeries) -> str:
    known = [(x, y) for x, y in zip(series.x, series.measured, strict=True) if y is not None]
    if not known:
        return f"{series.name} not measured"
    (first, low), (last, high) = known[0], known[-1]
    return f"{series.name} {significant(low)} at {significant(first)}, {significant(high)} at {significant(last)}"


# --- Two ways to know the same numbers: how far the second is from the first, over the size of the number

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
    return Chart(figure, _agreement_in_words(title, apart, within))


def _band(figure: Plot, within: float, ink: Ink) -> None:
    figure.add_hrect(y0=-100 * within, y1=100 * within, fillcolor=ink.band)
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


def _wide(figure: Plot, values: Sequence[float]) -> None:
    """A logarithmic axis over whole decades: the numbers are of all sizes."""
    if values:
        low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        ticks = [10.0**power for power in range(low, max(high, low + 1) + 1)]
        names = list(map(significant, ticks))
        figure.update_xaxes(type="log", range=[low, math.log10(ticks[-1])], tickvals=ticks, ticktext=names)


def _agreement_in_words(title: str, apart: Sequence[float], within: float) -> str:
    if not apart:
        return f"{title}: nothing to compare."
    agree = sum(abs(each) <= within for each in apart)
    worst = significant(100 * max(map(abs, apart)))
    return f"{title}: {agree} of {len(apart)} within {percent(within)}; the farthest is {worst} % apart."
