"""Limits the computing of one run of a page, and stops it for visitors who have left."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import streamlit as st

from sizing.budget import within
from sizing.errors import NotComputed, ScenarioError, TimeLimitReached
from ui.words import plain, sentence_case

LIMIT_VARIABLE = "SIZING_TIME_LIMIT_S"
USUAL_S = 60.0
"""Seconds of CPU; ordinary questions take one to three, the dearest that one would ask for half a minute."""


@contextmanager
def while_wanted() -> Iterator[None]:
    """Run a page: past the limit it ends with what took so long, and at once when its visitor is gone or asks anew."""
    try:
        seconds = limit_s()
    except ScenarioError as error:
        st.error(plain(str(error)), title="The server is misconfigured")
        st.stop()
    try:
        with within(seconds, still_wanted):
            yield
    except TimeLimitReached as error:
        tell(error)
    except NotComputed as error:
        st.title("This question was not computed", anchor=False)
        st.markdown(plain(sentence_case(str(error))))


def tell(error: TimeLimitReached) -> None:
    """Say that the limit was reached, and what took so long."""
    st.title("This question takes too long", anchor=False)
    st.markdown(plain(sentence_case(str(error))))


def limit_s() -> float:
    """The limit as the server is set up, in seconds of CPU; 0 = none. Raises ScenarioError for what is no number."""
    said = os.environ.get(LIMIT_VARIABLE, "")
    try:
        return float(said) if said else USUAL_S
    except ValueError:
        raise ScenarioError(f"{LIMIT_VARIABLE} must be a number of seconds, 0 for no limit, got {said!r}") from None


def still_wanted() -> None:
    """Streamlit ends a run whose browser has left, or that a newer one replaces, when the session's state is read."""
    "model" in st.session_state  # noqa: B015
