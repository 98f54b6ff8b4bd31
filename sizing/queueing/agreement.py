"""Formula against simulation for one plan: a cross-check whose disagreement the reader should know of."""

from __future__ import annotations

import math

from sizing.numbers import milliseconds, percent
from sizing.prediction import Prediction
from sizing.workload import METRICS, metric_name

TOLERANCE = 0.10
"""Relative difference worth a warning: beyond nine in ten of the errors of either method at moderate load."""

COMPARED = (50, 90, 95, 99)


def disagreement(analytic: Prediction, simulated: Prediction) -> str | None:
    """One line naming the percentile on which the two differ most, with both values, if by more than `TOLERANCE`.

    None when they agree, and for metrics that are not defined (no ITL with one output token) or not known (gaps).
    Relative to the simulated value. If only one of them finds the load saturated, that is the disagreement.
    """
    if analytic.saturated != simulated.saturated:
        which, other = ("formula", "simulation") if analytic.saturated else ("simulation", "formula")
        return f"the {which} finds the load saturated, the {other} does not: the load is at the edge of what is stable"
    if analytic.saturated:
        return None
    worst, line = TOLERANCE, None
    for metric in METRICS:
        for percentile in COMPARED:
            found_s, true_s = analytic.of(metric).at(percentile), simulated.of(metric).at(percentile)
            apart = abs(found_s / true_s - 1) if true_s > 0 else math.nan
            if apart > worst:
                worst = apart
                line = (
                    f"formula and simulation differ by {percent(apart)} on p{percentile} {metric_name(metric)}: "
                    f"{milliseconds(found_s)} against {milliseconds(true_s)}; the simulation counts"
                )
    return line
