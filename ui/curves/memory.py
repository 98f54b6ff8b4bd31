"""Memory of one GPU: what fills it at the planned load, for the picked configuration and others."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import streamlit as st

from sizing.memory_use import KV_USED, PARTS, WEIGHTS, MemoryUse, memory_use
from sizing.numbers import significant
from sizing.plan import Fleet, Plan
from ui.charts.memory import GIB, memory_per_gpu
from ui.fleets import named
from ui.look import ink, show
from ui.scenario import Scenario
from ui.words import plain, sentence_case

BARS = 8
"""Configurations drawn at once."""


def draw(scenario: Scenario, plan: Plan, fleet: Fleet) -> None:
    """Bars for the picked configuration and the next best ones; what is not known is said."""
    fleets = named([fleet, *(each for each in plan.fleets if each is not fleet)][:BARS])
    found = {name: memory_use(each, scenario.lengths) for name, each in fleets.items()}
    uses = {name: use for name, use in found.items() if isinstance(use, MemoryUse)}
    own = next(iter(found.values()))
    if isinstance(own, str):
        st.title("Memory of this configuration is not known", anchor=False)
        st.markdown(plain(sentence_case(own)) + ".")
    else:
        st.title(plain(_title(own)), anchor=False)
    if not uses:
        return
    show(memory_per_gpu(list(uses), list(uses.values()), ink()), "memory")
    st.caption(
        "KV cache in use: requests in a replica at the planned load (Little's law) times the tokens that each holds on "
        "average; peaks are higher. Weights: parameters times bits, spread evenly over the replica's GPUs."
    )
    for note in dict.fromkeys(use.note for use in uses.values()):
        names = ", ".join(name for name, use in uses.items() if use.note == note)
        st.caption(plain(f"{sentence_case(note)}: {names}."))
    _table(uses)


def _title(use: MemoryUse) -> str:
    used, capacity = use.of(WEIGHTS) + use.of(KV_USED), use.capacity_bytes
    return (
        f"{significant(used / GIB)} of {significant(capacity / GIB)} GiB hold weights and KV cache "
        f"on each GPU of {use.candidate.label}"
    )


def _table(uses: Mapping[str, MemoryUse]) -> None:
    with st.expander("Data behind the chart"):
        rows = [
            {"Configuration": name}
            | {
                f"{part} (GiB)": significant(dict(use.parts)[part] / GIB) if part in dict(use.parts) else ""
                for part in PARTS
            }
            | {"GPU memory (GiB)": significant(use.capacity_bytes / GIB)}
            for name, use in uses.items()
        ]
        st.dataframe(pd.DataFrame(rows), hide_index=True, alt="Memory of one GPU by what fills it")
