"""Least squares by scipy, loaded when the first fit asks for it: a plan from estimates does without."""

from __future__ import annotations

from typing import Any


def least_squares(*arguments: Any, **options: Any) -> Any:
    """As ``scipy.optimize.least_squares``, whose import costs a quarter of a second."""
    from scipy.optimize import least_squares as minimize

    return minimize(*arguments, **options)
