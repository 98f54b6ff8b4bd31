"""The main path of a calibration: a plan is run level by level, and each point is kept as soon as it is measured."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from calibration.cores import kept_off
from calibration.errors import CalibrationError, PlanError
from calibration.measure import Pace, Target, measure, prepare, probe
from calibration.plan import Level, PlanFile, parse_plan
from calibration.store import Store
from sizing.curves import Point


class Progress(Protocol):
    """Is told how a run gets on, always from the thread that called `run`."""

    def started(self, run_id: int, levels: Sequence[Level]) -> None:
        """`levels` are those still to be measured."""

    def expects(self, seconds: Sequence[float]) -> None:
        """Seconds that the levels not measured yet are now thought to take, the next one first."""

    def answered(self, done: int, wanted: int) -> None:
        """`done` of the `wanted` requests of the present level are answered."""

    def measured(self, level: Level, point: Point) -> None:
        """The point of `level` is in the store."""


class Quiet:
    """Progress that tells nobody."""

    def started(self, run_id: int, levels: Sequence[Level]) -> None: ...
    def expects(self, seconds: Sequence[float]) -> None: ...
    def answered(self, done: int, wanted: int) -> None: ...
    def measured(self, level: Level, point: Point) -> None: ...


def run(file: PlanFile, store: Store, progress: Progress | None = None) -> int:
    """Measure every level of the plan; the number of the run is returned.

    Raises PlanError or ServerError before anything is stored if the plan and the server do not fit, ServerError if the
    server is lost on the way, and KeyboardInterrupt: the points until then are kept, and `resume` goes on from there.
    """
    target = prepare(file)
    label = f"{file.plan.server.model} at {file.plan.server.url}"
    run_id = store.create_run(file.text, folder=file.folder, label=label, levels=len(file.plan.levels()))
    with _state_kept(run_id, store), kept_off(target.served.engine_cores):
        asyncio.run(_measure_missing(run_id, target, store, progress or Quiet()))
    return run_id


def resume(run_id: int, store: Store, progress: Progress | None = None) -> int:
    """Measure the levels of run `run_id` that have no point yet, by the plan it was started with.

    Raises as `run` does, StoreError if there is no such run, and PlanError if the server is another deployment now.
    """
    begun = store.run(run_id)
    target = prepare(parse_plan(begun.plan, name=f"plan of run {run_id}", folder=Path(begun.folder)))
    for point in store.points(run_id):
        if point.deployment != target.replica:
            change = f"{point.deployment.label} then, {target.replica.label} now"
            raise PlanError(f"run {run_id}: the server is not the one it was started on ({change}): start a new run")
    store.restart_run(run_id)
    with _state_kept(run_id, store), kept_off(target.served.engine_cores):
        asyncio.run(_measure_missing(run_id, target, store, progress or Quiet()))
    return run_id


async def _measure_missing(run_id: int, target: Target, store: Store, progress: Progress) -> None:
    done = store.done_levels(run_id)
    missing = [level for level in target.plan.levels() if level.key not in done]
    progress.started(run_id, missing)
    pace: Pace | None = None
    for number, level in enumerate(missing):
        if pace is None or pace.lengths != level.lengths:
            pace = await probe(target, level, run_id)
        progress.expects([pace.expected_s(target.plan, later) for later in missing[number:]])
        point = await measure(target, level, pace, run_id, progress.answered)
        store.add_point(run_id, point)
        progress.measured(level, point)
        pace = pace.after(point)


@contextmanager
def _state_kept(run_id: int, store: Store) -> Iterator[None]:
    """The run ends as done, interrupted or failed, whatever happens; a failure says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        store.finish_run(run_id, "interrupted")
        raise
    except CalibrationError as error:
        store.finish_run(run_id, "failed", str(error))
        raise type(error)(f"{error}; points are kept, go on with: python -m calibration resume {run_id}") from None
    store.finish_run(run_id, "done")
