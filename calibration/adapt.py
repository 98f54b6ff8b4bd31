"""An adaptive sweep: of a grid of levels the few that make the GPU count of one scenario sure.

Importing this costs scipy and numba (a second or two): only an adaptive run does it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from calibration.errors import PlanError
from calibration.plan import Level
from sizing.analyses.next_level import (
    Belief,
    LevelChoice,
    Option,
    Stop,
    believe,
    choose,
    expected_s,
    most_telling,
    planned,
    prospects,
    shunned,
    spent_s,
    stretch,
    usable,
)
from sizing.errors import SizingError
from sizing.points import Point
from sizing.question import Question

_STOPPED = {
    "settled": "the answer no longer changes",
    "budget": "the remaining GPU-minutes are too few for another level",
    "worth": "the levels that still fit the budget would not narrow the band by a tenth",
    "nothing": "no level is left",
    "misfit": "no law fits this server, measure the whole grid",
}


class Best(NamedTuple):
    """A level not measured, the seconds it would take, and the share it would take off the band of the count."""

    level: Level
    seconds: float
    narrows: float


class Summary(NamedTuple):
    """What a sweep took, in levels and seconds of the server, and what the whole grid would have taken."""

    points: int
    grid_points: int
    spent_s: float
    grid_s: float
    stopped: str
    answer: str

    def __str__(self) -> str:
        return (
            f"{self.points} of {self.grid_points} levels in {self.spent_s / 60:.1f} minutes; the whole grid takes "
            f"about {self.grid_s / 60:.1f}. {self.stopped}: {self.answer}"
        )


class Adaptive:
    """Chooses the next level of a sweep from the points so far, until the count is sure or `budget_s` is spent.

    Of `levels` the closed-loop ones are options. `guess_s` gives the seconds a level will take, while there is no law
    to tell. `warm_up` rounds come before what is measured, at most `limit_s` seconds. `band` as in `AdaptivePlan`.
    Nothing is remembered from call to call but what to show: the points alone decide, so that a run killed at any
    moment goes on as it would have.
    """

    def __init__(
        self,
        levels: Sequence[Level],
        question: Question,
        budget_s: float,
        guess_s: Callable[[Level], float],
        *,
        warm_up: int = 2,
        limit_s: float = math.inf,
        band: float = 0.2,
    ) -> None:
        closed = [level for level in levels if level.kind == "concurrency"]
        self._levels = {
            Option(level.lengths, round(level.value), level.requests, warm_up + 2.0, limit_s, any_prefix=True): level
            for level in closed
        }
        if not self._levels:
            raise PlanError("adaptive: no closed-loop levels to choose from: give concurrency, for instance [1, 8, 64]")
        self.question, self._budget_s, self._guess_s, self._band = question, budget_s, guess_s, band
        self._decision: LevelChoice | Stop | None = None
        self._spent_s = 0.0

    def next(self, points: Sequence[Point]) -> Level | None:
        """The level to measure after `points`, those of all levels measured so far; None when there is no more to do.

        Takes a few seconds. Raises PlanError when the points cannot answer the question at all.
        """
        self._spent_s = spent_s(points, list(self._levels))
        try:
            self._decision = choose(
                points,
                list(self._levels),
                self.question,
                budget_s=self._budget_s,
                guess_s=lambda option: self._guess_s(self._levels[option]),
                band=self._band,
            )
        except SizingError as error:
            raise PlanError(f"adaptive: {error}") from None
        return self._levels[self._decision.option] if isinstance(self._decision, LevelChoice) else None

    def best_left(self, points: Sequence[Point]) -> Best | None:
        """The level not measured that would narrow the band most, whatever its time; None without a law or a level."""
        options = list(self._levels)
        left = [option for option in options if not shunned(option, points)]
        belief = believe(usable(tuple(points)), self.question)
        if belief is None or not left:
            return None
        ahead = prospects(belief, left, stretch(points, options))
        place, narrows = most_telling(belief, ahead)
        return Best(self._levels[left[place]], float(ahead.seconds[place]), narrows)

    def planned_per_s(self, points: Sequence[Point]) -> float | None:
        """Requests/s that each replica of the planned fleet is to carry; None while there is no fleet."""
        try:
            return planned(points, self.question).answer.load_per_s
        except SizingError:
            return None

    @property
    def why(self) -> str:
        """A line on the last decision: the level, what it is to bring, and the GPU count as it stands."""
        decision = self._decision
        if decision is None:
            return self.before
        belief = decision.belief
        now = "no GPU count yet" if belief is None else str(belief)
        if isinstance(decision, Stop):
            return "; but ".join([f"{_STOPPED[decision.because]}: {now}", *_warnings(belief)])
        level = self._levels[decision.option].label
        return f"{now}; next {level}, {_minutes(decision.seconds)}: {_purpose(decision, belief)}"

    @property
    def before(self) -> str:
        """A line for the start: the budget against the whole grid."""
        grid_s = sum(map(self._guess_s, self._levels.values()))
        return (
            f"at most {_minutes(self._budget_s)} for the levels that matter; all {len(self._levels)} would "
            f"take {_minutes(grid_s)}"
        )

    @property
    def expected_s(self) -> float:
        """Seconds that the level chosen last is thought to take; 0 when the sweep is over."""
        return self._decision.seconds if isinstance(self._decision, LevelChoice) else 0.0

    @property
    def remaining_s(self) -> float:
        """Seconds that the sweep is thought to go on, the next level included; never more than the budget left."""
        if isinstance(self._decision, Stop):
            return 0.0
        left_s = self._budget_s - self._spent_s
        return left_s if self._decision is None else min(left_s, self._decision.remaining_s)

    def summary(self, points: Sequence[Point]) -> Summary:
        """What was measured against the whole grid, and the count it led to."""
        options = list(self._levels)
        belief = self._decision.belief if self._decision else None
        done = [option for option in options if any(option.measured_by(point) for point in points)]
        stopped = _STOPPED[self._decision.because] if isinstance(self._decision, Stop) else "ended early"
        answer = "; but ".join(["no GPU count" if belief is None else str(belief), *_warnings(belief)])
        grid_s = self._grid_s(belief, points)
        return Summary(len(done), len(options), spent_s(points, options), grid_s, stopped, answer)

    def _grid_s(self, belief: Belief | None, points: Sequence[Point]) -> float:
        """Seconds of the whole grid: what was spent, and for the levels not measured what the law expects of them."""
        options = list(self._levels)
        left = [place for place, option in enumerate(options) if not any(map(option.measured_by, points))]
        if belief is None:
            rest_s = sum(self._guess_s(self._levels[options[place]]) for place in left)
        else:
            rest_s = float(expected_s(belief.fitted, options, stretch(points, options))[left].sum())
        return spent_s(points, options) + rest_s


def _warnings(belief: Belief | None) -> list[str]:
    return [belief.warning] if belief is not None and belief.warning else []


def _purpose(choice: LevelChoice, belief: Belief | None) -> str:
    if choice.aim == "gain":
        return f"narrows the band by about {choice.narrows:.0%}"
    if choice.aim == "reach" and belief is not None and belief.beyond is not None:
        return f"a planned replica would hold {belief.beyond:.0f} requests at once, more than any measured level"
    if choice.aim == "contrast":
        return "all prompts measured so far are equally long, and other lengths tell what a prompt costs"
    if belief is not None:
        return "one level only scales an estimate, and a second tells how times change with the load"
    return "two levels are needed for a first law"


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f} min" if seconds >= 60 else f"{seconds:.0f} s"
