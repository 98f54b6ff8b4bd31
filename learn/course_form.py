"""The form of the usual method: what is measured, the limit, the load, the prices; kept in the URL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import streamlit as st

from sizing.question import Range
from ui.link import PREFIX, quoted
from ui.visit import visit
from ui.words import plain

state = st.session_state

IN_URL = PREFIX + "course_form"
"""What differs from the worked example, ``key=value;key=value``."""
METRICS = {"ttft": "TTFT", "e2e": "E2E", "itl": "ITL"}
STATISTICS = {"mean": "Mean", "p95": "p95"}


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked; the defaults are the worked example. `peak_factor` 0: the Poisson law's 95th percentile."""

    metric: str = "ttft"
    statistic: str = "mean"
    limit_ms: float = 300.0
    mean_per_s: float = 28.54
    peak_factor: float = 7.0
    gpus_per_server: int = 8
    server_price: float = 320_000.0
    years: float = 4.0
    hosting: float = 3_000.0
    licence: float = 4_500.0
    api_in: float = 1.0
    api_out: float = 3.0


CHOICES = {"metric": ("Latency", METRICS), "statistic": ("Statistic", STATISTICS)}
NUMBERS: Mapping[str, tuple[str, Range, str]] = {
    "limit_ms": ("Limit (ms)", Range(0.1, 3_600_000, "ms"), "On the latency measured in a closed loop."),
    "mean_per_s": ("Mean load (requests/s)", Range(0.001, 1_000_000, "requests/s"), "28.54/s is 900 million a year."),
    "peak_factor": (
        "Peak ÷ mean",
        Range(0, 1000, ""),
        "0: the 95th percentile of a Poisson distribution with that mean.",
    ),
    "gpus_per_server": ("GPUs per server", Range(1, 128, "GPUs"), ""),
    "server_price": ("Price of a server", Range(0, 1e8, ""), "In any currency, the same everywhere."),
    "years": ("Depreciated over (years)", Range(0.5, 20, "years"), ""),
    "hosting": ("Hosting (per server per year)", Range(0, 1e7, ""), ""),
    "licence": ("Licence (per GPU per year)", Range(0, 1e6, ""), ""),
    "api_in": ("API, per million tokens in", Range(0.001, 1e4, ""), ""),
    "api_out": ("API, per million tokens out", Range(0.001, 1e4, ""), ""),
}


def draw() -> Asked:
    """Draw the widgets; each change takes effect at once."""
    asked = _from_url()
    _fill(asked)
    with (
        st.expander("Limit, load and prices", icon=":material/tune:", key="course_settings"),
        st.grid("auto", min_column_width=190),
    ):
        for name, (label, options) in CHOICES.items():
            st.selectbox(label, list(options), format_func=options.__getitem__, key=_key(name), on_change=_take)
        for name, (label, allowed, help_) in NUMBERS.items():
            kind = type(getattr(Asked(), name))
            form = "%d" if kind is int else "%g"
            low, high = kind(allowed.low), kind(allowed.high)
            st.number_input(label, low, high, key=_key(name), format=form, help=help_ or None, on_change=_take)
    return asked


def from_text(text: str) -> tuple[Asked, list[str]]:
    """What a link says, and a line for each part that cannot be taken."""
    values: dict[str, Any] = {}
    problems = []
    for part in filter(None, text.split(";")):
        name, _, value = part.partition("=")
        try:
            values[name] = _value(name, value)
        except (ValueError, KeyError, OverflowError):
            problems.append(f"{quoted(part)}: ignored")
    return Asked(**values), problems


def to_text(asked: Asked) -> str:
    """What differs from the worked example; empty where nothing does."""
    usual = Asked()
    changed = [field.name for field in fields(Asked) if getattr(asked, field.name) != getattr(usual, field.name)]
    return ";".join(f"{name}={getattr(asked, name)}" for name in changed)


def _value(name: str, text: str) -> str | float:
    if name in CHOICES:
        if text not in CHOICES[name][1]:
            raise ValueError(text)
        return text
    value: float = type(getattr(Asked(), name))(text) if name in NUMBERS else float("nan")
    if value not in NUMBERS[name][1]:
        raise ValueError(text)
    return value


def _from_url() -> Asked:
    text = state.get(IN_URL, "")
    asked, problems = from_text(text)
    if text:
        visit().shown[IN_URL] = text
    if problems:
        st.warning("  \n".join(map(plain, problems)), title="Some settings of this link could not be used")
    return asked


def _key(name: str) -> str:
    return f"course_{name}"


def _fill(asked: Asked) -> None:
    """Write the settings into the widgets: when they are new, or the widgets were away."""
    names = [field.name for field in fields(Asked)]
    if visit().filled.get("course") == asked and all(_key(name) in state for name in names):
        return
    for name in names:
        state[_key(name)] = getattr(asked, name)
    visit().filled["course"] = asked


def _take() -> None:
    state[IN_URL] = to_text(Asked(**{field.name: state[_key(field.name)] for field in fields(Asked)}))
