"""How many GPUs: the answer as a sentence, its arithmetic, how sure it is, what binds, and the other ways."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from urllib.parse import urlencode

import pandas as pd
import pyarrow as pa
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from sizing import text
from sizing import text as answer
from sizing.analyses.curves import LoadCurve
from sizing.analyses.relax import Relaxation
from sizing.analyses.sensitivity import GoodputPrice
from sizing.analyses.session_plan import SessionPlan
from sizing.analyses.traced import TracePlan
from sizing.deploy.formats import archive
from sizing.deploy.settings import deployment_of, kubernetes_name
from sizing.memory_use import Misfit
from sizing.numbers import count_of, significant
from sizing.plans import Basis, Candidate, Fleet, Plan, Rejection, servers, usual_server
from sizing.points import Point
from sizing.prediction import Caution, Prediction
from sizing.text import spelt
from sizing.workload import Lengths, Limit, Sla
from ui import answers, look
from ui.answers import fits_elsewhere, ways_out, what_fits
from ui.charts.latency import latency_against_load
from ui.computing import Outcome
from ui.look import card, data_behind, ink, rows_of_cards, show
from ui.scenario import Scenario
from ui.values import allow_any, use_candidate, use_limits
from ui.visit import visit
from ui.words import binding_name, counted, gpus_band, limit_name, plain, room, sentence_case, tell_unreadable, why_none

LEVELS = 4
"""Load levels asked for: from one request at a time to a quarter more than planned."""
BEYOND = 1.25
LONGER = 4
"""Prompts of one more level, over the question's ISL: from one ISL alone the cost of a prompt cannot be told."""


def to_measure(candidate: Candidate, lengths: Lengths, in_flight: float, points: Sequence[Point]) -> str:
    """What to measure of a candidate, in a sentence: its lengths, and concurrency levels up to beyond the plan's.

    `in_flight`: requests at once in a replica at the planned load; `points`: all available ones.
    """
    levels = " and ".join(", ".join(map(str, levels_to(in_flight))).rsplit(", ", 1))
    have = sorted({(p.isl, p.osl) for p in points if _of(candidate, p) and not p.void})
    known = ", ".join(f"{isl:,g} in / {osl:,g} out" for isl, osl in have)
    measured = f" Measured so far: {known} tokens, up to {candidate.calibrated_in_flight:,.0f} requests at once."
    return (
        f"To measure: {candidate.label} with {lengths.isl:,.0f} input and {lengths.osl:,.0f} output tokens, "
        f"at concurrency {levels}; and at concurrency 1 with {LONGER * lengths.isl:,.0f} input tokens, to learn how "
        f"the cost of a prompt grows with its length.{measured if have else ''}"
    )


def levels_to(in_flight: float) -> list[int]:
    """Whole concurrency levels in equal ratios from 1 to a quarter above `in_flight`.

    >>> levels_to(12.5)
    [1, 3, 6, 16]
    """
    top = max(2, math.ceil(BEYOND * in_flight))
    return sorted({round(top ** (step / (LEVELS - 1))) for step in range(LEVELS)})


def _of(candidate: Candidate, point: Point) -> bool:
    have = (point.model.lower(), point.gpu.lower(), point.precision.lower(), point.deployment.layout)
    return have == (candidate.model.lower(), candidate.gpu.lower(), candidate.precision.lower(), candidate.layout)


# --- What the answers of the Size page have in common: badge and band, cards, sources that failed, what was left out

CALIBRATE = "ui/pages/calibrate.py"
ROWS_SEEN = 4
"""Rows of a table of configurations before it scrolls."""
ROW_PX, HEADER_PX = 28, 36
SCROLL_PX = 320
"""Height of a longer list of reasons, of which each may take several lines."""


def link_to_calibrate(label: str = "Measure it") -> None:
    """To the page where one's own points come from."""
    st.page_link(CALIBRATE, label=label, icon=":material/speed:")


def basis_line(basis: Basis, words: str, why_wide: str = "") -> None:
    """The badge of the basis, the band, the source, and where the answer is not measured how to measure it."""
    with look.basis_line(basis, words, why_wide):
        if basis in ("estimated", "extrapolated"):
            link_to_calibrate()


def limit_cards(predicted: Prediction, sla: Sla, when: str = "at the planned load") -> None:
    """One card for each limit: what is predicted, and how far it is from the limit."""
    for limit in sla.limits:
        value_s = predicted.value_s(limit)
        kept = value_s <= limit.limit_s
        st.metric(
            limit_name(limit),
            predicted.said(limit),
            room(value_s, limit),
            delta_color="green" if kept else "red",
            delta_arrow="off",
            icon=":material/check_circle:" if kept else ":material/cancel:",
            border=True,
            help=_limit_help(limit, when),
        )


def _limit_help(limit: Limit, when: str) -> str:
    """What a card's figure is, and what it must be."""
    if limit.metric == "goodput":
        return f"Share of all requests that meet every limit at once, predicted {when}: {limit}."
    if limit.metric == "rejected":
        return f"Share of all requests that are rejected or time out, predicted {when}; at most {limit.allowed}."
    return f"Predicted {when}; the limit is {limit.allowed} at p{limit.percentile}."


def table_height(rows: int) -> int:
    """Pixels of a table of configurations."""
    return ROW_PX * min(ROWS_SEEN, rows) + HEADER_PX


def warnings(basis: Basis, found: Sequence[Caution], measure: str = "") -> None:
    """What the reader must know before buying: loud where the law is used outside what was measured."""
    lines = [f"{plain(sentence_case(line))}." for line in answer.cautions(found)]
    if basis == "extrapolated":
        told = [*lines, *([plain(measure)] if measure else [])]
        st.warning("  \n".join(told), title="Measure before buying", icon=":material/warning:")
        return
    for line in lines:
        st.caption(f":material/warning: {line}")


def left_out(rejected: Sequence[Rejection], expanded: bool = False) -> None:
    """Every configuration that is no answer, and why, behind a line that counts the reasons."""
    if not rejected:
        st.caption("No configuration was left out.")
        return
    many = count_of(len(rejected), "configuration")
    with st.expander(f"{many} left out: {counted([r.kind for r in rejected])}", expanded=expanded):
        reasons([(each.label, each.why) for each in rejected])


def reasons(left_out: Sequence[tuple[str, str]]) -> None:
    """Each configuration and why it was left out, the whole sentence: a cell of a grid would cut it."""
    rows = [(plain(label), plain(sentence_case(why))) for label, why in left_out]
    with st.container(height=SCROLL_PX if len(rows) > ROWS_SEEN else "content", border=False):
        st.table(
            pd.DataFrame(rows, columns=["Configuration", "Why"]),
            hide_index=True,
            border="horizontal",
            alt="Configurations left out, and why",
        )


PER_GPU_HELP = (
    "Planned load of a working replica (SLA met, headroom kept) divided by its GPUs. Over all GPUs owned: {}."
)
GPUS_HELP = "GPUs to own: all replicas, spares included, times the GPUs of each."
CHART_PX = 210
"""Height of a chart here: low, so that the whole answer is seen at once."""
COMPARE = "ui/pages/compare.py"


def show_plan(plan: Plan, scenario: Scenario) -> None:
    """The whole answer, the sentence first: the curve behind the charts is worked out when the rest can be read."""
    tell_unreadable(answers.measured_points().problems)
    with st.container(gap="xsmall"):
        headline(plan, scenario)
        if (shown := answers.verified(scenario, plan)) is not None:
            icon = ":material/verified:" if shown.verified else ":material/report:"
            st.markdown(f"{icon} {plain(answer.verified(shown))}.")
    tell_change_since_link(plan.answer.gpus, scenario)
    cards(plan)
    with st.container(gap="xsmall"):
        remarks(plan)
    curve = answers.curve(scenario, answers.ANSWER, plan.answer)
    limits = plan.question.sla.latencies
    for column, limit in zip(st.columns(max(1, len(limits))), limits, strict=False):
        with column:
            chart = latency_against_load(curve, plan.answer, limit, plan.question.headroom, ink())
            chart.plot.update_layout(height=CHART_PX)
            show(chart, limit.metric)
    alternatives(plan, scenario)
    left_out(plan.rejected)
    data_behind(_chart_data(plan, curve), "Latencies at rising load, as drawn in the charts")


def headline(plan: Plan, scenario: Scenario) -> None:
    """The sentence, the arithmetic, and how sure it is."""
    fleet = plan.answer
    st.title(plain(answer.sentence(plan)), anchor=False)
    st.markdown(plain(working(plan, scenario)))
    checked = "checked by simulation" if fleet.verified else "by formula"
    basis_line(fleet.basis, f"{answer.band(fleet)} · {fleet.candidate.source} · {checked}", answer.why_wide(fleet))


def working(plan: Plan, scenario: Scenario) -> str:
    """The arithmetic from the load to the GPUs, and on to servers where their size is known."""
    fleet = plan.answer
    per_server = scenario.gpus_per_server or usual_server(fleet.candidate.gpu)
    if per_server is None:
        return answer.working(plan)
    count = servers(fleet.replicas, fleet.candidate.gpus, per_server)
    return f"{answer.working(plan)} in {count_of(count, 'server')} of {per_server}"


def tell_change_since_link(gpus: int | None, scenario: Scenario) -> None:
    """Where a link brought an answer, or its data, other than today's: both, until the scenario is edited."""
    then, old = visit().linked_gpus, visit().linked_data
    if then is None or scenario != visit().linked:
        return
    new = answers.stamp(scenario)
    of_old, of_new = (f" ({stamp.words})" if stamp else "" for stamp in (old, new))
    cause = "with today's program" if old == new else "with today's data and program"
    if gpus is None:
        st.info(f"When this link was made{of_old} there was an answer; {cause}{of_new} there is none.")
    elif gpus != then:
        was = count_of(then, "GPU")
        st.info(f"When this link was made the answer was {was}{of_old}; {cause} it is {gpus:,}{of_new}.")
    elif old not in (None, new):
        st.caption(f"The data have changed since this link was created{of_old}; the answer is the same{of_new}.")


def cards(plan: Plan, when: str = "at the planned load") -> None:
    """GPUs, requests/s of each, and what is predicted `when` for each limit."""
    fleet, price = plan.answer, plan.question.price_per_gpu_hour
    with rows_of_cards(2 + len(plan.question.sla.limits)):
        cost = f"{significant(price * fleet.gpus)} per hour. " if price is not None else ""
        energy = answer.energy_line(plan)
        gpus_help = f"{cost}{GPUS_HELP} {energy}." if energy else f"{cost}{GPUS_HELP}"
        card("GPUs", f"{fleet.gpus:,}", f"{fleet.working:,} + {fleet.spare:,} replicas", gpus_help)
        owned = significant(plan.question.workload.rate_per_s / fleet.gpus)
        each = f"{significant(fleet.requests_per_s_per_replica)} per replica"
        card("Requests/s per GPU", significant(fleet.requests_per_s_per_gpu), each, PER_GPU_HELP.format(owned))
        limit_cards(fleet.predicted, plan.question.sla, when)


def remarks(plan: Plan, traced: TracePlan | None = None) -> None:
    """What binds and what a higher load would need; costs; then what the reader must know before buying."""
    fleet = plan.answer
    st.markdown(f"**Bound by** {plain(answer.binding(fleet, traced))}. {plain(answer.sensitivity(plan))}.")
    if means := answer.sizing_by_means(plan):
        st.markdown(f":material/lightbulb: {plain(means)}")
    for note in answer.on_all_requests(plan.question):
        st.caption(f":material/info: {plain(note)}.")
    for line in (answer.cost_line(plan), answer.peak(plan.question) if plan.question.price_per_gpu_hour else None):
        if line:
            st.caption(f":material/payments: {plain(line)}.")
    lengths = plan.question.workload.lengths
    measure = to_measure(fleet.candidate, lengths, fleet.in_flight, answers.measured_points().points)
    warnings(fleet.basis, fleet.warnings, measure)


def alternatives(plan: Plan, scenario: Scenario) -> None:
    """A row for each fleet that meets the SLA, and the working of the one that is picked."""
    table = pa.Table.from_pylist([_row(fleet, plan.question.price_per_gpu_hour) for fleet in plan.fleets])
    number = st.column_config.NumberColumn
    picked = st.dataframe(
        table,
        hide_index=True,
        row_height=ROW_PX,
        height=table_height(len(table)),
        key="alternatives",
        on_select="rerun",
        selection_mode="single-row",
        column_config={
            "GPU": st.column_config.TextColumn(help="The first row is the answer."),
            "GPUs": number(format="localized", help=GPUS_HELP),
            "Requests/s per GPU": number(format="%.3g", help="Planned for a working replica, over its GPUs."),
            "Room to the SLA": number(format="%.0f %%", help="Unused part of the binding limit, at the planned load."),
            "90 % band (GPUs)": st.column_config.TextColumn(
                help="The count at both ends of the uncertainty of the times."
            ),
        },
        alt=f"Configurations that meet the SLA, fewest GPUs first: {'; '.join(map(in_words, plan.fleets[:3]))}.",
    )
    for row in picked.selection.rows[:1]:
        if row < len(plan.fleets):  # a row picked before the table changed
            _picked(replace(plan, fleets=(plan.fleets[row],)), scenario)


def _picked(plan: Plan, scenario: Scenario) -> None:
    """The working of a row that was picked, and what to do with it; `plan` holds that fleet alone."""
    fleet = plan.answer
    with st.container(border=True):
        st.markdown(f"**{plain(fleet.candidate.label)}:** {plain(working(plan, scenario))}")
        st.caption(plain(f"{answer.band(fleet)} · bound by {answer.binding(fleet)} · {fleet.candidate.source}"))
        with st.container(horizontal=True, vertical_alignment="center"):
            st.button("Plan with this configuration", on_click=use_candidate, args=(fleet.candidate,))
            st.page_link(COMPARE, label="Compare", icon=":material/table_rows:")


def _row(fleet: Fleet, price_per_gpu_hour: float | None) -> dict[str, object]:
    candidate = fleet.candidate
    row: dict[str, object] = {
        "GPU": candidate.gpu,
        "Layout": str(candidate.layout),
        "Precision": candidate.precision,
        "Engine": spelt(candidate.engine),
        "GPUs": fleet.gpus,
        "Requests/s per GPU": fleet.requests_per_s_per_gpu,
        "Room to the SLA": 100 * fleet.room,
        "Binding limit": binding_name(fleet),
        "Basis": fleet.basis.capitalize(),
        "90 % band (GPUs)": gpus_band(fleet),
    }
    return row if price_per_gpu_hour is None else {**row, "Cost per hour": price_per_gpu_hour * fleet.gpus}


def _chart_data(plan: Plan, curve: LoadCurve) -> pa.Table:
    """A row for each load of the charts; infinite where the queue grows without end."""
    limits = plan.question.sla.latencies
    rows = [
        {"Load (requests/s per replica)": significant(rate)} | {limit_name(limit): said.said(limit) for limit in limits}
        for rate, said in zip(curve.rates_per_s, curve.predictions, strict=True)
    ]
    return pa.Table.from_pylist(rows)


def in_words(fleet: Fleet) -> str:
    """The count and the configuration."""
    return f"{count_of(fleet.gpus, 'GPU')} as {spelt(fleet.candidate.label)}"


WHAT_INSTEAD = "More GPUs do not help. What the limits would have to be:"
NOTHING_INSTEAD = "More GPUs do not help, and no value of a single limit is enough."


def show_no_plan(title: str, reason: str, rejected: tuple[Rejection, ...], scenario: Scenario) -> None:
    """Why there is no answer, what would have to change, and everything that was left out."""
    tell_unreadable(answers.measured_points().problems)
    st.title(plain(title), anchor=False)
    kinds = {rejection.kind for rejection in rejected}
    if "sla" in kinds:
        _nearest_miss(rejected)
        _relaxations(scenario)
    elif "memory" in kinds:
        _memory(rejected, scenario)
    else:
        st.markdown(plain(sentence_case(rejected[0].why if rejected else reason)))
        if "too_few" not in kinds:
            link_to_calibrate("Measure this model on your own server")
        widen(scenario)
    if rejected:
        left_out(rejected, expanded=True)


def show_no_fleet(found: answers.Reply[TracePlan] | answers.Reply[SessionPlan], scenario: Scenario) -> None:
    """Why no fleet serves a trace or sessions."""
    tell_unreadable(answers.measured_points().problems)
    title, sentence = why_none(scenario, Outcome(None, found.title, found.reason, found.rejected))
    st.title(plain(title), anchor=False)
    st.markdown(plain(sentence))
    if found.ways_out:
        ways = [f"- {plain(way)}." for way in found.ways_out if not way.endswith(text.NOT_ALONE)]
        st.markdown("\n".join([WHAT_INSTEAD, "", *ways]) if ways else NOTHING_INSTEAD)
    widen(scenario)
    if found.rejected:
        left_out(found.rejected, expanded=True)


def _nearest_miss(rejected: Sequence[Rejection]) -> None:
    nearest = next((rejection for rejection in rejected if rejection.nearest_s is not None), None)
    if nearest is None:
        return
    why = plain(f"{nearest.label}: {nearest.why}.")
    st.markdown(f"**Nearest miss:** {why}")


def _relaxations(scenario: Scenario) -> None:
    """The smallest change of each limit that works, and the choice widened where it was narrow."""
    ways = ways_out(scenario)
    found = ways.together
    alone = any(way.smallest or way.percentile for way in ways.alone)
    st.markdown(WHAT_INSTEAD if alone or found else NOTHING_INSTEAD)
    for number, way in enumerate(ways.alone if alone else ()):
        _relaxation(way, number)
    if found:
        least, half = (
            " and ".join(f"{limit_name(one)} {one.said(one.limit_s)}" for one in of)
            for of in (found.limits, found.roomy)
        )
        more = f" With {half}, they carry half of what they can." if found.roomy != found.limits else ""
        with st.container(border=True):
            st.markdown(
                f"**Together:** {least}, with {plain(found.candidate.label)}. No single limit is enough. At these "
                f"limits its replicas are nearly idle, so it takes very many of them.{more}"
            )
            if all(each.metric != "goodput" for each in found.limits):
                with st.container(horizontal=True):
                    if more:
                        st.button("Use the looser limits", on_click=use_limits, args=(found.roomy,))
                    st.button("Use the smallest limits", on_click=use_limits, args=(found.limits,))
    widen(scenario)


def widen(scenario: Scenario) -> None:
    """Where the form narrows the choice, a button that widens it."""
    if scenario.precisions or scenario.choice.asked or scenario.engines:
        st.button(
            "Allow any precision, TP and engine", on_click=allow_any, help="The form now narrows what is compared."
        )


def _relaxation(way: Relaxation, number: int) -> None:
    """One limit: from which value on it works, alone, and at which lower percentile it is kept as it is."""
    name, asked = limit_name(way.limit), way.limit.said(way.limit.limit_s)
    if way.smallest is None and way.percentile is None:
        st.markdown(f"**{name}:** {text.NOT_ALONE}.")
        return
    with st.container(border=True):
        if way.smallest and way.candidate and way.roomy and way.smallest.limit_s > way.limit.limit_s:
            _looser(way.smallest, way.roomy, way.candidate, asked)
        if way.percentile and way.percentile_candidate:
            lower = _percentile(way.percentile)
            st.markdown(f"**{name}** as {lower}: {plain(way.percentile_candidate.label)} keeps {asked} at {lower}.")
        with st.container(horizontal=True):
            _offers(way, number)


def _percentile(limit: Limit) -> str:
    return f"{limit.percentile:g} %" if limit.metric == "goodput" else f"p{limit.percentile}"


def _looser(smallest: Limit, roomy: Limit, candidate: Candidate, asked: str) -> None:
    least, half = smallest.said(smallest.limit_s), roomy.said(roomy.limit_s)
    more = f" With {half}, they carry half of what they can." if roomy != smallest else ""
    st.markdown(
        f"**{limit_name(smallest)}:** {least} or more (by simulation) instead of {asked}, with "
        f"{plain(candidate.label)}. At {least} its replicas are nearly idle, so it takes very many of them.{more}"
    )


def _offers(way: Relaxation, number: int) -> None:
    """A button for each value that would do."""
    offers = {f"Use {limit.said(limit.limit_s)}": limit for limit in (way.roomy, way.smallest) if limit}
    if way.limit.metric == "goodput" or (way.smallest and way.smallest.limit_s <= way.limit.limit_s):
        offers = {}  # the limits that goodput judges by stand in rows of their own
    if way.percentile:
        offers[f"Use {_percentile(way.percentile)}"] = way.percentile
    for label, limit in offers.items():
        st.button(label, key=f"use_{number}_{label}", on_click=use_limits, args=((limit,),))


def _memory(rejected: tuple[Rejection, ...], scenario: Scenario) -> None:
    """For each GPU type its least lacking configuration, and what fits: a larger TP, a smaller precision, elsewhere."""
    lacking: dict[str, Misfit] = {}
    for misfit in what_fits(scenario.model, scenario.lengths, rejected):
        lacking.setdefault(misfit.gpu, misfit)
    fitting: dict[str, Candidate] = {}
    for misfit in lacking.values():
        ways = [way for way in (misfit.larger, misfit.smaller) if way is not None]
        fitting |= {way.label: way for way in ways}
        instead = " or ".join(plain(way.label) for way in ways) or "nothing on this GPU within one server"
        st.markdown(
            f"**{plain(f'{misfit.gpu} {misfit.layout} {misfit.precision}')}** lacks "
            f"{misfit.missing_bytes / 1e9:,.1f} GB on each GPU. What fits: {instead}."
        )
    other = fits_elsewhere(scenario.model, scenario.lengths, tuple(lacking))
    if other is not None:
        fitting[other.label] = other
        st.markdown(f"The smallest configuration that fits on another GPU: {plain(other.label)}.")
    with st.container(horizontal=True):
        for label, candidate in fitting.items():
            st.button(plain(f"Use {label}"), on_click=use_candidate, args=(candidate,))


OPENS_THE_SAME = "This link opens the same question and shows today's answer."


def export(query: Mapping[str, str], says: str = OPENS_THE_SAME) -> DeltaGenerator:
    """A button that opens the link, of which it `says` what it carries; the space below it, for files of the answer."""
    with st.popover("Export", icon=":material/ios_share:"):
        st.caption(says)
        st.code(address(query), language=None, wrap_lines=True, height=130)
        return st.container()


def link_to_report(label: str = "Report to share or print") -> None:
    """To the page that makes files of the answer to the form's question."""
    st.page_link("ui/pages/report.py", label=label, icon=":material/description:")


def deployment_files(plan: Plan) -> None:
    """A download of the files that start the plan's servers, made when it is pressed."""
    st.download_button(
        "Deployment files (ZIP)",
        lambda: archive(deployment_of(answer.as_json(plan))),
        file_name=f"{kubernetes_name(plan.question.model)}-deployment.zip",
        mime="application/zip",
        on_click="ignore",
        icon=":material/deployed_code:",
        key=f"deployment_{hash(plan.question)}",  # as on the page Report: a button for each question
        help="Command lines of vLLM, SGLang and TensorRT-LLM, Helm values, KServe, Dynamo, KEDA and HPA, with the "
        "limits that were simulated.",
    )


def address(query: Mapping[str, str]) -> str:
    """The page's address with these parameters; only the parameters where the address is not known."""
    return f"{(st.context.url or '').partition('?')[0]}?{urlencode(query)}"


def show_prices(plan: Plan, prices: Sequence[GoodputPrice], scenario: Scenario) -> None:
    """The table, and what the step to the highest goodput takes."""
    tell_unreadable(answers.measured_points().problems)
    fleet = plan.answer
    with st.container(gap="xsmall"):
        st.title(plain(text.goodput_sentence(prices)), anchor=False)
        st.markdown(plain(text.GOODPUT_JUDGED))
        basis_line(fleet.basis, f"{fleet.candidate.label} · {fleet.candidate.source}")
    tell_change_since_link(fleet.gpus, scenario)
    st.dataframe(
        pd.DataFrame(goodput_rows(prices)),
        hide_index=True,
        row_height=ROW_PX,
        column_config={
            "Goodput": st.column_config.TextColumn(help="Share of all requests that meet every limit at once."),
            "GPUs": st.column_config.TextColumn(alignment="right"),
            "More than the row above": st.column_config.TextColumn(
                help="Extra GPUs that the better service takes.", alignment="right"
            ),
            "Requests/s per GPU": st.column_config.TextColumn(alignment="right"),
        },
        alt=f"{text.GOODPUT_PRICE}: {text.goodput_sentence(prices)}.",
    )
    warnings(fleet.basis, fleet.warnings)


def goodput_rows(prices: Sequence[GoodputPrice]) -> list[dict[str, str]]:
    """A row for each goodput, as read."""
    before: int | None = None
    found = []
    for price in prices:
        fleet = price.fleet
        more = "" if before is None or fleet is None else f"+{fleet.gpus - before:,}"
        found.append(
            {
                "Goodput": f"{price.percent:g} %",
                "GPUs": "SLA fails" if fleet is None else f"{fleet.gpus:,}",
                "90 % band (GPUs)": "" if fleet is None else gpus_band(fleet),
                "More than the row above": more,
                "Replicas": "" if fleet is None else f"{fleet.working:,} + {fleet.spare:,} spare",
                "Requests/s per GPU": "" if fleet is None else significant(fleet.requests_per_s_per_gpu),
            }
        )
        before = fleet.gpus if fleet else None
    return found
