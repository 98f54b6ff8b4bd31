"""Throughput against interactivity: what each configuration gives as users get faster or slower answers."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from sizing.frontier import INTERACTIVITY, THROUGHPUT, Measure, Speed, resampled
from sizing.numbers import significant
from sizing.plan import Plan
from ui import curving, view
from ui.answers import Outcome
from ui.charts.interactivity import Spot, front_of, spot_of, spots_of, throughput_against_interactivity
from ui.look import ink, show
from ui.no_plan import tell, why_none
from ui.scenario import Scenario
from ui.words import plain

NO_PRICE = "Type a price per GPU-hour in the form (under More) to draw cost per million output tokens."


def draw(scenario: Scenario, outcome: Outcome) -> None:
    """All candidates at rising load, the Pareto front bold; also where none of them meets the SLA."""
    plan, price = outcome.plan, scenario.price_per_gpu_hour
    options = {name: measure.title for name, measure in THROUGHPUT.items() if name != "cost" or price is not None}
    measure = THROUGHPUT[view.chosen("Throughput as", options, "against", help=HELP)]
    with st.spinner("Asking every configuration at rising load…"):
        curves = curving.speeds(scenario, plan)
    drawn = [spots for spots in spots_of(curves, measure, scenario.osl, price or 0.0) if spots]
    if not drawn:
        _tell_nothing(scenario, outcome)
        return
    best = front_of(spots_of(resampled(curves), measure, scenario.osl, price or 0.0), measure)
    st.title(plain(_title(best, measure)), anchor=False)
    if plan is None:
        st.markdown(plain(why_none(scenario, outcome)[1]))
    planned = _planned(plan, measure, scenario, price)
    show(throughput_against_interactivity(drawn, best, planned, measure, ink()), "front")
    st.caption(
        f"{len(drawn)} configurations at rising load by formula, faint. Bold: the front, where nothing "
        f"{measure.better} can be had at that interactivity; solid where the SLA holds, dotted where it does not. "
        "Interactivity is 1 / mean ITL. Per GPU: of a working replica, without spares and headroom, which the answer "
        "counts as well."
    )
    if price is None:
        st.caption(NO_PRICE)
    _best_at(best, measure)
    _table(drawn, best, measure)


def _tell_nothing(scenario: Scenario, outcome: Outcome) -> None:
    if outcome.plan is None:
        tell(scenario, outcome)
        return
    st.title("No curve to draw", anchor=False)
    st.markdown("Outputs of one token have no gaps between tokens, hence no interactivity: ask for longer outputs.")


HELP = "What a GPU gives, against how fast each user reads."


def _title(best: Sequence[Spot], measure: Measure) -> str:
    held = [spot for spot in best if spot.meets]
    if not held:
        return "No configuration on the front keeps this SLA"
    word, pick = ("Most", max) if measure.better == "higher" else ("Lowest", min)
    top = pick(held, key=lambda spot: spot.y)
    return f"{word} {lower_first(measure.title)} under this SLA: {significant(top.y)} with {top.name}"


def lower_first(text: str) -> str:
    """For the middle of a sentence."""
    return text[:1].lower() + text[1:]


def _planned(plan: Plan | None, measure: Measure, scenario: Scenario, price: float | None) -> Spot | None:
    """The answer at its planned load."""
    if plan is None or not plan.answer.predicted.itl.mean_s > 0:
        return None
    fleet = plan.answer
    speed = Speed(fleet.load_per_s, fleet.load_per_s / fleet.candidate.gpus, 1 / fleet.predicted.itl.mean_s, meets=True)
    return spot_of(fleet.candidate.label, speed, measure, scenario.osl, price or 0.0)


def _best_at(best: Sequence[Spot], measure: Measure) -> None:
    """The front at an interactivity of one's choice."""
    fastest = best[-1].x
    wanted = st.number_input(
        "Interactivity at least (output tokens/s per user)",
        min_value=0.0,
        value=float(f"{fastest / 2:.2g}"),
        format="%g",
        key="interactivity",
        width=320,
        help="The best configuration that gives every user at least this many output tokens/s on average.",
    )
    spot = next((spot for spot in best if spot.x >= wanted), None)
    if spot is None:
        st.markdown(f"No configuration gives more than {significant(fastest)} output tokens/s per user.")
        return
    sla = "The SLA holds there." if spot.meets else "The SLA does not hold there."
    st.markdown(
        f"Best at {significant(wanted)} or more: **{plain(spot.name)}**, {significant(spot.y)} {measure.unit}, "
        f"at {significant(spot.requests_per_s)} requests/s per replica. {sla}"
    )


def _table(drawn: Sequence[Sequence[Spot]], best: Sequence[Spot], measure: Measure) -> None:
    with st.expander("Data behind the chart"):
        on_front = set(best)
        rows = [
            {
                "Configuration": spot.name,
                "Load (requests/s per replica)": significant(spot.requests_per_s),
                INTERACTIVITY.title: significant(spot.x),
                measure.title: significant(spot.y),
                "SLA": "holds" if spot.meets else "missed",
                "On the front": "yes" if spot in on_front else "no",
            }
            for spots in drawn
            for spot in spots
        ]
        st.dataframe(pd.DataFrame(rows), hide_index=True, alt="Every configuration at every load drawn")
