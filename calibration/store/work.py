"""A run in a process of its own: queued by one process, taken over by another, watched, stopped, accepted by any."""

from __future__ import annotations

import uuid
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

import sqlalchemy as sql

from calibration.store.database import runs
from calibration.store.runs import Ending, Owner, Store, check_free, insert_run, set_standing, unknown, update_run


@dataclass(frozen=True, slots=True)
class RunProgress:
    """The progress of a run as its process last reported it, `silent_s` seconds ago.

    `phase` names the level or what comes before the first; `share` of it is done, 0 to 1; `left_s` is what the rest of
    the run is thought to take, None while unknown. `log` are its last lines. `stopping_for_s`: how long ago it was
    asked to stop, None if it was not.
    """

    phase: str
    share: float
    left_s: float | None
    log: str
    silent_s: float
    stopping_for_s: float | None
    owner: Owner


def work(store: Store, run_id: int) -> RunProgress:
    """Raises StoreError if there is no such run."""
    clock = store.database.clock
    ages = ((clock - runs.c.heartbeat).label("silent_s"), (clock - runs.c.stop_asked).label("stopping_s"))
    with store.database.reading() as connection:
        row = connection.execute(sql.select(runs, *ages).where(runs.c.id == run_id)).mappings().one_or_none()
    if row is None:
        raise unknown(run_id)
    return RunProgress(
        **{name: row[name] for name in ("phase", "share", "left_s", "log", "silent_s")},
        stopping_for_s=row["stopping_s"] if row["stop_asked"] else None,
        owner=Owner(row["host"], row["pid"], row["born"]),
    )


def enqueue(store: Store, plan: str, *, label: str, target: str) -> int:
    """A new run in state ``queued`` whose points will wait to be accepted; its number.

    Raises StoreError if a run at `target`, a host:port, is queued or running: see `check_free`.
    """
    with store.database.alone() as connection:
        check_free(connection, target, store.database.clock)
        said = {"plan": plan, "label": label, "target": target, "levels": 0, "review": 1, "folder": ""}
        begun = {
            "uuid": str(uuid.uuid4()),
            "state": "queued",
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        return insert_run(connection, said | begun | asdict(Owner.here()) | {"heartbeat": store.database.clock})


def requeue(store: Store, run_id: int) -> None:
    """A run that has ended, in any way, is queued again. Raises StoreError as `enqueue`."""
    target = store.run(run_id).target
    with store.database.alone() as connection:
        check_free(connection, target, store.database.clock)
        again = {"state": "queued", "ended": None, "error": "", "phase": "", "log": "", "stop_asked": 0.0}
        update_run(connection, run_id, again | asdict(Owner.here()) | {"heartbeat": store.database.clock})


def hand_over(store: Store, run_id: int, pid: int) -> None:
    """A queued run belongs to process `pid` of this machine from now on."""
    with store.database.writing() as connection:
        mine = sql.update(runs).where(runs.c.id == run_id, runs.c.state == "queued")
        connection.execute(mine.values(**asdict(Owner.child(pid)), heartbeat=store.database.clock))


def give_up(store: Store, run_id: int, state: Ending, error: str) -> None:
    """A run that is queued, or whose process is gone, has ended."""
    if store.run(run_id).state in ("queued", "lost"):
        ended = {"state": state, "error": error, "ended": datetime.now(UTC).isoformat(timespec="seconds")}
        with store.database.writing() as connection:
            update_run(connection, run_id, ended)


def ask_to_stop(store: Store, run_id: int) -> None:
    """Its process will see this within a few seconds and drop the level that it is at; asking twice changes nothing."""
    with store.database.writing() as connection:
        update_run(
            connection,
            run_id,
            {"stop_asked": sql.case((runs.c.stop_asked == 0, store.database.clock), else_=runs.c.stop_asked)},
        )


def accept(store: Store, run_id: int) -> int:
    """The points of a run may be used in answers; how many could not before."""
    with store.database.writing() as connection:
        return set_standing(connection, run_id, "accepted")


def discard(store: Store, run_id: int) -> int:
    """The points of a run are kept, and used in no answer; how many were or waited to be."""
    with store.database.writing() as connection:
        return set_standing(connection, run_id, "discarded")
