"""GPUs against load: the steps of the answer and of other GPUs, over a range of one's choice."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from sizing.fleet_sizes import FleetSizes, gpus_for
from sizing.numbers import significant
from sizing.plan import Fleet, Plan
from ui import curving
from ui.charts.fleet_size import Steps, gpus_against_load
from ui.curves.load_input import load_input, use_load
from ui.fleets import named
from ui.look import ink, show
from ui.scenario import RATE, Scenario
from ui.words import plain

OTHERS = 2
"""Configurations drawn beside the one picked: the best of other GPUs."""
TABLE_ROWS = 200


def draw(scenario: Scenario, plan: Plan, name: str, fleet: Fleet) -> None:
    """How the count grows with the load, for this configuration and the best of other GPUs."""
    question, rate = scenario.question, scenario.rate_per_s
    twice = gpus_for(question, fleet, 2 * rate)
    st.title(plain(f"{fleet.gpus:,} GPUs at {significant(rate)} requests/s, {twice:,} at twice the load"), anchor=False)
    low, high = _range(rate)
    if low >= high:
        st.warning("The range ends before it begins: make its end larger than its start.")
        return
    others = best_of_other_gpus(plan, fleet)
    steps = [
        Steps(each.candidate.label, curving.sizes(scenario, its_name, each, low, high))
        for its_name, each in ((name, fleet), *others)
    ]
    show(gpus_against_load(steps, high, rate, fleet.gpus, f"{fleet.gpus:,} GPUs", ink()), "fleet_size")
    st.caption(
        "Counts round up to whole replicas, so the line steps; spares included, headroom kept. Shaded: the 90 % band "
        f"of {plain(fleet.candidate.label)}, where it has an end. A replica's capacity is kept as at the planned load."
    )
    _try(scenario, fleet)
    _table(steps)


def best_of_other_gpus(plan: Plan, fleet: Fleet) -> list[tuple[str, Fleet]]:
    """The best fleet of each GPU that the picked one does not stand on, at most `OTHERS`."""
    found: dict[str, tuple[str, Fleet]] = {}
    for name, each in named(plan.fleets).items():
        if each.candidate.gpu != fleet.candidate.gpu:
            found.setdefault(each.candidate.gpu, (name, each))
    return list(found.values())[:OTHERS]


def _range(rate_per_s: float) -> tuple[float, float]:
    with st.container(horizontal=True, vertical_alignment="bottom"):
        low = st.number_input(
            "From (requests/s)", 0.0, float(RATE.high), 0.0, format="%g", key=f"from_{rate_per_s}", width=160
        )
        high = st.number_input(
            "To (requests/s)",
            0.0,
            float(RATE.high),
            min(3 * rate_per_s, float(RATE.high)),
            format="%g",
            key=f"to_{rate_per_s}",
            width=160,
        )
    return low, high


def _try(scenario: Scenario, fleet: Fleet) -> None:
    question = scenario.question
    with st.container(horizontal=True, vertical_alignment="bottom"):
        rate = load_input(
            "Load to try (requests/s)",
            2 * scenario.rate_per_s,
            f"try_fleet_{scenario.rate_per_s}",
            "A load of the whole fleet: type one to see its GPUs.",
        )
        use_load(rate, "Makes this the peak load of the scenario, which is then planned for anew.")
    st.markdown(
        f"At {significant(rate)} requests/s: **{gpus_for(question, fleet, rate):,} GPUs** as "
        f"{plain(fleet.candidate.label)}."
    )


def _table(steps: Sequence[Steps]) -> None:
    with st.expander("Data behind the chart"):
        for one in steps:
            st.caption(plain(one.name))
            frame = pd.DataFrame(_rows(one.sizes)[:TABLE_ROWS])
            st.dataframe(frame, hide_index=True, alt=f"GPUs of {one.name} from each load on")


def _rows(sizes: FleetSizes) -> list[dict[str, str]]:
    """A row for each load from which on a count, or an end of its band, changes."""
    rows: list[dict[str, str]] = []
    for place, rate in enumerate(sizes.rates_per_s):
        high = "no number" if sizes.high is None else f"{sizes.high[place]:,}"
        counts = {
            "GPUs": f"{sizes.gpus[place]:,}",
            "90 % band, low": f"{sizes.low[place]:,}",
            "90 % band, high": high,
        }
        if not rows or counts.items() - rows[-1].items():
            rows.append({"From load (requests/s)": significant(rate)} | counts)
    return rows
