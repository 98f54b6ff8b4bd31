"""The charts hold what they are given: every value, the limit where it is, nothing that is not finite."""

from __future__ import annotations

import math

import pytest

from sizing.loadcurve import LoadCurve
from sizing.plan import Candidate, Fleet
from sizing.prediction import Prediction, Quantiles, saturated
from sizing.replica import Replica
from sizing.steptime import StepLaw
from sizing.workload import Limit
from ui.charts.base import DARK, LIGHT
from ui.charts.latency import latency_against_load
from ui.charts.measured import Series, measured_and_law

LAW = StepLaw(weights_s=5e-3, overhead_s=1e-3, token_s=2e-5, sequence_s=1e-5, kv_token_s=5e-8)


def predicted(seconds: float) -> Prediction:
    """Every metric takes `seconds` at every percentile."""
    all_alike = Quantiles(*(seconds,) * 5)
    return Prediction(all_alike, all_alike, all_alike, False, 0.5, "analytic")


def fleet(seconds: float, limit: Limit) -> Fleet:
    candidate = Candidate("m", "g", 1, "fp8", Replica(LAW), "estimated", "nowhere", 0.1)
    return Fleet(candidate, 4, 1, 1.25, 2.0, 1.6, predicted(seconds), limit, 4, 5)


def curve(*seconds: float) -> LoadCurve:
    predictions = tuple(predicted(s) if math.isfinite(s) else saturated(1.1, "analytic") for s in seconds)
    return LoadCurve(tuple(0.5 * (n + 1) for n in range(len(seconds))), predictions, 1.25, 2.0)


@pytest.mark.parametrize(("metric", "per_s", "unit"), [("ttft", 1000, "ms"), ("itl", 1000, "ms"), ("e2e", 1, "s")])
def test_the_line_the_dot_and_the_limit_share_the_unit_of_the_title(metric: str, per_s: float, unit: str) -> None:
    limit = Limit(metric, 95, 0.5)  # type: ignore[arg-type]
    figure, alt = latency_against_load(curve(0.1, 0.2, 0.4, 0.6), fleet(0.15, limit), limit, 0.2, LIGHT)
    assert figure.layout.title.text == f"p95 {metric.upper()} ({unit})"
    assert figure.data[0].y == pytest.approx([s * per_s for s in (0.1, 0.2, 0.4, 0.6)])
    assert (figure.data[1].x[0], figure.data[1].y[0]) == pytest.approx((1.25, 0.15 * per_s))
    assert [shape.y0 for shape in figure.layout.shapes if shape.y0 == shape.y1] == pytest.approx([0.5 * per_s])
    assert figure.layout.yaxis.range[1] > 0.5 * per_s
    assert "150 ms" in alt and "limit 500 ms" in alt


def test_the_headroom_reaches_from_the_planned_capacity_to_the_capacity() -> None:
    limit = Limit("itl", 95, 0.5)
    shapes = latency_against_load(curve(0.1, 0.2), fleet(0.15, limit), limit, 0.25, DARK).figure.layout.shapes
    assert (1.5, 2.0) in [(shape.x0, shape.x1) for shape in shapes]


def test_loads_without_a_steady_state_are_left_out_of_the_line() -> None:
    limit = Limit("ttft", 99, 0.5)
    figure, _ = latency_against_load(curve(0.1, math.inf), fleet(0.1, limit), limit, 0.0, LIGHT)
    assert list(figure.data[0].y) == [100]
    assert latency_against_load(curve(math.inf), fleet(0.1, limit), limit, 0.0, LIGHT).figure.data[0].y == ()


def test_a_limit_far_above_the_line_is_still_on_the_chart_and_its_label_is_on_it() -> None:
    limit = Limit("ttft", 99, 100.0)
    figure, _ = latency_against_load(curve(0.1, 0.2), fleet(0.1, limit), limit, 0.0, LIGHT)
    low, high = figure.layout.yaxis.range
    label = next(note for note in figure.layout.annotations if note.text.startswith("limit"))
    assert figure.layout.yaxis.type == "log" and low < math.log10(100) and high > math.log10(100_000)
    assert label.y == pytest.approx(math.log10(100_000))


def test_a_wide_range_of_concurrency_has_its_ticks_where_it_was_measured() -> None:
    levels = [1.0, 4.0, 16.0, 64.0]
    figure, alt = measured_and_law("Requests/s", "Concurrency", [Series("mean", levels, [1, 3, 6, None], [])], LIGHT)
    assert figure.layout.xaxis.type == "log" and set(figure.layout.xaxis.tickvals) == set(levels)
    assert len(figure.data) == 1 and figure.data[0].y[-1] is None
    assert "1 at 1" in alt and "6 at 16" in alt
