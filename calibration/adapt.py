"""An adaptive sweep: of a grid of levels, the few that one scenario's GPU count needs.

Importing this loads scipy and numba (a second or two), so only adaptive runs do it.
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
from sizing.numbers import minutes
from sizing.points import Point
from sizing.question import Question

_STOPPED = {
    "settled": "the answer no longer changes",
    "budget": "the remaining GPU-minutes are too few for another level",
    "worth": "the levels that still fit the budget would not narrow the band by a tenth",
    "nothing": "no usable level is left",
    "misfit": "no law fits this server, measure the whole grid",
}


class Best(NamedTuple):
    """A level not measured yet, its expected seconds, and the fraction by which it would narrow the count's band."""

    level: Level
    seconds: float
    narrows: float


class Summary(NamedTuple):
    """The cost of a sweep in levels and seconds of server time, and that of the whole grid."""

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
    """Chooses the next level of a sweep from the points so far, until the count is certain or `budget_s` is used up.

    Of `levels`, the closed-loop ones are options. `guess_s` estimates the seconds of a level while there is no law yet.
    A level has `warm_up` rounds first, and is measured for at most `limit_s` seconds. `band` as in `AdaptivePlan`. Only
    what is displayed is kept between calls: the choice depends on the points alone, so that a killed run continues as
    it would have.
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
        self._options = list(self._levels)
        self.question, self._budget_s, self._guess_s, self._band = question, budget_s, guess_s, band
        self._decision: LevelChoice | Stop | None = None
        self._spent_s = 0.0

    def next(self, points: Sequence[Point]) -> Level | None:
        """The level to measure after `points`, those of all levels measured so far; None if the sweep is over.

        Takes a few seconds. Raises PlanError if the points cannot answer the question at all.
        """
        self._spent_s = spent_s(points, self._options)
        try:
            self._decision = choose(
                points,
                self._options,
                self.question,
                budget_s=self._budget_s,
                guess_s=lambda option: self._guess_s(self._levels[option]),
                band=self._band,
            )
        except SizingError as error:
            raise PlanError(f"adaptive: {error}") from None
        return self._levels[self._decision.option] if isinstance(self._decision, LevelChoice) else None

    def best_left(self, points: Sequence[Point]) -> Best | None:
        """The unmeasured level that would narrow the band most, whatever its time; None without a law or a level."""
        left = [option for option in self._options if not shunned(option, points)]
        belief = believe(usable(tuple(points)), self.question)
        if belief is None or not left:
            return None
        ahead = prospects(belief, left, stretch(points, self._options))
        place, narrows = most_telling(belief, ahead)
        return Best(self._levels[left[place]], float(ahead.seconds[place]), narrows)

    def planned_per_s(self, points: Sequence[Point]) -> float | None:
        """Planned requests/s of each replica of the fleet; None while there is no fleet."""
        try:
            return planned(points, self.question).answer.load_per_s
        except SizingError:
            return None

    @property
    def why(self) -> str:
        """A line on the last decision: the level, its purpose, and the GPU count so far."""
        decision = self._decision
        if decision is None:
            return self.before
        belief = decision.belief
        now = "no GPU count yet" if belief is None else str(belief)
        if isinstance(decision, Stop):
            return "; but ".join([f"{_STOPPED[decision.because]}: {now}", *_warnings(belief)])
        level = self._levels[decision.option].label
        return f"{now}; next {level}, {minutes(decision.seconds)}: {_purpose(decision, belief)}"

    @property
    def before(self) -> str:
        """A line for the start: the budget, and the time of the whole grid."""
        grid_s = sum(map(self._guess_s, self._levels.values()))
        return (
            f"at most {minutes(self._budget_s)} for the levels that the answer needs; all {len(self._levels)} would "
            f"take {minutes(grid_s)}"
        )

    @property
    def expected_s(self) -> float:
        """Estimated seconds of the level chosen last; 0 when the sweep is over."""
        return self._decision.seconds if isinstance(self._decision, LevelChoice) else 0.0

    @property
    def remaining_s(self) -> float:
        """Estimated seconds until the end of the sweep, including the next level; at most the remaining budget."""
        if isinstance(self._decision, Stop):
            return 0.0
        left_s = self._budget_s - self._spent_s
        return left_s if self._decision is None else min(left_s, self._decision.remaining_s)

    def summary(self, points: Sequence[Point]) -> Summary:
        """What was measured, compared with the whole grid, and the resulting count."""
        options = self._options
        belief = self._decision.belief if self._decision else None
        done = [option for option in options if any(option.measured_by(point) for point in points)]
        stopped = _STOPPED[self._decision.because] if isinstance(self._decision, Stop) else "ended early"
        answer = "; but ".join(["no GPU count" if belief is None else str(belief), *_warnings(belief)])
        grid_s = self._grid_s(belief, points)
        return Summary(len(done), len(options), spent_s(points, options), grid_s, stopped, answer)

    def _grid_s(self, belief: Belief | None, points: Sequence[Point]) -> float:
        """Seconds of the whole grid: those spent, and those that the law predicts for unmeasured levels."""
        options = self._options
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
        return f"a planned replica would have {belief.beyond:.0f} requests in flight, more than any measured level"
    if choice.aim == "contrast":
        return "all prompts measured so far are equally long, and only other lengths show what a prompt costs"
    if belief is not None:
        return "one level only scales an estimate, and a second shows how times change with the load"
    return "two levels are needed for a first law"
