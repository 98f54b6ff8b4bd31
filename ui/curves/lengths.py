"""Token lengths: requests/s per GPU of one configuration when prompts or answers grow."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from sizing.length_grid import LengthCell
from sizing.numbers import significant
from sizing.plan import Fleet
from ui import curving
from ui.charts.lengths import requests_over_lengths
from ui.look import ink, show
from ui.scenario import Scenario
from ui.words import plain, sentence_case

EXTRAPOLATED = " (extrapolated)"


def draw(scenario: Scenario, name: str, fleet: Fleet) -> None:
    """The grid around the scenario's lengths as lines and as a table."""
    with st.spinner("Asking for other lengths…"):
        cells = curving.lengths(scenario, name, fleet)
    st.title(plain(_title(cells, scenario)), anchor=False)
    show(requests_over_lengths(cells, scenario.isl, scenario.osl, ink()), "lengths")
    st.caption(
        f"{plain(fleet.candidate.label)} under the same SLA, headroom kept; the larger marker is the scenario. Hollow "
        "markers are extrapolated: more than twice or less than half of what was measured."
        if fleet.candidate.basis != "estimated"
        else f"{plain(fleet.candidate.label)} under the same SLA, headroom kept; the larger marker is the scenario. "
        "All estimated: none of these lengths was measured."
    )
    _table(cells)


def _title(cells: Sequence[LengthCell], scenario: Scenario) -> str:
    own = _per_gpu(cells, scenario.isl, scenario.osl)
    twice = _per_gpu(cells, 2 * scenario.isl, scenario.osl)
    if own is None:
        return "Requests/s per GPU at other lengths"
    here = f"{significant(own)} requests/s per GPU at {scenario.isl:,} in, {scenario.osl:,} out"
    return f"{here}; {significant(twice)} with prompts twice as long" if twice else f"{here}; none with twice the input"


def _per_gpu(cells: Sequence[LengthCell], isl: float, osl: float) -> float | None:
    return next((cell.requests_per_s_per_gpu for cell in cells if (cell.isl, cell.osl) == (isl, osl)), None)


def _table(cells: Sequence[LengthCell]) -> None:
    st.markdown("**Requests/s per GPU**, input tokens down, output tokens across")
    rows: dict[str, dict[str, str]] = {}
    for cell in sorted(cells, key=lambda cell: (cell.isl, cell.osl)):
        rows.setdefault(f"{cell.isl:,g} in", {})[f"{cell.osl:,g} out"] = _text(cell)
    st.table(pd.DataFrame.from_dict(rows, orient="index"), alt="Requests/s per GPU by input and output tokens")
    reasons = list(dict.fromkeys(cell.why for cell in cells if cell.why))
    for reason in reasons:
        st.caption(f"None: {plain(sentence_case(reason))}")


def _text(cell: LengthCell) -> str:
    if cell.requests_per_s_per_gpu is None:
        return "none"
    return significant(cell.requests_per_s_per_gpu) + (EXTRAPOLATED if cell.basis == "extrapolated" else "")
