"""Numbers written for people: three significant digits, thousands separators, times in the unit that fits."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def significant(value: float, digits: int = 3) -> str:
    """`value` with `digits` significant digits, never in scientific notation between 0.001 and 10^15.

    >>> significant(12345.6), significant(0.83333), significant(20.0), significant(41)
    ('12,346', '0.833', '20', '41')
    """
    if not math.isfinite(value):
        return "—" if math.isnan(value) else "∞" if value > 0 else "-∞"
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def milliseconds(seconds: float) -> str:
    """A time for people: milliseconds below ten seconds, seconds above.

    >>> milliseconds(0.0412), milliseconds(12.34), milliseconds(1.0), milliseconds(math.nan)
    ('41.2 ms', '12.3 s', '1,000 ms', '—')
    """
    if not math.isfinite(seconds):
        return significant(seconds)
    return f"{significant(seconds)} s" if seconds >= 10 else f"{significant(seconds * 1000)} ms"


def percent(share: float, decimals: int = 0, *, sign: bool = False) -> str:
    """A share in percent; a dash where it is not known.

    >>> percent(0.2), percent(0.0814, 1), percent(0.25, sign=True), percent(math.nan, sign=True)
    ('20 %', '8.1 %', '+25 %', '—')
    """
    if math.isnan(share):
        return "—"
    return f"{100 * share:{'+' if sign else ''}.{decimals}f} %"


# --- Interpolation that overshoots nowhere: between two neighbours the curve stays between their values

Floats = NDArray[np.float64]


def interpolated(at: float, x: Floats, y: Floats) -> float:
    """The value at `at` of a smooth curve through the points (x, y), both shape (n,), n from 2 on, x ascending.

    Piecewise cubic with the slopes of Fritsch and Butland (1984), as ``scipy.interpolate.PchipInterpolator`` has them,
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
