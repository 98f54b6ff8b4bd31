"""What the points measured so far say of a question: how many GPUs, how sure, and which errors of the law matter."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from sizing.band import MONTE_CARLO_SIGMA, Z90
from sizing.candidates import from_fit
from sizing.capacity import BY_FORMULA, Setting, load_response
from sizing.curves import Point
from sizing.fitting import Fit, fit
from sizing.fitting.levels import concurrency
from sizing.fitting.search import POOR
from sizing.plan import Fleet, Question, Rejection
from sizing.planner import setting_of, size
from sizing.replica import Replica

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Belief:
    """A fitted law, the fleet it asks for, and what its errors do to that.

    The errors of the law are independent standard normal variables, one along each pair of ``fitted.variants``: eight,
    and one for each number fitted beside the coefficients. `effects`, shape (pairs,): the
    change of `margin` (see there) when one of them rises by one. `surplus`: margin of the fitted law over the least
    margin at which the SLA is met at all; negative when it is not.
    """

    fitted: Fit
    sized: Fleet | Rejection
    effects: Floats
    surplus: float

    @property
    def sigma(self) -> float:
        """Standard error of the log of a replica's capacity."""
        return float(math.hypot(MONTE_CARLO_SIGMA, *self.effects))

    @property
    def working(self) -> int | None:
        """Replicas that carry the load; None when no number of them meets the SLA."""
        return self.sized.working if isinstance(self.sized, Fleet) else None

    def is_narrow(self, band: float) -> bool:
        """True when the 90 % band of the count spans one replica or `band` of the count, or surely no count will do."""
        if isinstance(self.sized, Rejection):
            return self.surplus + Z90 * self.sigma < 0
        low, high = self.sized.working_low, self.sized.working_high
        return high is not None and high - low <= max(1.0, band * self.sized.working)

    def sigma_for(self, band: float) -> float:
        """The standard error at which the count would be narrow."""
        half = 0.5 * max(band, 1 / self.sized.working) if isinstance(self.sized, Fleet) else -self.surplus
        return max(MONTE_CARLO_SIGMA, half / Z90)

    @property
    def misfit(self) -> bool:
        """True when the law misses the points by over `MISFIT` measurement errors: more points do not cure that."""
        return self.fitted.chi2_per_point > MISFIT**2

    @property
    def beyond(self) -> float | None:
        """Requests that a planned replica would hold at once, where that is more than was measured; else None."""
        if isinstance(self.sized, Rejection) or self.sized.in_flight <= 1.1 * self.fitted.calibrated.concurrency:
            return None
        return self.sized.in_flight

    @property
    def warning(self) -> str:
        """What the fit says of a law that misses the points, empty when it does not."""
        return self.fitted.warnings[0] if self.fitted.chi2_per_point > POOR else ""

    def __str__(self) -> str:
        if isinstance(self.sized, Rejection):
            return f"no GPU count: {self.sized.why}"
        high = "no upper end" if self.sized.gpus_high is None else f"{self.sized.gpus_high}"
        return f"{self.sized.gpus} GPUs, 90 % band {self.sized.gpus_low} to {high}"


MISFIT = 5.0
"""Of an engine that follows the law roughly they come to 3; disturbed levels make them 10 or more."""


def usable(points: tuple[Point, ...]) -> tuple[Point, ...]:
    """The points that a law is fitted to: closed loop, not void."""
    return tuple(point for point in points if point.load_kind == "concurrency" and not point.void)


@lru_cache(maxsize=32)
def believe(points: tuple[Point, ...], question: Question) -> Belief | None:
    """What `points` say; None while they are of fewer than two concurrencies. The same points give the same belief.

    Raises FitError for points of several deployments. Takes about a second, and nothing a second time.
    """
    good = usable(points)
    if len({concurrency(point) for point in good}) < 2:
        return None
    fitted = fit(good)
    sized = size(question, from_fit(fitted, question.workload.lengths), BY_FORMULA)
    setting = setting_of(question, sized.working if isinstance(sized, Fleet) else 1)
    effects = [(margin(slower, setting) - margin(faster, setting)) / 2 for faster, slower in fitted.variants]
    return Belief(fitted, sized, np.array(effects), surplus(fitted.replica, setting))


def margin(replica: Replica, setting: Setting) -> float:
    """Log of the requests/s that a replica carries under the SLA.

    A replica that misses the SLA even alone has, in place of it, the log of the lowest rate asked for less the log of
    how far it is over the limit: the quantity goes on without a jump where capacity ends.
    """
    response = load_response(replica, setting)
    capacity_per_s = response.rate_per_s(0.0)
    if capacity_per_s > 0:
        return math.log(capacity_per_s)
    return math.log(response.rates_per_s[0]) - float(response.excess[0])


def surplus(replica: Replica, setting: Setting) -> float:
    """`margin` over that of a replica which just meets the SLA alone."""
    return margin(replica, setting) - math.log(load_response(replica, setting).rates_per_s[0])
