"""One batching rule and the law that fits it best: least squares with the simulator as forward model."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sizing.fitting.levels import FULL, Effort
from sizing.fitting.minimize import least_squares
from sizing.fitting.observed import Observed
from sizing.fitting.parameters import Parameters
from sizing.replica import Replica
from sizing.simulator.replay import Replay

Floats = NDArray[np.float64]

WIDE = 0.3
"""Half the width, in logarithms, over which the final slopes are taken."""


class Trial:
    """One way to explain the levels, and the numbers that do it best so far."""

    def __init__(
        self,
        observed: Observed,
        parameters: Parameters,
        start: Floats | None = None,
        *,
        effort: Effort = FULL,
        robust: bool = False,
    ) -> None:
        self.observed, self.parameters = observed, parameters
        self.robust = robust  # soften large misfits
        self.numbers = parameters.centre if start is None else start
        self.runs = observed.runs(effort)
        self.replay = Replay(self.runs, parameters.base)
        self.measured = observed.measured
        self.known = np.isfinite(self.measured)
        self.doubt = np.ones(len(observed.points))  # factors on the errors of a point
        self.cost = np.inf
        self.grant(self.replica)

    @property
    def replica(self) -> Replica:
        """The engine at the present numbers."""
        return self.parameters.replica(self.numbers)

    def grant(self, replica: Replica) -> None:
        """Set the errors of the measurement; those of open loops need an engine to be simulated."""
        self._errors = self.observed.errors(replica)

    def search(self, evaluations: int, stride: float, *, central: bool = False) -> Trial:
        """Move the numbers towards the least sum of squares, in at most so many steps.

        Slopes are differences over `stride`: a wide one sees past the small jumps that the simulated TTFT makes when
        an arrival falls into another iteration. `central` ones, to both sides, are twice the work and twice as good.
        """
        last: list[tuple[Floats, Floats]] = []

        def residuals(numbers: Floats) -> Floats:
            found = self.residuals(numbers)
            last[:] = [(numbers.copy(), found)]
            return found

        def slopes(numbers: Floats) -> Floats:
            if central:
                return self.slopes(numbers, stride)
            here = last[0][1] if np.array_equal(last[0][0], numbers) else self.residuals(numbers)
            moves = stride * np.eye(len(numbers))
            return np.stack([(self.residuals(numbers + move) - here) / stride for move in moves], axis=1)

        found = least_squares(
            residuals, self.numbers, jac=slopes, max_nfev=evaluations, xtol=1e-3, ftol=1e-3, x_scale=0.1
        )
        self.numbers, self.cost = found.x, float(found.cost)
        return self

    def residuals(self, numbers: Floats) -> Floats:
        """Misfits of the points in standard errors, large ones softened; then the distance from the prior."""
        misfit = self.misfits(numbers)[self.known]
        soft = misfit * np.sqrt(2 / (1 + np.sqrt(1 + misfit**2))) if self.robust else misfit
        return np.concatenate([soft, (numbers - self.parameters.centre) / self.parameters.sigma])

    def misfits(self, numbers: Floats) -> Floats:
        """log(predicted / measured) over the measurement error, shape (points, 6); NaN where nothing was measured."""
        means = self.replay.means(self.parameters.replica(numbers))
        misfits: Floats = np.log(means / self.measured) / (self._errors * self.doubt[:, None])
        return misfits

    @property
    def chi2_per_point(self) -> float:
        """Mean squared misfit of the present law."""
        return float(np.mean(self.misfits(self.numbers)[self.known] ** 2))

    def cost_at(self, numbers: Floats) -> float:
        """Half the sum of the squared residuals."""
        return float(0.5 * np.sum(self.residuals(numbers) ** 2))

    def slopes(self, numbers: Floats, stride: float = WIDE) -> Floats:
        """Slopes of the residuals at `numbers`, central; over so wide a stride that they show what the data can tell.

        Over short ones the jumps of the simulated TTFT look like knowledge of coefficients that nothing identifies.
        """
        moves = stride * np.eye(len(numbers))
        sides = [(self.residuals(numbers + move), self.residuals(numbers - move)) for move in moves]
        return np.stack([(above - below) / (2 * stride) for above, below in sides], axis=1)

    def leave_one_out(self, slopes: Floats) -> float:
        """Median relative error of requests/s and ITL, each point predicted without its own help.

        One Gauss-Newton step away from the full fit, by the slopes of the other points.
        """
        at_optimum = self.residuals(self.numbers)
        point_of_row = np.repeat(np.arange(len(self.known)), self.known.sum(axis=1))
        held_out = []
        for point in range(len(self.known)):
            own = np.flatnonzero(point_of_row == point)
            rest = np.delete(slopes, own, axis=0)
            numbers = self.numbers + np.linalg.solve(rest.T @ rest, slopes[own].T @ at_optimum[own])
            relative = self._row(point, self.parameters.replica(numbers)) / self.measured[point] - 1
            held_out += [abs(relative[place]) for place in (0, 2) if self.known[point, place]]
        return float(np.median(held_out)) if held_out else float("nan")

    def _row(self, point: int, replica: Replica) -> Floats:
        """The figures of one point; only its own runs are simulated."""
        own = [run for run in self.runs if any(window[2] == point for window in run.windows)]
        row: Floats = Replay(own, replica).means(replica)[point]
        return row
