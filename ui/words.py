"""Words of the page alone: text that markdown cannot bend, badges, and what stands where there is no plan to draw."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

import streamlit as st

from sizing.numbers import percent
from sizing.plans import Basis, Fleet
from sizing.text import BASES, LEFT_OUT, capital, counts, spelt
from sizing.workload import Limit, Limited
from ui.scenario import Scenario

if TYPE_CHECKING:
    from ui.computing import Outcome  # loads the planner; the gate needs words before it

MARKDOWN = re.compile(r"([\\`*_{}\[\]()<>#+\-.!|~$:&^=@/])")
"""Signs that Streamlit's markdown gives a meaning: emphasis, links, HTML, tables, LaTeX, icons and directives."""
OF_UNIT = re.compile(
    r"(?<=\d) (?=(?:%|ms|s|min|h|Gi?B|GPUs?|points?|tokens|users|requests)(?!\w))|(?<=≤) |(?<=<=) | (?=≤|<=)"
)
"""The space before the unit of a number, and those around the sign of a limit."""
DOUBTFUL: tuple[Basis, ...] = ("extrapolated", "estimated", "what-if")
BASIS_HELP = {
    basis: f"{capital(meaning)}.{' Measure before buying.' if basis in DOUBTFUL else ''}"
    for basis, meaning in BASES.items()
}
BASIS_LOOK: dict[Basis, tuple[str, Literal["green", "blue", "orange", "violet"]]] = {
    "measured": (":material/straighten:", "green"),
    "fitted": (":material/show_chart:", "blue"),
    "extrapolated": (":material/warning:", "orange"),
    "estimated": (":material/calculate:", "violet"),
}
UNIT: dict[Limited, tuple[str, float]] = {
    "ttft": ("ms", 1000),
    "itl": ("ms", 1000),
    "gap": ("ms", 1000),
    "e2e": ("s", 1),
    "goodput": ("% of the limits", 100),
    "rejected": ("% of requests", 100),
}
"""Unit of a metric on screen, and how many of it make a second, or all."""
sentence_case = capital


def plain(text: str) -> str:
    """`text` as markdown that shows exactly its characters, but for the names of engines, which are `spelt`; no number
    at the end of a line and its unit on the next."""
    return MARKDOWN.sub(r"\\\1", OF_UNIT.sub("\N{NO-BREAK SPACE}", spelt(text).replace("\n", " ")))


def limit_name(limit: Limit) -> str:
    """For instance: p95 TTFT, Rejected."""
    return sentence_case(limit.name) if limit.metric == "rejected" else limit.name


def room(value_s: float, limit: Limit) -> str:
    """How far a predicted value is under or over its limit: "360 ms under 1,000 ms"."""
    side = "under" if value_s <= limit.limit_s else "over"
    if limit.metric == "goodput":
        return f"{percent(abs(limit.limit_s - value_s))} {side} the limits"
    return f"{limit.said(abs(limit.limit_s - value_s))} {side} {limit.allowed}"


def gpus_band(fleet: Fleet) -> str:
    """The 90 % band of the GPU count, short enough for a table cell."""
    return counts(fleet.gpus_low, fleet.gpus_high)


def counted(kinds: list[str]) -> str:
    """Reasons with their counts: "4 do not fit in memory, 1 misses the SLA"."""
    counts = {kind: kinds.count(kind) for kind in LEFT_OUT if kind in kinds}
    return ", ".join(f"{n} {LEFT_OUT[kind][n > 1]}" for kind, n in counts.items())


# --- What a page says when there is no plan to draw: one title, one sentence on what to do


def why_none(scenario: Scenario, outcome: Outcome | None) -> tuple[str, str]:
    """Title and sentence; `outcome` is None where the form lacks something."""
    if outcome is None:
        return scenario.missing, "Complete the form on the left; the answer appears at once."
    nearest = next((rejection for rejection in outcome.rejected if rejection.nearest_s is not None), None)
    if nearest is not None:
        ways = "Relax that limit, or allow another GPU, TP or precision."
        return outcome.title, f"Nearest miss: {nearest.label}: {nearest.why}. {ways}"
    return outcome.title, sentence_case(outcome.rejected[0].why if outcome.rejected else outcome.reason)


def tell(scenario: Scenario, outcome: Outcome | None) -> None:
    """Title and sentence on a page other than Size, and where the form is complete the way there."""
    title, sentence = why_none(scenario, outcome)
    st.title(plain(title), anchor=False)
    st.markdown(plain(sentence))
    if outcome is not None:
        st.page_link("ui/pages/size.py", label=WAYS_OUT, icon=":material/straighten:")


WAYS_OUT = "What would help, and why each configuration was left out"


def tell_unreadable(problems: tuple[str, ...]) -> None:
    """A warning for each source of points that cannot be read."""
    for problem in problems:
        st.warning(plain(problem), title="Measured points could not be read")


def binding_name(fleet: Fleet) -> str:
    """What keeps a replica from carrying more, short enough for a cell."""
    return "stable rate" if fleet.stability_binds else fleet.with_class(limit_name(fleet.binding))
