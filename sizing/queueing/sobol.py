"""Scrambled Sobol points: a net that fills the unit cube far more evenly than random points do.

Numbers and order as in ``scipy.stats.qmc.Sobol``, bit for bit, without the half second that importing it takes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.uint32]

BITS = 30
"""Binary digits of a coordinate."""

_POLYNOMIALS = (
    (0, (1,)),
    (1, (1, 3)),
    (1, (1, 3, 1)),
    (2, (1, 1, 1)),
    (1, (1, 1, 3, 3)),
    (4, (1, 3, 5, 13)),
    (2, (1, 1, 5, 5, 17)),
    (4, (1, 1, 5, 5, 5)),
    (7, (1, 1, 7, 11, 19)),
    (11, (1, 1, 5, 1, 1)),
    (13, (1, 1, 1, 3, 11)),
    (14, (1, 3, 5, 5, 31)),
    (1, (1, 3, 3, 9, 7, 49)),
    (13, (1, 1, 1, 15, 21, 21)),
    (16, (1, 3, 1, 13, 27, 49)),
    (19, (1, 1, 1, 15, 7, 5)),
)
"""Of dimensions 2 on: inner coefficients of a primitive polynomial over {0, 1} in binary, and the first direction
numbers m, as many as its degree (Joe and Kuo 2008, new-joe-kuo-6.21201)."""

MOST_DIMENSIONS = 1 + len(_POLYNOMIALS)


def sobol_points(dimensions: int, log2_points: int, rng: np.random.Generator) -> Floats:
    """2^`log2_points` points in [0, 1)^`dimensions`, shape (dimensions, points), for up to 17 dimensions.

    Scrambled by a random lower triangular matrix over the digits and a random digital shift (Matousek 1998): every
    point alone is uniform, together they stay a net.
    """
    if not (1 <= dimensions <= MOST_DIMENSIONS and 0 <= log2_points <= BITS):
        raise ValueError(f"{dimensions} dimensions (1 to {MOST_DIMENSIONS}), 2^{log2_points} points (0 to {BITS})")
    powers = 2 ** np.arange(BITS, dtype=np.uint32)
    points = np.repeat(rng.integers(2, size=(dimensions, BITS), dtype=np.uint32) @ powers, 2**log2_points)
    points = points.reshape(dimensions, -1)
    matrix = np.tril(rng.integers(2, size=(dimensions, BITS, BITS), dtype=np.uint32), -1) + np.eye(BITS, dtype="u4")
    directions = np.array([direction_numbers(dimension, log2_points) for dimension in range(dimensions)], np.uint32)
    digits = directions.reshape(dimensions, log2_points, 1) >> np.arange(BITS - 1, -1, -1, dtype=np.uint32) & 1
    scrambled = (digits @ matrix.swapaxes(1, 2) & 1) @ powers[::-1]
    index = np.arange(2**log2_points, dtype=np.uint32)
    gray = index ^ index >> 1  # neighbours in this order differ in one digit; the set of points is the same
    for place in range(log2_points):
        points ^= scrambled[:, place, None] * (gray >> place & 1)
    return points / 2.0**BITS


def direction_numbers(dimension: int, count: int) -> list[int]:
    """The first `count` direction numbers of a dimension, from 0, as fractions of 2^BITS.

    With degree s and coefficients a, m(k) = 2 a1 m(k-1) xor 4 a2 m(k-2) xor ... xor 2^s m(k-s) xor m(k-s).
    """
    if dimension == 0:
        return [1 << (BITS - 1 - place) for place in range(count)]
    inner, first = _POLYNOMIALS[dimension - 1]
    degree, numbers = len(first), list(first[:count])
    while len(numbers) < count:
        number = numbers[-degree] ^ numbers[-degree] << degree
        for back in range(1, degree):
            if inner >> (degree - 1 - back) & 1:
                number ^= numbers[-back] << back
        numbers.append(number)
    return [number << (BITS - 1 - place) for place, number in enumerate(numbers)]
