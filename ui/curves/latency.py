"""Latency against load: a panel for each limit, with the knee, what was measured, and any load of one's choice."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from sizing.curves import Point
from sizing.loadcurve import LoadCurve
from sizing.numbers import milliseconds, significant
from sizing.plan import Fleet
from sizing.workload import Limit
from ui import curving
from ui.charts.latency import latency_against_load
from ui.charts.measured_marks import measured_s, with_knee, with_measured
from ui.curves.load_input import load_input, use_load
from ui.look import ink, show
from ui.scenario import Scenario
from ui.words import BASIS_HELP, BASIS_LOOK, UNIT, limit_name, plain, room


def draw(scenario: Scenario, name: str, fleet: Fleet) -> None:
    """One replica of the fleet from no load to beyond its capacity."""
    curve, points = curving.curve(scenario, name, fleet), curving.open_loop(scenario, fleet)
    capacity = significant(fleet.capacity_per_s)
    st.title(plain(f"A replica of {fleet.candidate.label} carries {capacity} requests/s under this SLA"), anchor=False)
    _provenance(fleet, points)
    limits = scenario.question.sla.limits
    for column, limit in zip(st.columns(len(limits)), limits, strict=True):
        chart = latency_against_load(curve, fleet, limit, scenario.headroom, ink())
        with column:
            show(with_measured(with_knee(chart, curve, ink()), points, limit, ink()), f"latency_{limit.metric}")
    st.caption(KNEE_HELP)
    _try(scenario, name, fleet, limits)
    _table(curve, limits, points)


KNEE_HELP = (
    "Shaded: the headroom kept. Knee: where load over mean end-to-end time is highest; beyond it more load costs "
    "more in latency than it brings in throughput."
)


def _provenance(fleet: Fleet, points: Sequence[Point]) -> None:
    icon, colour = BASIS_LOOK[fleet.basis]
    several = "points" if len(points) > 1 else "point"
    count = f"{len(points) or 'no'} {several} measured at offered rates"
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.badge(fleet.basis.capitalize(), icon=icon, color=colour, help=BASIS_HELP[fleet.basis])
        st.caption(plain(f"{fleet.candidate.source} · line by formula · {count} at these lengths"))


def _try(scenario: Scenario, name: str, fleet: Fleet, limits: Sequence[Limit]) -> None:
    """Any load of one's choice: what users would see at it, and a button that asks the whole question at it."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        rate = load_input(
            "Load to try (requests/s per replica)",
            fleet.load_per_s,
            f"try_{scenario.rate_per_s}_{name}",
            "A load of each working replica: type one to see the latencies there.",
        )
        use_load(
            rate * fleet.working,
            f"Makes {fleet.working} × this load, that of all working replicas, the peak load asked.",
        )
    predicted = curving.prediction(scenario, name, fleet, rate)
    if predicted.saturated:
        st.markdown(
            f":material/cancel: At {significant(rate)} requests/s a replica's queue grows without end; "
            f"the stable rate is {significant(fleet.stable_per_s)}."
        )
        return
    told = (_verdict(limit, predicted.value_s(limit)) for limit in limits)
    st.markdown(f"At {significant(rate)} requests/s per replica:  \n" + "  \n".join(told))


def _verdict(limit: Limit, value_s: float) -> str:
    kept = value_s <= limit.limit_s
    icon, word = (":material/check_circle:", "keeps") if kept else (":material/cancel:", "misses")
    return f"{icon} {word} {limit_name(limit)}: {milliseconds(value_s)}, {room(value_s, limit)}"


def _table(curve: LoadCurve, limits: Sequence[Limit], points: Sequence[Point]) -> None:
    with st.expander("Data behind the charts"):
        rows = [
            {"Load (requests/s per replica)": significant(rate)}
            | {_title(limit): significant(p.value_s(limit) * UNIT[limit.metric][1]) for limit in limits}
            | {"From": "formula"}
            for rate, p in zip(curve.rates_per_s, curve.predictions, strict=True)
        ]
        rows += [_measured_row(point, limits) for point in points]
        st.dataframe(pd.DataFrame(rows), hide_index=True, alt="Latency against load, by formula and as measured")


def _title(limit: Limit) -> str:
    return f"{limit_name(limit)} ({UNIT[limit.metric][0]})"


def _measured_row(point: Point, limits: Sequence[Limit]) -> dict[str, str]:
    values = {limit: measured_s(point, limit) for limit in limits}
    return (
        {"Load (requests/s per replica)": significant(point.load_value)}
        | {
            _title(limit): "" if value is None else significant(value * UNIT[limit.metric][1])
            for limit, value in values.items()
        }
        | {"From": f"measured, {point.load_kind.replace('_', ' ')}"}
    )
