"""The precision of a point's means: the requests of a window as series of batches, and their half widths.

Confidence intervals of latencies and rates are by batch means. Requests of one window are not independent, because
those in flight at the same time share the engine's steps and its queue; means of long enough batches nearly are. A
batch is a whole number of *waves*. A wave is as many requests as are in flight on average: it lasts one mean E2E, and
in a lockstep closed loop it has every position of the queue once. Remaining correlation between neighbours widens the
interval, as in Skart (Tafazzoli and Wilson 2011), and never narrows it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple, get_args

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from calibration.records import MOST_REQUESTS, Ended
from sizing.numbers import Floats
from sizing.stats import half_width

Mean = Literal["ttft_mean", "itl_mean", "e2e_mean", "requests_per_s"]
MEANS: tuple[Mean, ...] = get_args(Mean)


@dataclass(frozen=True, slots=True)
class Answers:
    """Answered requests in any order, arrays of shape (n,); E2E is from `due_s` to `last_s`, `itl_s` is NaN if unknown.

    Requests from before the window that end inside belong here too: rates count them in part.
    """

    due_s: Floats
    last_s: Floats
    ttft_s: Floats
    itl_s: Floats


def series(answers: Answers, window_s: tuple[float, float]) -> dict[Mean, Floats]:
    """Batch means by time over the window; none if it is too short for eight waves (`batches`).

    Latencies are those of all requests due inside, batched by due time, so that the edges favour neither long nor short
    ones. ITL is left out if there is too little of it.
    """
    in_flight, cohort = _in_flight(answers, window_s), _cohort(answers, window_s)
    cut = batches(len(cohort.due_s), in_flight)
    if cut is None:
        return {}
    found: dict[Mean, Floats] = {
        "ttft_mean": batch_means(cohort.ttft_s, cut),
        "e2e_mean": batch_means(cohort.last_s - cohort.due_s, cut),
        "requests_per_s": batch_rates(answers.due_s, answers.last_s, window_s, cut.count),
    }
    known = cohort.itl_s[np.isfinite(cohort.itl_s)]
    cut = batches(len(known), in_flight)
    return found if cut is None else found | {"itl_mean": batch_means(known, cut)}


def half_widths(found: dict[Mean, Floats], confidence: float) -> dict[Mean, float]:
    """Relative half widths of the confidence intervals of the means of `series`."""
    return {name: half_width(means, confidence) / float(means.mean()) for name, means in found.items() if means.any()}


def waves(answers: Answers, window_s: tuple[float, float]) -> float:
    """How often the requests in flight were replaced during the window."""
    in_flight = _in_flight(answers, window_s)
    return len(_cohort(answers, window_s).due_s) / in_flight if in_flight else 0.0


def _in_flight(answers: Answers, window_s: tuple[float, float]) -> float:
    start_s, stop_s = window_s
    inside_s = np.minimum(answers.last_s, stop_s) - np.maximum(answers.due_s, start_s)
    return float(np.maximum(0.0, inside_s).sum()) / (stop_s - start_s)


def _cohort(answers: Answers, window_s: tuple[float, float]) -> Answers:
    """The requests due inside the window, in order of due time."""
    order = np.argsort(answers.due_s, kind="stable")
    due_s = answers.due_s[order]
    order = order[(window_s[0] <= due_s) & (due_s < window_s[1])]
    return Answers(answers.due_s[order], answers.last_s[order], answers.ttft_s[order], answers.itl_s[order])


FEWEST_REQUESTS = 50
FEWEST_PER_PLACE = 10
LONGEST_FITS = 5
CHECK_EVERY = 0.05
NARROW_CHECKS = 4
LEAST_HALF_WIDTH = 1e-6
Share = Annotated[float, Field(gt=0, lt=1)]
Count = Annotated[int, Field(ge=1)]


class Until(BaseModel):
    """Measure until the means named in `of` are known to `half_width` (relative, 0.05 = 5 %) at `confidence`.

    At least `requests_min` answers (default: the larger of 50 and ten for each request in flight), at most
    `requests_max`, and for `budget_s` seconds at most.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    half_width: Annotated[float, Field(ge=LEAST_HALF_WIDTH, lt=1)] = 0.05
    confidence: Share = 0.95
    of: Annotated[tuple[Mean, ...], Field(strict=False, min_length=1)] = MEANS
    requests_min: Count | None = None
    requests_max: Annotated[int, Field(ge=1, le=MOST_REQUESTS)] | None = None
    budget_s: Annotated[float, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _some_number_is_allowed(self) -> Until:
        if self.requests_min and self.requests_max and self.requests_min > self.requests_max:
            raise ValueError(f"requests_min {self.requests_min} is above requests_max {self.requests_max}")
        return self


class Done(NamedTuple):
    """An answered request: when its last token came, its TTFT, ITL (NaN for one token) and E2E; seconds."""

    end_s: float
    ttft_s: float
    itl_s: float
    e2e_s: float


class StopRule:
    """Receives answers as they come, and decides when the window that opened at `start_s` may close.

    Intervals are computed again whenever there are 5 % more answers. Stopping at the first narrow one would favour
    intervals that are narrow by chance, so four in a row must be narrow, eight waves of requests must have passed
    (`batches`), and the longest E2E must fit five times into the time so far.
    """

    def __init__(self, until: Until, start_s: float) -> None:
        self._until = until
        self._start_s = start_s
        self._done: list[Done] = []
        self._spent_s = 0.0
        self._next_check = 0
        self._narrow_checks = 0
        self._needed: float | None = None

    def add(self, done: Sequence[Done]) -> None:
        """Add answers since the last call, in any order; those from before the window are ignored."""
        new = [item for item in done if item.end_s >= self._start_s]
        self._done += new
        self._spent_s += sum(item.e2e_s for item in new)

    def ended(self, now_s: float) -> Ended | None:
        """Why measuring may end at `now_s`; None while it must continue. Cheap: intervals are computed rarely."""
        if self._until.requests_max is not None and len(self._done) >= self._until.requests_max:
            return "count"
        if len(self._done) >= max(self._fewest(now_s), self._next_check):
            self._check()
        if self._narrow_checks >= NARROW_CHECKS:
            return "precise"
        if self._until.budget_s is not None and now_s >= self._start_s + self._until.budget_s:
            return "budget"
        return None

    def share(self, now_s: float) -> float:
        """Estimated fraction of the measuring that is done, 0 to 1; it may fall again.

        An interval narrows with the square root of the number of answers: n answers with half width h are (goal / h)^2
        of those needed. The fractions of requests and time used count if they are larger.
        """
        done = len(self._done)
        shares = [done / max(self._fewest(now_s), self._needed or 0.0)]
        if self._until.requests_max is not None:
            shares.append(done / self._until.requests_max)
        if self._until.budget_s is not None:
            shares.append((now_s - self._start_s) / self._until.budget_s)
        return min(1.0, max(shares))

    def _fewest(self, now_s: float) -> float:
        if self._until.requests_min is not None:
            return self._until.requests_min
        in_flight = self._spent_s / (now_s - self._start_s) if now_s > self._start_s else 0.0
        return max(FEWEST_REQUESTS, FEWEST_PER_PLACE * in_flight)

    def _check(self) -> None:
        done = len(self._done)
        self._next_check = max(done + 1, math.ceil(done * (1 + CHECK_EVERY)))
        ratio = self._widest() / self._until.half_width
        self._narrow_checks = self._narrow_checks + 1 if ratio <= 1 else 0
        self._needed = done * ratio**2 if math.isfinite(ratio) else None

    def _widest(self) -> float:
        """The widest relative half width of the chosen means; infinite while they are unknown.

        It covers requests due up to one longest E2E ago: of those due later, only the short ones are complete.
        """
        end_s, ttft_s, itl_s, e2e_s = np.array(self._done).T
        longest_s = float(e2e_s.max())
        horizon_s = float(end_s.max()) - longest_s
        if horizon_s - self._start_s < LONGEST_FITS * longest_s:
            return math.inf
        answers = Answers(due_s=end_s - e2e_s, last_s=end_s, ttft_s=ttft_s, itl_s=itl_s)
        found = half_widths(series(answers, (self._start_s, horizon_s)), self._until.confidence)
        return max((found[name] for name in self._until.of if name in found), default=math.inf)


FEWEST_BATCHES = 8
MOST_BATCHES = 20


@dataclass(frozen=True, slots=True)
class BatchMeans:
    """`count` batches of `size` requests each."""

    count: int
    size: int


def batches(requests: int, in_flight: float) -> BatchMeans | None:
    """Cut `requests` into 8 to 20 batches of whole waves of `in_flight` requests; None if there are too few.

    >>> batches(requests=1000, in_flight=32.0)
    BatchMeans(count=15, size=64)
    """
    wave = max(1, round(in_flight))
    waves = requests // wave
    if waves < FEWEST_BATCHES:
        return None
    waves_per_batch = math.ceil(waves / MOST_BATCHES)
    return BatchMeans(waves // waves_per_batch, waves_per_batch * wave)


def batch_means(values: Floats, cut: BatchMeans) -> Floats:
    """Means of batches of `values` in their order, shape (count,); values left over at the end are dropped."""
    return np.asarray(values[: cut.count * cut.size].reshape(cut.count, cut.size).mean(axis=1))


def done_by(start_s: Floats, end_s: Floats, at_s: Floats) -> Floats:
    """Requests done by each time of `at_s`, shape (times,); one in flight counts by the fraction of its time elapsed.

    Differences are rates that do not jump when a whole wave of a lockstep loop ends at once.
    """
    lasting_s = np.maximum(end_s - start_s, np.finfo(float).tiny)
    return np.array([np.clip((now_s - start_s) / lasting_s, 0, 1).sum() for now_s in at_s.tolist()])


def batch_rates(start_s: Floats, end_s: Floats, window_s: tuple[float, float], count: int) -> Floats:
    """Requests/s in each of `count` equal parts of the window, shape (count,), counted as by `done_by`."""
    edges_s = np.linspace(*window_s, count + 1)
    return np.asarray(np.diff(done_by(start_s, end_s, edges_s)) / np.diff(edges_s))
