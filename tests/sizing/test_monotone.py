"""Monotone interpolation: through the points, never beyond its neighbours, and as another implementation does it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.interpolate import PchipInterpolator

from sizing.stats import interpolated

steps = st.lists(
    st.tuples(st.floats(0.01, 10), st.floats(-5, 5).map(lambda step: round(step, 6))), min_size=1, max_size=9
)
shares = st.floats(0, 1)


def curve(moves: list[tuple[float, float]]) -> tuple[np.ndarray, np.ndarray]:
    """Points that many steps apart, from (0, 0) on."""
    return tuple(np.cumsum([(0.0, 0.0), *moves], axis=0).T)


@given(moves=steps, share=shares)
def test_as_another_implementation(moves: list[tuple[float, float]], share: float) -> None:
    x, y = curve(moves)
    at = share * x[-1]
    assert np.isclose(interpolated(at, x, y), PchipInterpolator(x, y)(at), rtol=1e-9, atol=1e-9)


@given(moves=steps, share=shares)
def test_no_value_lies_beyond_the_two_points_beside_it(moves: list[tuple[float, float]], share: float) -> None:
    x, y = curve(moves)
    at = share * x[-1]
    left = min(int(np.searchsorted(x, at, side="right")) - 1, len(x) - 2)
    low, high = sorted(y[left : left + 2])
    assert low - 1e-9 <= interpolated(at, x, y) <= high + 1e-9


@given(moves=steps)
def test_it_goes_through_the_points(moves: list[tuple[float, float]]) -> None:
    x, y = curve(moves)
    assert np.allclose([interpolated(float(at), x, y) for at in x], y, rtol=1e-9, atol=1e-9)
