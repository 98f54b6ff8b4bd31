"""Requests as integration points: low-discrepancy deviates, and the quantile functions that turn them into quantities.

Every quantity is a continuous, increasing function of its deviate and its mean, so that percentiles move smoothly and
in the right direction when the rate moves: what a search by bisection needs, and random draws do not give.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from sizing.compiled import compiled_apart
from sizing.numbers import Floats

# --- Scrambled Sobol points: a net that fills the unit cube far more evenly than random points do
#
# Numbers and order as in ``scipy.stats.qmc.Sobol``, bit for bit, without the half second that importing it takes.

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


POINTS_LOG2 = 13
"""8,192 points: p99 rests on 82 of them; from seed to seed p95 moves by up to 0.7 % (sd), p99 by up to 1.5 %."""
LEAST_LOG = -100.0
"""Probabilities with a smaller logarithm are treated as zero; denormal numbers slow a processor down."""


class Points(NamedTuple):
    """One array per source of chance: uniform on (0, 1) for the first UNIFORM, standard normal for the rest."""

    state: Floats
    row: Floats
    iteration: Floats
    moment: Floats
    before: Floats
    after: Floats
    group_before: Floats
    group_after: Floats
    hit: Floats
    before_tokens: Floats
    after_tokens: Floats
    isl: Floats
    osl: Floats
    life: Floats
    context: Floats
    slot: Floats
    luck: Floats


UNIFORM = 9


@lru_cache(maxsize=8)
def low_discrepancy_points(seed: int) -> Points:
    """Scrambled Sobol points; read-only, since shared. Their order means nothing: by `state`, tables are searched in
    sequence, which is several times as fast as at random."""
    (rng,) = np.random.default_rng(seed).spawn(1)  # as scipy's engine does: the points are the same
    columns = sobol_points(len(Points._fields), POINTS_LOG2, rng)
    columns = np.clip(columns[:, np.argsort(columns[0])], 1e-9, 1 - 1e-9)
    columns[UNIFORM:] = ndtri(columns[UNIFORM:])
    columns.setflags(write=False)
    return Points(*columns)


def poisson_counts(mean: Floats, uniform: Floats) -> Floats:
    """Poisson quantiles (n,): by summing probabilities up to mean 30, by Cornish-Fisher (within 1) above."""
    small = np.minimum(mean, 30.0)
    count = _summed_counts(small, np.exp(-small), uniform)
    if mean.max(initial=0) <= 30:
        return count
    z = ndtri(uniform)
    large = np.rint(mean + np.sqrt(mean) * z + (z * z - 1) / 6)
    return np.where(mean > 30, np.maximum(large, 0.0), count)


MOST_SUMMED = 99
"""Probabilities summed at most: at a mean of 30 the rest is nothing."""


@compiled_apart
def _summed_counts(mean: Floats, none: Floats, uniform: Floats) -> Floats:
    """The least counts whose probabilities, `none` for 0, sum up to `uniform`."""
    count = np.zeros(len(mean))
    for place in range(len(mean)):
        sought, term = uniform[place], none[place]
        reached, number = term, 0
        while sought > reached and number < MOST_SUMMED:
            number += 1
            term = term * mean[place] / number
            reached += term
        count[place] = number
    return count


@compiled_apart
def poisson_chances(means: Floats, counts: int) -> Floats:
    """P(0), .. P(`counts` - 1) of Poisson variables with these `means` (n,), shape (n, counts); the last holds all
    beyond.

    From the likeliest count down and up, each from the one beside it: one exponential a variable, and nothing that
    underflows on the way.
    """
    least = math.exp(LEAST_LOG)
    chances = np.empty((len(means), counts))
    for row in range(len(means)):
        mean, chance = max(means[row], least), chances[row]
        likeliest = min(int(mean), counts - 1)
        log = likeliest * math.log(mean) - mean - math.lgamma(likeliest + 1.0)
        chance[likeliest] = math.exp(max(log, LEAST_LOG))
        for count in range(likeliest, 0, -1):
            chance[count - 1] = max(chance[count] * count / mean, least)
        for count in range(likeliest + 1, counts):
            chance[count] = max(chance[count - 1] * mean / count, least)
        chance[counts - 1] += max(1 - chance.sum(), 0.0)
    return chances


def token_sum(count: Floats, mean: float, cv: float, normal: Floats) -> Floats:
    """Quantiles of the sum of `count` lognormal lengths: lognormal of the same mean and variance (Fenton-Wilkinson)."""
    if cv == 0:
        return count * mean
    sigma_square = np.log1p(cv * cv / np.maximum(count, 1.0))
    return np.asarray(count * mean * np.exp(np.sqrt(sigma_square) * normal - sigma_square / 2))


@compiled_apart
def gamma_quantile(shape: Floats, normal: Floats) -> Floats:
    """Quantiles of a Gamma variable of mean 1, both (n,) (Wilson-Hilferty): within 2 % from p50 to p99 for shapes above
    1."""
    found = np.empty(len(shape))
    for place in range(len(shape)):
        spread = 1 / (3 * math.sqrt(shape[place]))
        cube_root = max(1 - spread * spread + normal[place] * spread, 0.0)
        found[place] = cube_root * cube_root * cube_root
    return found
