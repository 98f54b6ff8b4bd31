"""A load of one's choice, typed in: within the form's range, and a button that makes it the scenario's."""

from __future__ import annotations

import streamlit as st

from sizing.numbers import significant
from ui.scenario import RATE


def load_input(label: str, value_per_s: float, key: str, help: str) -> float:
    """Requests/s typed by the visitor, `value_per_s` to begin with; a new `key` begins anew."""
    low, high = float(RATE.low), float(RATE.high)
    begin = min(max(float(f"{value_per_s:.3g}"), low), high)
    return st.number_input(label, low, high, begin, format="%g", key=key, help=help, width=250)


def use_load(rate_per_s: float, help: str) -> None:
    """A button that writes the load, of the whole fleet, into the form."""
    rate = min(max(round(rate_per_s, 6), RATE.low), RATE.high)
    st.button(
        f"Use {significant(rate)} requests/s", on_click=lambda: st.session_state.update(rate_per_s=rate), help=help
    )
