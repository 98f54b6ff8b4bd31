"""The lesson's picture: slots over time with a letter for each step, and below it the latencies and the queue."""

from __future__ import annotations

from collections.abc import Sequence

from learn.lesson import Mark, Outcome, Step, figures
from learn.lesson.outcome import DECODE, EMPTY, PREFILL
from learn.lesson.words import known
from ui.charts.base import SMALL, Chart, Ink, Plot, figure_of

STAGES = {EMPTY: "empty", PREFILL: "prompt", DECODE: "token"}
SLOT_PX, MARGIN_PX, BELOW_PX, BETWEEN_PX = 30, 84, 230, 56
"""Heights: of a slot, of both margins, of the lower plot, of the space between the two."""


def slots_and_queue(outcome: Outcome, ink: Ink, until: float) -> Chart:
    """Two plots over one axis of ticks: above slots, below TTFT, E2E and the queue; steps that begin before `until`."""
    steps = [step for step in outcome.steps if step.start < until]
    slots_px = SLOT_PX * len(steps[0].slots)
    inner_px = slots_px + BETWEEN_PX + BELOW_PX
    figure = figure_of("Slots, latencies and queue", "Time (ticks)", ink, height=inner_px + MARGIN_PX)
    _slots(figure, steps, ink)
    _queue(figure, steps, ink)
    end = steps[-1].start + steps[-1].ticks
    first = [mark for mark in outcome.first if mark.at <= end]
    last = [mark for mark in outcome.last if mark.at <= end]
    _marks(figure, "TTFT", first, ink.series[3], "circle")
    _marks(figure, "E2E", last, ink.series[2], "diamond")
    _axes(figure, BELOW_PX / inner_px, (BELOW_PX + BETWEEN_PX) / inner_px, len(steps[0].slots), end, ink)
    return Chart(figure, _in_words(outcome))


def _slots(figure: Plot, steps: Sequence[Step], ink: Ink) -> None:
    """Slots by steps; the width of a column is the length of its step."""
    colours = (ink.grid, ink.series[0], ink.series[2])
    scale = [[edge / 3, colours[number]] for number in range(3) for edge in (number, number + 1)]
    places = range(len(steps[0].slots))
    stages = list(STAGES)
    figure.add_trace(
        "heatmap",
        x=[step.start for step in steps] + [steps[-1].start + steps[-1].ticks],
        y=[place + 1 for place in places],
        z=[[stages.index(step.slots[place].stage) for step in steps] for place in places],
        text=[[step.slots[place].stage for step in steps] for place in places],
        customdata=[[_about(step, place) for step in steps] for place in places],
        texttemplate="%{text}",
        hovertemplate="%{customdata}<extra></extra>",
        colorscale=scale,
        zmin=-0.5,
        zmax=2.5,
        showscale=False,
        xgap=0.5,
        ygap=3,
    )


def _about(step: Step, place: int) -> str:
    """The text shown when the pointer is on a slot."""
    held = step.slots[place]
    lines = [f"Slot {place + 1}: {STAGES[held.stage]}"]
    if held.stage != EMPTY:
        lines.append(f"request {held.request + 1}, {held.tokens} tokens so far, {held.age_ticks:g} ticks after it came")
    lines.append(f"ticks {step.start:g} to {step.start + step.ticks:g}, {step.queue} waiting")
    return "<br>".join(lines)


def _queue(figure: Plot, steps: Sequence[Step], ink: Ink) -> None:
    last = steps[-1]
    figure.add_scatter(
        x=[*(step.start for step in steps), last.start + last.ticks],
        y=[*(step.queue for step in steps), last.queue],
        name="queue →",
        mode="lines",
        line={"color": ink.series[1], "width": 2, "shape": "hv"},
        yaxis="y3",
        hovertemplate="tick %{x:g}: %{y:,} waiting<extra></extra>",
    )


def _marks(figure: Plot, name: str, marks: Sequence[Mark], colour: str, symbol: str) -> None:
    figure.add_scatter(
        x=[mark.at for mark in marks],
        y=[mark.latency_ticks for mark in marks],
        customdata=[mark.request + 1 for mark in marks],
        name=name,
        mode="markers",
        marker={"color": colour, "symbol": symbol, "size": 9},
        yaxis="y2",
        hovertemplate=f"{name} of request %{{customdata}}: %{{y:g}} ticks<extra></extra>",
    )


def _axes(figure: Plot, below: float, above: float, slots: int, end: float, ink: Ink) -> None:
    """`below` and `above`: where the lower plot ends and the upper one begins, as shares of the height."""
    font = {"color": ink.quiet, "size": SMALL}
    plain = {"gridcolor": ink.grid, "zeroline": False, "tickfont": font, "separatethousands": True}
    ticks = list(range(1, slots + 1)) if slots <= 16 else None
    figure.update_xaxes(range=[0, end], anchor="y2", showgrid=False)
    figure.update_layout(
        yaxis={
            "domain": [above, 1],
            "autorange": "reversed",
            "tickvals": ticks,
            "title": {"text": "Slot", "font": font},
            "showgrid": False,
        },
        yaxis2={
            **plain,
            "domain": [0, below],
            "rangemode": "tozero",
            "title": {"text": "Latency (ticks)", "font": font},
        },
        yaxis3={
            **plain,
            "domain": [0, below],
            "overlaying": "y2",
            "side": "right",
            "showgrid": False,
            "rangemode": "tozero",
            "anchor": "x",
            "tickmode": "auto",
            "nticks": 6,
            "title": {"text": "Waiting requests", "font": font},
        },
        legend={
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "y": below,
            "yanchor": "bottom",
            "entrywidth": 42,
            "itemwidth": 30,
        },
        showlegend=True,
        margin={"l": 48, "r": 48, "t": 34, "b": 44},
    )


def _in_words(outcome: Outcome) -> str:
    """What the picture shows."""
    found, step = figures(outcome), outcome.steps[0]
    prompts = step.letters.count(PREFILL)
    return (
        f"Slots by time above, latencies and queue below. The first step computes {prompts} prompts in {step.ticks:g} "
        f"ticks while {step.queue} requests wait. In {found.end:g} ticks {found.completed} requests end, mean "
        f"TTFT {known(found.ttft_mean)} and mean E2E {known(found.e2e_mean)} ticks; {found.queue} wait at the end and "
        f"{100 * found.empty:.0f} % of the slot time is unused."
    )
