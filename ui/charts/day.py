"""GPUs hour by hour over a day, beside the fleet that is sized for the busiest hour."""

from __future__ import annotations

from sizing.fleets.daily import HOURS, Daily
from sizing.numbers import percent, significant
from ui.charts.base import SMALL, Chart, Ink, figure_of


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
    note = {"showarrow": False, "font": {"color": ink.limit, "size": SMALL}, "xanchor": "left", "yanchor": "bottom"}
    figure.add_annotation(x=0, y=most, text=f"sized for the peak: {most:,} GPUs", **note)
    ticks = list(range(0, HOURS + 1, 3))
    figure.update_xaxes(range=[0, HOURS], tickvals=ticks, ticktext=[f"{tick}:00" for tick in ticks])
    figure.update_yaxes(range=[0, 1.2 * most])
    return Chart(figure, _in_words(daily))


def _in_words(daily: Daily) -> str:
    quietest = min(daily.hours, key=lambda hour: hour.gpus)
    busiest = max(daily.hours, key=lambda hour: hour.gpus)
    apart = f"{quietest.gpus} at {quietest.hour}:00, {busiest.gpus} at {busiest.hour}:00"
    counts = apart if quietest.gpus < busiest.gpus else f"{busiest.gpus} at all hours"
    return (
        f"GPUs over the day: {counts}; following the load takes {daily.gpu_hours:,} GPU-hours a day, "
        f"{percent(daily.saved)} less than {daily.constant_gpu_hours:,}."
    )
