"""The main path of a calibration: a plan is run level by level, and each point is kept as soon as it is measured."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from calibration.errors import CalibrationError, Cancelled, NothingAnswered, PlanError, StoreError
from calibration.keep_up import processes
from calibration.levels import Level
from calibration.load.cores import kept_off
from calibration.load.shards import Workers
from calibration.measure import Pace, Target, measure, prepare, probe, seed_of
from calibration.plan import PlanFile, parse_plan
from calibration.records import Measurement
from calibration.store import Ending, Store
from calibration.sweep import Sweep, sweep_of


class Progress(Protocol):
    """Is told how a run gets on, always from the thread that called `run`."""

    def started(self, run_id: int) -> None:
        """The run is in the store."""

    def says(self, text: str) -> None:
        """A line for the person who waits."""

    def expects(self, level: Level, seconds: float, after_s: float) -> None:
        """`level` comes next and is thought to take `seconds`, what follows it `after_s`."""

    def share(self, done: float) -> None:
        """So much of the present level is over, 0 to 1."""

    def measured(self, level: Level, found: Measurement) -> None:
        """The point of `level` is in the store."""


class Quiet:
    """Progress that tells nobody."""

    def started(self, run_id: int) -> None: ...
    def says(self, text: str) -> None: ...
    def expects(self, level: Level, seconds: float, after_s: float) -> None: ...
    def share(self, done: float) -> None: ...
    def measured(self, level: Level, found: Measurement) -> None: ...


def run(file: PlanFile, store: Store, progress: Progress | None = None, cancel: threading.Event | None = None) -> int:
    """Measure the levels of the plan; the number of the run is returned.

    Raises PlanError, FileError or ServerError before anything is stored if the plan and the server do not fit,
    ClientLimitedError if this machine cannot make the planned load, ServerError if the server is lost on the way,
    Cancelled when `cancel` is set, and KeyboardInterrupt: the points until then are kept, and `resume` goes on from
    there.
    """
    target = _begun(prepare(file))
    label = f"{file.plan.server.model} at {file.plan.server.url}"
    run_id = store.create_run(
        file.text, folder=file.folder, label=label, levels=len(target.levels) + target.plan.check_loads
    )
    _measured(run_id, target, store, progress or Quiet(), cancel)
    return run_id


def resume(run_id: int, store: Store, progress: Progress | None = None, cancel: threading.Event | None = None) -> int:
    """Measure the levels of run `run_id` that have no point yet, by the plan it was started with.

    Raises as `run` does, StoreError if there is no such run or it is being measured, and PlanError if the server is
    another deployment now.
    """
    begun = store.run(run_id)
    if not begun.plan:
        raise PlanError(f"run {run_id} was imported and has no plan to go on with: start a new run")
    target = _begun(prepare(parse_plan(begun.plan, name=f"plan of run {run_id}", folder=Path(begun.folder))))
    for point in store.points(run_id):
        if point.deployment != target.replica:
            change = f"{point.deployment.label} then, {target.replica.label} now"
            raise PlanError(f"run {run_id}: the server is not the one it was started on ({change}): start a new run")
    store.restart_run(run_id)
    _measured(run_id, target, store, progress or Quiet(), cancel)
    return run_id


def _measured(run_id: int, target: Target, store: Store, progress: Progress, cancel: threading.Event | None) -> None:
    with _state_kept(run_id, store), store.kept_alive(run_id), kept_off(target.served.engine_cores):
        progress.started(run_id)
        missing = _missing(target.levels, store, run_id)
        if missing or len(store.done_levels(run_id)) < len(target.levels) + target.plan.check_loads:
            to_come = missing or target.levels
            pace = probe(target, to_come[0])
            with Workers(processes(target, to_come, pace, progress.says)) as workers:
                sweep = sweep_of(target, missing, pace, progress.says)
                _follow(sweep, run_id, target, pace, workers, store, progress, cancel)


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
    cancel: threading.Event | None,
) -> None:
    """Measure what the sweep names, one level after another, until it names none.

    Raises NothingAnswered at the end, if there was a level of which every request failed: it has no point.
    """
    without: list[NothingAnswered] = []
    while (level := sweep.next(store.points(run_id, as_measured=True))) is not None:
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
        store.add_point(run_id, found, seed=seed_of(target, level))
        progress.measured(level, found)
        pace = pace.after(found.point)
    if without:
        raise without[0]


@contextmanager
def _state_kept(run_id: int, store: Store) -> Iterator[None]:
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
    store.finish_run(run_id, "done")
