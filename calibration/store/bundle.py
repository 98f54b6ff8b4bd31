"""Export of a run to one file and import of it into any store: the same run wherever it goes, whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import sqlalchemy as sql
from sqlalchemy.exc import IntegrityError

from calibration.errors import StoreError
from calibration.levels import LevelKey, level_key
from calibration.records import Measurement
from calibration.store import LIVE, Run, Store
from calibration.store.bundle_file import Bundle, PointPart, RunPart, read_bundle, write_bundle
from calibration.store.database import runs
from calibration.store.logs import removed_on_error
from calibration.store.records_file import read_log, replacing
from calibration.store.rows import (
    at_work,
    cleaned,
    insert_point,
    insert_run,
    name_records,
    of_run,
    point_of,
    records_name,
    set_standing,
    update_run,
)


def export_bundle(store: Store, run_id: int, path: Path) -> int:
    """Write run `run_id` with its points and the logs that are on this machine to `path`; how many are not.

    Those lie where they were measured: importing a file made there adds them. With all of its logs the same run gives
    the same bytes, from whichever store. Raises StoreError if there is no such run, it is being
    measured, a log of it is damaged, or `path` cannot be written; the file at `path` is then as it was.
    """
    run = store.run(run_id)
    if run.state in LIVE:
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
    return len(store.logs_elsewhere(run_id))


def _run_part(run: Run) -> RunPart:
    names = RunPart.model_fields
    values: dict[str, Any] = {name: getattr(run, name) for name in names}
    return RunPart(**values | {"state": "interrupted" if run.state == "lost" else run.state})


def import_bundle(store: Store, path: Path) -> tuple[int, bool]:
    """Bring the run in the file at `path` into the store: its number there, and whether it is new to the store.

    A run is told by its UUID: importing it again changes nothing, except that what it lacks here is added: points,
    where it has gone on elsewhere, and logs that are not on this machine. All or nothing. Raises FileError if the file
    is not what `export_bundle` wrote, StoreError if the store refuses, is measuring this very run, or has another point
    of it at one of the levels.
    """
    with read_bundle(path) as bundle:
        try:
            return _adopt(store, bundle)
        except IntegrityError:  # another process has imported it at this moment: then it is here now
            return _adopt(store, bundle)


def _adopt(store: Store, bundle: Bundle) -> tuple[int, bool]:
    with removed_on_error() as written, store.database.writing() as connection:
        known = connection.execute(sql.select(runs.c.id).where(runs.c.uuid == bundle.run.uuid)).scalar()
        run_id = insert_run(connection, bundle.run.model_dump()) if known is None else int(known)
        owner = at_work(connection, run_id, store.database.clock)  # from here on nobody else changes the run
        here = {level_key(point_of(row)): row for row in connection.execute(of_run(run_id)).mappings()}
        _check_same(run_id, here, bundle)
        missing = [part for part in bundle.points if level_key(part.point) not in here]
        logs = _place_logs(store, connection, run_id, here, bundle)
        if owner and (missing or logs):
            raise StoreError(f"run {run_id} of this store is being measured by {owner}: import when it has ended")
        if missing:
            _bring_up_to_date(connection, run_id, bundle.run)
            logs |= _insert(store, connection, run_id, missing)
        set_standing(connection, run_id, "accepted")
        for file, member in logs.items():
            written.append(file)
            with replacing(file) as content:
                content.write(bundle.read(member))
    return run_id, known is None


def _insert(store: Store, connection: sql.Connection, run_id: int, parts: list[PointPart]) -> dict[Path, str]:
    """Insert points: where the log of each is to lie, and its member in the file."""
    logs: dict[Path, str] = {}
    for part in parts:
        recorded = part.records is not None
        name = insert_point(connection, run_id, Measurement(part.point, part.facts, part.server), recorded=recorded)
        if part.records is not None:
            logs[store.database.records / name] = part.records
    return logs


def _check_same(run_id: int, here: dict[LevelKey, sql.RowMapping], bundle: Bundle) -> None:
    """Raises StoreError where the run in the store has other points than the file at the same levels."""
    for part in bundle.points:
        row = here.get(level_key(part.point))
        if row is not None and cleaned(point_of(row)) != cleaned(part.point):
            raise StoreError(f"run {run_id} of this store has another point than the file at {level_key(part.point)}")


def _place_logs(
    store: Store, connection: sql.Connection, run_id: int, here: dict[LevelKey, sql.RowMapping], bundle: Bundle
) -> dict[Path, str]:
    """As `_insert`, for the points that are in the store already, but without their logs or with these elsewhere."""
    logs: dict[Path, str] = {}
    for part in bundle.points:
        row = here.get(level_key(part.point))
        if row is None or part.records is None:
            continue
        name = row["records"]
        if name and (store.database.records / name).is_file():
            continue
        if not name:
            name = records_name(connection, run_id, row["number"])
            name_records(connection, run_id, row["number"], name)
        logs[store.database.records / name] = part.records
    return logs


def _bring_up_to_date(connection: sql.Connection, run_id: int, run: RunPart) -> None:
    """Take over how the run ended, unless it has ended later here."""
    ended = connection.execute(sql.select(runs.c.ended).where(runs.c.id == run_id)).scalar()
    if ended is None or (run.ended or "") >= ended:
        update_run(connection, run_id, {"state": run.state, "ended": run.ended, "error": run.error})
