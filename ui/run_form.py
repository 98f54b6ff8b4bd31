"""The form of the Simulate page: the settings of one run, taken together when Run is pressed."""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st

from sizing.replica import KV_POLICIES, POLICIES
from ui.scenario import Range
from ui.simulating import (
    BUDGET,
    FIELDS,
    KV_POLICY_NAMES,
    KV_TOKENS,
    LINE,
    LOAD,
    PATIENCE_S,
    POLICY_NAMES,
    REQUESTS,
    SEED,
    SLOTS,
    Setup,
    from_text,
    in_words,
    to_text,
)
from ui.view import PREFIX
from ui.words import plain

state = st.session_state

IN_URL = PREFIX + "run"
"""Where the settings that differ from the plan's are kept."""

ARRIVAL_NAMES: Mapping[str, str] = {
    "poisson": "Poisson",
    "constant": "Constant gaps",
    "gamma:cv=2": "Bursty (CV 2)",
    "gamma:cv=4": "Very bursty (CV 4)",
    "batch:size=8": "In groups of 8",
}
NUMBERS: tuple[tuple[str, str, Range, str], ...] = (
    ("load_per_s", "Load (requests/s per replica)", LOAD, "The plan gives each working replica this much."),
    ("requests", "Requests to simulate", REQUESTS, "The first tenth is not counted. 200,000 at most: about a second."),
    ("seed", "Seed", SEED, "Another seed draws other requests: what stays the same is no accident."),
)
LIMITS: tuple[tuple[str, str, Range, str], ...] = (
    ("max_batch_size", "Batch limit (requests)", SLOTS, "Requests that run at once."),
    ("token_budget", "Token budget (per iteration)", BUDGET, "Tokens of one iteration, prompts and decode steps."),
    ("kv_tokens", "KV cache (tokens)", KV_TOKENS, "Tokens of prompts and answers that memory holds."),
    ("max_waiting", "Waiting line (requests)", LINE, "A longer line is turned away; 0: no limit."),
    ("queue_timeout_s", "Queue timeout (s)", PATIENCE_S, "Dropped when it has waited this long; 0: never."),
)
POLICY_HELP = (
    "In chunks: every iteration holds one token of each running request and as much of the prompts as the token budget "
    "leaves. Whole prompts: the same without cutting prompts. Prompts first: waiting prompts run alone, then decode "
    "steps. Static: a batch is taken when the last one has ended entirely."
)
KV_POLICY_HELP = (
    "Reserve: a request enters when its prompt and its answer fit. Fill up: it enters when its prompt fits; when "
    "memory runs out, the request admitted last is paused and computed again."
)


def draw(plan: Setup) -> Setup:
    """Draw the form, closed, under a line that says what runs; return what runs."""
    text = state.get(IN_URL, "")
    setup, problems = from_text(text, plan)
    if text:
        state.shown[IN_URL] = text
    if problems:
        st.warning("  \n".join(map(plain, problems)), title="Settings of this link that were not taken as they stand")
    _fill(setup)
    title = plain(f"{'Your' if text else 'Planned'} run: {in_words(setup)}")
    with st.expander(title, icon=":material/tune:", key="run_settings"), st.form("run", border=False):
        _fields(setup)
        with st.container(horizontal=True):
            st.form_submit_button("Run", type="primary", icon=":material/play_arrow:", on_click=_take, args=(plan,))
            st.form_submit_button("Back to the plan's settings", type="tertiary", on_click=_forget)
    return setup


def _fields(setup: Setup) -> None:
    with st.grid("auto", min_column_width=190):
        for field, label, allowed, help_ in NUMBERS:
            _number(setup, field, label, allowed, help_)
        arrivals = list(dict.fromkeys([setup.arrivals, *ARRIVAL_NAMES]))
        _choice("Arrivals", {name: _arrival_name(name) for name in arrivals}, "arrivals", ARRIVALS_HELP)
        _choice("Batching", {name: POLICY_NAMES[name] for name in POLICIES}, "policy", POLICY_HELP)
        for field, label, allowed, help_ in LIMITS:
            _number(setup, field, label, allowed, help_)
        _choice("KV cache policy", {name: KV_POLICY_NAMES[name] for name in KV_POLICIES}, "kv_policy", KV_POLICY_HELP)


ARRIVALS_HELP = "How requests are spread over time; CV is the deviation of the gaps over their mean."


def _arrival_name(arrivals: str) -> str:
    return ARRIVAL_NAMES.get(arrivals, arrivals)


def _number(setup: Setup, field: str, label: str, allowed: Range, help_: str) -> None:
    """A number input over a range; a replica of the plan may lie outside of what one may type."""
    value = getattr(setup, field)
    kind = type(value)
    low, high = min(kind(allowed.low), value), max(kind(allowed.high), value)
    text = "%d" if kind is int else "%g"
    st.number_input(label, low, high, step=kind(1), format=text, key=_key(field), help=help_, persist_state="session")


def _choice(label: str, names: Mapping[str, str], field: str, help_: str) -> None:
    """A pick list of `names`: value -> words on screen."""
    st.selectbox(
        label, list(names), format_func=names.__getitem__, key=_key(field), help=help_, persist_state="session"
    )


def _key(field: str) -> str:
    return f"run_{field}"


def _fill(setup: Setup) -> None:
    """Write the settings into the widgets: when they are new, or the widgets were away with another page."""
    if state.get("run_filled") == setup and all(_key(field) in state for field, _ in FIELDS.values()):
        return
    for field, _ in FIELDS.values():
        state[_key(field)] = getattr(setup, field)
    state.run_filled = setup


def _take(plan: Setup) -> None:
    state[IN_URL] = to_text(Setup(**{field: state[_key(field)] for field, _ in FIELDS.values()}), plan)


def _forget() -> None:
    state[IN_URL] = ""
    state.pop("run_filled", None)
