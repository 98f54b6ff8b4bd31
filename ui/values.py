"""The scenario in the widgets' values and back: session state is what the form shows, in the units on its labels."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from sizing.catalog import Layout
from sizing.errors import ScenarioError
from sizing.plans import Candidate
from sizing.token_law import LOGNORMAL, TokenLaw
from sizing.workload import METRICS, SHARES, Arrivals, Limit, Metric, Sessions, ShareOfRequests
from ui.link import PREFIX
from ui.scenario import USUAL, USUAL_SHARES, Scenario
from ui.words import UNIT

state = st.session_state


AS_THEY_ARE = (
    *("model", "rate_per_s", "isl", "isl_cv", "osl", "osl_cv", "spare", "routing", "use_points"),
    *("peak_factor", "gpus_per_server", "fleet_gpus", "day", "queue_limit", "queue_timeout_s"),
)
PERCENT = ("headroom", "prefix_share", "prefix_hit")
"""Shares, which the form shows in percent."""


def fill(scenario: Scenario) -> None:
    """Write a scenario into the widgets."""
    for name in AS_THEY_ARE:
        state[name] = getattr(scenario, name)
    for name in ("gpus", "precisions", "tps", "engines"):
        state[name] = list(getattr(scenario, name))
    state.layouts = list(map(str, scenario.layouts))
    for name in PERCENT:
        state[name] = round(getattr(scenario, name) * 100, 9)
    state.arrivals, state.arrivals_cv, state.arrivals_size = scenario.arrivals.kind, 1.0, 1
    if scenario.arrivals.kind == "gamma":
        state.arrivals_cv = scenario.arrivals.cv
    if scenario.arrivals.kind == "batch":
        state.arrivals_size = scenario.arrivals.size
    for side in ("isl", "osl"):
        fill_law(side, getattr(scenario, f"{side}_law"))
    state.price = scenario.price_per_gpu_hour
    for metric in METRICS:
        fill_limit(metric, getattr(scenario, metric))
    for share in SHARES:
        fill_share(share, getattr(scenario, share))


def fill_law(side: str, law: TokenLaw | None) -> None:
    """Write the law of a length, "isl" or "osl", into its row."""
    state[f"{side}_law"] = LOGNORMAL if law is None else law.kind
    state[f"{side}_law_text"] = "" if law is None else law.parameters


def read_law(side: str) -> TokenLaw | None:
    """The law that the row of a length holds, None for the lognormal; raises ScenarioError for a text that is none."""
    kind = state[f"{side}_law"]
    return None if kind == LOGNORMAL else TokenLaw.parse(f"{kind}:{state[f'{side}_law_text']}")


def _law_or_none(side: str) -> TokenLaw | None:
    try:
        return read_law(side)
    except ScenarioError:
        return None  # the form says so under the text


def fill_limit(metric: Metric, limit: Limit | None) -> None:
    """Write one limit into its row; None turns the row off and leaves the usual limit in it."""
    shown = limit or USUAL[metric]
    state[f"{metric}_on"] = limit is not None
    state[f"{metric}_limit"] = round(shown.limit_s * UNIT[metric][1], 9)
    state[f"{metric}_percentile"] = shown.percentile


def fill_share(share: ShareOfRequests, limit: Limit | None) -> None:
    """Write a limit in per cent of the requests into its row; None turns it off."""
    shown = limit or USUAL_SHARES[share]
    state[f"{share}_on"] = limit is not None
    state[f"{share}_percent"] = round(shown.percentile if share == "goodput" else 100 * shown.limit_s, 9)


def with_percentiles() -> None:
    """Without goodput every limit has a percentile: those that counted for goodput alone get the usual one."""
    for metric in METRICS:
        if not state.goodput_on and not state[f"{metric}_percentile"]:
            state[f"{metric}_percentile"] = USUAL[metric].percentile


SESSION_FIELDS = (
    *("turns", "think_s", "first_tokens", "first_cv", "user_tokens", "user_cv", "output_tokens", "output_cv"),
    *("system_tokens", "context_tokens", "turn_law"),
)
"""Of `Sessions`: what the form for users and agents asks, in its order; their number is not among them."""


def fill_sessions(shape: Sessions) -> None:
    """Write what sessions are like into the form for users and agents, whose state is part of what a page shows."""
    for name in SESSION_FIELDS:
        state[PREFIX + name] = getattr(shape, name)


def use_candidate(candidate: Candidate) -> None:
    """Narrow the choice of the form to one configuration."""
    state.gpus, state.precisions = [candidate.gpu], [candidate.precision]
    plain = candidate.layout == Layout(candidate.layout.tp)
    state.tps, state.layouts = ([candidate.layout.tp], []) if plain else ([], [str(candidate.layout)])
    state.engines = [candidate.engine] if candidate.engine else []


def use_limits(limits: Sequence[Limit]) -> None:
    """Write limits into their rows, the other rows kept."""
    for limit in limits:
        if limit.metric == "goodput" or limit.metric == "rejected":
            fill_share(limit.metric, limit)
        else:
            fill_limit(limit.metric, limit)


def allow_any() -> None:
    """Widen the choice of the form to every precision, layout and engine."""
    state.precisions, state.tps, state.layouts, state.engines = [], [], [], []


def read() -> Scenario:
    """The scenario that the widgets hold."""
    return Scenario(
        **{name: state[name] for name in AS_THEY_ARE},
        **{name: round(state[name] / 100, 12) for name in PERCENT},
        gpus=tuple(state.gpus),
        precisions=tuple(state.precisions),
        tps=tuple(sorted(state.tps)),
        layouts=tuple(sorted(map(Layout.parse, state.layouts))),
        engines=tuple(state.engines),
        ttft=_read_limit("ttft"),
        itl=_read_limit("itl"),
        gap=_read_limit("gap"),
        e2e=_read_limit("e2e"),
        goodput=Limit.goodput(state.goodput_percent) if state.goodput_on else None,
        rejected=Limit.rejected(state.rejected_percent) if state.rejected_on else None,
        arrivals=_read_arrivals(),
        price_per_gpu_hour=state.price,
        isl_law=_law_or_none("isl"),
        osl_law=_law_or_none("osl"),
    )


def _read_arrivals() -> Arrivals:
    if state.arrivals == "gamma":
        return Arrivals("gamma", state.arrivals_cv)
    return Arrivals("batch", size=state.arrivals_size) if state.arrivals == "batch" else Arrivals.parse(state.arrivals)


def _read_limit(metric: Metric) -> Limit | None:
    if not state[f"{metric}_on"]:
        return None
    return Limit(metric, state[f"{metric}_percentile"], round(state[f"{metric}_limit"] / UNIT[metric][1], 12))
