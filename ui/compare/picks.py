"""Which configurations stand side by side: one list, kept in the URL, changed in the table or in a pick list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import streamlit as st

from sizing.plan import Fleet
from ui.view import PREFIX

state = st.session_state

MOST = 4
KEY = PREFIX + "pick"
LIST = "compare_list"
REVISION = "compare_revision"
"""Counts changes that the table did not make itself: it is then drawn anew with its rows picked."""
DRAWN = "compare_drawn"
"""The picks that the table shows."""


def written(names: Sequence[str]) -> str:
    """Names as one URL value. ``read(written(names)) == names``, whatever they hold.

    >>> written(["h200_sxm TP1 fp8", "a;b"])
    'h200_sxm TP1 fp8;a%3Bb'
    """
    return ";".join(name.replace("%", "%25").replace(";", "%3B") for name in names)


def read(text: str) -> list[str]:
    """The names that a URL value holds."""
    return [name.replace("%3B", ";").replace("%25", "%") for name in text.split(";") if name]


def current(fleets: Mapping[str, Fleet]) -> list[str]:
    """The names picked, at most `MOST`; where none of the link's exists, the answer and the best of another GPU."""
    wanted = [name for name in read(state.get(KEY) or "") if name in fleets]
    emptied = state.get(KEY) == ""
    picked = list(dict.fromkeys(wanted))[:MOST] if wanted or emptied else usual(fleets)
    state[KEY] = state.shown[KEY] = written(picked)
    if state.get(DRAWN) != state[KEY]:
        state[DRAWN], state[REVISION] = state[KEY], state.get(REVISION, 0) + 1
    return picked


def usual(fleets: Mapping[str, Fleet]) -> list[str]:
    """The first, and the first on another GPU; else the second."""
    first, *rest = fleets
    other = next((name for name in rest if fleets[name].candidate.gpu != fleets[first].candidate.gpu), None)
    return [first, other] if other else [first, *rest[:1]]


def draw_list(fleets: Mapping[str, Fleet], picked: Sequence[str]) -> None:
    """The pick list: by keyboard as well as by mouse."""
    state[LIST] = list(picked)
    st.multiselect(
        "Configurations side by side",
        list(fleets),
        key=LIST,
        max_selections=MOST,
        on_change=_from_list,
        label_visibility="collapsed",
        placeholder=f"Pick 2 to {MOST} configurations",
        help=f"Pick 2 to {MOST} configurations here or in the table; the first is what the others are compared with.",
    )


def _from_list() -> None:
    state[KEY] = written(state[LIST])


def from_table(key: str, names: Sequence[str]) -> None:
    """Take the rows picked in the table called `key`: what was picked before stays in front, at most `MOST` in all."""
    rows = [names[row] for row in state[key].selection.rows if row < len(names)]
    before = [name for name in read(state.get(KEY) or "") if name in rows]
    kept = [*before, *(name for name in rows if name not in before)]
    state[KEY] = written(kept[:MOST])
    state[DRAWN] = state[KEY] if len(kept) <= MOST else None
