"""Over a day: 24 hourly loads, the GPUs of each hour, and what following the load saves against a constant fleet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from sizing import text
from sizing.analyses.daily import HOURS, Daily
from sizing.numbers import percent, significant
from sizing.plans import Plan
from sizing.text import day_sentence, day_working
from ui import answers
from ui.charts.fleet import gpus_over_day
from ui.look import card, data_behind, ink, show
from ui.scenario import DAYS, OF_PEAK, Scenario
from ui.views.answer import basis_line, left_out, tell_change_since_link, warnings
from ui.visit import visit
from ui.words import plain, tell_unreadable

state = st.session_state
LOAD = "Load (% of the peak)"
TALL_PX = 300
DAY_HELP = "Fills in 24 example loads to start from. They are invented, not measured: replace them with your own."
EDITOR_HELP = "Relative to the busiest hour, which has the peak load of the form."
GPU_HOURS_HELP = "Hours times running GPUs, spares included; replicas are assumed to start and stop instantly."


def show_day(plan: Plan, day: Daily, scenario: Scenario) -> None:
    """The day's answer: sentence, cards, chart and the loads to edit."""
    tell_unreadable(answers.measured_points().problems)
    fleet = plan.answer
    with st.container(gap="xsmall"):
        st.title(plain(day_sentence(plan, day)), anchor=False)
        st.markdown(plain(day_working(plan, day)))
        basis_line(fleet.basis, f"At the peak {text.band(fleet)} · {fleet.candidate.source}", text.why_wide(fleet))
    tell_change_since_link(fleet.gpus, scenario)
    _cards(plan, day)
    loads, chart = st.columns([1, 3])
    with loads:
        ask_day()
    with chart:
        show(gpus_over_day(day, ink()), "day")
        rows = [(f"{h.hour}:00", significant(h.rate_per_s), h.replicas, h.gpus) for h in day.hours]
        columns = ["Hour", "Requests/s", "Replicas", "GPUs"]
        data_behind(pd.DataFrame(rows, columns=columns), "GPUs of each hour")
    warnings(fleet.basis, fleet.warnings)
    left_out(plan.rejected)


def _cards(plan: Plan, day: Daily) -> None:
    price = plan.question.price_per_gpu_hour
    with st.grid(3, min_column_width=150):
        card(
            "GPUs at the peak",
            f"{day.constant_gpus:,}",
            "if sized for the peak",
            "If the fleet does not follow the load.",
        )
        paid = "" if price is None else f"{significant(price * day.gpu_hours)} a day"
        card("GPU-hours a day", f"{day.gpu_hours:,}", paid or f"of {day.constant_gpu_hours:,}", GPU_HOURS_HELP)
        saved = day.constant_gpu_hours - day.gpu_hours
        worth = f"{saved:,} GPU-hours" if price is None else f"{saved:,} GPU-hours, {significant(price * saved)} a day"
        card("Saved", percent(day.saved), worth, "Compared with running the busiest hour's fleet all day.")


def ask_day() -> None:
    """A shape to start from, and the 24 loads to edit."""
    chosen = next((name for name, loads in DAYS.items() if loads == state.day), None)
    st.pills(
        "Day",
        list(DAYS),
        format_func=lambda name: f"**{name}**" if name == chosen else name,
        key="day_shape",
        on_change=_use_shape,
        help=DAY_HELP,
    )
    key = _editor_key()
    table = pd.DataFrame({"Hour": [f"{hour}:00" for hour in range(HOURS)], LOAD: list(visit().day_base)})
    load = st.column_config.NumberColumn(
        min_value=OF_PEAK.low, max_value=OF_PEAK.high, format="%g", required=True, help=EDITOR_HELP
    )
    st.data_editor(
        table,
        hide_index=True,
        disabled=["Hour"],
        height=TALL_PX,
        key=key,
        on_change=_use_edits,
        args=(key,),
        column_config={LOAD: load},
        alt="Load of each hour in percent of the peak, to edit",
    )


def _use_shape() -> None:
    state.day, state.day_shape = DAYS[state.day_shape], None


def _use_edits(key: str) -> None:
    state.day = edited(visit().day_base, state[key]["edited_rows"])


def _editor_key() -> str:
    """The key of the editor: a new one, without edits, once the day is not what the editor's own edits made of it."""
    key = f"day_editor_{visit().day_round}"
    edits = state[key]["edited_rows"] if key in state else {}
    if edited(visit().day_base, edits) != state.day:
        visit().day_base, visit().day_round = state.day, visit().day_round + 1
    return f"day_editor_{visit().day_round}"


def edited(loads: Sequence[float], rows: Mapping[int, Mapping[str, Any]]) -> tuple[float, ...]:
    """The loads with an editor's changes; as they were where a change is no load of a day or leaves none.

    >>> edited((100.0, 50.0), {1: {"Load (% of the peak)": 75}})
    (100.0, 75.0)
    """
    changed = {hour: row.get(LOAD) for hour, row in rows.items()}
    new = [changed.get(hour, load) for hour, load in enumerate(loads)]
    read = tuple(float(load) for load in new if isinstance(load, int | float) and load in OF_PEAK)
    return read if len(read) == len(new) and any(read) else tuple(loads)
