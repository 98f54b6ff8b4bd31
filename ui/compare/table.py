"""The table of all configurations that meet the SLA, its matrix of GPU and TP, and the file of both kinds."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from sizing.cost import cost_of
from sizing.curves import FORMULA_STARTS
from sizing.plan import Fleet, Plan
from sizing.workload import Limit
from ui.compare import picks
from ui.comparing import room_share
from ui.words import LEFT_OUT_ONE, gpus_band, limit_name, plain, sentence_case

ROW_PX, HEADER_PX, ROWS_SEEN = 32, 38, 10
ROOM, CURVE = "Room to the SLA (%)", "SLA use by load"
PER_HOUR, PER_MILLION = "Cost per hour", "Cost per M output tokens"


def draw_table(
    plan: Plan,
    fleets: Mapping[str, Fleet],
    curves: Mapping[str, Sequence[float]],
    picked: Sequence[str],
    with_cost: bool,
) -> None:
    """One row a configuration; rows picked go side by side below."""
    names, first = list(fleets), [_in_words(fleet) for fleet in list(fleets.values())[:3]]
    rows = [row(plan, fleet, with_cost) | {CURVE: list(curves[name])} for name, fleet in fleets.items()]
    order = [column for column in rows[0] if column != CURVE]
    order.insert(order.index(ROOM) + 1, CURVE)
    digest = hashlib.sha256("\n".join(names).encode()).hexdigest()[:12]
    key = f"compare_table_{digest}_{st.session_state.get(picks.REVISION, 0)}"
    st.dataframe(
        pd.DataFrame(rows),
        hide_index=True,
        column_order=order,
        key=key,
        row_height=ROW_PX,
        height=ROW_PX * min(ROWS_SEEN, len(rows)) + HEADER_PX,
        column_config=_columns(),
        on_select=lambda: picks.from_table(key, names),
        selection_mode="multi-row",
        selection_default={"selection": {"rows": [names.index(name) for name in picked]}},
        alt=f"Configurations that meet the SLA, the answer first: {'; '.join(first)}.",
    )


def row(plan: Plan, fleet: Fleet, with_cost: bool) -> dict[str, Any]:
    """What the table says of one configuration."""
    candidate = fleet.candidate
    shown: dict[str, Any] = {
        "GPU": candidate.gpu,
        "TP": candidate.tp,
        "Precision": candidate.precision,
        "GPUs": fleet.gpus,
        "90 % band (GPUs)": gpus_band(fleet),
        "Requests/s per GPU": fleet.requests_per_s_per_gpu,
        ROOM: 100 * min(1.0, max(0.0, room_share(fleet))),
        "Limit that binds": binding_name(fleet),
        "Basis": fleet.basis.capitalize(),
    }
    cost = cost_of(plan.question, fleet) if with_cost else None
    return shown | ({} if cost is None else {PER_HOUR: cost.per_hour, PER_MILLION: cost.per_million_output_tokens})


def binding_name(fleet: Fleet) -> str:
    """What keeps a replica from carrying more, short enough for a cell."""
    return "stable rate" if fleet.stability_binds else limit_name(fleet.binding)


def _in_words(fleet: Fleet) -> str:
    return f"{fleet.gpus:,} GPUs as {fleet.candidate.label}"


def _columns() -> dict[str, Any]:
    column = st.column_config
    return {
        "GPU": column.TextColumn(pinned=True, help="The first row is the answer."),
        "TP": column.NumberColumn(format="%d", width=45, help="GPUs of a replica."),
        "Requests/s per GPU": column.NumberColumn(format="%.3g", help="Planned for a working replica, over its GPUs."),
        "GPUs": column.NumberColumn(format="localized", help="All replicas, spares included, times the GPUs of each."),
        "90 % band (GPUs)": column.TextColumn(help="The count at both ends of what is known of the times."),
        ROOM: column.ProgressColumn(
            min_value=0,
            max_value=100,
            format="%.0f %%",
            width=120,
            help="Left of the limit that binds, at the planned load.",
        ),
        "Basis": column.TextColumn(help="Fitted: within what was measured. Extrapolated or estimated: measure first."),
        PER_HOUR: column.NumberColumn(
            format="%.4g", help="Of all GPUs, spares included, in the currency of the price."
        ),
        PER_MILLION: column.NumberColumn(
            format="%.3g", help="Per million output tokens, of the whole fleet at the planned load."
        ),
        CURVE: column.LineChartColumn(
            width=100,
            y_min=0.0,
            y_max=1.5,
            help="Predicted over allowed latency of the tightest limit, from no load to 1.1 × the capacity.",
        ),
    }


def draw_matrix(plan: Plan) -> None:
    """GPU and precision down, TP across: GPUs with their band, or why there is no count."""
    best: dict[tuple[str, str, int], Fleet] = {}
    for fleet in plan.fleets:
        best.setdefault((fleet.candidate.gpu, fleet.candidate.precision, fleet.candidate.tp), fleet)
    cells = {key: f"**{fleet.gpus:,}** ({gpus_band(fleet)})" for key, fleet in best.items()}
    for miss in plan.rejected:
        cells.setdefault((miss.gpu, miss.precision, miss.tp), LEFT_OUT_ONE[miss.kind])
    tps = sorted({tp for _, _, tp in cells})
    rows = {
        plain(f"{gpu} {precision}"): {f"TP{tp}": cells.get((gpu, precision, tp), "not asked") for tp in tps}
        for gpu, precision in dict.fromkeys((gpu, precision) for gpu, precision, _ in cells)
    }
    st.table(pd.DataFrame.from_dict(rows, orient="index"), alt="GPUs needed by GPU and precision down, TP across")
    st.caption("GPUs to own, spares included, with the 90 % band in brackets.")


def as_csv(plan: Plan, fleets: Mapping[str, Fleet]) -> str:
    """All configurations, those left out too, as a file; no cell that a spreadsheet would run as a formula."""
    limits = plan.question.sla.limits
    rows: list[dict[str, Any]] = [
        {"Verdict": "meets the SLA"}
        | row(plan, fleet, with_cost=True)
        | {_column(limit): fleet.predicted.value_s(limit) for limit in limits}
        | {"Source": fleet.candidate.source}
        for fleet in fleets.values()
    ]
    rows += [
        {"Verdict": LEFT_OUT_ONE[miss.kind], "GPU": miss.gpu, "TP": miss.tp, "Precision": miss.precision}
        | {"Why": sentence_case(miss.why)}
        for miss in plan.rejected
    ]
    return str(pd.DataFrame(rows).map(_harmless).to_csv(index=False))


def _column(limit: Limit) -> str:
    return f"{limit_name(limit)} (s)"


def _harmless(cell: object) -> object:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA_STARTS) else cell
