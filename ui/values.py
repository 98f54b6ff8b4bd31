"""The scenario in the widgets' values and back: session state is what the form shows, in the units on its labels."""

from __future__ import annotations

from typing import get_args

import streamlit as st

from sizing.workload import Arrivals, Limit, Metric
from ui.scenario import USUAL, Scenario
from ui.words import UNIT

state = st.session_state


def fill(scenario: Scenario) -> None:
    """Write a scenario into the widgets."""
    for name in ("model", "rate_per_s", "isl", "isl_cv", "osl", "osl_cv", "spare", "routing", "use_points"):
        state[name] = getattr(scenario, name)
    for name in ("gpus", "precisions", "tps"):
        state[name] = list(getattr(scenario, name))
    state.headroom = round(scenario.headroom * 100, 9)
    state.arrivals, state.arrivals_cv, state.arrivals_size = scenario.arrivals.kind, 1.0, 1
    if scenario.arrivals.kind == "gamma":
        state.arrivals_cv = scenario.arrivals.cv
    if scenario.arrivals.kind == "batch":
        state.arrivals_size = scenario.arrivals.size
    state.price = scenario.price_per_gpu_hour
    for metric in get_args(Metric):
        fill_limit(metric, getattr(scenario, metric))


def fill_limit(metric: Metric, limit: Limit | None) -> None:
    """Write one limit into its row; None turns the row off and leaves the usual limit in it."""
    shown = limit or USUAL[metric]
    state[f"{metric}_on"] = limit is not None
    state[f"{metric}_limit"] = round(shown.limit_s * UNIT[metric][1], 9)
    state[f"{metric}_percentile"] = shown.percentile


def read() -> Scenario:
    """The scenario that the widgets hold."""
    return Scenario(
        model=state.model,
        gpus=tuple(state.gpus),
        precisions=tuple(state.precisions),
        tps=tuple(sorted(state.tps)),
        rate_per_s=state.rate_per_s,
        isl=state.isl,
        isl_cv=state.isl_cv,
        osl=state.osl,
        osl_cv=state.osl_cv,
        **{metric: _read_limit(metric) for metric in get_args(Metric)},
        headroom=round(state.headroom / 100, 12),
        spare=state.spare,
        routing=state.routing,
        arrivals=_read_arrivals(),
        price_per_gpu_hour=state.price,
        use_points=state.use_points,
    )


def _read_arrivals() -> Arrivals:
    if state.arrivals == "gamma":
        return Arrivals("gamma", state.arrivals_cv)
    return Arrivals.batches(state.arrivals_size) if state.arrivals == "batch" else Arrivals.parse(state.arrivals)


def _read_limit(metric: Metric) -> Limit | None:
    if not state[f"{metric}_on"]:
        return None
    return Limit(metric, state[f"{metric}_percentile"], round(state[f"{metric}_limit"] / UNIT[metric][1], 12))
