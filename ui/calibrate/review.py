"""Before points are used: what the law fitted to them says of each, which are void, which stand apart."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import pandas as pd
import streamlit as st

from sizing.curves import Point, doubts
from sizing.fitting import Fit, PointError
from sizing.numbers import percent, significant
from ui.calibrating import Trial, trials
from ui.charts.parity import QUANTITIES, parity
from ui.look import ink, show
from ui.words import plain, sentence_case

POOR = 2.0
"""Mean squared error, in errors granted to the measurement, above which the law does not fit."""
UNFORESEEN = 0.2
"""Median error at points left out, above which there are too few of them."""


def review(points: Sequence[Point], key: str) -> None:
    """Everything that is to be seen before `points` are accepted; `key` tells its charts from others on the page."""
    with st.spinner("Fitting the law of these points…"):
        found = trials(points)
    for number, trial in enumerate(found):
        if len(found) > 1:
            st.subheader(plain(trial.deployment.label), anchor=False)
        else:
            st.caption(plain(trial.deployment.label))
        _law(trial, f"{key}_{number}")
        _table(trial)


def _law(trial: Trial, key: str) -> None:
    if len(trial.void) == len(trial.points):
        st.warning("Every point is void: accepted or not, no answer will rest on them. Measure again.")
        return
    if trial.fitted is None:
        st.info(f"No law can be fitted to these points alone: {plain(trial.why)}.".replace("..", "."))
        return
    fitted = trial.fitted
    odd = [distrust.point for distrust in fitted.distrusted]
    places = frozenset(place for place, error in enumerate(fitted.errors) if error.point in odd)
    st.markdown(_verdict(fitted))
    charts = [parity(quantity, fitted.errors, places, ink()) for quantity in QUANTITIES]
    grid = st.grid("auto", min_column_width=280)
    for number, chart in enumerate(chart for chart in charts if chart is not None):
        with grid:
            show(chart, f"{key}_{number}")
    for distrust in fitted.distrusted:
        st.warning(plain(sentence_case(str(distrust))), icon=":material/help:")
    told = set(map(str, fitted.distrusted))
    for warning in fitted.warnings:
        if warning not in told:
            st.caption(f":material/warning: {plain(sentence_case(warning))}")


def _verdict(fitted: Fit) -> str:
    """How well the law gives the points back, in a sentence."""
    odd = {distrust.point for distrust in fitted.distrusted}
    trusted = [error for error in fitted.errors if error.point not in odd]
    worst = max(abs(error.requests_per_s_error) for error in trusted)
    every = f"{len(trusted)} of them, {len(odd)} being distrusted" if odd else "every one"
    unseen = (
        f", {percent(fitted.leave_one_out, 1)} in the median at points left out"
        if isfinite(fitted.leave_one_out)
        else ""
    )
    chi2 = fitted.chi2_per_point
    if chi2 > POOR:
        fits = "**the law does not fit well**"
    elif isfinite(fitted.leave_one_out) and fitted.leave_one_out > UNFORESEEN:
        fits = "it fits, but **does not foretell a point it has not seen: measure more levels**"
    else:
        fits = "the law fits"
    return (
        f"Fitted to {len(fitted.errors)} points: requests/s within {percent(worst, 1)} at {every}{unseen}. "
        f"χ² per point {significant(chi2)} (1 is perfect, above 2 poor): {fits}."
    )


def _table(trial: Trial) -> None:
    errors = {} if trial.fitted is None else {error.point: error for error in trial.fitted.errors}
    with st.expander(f"Data of the {len(trial.points)} points", expanded=trial.fitted is None):
        table = pd.DataFrame([_row(point, errors.get(point)) for point in trial.points])
        told = [column for column in table if table[column].any()]
        st.dataframe(table[told], hide_index=True, alt="The points with their verdicts and the law's errors")
    if trial.void:
        with st.expander(f"{len(trial.void)} void: kept, never fitted", icon=":material/block:"):
            for point in trial.void:
                st.caption(f"**{plain(_level(point))}: {plain(_verdict_of(point))}.** {plain(point.notes)}")


def _row(point: Point, error: PointError | None) -> dict[str, str]:
    """A point as text: what is unknown stays empty."""
    numbers = {
        "Requests/s": point.requests_per_s,
        "TTFT mean (ms)": _ms(point.ttft_mean_s),
        "ITL mean (ms)": _ms(point.itl_mean_s),
        "E2E mean (s)": point.e2e_mean_s,
        "Law's error in requests/s (%)": error and 100 * error.requests_per_s_error,
        "Law's error in TTFT (%)": error and 100 * error.ttft_error,
        "Law's error in ITL (%)": error and 100 * error.itl_error,
    }
    told = {
        name: significant(value) if value is not None and isfinite(value) else "" for name, value in numbers.items()
    }
    return {"Level": _level(point), "Verdict": _verdict_of(point), **told, "Doubts": "; ".join(doubts(point))}


def _level(point: Point) -> str:
    return f"{point.isl:,g} in, {point.osl:,g} out, {point.load_label}"


def _verdict_of(point: Point) -> str:
    """For people: steady, not judged, or void with its reason."""
    words = point.verdict.replace("_", " ")
    return f"void: {words}" if point.void else words or "not judged"


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000
