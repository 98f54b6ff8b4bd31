"""How sure the fitted numbers are: the curvature of the cost around the best ones, measured where it matters."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sizing.fitting.trial import Trial

Floats = NDArray[np.float64]

LEAST, MOST = 0.2, 2.0
"""The correction changes no variance beyond these shares: the cost of a simulation is not smooth."""


def covariance_of(trial: Trial, slopes: Floats) -> Floats:
    """Covariance of the numbers, shape (names, names), widened where the misfits exceed the errors of
    measurement and law.

    The inverse of J'J starts it. Logarithms of coefficients that hardly count have little slope, and far too wide a
    standard error follows: made five times as large such a coefficient does count, and the points speak against it. So
    the cost is looked at one standard error away to both sides along every eigenvector, where it should have risen by a
    half, and the variance there corrected in proportion (a Laplace approximation by secants).
    """
    covariance = _corrected(trial, np.asarray(np.linalg.inv(slopes.T @ slopes), np.float64))
    widened: Floats = covariance * max(1.0, trial.unexplained)
    return widened


def _corrected(trial: Trial, covariance: Floats) -> Floats:
    variances, directions = np.linalg.eigh(covariance)
    here = trial.cost_at(trial.numbers)
    for place, direction in enumerate(directions.T):
        step = np.sqrt(variances[place]) * direction
        rise = np.mean([trial.cost_at(trial.numbers + step), trial.cost_at(trial.numbers - step)]) - here
        variances[place] *= np.clip(0.5 / max(float(rise), 1e-9), LEAST, MOST)
    corrected: Floats = (directions * variances) @ directions.T
    return corrected
