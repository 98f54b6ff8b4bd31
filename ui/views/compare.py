"""The table of all configurations that meet the SLA, its matrix by size of a replica, two pools, and the file."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from sizing.analyses.curves import versus
from sizing.analyses.pools import Pools
from sizing.memory_use import PARTS, MemoryUse, memory_use
from sizing.numbers import gpus, significant
from sizing.plans import Fleet, Plan, Rejection, cost_of
from sizing.points import FORMULA_STARTS
from sizing.question import Question
from sizing.text import LEFT_OUT, pools_lines, spelt
from sizing.workload import NO_PREFIX, Lengths, Limit
from ui.charts.fleet import GIB
from ui.link import PREFIX
from ui.look import basis_line
from ui.values import use_candidate
from ui.views.answer import in_words, reasons, warnings
from ui.visit import visit
from ui.words import binding_name, gpus_band, limit_name, plain, sentence_case

# --- Which configurations stand side by side: one list, kept in the URL, changed in the table or in a pick list

state = st.session_state
MOST = 4
KEY = PREFIX + "pick"
LIST = "compare_list"


def written(names: Sequence[str]) -> str:
    """Names as one URL value. ``read(written(names)) == names``, whatever they hold.

    >>> written(["h200_sxm TP1 fp8", "a;b"])
    'h200_sxm TP1 fp8;a%3Bb'
    """
    return ";".join(name.replace("%", "%25").replace(";", "%3B") for name in names)


def read(text: str) -> list[str]:
    """The names that a URL value holds."""
    return [name.replace("%3B", ";").replace("%25", "%") for name in text.split(";") if name]


def current(fleets: Mapping[str, Fleet]) -> list[str]:
    """The names picked, at most `MOST`; where none of the link's exists, the answer and the best of another GPU."""
    wanted = [name for name in read(state.get(KEY) or "") if name in fleets]
    emptied = state.get(KEY) == ""
    picked = list(dict.fromkeys(wanted))[:MOST] if wanted or emptied else usual(fleets)
    state[KEY] = visit().shown[KEY] = written(picked)
    if visit().drawn_picks != state[KEY]:
        visit().drawn_picks, visit().table_round = state[KEY], visit().table_round + 1
    return picked


def usual(fleets: Mapping[str, Fleet]) -> list[str]:
    """The first, and the first on another GPU; else the second."""
    first, *rest = fleets
    other = next((name for name in rest if fleets[name].candidate.gpu != fleets[first].candidate.gpu), None)
    return [first, other] if other else [first, *rest[:1]]


def draw_list(fleets: Mapping[str, Fleet], picked: Sequence[str]) -> None:
    """The pick list: by keyboard as well as by mouse."""
    state[LIST] = list(picked)
    st.multiselect(
        "Configurations side by side",
        list(fleets),
        format_func=spelt,
        key=LIST,
        max_selections=MOST,
        on_change=_from_list,
        label_visibility="collapsed",
        placeholder=f"Pick 2 to {MOST} configurations",
        help=f"Pick 2 to {MOST} configurations here or in the table; the first is what the others are compared with.",
    )


def _from_list() -> None:
    state[KEY] = written(state[LIST])


def from_table(key: str, names: Sequence[str]) -> None:
    """Take the rows picked in the table called `key`: what was picked before stays in front, at most `MOST` in all."""
    rows = [names[row] for row in state[key].selection.rows if row < len(names)]
    before = [name for name in read(state.get(KEY) or "") if name in rows]
    kept = [*before, *(name for name in rows if name not in before)]
    state[KEY] = written(kept[:MOST])
    visit().drawn_picks = state[KEY] if len(kept) <= MOST else None


ROW_PX, HEADER_PX, ROWS_SEEN = 32, 38, 10
ROOM, CURVE = "Room to the SLA (%)", "SLA use by load"
PER_HOUR, PER_MILLION = "Cost per hour", "Cost per M output tokens"
MOST_USE = 1.5
"""Of a limit, as far as a curve is drawn."""


def draw_table(
    plan: Plan,
    fleets: Mapping[str, Fleet],
    curves: Mapping[str, Sequence[float]],
    picked: Sequence[str],
    with_cost: bool,
) -> None:
    """One row a configuration; rows picked go side by side below."""
    names, first = list(fleets), [in_words(fleet) for fleet in list(fleets.values())[:3]]
    # of a curve that leaves its axis Streamlit draws another, stretched from the bottom of the axis to its top
    uses = {name: [min(use, MOST_USE) for use in curves[name]] for name in names}
    rows = [
        row(plan, fleet, with_cost) | {"Engine": spelt(fleet.candidate.engine), CURVE: uses[name]}
        for name, fleet in fleets.items()
    ]
    order = [column for column in rows[0] if column != CURVE]
    if not with_cost:  # a desk has room for either
        order.insert(order.index(ROOM) + 1, CURVE)
    digest = hashlib.sha256("\n".join(names).encode()).hexdigest()[:12]
    key = f"compare_table_{digest}_{visit().table_round}"
    st.dataframe(
        pd.DataFrame(rows),
        hide_index=True,
        column_order=order,
        key=key,
        row_height=ROW_PX,
        height=ROW_PX * min(ROWS_SEEN, len(rows)) + HEADER_PX,
        column_config=_columns(),
        on_select=lambda: from_table(key, names),
        selection_mode="multi-row",
        selection_default={"selection": {"rows": [names.index(name) for name in picked]}},
        alt=f"Configurations that meet the SLA, the answer first: {'; '.join(first)}.",
    )


def row(plan: Plan, fleet: Fleet, with_cost: bool) -> dict[str, Any]:
    """What the table says of one configuration."""
    candidate = fleet.candidate
    shown: dict[str, Any] = {
        "GPU": candidate.gpu,
        "Layout": str(candidate.layout),
        "Precision": candidate.precision,
        "Engine": candidate.engine,
        "GPUs": fleet.gpus,
        "90 % band (GPUs)": gpus_band(fleet),
        "Requests/s per GPU": fleet.requests_per_s_per_gpu,
        ROOM: 100 * min(1.0, max(0.0, fleet.room)),
        "Binding limit": binding_name(fleet),
        "Basis": fleet.basis.capitalize(),
    }
    cost = cost_of(plan.question, fleet) if with_cost else None
    return shown | ({} if cost is None else {PER_HOUR: cost.per_hour, PER_MILLION: cost.per_million_output_tokens})


def _columns() -> dict[str, Any]:
    column = st.column_config
    return {
        "GPU": column.TextColumn(pinned=True, help="The first row is the answer."),
        "Layout": column.TextColumn(help="How the GPUs of a replica share the model."),
        "Requests/s per GPU": column.NumberColumn(format="%.3g", help="Planned for a working replica, over its GPUs."),
        "GPUs": column.NumberColumn(format="localized", help="All replicas, spares included, times the GPUs of each."),
        "90 % band (GPUs)": column.TextColumn(
            "90 % band", help="The count at both ends of the uncertainty of the times."
        ),
        ROOM: column.ProgressColumn(
            "Room",
            min_value=0,
            max_value=100,
            format="%.0f %%",
            width=100,
            help="Unused part of the binding limit, at the planned load.",
        ),
        "Basis": column.TextColumn(help="Fitted: within what was measured. Extrapolated or estimated: measure first."),
        PER_HOUR: column.NumberColumn(
            format="localized", help="Of all GPUs, spares included, in the currency of the price."
        ),
        PER_MILLION: column.NumberColumn(
            "Per M output tokens", format="%.3g", help="Per million output tokens, of the whole fleet at the mean load."
        ),
        CURVE: column.LineChartColumn(
            width=100,
            y_min=0.0,
            y_max=MOST_USE,
            help="Predicted latency over its limit, for the tightest limit, from no load to 1.1 × the capacity.",
        ),
    }


def draw_matrix(plan: Plan) -> None:
    """GPU, precision and engine down, GPUs of a replica across: the fewest GPUs with their band, or why there is no
    count."""
    cells: dict[tuple[str, str, str, int], str] = {}
    for fleet in plan.fleets:
        one = fleet.candidate
        band = gpus_band(fleet).replace(" ", "\N{NO-BREAK SPACE}")
        count = f"**{fleet.gpus:,}** ({band}) {one.layout}"
        cells.setdefault((one.gpu, one.precision, one.engine, one.gpus), count)
    for miss in plan.rejected:
        cells.setdefault((miss.gpu, miss.precision, miss.engine, miss.layout.gpus), LEFT_OUT[miss.kind][0])
    sizes = sorted({size for *_, size in cells})
    rows = {
        plain(" ".join(filter(None, names))): {gpus(size): cells.get((*names, size), "not compared") for size in sizes}
        for names in dict.fromkeys(key[:3] for key in cells)
    }
    alt = "GPUs needed: GPU, precision and engine down, GPUs of a replica across"
    st.table(pd.DataFrame.from_dict(rows, orient="index"), alt=alt)
    st.caption(
        "GPUs to own, spares included, with the 90 % band in brackets, in the best layout of a replica of that size."
    )


def draw_pools(found: Pools | Rejection | str, plan: Plan, lengths: Lengths) -> None:
    """Both pools beside the one fleet, the memory of a GPU in each, and what they rest on."""
    if isinstance(found, str):
        st.info(plain(sentence_case(found)) + ".", icon=":material/call_split:")
        return
    first, *rest = pools_lines(found, plan.question, gpus(plan.answer.gpus))
    st.markdown(f"**{plain(first)}.**" + "".join(f"\n- {plain(line)}." for line in rest))
    if isinstance(found, Rejection):
        return
    for role, fleet in (("Prefill", found.prefill), ("Decode", found.decode)):
        basis_line(fleet.basis, f"{role}: {fleet.candidate.source}")
        warnings(fleet.basis, fleet.warnings)
    rows = {}
    prefill = found.prefill, plan.question.workload.prefix
    for role, (fleet, prefix) in (("Prefill", prefill), ("Decode", (found.decode, NO_PREFIX))):
        use = memory_use(fleet, lengths, prefix)
        sizes = dict(use.parts) if isinstance(use, MemoryUse) else {}
        rows[role] = {f"{part} (GiB)": significant(sizes[part] / GIB) for part in PARTS if part in sizes}
    st.table(pd.DataFrame.from_dict(rows, orient="index").fillna(""), alt="Memory of a GPU in each pool, in GiB")
    st.caption(
        "Memory of a GPU in each pool at the planned load. Assumed: " + plain("; ".join(found.assumptions)) + "."
    )


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
        {"Verdict": LEFT_OUT[miss.kind][0], "GPU": miss.gpu, "Layout": str(miss.layout), "Precision": miss.precision}
        | {"Engine": miss.engine, "Why": sentence_case(miss.why)}
        for miss in plan.rejected
    ]
    table = pd.DataFrame(rows).map(_harmless)
    return str(table.astype({"GPUs": "Int64"}).to_csv(index=False))


def _column(limit: Limit) -> str:
    return f"{limit_name(limit)} ({UNITS.get(limit.metric, 's')})"


UNITS: Mapping[str, str] = {"goodput": "share of the limits", "rejected": "share"}
"""Of values of limits that are not on latencies."""


def _harmless(cell: object) -> object:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA_STARTS) else cell


def draw_side_by_side(question: Question, picked: Mapping[str, Fleet], with_cost: bool) -> None:
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
                on_click=use_candidate,
                args=(fleet.candidate,),
                icon=":material/check:",
                help="Writes GPU, layout, precision and engine into the form: every page then shows it alone.",
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
        said[plain(f"{limit_name(limit)} (limit {limit.allowed})")] = _limited(fleets, limit)
    said["Room to the SLA"] = [
        f"{100 * max(0.0, fleet.room):.0f} % of {fleet.with_class(limit_name(fleet.binding))}" for fleet in fleets
    ]
    said["Basis"] = [fleet.basis.capitalize() for fleet in fleets]
    said["Checked"] = ["by simulation" if fleet.verified else "by formula" for fleet in fleets]
    return said | (_costs(question, fleets) if with_cost else {})


def _costs(question: Question, fleets: list[Fleet]) -> dict[str, list[str]]:
    costs = [cost_of(question, fleet) for fleet in fleets]
    return {
        PER_HOUR: ["unknown" if cost is None else significant(cost.per_hour) for cost in costs],
        PER_MILLION: ["unknown" if cost is None else significant(cost.per_million_output_tokens) for cost in costs],
    }


def _limited(fleets: list[Fleet], limit: Limit) -> list[str]:
    """The latency that a limit speaks of."""
    return _best(
        fleets,
        lambda fleet: fleet.predicted.value_s(limit),
        lambda fleet: fleet.predicted.said(limit),
        lowest=True,
    )


def _best(
    fleets: list[Fleet], value: Callable[[Fleet], float], said: Callable[[Fleet], str], lowest: bool
) -> list[str]:
    texts = [said(fleet) for fleet in fleets]
    best = texts[fleets.index((min if lowest else max)(fleets, key=value))]
    return [f"**{text}**" if text == best and len(set(texts)) > 1 else text for text in texts]


def draw_left_out(rejected: Sequence[Rejection], expanded: bool = False) -> None:
    """A fold for each reason with its configurations and, one by one, why."""
    if not rejected:
        st.caption("No configuration was left out.")
        return
    for kind in LEFT_OUT:
        group = [rejection for rejection in rejected if rejection.kind == kind]
        if group:
            words = LEFT_OUT[kind][len(group) > 1]
            with st.expander(f"Left out: {len(group)} {words}", expanded=expanded):
                reasons([(each.label, each.why) for each in group])
