"""Which level to measure next to settle one question's GPU count soonest, and when to stop. Start here."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np

from sizing.analyses.closed_loop import rough_point
from sizing.candidates import from_fit, law_of
from sizing.edge import BY_FORMULA, MONTE_CARLO_SIGMA, Middle, half_change, load_response
from sizing.engine import Replica
from sizing.errors import FitError
from sizing.fitting import Fit
from sizing.fitting.levels import concurrency, granted, point_runs
from sizing.fitting.result import Variants
from sizing.numbers import Floats, gpus
from sizing.planner import plan, size
from sizing.plans import Fleet, Plan, Rejection
from sizing.points import Point, same_isl
from sizing.question import Question, Setting
from sizing.simulator.replay import Replay
from sizing.stats import Z90
from sizing.text import caution
from sizing.workload import Lengths, Prefix

# --- What the points measured so far say of a question: how many GPUs, how sure, and which errors of the law matter


@dataclass(frozen=True, slots=True, eq=False)
class Belief:
    """A fitted law, the fleet it asks for, and what its errors do to that.

    The errors of the law are independent standard normal variables, one along each pair of `variants`: those of the
    fit that the question's requests see. `effects`, shape (pairs,): the change of `margin` (see there) when one of them
    rises by one. `surplus`: margin of the fitted law over the least margin at which the SLA is met at all; negative
    when it is not.
    """

    fitted: Fit
    variants: Variants
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
        """True when the 90 % band of the count spans one replica or `band` of the count, or surely no count will do.

        Counts are whole, so the share is rounded: a fifth of nine replicas is two.
        """
        if isinstance(self.sized, Rejection):
            return self.surplus + Z90 * self.sigma < 0
        low, high = self.sized.working_low, self.sized.working_high
        return high is not None and high - low <= max(1, round(band * self.sized.working))

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
        return next((caution(each) for each in self.fitted.warnings if each.kind == "poor_fit"), "")

    def __str__(self) -> str:
        if isinstance(self.sized, Rejection):
            return f"no GPU count: {self.sized.why}"
        high = "no upper end" if self.sized.gpus_high is None else f"{self.sized.gpus_high}"
        return f"{gpus(self.sized.gpus)}, 90 % band {self.sized.gpus_low} to {high}"


MISFIT = 5.0
"""An engine that follows the law roughly gives 3; disturbed levels give 10 or more."""


def usable(points: tuple[Point, ...]) -> tuple[Point, ...]:
    """The points that a law is fitted to: closed loop, not void."""
    return tuple(point for point in points if point.closed and not point.void)


def planned(points: Sequence[Point], question: Question) -> Plan:
    """The plan by the law of the closed loops among `points`, all of one deployment.

    Raises FitError where they give no law, NoFeasiblePlan if no count meets the SLA, and what else the planner does.
    """
    fitted = law_of(usable(tuple(points)))
    return plan(question, [from_fit(fitted, question.workload.lengths, points)])


@lru_cache(maxsize=32)
def believe(points: tuple[Point, ...], question: Question) -> Belief | None:
    """What `points` say; None while they give no law: none is usable, or they are of one concurrency and there is no
    day-zero law for them to scale. The same points give the same belief.

    Raises FitError for points of several deployments. Takes about a second; cached afterwards.
    """
    good = usable(points)
    try:
        fitted = law_of(good)
    except FitError:
        if len({concurrency(point) for point in good}) < 2:
            return None
        raise
    sized = size(question, from_fit(fitted, question.workload.lengths), BY_FORMULA)
    setting = question.setting(sized.working if isinstance(sized, Fleet) else 1)
    variants = fitted.variants_seen(question.workload.lengths)
    effects = effects_of(fitted.replica, variants, setting)
    return Belief(fitted, variants, sized, effects, surplus(fitted.replica, setting))


def effects_of(replica: Replica, variants: Variants, setting: Setting) -> Floats:
    """Half the change of `margin` along each pair of variants of the replica's law, shape (pairs,).

    Read off the replica's own response where it meets the SLA alone, as the band of a plan is: a fifth of the work.
    """
    if load_response(replica, setting).rate_per_s(0.0) > 0:
        middle = Middle.of(replica, setting)
        return np.array([-half_change(pair, setting, middle) for pair in variants])
    return np.array([(margin(slower, setting) - margin(faster, setting)) / 2 for faster, slower in variants])


def margin(replica: Replica, setting: Setting) -> float:
    """Log of the requests/s that a replica carries under the SLA.

    A replica that misses the SLA even alone has, in place of it, the log of the lowest rate asked for less the log of
    how far it is over the limit: the quantity is continuous where capacity reaches zero.
    """
    response = load_response(replica, setting)
    capacity_per_s = response.rate_per_s(0.0)
    if capacity_per_s > 0:
        return math.log(capacity_per_s)
    return math.log(response.rates_per_s[0]) - float(response.excess[0])


def surplus(replica: Replica, setting: Setting) -> float:
    """`margin` over that of a replica which just meets the SLA alone."""
    return margin(replica, setting) - math.log(load_response(replica, setting).rates_per_s[0])


# --- Levels that could be measured: what each would reveal about the question, and how long it would take

MARGIN = 1.1
"""A level must fit the budget even if it takes this much longer than expected, whatever the law says."""
MOST = 2.0
"""The uncertainty of a law that misses its points is unbounded: no level is assumed to take more than this many times
its expected time."""


@dataclass(frozen=True, slots=True)
class Option:
    """A closed-loop level that could be measured: `requests` requests by `users` users, within `limit_s` seconds.

    `extra_rounds`: requests of each user before and after those, that take time and are not measured. `any_prefix`: a
    point counts whatever its server found in the prefix cache, as the points of one sweep do: a chat template is found
    in every prompt, and no plan says so. Else only points without a shared prefix do.
    """

    lengths: Lengths
    users: int
    requests: int
    extra_rounds: float = 4.0
    limit_s: float = math.inf
    any_prefix: bool = False

    def seconds(self, requests_per_s: float) -> float:
        """Time the level takes at this throughput; a round is one request of every user (Little's law)."""
        return min(self.requests / requests_per_s, self.limit_s) + self.extra_rounds * self.users / requests_per_s

    def spent_s(self, point: Point) -> float:
        """Time that measuring `point` at this level took."""
        window_s = point.duration_s or min(self.requests / point.requests_per_s, self.limit_s)
        return window_s + self.extra_rounds * self.users / point.requests_per_s

    def measured_by(self, point: Point) -> bool:
        """True for the point of this level."""
        return self.is_like(point) and concurrency(point) == self.users

    def is_like(self, point: Point) -> bool:
        """True for a closed loop of the same requests, whatever its users."""
        alike = point.lengths == self.lengths and (self.any_prefix or point.prefix == Prefix())
        return alike and point.closed


def spent_s(points: Sequence[Point], options: Sequence[Option]) -> float:
    """Seconds of server time behind `points`, void ones included; points of no option are left out."""
    return sum(option.spent_s(point) for option in options for point in points if option.measured_by(point))


def stretch(points: Sequence[Point], options: Sequence[Option]) -> float:
    """Time that the levels measured so far took, over their planned time at the throughput measured; 1 without any."""
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
    rough = [_point(fitted, option) for option in options]
    rates = Replay(point_runs(rough), fitted.replica).means(fitted.replica)[:, 0]
    points = [replace(point, requests_per_s=float(rate)) for point, rate in zip(rough, rates, strict=True)]
    return Replay(point_runs(points), fitted.replica)


def _point(fitted: Fit, option: Option) -> Point:
    """The point that measuring `option` would give; its requests/s are rough."""
    return replace(rough_point(fitted, option.lengths, option.users), requests=option.requests)


@dataclass(frozen=True, slots=True, eq=False)
class Prospects:
    """What measuring each of n options would cost and tell.

    `seconds`, shape (n,): expected; `longest_s`: what they are unlikely to exceed, given what the law leaves open.
    `slopes`, shape (n, 3, pairs): change of requests/s, TTFT and ITL, in standard errors of that measurement, along the
    independent errors of the law.
    """

    seconds: Floats
    longest_s: Floats
    slopes: Floats


def prospects(belief: Belief, options: Sequence[Option], slower: float = 1.0) -> Prospects:
    """Cost and worth of `options` (one or more) by the law of `belief`; `slower` as in `expected_s`.

    Slopes are differences between the pair of laws one standard error to either side: wide enough that the jumps
    of a simulated TTFT do not matter.
    """
    fitted = belief.fitted
    replay = replay_of(fitted, options)
    sides = [(_log_means(replay, slower), _log_means(replay, faster)) for faster, slower in belief.variants]
    changes = np.stack([(above - below) / 2 for above, below in sides], axis=-1)
    errors = np.array([granted(_point(fitted, option), fitted.batching) for option in options])
    # Where the law misses the points by more than the errors granted, new points are no better than the old ones.
    errors *= math.sqrt(max(1.0, fitted.chi2_per_point))
    slopes = np.nan_to_num(changes) / errors[:, :, None]  # no ITL with one output token: no information
    seconds = _seconds(options, replay.means(fitted.replica))
    doubt = np.minimum(MOST, MARGIN * np.exp(2 * np.linalg.norm(changes[:, 0, :], axis=1)))
    # That levels ended early so far does not mean that the next will.
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


BAND = 0.2
"""Sure enough: 10 % to either side."""
STEADY_FOR = 3
"""Points after which the count must have been the same for it to be settled."""
STEADY = 0.05
"""Change of the count, as a share, that still counts as the same; one replica always does, as in the band."""
WORTH = 0.1
"""Share by which all that is left must narrow the band for it to be worth measuring."""
GROWS_WORSE = ("overloaded", "client_limited", "errors")
"""Verdicts of a void point that a higher load would only earn again: of the client's from the second level on, as one
may be a moment's lag, of which fewer users with their short times can bear the least."""


@dataclass(frozen=True, slots=True)
class LevelChoice:
    """Measure `option` next: it will take `seconds`, the sweep `remaining_s` in all, both as far as is known.

    `aim`: *start* (no law yet, or one of an estimate's shape), *gain* (most certainty per second; `narrows` is the
    share it takes off the band), *reach* (as many users as a planned replica would hold, so that the law need not be
    extrapolated) or *contrast* (prompts of another length, where all measured ones are alike: nothing else tells what a
    prompt costs by length).
    """

    option: Option
    seconds: float
    remaining_s: float
    aim: Literal["start", "gain", "reach", "contrast"]
    narrows: float = math.nan
    belief: Belief | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """Measure no more: the count is *settled*, the *budget* has no room for another level, nothing left is *worth* its
    time, *nothing* is left, or the law is a *misfit* that no further point cures."""

    because: Literal["settled", "budget", "worth", "nothing", "misfit"]
    belief: Belief | None = None


def choose(
    points: Sequence[Point],
    options: Sequence[Option],
    question: Question,
    *,
    budget_s: float,
    guess_s: Callable[[Option], float],
    band: float = BAND,
) -> LevelChoice | Stop:
    """The level to measure next, by the points of all levels so far in the order measured, void ones included.

    `budget_s` is for the whole sweep, of which the points say how much is spent; `guess_s` gives the time of a level
    while there is no law to tell it. `band`: width of the 90 % band of the count, as a share of it, that is narrow
    enough to stop; one replica always is. Depends on nothing but its arguments, so an interrupted sweep continues as if
    it had not been. Raises FitError for points of several deployments.
    """
    left = [option for option in options if not shunned(option, points)]
    room_s = budget_s - spent_s(points, options)
    belief = believe(usable(tuple(points)), question)
    if belief is None or belief.fitted.of_one_level:
        return _start(points, left, question, room_s, guess_s, belief)
    if not left:
        return Stop("nothing", belief)
    ahead = prospects(belief, left, stretch(points, options))
    lately = history(points, question)
    if is_settled(lately, band):
        reach = _reach(belief, left, ahead, question, room_s)
        return reach or _contrast(belief, points, left, ahead, room_s) or Stop("settled", belief)
    if len(lately) == STEADY_FOR and all(earlier.misfit for earlier in lately):
        return Stop("misfit", belief)
    return _gain(belief, left, ahead, room_s, band)


def shunned(option: Option, points: Sequence[Point]) -> bool:
    """True for a level that was measured, or would come out void as one of the same lengths and fewer users did."""
    alike = [point for point in points if option.is_like(point)]
    worse = {concurrency(point): point.verdict for point in alike if point.verdict in GROWS_WORSE}
    fewer = [verdict for users, verdict in worse.items() if users < option.users]
    measured = any(concurrency(point) == option.users for point in alike)
    return measured or len(fewer) > fewer.count("client_limited") or len(fewer) > 1


def history(points: Sequence[Point], question: Question) -> list[Belief]:
    """What was believed after each of the last `STEADY_FOR` usable points, as far as there was a law whose shape was
    measured; newest first."""
    good = usable(tuple(points))
    beliefs = (believe(good[:count], question) for count in range(len(good), len(good) - STEADY_FOR, -1) if count > 0)
    return [belief for belief in beliefs if belief is not None and not belief.fitted.of_one_level]


def is_settled(lately: Sequence[Belief], band: float) -> bool:
    """True when the band of the count is narrow now, and the last `STEADY_FOR` points have changed the count by one
    replica or `STEADY` at most, within the band: a band that promises more than the counts keep is not believed."""
    if len(lately) < STEADY_FOR or not lately[0].is_narrow(band):
        return False
    counts = [belief.working for belief in lately if belief.working is not None]
    if len(counts) < len(lately) or not isinstance(lately[0].sized, Fleet):
        return not counts
    low, high = lately[0].sized.working_low, lately[0].sized.working_high
    inside = high is not None and low <= min(counts) and max(counts) <= high
    return inside and max(counts) - min(counts) <= max(1.0, STEADY * max(counts))


def _start(
    points: Sequence[Point],
    left: Sequence[Option],
    question: Question,
    room_s: float,
    guess_s: Callable[[Option], float],
    belief: Belief | None,
) -> LevelChoice | Stop:
    """No law yet, or one whose shape is not measured: the fewest users at the lengths nearest to the question's, then
    the middle between few and many."""
    known = {concurrency(point) for point in usable(tuple(points))}
    new = [option for option in left if option.users not in known]
    affordable = [option for option in new if MARGIN * guess_s(option) <= room_s]
    if not affordable:
        return Stop("budget" if new else "nothing", belief)
    users = [option.users for option in new]
    target = math.sqrt(min(known) * max(users)) if known else min(users)
    best = min(
        affordable,
        key=lambda option: (distance(option.lengths, question), abs(math.log(option.users / target))),
    )
    return LevelChoice(best, guess_s(best), room_s, "start", belief=belief)


def _gain(belief: Belief, left: Sequence[Option], ahead: Prospects, room_s: float, band: float) -> LevelChoice | Stop:
    """The level that lowers the variance of log capacity most for its time."""
    affordable = ahead.longest_s <= room_s
    if not affordable.any():
        return Stop("budget", belief)
    _, least_sigma = outlook(belief, ahead, room_s, 0.0)
    if least_sigma > (1 - WORTH) * belief.sigma:
        return Stop("worth", belief)
    gains = reductions(belief.effects, np.eye(len(belief.effects)), ahead.slopes)
    best = int(np.argmax(np.where(affordable, gains / ahead.seconds, -math.inf)))
    seconds = float(ahead.seconds[best])
    rest_s, _ = outlook(belief, ahead, room_s, belief.sigma_for(band))
    return LevelChoice(left[best], seconds, max(rest_s, seconds), "gain", _narrows(belief, gains[best]), belief)


def _narrows(belief: Belief, gain: float) -> float:
    """Share that a reduction of variance by `gain` takes off the band."""
    return 1 - math.sqrt(max(0.0, 1 - gain / belief.sigma**2))


def most_telling(belief: Belief, ahead: Prospects) -> tuple[int, float]:
    """Place of the option that would narrow the band most, whatever its time, and the share it would take off."""
    gains = reductions(belief.effects, np.eye(len(belief.effects)), ahead.slopes)
    best = int(np.argmax(gains))
    return best, _narrows(belief, float(gains[best]))


def _reach(
    belief: Belief, left: Sequence[Option], ahead: Prospects, question: Question, room_s: float
) -> LevelChoice | None:
    """A level with as many users as a planned replica would hold, where fewer were measured: the nearest such."""
    if belief.beyond is None:
        return None
    enough = [
        (distance(option.lengths, question), float(ahead.seconds[place]), place)
        for place, option in enumerate(left)
        if option.users >= belief.beyond / 1.1 and ahead.longest_s[place] <= room_s
    ]
    if not enough:
        return None
    _, seconds, place = min(enough)
    return LevelChoice(left[place], seconds, seconds, "reach", belief=belief)


LONGER = 4.0
"""Prompts so many times as long as the others tell best what a prompt costs by its length."""


def _contrast(
    belief: Belief, points: Sequence[Point], left: Sequence[Option], ahead: Prospects, room_s: float
) -> LevelChoice | None:
    """A level of another ISL, where only one was measured: the nearest to `LONGER` times it, then the quickest."""
    isl = sorted(point.isl for point in usable(tuple(points)))
    if not same_isl(isl):
        return None
    others = [
        (abs(math.log(option.lengths.isl / (LONGER * isl[-1]))), float(ahead.seconds[place]), place)
        for place, option in enumerate(left)
        if not same_isl((*isl, option.lengths.isl)) and ahead.longest_s[place] <= room_s
    ]
    if not others:
        return None
    _, seconds, place = min(others)
    return LevelChoice(left[place], seconds, seconds, "contrast", belief=belief)


def distance(lengths: Lengths, question: Question) -> float:
    """How far lengths are from the question's: the sum of the logs of both ratios."""
    asked = question.workload.lengths
    return abs(math.log(lengths.isl / asked.isl)) + abs(math.log(lengths.osl / asked.osl))
