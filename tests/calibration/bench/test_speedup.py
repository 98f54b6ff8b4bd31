"""Laws of the ratio of two models, and how often its interval holds the truth."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triton_tools.clients.speedup import ratio, speed_up
from triton_tools.clients.stats import Stats

RATES = st.floats(0.01, 1e4)
PAIRS = st.lists(st.tuples(RATES, RATES), min_size=2, max_size=8)


@given(PAIRS)
def test_swapping_the_sides_inverts_the_ratio_and_its_interval(pairs: list[tuple[float, float]]) -> None:
    above, below = zip(*pairs, strict=True)
    one, other = ratio(above, below), ratio(below, above)
    assert one.mean * other.mean == pytest.approx(1, rel=1e-9)
    if other.high < 1e100:
        assert one.low == pytest.approx(1 / other.high, rel=1e-8)
    assert one.low <= one.mean * (1 + 1e-9) <= one.high * (1 + 2e-9)
    assert one.sure == other.sure


@given(PAIRS, st.floats(0.1, 10.0))
def test_a_faster_machine_for_both_changes_nothing(pairs: list[tuple[float, float]], factor: float) -> None:
    above, below = np.array(pairs).T
    assert ratio(above * factor, below * factor).mean == pytest.approx(ratio(above, below).mean, rel=1e-9)


def test_the_interval_holds_the_true_ratio_in_95_of_100_cases() -> None:
    """Pairs share a drift of 30 %, and each run scatters by 5 %: 2,000 comparisons of 4 pairs, true ratio 3."""
    rng = np.random.default_rng(7)
    drift = np.exp(0.3 * rng.standard_normal((2000, 4)))
    a, b = (rate * drift * np.exp(0.05 * rng.standard_normal((2000, 4))) for rate in (10.0, 30.0))
    found = [ratio(b[i], a[i]) for i in range(2000)]
    inside = np.mean([one.low <= 3 <= one.high for one in found])
    assert inside == pytest.approx(0.95, abs=0.015)  # 3 standard errors of 2,000 draws
    assert np.mean([one.high / one.low for one in found]) < 1.5  # the drift is not in it


def test_no_difference_is_said_to_be_none() -> None:
    assert ratio([1.0, 2.0, 1.0], [1.1, 1.9, 1.0]).sure is False
    assert "no difference" in str(ratio([1.0, 2.0, 1.0], [1.1, 1.9, 1.0]))


def test_shorter_latency_is_a_speed_up() -> None:
    slow = Stats(1.0, 10.0, 6.0, 7.0, 7.0, 1.0, 1.0, 1.0, 1.0, 1)
    fast = Stats(2.0, 30.0, 1.5, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1)
    gain = speed_up([slow, slow], [fast, fast])
    assert (gain.requests_per_s.mean, gain.output_tokens_per_s.mean, gain.latency.mean) == (2.0, 3.0, 4.0)
