"""GPUs against load: the steps of the answer's fleet with its band, and those of other GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sizing.analyses.curves import FleetSizes, LengthCell
from sizing.analyses.daily import HOURS, Daily
from sizing.memory_use import FREE_PARTS, PARTS, MemoryUse
from sizing.numbers import count_of, per_second, percent, significant
from sizing.text import spelt
from ui.charts.base import (
    DASHES,
    LOG_FROM,
    MANY_DECADES,
    SYMBOLS,
    Chart,
    Ink,
    Plot,
    figure_of,
    legend_above,
    note,
    patterned,
    planned_point,
)


class FleetSteps(NamedTuple):
    """One configuration's steps and the name at their end."""

    name: str
    sizes: FleetSizes


def gpus_against_load(
    steps: Sequence[FleetSteps], high_per_s: float, load_per_s: float, gpus: int, today: str, ink: Ink
) -> Chart:
    """Step lines up to `high_per_s` requests/s of the fleet, the first with its band; a dot at the planned load."""
    figure = figure_of("GPUs to own", "Load (requests/s of the whole fleet)", ink, height=340)
    _band(figure, steps[0].sizes, high_per_s, ink)
    for number, one in enumerate(steps):
        width, dash = 2.5 if number == 0 else 1.5, DASHES[number % len(DASHES)]
        line = {"color": _colour(number, ink), "width": width, "dash": dash, "shape": "hv"}
        x, y = _to_the_end(one.sizes.rates_per_s, one.sizes.gpus, high_per_s)
        figure.add_scatter(x=x, y=y, mode="lines", name=one.name, line=line, showlegend=True)
    planned_point(figure, load_per_s, gpus, today, "top left", ink)
    figure.update_traces(hovertemplate="%{x:.4g} requests/s<br>%{y:,} GPUs<extra>%{fullData.name}</extra>")
    figure.update_xaxes(range=[steps[0].sizes.rates_per_s[0], high_per_s])
    figure.update_yaxes(rangemode="tozero")
    legend_above(figure)
    return Chart(figure, _sizes_in_words(steps, high_per_s, load_per_s, gpus))


def _colour(number: int, ink: Ink) -> str:
    """The second colour is the planned load's."""
    return (ink.series[0], *ink.series[2:])[number % (len(ink.series) - 1)]


def _to_the_end(x: Sequence[float], y: Sequence[int], end: float) -> tuple[list[float], list[int]]:
    return [*x, end], [*y, y[-1]]


def _band(figure: Plot, sizes: FleetSizes, high_per_s: float, ink: Ink) -> None:
    """The 90 % band as a filled area between two step lines; nothing where its slow end has no answer."""
    if sizes.high is None:
        return
    thin = {"line": {"color": ink.band, "width": 1, "shape": "hv"}, "mode": "lines", "showlegend": False}
    for name, gpus, fill in (("90 % band, low", sizes.low, None), ("90 % band, high", sizes.high, "tonexty")):
        x, y = _to_the_end(sizes.rates_per_s, gpus, high_per_s)
        figure.add_scatter(x=x, y=y, name=name, fill=fill, fillcolor=ink.band, **thin)


def _sizes_in_words(steps: Sequence[FleetSteps], high_per_s: float, load_per_s: float, gpus: int) -> str:
    ends = "; ".join(f"{one.name} {count_of(one.sizes.gpus[-1], 'GPU')}" for one in steps)
    return (
        f"GPUs against load: {count_of(gpus, 'GPU')} at the planned {per_second(load_per_s)}; at "
        f"{per_second(high_per_s)} {ends}."
    )


def gpus_over_day(daily: Daily, ink: Ink) -> Chart:
    """A step for each hour, its GPUs running; the dashed line is the constant fleet, the shaded part what is saved."""
    figure = figure_of("GPUs running", "Hour of the day", ink, height=300)
    hours = [hour.hour for hour in daily.hours]
    gpus = [hour.gpus for hour in daily.hours]
    edges, steps = [*hours, HOURS], [*gpus, gpus[-1]]
    most = daily.constant_gpus
    quiet = {"color": ink.limit, "width": 1.5, "dash": "dash"}
    figure.add_scatter(x=[0, HOURS], y=[most, most], mode="lines", name="constant fleet", line=quiet, hoverinfo="skip")
    line = {"color": ink.series[0], "width": 2.5, "shape": "hv"}
    rates = [significant(hour.rate_per_s) for hour in daily.hours]
    figure.add_scatter(
        x=edges,
        y=steps,
        mode="lines",
        name="follows the load",
        line=line,
        fill="tozeroy",
        fillcolor=ink.band,
        customdata=[*rates, rates[-1]],
        hovertemplate="%{x}:00<br>%{y} GPUs<br>%{customdata} requests/s<extra></extra>",
    )
    note(figure, f"sized for the peak: {count_of(most, 'GPU')}", ink.limit, 0, most)
    ticks = list(range(0, HOURS + 1, 3))
    figure.update_xaxes(range=[0, HOURS], tickvals=ticks, ticktext=[f"{tick}:00" for tick in ticks])
    figure.update_yaxes(range=[0, 1.2 * most])
    return Chart(figure, _day_in_words(daily))


def _day_in_words(daily: Daily) -> str:
    quietest = min(daily.hours, key=lambda hour: hour.gpus)
    busiest = max(daily.hours, key=lambda hour: hour.gpus)
    apart = f"{quietest.gpus} at {quietest.hour}:00, {busiest.gpus} at {busiest.hour}:00"
    counts = apart if quietest.gpus < busiest.gpus else f"{busiest.gpus} at all hours"
    return (
        f"GPUs over the day: {counts}; following the load takes {count_of(daily.gpu_hours, 'GPU-hour')} a day, "
        f"{percent(daily.saved)} less than {daily.constant_gpu_hours:,}."
    )


CONTOUR_DASHES = ("dash", "solid", "dot", "dashdot", "longdash")


def requests_over_lengths(cells: Sequence[LengthCell], isl: float, osl: float, ink: Ink) -> Chart:
    """Lines over ISL for each OSL; hollow markers are extrapolated; the scenario's own lengths have a larger marker."""
    figure = figure_of("Requests/s per GPU", "Input (tokens)", ink, height=360)
    for number, length in enumerate(sorted({cell.osl for cell in cells})):
        known = [cell for cell in cells if cell.osl == length and cell.requests_per_s_per_gpu is not None]
        if not known:
            continue
        colour, symbol = ink.series[number % len(ink.series)], SYMBOLS[number % len(SYMBOLS)]
        symbols = [f"{symbol}-open" if cell.basis == "extrapolated" else symbol for cell in known]
        sizes = [_size(cell, isl, osl) for cell in known]
        figure.add_scatter(
            x=[cell.isl for cell in known],
            y=[cell.requests_per_s_per_gpu for cell in known],
            mode="lines+markers",
            name=f"{length:,g} out",
            line={"color": colour, "width": 2, "dash": CONTOUR_DASHES[number % len(CONTOUR_DASHES)]},
            marker={"color": colour, "opacity": 1, "symbol": symbols, "size": sizes},
            customdata=[cell.basis for cell in known],
            hovertemplate="%{x:,} in<br>%{y:.3g} requests/s per GPU<br>%{customdata}<extra>%{fullData.name}</extra>",
        )
    _rate_axis(figure, [cell.requests_per_s_per_gpu for cell in cells if cell.requests_per_s_per_gpu])
    figure.update_xaxes(
        type="log", tickvals=sorted({cell.isl for cell in cells}), tickformat=",", minor={"showgrid": False}
    )
    legend_above(figure)
    return Chart(figure, _cells_in_words(cells, isl, osl))


def _rate_axis(figure: Plot, values: Sequence[float]) -> None:
    if values and max(values) / min(values) > LOG_FROM:
        few = max(values) / min(values) > MANY_DECADES
        figure.update_yaxes(type="log", dtick=1 if few else "D2", tickformat=",~g")
    else:
        figure.update_yaxes(rangemode="tozero")


def _size(cell: LengthCell, isl: float, osl: float) -> int:
    return 14 if (cell.isl, cell.osl) == (isl, osl) else 8


def _cells_in_words(cells: Sequence[LengthCell], isl: float, osl: float) -> str:
    known = [cell for cell in cells if cell.requests_per_s_per_gpu is not None]
    if not known:
        return "Requests/s per GPU over lengths: the SLA holds at none of them."
    ends = (end(known, key=lambda cell: cell.requests_per_s_per_gpu or 0) for end in (min, max))
    own = next((cell for cell in known if (cell.isl, cell.osl) == (isl, osl)), None)
    here = f"{significant(own.requests_per_s_per_gpu or 0)} at {isl:,g} in, {osl:,g} out; " if own else ""
    low, high = (
        f"{significant(cell.requests_per_s_per_gpu or 0)} at {cell.isl:,g} in, {cell.osl:,g} out" for cell in ends
    )
    missing = len(cells) - len(known)
    return f"Requests/s per GPU over lengths: {here}lowest {low}; highest {high}; none at {missing} of {len(cells)}."


GIB = 2.0**30
PATTERNS = ("", "/", "", ".", "x", "-")
ROW_PX, FRAME_PX = 40, 110


def memory_per_gpu(names: Sequence[str], uses: Sequence[MemoryUse], ink: Ink) -> Chart:
    """Stacked bars in GiB, one for each name, the first at the top; what is free has a light fill."""
    figure = figure_of("", "Memory of one GPU (GiB)", ink, height=FRAME_PX + ROW_PX * len(uses))
    for number, part in enumerate(PARTS):
        values = [use.of(part) / GIB for use in uses]
        if not any(values):
            continue
        free = part in FREE_PARTS
        colour = ink.grid if free else ink.series[number % len(ink.series)]
        pattern = patterned(PATTERNS[number % len(PATTERNS)], ink)
        marker = {"color": colour, "line": {"color": ink.quiet, "width": 1}, "pattern": pattern}
        hover = "%{x:.3g} GiB<extra>%{fullData.name}</extra>"
        figure.add_bar(y=list(names), x=values, name=part, orientation="h", marker=marker, hovertemplate=hover)
    legend_above(figure)
    figure.update_layout(barmode="stack", bargap=0.35, margin={"l": 10, "t": 40}, legend={"x": 0, "xanchor": "left"})
    figure.update_xaxes(range=[0, 1.01 * max(use.capacity_bytes for use in uses) / GIB])
    figure.update_yaxes(autorange="reversed", automargin=True, showgrid=False, nticks=len(uses) + 1)
    return Chart(figure, _memory_in_words(uses[0]))


def _memory_in_words(use: MemoryUse) -> str:
    parts = ", ".join(f"{part.lower()} {significant(size / GIB)} GiB" for part, size in use.parts)
    return (
        f"Memory of one GPU of {spelt(use.candidate.label)}: {parts}, of {significant(use.capacity_bytes / GIB)} GiB."
    )
