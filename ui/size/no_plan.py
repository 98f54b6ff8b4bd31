"""What is said where there is no answer, and the way out: never a GPU count."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from sizing.fits import Misfit
from sizing.numbers import milliseconds
from sizing.plan import Candidate, Rejection
from sizing.relax import Relaxation
from sizing.workload import Limit
from ui.scenario import Scenario
from ui.size.asks import fits_elsewhere, ways_out, what_fits
from ui.size.parts import left_out, link_to_calibrate, tell_unreadable_sources
from ui.values import allow_any, use_candidate, use_limits
from ui.words import limit_name, plain, room, sentence_case


def show_no_plan(title: str, reason: str, rejected: tuple[Rejection, ...], scenario: Scenario) -> None:
    """Why there is no answer, what would have to change, and everything that was left out."""
    tell_unreadable_sources()
    st.title(plain(title), anchor=False)
    kinds = {rejection.kind for rejection in rejected}
    if "sla" in kinds:
        _nearest_miss(rejected)
        _relaxations(scenario)
    elif "memory" in kinds:
        _memory(rejected, scenario)
    else:
        st.markdown(plain(sentence_case(rejected[0].why if rejected else reason)))
        link_to_calibrate("Measure this model on a server of yours")
        _widen(scenario)
    if rejected:
        left_out(rejected, expanded=True)


def _nearest_miss(rejected: Sequence[Rejection]) -> None:
    nearest = next((rejection for rejection in rejected if rejection.nearest_s is not None), None)
    if nearest is None or nearest.limit is None or nearest.nearest_s is None:
        return
    idle = "" if nearest.why.startswith("unsteady") else " even without load"
    st.markdown(
        f"**Nearest miss:** {plain(f'{nearest.gpu} TP{nearest.tp} {nearest.precision}')}: "
        f"{limit_name(nearest.limit)} is {milliseconds(nearest.nearest_s)}{idle}, "
        f"{room(nearest.nearest_s, nearest.limit)}. More GPUs do not help; this does:"
    )


def _relaxations(scenario: Scenario) -> None:
    """The smallest change of each limit that works, and the choice widened where it was narrow."""
    ways = ways_out(scenario)
    for number, way in enumerate(ways.alone):
        _relaxation(way, number)
    if all(way.smallest is None for way in ways.alone) and ways.together and len(ways.together.limits) > 1:
        loosened = " and ".join(f"{limit_name(each)} {milliseconds(each.limit_s)}" for each in ways.together.limits)
        with st.container(border=True):
            st.markdown(
                f"**Together:** {loosened}, with {plain(ways.together.candidate.label)}. No limit alone will do."
            )
            st.button("Use these limits", on_click=use_limits, args=(ways.together.limits,))
    _widen(scenario)


def _widen(scenario: Scenario) -> None:
    """Where the form narrows the choice, a button that widens it."""
    if scenario.precisions or scenario.tps:
        st.button("Allow any precision and TP", on_click=allow_any, help="The form limits what is compared.")


def _relaxation(way: Relaxation, number: int) -> None:
    """One limit: from which value on it works, alone, and at which lower percentile it is kept as it is."""
    name, asked = limit_name(way.limit), milliseconds(way.limit.limit_s)
    if way.smallest is None and way.percentile is None:
        st.markdown(f"**{name}:** no value helps alone, because another limit is missed too.")
        return
    with st.container(border=True):
        if way.smallest and way.candidate and way.roomy and way.smallest.limit_s > way.limit.limit_s:
            _looser(way.smallest, way.roomy, way.candidate, asked)
        if way.percentile and way.percentile_candidate:
            lower = f"p{way.percentile.percentile}"
            st.markdown(f"**{name}** as {lower}: {plain(way.percentile_candidate.label)} keeps {asked} at {lower}.")
        with st.container(horizontal=True):
            _offers(way, number)


def _looser(smallest: Limit, roomy: Limit, candidate: Candidate, asked: str) -> None:
    least, half = milliseconds(smallest.limit_s), milliseconds(roomy.limit_s)
    more = f" With {half} they carry half of what they can." if roomy != smallest else ""
    st.markdown(
        f"**{limit_name(smallest)}:** {least} or more (by simulation) instead of {asked}, with "
        f"{plain(candidate.label)}. At {least} its replicas are all but idle, so it takes very many of them.{more}"
    )


def _offers(way: Relaxation, number: int) -> None:
    """A button for each value that would do."""
    offers = {f"Use {milliseconds(limit.limit_s)}": limit for limit in (way.roomy, way.smallest) if limit}
    if way.smallest and way.smallest.limit_s <= way.limit.limit_s:
        offers = {}
    if way.percentile:
        offers[f"Use p{way.percentile.percentile}"] = way.percentile
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
            f"**{plain(f'{misfit.gpu} TP{misfit.tp} {misfit.precision}')}** lacks {misfit.missing_bytes / 1e9:,.1f} GB "
            f"on each GPU. What fits: {instead}."
        )
    other = fits_elsewhere(scenario.model, scenario.lengths, tuple(lacking))
    if other is not None:
        fitting[other.label] = other
        st.markdown(f"The smallest that fits on another GPU: {plain(other.label)}.")
    with st.container(horizontal=True):
        for label, candidate in fitting.items():
            st.button(plain(f"Use {label}"), on_click=use_candidate, args=(candidate,))
