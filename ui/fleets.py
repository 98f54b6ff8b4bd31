"""Configurations by name: for pick lists, tables and links, where no two may be called the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import streamlit as st

from sizing.plan import Fleet
from ui.view import PREFIX

state = st.session_state


def named(fleets: Sequence[Fleet]) -> dict[str, Fleet]:
    """Name -> fleet, in the order given; what two share is told apart by its source, then by a number."""
    labels = Counter(fleet.candidate.label for fleet in fleets)
    found: dict[str, Fleet] = {}
    for fleet in fleets:
        label = fleet.candidate.label
        name = label if labels[label] == 1 else f"{label}, {fleet.candidate.source}"
        number = 1
        while name in found:
            number += 1
            name = f"{label}, {fleet.candidate.source}, no. {number}"
        found[name] = fleet
    return found


def pick_one(fleets: Sequence[Fleet]) -> tuple[str, Fleet]:
    """A pick list of the fleets, the answer first; the choice is in the URL as ``show.fleet``."""
    names, key = named(fleets), PREFIX + "fleet"
    if state.get(key) not in names:
        state[key] = next(iter(names))
    st.selectbox(
        "Configuration",
        list(names),
        key=key,
        width=420,
        persist_state="session",
        help="The answer is the first; others by their number of GPUs.",
    )
    state.shown[key] = state[key]
    return state[key], names[state[key]]


def use_configuration(fleet: Fleet) -> None:
    """Write GPU, TP and precision into the form: the scenario then has this configuration alone."""
    candidate = fleet.candidate
    state.update(gpus=[candidate.gpu], tps=[candidate.tp], precisions=[candidate.precision])


def compare_all() -> None:
    """Open the form's choice of TP and precision again."""
    state.update(tps=[], precisions=[])
