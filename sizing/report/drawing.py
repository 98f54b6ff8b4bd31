"""How the charts of a report are drawn as SVG: colours, font, labels; the same drawing gives the same text.

Matplotlib's settings are set once, here, and never again: they belong to the whole process, and a server draws for many
at once. A lock keeps drawings apart; no text of a figure is read as mathematics.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from dataclasses import dataclass

import matplotlib
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure

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


@dataclass(frozen=True, slots=True)
class Chart:
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
    return "".join(char if ord(char) in glyphs() else "□" for char in text)


def glyphs() -> frozenset[int]:
    """Code points that the charts' font can draw."""
    return _glyphs


_glyphs = frozenset(font_manager.get_font(font_manager.findfont("DejaVu Sans")).get_charmap())
"""Read once: the font comes with matplotlib."""
