"""What the charts of a plan are drawn from: steps of GPUs, the knee, use of the SLA, lengths, two side by side."""

from __future__ import annotations

import dataclasses
import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from sizing.analyses.curves import (
    ISL_FACTORS,
    MOST_STEPS,
    OSL_FACTORS,
    LoadCurve,
    bands_overlap,
    fleet_sizes,
    gpus_for,
    knee_per_s,
    length_grid,
    sla_use,
    versus,
)
from sizing.engine import StepLaw
from sizing.errors import ScenarioError
from sizing.prediction import Prediction, Quantiles, saturated
from sizing.workload import Prefix
from tests.sizing.fleets_at_hand import KV_TOKENS, LAW, candidate, fleet, question


def of_e2e(seconds: float) -> Prediction:
    alike = Quantiles(*(seconds,) * 5)
    return Prediction(alike, alike, alike, False, 0.5, "analytic")


@given(some.floats(0.5, 50))
def test_the_knee_of_mm1_is_at_half_its_service_rate(service_per_s: float) -> None:
    rates = tuple(service_per_s * n / 40 for n in range(1, 40))
    curve = LoadCurve(rates, tuple(of_e2e(1 / (service_per_s - rate)) for rate in rates), 1.0, 1.0)
    assert knee_per_s(curve) == pytest.approx(service_per_s / 2)


def test_latency_that_never_rises_has_no_knee_and_loads_without_a_steady_state_are_none() -> None:
    rates = (1.0, 2.0, 3.0)
    assert knee_per_s(LoadCurve(rates, tuple(of_e2e(1.0) for _ in rates), 1.0, 1.0)) is None
    with_end = (of_e2e(1.0), of_e2e(1.0), saturated(1.2, "analytic"))
    assert knee_per_s(LoadCurve(rates, with_end, 1.0, 1.0)) == 2.0
    assert knee_per_s(LoadCurve((), (), 1.0, 1.0)) is None


@settings(max_examples=20, deadline=None)
@given(some.floats(1, 300), some.floats(0, 200), some.floats(1, 300))
def test_steps_are_the_planner_s_counts_rise_with_load_and_lie_in_their_band(
    rate: float, low: float, width: float
) -> None:
    asked = question(rate)
    found = fleet(asked)
    sizes = fleet_sizes(asked, found, low, low + width)
    assert gpus_for(asked, found, rate) == found.gpus
    assert sizes.high is not None and sizes.rates_per_s[0] == low
    for counts in (sizes.low, sizes.gpus, sizes.high):
        assert all(one <= other for one, other in pairwise(counts))
    assert all(a <= b <= c for a, b, c in zip(sizes.low, sizes.gpus, sizes.high, strict=True))
    for start, end, gpus in zip(sizes.rates_per_s, sizes.rates_per_s[1:], sizes.gpus, strict=False):
        if len(sizes.rates_per_s) < MOST_STEPS and end - start > 1e-3:
            assert gpus == gpus_for(asked, found, (start + end) / 2)


def test_a_band_without_an_end_has_no_high_counts_and_loads_must_rise() -> None:
    asked = question()
    slow = dataclasses.replace(candidate(), relative_sigma=0.9)
    assert fleet_sizes(asked, fleet(asked, slow), 0, 100).high is None
    with pytest.raises(ScenarioError, match="rise"):
        fleet_sizes(asked, fleet(asked), 5, 5)


def test_very_large_fleets_are_told_at_a_bounded_number_of_loads() -> None:
    asked = question(50_000.0)
    found = fleet(asked)
    sizes = fleet_sizes(asked, found, 0, 100_000)
    assert len(sizes.rates_per_s) == MOST_STEPS
    assert sizes.gpus[-1] == gpus_for(asked, found, sizes.rates_per_s[-1] * (1 + 1e-6))


def test_the_sla_is_used_up_at_the_capacity_and_never_less_at_more_load() -> None:
    asked = question()
    use = sla_use(asked, fleet(asked))
    assert all(one <= other for one, other in pairwise(use))
    assert use[0] < 1 < use[-1]
    assert use[10] == pytest.approx(1, abs=0.05)  # the eleventh of twelve even loads to 1.1 x the capacity


def test_the_length_grid_holds_the_answer_in_its_middle_and_longer_prompts_carry_less() -> None:
    asked = question()
    found = fleet(asked)
    cells = length_grid(asked, found, lambda lengths: lengths.isl <= 1000)
    known = {(cell.isl, cell.osl): cell for cell in cells}
    assert known[1000, 200].requests_per_s_per_gpu == pytest.approx(found.requests_per_s_per_gpu)
    assert len(cells) == len(ISL_FACTORS) * len(OSL_FACTORS)
    for osl in (100, 200, 400):
        row = [known[isl, osl].requests_per_s_per_gpu for isl in (250, 500, 1000, 2000, 4000)]
        assert all(one is not None and other is not None and one > other for one, other in pairwise(row))
    assert {cell.basis for cell in cells if cell.isl <= 1000} == {"fitted"}
    assert {cell.basis for cell in cells if cell.isl > 1000} == {"extrapolated"}


def test_prompts_shorter_than_the_shared_prefix_are_all_shared() -> None:
    asked = question()
    shared = dataclasses.replace(asked, workload=dataclasses.replace(asked.workload, prefix=Prefix(600)))
    cells = length_grid(shared, fleet(shared), lambda lengths: True)
    row = [cell.requests_per_s_per_gpu or 0.0 for cell in cells if cell.osl == 200]
    assert all(one > other for one, other in pairwise(row)), "250 to 4,000 tokens in"


def test_lengths_that_fit_nowhere_or_miss_the_sla_say_so() -> None:
    small = dataclasses.replace(candidate().replica.batching, kv_tokens=3000)
    of = dataclasses.replace(candidate(), replica=dataclasses.replace(candidate().replica, batching=small))
    asked = question()
    cells = {(cell.isl, cell.osl): cell for cell in length_grid(asked, fleet(asked, of), lambda lengths: True)}
    assert cells[4000, 200].requests_per_s_per_gpu is None and "holds 3,000 tokens" in cells[4000, 200].why
    slow = candidate(law=StepLaw(4.8e-3, 1e-3, 150e-6, 10e-6, 49e-9, 1.3e-9, 0.5e-3, 4e-3))
    loose = question(1.0, sla=type(asked.sla)(asked.sla.ttft))
    missed = {(cell.isl, cell.osl): cell for cell in length_grid(loose, fleet(loose, slow), lambda lengths: True)}
    assert missed[4000, 200].requests_per_s_per_gpu is None and "SLA" in missed[4000, 200].why


def test_an_itl_limit_leaves_out_outputs_of_a_single_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sizing.analyses.curves.ISL_FACTORS", (1.0,))
    monkeypatch.setattr("sizing.analyses.curves.OSL_FACTORS", (1 / 200, 1.0))
    cells = length_grid(question(), fleet(question()), lambda lengths: True)
    assert [(cell.osl, "ITL" in cell.why) for cell in cells] == [(1, True), (200, False)]


def test_two_side_by_side_name_both_bases_and_the_ratio_both_ways() -> None:
    asked = question(price_per_gpu_hour=2.0)
    one, other = fleet(asked), fleet(asked, candidate(tp=4, law=LAW.scaled(0.9), gpu="h"))
    said, back = versus(asked, one, other), versus(asked, other, one)
    assert "g TP1 bf16 (fitted)" in said and "h TP4 bf16 (fitted)" in said
    assert f"{one.gpus:,} against {other.gpus:,}" in said
    ratio, inverse = (float(text.split("needs ")[1].split(" ×")[0]) for text in (said, back))
    assert ratio * inverse == pytest.approx(1, rel=0.01)
    assert ratio == pytest.approx(one.gpus / other.gpus, rel=0.005)
    assert f"{2 * one.gpus:g} against {2 * other.gpus:g} per hour" in said
    assert "costs" not in versus(question(), one, other)


def test_fleets_of_equal_size_need_as_many() -> None:
    asked = question(price_per_gpu_hour=0.0)
    said = versus(asked, fleet(asked), fleet(asked))
    assert "needs as many GPUs" in said and "costs as much: 0 per hour" in said and "overlap" not in said
    wider = dataclasses.replace(fleet(asked), working_high=fleet(asked).working + 1)
    said = versus(asked, fleet(asked), wider)
    assert "bands overlap" in said and "reverse" not in said, "there is no order among equals"


@pytest.mark.parametrize(
    ("high", "said"), [(3, "do not overlap"), (4, "bands meet at 4 GPUs"), (5, "reverse the order")]
)
def test_bands_that_meet_at_a_count_leave_the_order(high: int, said: str) -> None:
    """A fleet of 3 GPUs beside one of 5 and from 4 on: up to 4 it needs as many at most, from 5 on it may need more."""
    middle = dataclasses.replace(fleet(question()), spare=0)
    fewer = dataclasses.replace(middle, working=3, working_low=2, working_high=high)
    more = dataclasses.replace(middle, working=5, working_low=4, working_high=6)
    for one, other in ((fewer, more), (more, fewer)):
        assert said in versus(question(), one, other)


@given(some.integers(1, 20), some.integers(0, 20), some.integers(1, 20), some.integers(0, 20), some.booleans())
def test_bands_overlap_when_they_share_a_count(a: int, b: int, c: int, d: int, endless: bool) -> None:
    middle = fleet(question())
    one = dataclasses.replace(middle, spare=0, working_low=a, working_high=None if endless else a + b)
    other = dataclasses.replace(middle, spare=0, working_low=c, working_high=c + d)
    shared = set(range(a, 100 if endless else a + b + 1)) & set(range(c, c + d + 1))
    assert bands_overlap(one, other) == bands_overlap(other, one) == bool(shared)


def test_the_cache_of_these_tests_holds_their_requests() -> None:
    assert KV_TOKENS > 4000 + 400 and math.isfinite(fleet(question()).capacity_per_s)
