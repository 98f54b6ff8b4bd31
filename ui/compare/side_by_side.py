"""The picked configurations next to each other: their numbers, the ratio of their counts, and a button to take one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pandas as pd
import streamlit as st

from sizing.cost import cost_of
from sizing.numbers import milliseconds, significant
from sizing.plan import Fleet, Question
from sizing.versus import versus
from sizing.workload import Limit
from ui.compare.table import PER_HOUR, PER_MILLION, binding_name
from ui.comparing import room_share
from ui.fleets import use_configuration
from ui.words import gpus_band, limit_name, plain


def draw(question: Question, picked: Mapping[str, Fleet], with_cost: bool) -> None:
    """A table of two to four configurations; the first is what the others are compared with."""
    if not picked:
        st.markdown("Pick two to four configurations to see them side by side.")
        return
    rows = lines(question, list(picked.values()), with_cost)
    table = pd.DataFrame(rows, index=list(map(plain, picked))).T
    st.table(table, alt=f"Side by side: {'; '.join(picked)}")
    if len(picked) == 1:
        st.markdown("Pick another configuration to compare this one with.")
    first, *others = picked.values()
    for other in others:
        st.markdown(plain(versus(question, first, other)))
    with st.container(horizontal=True):
        for name, fleet in picked.items():
            st.button(
                f"Use {plain(name)}",
                key=f"use_{name}",
                on_click=use_configuration,
                args=(fleet,),
                icon=":material/check:",
                help="Writes GPU, TP and precision into the form: every page then shows this configuration alone.",
            )


def lines(question: Question, fleets: list[Fleet], with_cost: bool) -> dict[str, list[str]]:
    """Quantity -> its value for each fleet, as read; the best of a quantity is bold where they differ."""
    said = {
        "GPUs": _best(fleets, lambda fleet: fleet.gpus, lambda fleet: f"{fleet.gpus:,}", lowest=True),
        "90 % band (GPUs)": [gpus_band(fleet) for fleet in fleets],
        "Replicas": [f"{fleet.working:,} + {fleet.spare:,} spare" for fleet in fleets],
        "Requests/s per GPU": _best(
            fleets,
            lambda fleet: fleet.requests_per_s_per_gpu,
            lambda fleet: significant(fleet.requests_per_s_per_gpu),
            lowest=False,
        ),
    }
    for limit in question.sla.limits:
        said[f"{limit_name(limit)} (limit {milliseconds(limit.limit_s)})"] = _limited(fleets, limit)
    said["Room to the SLA"] = [
        f"{100 * max(0.0, room_share(fleet)):.0f} % of {binding_name(fleet)}" for fleet in fleets
    ]
    said["Basis"] = [fleet.basis.capitalize() for fleet in fleets]
    said["Checked"] = ["by simulation" if fleet.verified else "by formula" for fleet in fleets]
    return said | (_costs(question, fleets) if with_cost else {})


def _costs(question: Question, fleets: list[Fleet]) -> dict[str, list[str]]:
    costs = [cost_of(question, fleet) for fleet in fleets]
    return {
        PER_HOUR: ["not known" if cost is None else significant(cost.per_hour) for cost in costs],
        PER_MILLION: ["not known" if cost is None else significant(cost.per_million_output_tokens) for cost in costs],
    }


def _limited(fleets: list[Fleet], limit: Limit) -> list[str]:
    """The latency that a limit speaks of."""
    return _best(
        fleets,
        lambda fleet: fleet.predicted.value_s(limit),
        lambda fleet: milliseconds(fleet.predicted.value_s(limit)),
        lowest=True,
    )


def _best(
    fleets: list[Fleet], value: Callable[[Fleet], float], said: Callable[[Fleet], str], lowest: bool
) -> list[str]:
    texts = [said(fleet) for fleet in fleets]
    best = texts[fleets.index((min if lowest else max)(fleets, key=value))]
    return [f"**{text}**" if text == best and len(set(texts)) > 1 else text for text in texts]
