"""How certain a figure is: Student's t, batch means of requests that share a queue, intervals of shares and
percentiles.

scipy.special is imported by the first quantile, because it takes a third of a second: a load generator's processes
import this module and never need it.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from sizing.errors import ScenarioError
from sizing.numbers import Floats

BATCHES = 20
"""Batches of consecutive requests. Longer batches depend less on their neighbours, and more than 20 would barely narrow
the interval (Student's t at 95 %: 1.73 with 20, 1.65 with 1000): hence only 20."""
CONFIDENCE = 0.9
Z90 = 1.645
"""Standard errors to either side of the mean that hold 90 % of a normal law."""
MOST_CORRELATION = 0.9


def t_quantile(degrees: float, share: float) -> float:
    """The value below which a t-distributed variable of `degrees` degrees of freedom lies with probability `share`.

    >>> round(t_quantile(10, 0.975), 3)
    2.228
    """
    from scipy.special import stdtrit

    return float(stdtrit(degrees, share))


def mean_half_width(values: Floats, confidence: float = CONFIDENCE) -> float:
    """Half the width of the confidence interval of the mean of independent `values`, shape (n,), n from 2 on.

    >>> round(mean_half_width(np.array([1.0, 2.0, 3.0])), 3)
    1.686
    """
    error = values.std(ddof=1) / math.sqrt(len(values))
    return float(t_quantile(len(values) - 1, (1 + confidence) / 2) * error)


def inflation(residuals: Floats, fitted: int) -> float:
    """The factor by which correlation r of neighbours inflates the variance of a fit: (1 + r)/(1 - r), from 1 to 19.

    r is the lag-1 correlation of `residuals`, corrected for its bias: fitting `fitted` coefficients makes neighbours
    look opposed by about (fitted + 4 r)/n (Kendall 1954). Opposed neighbours count as independent.
    """
    spread = float(residuals @ residuals)
    if spread == 0:
        return 1.0
    raw = float(residuals[1:] @ residuals[:-1]) / spread
    corrected = raw + (fitted + 4 * max(0.0, raw)) / len(residuals)
    correlation = min(MOST_CORRELATION, max(0.0, corrected))
    return (1 + correlation) / (1 - correlation)


def half_width(means: Floats, confidence: float) -> float:
    """Half width of the confidence interval of the mean of batch `means`, in their unit.

    Student's t on the batch means; remaining correlation between neighbours inflates the variance and reduces the
    degrees of freedom alike.
    """
    n = len(means)
    residuals = means - means.mean()
    factor = inflation(residuals, fitted=1)
    freedom = max(1.0, (n - 1) / factor)
    error = math.sqrt(float(residuals @ residuals) / (n - 1) / n * factor)
    return t_quantile(freedom, (1 + confidence) / 2) * error


def batch_shares(hits: NDArray[np.bool_], batches: int) -> Floats:
    """Share of `hits` in each of `batches` equal batches of consecutive requests; the first, left over, are dropped."""
    size = len(hits) // batches
    return np.asarray(hits[len(hits) - size * batches :].reshape(batches, size).mean(axis=1))


def share_error(hits: NDArray[np.bool_]) -> float:
    """Half the width of the 90 % interval of the share of `hits` among consecutive requests, by batch means.

    The shares of 20 batches scatter around the overall share; if neighbouring batches are correlated (lag-1
    correlation r) they count as (1 - r) / (1 + r) of their number, as in a first-order autoregression. If the
    shares do not scatter at all (none, or all), the rule of three applies: 3 / n.

    Raises ScenarioError for fewer than 40 requests.
    """
    if len(hits) < 2 * BATCHES:
        raise ScenarioError(f"an interval needs {2 * BATCHES} requests or more, got {len(hits)}")
    shares = batch_shares(hits, BATCHES)
    centred = shares - shares.mean()
    scatter = float(centred @ centred)
    if scatter == 0:
        return 3 / len(hits)
    r = min(max(float(centred[1:] @ centred[:-1]) / scatter, 0.0), MOST_CORRELATION)
    error = math.sqrt(scatter / (BATCHES - 1) / BATCHES * (1 + r) / (1 - r))
    return t_quantile(BATCHES - 1, (1 + CONFIDENCE) / 2) * error


def quantile_interval(values: Floats, percentile: float) -> tuple[float, float]:
    """90 % interval of a percentile of consecutive values: where the values beyond it may be more or fewer.

    The share beyond the sample's percentile has an error by batch means; read off the sample at the two shares, it is
    an interval of the percentile that needs no density (Woodruff 1952). On M/M/1 queues, where the truth is known, 86
    to 93 % of the intervals hold it (p50 to p99, 20,000 requests, load up to 0.8); of p99 at load 0.9 77 % (60,000).
    """
    if len(values) == 0:
        raise ScenarioError(f"an interval needs {2 * BATCHES} requests or more, got none with this metric")
    middle = float(np.percentile(values, percentile))
    error = 100 * share_error(values > middle)
    low, high = np.percentile(values, (max(percentile - error, 0.0), min(percentile + error, 100.0)))
    return float(low), float(high)


def weighted_quantiles(values: Floats, weight: Floats, shares: Floats) -> Floats:
    """For each of `shares` (0 to 1), the smallest value with at least that fraction of the weight at or below it.

    >>> weighted_quantiles(np.array([1.0, 2.0, 3.0]), np.array([0.5, 1.0, 1.0]), np.array([0.2, 0.5, 0.9]))
    array([1., 2., 3.])
    """
    return np.asarray(np.quantile(values, shares, weights=weight, method="inverted_cdf"))


def rank(share: float, count: int) -> int:
    """Index of a quantile among `count` sorted values: at most 1 - share of them lie above."""
    return min(max(math.ceil(share * count - 1e-9) - 1, 0), count - 1)


def interpolated(at: float, x: Floats, y: Floats) -> float:
    """The value at `at` of a smooth curve through the points (x, y), both shape (n,), n from 2 on, x ascending.

    Piecewise cubic with the slopes of Fritsch and Butland (1984), as in ``scipy.interpolate.PchipInterpolator``,
    without the half second that importing it takes. Monotone wherever the points are; exact for a straight line.

    >>> interpolated(1.5, np.array([0.0, 1.0, 2.0]), np.array([0.0, 2.0, 4.0]))
    3.0
    """
    left = int(np.clip(np.searchsorted(x, at, side="right") - 1, 0, len(x) - 2))
    slopes = monotone_slopes(x, y)
    width, rise = x[left + 1] - x[left], y[left + 1] - y[left]
    start, end = slopes[left] * width, slopes[left + 1] * width
    t = (at - x[left]) / width
    return float(y[left] + t * (start + t * (3 * rise - 2 * start - end + t * (start + end - 2 * rise))))


def monotone_slopes(x: Floats, y: Floats) -> Floats:
    """Slopes at the points, shape (n,): weighted harmonic means of the two secants, 0 where these differ in sign."""
    widths = np.diff(x)
    secants = np.diff(y) / widths
    if len(x) == 2:
        return np.repeat(secants, 2)
    before, after = secants[:-1], secants[1:]
    weight = (2 * widths[1:] + widths[:-1]) / (3 * (widths[1:] + widths[:-1]))
    same = before * after > 0
    mean = np.where(same, weight * after + (1 - weight) * before, 1.0)
    inner = np.where(same, before * after / mean, 0.0)
    first = _end_slope(widths[0], widths[1], secants[0], secants[1])
    last = _end_slope(widths[-1], widths[-2], secants[-1], secants[-2])
    return np.concatenate([[first], inner, [last]])


def _end_slope(width: float, next_width: float, secant: float, next_secant: float) -> float:
    """Slope of the parabola through the three points at an end, bent no further than keeps the shape."""
    slope = ((2 * width + next_width) * secant - width * next_secant) / (width + next_width)
    if slope * secant <= 0:
        return 0.0
    if secant * next_secant <= 0 and abs(slope) > 3 * abs(secant):
        return 3 * secant
    return slope
