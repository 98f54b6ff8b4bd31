"""Predictions against measurements of the real reference server, which the project ships (data/curves).

The closed-loop points are fitted, the Poisson points are not: their errors are printed, and held to what the README
says.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest

from sizing.engine import Replica
from sizing.fitting import fit
from sizing.points import Point, doubts, read_points
from sizing.simulator import simulate
from sizing.workload import Metric, Workload

POINTS = read_points(Path(__file__).parents[2] / "data" / "curves" / "reference-cpu.csv")
CLOSED = [point for point in POINTS if point.closed]
POISSON = [point for point in POINTS if point.load_kind == "poisson_rate"]
HALF_LOAD_PER_S = 12


def test_the_shipped_points_are_sound() -> None:
    assert len(CLOSED) >= 18
    assert len(POISSON) >= 4
    assert [doubts(point) for point in POINTS] == [[]] * len(POINTS)


def test_requests_per_s_rise_and_saturate_and_itl_rises() -> None:
    fixed = sorted((p for p in CLOSED if p.lengths.fixed), key=lambda p: p.load_value)
    rates = [point.requests_per_s for point in fixed]
    itl = [point.itl_mean_s or 0.0 for point in fixed]
    assert rates == sorted(rates)
    assert itl == sorted(itl)
    # Twice the users bring nearly twice the requests at first, and little more at last.
    assert rates[-1] / rates[-2] < 1.3 < rates[2] / rates[0]


@pytest.mark.measured
def test_predicted_against_measured_at_random_arrivals() -> None:
    fitted = fit(CLOSED)
    print(f"\n{fitted.deployment.label}: leave-one-out error {fitted.leave_one_out:.1%}")
    errors = [percentile_errors(fitted.replica, point) for point in POISSON]
    half = [
        abs(e) for point, row in zip(POISSON, errors, strict=True) if point.load_value <= HALF_LOAD_PER_S for e in row
    ]
    assert fitted.leave_one_out < 0.15
    assert median(half) < 0.35


def test_they_are_fitted_together_with_random_arrivals() -> None:
    """On the way least squares tries engines so slow that they answer nothing of what arrives: from these nothing is
    learnt."""
    fitted = fit(POINTS, open_loop=True)
    assert {error.point for error in fitted.errors} == {*CLOSED, *POISSON}
    assert median(abs(error.itl_error) for error in fitted.errors) < 0.1


def percentile_errors(replica: Replica, point: Point) -> list[float]:
    """Relative errors of p50 and p95 of TTFT and E2E, printed."""
    predicted = simulate(replica, Workload(point.lengths, point.load_value)).prediction()
    errors = []
    metrics: tuple[Metric, ...] = ("ttft", "e2e")
    for metric in metrics:
        for percentile in (50, 95):
            measured = getattr(point, f"{metric}_p{percentile}_s")
            errors.append(predicted.of(metric).at(percentile) / measured - 1)
    cells = " ".join(f"{error:+6.0%}" for error in errors)
    print(f"{point.load_value:g} requests/s, OSL cv {point.osl_cv:g}: TTFT p50, p95, E2E p50, p95 off by {cells}")
    return errors
