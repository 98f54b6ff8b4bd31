"""A limit on the CPU time of a question, and a regular check whether anybody still waits for the answer.

The caller sets the terms: the command line by `--time-limit`, a page for each visit. Long computations
(`queueing.predict`, the simulator) call `checkpoint` between their parts, which costs next to nothing if no terms were
set. The terms belong to the thread that asked; time is the CPU time of that thread, so a busy machine refuses no more
than an idle one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from time import thread_time

from sizing.errors import ScenarioError, TimeLimitReached
from sizing.numbers import significant

LEAST_TOLD = 0.05
"""Share of the time from which a kind of work is mentioned."""


@dataclass(slots=True)
class Budget:
    """CPU seconds that a question may take, `look_up` for other reasons to end it, and where the time went so far."""

    limit_s: float
    look_up: Callable[[], object]
    began_s: float
    doing: str = ""
    since_s: float = 0.0
    spent_s: dict[str, float] = field(default_factory=dict)
    times: dict[str, int] = field(default_factory=dict)

    def check(self, doing: str) -> None:
        """Record the time since the last check; raises TimeLimitReached beyond the limit, and whatever `look_up`
        raises."""
        now_s = thread_time()
        self.spent_s[self.doing] = self.spent_s.get(self.doing, 0.0) + now_s - self.since_s
        self.since_s = now_s
        if doing:
            self.doing = doing
            self.times[doing] = self.times.get(doing, 0) + 1
        self.look_up()
        if now_s - self.began_s > self.limit_s:
            raise TimeLimitReached(
                f"no answer within {significant(self.limit_s)} s of computing: {self.dearest()}; compare fewer GPUs, "
                "TPs and precisions, route at random, or ask the command line with a higher --time-limit"
            )

    def dearest(self) -> str:
        """The most expensive work so far, for instance: 21 s for 52 × simulation of 240,000 requests."""
        whole_s = sum(self.spent_s.values())
        by_time = sorted(self.spent_s.items(), key=lambda spent: -spent[1])
        told = [
            f"{significant(spent_s, 2)} s for {self.times[doing]:,} × {doing}"
            for doing, spent_s in by_time
            if doing and spent_s >= LEAST_TOLD * whole_s
        ]
        return ", ".join(told) or "all of it before the first prediction"


_terms: ContextVar[Budget | None] = ContextVar("budget", default=None)


def nobody_leaves() -> None:
    """`look_up` of the command line: the user always waits."""


@contextmanager
def within(limit_s: float = math.inf, look_up: Callable[[], object] = nobody_leaves) -> Iterator[None]:
    """Limit the work inside to `limit_s` seconds of CPU; 0 = as long as it takes.

    `look_up` is called now and then and may raise. Raises TimeLimitReached beyond the limit, with what took so long;
    ScenarioError for a limit below 0.
    """
    if not limit_s >= 0:
        raise ScenarioError(f"the time limit must be 0 (none) or more seconds, got {limit_s:g}")
    now_s = thread_time()
    before = _terms.set(Budget(limit_s or math.inf, look_up, now_s, since_s=now_s))
    try:
        yield
    finally:
        _terms.reset(before)


@contextmanager
def told(tell: Callable[[str], object]) -> Iterator[None]:
    """Tell, now and then, what is computed inside, under the terms that were set, if any."""
    budget = _terms.get()
    if budget is None:
        with within(), told(tell):
            yield
        return
    look_up = budget.look_up

    def look_up_and_tell() -> None:
        look_up()
        tell(budget.doing)

    budget.look_up = look_up_and_tell
    try:
        yield
    finally:
        budget.look_up = look_up


def unbilled(spent_s: float) -> None:
    """Exclude from the account CPU seconds that this thread has just spent and no second question will."""
    if (budget := _terms.get()) is not None:
        budget.began_s += spent_s
        budget.since_s += spent_s


def checkpoint(doing: str = "") -> None:
    """A place where work may end: `doing` names what begins here; empty while the same work continues."""
    if (budget := _terms.get()) is not None:
        budget.check(doing)
