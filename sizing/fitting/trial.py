"""One batching rule and the law that fits it best: least squares with the simulator as forward model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import least_squares

from sizing.curves import Point
from sizing.fitting.first_guess import guess
from sizing.replica import Batching, Replica
from sizing.simulator.replay import Floats, Replay, concurrency, measured_means
from sizing.steptime import COEFFICIENTS, StepLaw

RATE_SIGMA, TTFT_SIGMA, ITL_SIGMA = 0.02, 0.05, 0.02
"""Relative errors granted to a measured requests/s, mean TTFT and mean ITL, beside those of the sample."""
QUEUED_TTFT_SIGMA = 0.5
"""The same for TTFT with more users than slots: it is then a small difference of large numbers."""


def granted(point: Point, batching: Batching) -> tuple[float, float, float]:
    """Relative errors of the three means of a point: the instrument's, and the luck of the lengths drawn.

    Where the point does not tell its requests, ten per user are assumed.
    """
    users = concurrency(point)
    requests = point.requests or 10 * users
    ttft = QUEUED_TTFT_SIGMA if users > batching.max_batch_size else TTFT_SIGMA
    return (
        float(np.hypot(RATE_SIGMA, point.osl_cv / np.sqrt(requests))),
        float(np.hypot(ttft, point.isl_cv / np.sqrt(requests))),
        ITL_SIGMA,
    )


def best_of(trials: Sequence[Trial]) -> Trial:
    """The batching rule that fits best: a rough search for all, a finer one for those near the best.

    The rough search takes large misfits at their face; softened from the start, a point far off would have no pull.
    """
    quick = min(trial.search(evaluations=8, stride=0.1).cost for trial in trials)
    near = [trial for trial in trials if trial.cost <= 2.5 * quick]
    for trial in near:
        trial.search_from_less_attention()
        trial.robust = True
        trial.search(evaluations=8, stride=0.03)
    return min(near, key=lambda trial: trial.cost)


class Trial:
    """One batching rule and the law that fits it best so far."""

    def __init__(
        self, points: Sequence[Point], batching: Batching, prior: StepLaw | None, together: bool = False
    ) -> None:
        self.batching, self.together = batching, together
        self._centre, self._sigma = guess(points, prior)
        self.log_law = self._centre
        self.robust = False  # soften large misfits
        self.replay = Replay(points, self.replica, together)
        self._measured = measured_means(points)
        self._errors = np.array([granted(point, batching) for point in points])
        self._known = np.isfinite(self._measured)

    @property
    def replica(self) -> Replica:
        """The engine at the present coefficients."""
        return self.replica_at(self.log_law)

    def replica_at(self, log_law: Floats) -> Replica:
        """The engine with these logarithms of the coefficients."""
        return Replica(StepLaw(*(float(value) for value in np.exp(log_law))), self.batching)

    def search(self, evaluations: int, stride: float) -> Trial:
        """Move the law towards the least sum of squares, in at most so many steps.

        Slopes are differences over `stride` (of the logarithms): a wide one sees past the small jumps that the
        simulated TTFT makes when an arrival falls into another iteration.
        """
        found = least_squares(
            self.residuals,
            self.log_law,
            jac=lambda log_law: self._slopes(log_law, stride),
            max_nfev=evaluations,
            xtol=1e-3,
            ftol=1e-4,
            x_scale=0.1,
        )
        self.log_law, self.cost = found.x, float(found.cost)
        return self

    def search_from_less_attention(self) -> None:
        """Search again from a quarter of the guessed attention, and keep the better of the two.

        A prompt's time splits into arithmetic, attention and fixed parts in ways that look alike from a rough start.
        """
        first, first_cost = self.log_law, self.cost
        self.log_law = self._centre + np.log(0.25) * (np.array(COEFFICIENTS) == "attention_s")
        if self.search(evaluations=8, stride=0.1).cost > first_cost:
            self.log_law = first

    def residuals(self, log_law: Floats) -> Floats:
        """Misfits of the points in standard errors, large ones softened; then the distance from the prior."""
        misfit = self.misfit(log_law)
        soft = misfit * np.sqrt(2 / (1 + np.sqrt(1 + misfit**2))) if self.robust else misfit
        return np.concatenate([soft, (log_law - self._centre) / self._sigma])

    def misfit(self, log_law: Floats) -> Floats:
        """log(predicted / measured) over the measurement error, for everything that was measured."""
        means = self.replay.means(self.replica_at(log_law))
        misfit: Floats = (np.log(means / self._measured) / self._errors)[self._known]
        return misfit

    def _slopes(self, log_law: Floats, stride: float) -> Floats:
        here = self.residuals(log_law)
        moves = stride * np.eye(len(log_law))
        return np.stack([(self.residuals(log_law + move) - here) / stride for move in moves], axis=1)

    @property
    def chi2_per_point(self) -> float:
        """Mean squared misfit of the present law."""
        return float(np.mean(self.misfit(self.log_law) ** 2))

    def wide_slopes(self, stride: float = 0.3) -> Floats:
        """Slopes of the residuals, central and over so wide a stride that they show what the data can tell.

        Over short ones the jumps of the simulated TTFT look like knowledge of coefficients that nothing identifies.
        """
        moves = stride * np.eye(len(self.log_law))
        sides = [(self.residuals(self.log_law + move), self.residuals(self.log_law - move)) for move in moves]
        return np.stack([(above - below) / (2 * stride) for above, below in sides], axis=1)

    def leave_one_out(self, slopes: Floats) -> float:
        """Median relative error of requests/s and ITL, each point predicted without its own help."""
        at_optimum = self.residuals(self.log_law)
        point_of_row = np.repeat(np.arange(len(self._known)), self._known.sum(axis=1))
        held_out = []
        for point in range(len(self._known)):
            own = np.flatnonzero(point_of_row == point)
            rest = np.delete(slopes, own, axis=0)
            log_law = self.log_law + np.linalg.solve(rest.T @ rest, slopes[own].T @ at_optimum[own])
            relative = self.replay.means(self.replica_at(log_law))[point] / self._measured[point] - 1
            held_out += [abs(relative[place]) for place in (0, 2) if self._known[point, place]]
        return float(np.median(held_out))
