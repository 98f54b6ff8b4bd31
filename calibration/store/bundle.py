"""Export of a run to one file and import of it into any store: the same run wherever it goes, whole or not at all."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sql
from sqlalchemy.exc import IntegrityError

from calibration.errors import StoreError
from calibration.plan import level_key
from calibration.records import Measurement
from calibration.store import Run, Store
from calibration.store.bundle_file import Bundle, PointPart, RunPart, read_bundle, write_bundle
from calibration.store.database import runs
from calibration.store.records_file import read_log, replacing
from calibration.store.rows import at_work, insert_point, insert_run, of_run, point_of, update_run


def export_bundle(store: Store, run_id: int, path: Path) -> None:
    """Write run `run_id` with its points and the logs that are on this machine to `path`.

    The same run gives the same bytes, from whichever store. Raises StoreError if there is no such run, it is being
    measured, a log of it is damaged, or `path` cannot be written; the file at `path` is then as it was.
    """
    run = store.run(run_id)
    if run.state == "running":
        raise StoreError(f"run {run_id} is being measured by {run.owner}: export it when it has ended")
    kept = store.measurements(run_id, as_measured=True)
    files = store.records(run_id)
    points, members = [], {}
    for number, item in enumerate(kept, start=1):
        file = files.get(level_key(item.point))
        name = f"records/level-{number}.parquet" if file else None
        points.append(PointPart(point=item.point, facts=dict(item.facts), server=dict(item.server), records=name))
        if file and name:
            read_log(file)  # a damaged one is told here and not by who imports it
            members[name] = file
    with replacing(path) as target:
        write_bundle(target, _run_part(run), points, members)


def _run_part(run: Run) -> RunPart:
    names = RunPart.model_fields
    values: dict[str, Any] = {name: getattr(run, name) for name in names}
    return RunPart(**values | {"state": "interrupted" if run.state == "lost" else run.state})


def import_bundle(store: Store, path: Path) -> tuple[int, bool]:
    """Bring the run in the file at `path` into the store: its number there, and whether it is new to the store.

    A run is told by its UUID: importing it again changes nothing, except that points it lacks here, having gone on
    elsewhere, are added. All or nothing. Raises FileError if the file is not what `export_bundle` wrote, StoreError if
    the store refuses, is measuring this very run, or has another point of it at one of the levels.
    """
    with read_bundle(path) as bundle:
        try:
            return _adopt(store, bundle)
        except IntegrityError:  # another process has imported it at this moment: then it is here now
            return _adopt(store, bundle)


def _adopt(store: Store, bundle: Bundle) -> tuple[int, bool]:
    written: list[Path] = []
    try:
        with store.database.writing() as connection:
            known = connection.execute(sql.select(runs.c.id).where(runs.c.uuid == bundle.run.uuid)).scalar()
            run_id = insert_run(connection, bundle.run.model_dump()) if known is None else int(known)
            missing = _missing(connection, run_id, bundle)
            if missing:
                _allow_change(store, connection, run_id, bundle.run)
            for part in missing:
                measured = Measurement(part.point, part.facts, part.server)
                name = insert_point(connection, run_id, measured, recorded=part.records is not None)
                if part.records is not None:
                    written.append(store.database.records / name)
                    with replacing(written[-1]) as file:
                        file.write(bundle.read(part.records))
            return run_id, known is None
    except BaseException:
        _remove(written)
        raise


def _missing(connection: sql.Connection, run_id: int, bundle: Bundle) -> list[PointPart]:
    """Points of the file that the run in the store lacks. Raises StoreError where it has others at their levels."""
    here = {level_key(point): point for point in map(point_of, connection.execute(of_run(run_id)).mappings())}
    for part in bundle.points:
        if here.get(level_key(part.point), part.point) != part.point:
            raise StoreError(f"run {run_id} of this store has another point than the file at {level_key(part.point)}")
    return [part for part in bundle.points if level_key(part.point) not in here]


def _allow_change(store: Store, connection: sql.Connection, run_id: int, run: RunPart) -> None:
    if owner := at_work(connection, run_id, store.database.clock):
        raise StoreError(f"run {run_id} of this store is being measured by {owner}: import when it has ended")
    update_run(connection, run_id, {"state": run.state, "ended": run.ended, "error": run.error})


def _remove(files: list[Path]) -> None:
    for file in files:
        with suppress(OSError):
            file.unlink(missing_ok=True)
            file.parent.rmdir()
