"""The main path of a calibration: a plan is run level by level, and each point is kept as soon as it is measured."""

from __future__ import annotations

import math
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from calibration.errors import CalibrationError, Cancelled, ClientLimitedError, NothingAnswered, PlanError, StoreError
from calibration.load.pool import Workers
from calibration.load.self_check import Distortion, processes_needed
from calibration.load.system import kept_off
from calibration.measure import Pace, Target, arrivals_of, expected_requests, measure, prepare, probe, seed_of
from calibration.plan import Level, PlanFile, SweepPlan, parse_plan
from calibration.reporter import Progress, Quiet, Reporter
from calibration.store import Ending, Store
from calibration.store.database import patient
from calibration.store.work import give_up
from sizing.points import Point

# --- In which order levels are measured: a plain grid as the plan has it, or those that a question needs

if TYPE_CHECKING:
    from calibration.adapt import Adaptive
Says = Callable[[str], None]


class Sweep(Protocol):
    """Names the next level, and tells how long the rest will take."""

    def next(self, points: Sequence[Point]) -> Level | None:
        """The level to measure after `points`, those the run has so far; None when there is no more to do."""

    def skip(self, level: Level) -> None:
        """`level`, named last, has no point and will have none: do not name it again."""

    def expected_s(self, pace: Pace) -> tuple[float, float]:
        """Seconds for the level named last, and for all that is thought to follow it."""


def sweep_of(target: Target, levels: Sequence[Level], pace: Pace, says: Says) -> Sweep:
    """The sweep that the plan asks for over `levels`, those without a point. `says` is told the time it may take."""
    if target.plan.adaptive is None:
        expected_s = sum(pace.expected_s(target.plan, level) for level in levels)
        checks = f", then {target.plan.check_loads} with random arrivals" if target.plan.check_loads else ""
        says(f"{len(levels)} levels, about {minutes(expected_s)}{checks}")
        return ThenRandomArrivals(target, levels) if target.plan.check_loads else Grid(target, levels)
    return AsNeeded(target, levels, pace, says)


class Grid:
    """One level after another."""

    def __init__(self, target: Target, levels: Sequence[Level]) -> None:
        self._plan = target.plan
        self._left = list(levels)
        self._named = 0

    def next(self, points: Sequence[Point]) -> Level | None:
        self._left = self._left[self._named :]
        self._named = 1
        return self._left[0] if self._left else None

    def skip(self, level: Level) -> None: ...

    def total_s(self, pace: Pace) -> float:
        """Seconds for all levels not measured yet."""
        return sum(pace.expected_s(self._plan, level) for level in self._left[self._named :])

    def expected_s(self, pace: Pace) -> tuple[float, float]:
        first_s, *after_s = [pace.expected_s(self._plan, level) for level in self._left]
        return first_s, sum(after_s)


class ThenRandomArrivals:
    """One level after another, then random arrivals at a share of the highest requests/s found."""

    def __init__(self, target: Target, levels: Sequence[Level]) -> None:
        self._target = target
        self._grid = Grid(target, levels)
        self._level: Level | None = None
        self._skipped: set[int] = set()

    def next(self, points: Sequence[Point]) -> Level | None:
        self._level = self._grid.next(points) or self._check(points)
        return self._level

    def _check(self, points: Sequence[Point]) -> Level | None:
        """The first of the lengths that has closed-loop points and no other."""
        plan, levels = self._target.plan, self._target.levels
        for entry in set(range(len(plan.lengths))) - self._skipped:
            level = next(level for level in levels if level.entry == entry)
            alike = [point for point in points if point.lengths == level.lengths]
            best_per_s = max((point.requests_per_s for point in alike if not point.void), default=0.0)
            if best_per_s and all(point.load_kind == "concurrency" for point in alike):
                rate = float(f"{plan.check_load * best_per_s:.2g}")
                requests = plan.requests_per_level or 100
                return replace(level, index=len(levels) + entry, kind=plan.rate_kind, value=rate, requests=requests)
        return None

    def skip(self, level: Level) -> None:
        if level.kind != "concurrency":
            self._skipped.add(level.entry)

    def expected_s(self, pace: Pace) -> tuple[float, float]:
        if self._level is None or self._level.kind == "concurrency":
            return self._grid.expected_s(pace)
        return pace.expected_s(self._target.plan, self._level), 0.0


class AsNeeded:
    """The closed-loop levels that the plan's question needs, then every open-loop level."""

    def __init__(self, target: Target, levels: Sequence[Level], pace: Pace, says: Says) -> None:
        self._says = says
        self._levels = target.levels
        self._adaptive: Adaptive | None = _adaptive(target, pace)
        self._after = Grid(target, [level for level in levels if level.kind != "concurrency"])
        says(self._adaptive.before)

    def skip(self, level: Level) -> None:
        """The choice follows from the points alone: without one it would be the same level for ever."""
        self._adaptive = None

    def next(self, points: Sequence[Point]) -> Level | None:
        if self._adaptive is not None:
            level = self._adaptive.next(points)
            self._says(self._adaptive.why)
            if level is not None:
                return self._levels[level.index]
            self._says(str(self._adaptive.summary(points)))
            self._adaptive = None
        return self._after.next(points)

    def expected_s(self, pace: Pace) -> tuple[float, float]:
        if self._adaptive is None:
            return self._after.expected_s(pace)
        after_s = max(0.0, self._adaptive.remaining_s - self._adaptive.expected_s)
        return self._adaptive.expected_s, after_s + self._after.total_s(pace)


def _adaptive(target: Target, pace: Pace) -> Adaptive:
    from calibration.adapt import Adaptive, question_of  # costs scipy and numba, which a plain sweep does without

    plan, replica = target.plan, target.replica
    assert plan.adaptive is not None
    levels = [level for level in target.levels if level.kind == "concurrency"]
    closed = [replace(level, requests=expected_requests(plan, level)) for level in levels]
    longest = (plan.until_of(level).budget_s for level in closed)
    return Adaptive(
        closed,
        question_of(plan.adaptive, replica.model, target.levels[0].lengths),
        plan.adaptive.budget_s(replica.tp * replica.pp),
        lambda level: pace.expected_s(plan, level),
        warm_up=plan.warm_up,
        limit_s=max((limit_s or math.inf for limit_s in longest), default=math.inf),
        band=plan.adaptive.band,
    )


def minutes(seconds: float) -> str:
    """For people: ``45 s``, ``3.2 minutes``."""
    return f"{seconds:.0f} s" if seconds < 60 else f"{seconds / 60:.1f} minutes"


# --- Before a sweep: how many processes the load generator needs for the heaviest level, found on its own mock


def processes(target: Target, levels: Sequence[Level], pace: Pace, says: Callable[[str], None]) -> int:
    """Processes for all of `levels`: those the plan names, else as many as keep the heaviest level true.

    Held against the mock first at the tokens/s that the streams would take at the timings of an idle server, more than
    any server gives. If that is too much for this machine, then at the pace guessed for the loaded server. Raises
    ClientLimitedError if that is too much as well.
    """
    client = target.plan.client
    if not client.self_check:
        return client.processes or 1
    heaviest = max(levels, key=lambda level: _streams(target.plan, level, pace))
    try:
        found = _found(target, heaviest, pace, math.inf)
    except ClientLimitedError as error:
        tokens_per_s = _tokens_per_s(target.plan, heaviest, pace)
        says(f"at the pace of an idle server it would not keep up: {error}")
        says(f"held against {tokens_per_s:,.0f} tokens/s instead; the verdict of each point tells if that was too few")
        found = _found(target, heaviest, pace, tokens_per_s)
    says(f"load generator on its mock, {found.users} streams: {found.text}")
    return found.processes


def _found(target: Target, level: Level, pace: Pace, tokens_per_s: float) -> Distortion:
    osl = max(1, round(level.lengths.osl))
    chosen = target.plan.client.processes
    return processes_needed(
        _streams(target.plan, level, pace),
        tokens_per_s,
        pace.ttft_s,
        pace.itl_s,
        osl,
        target.plan.server.protocol,
        fewest=chosen or 1,
        most=chosen,
    )


def _streams(plan: SweepPlan, level: Level, pace: Pace) -> int:
    """Requests in flight at the level, for an open loop by Little's law at the idle server's pace, doubled."""
    users = level.value if level.kind == "concurrency" else 2 * _peak_per_s(plan, level) * pace.e2e_s
    return max(1, math.ceil(users))


def _peak_per_s(plan: SweepPlan, level: Level) -> float:
    """The highest rate of an open loop over a second or more."""
    if level.kind == "schedule":
        return max(stage.rate for stage in plan.schedule)
    if level.kind == "trace":
        times_s = arrivals_of(plan, level, Pace(level.lengths, 1.0, 1.0))
        return float(np.bincount((times_s - times_s[0]).astype(np.int64)).max())
    return level.value


def _tokens_per_s(plan: SweepPlan, level: Level, pace: Pace) -> float:
    if level.kind != "concurrency":
        return _peak_per_s(plan, level) * level.lengths.osl
    return level.value * level.lengths.osl / pace.e2e_at_s(level.value)


def run(file: PlanFile, store: Store, progress: Progress | None = None, cancel: threading.Event | None = None) -> int:
    """Measure the levels of the plan; the number of the run is returned.

    Raises PlanError, FileError or ServerError before anything is stored if the plan and the server do not fit,
    StoreError if a run at the same server is going on or the store refuses,
    ClientLimitedError if this machine cannot make the planned load, ServerError if the server is lost on the way,
    Cancelled when `cancel` is set, and KeyboardInterrupt: the points until then are kept, and `resume` goes on from
    there.
    """
    target = _begun(prepare(file))
    label = f"{file.plan.server.model} at {file.plan.server.url}"
    run_id = store.create_run(
        file.text, folder=file.folder, label=label, levels=_levels(target), target=file.plan.server.url.lower()
    )
    _measured(run_id, target, store, progress or Quiet(), cancel)
    return run_id


def resume(run_id: int, store: Store, progress: Progress | None = None, cancel: threading.Event | None = None) -> int:
    """Measure the levels of run `run_id` that have no point yet, by the plan it was started with or queued with.

    Raises as `run` does, StoreError if there is no such run or it is being measured, and PlanError if the server is
    another deployment now.
    """
    begun = store.run(run_id)
    if not begun.plan:
        raise PlanError(f"run {run_id} was imported and has no plan to go on with: start a new run")
    with _refusal_kept(run_id, store):
        target = _begun(prepare(parse_plan(begun.plan, name=f"plan of run {run_id}", folder=Path(begun.folder))))
        for point in store.points(run_id):
            if point.deployment != target.replica:
                change = f"{point.deployment.label} then, {target.replica.label} now"
                raise PlanError(
                    f"run {run_id}: the server is not the one it was started on ({change}): start a new run"
                )
        store.restart_run(run_id, levels=_levels(target), target=target.plan.server.url.lower())
    _measured(run_id, target, store, progress or Quiet(), cancel)
    return run_id


def _levels(target: Target) -> int:
    return len(target.levels) + target.plan.check_loads


@contextmanager
def _refusal_kept(run_id: int, store: Store) -> Iterator[None]:
    """Whoever queued a run is not there to read why it did not begin: the store tells."""
    try:
        yield
    except (CalibrationError, KeyboardInterrupt) as error:
        with suppress(StoreError):
            if store.run(run_id).state == "queued":
                give_up(store, run_id, "failed", str(error) or "stopped before anything was measured")
        raise


def _measured(run_id: int, target: Target, store: Store, progress: Progress, cancel: threading.Event | None) -> None:
    cancel, told = cancel or threading.Event(), Reporter(progress)
    alive = store.kept_alive(run_id, news=told.news, on_stop=cancel.set)
    with _state_kept(run_id, store, told), alive, kept_off(target.served.engine_cores):
        told.started(run_id)
        missing = _missing(target.levels, store, run_id)
        if missing or len(store.done_levels(run_id)) < len(target.levels) + target.plan.check_loads:
            to_come = missing or target.levels
            pace = probe(target, to_come[0])
            with Workers(processes(target, to_come, pace, told.says)) as workers:
                sweep = sweep_of(target, missing, pace, told.says)
                _follow(sweep, run_id, target, pace, workers, store, told, cancel)


def _begun(target: Target) -> Target:
    """Told apart from all other measurements, on this machine or another."""
    return replace(target, session=(secrets.randbits(64),))


def _missing(levels: Sequence[Level], store: Store, run_id: int) -> list[Level]:
    done = store.done_levels(run_id)
    return [level for level in levels if level.key not in done]


def _follow(
    sweep: Sweep,
    run_id: int,
    target: Target,
    pace: Pace,
    workers: Workers,
    store: Store,
    progress: Progress,
    cancel: threading.Event,
) -> None:
    """Measure what the sweep names, one level after another, until it names none.

    Raises NothingAnswered at the end, if there was a level of which every request failed: it has no point.
    """
    without: list[NothingAnswered] = []
    while (level := sweep.next(patient(partial(store.points, run_id, as_measured=True), progress.says))) is not None:
        if cancel.is_set():
            raise Cancelled("stopped between two levels")
        try:
            if pace.lengths != level.lengths:
                pace = probe(target, level)
            progress.expects(level, *sweep.expected_s(pace))
            found = measure(target, level, pace, run_id, workers, progress.share, cancel)
        except NothingAnswered as error:
            progress.says(str(error))
            without.append(error)
            sweep.skip(level)
            continue
        patient(partial(store.add_point, run_id, found, seed=seed_of(target, level)), progress.says)
        progress.measured(level, found)
        pace = pace.after(found.point)
    if without:
        raise without[0]


@contextmanager
def _state_kept(run_id: int, store: Store, progress: Progress) -> Iterator[None]:
    """The run ends as done, interrupted or failed, whatever happens; a failure says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        with suppress(StoreError):
            store.finish_run(run_id, "interrupted")
        raise
    except CalibrationError as error:
        state: Ending = "interrupted" if isinstance(error, Cancelled) else "failed"
        with suppress(StoreError):  # the store may be what failed: it says so in `error`
            store.finish_run(run_id, state, str(error))
        raise type(error)(f"{error}; points are kept, go on with: python -m calibration resume {run_id}") from None
    except BaseException as error:
        with suppress(StoreError):
            store.finish_run(run_id, "failed", f"{type(error).__name__}: {error}")
        raise
    patient(partial(store.finish_run, run_id, "done"), progress.says)
