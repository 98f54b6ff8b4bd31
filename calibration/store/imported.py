"""Points measured elsewhere become a run of the store: all of a file or none of it, and the same file only once."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime

import sqlalchemy as sql
from sqlalchemy.exc import IntegrityError

from calibration.records import Measurement
from calibration.store import Store
from calibration.store.database import runs
from calibration.store.logs import keep, removed_on_error
from calibration.store.rows import insert_run, set_standing

_NAMESPACE = uuid.UUID("5c3b1b52-6f0c-4e5e-9a55-2f1f6c2d8a10")
_CLOCK = "seconds since the first request"


def import_measurements(store: Store, label: str, found: Sequence[Measurement]) -> tuple[int, bool]:
    """A finished run called `label` that holds `found` with their logs, all accepted, and whether it is new.

    The same points are the same run: those that were discarded are accepted now. Raises StoreError if the
    store refuses.
    """
    try:
        return _adopt(store, label, found)
    except IntegrityError:  # another process has imported them at this moment: then they are here now
        return _adopt(store, label, found)


def _adopt(store: Store, label: str, found: Sequence[Measurement]) -> tuple[int, bool]:
    points = "\n".join(sorted(repr(item.point) for item in found))
    name = str(uuid.uuid5(_NAMESPACE, hashlib.sha256(points.encode()).hexdigest()))
    with removed_on_error() as written, store.database.writing() as connection:
        known = connection.execute(sql.select(runs.c.id).where(runs.c.uuid == name)).scalar_one_or_none()
        if known is not None:
            set_standing(connection, int(known), "accepted")
            return int(known), False
        now = datetime.now(UTC).isoformat(timespec="seconds")
        values = {"uuid": name, "plan": "", "folder": "", "label": label, "levels": len(found), "state": "done"}
        run_id = insert_run(connection, values | {"created": now, "ended": now, "error": ""})
        for item in found:
            if file := keep(connection, store.database.records, run_id, item, clock=_CLOCK):
                written.append(file)
    return run_id, True
