"""Order statistics without sorting are those of the sorted sample."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sizing.prediction import Quantiles
from sizing.selection import order_statistics

KNOWN = st.floats(allow_nan=False)


@given(st.data(), st.one_of(KNOWN, st.floats(0, 1e3), st.sampled_from([0.0, -0.0, 0.5, 0.5000001, 1e300, 5e-324])))
def test_they_are_those_of_the_sorted_sample(data: st.DataObject, common: float) -> None:
    """Of any values in any order, many of them alike; ranks in any order, some of them twice."""
    sample = data.draw(arrays(np.float64, st.integers(1, 60), elements=st.one_of(st.just(common), KNOWN)))
    ranks = np.array(data.draw(st.lists(st.integers(0, len(sample) - 1), min_size=1, max_size=9)))
    assert np.array_equal(order_statistics(sample, ranks), np.sort(sample)[ranks])


@pytest.mark.parametrize("seed", range(3))
def test_of_long_samples_with_ties_zeros_and_far_values(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for sample in (
        rng.lognormal(-3, 1, 50_000),
        rng.pareto(0.5, 50_000),
        np.where(rng.random(50_000) < 0.7, 0.02, rng.gamma(2, 0.1, 50_000)),
        np.where(rng.random(50_000) < 0.3, 0.0, rng.gamma(2, 0.1, 50_000)),
        rng.gamma(2, 0.1, 100_000)[::2],
        1 + 1e-13 * rng.random(50_000),
        np.where(rng.random(50_000) < 0.1, np.inf, rng.gamma(2, 0.1, 50_000)),
    ):
        ranks = np.array([49_999, 0, 25_000, 49_500, 25_001])
        assert np.array_equal(order_statistics(sample, ranks), np.sort(sample)[ranks])


@given(arrays(np.float64, st.integers(1, 300), elements=st.floats(0, 1e3)))
def test_percentiles_are_those_of_numpy(seconds: np.ndarray) -> None:
    found = Quantiles.of(seconds)
    expected = np.percentile(seconds, [50, 90, 95, 99])
    assert [found.p50_s, found.p90_s, found.p95_s, found.p99_s] == pytest.approx(expected, rel=1e-12)
    with_lost = Quantiles.of(np.concatenate([seconds, [np.nan, np.inf]]))
    assert with_lost == found
