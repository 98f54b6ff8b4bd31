"""Laws of lengths, arrivals and limits, and the questions that are refused."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sizing.errors import ScenarioError
from sizing.prediction import Prediction, Quantiles
from sizing.workload import Arrivals, Lengths, Limit, Sla, Workload, parse_seconds


@given(
    mean=st.floats(20, 4000),
    cv=st.floats(0, 1.5),
    seed=st.integers(0, 2**32),
)
def test_sampled_lengths_have_the_mean_and_spread_asked_for(mean: float, cv: float, seed: int) -> None:
    n = 40_000
    isl, _ = Lengths(mean, 10, isl_cv=cv).sample(n, np.random.default_rng(seed))
    assert isl.min() >= 1
    # Five standard errors of the mean, and half a token of rounding.
    assert abs(isl.mean() - mean) <= 5 * cv * mean / math.sqrt(n) + 0.5


@given(correlation=st.floats(-1, 1), which=st.sampled_from(["isl", "osl"]))
def test_lengths_that_are_the_same_for_all_go_along_with_nothing(correlation: float, which: str) -> None:
    """A correlation would take spread and mean from the other length."""
    cvs = {"isl": (0.0, 1.0), "osl": (1.0, 0.0)}[which]
    alone, along = Lengths(1000, 200, *cvs), Lengths(1000, 200, *cvs, correlation=correlation)
    for one, other in zip(*(each.sample(500, np.random.default_rng(0)) for each in (alone, along)), strict=True):
        assert (one == other).all()


@pytest.mark.parametrize("text", ["gamma:cv=0.001", "gamma:cv=101", "gamma:cv=100000"])
def test_gaps_that_no_traffic_has_are_refused(text: str) -> None:
    with pytest.raises(ScenarioError, match=r"cv must be from 0\.01 to 100"):
        Arrivals.parse(text)


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (Arrivals(), "poisson"),
        (Arrivals("constant"), "constant"),
        (Arrivals("gamma", 2.0), "gamma:cv=2"),
        (Arrivals("batch", size=8), "batch:size=8"),
    ],
)
def test_arrivals_are_those_of_their_text(made: Arrivals, text: str) -> None:
    """However they are made, they have the coefficient of variation that their gaps show."""
    assert made == Arrivals.parse(text) == Arrivals.parse(str(made))
    gaps_s = made.gaps(400_000, 8.0, np.random.default_rng(1))
    assert gaps_s.std() / gaps_s.mean() == pytest.approx(made.cv, rel=0.02, abs=1e-9)


@pytest.mark.parametrize("text", ["poisson", "constant", "gamma:cv=2", "gamma:cv=0.5"])
@pytest.mark.parametrize("merged", [1, 7])
def test_gaps_of_merged_streams_have_mean_and_spread_of_sums(text: str, merged: int) -> None:
    arrivals = Arrivals.parse(text)
    gaps = arrivals.gaps(200_000, 8.0, np.random.default_rng(1), merged)
    expected_cv = arrivals.cv / math.sqrt(merged)
    assert gaps.mean() == pytest.approx(merged / 8.0, rel=0.02)
    assert gaps.std() / gaps.mean() == pytest.approx(expected_cv, rel=0.02, abs=1e-9)


@given(percentile=st.sampled_from([50, 90, 95, 99]), limit_ms=st.floats(0.1, 1e5))
def test_a_limit_reads_back_what_was_written(percentile: int, limit_ms: float) -> None:
    assert Limit.parse("ttft", f"p{percentile}:{limit_ms!r}ms").limit_s == pytest.approx(limit_ms / 1000)
    assert Limit.parse("ttft", f"p{percentile}:{limit_ms!r}ms").percentile == percentile


def test_a_percentile_may_be_a_float() -> None:
    """As a table of numbers has it: the limit is the same."""
    limit = Limit("ttft", 95.0, 1.0)
    assert limit == Limit("ttft", 95, 1.0) and str(limit) == "p95 TTFT <= 1000 ms"
    seen = Quantiles.of(np.linspace(0.0, 0.9, 101))
    assert Prediction(seen, seen, seen, False, 0.5, "simulation").meets(Sla(limit))


@pytest.mark.parametrize(
    "text",
    ["1s", "p95", "p95:1", "95:1s", "p95:-1s", "p95:0s", "p95:nans", "p80:1s", "p95:1h", "", "p" + 5000 * "9" + ":1s"],
)
def test_limits_that_mean_nothing_are_refused(text: str) -> None:
    with pytest.raises(ScenarioError):  # a time alone needs goodput beside it
        Sla(Limit.parse("ttft", text))


@pytest.mark.parametrize("text", ["30", "ms", "1,5s", "30 m", "infs", "-infms", "nans", "1e400s"])
def test_times_without_a_number_or_unit_are_refused(text: str) -> None:
    with pytest.raises(ScenarioError):
        parse_seconds("x", text)


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, math.inf])
def test_impossible_rates_are_refused(rate: float) -> None:
    with pytest.raises(ScenarioError, match="rate"):
        Workload(Lengths(1, 1), rate)


@pytest.mark.parametrize("isl,osl", [(0, 1), (1, 0), (math.nan, 1), (1, -3), (0.5, 1), (1e30, 1), (1, 1.1e9)])
def test_impossible_lengths_are_refused(isl: float, osl: float) -> None:
    with pytest.raises(ScenarioError, match=r"ISL|OSL"):
        Lengths(isl, osl)


@pytest.mark.parametrize("text", ["", "gamma", "gamma:cv=0", "gamma:cv=x", "uniform"])
def test_unknown_arrivals_are_refused(text: str) -> None:
    with pytest.raises(ScenarioError):
        Arrivals.parse(text)


def test_an_sla_without_limits_is_refused() -> None:
    with pytest.raises(ScenarioError, match="at least one limit"):
        Sla()


def test_a_time_with_many_blanks_is_read_in_no_time() -> None:
    """Blanks before a unit that is none: tried in every split, so many would take hours of a regular expression."""
    blanks = 200_000 * " "
    started_s = time.process_time()
    with pytest.raises(ScenarioError):
        parse_seconds("--ttft", f"5{blanks}0m")
    with pytest.raises(ScenarioError):
        parse_seconds("--ttft", f"5{blanks}0ms")
    assert time.process_time() - started_s < 5
    assert parse_seconds("--ttft", f" 5{blanks}ms ") == pytest.approx(0.005)


def test_a_spread_is_refused_by_what_it_may_be() -> None:
    with pytest.raises(ScenarioError, match=r"^isl_cv must be a number from 0 on, got -0\.1$"):
        Lengths(100, 10, isl_cv=-0.1)
    with pytest.raises(ScenarioError, match=r"^osl_cv must be at most 1000, got 1e\+160$"):
        Lengths(100, 10, osl_cv=1e160)
