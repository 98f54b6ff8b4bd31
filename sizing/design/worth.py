"""Levels that could be measured: what each would tell of the question, and how long it would take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sizing.band import MONTE_CARLO_SIGMA
from sizing.curves import Point
from sizing.design.belief import Belief
from sizing.fitting import Fit
from sizing.fitting.levels import concurrency, point_runs
from sizing.fitting.observed import granted
from sizing.replica import Replica
from sizing.simulator.replay import Replay
from sizing.workload import Lengths

Floats = NDArray[np.float64]

MARGIN = 1.1
"""A level must fit the budget even if it takes this much longer than expected, whatever the law says."""
MOST = 2.0
"""Doubts of a law that misses its points are without measure: no level is taken for longer than this many times."""


@dataclass(frozen=True, slots=True)
class Option:
    """A closed-loop level that could be measured: `requests` requests by `users` users, within `limit_s` seconds.

    `extra_rounds`: requests of each user before and after those, that take time and are not measured.
    """

    lengths: Lengths
    users: int
    requests: int
    extra_rounds: float = 4.0
    limit_s: float = math.inf

    def seconds(self, requests_per_s: float) -> float:
        """Time the level takes at this throughput; a round is one request of every user (Little's law)."""
        return min(self.requests / requests_per_s, self.limit_s) + self.extra_rounds * self.users / requests_per_s

    def spent_s(self, point: Point) -> float:
        """Time that measuring `point` at this level took."""
        window_s = point.duration_s or min(self.requests / point.requests_per_s, self.limit_s)
        return window_s + self.extra_rounds * self.users / point.requests_per_s

    def measured_by(self, point: Point) -> bool:
        """True for the point of this level."""
        closed = point.load_kind == "concurrency"
        return closed and concurrency(point) == self.users and point.lengths == self.lengths


def spent_s(points: Sequence[Point], options: Sequence[Option]) -> float:
    """Seconds of server time behind `points`, void ones included; points of no option are left out."""
    return sum(option.spent_s(point) for option in options for point in points if option.measured_by(point))


def stretch(points: Sequence[Point], options: Sequence[Option]) -> float:
    """Time that the levels measured so far took over the time by their plan and the throughput they had; 1 for none."""
    pairs = [(option, point) for option in options for point in points if option.measured_by(point)]
    planned_s = sum(option.seconds(point.requests_per_s) for option, point in pairs)
    return sum(option.spent_s(point) for option, point in pairs) / planned_s if pairs else 1.0


def expected_s(fitted: Fit, options: Sequence[Option], slower: float = 1.0) -> Floats:
    """Seconds that each option (one or more) will take by the law, shape (options,), times `slower` (see `stretch`)."""
    return slower * _seconds(options, replay_of(fitted, options).means(fitted.replica))


def _seconds(options: Sequence[Option], means: Floats) -> Floats:
    return np.array([option.seconds(float(rate)) for option, rate in zip(options, means[:, 0], strict=True)])


def replay_of(fitted: Fit, options: Sequence[Option]) -> Replay:
    """The options ready to be simulated with any law; users start over one request time of the fitted one."""
    rough = [_point(fitted, option, _rough_rate_per_s(fitted, option)) for option in options]
    rates = Replay(point_runs(rough), fitted.replica).means(fitted.replica)[:, 0]
    points = [replace(point, requests_per_s=float(rate)) for point, rate in zip(rough, rates, strict=True)]
    return Replay(point_runs(points), fitted.replica)


def _point(fitted: Fit, option: Option, requests_per_s: float) -> Point:
    """The point that measuring `option` would give, as far as it is known before."""
    lengths = option.lengths
    return Point(
        **fitted.deployment._asdict(),
        isl=lengths.isl,
        osl=lengths.osl,
        isl_cv=lengths.isl_cv,
        osl_cv=lengths.osl_cv,
        load_kind="concurrency",
        load_value=option.users,
        requests=option.requests,
        requests_per_s=requests_per_s,
    )


def _rough_rate_per_s(fitted: Fit, option: Option) -> float:
    """Throughput if prompts waited for nobody: starts the simulation that gives the right one."""
    law, lengths = fitted.law, option.lengths
    batch = min(option.users, fitted.batching.max_batch_size)
    step_s = law.decode_s(batch, batch * (lengths.isl + lengths.osl / 2))
    return batch / (lengths.osl * step_s + law.prefill_alone_s(lengths.isl) + law.request_s)


@dataclass(frozen=True, slots=True, eq=False)
class Prospects:
    """What measuring each of n options would cost and tell.

    `seconds`, shape (n,): expected; `longest_s`: what they will hardly exceed, by what the law leaves open. `slopes`,
    shape (n, 3, pairs): change of requests/s, TTFT and ITL, in standard errors of that measurement, along the
    independent errors of the law.
    """

    seconds: Floats
    longest_s: Floats
    slopes: Floats


def prospects(belief: Belief, options: Sequence[Option], slower: float = 1.0) -> Prospects:
    """Cost and worth of `options` (one or more) by the law of `belief`; `slower` as in `expected_s`.

    Slopes are differences between the pair of laws one standard error to either side: so wide that the jumps of a
    simulated TTFT do not count.
    """
    fitted = belief.fitted
    replay = replay_of(fitted, options)
    sides = [(_log_means(replay, slower), _log_means(replay, faster)) for faster, slower in fitted.variants]
    changes = np.stack([(above - below) / 2 for above, below in sides], axis=-1)
    errors = np.array([granted(_point(fitted, option, 1.0), fitted.batching) for option in options])
    # Where the law misses the points by more than the errors granted, new points are no better than the old ones.
    errors *= math.sqrt(max(1.0, fitted.chi2_per_point))
    slopes = np.nan_to_num(changes) / errors[:, :, None]  # no ITL with one output token: it tells nothing
    seconds = _seconds(options, replay.means(fitted.replica))
    doubt = np.minimum(MOST, MARGIN * np.exp(2 * np.linalg.norm(changes[:, 0, :], axis=1)))
    # Levels that ended early so far give no right to hope for it.
    return Prospects(slower * seconds, max(1.0, slower) * seconds * doubt, slopes)


def _log_means(replay: Replay, replica: Replica) -> Floats:
    """Logs of requests/s, mean TTFT and mean ITL, shape (options, 3)."""
    logs: Floats = np.log(replay.means(replica)[:, :3])
    return logs


def reductions(effects: Floats, knowledge: Floats, slopes: Floats) -> Floats:
    """By how much each option would lower the variance of a linear quantity, shape (options,).

    `effects`, shape (k,): slopes of the quantity along k errors; `knowledge`, shape (k, k): their precision matrix
    now; `slopes` as in `Prospects`. With e the effects, P the covariance, J one option's slopes:
    e P J' (I + J P J')^-1 J P e, the rule of linear Bayesian regression. Never negative, at most e P e.

    >>> one_exact_look = np.array([[[1e6, 0.0]]])
    >>> float(reductions(np.array([2.0, 1.0]), np.eye(2), one_exact_look).round(3)[0])
    4.0
    """
    covariance = np.linalg.inv(knowledge)
    seen = slopes @ covariance
    noise = np.eye(slopes.shape[1]) + seen @ slopes.transpose(0, 2, 1)
    pull = seen @ effects
    return np.asarray(np.einsum("oi,oi->o", pull, np.linalg.solve(noise, pull[..., None])[..., 0]))


def outlook(belief: Belief, ahead: Prospects, budget_s: float, enough: float) -> tuple[float, float]:
    """Going on greedily until the error of log capacity is `enough` or the budget spent: (seconds, error then).

    Of the options left the one with the most reduction of variance per second comes next. Linear, so an outlook only.
    """
    seconds, slopes = ahead.seconds, ahead.slopes
    knowledge, left = np.eye(len(belief.effects)), np.arange(len(seconds))
    sigma, total_s = belief.sigma, 0.0
    while sigma > enough and (left := left[total_s + seconds[left] <= budget_s]).size:
        best = left[np.argmax(reductions(belief.effects, knowledge, slopes[left]) / seconds[left])]
        knowledge += slopes[best].T @ slopes[best]
        total_s += float(seconds[best])
        left = left[left != best]
        sigma = math.hypot(MONTE_CARLO_SIGMA, math.sqrt(belief.effects @ np.linalg.solve(knowledge, belief.effects)))
    return total_s, sigma
