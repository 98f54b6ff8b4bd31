"""Which level to measure next so that the GPU count of one question is soon sure, and when to stop. Start here."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sizing.curves import Point
from sizing.design.belief import Belief, believe, usable
from sizing.design.worth import MARGIN, Option, Prospects, outlook, prospects, reductions, spent_s, stretch
from sizing.fitting.levels import concurrency
from sizing.plan import Fleet, Question
from sizing.workload import Lengths

BAND = 0.2
"""Sure enough: 10 % to either side."""
STEADY_FOR = 3
"""Points after which the count must have been the same for it to be settled."""
STEADY = 0.05
"""Change of the count, as a share, that still counts as the same; one replica always does, as in the band."""
WORTH = 0.1
"""Share by which all that is left must narrow the band for it to be worth measuring."""
GROWS_WORSE = ("overloaded", "client_limited", "errors")
"""Verdicts of a void point that a higher load would only earn again."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Measure `option` next: it will take `seconds`, the sweep `remaining_s` in all, both as far as is known.

    `aim`: *start* (no law yet), *gain* (most certainty per second; `narrows` is the share it takes off the band) or
    *reach* (as many users as a planned replica would hold, so that the law need not be extrapolated).
    """

    option: Option
    seconds: float
    remaining_s: float
    aim: Literal["start", "gain", "reach"]
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
) -> Choice | Stop:
    """The level to measure next, by the points of all levels so far in the order measured, void ones included.

    `budget_s` is for the whole sweep, of which the points say how much is spent; `guess_s` gives the time of a level
    while there is no law to tell it. `band`: width of the 90 % band of the count, as a share of it, that is narrow
    enough to stop; one replica always is. Depends on nothing but its arguments: a broken sweep goes on as if it had not
    been. Raises FitError for points of several deployments.
    """
    left = [option for option in options if not shunned(option, points)]
    room_s = budget_s - spent_s(points, options)
    belief = believe(usable(tuple(points)), question)
    if belief is None:
        return _start(points, left, question, room_s, guess_s)
    if not left:
        return Stop("nothing", belief)
    ahead = prospects(belief, left, stretch(points, options))
    lately = history(points, question)
    if is_settled(lately, band):
        return _reach(belief, left, ahead, question, room_s) or Stop("settled", belief)
    if len(lately) == STEADY_FOR and all(earlier.misfit for earlier in lately):
        return Stop("misfit", belief)
    return _gain(belief, left, ahead, room_s, band)


def shunned(option: Option, points: Sequence[Point]) -> bool:
    """True for a level that was measured, or would come out void as one of the same lengths and fewer users did."""
    same = [point for point in points if point.load_kind == "concurrency" and point.lengths == option.lengths]
    return any(
        concurrency(point) == option.users or (concurrency(point) < option.users and point.verdict in GROWS_WORSE)
        for point in same
    )


def history(points: Sequence[Point], question: Question) -> list[Belief]:
    """What was believed after each of the last `STEADY_FOR` usable points, as far as there was a law; newest first."""
    good = usable(tuple(points))
    beliefs = (believe(good[:count], question) for count in range(len(good), len(good) - STEADY_FOR, -1) if count > 0)
    return [belief for belief in beliefs if belief is not None]


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
) -> Choice | Stop:
    """No law yet: the fewest users at the lengths nearest to the question's, then the middle between few and many."""
    known = {concurrency(point) for point in usable(tuple(points))}
    new = [option for option in left if option.users not in known]
    affordable = [option for option in new if MARGIN * guess_s(option) <= room_s]
    if not affordable:
        return Stop("budget" if new else "nothing")
    users = [option.users for option in new]
    target = math.sqrt(min(known) * max(users)) if known else min(users)
    best = min(
        affordable,
        key=lambda option: (distance(option.lengths, question), abs(math.log(option.users / target))),
    )
    return Choice(best, guess_s(best), room_s, "start")


def _gain(belief: Belief, left: Sequence[Option], ahead: Prospects, room_s: float, band: float) -> Choice | Stop:
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
    narrows = 1 - math.sqrt(max(0.0, 1 - gains[best] / belief.sigma**2))
    return Choice(left[best], seconds, max(rest_s, seconds), "gain", narrows, belief)


def _reach(
    belief: Belief, left: Sequence[Option], ahead: Prospects, question: Question, room_s: float
) -> Choice | None:
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
    return Choice(left[place], seconds, seconds, "reach", belief=belief)


def distance(lengths: Lengths, question: Question) -> float:
    """How far lengths are from the question's: the sum of the logs of both ratios."""
    asked = question.workload.lengths
    return abs(math.log(lengths.isl / asked.isl)) + abs(math.log(lengths.osl / asked.osl))
