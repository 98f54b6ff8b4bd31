"""The fields that are seldom changed, and the number input over a range that all fields of the form share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import streamlit as st

from sizing.workload import ArrivalKind, Routing
from ui.scenario import ARRIVAL_CV, ARRIVAL_SIZE, OF_SERVER, PEAK_FACTOR, PRICE, Range

state = st.session_state
T = TypeVar("T")

ROUTING_NAMES: dict[Routing, str] = {
    "random": "Random",
    "round_robin": "Round robin",
    "power_of_two": "Less loaded of two at random",
    "least_outstanding": "Least outstanding requests",
}
ARRIVAL_NAMES: dict[ArrivalKind, str] = {
    "poisson": "Poisson (independent users)",
    "constant": "Constant gaps",
    "gamma": "Bursty (gamma)",
    "batch": "In groups",
}


def number_field(label: str, allowed: Range, key: str, help_: str, step: float | None = None) -> None:
    """A number input over a range, whole numbers where the value is one."""
    kind = type(state[key])
    st.number_input(
        label,
        kind(allowed.low),
        kind(allowed.high),
        step=step or kind(1),
        format="%d" if kind is int else "%g",
        key=key,
        help=help_,
        persist_state="session",
    )


def more() -> None:
    """Routing, arrivals, shared prefix, costs, servers, and whether measured points count."""
    _choice("Routing", ROUTING_NAMES, "routing", ROUTING_HELP)
    _choice("Arrivals", ARRIVAL_NAMES, "arrivals", ARRIVALS_HELP)
    if state.arrivals == "gamma":
        number_field(
            "Burstiness (CV of the gaps)", ARRIVAL_CV, "arrivals_cv", "1 = Poisson, 2 = rather bursty.", step=0.1
        )
    if state.arrivals == "batch":
        number_field(
            "Requests in a group", ARRIVAL_SIZE, "arrivals_size", "Sent at the same instant, the groups at random."
        )
    _prefix()
    _costs()
    st.number_input(
        "GPUs per server",
        int(OF_SERVER.low),
        int(OF_SERVER.high),
        key="gpus_per_server",
        help=SERVER_HELP,
        placeholder="As the GPU usually comes",
        persist_state="session",
    )
    st.toggle("Use measured points from the store", key="use_points", help=POINTS_HELP, persist_state="session")


def _choice(label: str, names: Mapping[T, str], key: str, help_: str) -> None:
    st.selectbox(label, [*names], format_func=names.__getitem__, key=key, help=help_, persist_state="session")


def _prefix() -> None:
    left, right = st.columns(2)
    share, hit = "Shared prefix (%)", "Found in cache (%)"
    with left:
        _percent(share, "prefix_share", PREFIX_HELP)
    with right:
        _percent(hit, "prefix_hit", HIT_HELP)


def _percent(label: str, key: str, help_: str) -> None:
    st.number_input(label, 0.0, 100.0, step=5.0, format="%g", key=key, help=help_, persist_state="session")


PREFIX_HELP = "Of the mean prompt: the system prompt or document that all requests begin with. 0 = none."
HIT_HELP = "How often the shared prefix is in a replica's KV cache, so that it need not be computed again."


def _costs() -> None:
    left, right = st.columns(2)
    left.number_input(
        "Price (per GPU-hour)",
        float(PRICE.low),
        float(PRICE.high),
        format="%g",
        key="price",
        help=PRICE_HELP,
        placeholder="Not asked",
        persist_state="session",
    )
    with right:
        number_field("Peak over mean", PEAK_FACTOR, "peak_factor", PEAK_HELP, step=0.5)


PEAK_HELP = "The peak load over the mean of the day. Only costs per token and request depend on it."
SERVER_HELP = "Adds to the working how many servers that makes. Empty: as many as this GPU's usual server holds."
ROUTING_HELP = "How the load balancer picks a replica. Least outstanding requests needs the fewest GPUs."
ARRIVALS_HELP = "How requests are spread over time at the peak."
PRICE_HELP = "Any currency; adds the cost per hour to the answer. Empty: not asked."
POINTS_HELP = "On: what you have measured comes before estimates. Off: estimates only."
