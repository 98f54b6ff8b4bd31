"""The settings of the lesson's run: the guided step's, or the visitor's own, which are kept in the URL."""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st

from learn.lesson import BATCHINGS, Batching, Load, LoadKind, Setting
from sizing.errors import ScenarioError
from ui.link import PREFIX
from ui.visit import visit
from ui.words import plain

state = st.session_state

IN_URL = PREFIX + "lesson_run"
"""``step|settings``: settings hold for the step they were made in."""

BATCHING_NAMES: Mapping[Batching, str] = {
    "static": "Static batching",
    "in_flight": "In-flight batching",
    "one_prefill": "In-flight, one prompt at a time",
}
LOADS: Mapping[LoadKind, tuple[str, str, float, float, float]] = {
    "batch": ("All at once", "Requests at tick 0", 1, 1000, 100),
    "concurrency": ("Users (closed loop)", "Users", 1, 100, 6),
    "rate": ("Rate (open loop)", "Requests per tick", 0.01, 5, 0.2),
}
"""Name, label, least, most and usual amount."""
NUMBERS: tuple[tuple[str, str, float, float], ...] = (
    ("slots", "Slots", 1, 16),
    ("prefill_ticks", "Prompt (ticks)", 0.5, 20),
    ("chunks", "Chunks per prompt", 1, 16),
    ("itl_ticks", "Token (ticks)", 0.5, 20),
    ("mean_tokens", "Output tokens, mean", 1, 100),
    ("std_tokens", "Output tokens, standard deviation", 0, 100),
    ("ticks", "Length of the run (ticks)", 10, 10_000),
    ("seed", "Seed", 0, 1_000_000),
)
HELP = {
    "prefill_ticks": "Prompts that share a step add up.",
    "chunks": "Chunks that a prompt is split into; each takes its share of the prompt's ticks.",
    "itl_ticks": "A step with tokens takes this long, however many requests share it.",
    "std_tokens": "0: all answers have the same length.",
    "seed": "Draws the output lengths; 42 repeats the published runs.",
}


def setting_of(step: str, planned: Setting) -> Setting:
    """The visitor's settings for this step, or the step's own; the page reports what is wrong in a link."""
    text = state.get(IN_URL, "")
    of_step, bar, settings = text.partition("|")
    if not bar or of_step != step:
        return planned
    visit().shown[IN_URL] = text
    try:
        return Setting.of(settings)
    except ScenarioError as error:
        st.warning(
            plain(f"{error}. Used instead: the settings of this step."),
            title="Some settings of this link could not be used",
        )
        return planned


def draw(step: str, planned: Setting, setting: Setting) -> None:
    """The widgets; each change takes effect at once."""
    _fill(setting)
    changed = setting != planned
    with st.expander("Your run" if changed else "Change the run", icon=":material/tune:", key="lesson_settings"):
        with st.grid("auto", min_column_width=190):
            _choices(step)
            for name, label, low, high in NUMBERS:
                _number(name, label, low, high, step)
        if changed:
            st.button("Back to this step's run", type="tertiary", on_click=_forget)


def _choices(step: str) -> None:
    names = BATCHING_NAMES
    st.selectbox(
        "Batching",
        BATCHINGS,
        format_func=names.__getitem__,
        key=_key("batching"),
        on_change=_take,
        args=(step,),
    )
    kinds = list(LOADS)
    kind: LoadKind = state[_key("kind")]
    st.selectbox(
        "Load", kinds, format_func=lambda each: LOADS[each][0], key=_key("kind"), on_change=_take, args=(step,)
    )
    _, label, low, high, _ = LOADS[kind]
    _number(kind, label, low, high, step)


def _number(name: str, label: str, low: float, high: float, step: str) -> None:
    """A number input; a link may have set a value beyond what is offered."""
    value = state[_key(name)]
    kind = type(value)
    least, most = min(kind(low), value), max(kind(high), value)
    by = kind(1) if kind is int else (0.02 if name == "rate" else 0.5)
    st.number_input(
        label,
        least,
        most,
        step=by,
        key=_key(name),
        help=HELP.get(name),
        on_change=_take,
        args=(step,),
        format=_FORM[kind],
    )


_FORM = {int: "%d", float: "%g"}


def _key(name: str) -> str:
    return f"lesson_{name}"


def _fill(setting: Setting) -> None:
    """Write the settings into the widgets: when they are new, or the widgets were away."""
    keys = ["batching", "kind", *LOADS, *(name for name, *_ in NUMBERS)]
    if visit().filled.get("lesson") == setting and all(_key(name) in state for name in keys):
        return
    state[_key("batching")], state[_key("kind")] = setting.batching, setting.load.kind
    for kind, (*_, usual) in LOADS.items():
        amount = setting.load.amount if kind == setting.load.kind else usual
        state[_key(kind)] = float(amount) if kind == "rate" else int(amount)
    for name, *_ in NUMBERS:
        value = getattr(setting, name)
        state[_key(name)] = int(value) if name in ("slots", "chunks", "ticks", "seed") else float(value)
    visit().filled["lesson"] = setting


def _take(step: str) -> None:
    kind: LoadKind = state[_key("kind")]
    usual = LOADS[kind][-1]
    amount = state.get(_key(kind), usual)
    numbers = {name: state[_key(name)] for name, *_ in NUMBERS}
    setting = Setting(state[_key("batching")], Load(kind, amount), **numbers)
    state[IN_URL] = f"{step}|{setting.text or 'batching=static'}"


def _forget() -> None:
    state[IN_URL] = ""
