"""Predicted against measured: does the law that was fitted to these points give them back?"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from sizing.fitting import PointError
from sizing.numbers import percent, significant
from ui.charts.base import LOG_FROM, SYMBOLS, Chart, Ink, figure_of, wide_axis

BAND = 0.10
"""Either side of the diagonal."""


class Quantity(NamedTuple):
    """One figure of a point, measured and by the law; None where it was not measured."""

    name: str
    unit: str
    measured: Callable[[PointError], float | None]
    predicted: Callable[[PointError], float]

    @property
    def title(self) -> str:
        """The name with its unit, which some names say already."""
        return self.name if self.unit in self.name.lower() else f"{self.name} ({self.unit})"


QUANTITIES = (
    Quantity("Requests/s", "requests/s", lambda e: e.point.requests_per_s, lambda e: e.requests_per_s),
    Quantity("Mean TTFT", "ms", lambda e: _ms(e.point.ttft_mean_s), lambda e: e.ttft_mean_s * 1000),
    Quantity("Mean ITL", "ms", lambda e: _ms(e.point.itl_mean_s), lambda e: e.itl_mean_s * 1000),
)


def parity(quantity: Quantity, errors: Sequence[PointError], distrusted: frozenset[int], ink: Ink) -> Chart | None:
    """Markers over the diagonal and a band of 10 %; `distrusted` are places in `errors`. None if nothing is known."""
    pairs = [(quantity.measured(e), quantity.predicted(e), place in distrusted) for place, e in enumerate(errors)]
    known = [(m, p, odd) for m, p, odd in pairs if m is not None and m > 0 and math.isfinite(p)]
    if not known:
        return None
    figure = figure_of(quantity.title, f"Measured ({quantity.unit})", ink, height=270)
    figure.update_layout(margin_l=76)
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
    wide_axis(figure.update_xaxes, [m for m, _, _ in known], most_ticks=6)
    wide_axis(figure.update_yaxes, [p for _, p, _ in known], most_ticks=5)
    worst, at = max((abs(p / m - 1), m) for m, p, _ in known)
    inside = sum(abs(p / m - 1) <= BAND for m, p, _ in known)
    take_away = f"{inside} of {len(known)} points within 10 %, the worst {percent(worst, 1)} off, at {significant(at)}"
    return Chart(figure, f"{quantity.name} by the fitted law against measured: {take_away} {quantity.unit}.")


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000
