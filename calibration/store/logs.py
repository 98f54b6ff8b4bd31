"""Points together with their logs: a log is on disk before its point is committed, and gone again if that fails."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import sqlalchemy as sql

from calibration.levels import level_key
from calibration.records import Measurement
from calibration.store.database import runs
from calibration.store.records_file import About, write_log
from calibration.store.rows import insert_point


def keep(
    connection: sql.Connection,
    folder: Path,
    run_id: int,
    kept: Measurement,
    *,
    seed: Sequence[int] = (),
    clock: str = "monotonic",
) -> Path | None:
    """Insert a point, and write its log, if there is one, into the folder of records: the file written.

    `seed` and `clock` are noted with the log. Raises StoreError as `insert_point` and `write_log` do.
    """
    name = insert_point(connection, run_id, kept, recorded=kept.log is not None)
    if kept.log is None:
        return None
    run_uuid = connection.execute(sql.select(runs.c.uuid).where(runs.c.id == run_id)).scalar_one()
    start_s, stop_s = (kept.facts.get(f"window_{edge}_s", math.nan) for edge in ("start", "stop"))
    window_s = (start_s, stop_s) if math.isfinite(start_s + stop_s) else None
    about = About(run=run_uuid, level=level_key(kept.point), window_s=window_s, clock=clock, seed=tuple(seed))
    write_log(folder / name, kept.log, about)
    return folder / name


@contextmanager
def removed_on_error() -> Iterator[list[Path]]:
    """A list for the files that a transaction writes: they go again if it fails. It belongs around the transaction."""
    written: list[Path] = []
    try:
        yield written
    except BaseException:
        for file in written:
            with suppress(OSError):
                file.unlink(missing_ok=True)
                file.parent.rmdir()
        raise
