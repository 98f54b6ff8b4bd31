"""Arrival times: their rate is the one asked for, their gaps follow the law, schedules change rate where they say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration.load.loops import schedule_times
from sizing.workload import Arrivals

LAWS = [Arrivals.parse(text) for text in ("poisson", "constant", "gamma:cv=0.5", "gamma:cv=2")]


@pytest.mark.parametrize("law", LAWS, ids=str)
@pytest.mark.parametrize("rate_per_s", [0.5, 20.0])
def test_gaps_have_the_mean_and_the_spread_of_their_law(law: Arrivals, rate_per_s: float) -> None:
    """Standard errors: cv/√n of the mean; of the cv, about cv √(1/2 + cv²)/√n for gamma gaps, taken four times."""
    n = 40_000
    gaps_s = np.diff(law.times(n + 1, rate_per_s, np.random.default_rng(3)))
    assert gaps_s.mean() * rate_per_s == pytest.approx(1, abs=4 * law.cv / n**0.5 + 1e-9)
    spread_error = law.cv * (0.5 + law.cv**2) ** 0.5 / n**0.5
    assert gaps_s.std() / gaps_s.mean() == pytest.approx(law.cv, abs=8 * spread_error + 1e-9)


@settings(deadline=None)
@given(st.sampled_from(LAWS), st.floats(0.1, 1e4), st.integers(1, 500), st.integers(0, 99))
def test_any_run_has_exactly_the_rate_asked_for(law: Arrivals, rate_per_s: float, n: int, seed: int) -> None:
    times_s = law.times(n, rate_per_s, np.random.default_rng(seed))
    assert len(times_s) == n
    assert times_s[-1] == pytest.approx(n / rate_per_s)
    assert (np.diff(times_s) >= 0).all()
    assert times_s[0] >= 0


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0.1, 20), st.floats(0, 50)), min_size=1, max_size=5), st.integers(0, 99))
def test_a_schedule_stays_inside_its_time_and_keeps_its_number(stages: list[tuple[float, float]], seed: int) -> None:
    times_s = schedule_times(stages, Arrivals(), np.random.default_rng(seed))
    assert len(times_s) == pytest.approx(sum(for_s * rate for for_s, rate in stages), abs=1)
    assert (np.diff(times_s) >= 0).all()
    assert not len(times_s) or times_s[-1] <= sum(for_s for for_s, _ in stages)


def test_each_stage_has_its_own_rate_and_a_pause_has_none() -> None:
    """Poisson counts of 2000, 0 and 8000 expected arrivals, within four standard deviations."""
    times_s = schedule_times([(100, 20), (50, 0), (100, 80)], Arrivals(), np.random.default_rng(1))
    counts = np.histogram(times_s, [0, 100, 150, 250])[0]
    assert counts[0] == pytest.approx(2000, abs=4 * 2000**0.5)
    assert counts[1] == 0
    assert counts[2] == pytest.approx(8000, abs=4 * 8000**0.5)


def test_the_same_seed_gives_the_same_arrivals() -> None:
    first, again, other = (Arrivals().times(50, 5, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()


def test_no_requests_have_no_arrivals() -> None:
    assert len(Arrivals().times(0, 5, np.random.default_rng(0))) == 0
    assert len(schedule_times([(10, 0)], Arrivals(), np.random.default_rng(0))) == 0
