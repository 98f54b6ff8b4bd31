"""Sobol points: the published sequence, scrambled as another implementation does, and what makes a net a net."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sizing.queueing.points import MOST_DIMENSIONS, sobol_points


@settings(max_examples=20, deadline=None)
@given(dimensions=st.integers(1, MOST_DIMENSIONS), log2=st.integers(0, 10), seed=st.integers(0, 2**31))
def test_the_points_are_those_of_another_implementation(dimensions: int, log2: int, seed: int) -> None:
    from scipy.stats import qmc  # here, as importing it takes a second, and every worker collects this file

    known = qmc.Sobol(dimensions, rng=np.random.default_rng(seed)).random_base2(log2)
    (rng,) = np.random.default_rng(seed).spawn(1)
    assert np.array_equal(sobol_points(dimensions, log2, rng), known.T)


@settings(max_examples=20, deadline=None)
@given(log2=st.integers(1, 12), seed=st.integers(0, 2**31))
def test_every_coordinate_has_one_point_in_every_slice(log2: int, seed: int) -> None:
    slices = np.floor(sobol_points(MOST_DIMENSIONS, log2, np.random.default_rng(seed)) * 2**log2)
    assert np.array_equal(np.sort(slices, axis=1), np.tile(np.arange(2**log2), (MOST_DIMENSIONS, 1)))


@pytest.mark.parametrize(("dimensions", "log2"), [(0, 3), (MOST_DIMENSIONS + 1, 3), (2, 31), (2, -1)])
def test_what_is_not_tabled_is_refused(dimensions: int, log2: int) -> None:
    with pytest.raises(ValueError, match="dimensions"):
        sobol_points(dimensions, log2, np.random.default_rng(0))
