"""A run in its own process: queued by one process, taken over by another; any may watch, stop or accept it."""

from __future__ import annotations

import uuid
from dataclasses import asdict, dataclass

import sqlalchemy as sql

from calibration.store.database import runs
from calibration.store.runs import (
    BEGUN,
    Ending,
    Owner,
    Store,
    check_free,
    insert_run,
    now,
    set_standing,
    silent_s,
    unknown,
    update_run,
)


@dataclass(frozen=True, slots=True)
class RunProgress:
    """The progress of a run as its process last reported it, `silent_s` seconds ago.

    `phase` names the current level, or the step before the first; the fraction `share` of it is done, 0 to 1; `left_s`
    is the estimated time left, None while unknown. `log` are the last lines. `stopping_for_s`: how long ago the run was
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
    """The progress of a run. Raises StoreError if there is no such run."""
    clock = store.database.clock
    ages = silent_s(clock), (clock - runs.c.stop_asked).label("stopping_s")
    with store.database.reading() as connection:
        row = connection.execute(sql.select(runs, *ages).where(runs.c.id == run_id)).mappings().one_or_none()
    if row is None:
        raise unknown(run_id)
    return RunProgress(
        **{name: row[name] for name in ("phase", "share", "left_s", "log", "silent_s")},
        stopping_for_s=row["stopping_s"] if row["stop_asked"] else None,
        owner=Owner.of(row),
    )


def enqueue(store: Store, plan: str, *, label: str, target: str) -> int:
    """Insert a run in state ``queued``, whose points must be accepted before use; its number.

    Raises StoreError if a run at `target`, a host:port, is queued or running: see `check_free`.
    """
    with store.database.alone() as connection:
        check_free(connection, target, store.database.clock)
        said = {"plan": plan, "label": label, "target": target, "levels": 0, "review": 1, "folder": ""}
        begun = {"uuid": str(uuid.uuid4()), "state": "queued", "created": now()}
        return insert_run(connection, said | begun | store.mine())


def requeue(store: Store, run_id: int) -> None:
    """Queue a run that has ended, in whatever way, again. Raises StoreError as `enqueue` does."""
    target = store.run(run_id).target
    with store.database.alone() as connection:
        check_free(connection, target, store.database.clock)
        again = {"state": "queued", **BEGUN, "log": "", "stop_asked": 0.0}
        update_run(connection, run_id, again | store.mine())


def hand_over(store: Store, run_id: int, pid: int) -> None:
    """Make process `pid` of this machine the owner of a queued run."""
    with store.database.writing() as connection:
        mine = sql.update(runs).where(runs.c.id == run_id, runs.c.state == "queued")
        connection.execute(mine.values(**asdict(Owner.child(pid)), heartbeat=store.database.clock))


def give_up(store: Store, run_id: int, state: Ending, error: str) -> None:
    """Store that a run which is queued, or whose process is gone, has ended."""
    if store.run(run_id).state in ("queued", "lost"):
        ended = {"state": state, "error": error, "ended": now()}
        with store.database.writing() as connection:
            update_run(connection, run_id, ended)


def ask_to_stop(store: Store, run_id: int) -> None:
    """Ask a run to stop: its process sees this within seconds and drops its level. Asking twice changes nothing."""
    with store.database.writing() as connection:
        update_run(
            connection,
            run_id,
            {"stop_asked": sql.case((runs.c.stop_asked == 0, store.database.clock), else_=runs.c.stop_asked)},
        )


def accept(store: Store, run_id: int) -> int:
    """Allow the points of a run in answers; how many were not allowed before."""
    with store.database.writing() as connection:
        return set_standing(connection, run_id, "accepted")


def discard(store: Store, run_id: int) -> int:
    """Keep the points of a run but use them in no answer; how many were accepted or pending."""
    with store.database.writing() as connection:
        return set_standing(connection, run_id, "discarded")
