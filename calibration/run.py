"""The main path of a calibration: a plan is run level by level, and each point is kept as soon as it is measured."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from calibration.errors import CalibrationError, Cancelled, NothingAnswered, PlanError, StoreError
from calibration.keep_up import processes
from calibration.levels import Level
from calibration.load.cores import kept_off
from calibration.load.shards import Workers
from calibration.measure import Pace, Target, measure, prepare, probe, seed_of
from calibration.plan import PlanFile, parse_plan
from calibration.reporter import Progress, Quiet, Reporter
from calibration.store import Ending, Store
from calibration.store.database import patient
from calibration.store.work import give_up
from calibration.sweep import Sweep, sweep_of


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
