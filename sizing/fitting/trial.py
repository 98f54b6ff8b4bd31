"""One batching rule and the law that fits it best: least squares with the simulator as forward model."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sizing.fitting.law_error import EXACT, law_error
from sizing.fitting.levels import FULL, Effort
from sizing.fitting.minimize import least_squares
from sizing.fitting.observed import Observed
from sizing.fitting.parameters import Parameters
from sizing.replica import Replica
from sizing.simulator.replay import GAPS, Replay

Floats = NDArray[np.float64]

WIDE = 0.3
"""Half the width, in logarithms, over which the final slopes are taken."""
FAR = 10.0
"""The first step of a search may change the numbers by this much: the slopes, not a bound, say how far to go."""
LEAST_TO_LEAVE_OUT = 3
"""Points of which one can be predicted from the others."""
LITTLE = 0.01
"""Changes of the law's error that do not move the fit: those of the measurement are 2 to 4 %."""


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
        self.measured = observed.measured.copy()
        if effort is not FULL:
            self.measured[:, -len(GAPS) :] = np.nan
        self.known = np.isfinite(self.measured)
        counted = bool(self.known[:, -len(GAPS) :].any())
        self.replay = Replay(self.runs, parameters.base, token_gaps=counted)
        self.doubt = np.ones(len(observed.points))  # factors on the errors of a point
        self.cost = np.inf
        self.law_error = EXACT
        self.grant(self.replica)

    @property
    def replica(self) -> Replica:
        """The engine at the present numbers."""
        return self.parameters.replica(self.numbers)

    def grant(self, replica: Replica) -> None:
        """Set the errors of the measurement; those of open loops need an engine to be simulated."""
        self._errors = self.observed.errors(replica)

    def allow_for_law(self) -> bool:
        """Set the error of the law by the present misfits, distrusted points aside; False where that is no news."""
        trusted = self.doubt == 1
        logs = self.misfits(self.numbers)[trusted] * self._errors[trusted]
        found = law_error(logs, self._errors[trusted])
        is_news = not np.allclose(found, self.law_error, rtol=0.2, atol=LITTLE)
        self.law_error = found
        return is_news

    def search(self, evaluations: int, stride: float, *, central: bool = False) -> Trial:
        """Move the numbers towards the least cost, in at most so many steps.

        Slopes are differences over `stride`: a wide one sees past the small jumps that the simulated TTFT makes when
        an arrival falls into another iteration. `central` ones, to both sides, are twice the work and twice as good.
        The search runs over the distance from where it starts, so that its tolerances are of that distance.
        """
        start, last = self.numbers, list[tuple[Floats, Floats]]()

        def residuals(move: Floats) -> Floats:
            found = self.residuals(start + move)
            last[:] = [(move.copy(), found)]
            return found

        def slopes(move: Floats) -> Floats:
            if central:
                return self.steep(start + move, stride)
            here = last[0][1] if np.array_equal(last[0][0], move) else self.residuals(start + move)
            moves = stride * np.eye(len(move))
            return np.stack([(self.residuals(start + move + one) - here) / stride for one in moves], axis=1)

        found = least_squares(
            residuals,
            np.zeros_like(start),
            jac=slopes,
            max_nfev=evaluations,
            xtol=1e-3,
            ftol=1e-3,
            x_scale=FAR,
            loss=lambda squares: np.stack([*self.softened(squares), np.zeros_like(squares)]),
        )
        self.numbers, self.cost = start + found.x, float(found.cost)
        return self

    def residuals(self, numbers: Floats) -> Floats:
        """Misfits of the points in standard errors, the law's included; then the distance from the prior."""
        misfit = (self.misfits(numbers) / self._widening)[self.known]
        return np.concatenate([misfit, (numbers - self.parameters.centre) / self.parameters.sigma])

    def softened(self, squares: Floats) -> tuple[Floats, Floats]:
        """What squared residuals count, and the slope of that: those of the points, if robust, grow like |r| in the
        end (soft L1). The slope is the weight in reweighted least squares; without it a step would go twice too far."""
        counts, slopes = squares.copy(), np.ones_like(squares)
        if self.robust:
            own = slice(int(self.known.sum()))
            root = np.sqrt(1 + squares[own])
            counts[own], slopes[own] = 2 * (root - 1), 1 / root
        return counts, slopes

    def misfits(self, numbers: Floats) -> Floats:
        """log(predicted / measured) over the measurement error, shape (points, 8); NaN where nothing was measured."""
        means = self.replay.means(self.parameters.replica(numbers))
        misfits: Floats = np.log(means / self.measured) / (self._errors * self.doubt[:, None])
        return misfits

    @property
    def chi2_per_point(self) -> float:
        """Mean squared misfit of the present law, over the errors of the measurement alone."""
        return float(np.mean(self.misfits(self.numbers)[self.known] ** 2))

    @property
    def unexplained(self) -> float:
        """The same over the errors of measurement and law."""
        return float(np.mean((self.misfits(self.numbers) / self._widening)[self.known] ** 2))

    @property
    def _widening(self) -> Floats:
        """The error of measurement and law together over that of the measurement alone, shape (points, 8)."""
        return np.asarray(np.hypot(1, self.law_error.by_measure * self.observed.shares / self._errors))

    def cost_at(self, numbers: Floats) -> float:
        """Half the sum of what the squared residuals count."""
        return float(0.5 * np.sum(self.softened(self.residuals(numbers) ** 2)[0]))

    def steep(self, numbers: Floats, stride: float) -> Floats:
        """Slopes of the residuals at `numbers`, by central differences."""
        moves = stride * np.eye(len(numbers))
        sides = [(self.residuals(numbers + move), self.residuals(numbers - move)) for move in moves]
        return np.stack([(above - below) / (2 * stride) for above, below in sides], axis=1)

    def slopes(self, numbers: Floats) -> Floats:
        """Slopes of the residuals at `numbers`, by their weights, over so wide a stride that they show what the data
        can tell: over short ones the jumps of the simulated TTFT look like knowledge of what nothing identifies."""
        return self.steep(numbers, WIDE) * self._weights(numbers)[:, None]

    def _weights(self, numbers: Floats) -> Floats:
        return np.sqrt(self.softened(self.residuals(numbers) ** 2)[1])

    def leave_one_out(self, slopes: Floats) -> float:
        """Median relative error of requests/s and ITL, each point predicted without its own help.

        One Gauss-Newton step away from the full fit, by the slopes of the other points; NaN below `LEAST_TO_LEAVE_OUT`
        points, where the others say next to nothing.
        """
        if len(self.known) < LEAST_TO_LEAVE_OUT:
            return float("nan")
        at_optimum = self.residuals(self.numbers) * self._weights(self.numbers)
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
