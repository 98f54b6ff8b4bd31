"""What a visit remembers beside the values of its widgets, and what its pages show beside the scenario (chart, tab).

And how long it waits: a computation ends when nobody wants it any more, or at its time limit.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, cast

import streamlit as st
from streamlit.runtime.memory_uploaded_file_manager import MemoryUploadedFileManager
from streamlit.runtime.scriptrunner import get_script_run_ctx

from calibration.plan import Answering
from sizing.budget import within
from sizing.catalog import Model
from sizing.errors import NotComputed, ScenarioError, TimeLimitReached
from sizing.question import Range
from sizing.trace import Trace
from ui.link import PREFIX, Stamp
from ui.scenario import Scenario
from ui.words import plain, sentence_case

LONGEST = 200
"""Characters of a value of a view at most; what is longer is nobody's choice."""
T = TypeVar("T")
Usual = TypeVar("Usual", float, float | None)
Stretch = Literal["stretch"]


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Recorded:
    """Traffic that a visitor brought: `name` of its file, the numbers read from it, and `notes` on how they were read.

    `digest`: the same for the same requests.
    """

    name: str
    trace: Trace
    digest: str
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class Visit:
    """One open page of one browser.

    `to_fill`: the link that the form is still to be filled from. `linked`: the scenario of the last link as the form
    holds it, with what was wrong in it, the GPUs its writer saw and the data behind them. `scenario` and `gpus_found`:
    of this run. `shown`: what this run's pages show beside the scenario, for the URL. `filled`: the value that each
    form of a page was last filled from, by the form's name. `answering`: what answers at a server, or why nothing does,
    by its address. `said` and `refused` are shown once on the Calibrate page.
    `uploaded`: the file that Streamlit holds for the uploader numbered `uploader`. `day_base`: loads that the editor
    of the day, the `day_round`-th, was opened on. `drawn_picks` and `table_round`: what the table of Compare has
    picked, and how often it was drawn anew for it. `report_handed`: the files of a report that were handed out.
    `own_models`: those whose config.json was uploaded, by id; `configs` counts the uploaders, and `config_refused` says
    what was wrong with the last file. `recorded`, `traces` and `trace_refused`: the same of a trace, with parts of it
    and answers for them; `session_answers`: those for sessions.
    """

    to_fill: dict[str, str] | None = None
    linked: Scenario | None = None
    link_problems: list[str] = field(default_factory=list)
    linked_gpus: int | None = None
    linked_data: Stamp | None = None
    scenario: Scenario = field(default_factory=Scenario)
    gpus_found: int | None = None
    shown: dict[str, str] = field(default_factory=dict)
    filled: dict[str, Any] = field(default_factory=dict)
    advice_for: Scenario | None = None
    answering: dict[str, Answering | str] = field(default_factory=dict)
    said: str = ""
    refused: str = ""
    uploaded: str | None = None
    uploader: int = 0
    day_base: tuple[float, ...] = ()
    day_round: int = 0
    drawn_picks: str | None = None
    table_round: int = 0
    report_handed: Any = None
    own_models: dict[str, Model] = field(default_factory=dict)
    configs: int = 0
    config_refused: str = ""
    recorded: Recorded | None = None
    traces: int = 0
    trace_refused: str = ""
    trace_parts: dict[Any, Any] = field(default_factory=dict)
    trace_answers: dict[Any, Any] = field(default_factory=dict)
    session_answers: dict[Any, Any] = field(default_factory=dict)


def visit() -> Visit:
    """The visit of the session that runs."""
    return cast(Visit, st.session_state.setdefault("visit", Visit()))


def fill_view(query: Mapping[str, str]) -> None:
    """Take the view of a link; what it does not say, or no page knows, falls back to the first choice when drawn."""
    for key in [name for name in st.session_state if str(name).startswith(PREFIX) and name not in query]:
        del st.session_state[key]
    st.session_state.update(
        {key: value for key, value in query.items() if key.startswith(PREFIX) and len(value) <= LONGEST}
    )


def chosen(label: str, options: Mapping[str, str], key: str, *, help: str | None = None) -> str:
    """One of `options` (value: words on screen), picked in a row of buttons whose label only screen readers hear.

    The choice is in the URL as ``show.<key>``.
    """
    name = PREFIX + key
    if st.session_state.get(name) not in options:
        st.session_state[name] = next(iter(options))
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
    visit().shown[name] = st.session_state[name]
    return str(st.session_state[name])


def number_kept(label: str, low: float, high: float, key: str, *, optional: bool = False, **looks: Any) -> Any:
    """Streamlit's number input for what session state has under `key`; the number that it holds.

    A field that is emptied is None if it is `optional`, else the number before: Streamlit would take `low`. Only with a
    `placeholder` has it a button that empties it (ui/look.py).
    """
    looks = {"persist_state": "session"} | looks
    if not optional:
        looks |= {"on_change": _refill, "args": (key, st.session_state[key])}
    return st.number_input(label, low, high, None, key=key, **looks)


def _refill(key: str, before: float) -> None:
    if st.session_state[key] is None:
        st.session_state[key] = before


def number_typed(
    key: str, label: str, allowed: Range, usual: Usual, help: str | None = None, *, width: int | Stretch = "stretch"
) -> Usual:
    """A number that the visitor types, or None where that is usual; what differs from the usual one is in the URL."""
    name, state = PREFIX + key, st.session_state
    try:
        held = float(state.get(name, usual))
    except (TypeError, ValueError):
        held = None
    state[name] = usual if held is None or held not in allowed else held
    if usual is not None:
        state[name] = float(state[name])
    low, high = float(allowed.low), float(allowed.high)
    number_kept(label, low, high, name, optional=True, format="%g", help=help, placeholder="None", width=width)
    value: Usual = state[name]
    if value != usual:
        visit().shown[name] = f"{value:.12g}"
    return value


def one_picked(key: str, label: str, options: Mapping[str, str], *, help: str | None = None, usual: str = "") -> str:
    """One of `options` (value: words on screen) from a list; in the URL where it is not the usual one or the first."""
    name, state = PREFIX + key, st.session_state
    first = usual or next(iter(options))
    if state.get(name) not in options:
        state[name] = first
    st.selectbox(label, [*options], format_func=options.__getitem__, key=name, help=help, persist_state="session")
    if state[name] != first:
        visit().shown[name] = state[name]
    return str(state[name])


def begin_anew(form: str, value: Any, *keys: str) -> None:
    """Drop what the visitor typed under these keys once the form they belong to is drawn for another `value`."""
    if visit().filled.setdefault(form, value) != value:
        visit().filled[form] = value
        for key in keys:
            st.session_state.pop(PREFIX + key, None)


def let_go(file_id: str) -> None:
    """Free an uploaded file: Streamlit holds each for as long as its page is open."""
    if context := get_script_run_ctx():
        cast(MemoryUploadedFileManager, context.uploaded_file_mgr).remove_file(context.session_id, file_id)


def remembered(values: dict[Any, Any], key: Any, make: Callable[[], T], most: int) -> T:
    """The value of a key, made where it is not among the last `most` that were asked for."""
    found = values.pop(key) if key in values else make()
    values[key] = found
    for oldest in list(values)[:-most]:
        del values[oldest]
    return cast(T, found)


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
    """The limit as the server is set up, in seconds of CPU; 0 = none. Raises ScenarioError for what is no such
    number."""
    said = os.environ.get(LIMIT_VARIABLE, "")
    try:
        seconds = float(said) if said else USUAL_S
    except ValueError:
        seconds = math.nan
    if not seconds >= 0:
        raise ScenarioError(f"{LIMIT_VARIABLE} must be a number of seconds, 0 for no limit, got {said!r}")
    return seconds


def still_wanted() -> None:
    """Streamlit ends a run whose browser has left, or that a newer one replaces, when the session's state is read."""
    "model" in st.session_state  # noqa: B015
