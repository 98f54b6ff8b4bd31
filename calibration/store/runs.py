"""Runs and their points in a database, SQLite by default, with the records of single requests as files beside it."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

import sqlalchemy as sql

from calibration.errors import StoreError
from calibration.levels import LevelKey, level_key
from calibration.records import Measurement, RequestLog
from calibration.server_plan import is_here, same_server
from calibration.store.database import DATABASE_VARIABLE, Database, points, runs
from calibration.store.logs import keep
from calibration.store.owner import HEARTBEAT_S, Owner
from calibration.store.records_file import read_log
from calibration.store.rows import (
    at_work,
    folder_name,
    holds,
    insert_run,
    measurement_of,
    of_run,
    owner_of,
    point_of,
    unknown,
    update_run,
)
from sizing.curves import Point

__all__ = ["DATABASE_VARIABLE", "STATES", "Ending", "Run", "State", "Store"]

Ending = Literal["done", "interrupted", "failed"]
State = Literal["queued", "running", "lost"] | Ending
"""Queued: its process has been started and asks the server. Lost: its process is gone, by kill -9 or a power cut."""
STATES: tuple[State, ...] = ("queued", "running", "lost", *get_args(Ending))
LIVE: tuple[State, ...] = ("queued", "running")


def _silent() -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True, slots=True)
class Run:
    """One sweep: the text of its plan and the folder its paths start from, `points` of `levels` measured so far.

    `id` is its number in this store, `uuid` the same in every store. `label` names server and model. Times are ISO 8601
    in UTC; `ended` is None and `error` empty while they are unknown. `void` of the points are not fit for use,
    `pending` wait to be accepted and `discarded` were refused. `target` is the server's host:port, empty for what was
    imported. `owner` is the process that measures or measured it here, empty where that is not known.
    """

    id: int
    uuid: str
    plan: str
    folder: str
    label: str
    levels: int
    state: State
    created: str
    ended: str | None
    error: str
    points: int
    void: int
    pending: int
    discarded: int
    target: str
    owner: str


class Store:
    """The database of runs and points. Tables are made, or brought up to date, on first use.

    `url` is an SQLAlchemy URL, by default what SIZING_DATABASE_URL says, else the SQLite file data/calibration.db.
    Several processes may use one store at once; a run belongs to the process that began or resumed it. Every method
    raises StoreError if the database cannot be reached or refuses.
    """

    def __init__(self, url: str | None = None) -> None:
        self.database = Database(url)

    def create_run(
        self, plan: str, *, folder: Path | str = "", label: str = "", levels: int = 0, target: str = ""
    ) -> int:
        """A new run in state ``running`` that belongs to this process; its number is returned.

        Raises StoreError if a run at `target`, the server's host:port, is queued or going on: see `check_free`.
        """
        said = {"plan": plan, "folder": str(folder), "label": label, "levels": levels, "target": target}
        begun = {"uuid": str(uuid.uuid4()), "state": "running", "created": _now()}
        with self.database.alone() as connection:
            check_free(connection, target, self.database.clock)
            return insert_run(connection, said | begun | self._mine())

    def restart_run(self, run_id: int, *, levels: int | None = None, target: str = "") -> None:
        """Take over a run that is queued or resumed, of so many levels and at the `target` where those are given.

        Raises StoreError if a process that lives still measures it, or another run at its server is going on.
        """
        fresh = {"state": "running", "ended": None, "error": "", "phase": "", "share": 0.0, "left_s": None}
        if levels is not None:
            fresh["levels"] = levels
        if target:
            fresh["target"] = target
        with self.database.alone() as connection:
            if owner := at_work(connection, run_id, self.database.clock):
                raise StoreError(f"run {run_id} is being measured by {owner}: wait for its end or stop it, then resume")
            known = connection.execute(sql.select(runs.c.target).where(runs.c.id == run_id)).scalar_one()
            check_free(connection, target or known, self.database.clock, but=run_id)
            asked = sql.case((runs.c.state == "queued", runs.c.stop_asked), else_=0.0)  # before it had begun
            update_run(connection, run_id, fresh | {"stop_asked": asked} | self._mine())

    @contextmanager
    def kept_alive(
        self,
        run_id: int,
        every_s: float = HEARTBEAT_S,
        *,
        news: Callable[[], Mapping[str, Any]] = _silent,
        on_stop: Callable[[], None] = lambda: None,
    ) -> Iterator[None]:
        """Meanwhile tell others, every `every_s` seconds, that this process is at the run, and how far: `news` are
        columns of the table of runs. `on_stop` is called, in another thread, once the run is asked to stop.
        """
        over, mine = threading.Event(), Owner.here()

        def beat() -> None:
            with suppress(StoreError):  # the database is away for a moment, or else the next point will tell
                if self._beat(run_id, mine, news()):
                    on_stop()

        def beats() -> None:
            while True:
                beat()
                if over.wait(every_s):
                    return

        thread = threading.Thread(target=beats, name=f"heartbeat of run {run_id}", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            beat()  # the last news

    def finish_run(self, run_id: int, state: Ending, error: str = "") -> None:
        """The run has ended, with an error in one line if it failed. A run that another process took over is left."""
        with self.database.writing() as connection:
            update_run(connection, run_id, {"state": state, "ended": _now(), "error": error}, owner=Owner.here())

    def add_point(self, run_id: int, measured: Point | Measurement, *, seed: Sequence[int] = ()) -> None:
        """Keep a point with its facts and log: on return all of it is safe on disk, on an error none is in the store.

        A fact that is no finite number is unknown and left out. `seed` is noted with the log. To keep the same point
        again changes nothing: whoever has not heard that it is safe may try again. Raises StoreError if the run has
        another point at this level, or does not belong to this process, having been taken over.
        """
        kept = measured if isinstance(measured, Measurement) else Measurement(measured)
        with self.database.writing() as connection:
            if not update_run(connection, run_id, {"heartbeat": self.database.clock}, owner=Owner.here()):
                raise StoreError(f"run {run_id} belongs to {owner_of(connection, run_id)}: this one adds nothing to it")
            if not holds(connection, run_id, kept.point):
                keep(connection, self.database.records, run_id, kept, seed=seed)

    def run(self, run_id: int) -> Run:
        """The run of that number. Raises StoreError if there is none."""
        found = self._runs(runs.c.id == run_id)
        if not found:
            raise unknown(run_id)
        return found[0]

    def runs(self) -> list[Run]:
        """All runs, newest first."""
        return self._runs(sql.true())

    def points(self, run_id: int | None = None, *, as_measured: bool = False) -> list[Point]:
        """The points of one run, or those accepted of all: by run, then by lengths and load or in the order measured.

        Void ones are among them, and tell so themselves.
        """
        return [point_of(row) for row in self._rows(run_id, as_measured)]

    def measurements(self, run_id: int, *, as_measured: bool = False) -> list[Measurement]:
        """The points of one run with their facts, in the order of `points`. Their logs are left to `log`."""
        return [measurement_of(row) for row in self._rows(run_id, as_measured)]

    def done_levels(self, run_id: int) -> set[LevelKey]:
        """Keys of the levels that the run has a point for."""
        return {level_key(point) for point in self.points(run_id)}

    def records(self, run_id: int) -> dict[LevelKey, Path]:
        """Files with the logs of a run's levels, as far as they are on this machine."""
        return {key: path for key, path in self._named(run_id).items() if path.is_file()}

    def logs_elsewhere(self, run_id: int) -> set[LevelKey]:
        """Keys of a run's levels whose log was kept but is not on this machine: where they were measured, or lost."""
        return {key for key, path in self._named(run_id).items() if not path.is_file()}

    def log(self, run_id: int, key: LevelKey) -> RequestLog | None:
        """The requests of a level, None where no log was kept or it is on another machine. Raises StoreError."""
        path = self.records(run_id).get(key)
        return None if path is None else read_log(path)

    def folder(self, run_id: int) -> Path:
        """The run's own folder among the records, on this machine; it may not be there. Raises StoreError."""
        return self.database.records / folder_name(run_id, self.run(run_id).uuid)

    def _named(self, run_id: int) -> dict[LevelKey, Path]:
        """Files that hold the logs of a run's levels on the machine that measured it."""
        folder = self.database.records
        return {level_key(point_of(row)): folder / row["records"] for row in self._rows(run_id) if row["records"]}

    def _rows(self, run_id: int | None, as_measured: bool = False) -> list[sql.RowMapping]:
        with self.database.reading() as connection:
            rows = list(connection.execute(of_run(run_id, as_measured=as_measured)).mappings())
        if run_id is not None and not rows:
            self.run(run_id)
        return rows

    def _runs(self, chosen: sql.ColumnElement[bool]) -> list[Run]:
        count = sql.select(sql.func.count()).where(points.c.run == runs.c.id)
        query = sql.select(
            runs,
            (self.database.clock - runs.c.heartbeat).label("silent_s"),
            count.scalar_subquery().label("points"),
            count.where(points.c.verdict.not_in(("", "steady"))).scalar_subquery().label("void"),
            *(
                count.where(points.c.standing == word).scalar_subquery().label(word)
                for word in ("pending", "discarded")
            ),
        )
        with self.database.reading() as connection:
            rows = connection.execute(query.where(chosen).order_by(runs.c.id.desc())).mappings().all()
        return [_run(row) for row in rows]

    def _beat(self, run_id: int, owner: Owner, news: Mapping[str, Any]) -> bool:
        """Whether the run has been asked to stop."""
        with self.database.writing() as connection:
            update_run(connection, run_id, {**news, "heartbeat": self.database.clock}, owner=owner)
            return bool(connection.execute(sql.select(runs.c.stop_asked).where(runs.c.id == run_id)).scalar())

    def _mine(self) -> dict[str, Any]:
        return asdict(Owner.here()) | {"heartbeat": self.database.clock}


def check_free(
    connection: sql.Connection, target: str, clock: sql.ColumnElement[float], *, but: int | None = None
) -> None:
    """Raises StoreError if a run at `target`, a host:port, is queued or going on; run `but` is the one that asks.

    Two runs at one server would each measure half of it. The row of a live run is the lock on its server: to be asked
    in the transaction, of those that are `alone`, that makes a run live. It is free again when the run has ended, or
    its process is known to be dead. An address of the machine itself means another server on each machine.
    """
    if not target:
        return
    live = sql.select(runs, (clock - runs.c.heartbeat).label("silent_s")).where(runs.c.state.in_(LIVE))
    for row in connection.execute(live).mappings():
        owner = Owner(row["host"], row["pid"], row["born"])
        elsewhere = is_here(target) and owner.host != Owner.here().host
        if row["id"] == but or elsewhere or not same_server(row["target"], target) or not owner.lives(row["silent_s"]):
            continue
        raise StoreError(
            f"{target} is being measured by run {row['id']} ({owner}), begun {row['created']}: "
            "wait for its end or stop it, then start"
        )


def _run(row: sql.RowMapping) -> Run:
    owner = Owner(row["host"], row["pid"], row["born"])
    lost = row["state"] in LIVE and not owner.lives(row["silent_s"])
    told = {"state": "lost" if lost else row["state"], "owner": str(owner) if owner.pid else ""}
    return Run(**{field.name: {**row, **told}[field.name] for field in fields(Run)})


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
