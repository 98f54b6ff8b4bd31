"""The iteration-time law fitted to the closed-loop points of one deployment, with its uncertainty and its errors.

The forward model is the simulator itself: it replays every point with a trial law, and scipy's least squares moves the
logarithms of the eight coefficients until requests/s, TTFT and ITL agree. The batching policy, where it is not known,
is the one that leaves the smallest residuals. Only sums of some coefficients can be told from closed loops (weights and
overhead; prefill and request): their priors keep them apart, and the covariance says that they are not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sizing.curves import Deployment, Point
from sizing.errors import FitError
from sizing.fitting.trial import Trial, best_of
from sizing.replica import POLICIES, Batching, Policy, Replica
from sizing.simulator.replay import Floats, concurrency, measured_means
from sizing.steptime import COEFFICIENTS, StepLaw
from sizing.workload import Lengths

POOR = 2.0
"""chi2 per point above which the law or the batching policy is called wrong."""
SLOTS_UNKNOWN = 256
"""max_batch_size where the points do not tell: the default of the common engines."""


class PointError(NamedTuple):
    """One point as the law gives it. Errors are (predicted - measured) / measured; NaN where nothing was measured."""

    point: Point
    requests_per_s: float
    ttft_mean_s: float
    itl_mean_s: float
    requests_per_s_error: float
    ttft_error: float
    itl_error: float


class Range(NamedTuple):
    """What the points cover: the highest concurrency, and the mean lengths from lowest to highest, in tokens."""

    concurrency: int
    isl: tuple[float, float]
    osl: tuple[float, float]

    def covers(self, lengths: Lengths, in_flight: float) -> bool:
        """True for lengths within twice the measured range and at most 1.1 x the measured concurrency."""
        return (
            in_flight <= 1.1 * self.concurrency
            and self.isl[0] / 2 <= lengths.isl <= 2 * self.isl[1]
            and self.osl[0] / 2 <= lengths.osl <= 2 * self.osl[1]
        )


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """A law for one deployment and what is known of its errors.

    `covariance`: of the natural logarithms of the coefficients `names`, widened where the residuals exceed the
    measurement errors. `chi2_per_point`: mean squared residual over the assumed measurement error; 1 is perfect, above
    2 the law or the policy is wrong. `leave_one_out`: median relative error of requests/s and ITL at points that the
    fit had not seen (one Gauss-Newton step from the full fit).
    """

    deployment: Deployment
    law: StepLaw
    batching: Batching
    names: tuple[str, ...]
    covariance: Floats
    errors: tuple[PointError, ...]
    leave_one_out: float
    chi2_per_point: float
    calibrated: Range
    warnings: tuple[str, ...]

    @property
    def replica(self) -> Replica:
        """The fitted engine."""
        return Replica(self.law, self.batching)

    def interval(self, name: str) -> tuple[float, float]:
        """Ends, in seconds, of the 90 % interval of a coefficient."""
        place = self.names.index(name)
        factor = float(np.exp(1.645 * np.sqrt(self.covariance[place, place])))
        value = float(getattr(self.law, name))
        return value / factor, value * factor

    @property
    def variants(self) -> tuple[tuple[Replica, Replica], ...]:
        """Engines one standard error away, faster and slower, along each eigenvector of the covariance.

        For any function f of the engine, the sum over the pairs of ((f(slower) - f(faster)) / 2)^2 is its variance.
        """
        variances, directions = np.linalg.eigh(self.covariance)
        pairs = []
        for variance, direction in zip(variances, directions.T, strict=True):
            shift = np.sqrt(max(variance, 0.0)) * direction
            pair = [Replica(shifted(self.law, sign * shift), self.batching) for sign in (-1, 1)]
            pairs.append((min(pair, key=self._busy_step_s), max(pair, key=self._busy_step_s)))
        return tuple(pairs)

    @property
    def relative_sigma(self) -> float:
        """Standard error, as a share, of the time of a decode step at the highest calibrated concurrency."""
        pairs = [(self._busy_step_s(faster), self._busy_step_s(slower)) for faster, slower in self.variants]
        return float(np.sqrt(sum((np.log(slow_s / fast_s) / 2) ** 2 for fast_s, slow_s in pairs)))

    def covers(self, lengths: Lengths, in_flight: float) -> bool:
        """True where the law is used inside the range it was fitted on: basis "fitted", else "extrapolated"."""
        return self.calibrated.covers(lengths, in_flight)

    def _busy_step_s(self, replica: Replica) -> float:
        batch = min(self.calibrated.concurrency, self.batching.max_batch_size)
        return replica.law.decode_s(batch, batch * (sum(self.calibrated.isl) + sum(self.calibrated.osl) / 2) / 2)


def fit(points: Sequence[Point], *, prior: StepLaw | None = None, batching: Batching | None = None) -> Fit:
    """Fit the law to the closed-loop points of one deployment (other points are left aside; any number of lengths).

    `prior`: a law from elsewhere to lean on, such as a day-zero estimate. `batching`: the engine's, when it is known;
    otherwise the policy is chosen by residual and the batch limit taken from the points.
    Raises FitError without closed-loop points, with several deployments, or with fewer than two load levels.
    """
    closed = _closed_points(points)
    best = _best(closed, batching, prior)
    slopes = best.wide_slopes()
    predicted = best.replay.means(best.replica)
    errors = tuple(_point_error(point, row) for point, row in zip(closed, predicted, strict=True))
    chi2 = best.chi2_per_point
    return Fit(
        deployment=closed[0].deployment,
        law=best.replica.law,
        batching=best.batching,
        names=COEFFICIENTS,
        covariance=np.asarray(np.linalg.inv(slopes.T @ slopes) * max(1.0, chi2), np.float64),
        errors=errors,
        leave_one_out=best.leave_one_out(slopes),
        chi2_per_point=chi2,
        calibrated=_range(closed),
        warnings=_warnings(closed, chi2, best.together),
    )


def _best(points: Sequence[Point], batching: Batching | None, prior: StepLaw | None) -> Trial:
    """The best batching rule; where none fits and lengths are equal, perhaps the users had all started at once."""
    rules = _candidates(points, batching)
    best = best_of([Trial(points, rule, prior) for rule in rules])
    if best.chi2_per_point > POOR and all(point.isl_cv == point.osl_cv == 0 for point in points):
        together = best_of([Trial(points, rule, prior, together=True) for rule in rules])
        if together.cost < best.cost / 2:
            return together
    return best


def shifted(law: StepLaw, log_shift: Floats) -> StepLaw:
    """The law with each coefficient multiplied by the exponential of its shift."""
    factors = zip(COEFFICIENTS, np.exp(log_shift), strict=True)
    return law.with_values(**{name: getattr(law, name) * float(factor) for name, factor in factors})


def _closed_points(points: Sequence[Point]) -> list[Point]:
    closed = [point for point in points if point.load_kind == "concurrency" and not point.void]
    if not closed:
        void = sorted({point.verdict for point in points if point.void})
        why = f"; the others are void: {', '.join(void)}" if void else ""
        raise FitError(f"no closed-loop points (load_kind concurrency): measure at fixed concurrency to fit a law{why}")
    deployments = {point.deployment: None for point in closed}
    if len(deployments) > 1:
        labels = "; ".join(deployment.label for deployment in deployments)
        raise FitError(f"the points are of {len(deployments)} deployments, fit one at a time: {labels}")
    if len({concurrency(point) for point in closed}) < 2:
        raise FitError(
            f"all points have concurrency {concurrency(closed[0])}: measure at two levels or more, such as 1 and 64"
        )
    return closed


def _candidates(points: Sequence[Point], batching: Batching | None) -> list[Batching]:
    if batching is not None:
        return [batching]
    said = points[0].batching.strip().lower()
    slots = points[0].max_batch_size or SLOTS_UNKNOWN
    policies: tuple[Policy, ...] = ("chunked", "prefill_first", "whole_prompt")
    if said in POLICIES:
        policies = tuple(policy for policy in POLICIES if policy == said)
    return [Batching(policy, max_batch_size=slots) for policy in policies]


def _point_error(point: Point, predicted: Floats) -> PointError:
    errors = predicted / measured_means([point])[0] - 1
    return PointError(point, *(float(value) for value in predicted), *(float(error) for error in errors))


def _range(points: Sequence[Point]) -> Range:
    isl, osl = [point.isl for point in points], [point.osl for point in points]
    return Range(max(map(concurrency, points)), (min(isl), max(isl)), (min(osl), max(osl)))


def _warnings(points: Sequence[Point], chi2: float, together: bool) -> tuple[str, ...]:
    found = []
    if chi2 > POOR:
        found.append(
            f"the law misses the points by {np.sqrt(chi2):.1f} times the measurement error: another batching policy, "
            "a KV cache that limits the batch, or a faulty measurement"
        )
    if together:
        found.append(
            "the points look like users who started together and stayed in lockstep, with equal lengths: engine "
            "overheads hide there; measure with lengths that vary, or start the users one after the other"
        )
    if len(points) < 3:
        found.append(f"only {len(points)} points: the law leans on its priors; measure 1, 8, 64 and the batch limit")
    if len({(point.isl, point.osl) for point in points}) == 1:
        found.append("one pair of lengths only: a second, contrasting one tells KV reads from arithmetic")
    return tuple(found)
