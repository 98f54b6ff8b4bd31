"""Points measured elsewhere become a run of the store: all of a file or none of it, and the same file only once."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime

import sqlalchemy as sql

from calibration.records import Measurement
from calibration.store import Store
from calibration.store.database import runs
from calibration.store.rows import insert_point, insert_run

_NAMESPACE = uuid.UUID("5c3b1b52-6f0c-4e5e-9a55-2f1f6c2d8a10")


def import_measurements(store: Store, label: str, found: Sequence[Measurement]) -> tuple[int, bool]:
    """A finished run called `label` that holds `found`, and whether it is new: the same points are the same run.

    Request logs are not kept: what other tools log is in their own files. Raises StoreError if the store refuses.
    """
    points = "\n".join(sorted(repr(item.point) for item in found))
    name = str(uuid.uuid5(_NAMESPACE, hashlib.sha256(points.encode()).hexdigest()))
    with store.database.writing() as connection:
        known = connection.execute(sql.select(runs.c.id).where(runs.c.uuid == name)).scalar_one_or_none()
        if known is not None:
            return int(known), False
        now = datetime.now(UTC).isoformat(timespec="seconds")
        values = {"uuid": name, "plan": "", "folder": "", "label": label, "levels": len(found), "state": "done"}
        run_id = insert_run(connection, values | {"created": now, "ended": now, "error": ""})
        for item in found:
            insert_point(connection, run_id, item, recorded=False)
    return run_id, True
