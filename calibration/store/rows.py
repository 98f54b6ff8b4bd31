"""Rows of the store's tables: what was measured as columns and back, and the statements that several parts need."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import sqlalchemy as sql
from pydantic import TypeAdapter, ValidationError
from sqlalchemy.exc import IntegrityError

from calibration.errors import StoreError
from calibration.records import Measurement
from calibration.store.database import LARGEST_WHOLE, LEVEL, WHOLE, points, runs
from calibration.store.owner import Owner
from calibration.store.text import clean, storable
from sizing.curves import COLUMNS, Point

Standing = Literal["pending", "accepted", "discarded"]
"""Whether somebody has looked at a point and takes it for an answer; what the command line measures is accepted."""
_FACTS = TypeAdapter(dict[str, float])


def insert_run(connection: sql.Connection, values: Mapping[str, Any]) -> int:
    """A new row in the table of runs; its number. Texts are cleaned."""
    row = connection.execute(sql.insert(runs).values(_cleaned(values)).returning(runs.c.id))
    return int(row.scalar_one())


def update_run(
    connection: sql.Connection, run_id: int, values: Mapping[str, Any], *, owner: Owner | None = None
) -> bool:
    """Change columns of a run, only if it belongs to `owner` where one is given; whether it was changed.

    Texts are cleaned. The run's row is locked until the transaction ends.
    """
    chosen = sql.update(runs).where(runs.c.id == run_id)
    if owner is not None:
        chosen = chosen.where(runs.c.host == owner.host, runs.c.pid == owner.pid, runs.c.born == owner.born)
    return connection.execute(chosen.values(_cleaned(values))).rowcount == 1


def owner_of(connection: sql.Connection, run_id: int) -> Owner:
    """The process that a run belongs to. Raises StoreError if there is no such run."""
    row = connection.execute(sql.select(runs).where(runs.c.id == run_id)).mappings().one_or_none()
    if row is None:
        raise unknown(run_id)
    return Owner(row["host"], row["pid"], row["born"])


def at_work(connection: sql.Connection, run_id: int, clock: sql.ColumnElement[float]) -> Owner | None:
    """The living process that measures a run, None if none does; the run's row is locked until the transaction ends.

    Raises StoreError if there is no such run.
    """
    query = sql.select(runs, (clock - runs.c.heartbeat).label("silent_s")).where(runs.c.id == run_id)
    row = connection.execute(query.with_for_update()).mappings().one_or_none()
    if row is None:
        raise unknown(run_id)
    owner = Owner(row["host"], row["pid"], row["born"])
    return owner if row["state"] == "running" and owner.lives(row["silent_s"]) else None


def unknown(run_id: int) -> StoreError:
    """The error for a number that no run has."""
    return StoreError(f"there is no run {run_id}; python -m calibration list shows those there are")


def insert_point(connection: sql.Connection, run_id: int, kept: Measurement, *, recorded: bool) -> str:
    """A new row in the table of points; the name of its file of records in the folder of records, empty without.

    Points are numbered as they come: the caller holds the lock of `at_work`. Raises StoreError if the run has a point
    at this level.
    """
    number = connection.execute(sql.select(sql.func.count()).where(points.c.run == run_id)).scalar_one() + 1
    reviewed = connection.execute(sql.select(runs.c.review).where(runs.c.id == run_id)).scalar_one()
    name = records_name(connection, run_id, number) if recorded else ""
    try:
        told = {"run": run_id, "number": number, "records": name, "standing": "pending" if reviewed else "accepted"}
        connection.execute(sql.insert(points).values(**told, **_columns(kept)))
    except IntegrityError:
        raise StoreError(f"run {run_id} has a point at this level already: is it being measured twice?") from None
    return name


def holds(connection: sql.Connection, run_id: int, point: Point) -> bool:
    """Whether a run has this very point, and not only another at its level."""
    level = (points.c[name] == getattr(point, name) for name in LEVEL)
    row = connection.execute(of_run(run_id).where(*level)).mappings().one_or_none()
    return row is not None and point_of(row) == cleaned(point)


def records_name(connection: sql.Connection, run_id: int, number: int) -> str:
    """Name of the file of records of a run's point of that number, in the folder of records."""
    run_uuid = connection.execute(sql.select(runs.c.uuid).where(runs.c.id == run_id)).scalar_one()
    return f"{folder_name(run_id, run_uuid)}/level-{number}.parquet"


def folder_name(run_id: int, run_uuid: str) -> str:
    """Name of a run's own folder in the folder of records."""
    return f"run-{run_id}-{run_uuid[:8]}"


def name_records(connection: sql.Connection, run_id: int, number: int, name: str) -> None:
    """Say that the log of a run's point of that number is in the file of records `name`."""
    mine = (points.c.run == run_id, points.c.number == number)
    connection.execute(sql.update(points).where(*mine).values(records=name))


def set_standing(connection: sql.Connection, run_id: int, standing: Standing) -> int:
    """Give every point of a run that standing; how many had another."""
    others = (points.c.run == run_id, points.c.standing != standing)
    return connection.execute(sql.update(points).where(*others).values(standing=standing)).rowcount


def of_run(run_id: int | None, *, as_measured: bool = False) -> sql.Select[Any]:
    """All columns of the points of one run, or of the accepted ones of all runs.

    By run, then by lengths and load or in the order measured.
    """
    by_level = [points.c[name] for name in LEVEL]
    query = sql.select(points).order_by(points.c.run, *([points.c.number] if as_measured else []), *by_level)
    return query.where(points.c.standing == "accepted" if run_id is None else points.c.run == run_id)


def point_of(row: sql.RowMapping) -> Point:
    """The point in a row. Raises StoreError if somebody else wrote there what is no point."""
    try:
        return Point(**{name: row[name] for name in COLUMNS})
    except ValidationError as error:
        fault = error.errors()[0]
        where = f"a point of run {row['run']}, column {fault['loc'][0] if fault['loc'] else '?'}"
        raise StoreError(f"the store holds an impossible value: {where}: {fault['msg']}") from None


def measurement_of(row: sql.RowMapping) -> Measurement:
    """The measurement in a row, without its log. Raises StoreError as `point_of` does."""
    point = point_of(row)
    try:
        return Measurement(point, _FACTS.validate_json(row["facts"]), _FACTS.validate_json(row["server"]))
    except ValidationError:
        where = f"facts of a point of run {row['run']}"
        raise StoreError(f"the store holds an impossible value: {where} are not numbers by name") from None


def cleaned(point: Point) -> Point:
    """`point` as the store keeps it, with its texts cleaned."""
    return replace(point, **_cleaned({name: getattr(point, name) for name in COLUMNS}))


def _columns(kept: Measurement) -> dict[str, Any]:
    values = _cleaned({name: getattr(kept.point, name) for name in COLUMNS})
    for name in WHOLE:
        if abs(values[name] or 0) > LARGEST_WHOLE:
            raise StoreError(
                f"{name} of a point is larger than any the store holds ({LARGEST_WHOLE}): correct it in its file"
            )
    return values | {"facts": _json(kept.facts), "server": _json(kept.server)}


def _cleaned(values: Mapping[str, Any]) -> dict[str, Any]:
    """Columns with their texts fit to be stored and printed; a plan and a log keep their lines."""
    texts = {name: value for name, value in values.items() if isinstance(value, str)}
    return {**values, **{name: (storable if name in ("plan", "log") else clean)(text) for name, text in texts.items()}}


def _json(facts: Mapping[str, float]) -> str:
    known = {clean(name): float(value) for name, value in facts.items() if math.isfinite(value)}
    return json.dumps(known, sort_keys=True)
