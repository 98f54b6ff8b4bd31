"""The charts hold what they are given: every value, the limit where it is, nothing that is not finite."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest

from sizing.analyses.curves import COST, REQUESTS, FleetSizes, LengthCell, LoadCurve
from sizing.catalog import Layout
from sizing.engine import Replica, StepLaw
from sizing.fitting import PointError
from sizing.memory_use import KV_FREE, KV_USED, PARTS, WEIGHTS, MemoryUse
from sizing.plans import Candidate, Fleet
from sizing.prediction import Prediction, Quantiles, saturated
from sizing.workload import Limit
from tests.app.conftest import point
from ui.charts.base import DARK, LIGHT, LOG_FROM
from ui.charts.fit import QUANTITIES, ComparedSeries, measured_and_law, parity
from ui.charts.fleet import GIB, FleetSteps, gpus_against_load, memory_per_gpu, requests_over_lengths
from ui.charts.interactivity import Spot, front_of, throughput_against_interactivity
from ui.charts.latency import latency_against_load, with_knee, with_measured

LAW = StepLaw(weights_s=5e-3, overhead_s=1e-3, token_s=2e-5, sequence_s=1e-5, kv_token_s=5e-8)


def predicted(seconds: float) -> Prediction:
    """Every metric takes `seconds` at every percentile."""
    all_alike = Quantiles(*(seconds,) * 5)
    return Prediction(all_alike, all_alike, all_alike, False, 0.5, "analytic")


def fleet(seconds: float, limit: Limit) -> Fleet:
    candidate = Candidate("m", "g", Layout(1), "fp8", Replica(LAW), "estimated", "nowhere", 0.1)
    return Fleet(candidate, 4, 1, 1.25, 2.0, 1.6, predicted(seconds), limit, 4, 5)


def curve(*seconds: float) -> LoadCurve:
    predictions = tuple(predicted(s) if math.isfinite(s) else saturated(1.1, "analytic") for s in seconds)
    return LoadCurve(tuple(0.5 * (n + 1) for n in range(len(seconds))), predictions, 1.25, 2.0)


@pytest.mark.parametrize(("metric", "per_s", "unit"), [("ttft", 1000, "ms"), ("itl", 1000, "ms"), ("e2e", 1, "s")])
def test_the_line_the_dot_and_the_limit_share_the_unit_of_the_title(metric: str, per_s: float, unit: str) -> None:
    limit = Limit(metric, 95, 0.5)  # type: ignore[arg-type]
    chart = latency_against_load(curve(0.1, 0.2, 0.4, 0.6), fleet(0.15, limit), limit, 0.2, LIGHT)
    figure, alt = chart.figure, chart.alt
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


@pytest.mark.parametrize(("allowed_s", "anchor"), [(5.0, "top"), (0.3, "bottom"), (100.0, "top")])
def test_the_name_of_the_capacity_is_not_crossed_by_the_line(allowed_s: float, anchor: str) -> None:
    """At the capacity the line has 200 ms: of an axis to 6 s, to 450 ms, and low on a logarithmic one."""
    limit = Limit("ttft", 95, allowed_s)
    figure = latency_against_load(curve(0.1, 0.15, 0.18, 0.2), fleet(0.15, limit), limit, 0.2, LIGHT).figure
    name = next(note for note in figure.layout.annotations if note.text.startswith("capacity"))
    assert (name.yanchor, name.y) == (anchor, 1 if anchor == "top" else 0)


def test_loads_without_a_steady_state_are_left_out_of_the_line() -> None:
    limit = Limit("ttft", 99, 0.5)
    chart = latency_against_load(curve(0.1, math.inf), fleet(0.1, limit), limit, 0.0, LIGHT)
    figure = chart.figure
    assert list(figure.data[0].y) == [100]
    assert latency_against_load(curve(math.inf), fleet(0.1, limit), limit, 0.0, LIGHT).figure.data[0].y == ()


def test_a_limit_far_above_the_line_is_still_on_the_chart_and_its_label_is_on_it() -> None:
    limit = Limit("ttft", 99, 100.0)
    chart = latency_against_load(curve(0.1, 0.2), fleet(0.1, limit), limit, 0.0, LIGHT)
    figure = chart.figure
    low, high = figure.layout.yaxis.range
    label = next(note for note in figure.layout.annotations if note.text.startswith("limit"))
    assert figure.layout.yaxis.type == "log" and low < math.log10(100) and high > math.log10(100_000)
    assert label.y == pytest.approx(math.log10(100_000))


def test_a_wide_range_of_concurrency_has_its_ticks_where_it_was_measured() -> None:
    levels = [1.0, 4.0, 16.0, 64.0]
    chart = measured_and_law("Requests/s", "Concurrency", [ComparedSeries("mean", levels, [1, 3, 6, None], [])], LIGHT)
    figure, alt = chart.figure, chart.alt
    assert figure.layout.xaxis.type == "log" and set(figure.layout.xaxis.tickvals) == set(levels)
    assert len(figure.data) == 1 and figure.data[0].y[-1] is None
    assert "1 at 1" in alt and "6 at 16" in alt


def test_ticks_at_measured_values_keep_clear_of_each_other() -> None:
    """Of times that crowd at one end: on an axis of 250 pixels, labels 30 pixels wide."""
    times = [4.93, 5.2, 5.5, 6.1, 7.33, 8.0, 8.86, 10.2, 13.9, 24.6, 300.0]
    chart = measured_and_law("ITL", "Time", [ComparedSeries("mean", times, times, [])], LIGHT)
    ticks = [math.log10(tick) for tick in chart.figure.layout.xaxis.tickvals]
    nearest = min(after - before for before, after in pairwise(ticks))
    assert len(ticks) > 2 and 250 * nearest / math.log10(300 / 4.93) > 30


def test_a_logarithmic_axis_within_two_decades_can_be_read() -> None:
    """Of 67 to 3,700 ms, 100 and 1,000 alone would be named."""
    limit = Limit("ttft", 95, 2.6)
    axis = latency_against_load(curve(0.1, 0.2, 0.4), fleet(0.2, limit), limit, 0.2, LIGHT).figure.layout.yaxis
    assert axis.type == "log" and axis.dtick == "D2" and axis.tickformat


SIZES = FleetSizes((0.0, 2.0, 4.0), (2, 3, 4), (2, 2, 3), (2, 4, 6))


@pytest.mark.parametrize("law_ms", [(24.0, 643.0), (24.0, 420.0)])
def test_the_diagonal_is_that_of_equal_times_where_only_one_side_spans_a_wide_range(law_ms: tuple[float, ...]) -> None:
    """Measured from 62 to 662 ms, a factor of 11; by the law from 24 ms on, a factor of 27 or 18."""
    nan = math.nan
    errors = [
        PointError(replace(point(1), ttft_mean_s=measured_s), nan, law / 1000, nan, nan, nan, nan)
        for measured_s, law in zip((0.062, 0.662), law_ms, strict=True)
    ]
    chart = parity(QUANTITIES[1], errors, frozenset(), LIGHT)
    assert chart is not None
    layout = chart.figure.layout
    assert (layout.xaxis.type, layout.xaxis.tickvals) == (layout.yaxis.type, layout.yaxis.tickvals)


def test_steps_and_band_go_on_to_the_end_of_the_range() -> None:
    steps = [FleetSteps("a", SIZES), FleetSteps("b", SIZES)]
    chart = gpus_against_load(steps, 6.0, 3.0, 3, "3 GPUs", LIGHT)
    figure, alt = chart.figure, chart.alt
    lines = {each.name: each for each in figure.data}
    assert list(lines["a"].x) == [0, 2, 4, 6] and list(lines["a"].y) == [2, 3, 4, 4]
    assert list(lines["90 % band, high"].y) == [2, 4, 6, 6] and lines["90 % band, high"].fill == "tonexty"
    assert (lines["planned load"].x[0], lines["planned load"].y[0]) == (3.0, 3)
    assert lines["a"].line.dash != lines["b"].line.dash
    assert "3 GPUs at the planned 3 requests/s" in alt


def test_a_band_without_an_end_is_not_drawn() -> None:
    endless = FleetSizes(SIZES.rates_per_s, SIZES.gpus, SIZES.low, None)
    names = [each.name for each in gpus_against_load([FleetSteps("a", endless)], 6.0, 3.0, 3, "3", DARK).figure.data]
    assert names == ["a", "planned load"]


def spots(name: str, *values: tuple[float, float, bool]) -> list[Spot]:
    return [Spot(name, x, y, 1.0, meets) for x, y, meets in values]


def test_the_front_is_cut_between_configurations_and_where_the_sla_ends() -> None:
    one = spots("one", (10, 9, False), (20, 8, True), (30, 7, True))
    other = spots("other", (25, 2, True), (40, 5, True), (50, 4, True))
    chart = throughput_against_interactivity([one, other], front_of([one, other], REQUESTS), None, REQUESTS, LIGHT)
    figure, alt = chart.figure, chart.alt
    bold = [each for each in figure.data if each.line.width and each.line.width > 2]
    assert [(each.name, list(each.x), each.line.dash) for each in bold] == [
        ("one", [10], "dot"),
        ("one", [10, 20, 30], "solid"),
        ("other", [40, 50], "solid"),
    ]
    assert {note.text for note in figure.layout.annotations} == {"one", "other"}
    assert "from 10 one" in alt and "from 40 other" in alt and "holds from 20" in alt


def test_of_cost_the_front_is_the_low_side_on_a_logarithmic_axis() -> None:
    curve = spots("one", (10, 1, True), (20, 2, True), (30, 100, True))
    dearer = spots("two", (10, 3, True), (20, 4, True))
    best = front_of([curve, dearer], COST)
    assert [spot.name for spot in best] == ["one"] * 3
    figure = throughput_against_interactivity([curve, dearer], best, curve[1], COST, LIGHT).figure
    assert LOG_FROM < 100 / 1 and figure.layout.yaxis.type == "log"
    label = next(note for note in figure.layout.annotations if note.text == "one")
    assert label.y == pytest.approx(math.log10(2))


def test_hollow_markers_are_extrapolated_and_the_scenario_s_is_larger() -> None:
    cells = [
        LengthCell(500, 100, 4.0, "fitted"),
        LengthCell(1000, 100, 2.0, "fitted"),
        LengthCell(4000, 100, 0.1, "extrapolated"),
        LengthCell(8000, 100, None, "extrapolated", "misses the SLA even alone"),
    ]
    chart = requests_over_lengths(cells, 1000, 100, LIGHT)
    figure, alt = chart.figure, chart.alt
    line = figure.data[0]
    assert list(line.y) == [4.0, 2.0, 0.1] and figure.layout.yaxis.type == "log"
    assert [symbol.endswith("-open") for symbol in line.marker.symbol] == [False, False, True]
    assert line.marker.size[1] > line.marker.size[0] == line.marker.size[2]
    assert "2 at 1,000 in, 100 out" in alt and "none at 1 of 4" in alt
    assert "holds at none" in requests_over_lengths(cells[3:], 8000, 100, LIGHT).alt


def test_bars_of_memory_are_stacked_in_gib_and_unknown_parts_have_none() -> None:
    candidate = Candidate("m", "g", Layout(1), "fp8", Replica(LAW), "estimated", "nowhere", 0.1)
    use = MemoryUse(candidate, 8 * GIB, ((WEIGHTS, 3 * GIB), (KV_USED, GIB), (KV_FREE, 4 * GIB)), "counted")
    chart = memory_per_gpu(["one", "two"], [use, use], DARK)
    figure, alt = chart.figure, chart.alt
    assert {bar.name: list(bar.x) for bar in figure.data} == {WEIGHTS: [3, 3], KV_USED: [1, 1], KV_FREE: [4, 4]}
    assert list(figure.data[0].y) == ["one", "two"] and figure.layout.barmode == "stack"
    assert "weights 3 GiB" in alt and "of 8 GiB" in alt


def test_parts_of_the_memory_look_different_from_each_other() -> None:
    candidate = Candidate("m", "g", Layout(1), "fp8", Replica(LAW), "estimated", "nowhere", 0.1)
    use = MemoryUse(candidate, GIB * len(PARTS), tuple((part, GIB) for part in PARTS), "counted")
    bars = memory_per_gpu(["one"], [use], DARK).figure.data
    assert len({(bar.marker.color, bar.marker.pattern.shape) for bar in bars}) == len(PARTS)


def test_open_loop_points_are_marked_where_they_have_the_limited_percentile() -> None:
    limit = Limit("ttft", 95, 0.5)
    plain = latency_against_load(curve(0.1, 0.2), fleet(0.15, limit), limit, 0.0, LIGHT)
    measured = point(1, load_kind="poisson_rate", load_value=1.5, ttft_p95_s=0.3)
    marked = with_measured(plain, [measured, point(2, load_kind="poisson_rate")], limit, LIGHT)
    assert (list(marked.figure.data[-1].x), list(marked.figure.data[-1].y)) == ([1.5], [300])
    assert "1 point measured" in marked.alt
    assert "%{x:.3g} requests/s per replica<br>%{y:.4g} ms<br>" in marked.figure.data[-1].hovertemplate
    assert with_measured(plain, [point(2, load_kind="poisson_rate")], limit, LIGHT) is plain


def test_a_point_measured_beyond_the_loads_and_the_limit_is_on_the_chart() -> None:
    limit = Limit("ttft", 95, 0.5)
    measured = [point(1, load_kind="poisson_rate", load_value=6.0, ttft_p95_s=2.0)]
    plain = latency_against_load(curve(0.1, 0.2), fleet(0.15, limit), limit, 0.0, LIGHT, measured)
    layout = with_measured(plain, measured, limit, LIGHT).figure.layout
    assert layout.xaxis.range[1] > 6 and 10 ** layout.yaxis.range[1] > 2000


def test_the_knee_is_a_line_where_the_curve_has_one() -> None:
    limit = Limit("ttft", 95, 0.5)
    bent = curve(0.1, 0.15, 0.6, 2.4)  # load over latency: 5, 6.7, 2.5, 0.8
    plain = latency_against_load(bent, fleet(0.15, limit), limit, 0.0, LIGHT)
    kneed = with_knee(plain, bent, LIGHT)
    assert 1.0 in [shape.x0 for shape in kneed.figure.layout.shapes if shape.x0 == shape.x1]
    assert "knee is at 1 request/s" in kneed.alt
    straight = curve(0.1, 0.1, 0.1)
    assert with_knee(plain, straight, LIGHT) is plain
