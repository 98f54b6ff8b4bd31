"""The inverse question: the requests/s that GPUs which exist can serve under the SLA, and how that comes about."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from sizing.analyses.existing import Existing
from sizing.numbers import count_of, gpus, per_second, percent, significant
from sizing.plans import Rejection
from sizing.text import WIDE, against, existing_band, existing_sentence, spelt
from ui import answers
from ui.look import card, rows_of_cards
from ui.scenario import FLEET, Scenario
from ui.views.answer import (
    ROW_PX,
    basis_line,
    left_out,
    limit_cards,
    table_height,
    to_measure,
    warnings,
)
from ui.visit import number_kept
from ui.words import limit_name, plain, tell_unreadable

FLEET_HELP = "Available GPUs, of the types chosen in the form; each type is evaluated alone, not mixed."
RATE_HELP = "The load to plan for: SLA met, headroom kept, spares idle."


def ask_fleet() -> None:
    """The number of GPUs."""
    with st.container(horizontal=True, vertical_alignment="center", width="content", gap="small"):
        st.markdown("GPUs I have", width="content")
        number_kept(
            "GPUs I have",
            int(FLEET.low),
            int(FLEET.high),
            "fleet_gpus",
            help=FLEET_HELP,
            label_visibility="collapsed",
            width=130,
        )


def show_carried(fleets: Sequence[Existing], rejected: Sequence[Rejection], scenario: Scenario) -> None:
    """The answer: the best way to run these GPUs, and the others."""
    tell_unreadable(answers.measured_points().problems)
    best, question = fleets[0], scenario.question
    with st.container(gap="xsmall"):
        st.title(plain(existing_sentence(best)), anchor=False)
        st.markdown(plain(working(best, question.headroom)))
        checked = "checked by simulation" if best.predicted.method == "simulation" else "by formula"
        basis_line(best.basis, f"{existing_band(best)} · {best.candidate.source} · {checked}", why_wide(best))
    with rows_of_cards(2 + len(question.sla.limits)):
        fails = f"SLA fails at {significant(best.limit_per_s)}"
        card("Requests/s", significant(best.rate_per_s), fails, RATE_HELP)
        each = f"{significant(best.rate_per_s / best.working)} per replica"
        card("Requests/s per GPU", significant(best.requests_per_s_per_gpu), each, "Over the GPUs that carry load.")
        limit_cards(best.predicted, question.sla)
    st.markdown(f"**Bound by** {plain(bound(best))}.")
    measure = to_measure(best.candidate, scenario.lengths, best.in_flight, answers.measured_points().points)
    warnings(best.basis, best.warnings, measure)
    _table(fleets)
    left_out(rejected)


def working(fleet: Existing, headroom: float) -> str:
    """The arithmetic from the GPUs to the rate."""
    candidate, replicas = fleet.candidate, fleet.working + fleet.spare
    unused = f", {fleet.unused} left over" if fleet.unused else ""
    spare = f", − {fleet.spare} spare = {fleet.working}" if fleet.spare else ""
    kept = f" ({percent(headroom)} headroom kept)" if headroom else ""
    return (
        f"{gpus(fleet.gpus)} ÷ {candidate.gpus} per replica ({candidate.layout}, {candidate.precision}) = "
        f"{count_of(replicas, 'replica')}{unused}{spare} × {per_second(fleet.rate_per_s / fleet.working)}{kept} = "
        f"{per_second(fleet.rate_per_s)}"
    )


def why_wide(fleet: Existing) -> str:
    """Why a band is wide and what narrows it; empty where it is not wide."""
    if fleet.low > 0 and fleet.high <= WIDE * fleet.low:
        return ""
    sigma = percent(fleet.candidate.relative_sigma)
    return f"The band is wide: the law's times have a standard error of {sigma}. A few measured points narrow it."


def bound(fleet: Existing) -> str:
    """What keeps these GPUs from serving more."""
    if fleet.binding == "stable rate":
        return "stable rate: beyond it a replica's queue grows without bound, before a limit is reached"
    return f"{limit_name(fleet.limit)}: {against(fleet.limit, fleet.predicted)} at this load"


def _table(fleets: Sequence[Existing]) -> None:
    number = st.column_config.NumberColumn
    st.dataframe(
        pd.DataFrame(map(_row, fleets)),
        hide_index=True,
        row_height=ROW_PX,
        height=table_height(len(fleets)),
        column_config={
            "GPU": st.column_config.TextColumn(help="The first row is the answer."),
            "Requests/s": number(format="%.3g", help="The load to plan for: SLA met, headroom and spares kept."),
            "Requests/s per GPU": number(format="%.3g", help="Over the GPUs that carry load."),
            "GPUs left over": number(format="localized", help="GPUs too few to form another replica."),
        },
        alt="Ways to run these GPUs, most requests/s first: "
        + "; ".join(f"{per_second(f.rate_per_s)} as {spelt(f.candidate.label)}" for f in fleets[:3]),
    )


def _row(fleet: Existing) -> dict[str, object]:
    candidate = fleet.candidate
    return {
        "GPU": candidate.gpu,
        "Layout": str(candidate.layout),
        "Precision": candidate.precision,
        "Engine": spelt(candidate.engine),
        "Requests/s": fleet.rate_per_s,
        "Requests/s per GPU": fleet.requests_per_s_per_gpu,
        "GPUs left over": fleet.unused,
        "Binding limit": "stable rate" if fleet.binding == "stable rate" else limit_name(fleet.limit),
        "Basis": fleet.basis.capitalize(),
        "90 % band (requests/s)": f"{significant(fleet.low)} to {significant(fleet.high)}",
    }
