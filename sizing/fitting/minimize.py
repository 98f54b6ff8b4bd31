"""Least squares and roots by scipy, loaded when the first fit asks for them: a plan from estimates does without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def least_squares(*arguments: Any, **options: Any) -> Any:
    """As ``scipy.optimize.least_squares``, whose import costs a quarter of a second."""
    from scipy.optimize import least_squares as minimize

    return minimize(*arguments, **options)


def root(function: Callable[[float], float], low: float, high: float, **options: Any) -> float:
    """As ``scipy.optimize.brentq``."""
    from scipy.optimize import brentq

    return float(brentq(function, low, high, **options))
