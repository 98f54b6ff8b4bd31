"""What the pages compute of a question, free of Streamlit: in the processes that serve.py starts, else in this one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from sizing import catalog, planner
from sizing.analyses.curves import LengthCell, SpeedCurve, length_grid, sla_use, speed_curve
from sizing.analyses.existing import Existing, best_first
from sizing.analyses.pools import Pools, pools_of
from sizing.analyses.relax import Relaxation, Together, ways
from sizing.budget import checkpoint, within
from sizing.candidates import Choice, Found, find, from_fit, law_of
from sizing.errors import CatalogueError, FitError, NotComputed, SizingError, TimeLimitReached
from sizing.files import resource
from sizing.fitting import Fit
from sizing.fitting.result import CoveredRange
from sizing.plans import Candidate, Fleet, NoFeasiblePlan, Plan, Rejection
from sizing.points import Point, read_points
from sizing.question import Question
from sizing.workload import Lengths
from ui.scenario import Scenario

SHIPPED = resource("data/curves")
"""Folder of the points that come with the program."""
LOOK_EVERY_S = 0.25
"""Between two looks whether the visitor still waits, while another process computes."""


@dataclass(frozen=True, slots=True)
class Available:
    """The available points and their digest, which stands for them; `problems` are sources that cannot be read."""

    points: tuple[Point, ...] = field(compare=False)
    digest: str
    problems: tuple[str, ...] = field(default=(), compare=False)


def shipped_points(folder: Path | str) -> tuple[list[Point], list[str]]:
    """The points of all tables in a folder, and what is wrong with those that cannot be read."""
    points: list[Point] = []
    problems: list[str] = []
    for path in sorted(Path(folder).glob("*.csv")):
        try:
            points += read_points(path)
        except SizingError as error:
            problems.append(str(error))
    return points, problems


@dataclass(frozen=True, slots=True)
class Computation:
    """`function` of `arguments`, for which `key` stands. `model`: one that a visitor brought, which the process that
    computes may not know."""

    function: Callable[..., Any]
    key: tuple[Any, ...]
    arguments: tuple[Any, ...] = field(compare=False)
    model: catalog.Model | None = field(default=None, compare=False)

    @property
    def kept_as(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Function and key: of the arguments a fleet alone is as large as its answer."""
        return self.function, self.key

    def answer(self, limit_s: float) -> Any:
        """What the function returns. Raises TimeLimitReached beyond so many seconds of CPU; 0 = no limit."""
        if self.model:
            catalog.keep(self.model)
        with within(limit_s):
            return self.function(*self.arguments)


class Processes(Protocol):
    """Processes that compute."""

    async def answer(self, job: Computation) -> Any:
        """What one of them answers. Raises NotComputed, and what the computation does."""


class Elsewhere(NamedTuple):
    """The workers of a server, and the event loop that they belong to."""

    workers: Processes
    loop: asyncio.AbstractEventLoop

    def begun(self, computation: Computation) -> Future[Any]:
        """Under way; the future can be waited for in any thread but the loop's."""
        return asyncio.run_coroutine_threadsafe(self.workers.answer(computation), self.loop)


_elsewhere: list[Elsewhere] = []
T = TypeVar("T")


def use(workers: Processes, loop: asyncio.AbstractEventLoop) -> None:
    """Compute there from now on."""
    _elsewhere[:] = [Elsewhere(workers, loop)]


def stop_using() -> None:
    """Compute in this process again."""
    _elsewhere.clear()


def computed(function: Callable[..., T], *arguments: Any, key: tuple[Any, ...], model: str) -> T:
    """What a function of a question about `model` returns; equal keys of one function are computed once at a time.

    Raises what the function does, TimeLimitReached and NotComputed. Dear questions end with the last visitor.
    """
    if not _elsewhere:
        return function(*arguments)
    under_way = _elsewhere[0].begun(Computation(function, key, arguments, catalog.own(model)))
    try:
        while not wait([under_way], LOOK_EVERY_S).done:
            checkpoint()
        return cast(T, under_way.result())
    finally:
        under_way.cancel()  # of no effect once it is done


def first_answer() -> str:
    """Answer the first screen's question, which loads all that was compiled: "ok", or "no answer".

    Processes that are forked later have the laws fitted to the shipped points already. Raises TimeLimitReached.
    """
    first = Scenario()
    points, _ = shipped_points(SHIPPED)
    try:
        planner.plan(first.question, *find(first.model, first.lengths, first.choice, points, expected=False))
    except TimeLimitReached:
        raise  # the slow lane has time for it
    except SizingError:
        return "no answer"
    return "ok"


def first_answer_there() -> str:
    """The first answer where questions are computed, which waits until everything is loaded there: "ok", or what is
    wrong."""
    if not _elsewhere:
        return first_answer()
    try:
        return str(_elsewhere[0].begun(Computation(first_answer, (), ())).result())
    except (NotComputed, TimeLimitReached):
        return "no answer"


# --- Questions


@dataclass(frozen=True, slots=True)
class Outcome:
    """An answered question: a plan, or the reason in a few words (`title`), in a line, and row by row."""

    plan: Plan | None
    title: str = ""
    reason: str = ""
    rejected: tuple[Rejection, ...] = ()


@dataclass(frozen=True, slots=True)
class Carried:
    """What an existing fleet carries: the best configuration first, or the reason why it carries nothing."""

    fleets: tuple[Existing, ...] | None
    title: str = ""
    reason: str = ""
    rejected: tuple[Rejection, ...] = ()


@dataclass(frozen=True, slots=True)
class Ways:
    """Ways to meet an SLA that nothing meets: each limit relaxed alone; if none is enough, all that must be relaxed."""

    alone: tuple[Relaxation, ...]
    together: Together | None


def answered(ask: Callable[[], T], no: Callable[..., T]) -> T:
    """What `ask` answers; where it raises, `no(None, title, reason, rejected)` says why in words for the page.

    Lets TimeLimitReached and NotComputed through: the caller reports them, and they must not be cached.
    """
    try:
        return ask()
    except (TimeLimitReached, NotComputed):
        raise
    except NoFeasiblePlan as error:
        return no(None, title_of(error.rejected), str(error), error.rejected)
    except CatalogueError as error:
        return no(None, "A name in this question is not known", str(error), ())
    except SizingError as error:
        return no(None, "This question has no answer yet", str(error), ())


def title_of(rejected: Sequence[Rejection]) -> str:
    """Why none of these is the answer, as a page's title."""
    kinds = {rejection.kind for rejection in rejected}
    if kinds == {"memory"}:
        return "The model does not fit on these GPUs"
    if "too_few" in kinds and "sla" not in kinds:
        return "These GPUs are too few"
    if kinds == {"no_data"}:
        return "There is no data for these configurations"
    return "No configuration meets this SLA"


@lru_cache(64)
def found_among(model: str, lengths: Lengths, choice: Choice, have: Available) -> Found:
    """Candidates, kept because they do not depend on load and SLA, and finding them takes longer than planning."""
    return find(model, lengths, choice, have.points, expected=False)


def found_for(question: Question, choice: Choice, have: Available) -> Found:
    """The candidates of a question."""
    return found_among(question.model, question.workload.lengths, choice, have)


def outcome(question: Question, choice: Choice, have: Available) -> Outcome:
    """The smallest fleets."""
    return answered(lambda: Outcome(planner.plan(question, *found_for(question, choice, have))), Outcome)


def outcome_of(points: Sequence[Point], question: Question) -> Outcome:
    """The smallest fleet by the points of one deployment alone."""

    def plan() -> Outcome:
        found = from_fit(law_of(tuple(points)), question.workload.lengths, points)
        return Outcome(planner.plan(question, [found]))

    return answered(plan, Outcome)


def fitted(points: Sequence[Point]) -> Fit | str:
    """The law fitted to points, all of one deployment, or why there is none."""
    try:
        return law_of(tuple(points))
    except FitError as error:
        return str(error)


def carried(question: Question, gpus: int, choice: Choice, have: Available) -> Carried:
    """What so many GPUs can serve."""

    def ask() -> Carried:
        found, left_out = found_for(question, choice, have)
        fleets, rejected = best_first(question, found, gpus, left_out)
        return Carried(tuple(fleets), rejected=tuple(rejected))

    return answered(ask, Carried)


def ways_out(question: Question, choice: Choice, have: Available) -> Ways:
    """How to meet an SLA that every candidate misses."""
    found, _ = found_for(question, choice, have)
    return Ways(*ways(question, found))


def pools(question: Question, choice: Choice, have: Available) -> Pools | Rejection | str:
    """Prefill and decode in two pools, or why there are none."""
    try:
        found, _ = found_for(question, choice, have)
        return pools_of(question, found) if found else "no configuration can be estimated"
    except TimeLimitReached:
        raise
    except SizingError as error:
        return str(error)


def speeds(question: Question, choice: Choice, have: Available, plan: Plan | None) -> list[SpeedCurve]:
    """Every candidate at rising load; none where there is no candidate."""
    try:
        found, _ = found_for(question, choice, have)
    except TimeLimitReached:
        raise
    except SizingError:
        return []
    known = {_key(fleet.candidate): fleet.capacity_per_s for fleet in plan.fleets} if plan else {}
    return [speed_curve(question, each, known.get(_key(each))) for each in found]


def _key(candidate: Candidate) -> tuple[str, str]:
    return candidate.label, candidate.source


def over_lengths(question: Question, fleet: Fleet, covered: CoveredRange | None) -> tuple[LengthCell, ...]:
    """Requests/s per GPU of the fleet's configuration at other lengths; `covered`: those that were measured."""
    return length_grid(question, fleet, lambda asked: covered is not None and covered.covers(asked))


def sla_uses(question: Question, fleets: Mapping[str, Fleet]) -> dict[str, tuple[float, ...]]:
    """For each fleet, how the SLA is used up from no load to just beyond the capacity; 1 is the limit."""
    return {name: sla_use(question, fleet) for name, fleet in fleets.items()}
