"""Throughput against interactivity: every configuration faint, the front that nothing surpasses bold."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

from sizing.analyses.curves import INTERACTIVITY, Measure, Speed, SpeedCurve, front
from sizing.numbers import significant
from sizing.text import spelt
from ui.charts.base import LOG_FROM, SMALL, Chart, Ink, Plot, figure_of, note

FAINT = 0.5
"""Opacity of what is not on the front."""
NEAR = 0.1
"""Names on the front stand at least this share of the chart's width apart."""


class Spot(NamedTuple):
    """One configuration at one load, as drawn."""

    name: str
    x: float
    y: float
    requests_per_s: float
    meets: bool


def spot_of(name: str, speed: Speed, measure: Measure, osl: float, price: float) -> Spot:
    """A speed in the chart's two quantities."""
    x, y = (quantity.of(speed, osl, price) for quantity in (INTERACTIVITY, measure))
    return Spot(name, x, y, speed.requests_per_s, speed.meets)


def spots_of(curves: Sequence[SpeedCurve], measure: Measure, osl: float, price: float) -> list[list[Spot]]:
    """The curves as drawn, each by rising load; loads without a finite value left out."""
    drawn = [
        [spot_of(spelt(curve.candidate.label), speed, measure, osl, price) for speed in curve.speeds]
        for curve in curves
    ]
    return [[spot for spot in spots if math.isfinite(spot.x) and math.isfinite(spot.y)] for spots in drawn]


def front_of(curves: Sequence[Sequence[Spot]], measure: Measure) -> list[Spot]:
    """Spots that no other surpasses, by rising interactivity."""
    spots = [spot for curve in curves for spot in curve]
    return [spots[place] for place in front([(s.x, s.y) for s in spots], (INTERACTIVITY.better, measure.better))]


def throughput_against_interactivity(
    curves: Sequence[Sequence[Spot]], best: Sequence[Spot], planned: Spot | None, measure: Measure, ink: Ink
) -> Chart:
    """Faint: all configurations at rising load. Bold, named and coloured by configuration: the front, `best`.

    The front is solid where the SLA holds, dotted where it does not. `planned` is the answer's own operating point.
    """
    figure = figure_of(measure.title, INTERACTIVITY.title, ink, height=440)
    _faint(figure, curves, ink)
    names = list(dict.fromkeys(spot.name for spot in best))
    for stretch in _stretches(best):
        _bold(figure, stretch, ink.series[names.index(stretch[0].name) % len(ink.series)])
    log = _axes(figure, measure, [spot.y for curve in curves for spot in curve])
    _names(figure, best, names, log, measure.better == "higher", ink)
    if planned is not None:
        _planned(figure, planned, ink)
    return Chart(figure, _in_words(best, measure))


def _faint(figure: Plot, curves: Sequence[Sequence[Spot]], ink: Ink) -> None:
    for curve in curves:
        figure.add_scatter(
            x=[spot.x for spot in curve],
            y=[spot.y for spot in curve],
            mode="lines",
            name=curve[0].name if curve else "",
            line={"color": ink.quiet, "width": 1},
            opacity=FAINT,
            hovertemplate="%{x:.3g} tokens/s per user<br>%{y:.3g}<extra>%{fullData.name}</extra>",
        )


def _stretches(best: Sequence[Spot]) -> Iterator[list[Spot]]:
    """The front cut where it passes to another configuration, between which there is nothing to buy, or out of the SLA.

    A stretch begins where the one before it ended, if that was of the same configuration: the line has no gap.
    """
    last: Spot | None = None
    for _, group in groupby(best, key=lambda spot: (spot.name, spot.meets)):
        stretch = list(group)
        if last is not None and last.name == stretch[0].name:
            stretch = [last, *stretch]
        last = stretch[-1]
        yield stretch


def _bold(figure: Plot, stretch: Sequence[Spot], colour: str) -> None:
    meets = stretch[-1].meets
    figure.add_scatter(
        x=[spot.x for spot in stretch],
        y=[spot.y for spot in stretch],
        mode="lines" if len(stretch) > 1 else "markers",
        name=stretch[0].name,
        line={"color": colour, "width": 4 if meets else 2.5, "dash": "solid" if meets else "dot"},
        marker={"color": colour, "size": 7},
        customdata=[significant(spot.requests_per_s) for spot in stretch],
        hovertemplate=(
            "%{x:.3g} output tokens/s per user<br>%{y:.3g}<br>%{customdata} requests/s per replica"
            f"<br>SLA {'holds' if meets else 'missed'}<extra>%{{fullData.name}}</extra>"
        ),
    )


def _names(figure: Plot, best: Sequence[Spot], names: Sequence[str], log: bool, above: bool, ink: Ink) -> None:
    """Each configuration's name once, on the empty side of the middle of its part, unless another stands there."""
    if not best:
        return
    width = (best[-1].x - best[0].x) or 1.0
    taken: list[float] = []
    for number, name in enumerate(names):
        own = [spot for spot in best if spot.name == name]
        centre = (own[0].x + own[-1].x) / 2
        middle = min(own, key=lambda spot: abs(spot.x - centre))
        if any(abs(middle.x - other) < NEAR * width for other in taken):
            continue
        taken.append(middle.x)
        y, colour = math.log10(middle.y) if log else middle.y, ink.series[number % len(ink.series)]
        side: dict[str, object] = {"yanchor": "bottom", "yshift": 2} if above else {"yanchor": "top", "yshift": -4}
        note(figure, name, colour, middle.x, y, xshift=6, **side)


def _planned(figure: Plot, planned: Spot, ink: Ink) -> None:
    figure.add_scatter(
        x=[planned.x],
        y=[planned.y],
        mode="markers+text",
        name=f"{planned.name}, planned load",
        text=["planned"],
        textposition="bottom left",
        textfont={"color": ink.text, "size": SMALL},
        marker={"color": ink.text, "size": 12, "symbol": "star"},
        hovertemplate="%{x:.3g} output tokens/s per user<br>%{y:.3g}<extra>%{fullData.name}</extra>",
    )


def _axes(figure: Plot, measure: Measure, values: Sequence[float]) -> bool:
    """True when the vertical axis is logarithmic: what should be low is without bound for a replica without load."""
    figure.update_xaxes(rangemode="tozero")
    wide = bool(values) and min(values) > 0 and max(values) / min(values) > LOG_FROM
    if measure.better == "lower" and wide:
        figure.update_yaxes(type="log", dtick="D2", tickformat=",~g")
        return True
    figure.update_yaxes(rangemode="tozero")
    return False


def _in_words(best: Sequence[Spot], measure: Measure) -> str:
    if not best:
        return f"{measure.title} against interactivity: no configuration has a steady load."
    changes = [best[0], *(one for before, one in pairwise(best) if before.name != one.name)]
    parts = [f"from {significant(spot.x)} {spot.name} ({significant(spot.y)})" for spot in changes[:6]]
    held = [spot.x for spot in best if spot.meets]
    sla = f"the SLA holds from {significant(min(held))}" if held else "the SLA holds nowhere on the front"
    return (
        f"{measure.title} against output tokens/s per user; best by rising interactivity: {', '.join(parts)}; "
        f"up to {significant(best[-1].x)}; {sla}."
    )
