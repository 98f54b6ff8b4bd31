"""Compare: which GPU, layout, precision and engine, one fleet or two pools?"""

import streamlit as st

from sizing.numbers import gpus as in_words
from sizing.plans import Plan
from ui import answers
from ui.scenario import Scenario
from ui.values import allow_any
from ui.views import compare
from ui.visit import chosen, visit
from ui.words import plain, tell, tell_unreadable

VIEWS = {"table": "Table", "matrix": "Matrix by replica size"}
POOLS = {"off": "One fleet", "on": "Disaggregated prefill and decode"}
COSTS = {"on": "With cost", "off": "Without cost"}


POOLS_HELP = (
    "Disaggregated serving: one pool of replicas runs prefill and another decode, each in the layout that suits it; "
    "the KV cache is transferred between them."
)


def page(scenario: Scenario) -> None:
    """All configurations of the scenario, those picked side by side, and what was left out."""
    if scenario.missing:
        tell(scenario, None)
        return
    with st.spinner("Computing the number of GPUs and verifying it by simulation…"):
        outcome = answers.outcome(scenario)
    tell_unreadable(answers.measured_points().problems)
    plan = outcome.plan
    if plan is None:
        tell(scenario, outcome)
        _open_the_choice(scenario)
        if outcome.rejected:
            compare.draw_left_out(outcome.rejected, expanded=True)
        return
    st.title(plain(_title(plan)), anchor=False)
    _compare(scenario, plan)
    compare.draw_left_out(plan.rejected)


def _title(plan: Plan) -> str:
    fleet, count = plan.answer, len(plan.fleets)
    if count == 1:
        return f"One configuration meets this SLA: {fleet.candidate.label} with {in_words(fleet.gpus)}"
    best = "costs least" if plan.question.prices else "needs the fewest GPUs"
    return f"{fleet.candidate.label} {best}, {fleet.gpus:,}: best of {count} that meet this SLA"


def _compare(scenario: Scenario, plan: Plan) -> None:
    fleets = answers.named(plan.fleets)
    picked = compare.current(fleets)
    priced = any(plan.question.price_of(fleet.candidate.gpu) is not None for fleet in plan.fleets)
    with st.container(horizontal=True, vertical_alignment="center"):
        shown = chosen("View", VIEWS, "view")
        with_cost = priced and chosen("Cost", COSTS, "cost") == "on"
        st.download_button(
            "Download as CSV",
            lambda: compare.as_csv(plan, fleets),
            file_name="configurations.csv",
            mime="text/csv",
            on_click="ignore",
            icon=":material/download:",
            key=f"configurations_{hash(scenario)}",  # as on the page Report: a button for each question
            help="Every configuration, including those left out, with all columns.",
        )
    if shown == "table":
        compare.draw_table(plan, fleets, answers.small_curves(scenario, plan), picked, with_cost)
    else:
        compare.draw_matrix(plan)
    if not priced:
        st.caption("Enter a price per GPU-hour in the form (under More) to compare costs.")
    _open_the_choice(scenario)
    if chosen("Pools", POOLS, "pools", help=POOLS_HELP) == "on":
        with st.spinner("Sizing a prefill and a decode pool, in every layout…"):
            found = answers.pools(scenario)
        compare.draw_pools(found, plan, scenario.lengths)
    st.subheader("Side by side", anchor=False)
    compare.draw_list(fleets, picked)
    compare.draw_side_by_side(plan.question, {name: fleets[name] for name in picked}, with_cost)


def _open_the_choice(scenario: Scenario) -> None:
    """Where the form allows some layouts, precisions or engines only: a way back to all of them."""
    if scenario.choice.asked or scenario.precisions or scenario.engines:
        st.button(
            "Compare every layout, precision and engine",
            on_click=allow_any,
            icon=":material/open_in_full:",
            help="Clears TP, layout, precision and engine in the form, so that all of them are compared.",
        )


page(visit().scenario)
