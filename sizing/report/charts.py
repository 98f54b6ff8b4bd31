"""How the charts of a report are drawn as SVG: colours, font, labels; the same drawing gives the same text.

Matplotlib's settings are set once, here, and never again: they belong to the whole process, and a server draws for many
at once. A lock keeps drawings apart; no text of a figure is read as mathematics.
"""

from __future__ import annotations

import io
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import matplotlib
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sizing.analyses.daily import HOURS
from sizing.numbers import count_of, per_second, significant
from sizing.report.model import Configuration, Day, LimitCurve, LoadCurves, Report, Talks, Traffic
from sizing.report.tables import gpus_band, line, number_of, text_of
from sizing.workload import SHARES, Limit

matplotlib.rcParams.update(
    {
        "svg.hashsalt": "sizing-report",
        "svg.fonttype": "path",
        "font.family": "DejaVu Sans",
        "font.size": 8.0,
        "text.parse_math": False,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.edgecolor": "#4a5563",
        "axes.labelcolor": "#4a5563",
        "xtick.color": "#4a5563",
        "ytick.color": "#4a5563",
        "text.color": "#1b2430",
        "grid.color": "#e3e7ec",
    }
)
INK, QUIET, GRID, LINE, DOT, LIMIT, BAND = (
    *("#1b2430", "#4a5563", "#e3e7ec", "#0072b2"),
    *("#d55e00", "#b42318", "#dcebf5"),
)
INKS = {INK: "ink", QUIET: "quiet", GRID: "grid", LINE: "line", DOT: "dot", LIMIT: "limit", BAND: "band"}
"""Every colour of the charts and what it is for, so that a page may set its own."""
NO_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}
WIDTH_IN = 7.0
_lock = threading.Lock()
KEPT = 16
"""Drawings of each kind that are kept: a page and a PDF of one report show the same ones, and each takes 0.1 s."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """A drawing as SVG, and the sentence that says what it shows."""

    name: str
    svg: str
    alt: str


def drawn(draw: Callable[[Figure], None], height_in: float) -> str:
    """The SVG element of a figure: the same drawing gives the same text."""
    with _lock:
        figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
        draw(figure)
        out = io.StringIO()
        figure.savefig(out, format="svg", transparent=True, metadata=NO_METADATA)
    text = out.getvalue()
    return text[text.index("<svg") :]


def label(panel: Axes, text: str, place: tuple[float, float], colour: str, transform: object) -> None:
    """A small text inside a panel, just above and right of a place."""
    panel.annotate(
        text,
        place,
        xycoords=transform,  # type: ignore[arg-type]
        xytext=(2, 2),
        textcoords="offset points",
        color=colour,
        fontsize=7,
    )


def drawable(text: str) -> str:
    """`text` with a box for every character that the charts' font has no shape for."""
    return "".join(char if ord(char) in GLYPHS else "□" for char in text)


GLYPHS = frozenset(font_manager.get_font(font_manager.findfont("DejaVu Sans")).get_charmap())
"""Code points that the charts' font can draw; it comes with matplotlib."""


PANEL_IN, DAY_IN, ROW_IN = 2.2, 1.9, 0.26
MOST_BARS = 12
BEYOND = 1.5
"""Times the highest count: bands that reach farther end in an arrow."""
LOG_FROM = 20.0
"""A range of values this wide is drawn on a logarithmic axis."""
LABEL = 40
"""Characters of a label on an axis."""


def charts(report: Report) -> tuple[Drawing, ...]:
    """The charts of a report with an answer; none without."""
    found = []
    if report.curves is not None and report.curves.curves:
        found.append(latency_chart(report.curves))
    if report.sessions is not None:
        found.append(sessions_chart(report.sessions))
    if report.traffic is not None:
        found.append(traffic_chart(report.traffic))
    if report.day is not None:
        found.append(day_chart(report.day))
    if report.configurations:
        found.append(gpus_chart(report.configurations))
    return tuple(found)


@lru_cache(KEPT)
def latency_chart(curves: LoadCurves) -> Drawing:
    """One panel for each limited latency: the line by formula, the limit, the planned load, the capacity."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots(1, len(curves.curves), squeeze=False)[0]
        for number, (panel, curve) in enumerate(zip(axes, curves.curves, strict=True)):
            latency_panel(panel, curves, curve, first=number == 0)
        figure.supxlabel("Load (requests/s per replica)", fontsize=8, color=QUIET)

    said = "; ".join(map(in_words, curves.curves))
    alt = (
        f"{said}. A working replica then carries {per_second(curves.planned_per_s)}; the SLA fails above "
        f"{per_second(curves.capacity_per_s)}."
    )
    return Drawing("latency", drawn(draw, PANEL_IN), alt)


def in_words(curve: LimitCurve) -> str:
    """A curve at the planned load, against its limit."""
    limit = Limit(curve.metric, curve.percentile, curve.limit_s)
    planned = limit.said(curve.planned_s) if curve.planned_s is not None else "not known"
    return f"{curve.name} at the planned load is {planned}, the limit {limit.said(limit.limit_s)}"


def latency_panel(panel: Axes, curves: LoadCurves, curve: LimitCurve, first: bool) -> None:
    """One latency against load."""
    scale, unit = (1000.0, "ms") if curve.limit_s < 10 else (1.0, "s")
    if curve.metric in SHARES:
        scale, unit = 100.0, "% of the limits"
    known = [
        (load, value * scale)
        for load, value in zip(curves.load.values, curve.latency.values, strict=True)
        if load is not None and value is not None and value > 0
    ]
    limit, capacity = curve.limit_s * scale, curves.capacity_per_s
    panel.set_title(f"{curve.name} ({unit})", loc="left", fontsize=9, color=INK)
    panel.axvspan(capacity * (1 - curves.headroom), capacity, color=BAND, lw=0)
    panel.axvline(capacity, color=QUIET, lw=0.8, ls=":")
    panel.axhline(limit, color=LIMIT, lw=1.2, ls="--")
    panel.plot([load for load, _ in known], [value for _, value in known], color=LINE, lw=1.8)
    if curve.planned_s is not None:
        panel.plot([curves.planned_per_s], [curve.planned_s * scale], "o", color=DOT, mec=INK, mew=0.6, ms=6)
    upright(panel, [value for _, value in known], limit)
    panel.set_xlim(0, 1.02 * max([capacity, curves.planned_per_s, *(load for load, _ in known)]))
    label(panel, f"limit {significant(limit)}", (0.02, limit), LIMIT, panel.get_yaxis_transform())
    if first:
        top = panel.get_xaxis_transform()
        label(panel, "headroom" if curves.headroom else "", (capacity * (1 - curves.headroom), 0.02), QUIET, top)


def upright(panel: Axes, values: list[float], limit: float) -> None:
    """A vertical axis that shows the limit; what lies far above it is cut off."""
    low, top = min([*values, limit]), limit * (1.5 if max([*values, 0.0]) > limit else 1.2)
    if low > 0 and top / low > LOG_FROM:
        panel.set_yscale("log")
        panel.set_ylim(low / 1.5, top * 1.2)
        panel.yaxis.set_major_formatter(lambda value, _: significant(value))
        panel.yaxis.set_minor_formatter(lambda value, _: "")
    else:
        panel.set_ylim(0, top or 1.0)
        panel.yaxis.set_major_formatter(lambda value, _: significant(value))
    panel.xaxis.set_major_formatter(lambda value, _: significant(value))


@lru_cache(KEPT)
def day_chart(day: Day) -> Drawing:
    """GPUs of each hour as steps; the dashed line is the busiest hour's fleet, which would run all day."""
    gpus = [value or 0.0 for value in day.gpus.values]
    most = day.constant_gpus.value or 0.0

    def draw(figure: Figure) -> None:
        panel = figure.subplots()
        edges, steps = range(HOURS + 1), [*gpus, gpus[-1]]
        panel.fill_between(edges, steps, step="post", color=BAND, lw=0)
        panel.step(edges, steps, where="post", color=LINE, lw=1.8)
        panel.axhline(most, color=LIMIT, lw=1.2, ls="--")
        label(panel, f"busiest hour: {most:,.0f}", (0.01, most), LIMIT, panel.get_yaxis_transform())
        panel.set_xticks(range(0, HOURS + 1, 3), [f"{hour}:00" for hour in range(0, HOURS + 1, 3)])
        panel.set_xlim(0, HOURS)
        panel.set_ylim(0, 1.25 * max(most, 1.0))
        panel.set_ylabel("GPUs running", fontsize=8)
        panel.yaxis.set_major_formatter(lambda value, _: significant(value))

    quiet, busy = gpus.index(min(gpus)), gpus.index(max(gpus))
    apart = f"{gpus[quiet]:,.0f} at {quiet}:00, {gpus[busy]:,.0f} at {busy}:00"
    counts = apart if gpus[quiet] < gpus[busy] else f"{gpus[busy]:,.0f} at all hours"
    alt = (
        f"GPUs over the day: {counts}; following the load takes {text_of(day.gpu_hours)} a day, "
        f"{number_of(day.saved)} less than {number_of(day.constant_gpu_hours)}."
    )
    return Drawing("day", drawn(draw, DAY_IN), alt)


@lru_cache(KEPT)
def traffic_chart(traffic: Traffic) -> Drawing:
    """Above, percentiles of each hour over their limits, if there are any; below, GPUs that each hour needs, and the
    fleet's, dashed."""
    hours = traffic.hours
    edges, fleet = range(len(hours) + 1), traffic.gpus.value or 0.0
    ratios = [
        [(hour.seconds[number].value or math.nan) / (limit.limit.value or math.nan) for hour in hours]
        for number, limit in enumerate(traffic.limits)
    ]

    def draw(figure: Figure) -> None:
        *above, below = figure.subplots(1 + bool(traffic.limits), 1, sharex=True, squeeze=False)[:, 0]
        for panel in above:
            for number, (limit, values) in enumerate(zip(traffic.limits, ratios, strict=True)):
                look = {"color": (LINE, DOT, QUIET)[number % 3], "lw": 1.4, "label": limit.name}
                panel.step(edges, [*values, values[-1]], where="post", **look)
            panel.axhline(1.0, color=LIMIT, lw=1.2, ls="--")
            panel.set_ylabel("of its limit", fontsize=8)
            panel.set_ylim(bottom=0)
            panel.legend(fontsize=7, frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0, 1))
        gpus = [hour.gpus.value or 0.0 for hour in (*hours, hours[-1])]
        below.fill_between(edges, gpus, step="post", color=BAND, lw=0)
        below.step(edges, gpus, where="post", color=LINE, lw=1.8)
        below.axhline(fleet, color=LIMIT, lw=1.2, ls="--")
        label(below, f"fleet: {fleet:,.0f}", (0.01, fleet), LIMIT, below.get_yaxis_transform())
        below.set_ylim(0, 1.3 * max(fleet, 1.0))
        below.set_ylabel("GPUs", fontsize=8)
        every = max(1, len(hours) // 6)
        below.set_xticks(edges[:-1][::every], [drawable(hour.clock) for hour in hours[::every]], fontsize=7)
        below.set_xlim(0, len(hours))

    over = [sum(value > 1 for value in values) for values in ratios]
    beyond = ", ".join(f"{limit.name} in {count}" for limit, count in zip(traffic.limits, over, strict=True))
    among = count_of(len(hours), "hour")
    said = f"Of {among}, a limit is exceeded: {beyond}" if beyond else f"GPUs of {among}"
    alt = f"{said}; the fleet has {text_of(traffic.gpus)}."
    return Drawing("traffic", drawn(draw, (1 + bool(traffic.limits)) * DAY_IN), alt)


@lru_cache(KEPT)
def sessions_chart(talks: Talks) -> Drawing:
    """Above, the share of prompt tokens found in the cache; below, p95 TTFT of later turns; over sessions in flight."""
    rows = [row for row in talks.rising if row.in_flight.value is not None]
    users, found = [row.in_flight.value or 0.0 for row in rows], [row.hit_rate.value or 0.0 for row in rows]
    ttft_s = [row.later_ttft.value if row.later_ttft.value is not None else math.nan for row in rows]
    planned = talks.rising[talks.planned].in_flight.value or 0.0

    def draw(figure: Figure) -> None:
        above, below = figure.subplots(2, 1, sharex=True)
        above.plot(users, [100 * share for share in found], color=LINE, lw=1.8)
        above.set_ylim(0, 105)
        above.set_ylabel("found, %", fontsize=8)
        below.plot(users, [1000 * value for value in ttft_s], color=DOT, lw=1.8)
        below.set_ylabel("p95 TTFT, later, ms", fontsize=8)
        below.set_xlabel("sessions in flight")
        if max(ttft_s, default=0.0) > LOG_FROM * min(ttft_s, default=1.0):
            below.set_yscale("log")
            below.yaxis.set_minor_formatter(lambda value, _: "")
        below.yaxis.set_major_formatter(lambda value, _: significant(value))
        for panel in (above, below):
            panel.axvline(planned, color=LIMIT, lw=1.2, ls="--")
        label(above, "planned", (planned, 0.05), LIMIT, above.get_xaxis_transform())

    last = rows[-1] if rows else None
    ends = f"; at {text_of(last.in_flight)} in flight it is {number_of(last.hit_rate)}" if last else ""
    alt = f"{number_of(talks.rising[talks.planned].hit_rate)} of prompt tokens are found at the planned load{ends}."
    return Drawing("sessions", drawn(draw, 2 * DAY_IN), alt)


@lru_cache(KEPT)
def gpus_chart(configurations: tuple[Configuration, ...]) -> Drawing:
    """GPUs of each configuration as a dot, its 90 % band as a line; an arrow where it goes on."""
    rows = configurations[:MOST_BARS]

    def draw(figure: Figure) -> None:
        panel = figure.subplots()
        for height, found in enumerate(rows):
            gpus_row(panel, height, found, most(rows))
        panel.set_yticks(range(len(rows)), [line(drawable(found.label), LABEL) for found in rows])
        panel.tick_params(axis="y", labelcolor=INK, length=0)
        panel.set_ylim(len(rows) - 0.5, -0.5)
        panel.set_xlim(0, 1.08 * most(rows))
        panel.grid(axis="y", visible=False)
        panel.set_xlabel("GPUs, spares included")
        panel.xaxis.set_major_formatter(lambda value, _: significant(value))

    first = rows[0]
    among = f"Of {len(configurations)} configurations that meet the SLA, " if len(configurations) > 1 else ""
    needs = f"{line(first.label)} needs {text_of(first.gpus)}, {gpus_band(first)} in the 90 % band."
    return Drawing("gpus", drawn(draw, 0.7 + ROW_IN * len(rows)), among + needs)


def most(rows: tuple[Configuration, ...]) -> float:
    """Where the axis of counts ends: bands that reach far beyond every count are cut there."""
    counts = max(max(found.gpus.value or 0, 1) for found in rows)
    return min(BEYOND * counts, max(found.gpus_high.value or BEYOND * counts for found in rows))


def gpus_row(panel: Axes, height: int, found: Configuration, highest: float) -> None:
    """The band and the dot of one configuration."""
    low, gpus, high = found.gpus_low.value or 0, found.gpus.value or 0, found.gpus_high.value
    cut = high is None or high > highest
    end = 1.06 * highest if high is None or cut else high
    panel.plot([low, end], [height, height], color=LINE, lw=2.2, solid_capstyle="butt", alpha=0.55)
    if cut:
        panel.plot([end], [height], ">", color=LINE, ms=5)
    panel.plot([gpus], [height], "o" if height else "D", color=DOT, mec=INK, mew=0.6, ms=5.5)
    panel.annotate(number_of(found.gpus), (gpus, height), (0, 5), textcoords="offset points", fontsize=7, ha="center")
