"""Memory of one GPU, by what fills it: a bar for each configuration."""

from __future__ import annotations

from collections.abc import Sequence

from sizing.memory_use import FREE_PARTS, PARTS, MemoryUse
from sizing.numbers import significant
from ui.charts.base import SMALL, Chart, Ink, figure_of

GIB = 2.0**30
PATTERNS = ("", "/", "", ".", "x", "")
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
        figure.add_bar(
            y=list(names),
            x=values,
            name=part,
            orientation="h",
            marker={
                "color": colour,
                "line": {"color": ink.quiet, "width": 1},
                "pattern": {
                    "fillmode": "overlay",
                    "shape": PATTERNS[number % len(PATTERNS)],
                    "fgcolor": ink.text,
                    "fgopacity": 0.4,
                    "size": 5,
                },
            },
            hovertemplate="%{x:.3g} GiB<extra>%{fullData.name}</extra>",
        )
    figure.update_layout(
        barmode="stack",
        bargap=0.35,
        showlegend=True,
        margin={"l": 10, "t": 40},
        legend={
            "orientation": "h",
            "x": 0,
            "y": 1,
            "yanchor": "bottom",
            "traceorder": "normal",
            "font": {"size": SMALL},
        },
    )
    figure.update_xaxes(range=[0, 1.01 * max(use.capacity_bytes for use in uses) / GIB])
    figure.update_yaxes(autorange="reversed", automargin=True, showgrid=False, nticks=len(uses) + 1)
    return Chart(figure, _in_words(uses[0]))


def _in_words(use: MemoryUse) -> str:
    parts = ", ".join(f"{part.lower()} {significant(size / GIB)} GiB" for part, size in use.parts)
    return f"Memory of one GPU of {use.candidate.label}: {parts}, of {significant(use.capacity_bytes / GIB)} GiB."
