"""The charts of a simulated run hold what they are given: units, limits, parts that add up, nothing lost."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sizing.analyses.inside import SHARES, Lives
from sizing.workload import Limit
from ui.charts.base import DARK, LIGHT
from ui.charts.fit import Pairs, agreement
from ui.charts.latency import FAR, NamedLine, Spread, distribution, lives_of_requests, over_time, time_unit


@pytest.mark.parametrize(("metric", "per_s"), [("ttft", 1000), ("itl", 1000), ("e2e", 1)])
def test_a_distribution_and_its_limit_share_the_unit_of_the_axis(metric: str, per_s: float) -> None:
    limit = Limit(metric, 95, 2.0)  # type: ignore[arg-type]
    chart = distribution(metric, SHARES, [Spread("x", SHARES)], limit, LIGHT)  # type: ignore[arg-type]
    figure, alt = chart.figure, chart.alt
    assert figure.data[0].x == pytest.approx(SHARES * per_s) and figure.data[0].y == pytest.approx(100 * SHARES)
    vertical = [shape.x0 for shape in figure.layout.shapes if shape.x0 == shape.x1]
    assert vertical == pytest.approx([2.0 * per_s]) and figure.layout.xaxis.range[1] > 2.0 * per_s
    value, allowed = ("0.95 s", "2 s") if metric == "e2e" else ("950 ms", "2,000 ms")
    assert f"95 % of the requests within {value}," in alt
    assert f"p95 {metric.upper()} is {value}, within the limit of {allowed}" in alt


def test_a_limit_that_is_missed_is_said_and_one_far_away_is_named_at_the_edge() -> None:
    missed = distribution("ttft", SHARES, [Spread("TTFT", 10 * SHARES)], Limit("ttft", 50, 1.0), DARK).alt
    assert "p50 TTFT is 5,000 ms, over the limit of 1,000 ms" in missed
    far = Limit("ttft", 95, 2 * FAR)
    figure = distribution("ttft", SHARES, [Spread("TTFT", SHARES)], far, DARK).figure
    assert figure.layout.xaxis.range[1] < 1000 * far.limit_s
    assert not [shape for shape in figure.layout.shapes if shape.x0 == shape.x1]
    assert any("8,000 ms →" in note.text for note in figure.layout.annotations)
    assert "no limit is set" in distribution("e2e", SHARES, [Spread("E2E", SHARES)], None, DARK).alt


@pytest.mark.parametrize(("seconds", "unit"), [(0, "s"), (600, "s"), (601, "min"), (3 * 3600, "min"), (11_000, "h")])
def test_time_is_shown_in_a_unit_that_can_be_read(seconds: float, unit: str) -> None:
    assert time_unit(seconds)[0] == unit


def test_lines_over_time_keep_their_values_and_the_bound_is_on_the_chart() -> None:
    chart = over_time("Held", [0.0, 1200.0], [NamedLine("a", [1, 2]), NamedLine("b", [0, 7])], LIGHT, most=("all", 9.0))
    figure, alt = chart.figure, chart.alt
    assert {trace.name: trace.y for trace in figure.data} == {"a": (1, 2), "b": (0, 7)}
    assert figure.data[0].x == (0, 20) and "min" in figure.layout.xaxis.title.text
    assert figure.layout.yaxis.range[1] > 9 and figure.layout.shapes[0].y0 == 9
    assert [(note.text, note.y) for note in figure.layout.annotations if note.y == 9] == [("all", 9)]
    assert "a 1.5 on average, 2 at most" in alt and "7 at most" in alt
    assert "nothing recorded" in over_time("Held", [], [NamedLine("a", [])], LIGHT).alt


def test_a_bar_is_as_long_as_a_life_and_the_unserved_are_crosses() -> None:
    arrival_s = np.array([10.0, 11.0, 12.0])
    parts = (np.array([0.5, 3.0, math.nan]), np.array([0.5, 1.0, math.nan]), np.array([4.0, 5.0, math.nan]))
    chart = lives_of_requests(Lives(arrival_s, *parts, slowest=1), LIGHT)
    figure, alt = chart.figure, chart.alt
    waiting, prompt, decoding, lost = figure.data
    assert waiting.base == (0, 1, 2)
    assert prompt.base == pytest.approx(np.add(waiting.base, waiting.x))
    assert decoding.base == pytest.approx(np.add(prompt.base, prompt.x))
    assert np.add(decoding.base, decoding.x)[:2] == pytest.approx([5.0, 10.0])
    assert (lost.x, lost.y) == ((2.0,), (2,))
    assert "took 4,000 ms, of which 3,000 ms waiting" in alt


def test_differences_are_in_per_cent_and_all_on_the_chart() -> None:
    kinds = [Pairs("TTFT", [10.0, 100.0], [15.0, 100.0], ["a", "b"]), Pairs("ITL", [20.0], [19.0], ["c"])]
    chart = agreement("Formula", "Simulation (ms)", kinds, 0.1, LIGHT)
    figure, alt = chart.figure, chart.alt
    first, second = figure.data
    assert first.y == pytest.approx([50, 0]) and second.y == pytest.approx([-5]) and first.x == (10, 100)
    low, high = figure.layout.yaxis.range
    assert low < -10 and high > 50
    assert "2 of 3 within 10 %; the farthest is 50 % apart" in alt
    assert "nothing to compare" in agreement("Formula", "x", [], 0.1, DARK).alt
