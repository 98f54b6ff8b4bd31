"""What a page says when there is no plan to draw: one title, one sentence on what to do."""

from __future__ import annotations

import streamlit as st

from sizing.numbers import milliseconds
from ui.answers import Outcome
from ui.scenario import Scenario
from ui.words import limit_name, plain, room, sentence_case


def why_none(scenario: Scenario, outcome: Outcome | None) -> tuple[str, str]:
    """Title and sentence; `outcome` is None where the form lacks something."""
    if outcome is None:
        return scenario.missing, "The form on the left says what is asked; the answer appears at once."
    nearest = next((rejection for rejection in outcome.rejected if rejection.nearest_s is not None), None)
    if nearest is not None and nearest.limit is not None and nearest.nearest_s is not None:
        label = f"{nearest.gpu} TP{nearest.tp} {nearest.precision}"
        return outcome.title, (
            f"Nearest miss: {label} with {limit_name(nearest.limit)} of {milliseconds(nearest.nearest_s)}, "
            f"{room(nearest.nearest_s, nearest.limit)}. Loosen that limit, or allow another GPU, TP or precision."
        )
    return outcome.title, sentence_case(outcome.rejected[0].why if outcome.rejected else outcome.reason)


def tell(scenario: Scenario, outcome: Outcome | None) -> None:
    """Title and sentence on the page."""
    title, sentence = why_none(scenario, outcome)
    st.title(plain(title), anchor=False)
    st.markdown(plain(sentence))


def tell_unreadable(problems: tuple[str, ...]) -> None:
    """A warning for each source of points that cannot be read."""
    for problem in problems:
        st.warning(plain(problem), title="Measured points could not be read")
