"""Sizing by the usual method: the best measured point within a limit on a mean, beside our planner's answer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pandas as pd
import streamlit as st

from learn import course_form
from learn.course import (
    ApiPrice,
    CourseSizing,
    Goal,
    ServerPrice,
    best,
    example,
    peak_from_mean,
    per_token,
    size,
    tco,
    throughput,
)
from learn.course.beside import Terms, compared, ours
from learn.course.corrections import LIMITS_OF_THE_METHOD, corrections
from learn.course_form import Asked
from sizing.errors import SizingError
from sizing.numbers import count_of, milliseconds, significant
from sizing.plans import Plan
from sizing.points import Point
from ui import answers
from ui.link import PREFIX
from ui.scenario import Scenario
from ui.visit import visit
from ui.words import plain, sentence_case

Groups = Mapping[str, Sequence[Point]]


def page(scenario: Scenario) -> None:
    """The whole view. Our planner's answer uses the headroom and spares of the form on the left."""
    head = st.container()
    groups = grouped([*_published(), *answers.measured_points().points])
    if not groups:
        head.title("Nothing has been measured yet", anchor=False)
        head.markdown("This method chooses among measured points. The Calibrate page says how to measure a server.")
        return
    key = PREFIX + "course_points"
    if st.session_state.get(key) not in groups:
        st.session_state[key] = next(iter(groups))
    chosen = st.selectbox("Measured points to choose from", list(groups), key=key)
    visit().shown[key] = chosen
    points, asked = groups[chosen], course_form.draw()
    sizing = _answer(points, asked, head)
    with head:
        beside = st.container()
    _table(points, asked)
    _errors()
    if sizing:
        with beside:  # a fit may take seconds: the rest of the page does not wait for it
            _beside(points, sizing, goal_of(asked), Terms(headroom=scenario.headroom, spare=scenario.spare))


def _published() -> Sequence[Point]:
    try:
        return example.measured()
    except SizingError as error:
        st.warning(plain(str(error)), title="The course's measurements could not be read")
        return ()


def grouped(points: Sequence[Point]) -> Groups:
    """Usable closed-loop points by model, GPU and lengths, from which this method chooses."""
    groups: dict[str, list[Point]] = {}
    for point in points:
        if point.closed and not point.void:
            name = f"{point.model} on {point.gpu}, {point.isl:g} in, {point.osl:g} out"
            groups.setdefault(name, []).append(point)
    return groups


def peak_of(asked: Asked) -> float:
    """Requests/s at the peak."""
    if asked.peak_factor:
        return max(asked.peak_factor, 1.0) * asked.mean_per_s
    return max(float(peak_from_mean(asked.mean_per_s)), asked.mean_per_s)


def goal_of(asked: Asked) -> Goal:
    """The limit."""
    return Goal.parse(asked.metric, f"{asked.statistic}:{asked.limit_ms}ms")  # type: ignore[arg-type]


def _answer(points: Sequence[Point], asked: Asked, head: st.delta_generator.DeltaGenerator) -> CourseSizing | None:
    """The method's answer on the page; None, with advice on the page, where no point meets the limit."""
    goal = goal_of(asked)
    try:
        sizing = size(best(points, [goal]), peak_of(asked), asked.gpus_per_server)
    except SizingError as error:
        head.title("No measured point keeps this limit", anchor=False)
        head.markdown(f"{plain(sentence_case(str(error)))}. Loosen the limit, or measure a lower concurrency.")
        return None
    head.title(f"{sizing.gpus:,} GPUs by the course's method", anchor=False)
    head.markdown(plain(f"{sizing.sentence}. {sentence_case(str(goal))}: {sizing.throughput.label}."))
    _cards(sizing)
    _cost(sizing, asked)
    return sizing


def _beside(points: Sequence[Point], sizing: CourseSizing, goal: Goal, terms: Terms) -> None:
    with st.spinner("Fitting a law to these points for our planner's answer…"):
        plan = _ours(repr((points, sizing, goal, terms)), points, sizing, goal, terms)
    if isinstance(plan, str):
        st.info(plain(f"{plan}."), title="Our planner has no answer from these points")
        return
    st.info(plain(f"{compared(sizing, plan, terms)}."), title="Compared with our planner")


@st.cache_resource(max_entries=64, show_spinner=False)
def _ours(key: str, _points: Sequence[Point], _sizing: CourseSizing, _goal: Goal, _terms: Terms) -> Plan | str:
    """Our planner's answer, or why there is none."""
    try:
        return ours(_points, _sizing, [_goal], _terms)
    except SizingError as error:
        return str(error)


def _cards(sizing: CourseSizing) -> None:
    measured, gpus = sizing.throughput, sizing.gpus_per_server
    point = measured.point
    cards = [
        ("Requests/s, instance", significant(measured.per_instance, 4), "as measured"),
        ("Requests/s, GPU", significant(measured.per_gpu, 4), "used for sizing"),
        (
            f"Requests/s, {gpus} GPUs",
            significant(measured.per_gpus(gpus)),
            f"{significant(sizing.servers, 2)} servers",
        ),
        (f"Concurrency, {gpus} GPUs", significant(measured.concurrency_per_gpus(gpus)), "requests in flight"),
    ]
    cards += [
        (f"Mean {name.upper()}", milliseconds(value), "measured")
        for name in ("ttft", "e2e")
        if (value := getattr(point, f"{name}_mean_s")) is not None
    ]
    with st.grid("auto", min_column_width=134):
        for label, value, note in cards:
            st.metric(label, value, note, delta_color="off", delta_arrow="off", border=True)


def _cost(sizing: CourseSizing, asked: Asked) -> None:
    price = ServerPrice(asked.server_price, asked.years, asked.hosting, asked.licence, asked.gpus_per_server)
    point, api = sizing.throughput.point, ApiPrice(asked.api_in, asked.api_out)
    rows = []
    for name, servers in ((count_of(sizing.whole_servers, "whole server"), sizing.whole_servers), *_fraction(sizing)):
        cost = tco(servers, price, sizing.peak_per_s, asked.mean_per_s)
        per_in, per_out = per_token(cost.per_1000_at_mean, point.isl, point.osl, asked.api_out / asked.api_in)
        rows.append(
            _cost_row(name, f"{cost.per_year:,.0f}", cost.per_1000_at_mean, cost.per_1000_at_peak, per_in, per_out)
        )
    per_1000 = api.per_1000_requests(point.isl, point.osl)
    rows.append(_cost_row("An API", "—", per_1000, per_1000, api.per_million_in, api.per_million_out))
    st.subheader("What it costs", anchor=False)
    st.table(pd.DataFrame(rows), hide_index=True, border="horizontal", alt="Cost per year, 1,000 requests and tokens")
    st.caption(
        plain(
            f"A server costs {price.per_year:,.0f} a year. Costs of tokens are at the mean load, split in the ratio of "
            "the API's prices."
        )
    )


def _fraction(sizing: CourseSizing) -> list[tuple[str, float]]:
    if math.isclose(sizing.servers, sizing.whole_servers):
        return []
    return [(f"{significant(sizing.servers, 2)} servers", sizing.servers)]


def _cost_row(name: str, per_year: str, mean: float, peak: float, per_in: float, per_out: float) -> dict[str, str]:
    return {
        "": plain(name),
        "Per year": per_year,
        "Per 1,000 requests, mean load": plain(significant(mean)),
        "If always at the peak": plain(significant(peak)),
        "Per million tokens in": plain(significant(per_in)),
        "Per million tokens out": plain(significant(per_out)),
    }


def _table(points: Sequence[Point], asked: Asked) -> None:
    """Every point with its six parameters."""
    gpus, goal = asked.gpus_per_server, goal_of(asked)
    measured = sorted(map(throughput, points), key=lambda each: (-each.per_gpu, each.concurrency))
    rows = [
        {
            "Model": each.point.model,
            "Precision": each.point.precision,
            "ISL": each.point.isl,
            "OSL": each.point.osl,
            "Concurrency": each.concurrency,
            "TP": each.point.tp,
            "GPU": each.point.gpu,
            "Requests/s per GPU": float(significant(each.per_gpu, 4).replace(",", "")),
            f"Requests/s per {gpus} GPUs": float(significant(each.per_gpus(gpus)).replace(",", "")),
            f"Concurrency per {gpus} GPUs": each.concurrency_per_gpus(gpus),
            "Mean TTFT (ms)": _ms(each.point.ttft_mean_s),
            "Mean E2E (ms)": _ms(each.point.e2e_mean_s),
            "Limit": "kept" if goal.keeps(each.point) else "missed",
        }
        for each in measured
    ]
    with st.expander("Measured points, each with its six parameters"):
        st.dataframe(pd.DataFrame(rows), hide_index=True, alt="Measured points by requests/s per GPU")


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000 * seconds, 1)


def _errors() -> None:
    st.subheader("Why the two answers differ", anchor=False)
    with st.container(width=860):
        st.markdown("\n".join(f"- {line}" for line in LIMITS_OF_THE_METHOD))
    with st.expander("Where the course's own figures are off"):
        rows = [
            {"Figure": plain(one.what), "Course": plain(one.course), "Ours": plain(one.ours), "Why": plain(one.why)}
            for one in corrections()
        ]
        st.table(pd.DataFrame(rows), hide_index=True, border="horizontal", alt="Figures of the course, ours, and why")
