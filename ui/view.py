"""What a page shows beside the scenario (which chart, which tab): kept in the URL, so that a link opens on it."""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st

state = st.session_state

PREFIX = "show."
"""Of the URL parameters that are no fields of the scenario."""
LONGEST = 200
"""Characters of a value at most; what is longer is nobody's choice."""


def fill(query: Mapping[str, str]) -> None:
    """Take the view of a link; what it does not say, or no page knows, falls back to the first choice when drawn."""
    state.update({key: value for key, value in query.items() if key.startswith(PREFIX) and len(value) <= LONGEST})


def chosen(label: str, options: Mapping[str, str], key: str, *, help: str | None = None) -> str:
    """One of `options` (value: words on screen), picked in a row of buttons whose label only screen readers hear.

    The choice is in the URL as ``show.<key>``.
    """
    name = PREFIX + key
    if state.get(name) not in options:
        state[name] = next(iter(options))
    st.segmented_control(
        label,
        list(options),
        format_func=options.__getitem__,
        key=name,
        required=True,
        label_visibility="collapsed",
        help=help,
        persist_state="session",
    )
    state.shown[name] = state[name]
    return str(state[name])
