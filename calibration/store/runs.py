"""Runs and their points in a database, SQLite by default, with the records of their requests as files beside it."""

from __future__ import annotations

import json
import math
import os
import socket
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import sqlalchemy as sql
from pydantic import TypeAdapter, ValidationError
from sqlalchemy.exc import IntegrityError

from calibration.errors import StoreError
from calibration.plan import LevelKey, is_here, level_key, same_server
from calibration.records import Measurement, RequestLog
from calibration.store.database import (
    LARGEST_WHOLE,
    LEVEL,
    WHOLE,
    Database,
    clean,
    points,
    runs,
    storable,
)
from calibration.store.records_file import About, read_log, write_log
from sizing.errors import first_fault
from sizing.points import COLUMNS, NOT_VOID, Point

BEGUN: Mapping[str, Any] = MappingProxyType({"ended": None, "error": "", "phase": "", "share": 0.0, "left_s": None})
"""Of a run that begins, or begins again: nothing of it is measured, and nothing is known of its end."""

# --- Which process measures a run, and whether it is alive: by /proc on this machine, elsewhere by its heartbeat

HEARTBEAT_S = 2.0
LOST_AFTER_S = 90.0
"""A process on another machine that has been silent for longer is presumed dead. It cannot beat while the
database is away, and it outlives that for a minute."""


@dataclass(frozen=True, slots=True)
class Owner:
    """A process, identified by host name, pid and `born`.

    `born` holds the machine's boot id, the pid namespace and the start time, separated by colons, because machines and
    containers may share a host name, and pids are reused. It is empty on a system without /proc.
    """

    host: str
    pid: int
    born: str

    @classmethod
    def of(cls, row: sql.RowMapping) -> Owner:
        """The owner in a row of the table of runs."""
        return cls(row["host"], row["pid"], row["born"])

    @classmethod
    def here(cls) -> Owner:
        """This process."""
        return cls.child(os.getpid())

    @classmethod
    def child(cls, pid: int) -> Owner:
        """The process with this pid on this machine."""
        return cls(socket.gethostname(), pid, _born(pid))

    def lives(self, silent_s: float) -> bool:
        """Whether the process is still running; `silent_s` is the time since its last heartbeat."""
        return _born(self.pid) == self.born if self.is_near else silent_s < LOST_AFTER_S

    @property
    def is_near(self) -> bool:
        """Whether the process is, or was, on this machine and in this container, where its pid is meaningful."""
        here = Owner.here()
        space = self.born.rpartition(":")[0]
        return bool(space) and (self.host, space) == (here.host, here.born.rpartition(":")[0])

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def _born(pid: int) -> str:
    """Boot id, pid namespace and start time of a process; empty if it is dead, or if there is no /proc."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        space = os.stat("/proc/self/ns/pid").st_ino
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    started = rest[18]  # field 22 of proc(5), in clock ticks since boot
    return "" if state in "ZX" else f"{boot}:{space}:{started}"  # a zombie has ended


# --- Rows of the store's tables: measurements as columns and back, and shared statements

Standing = Literal["pending", "accepted", "discarded"]
"""Whether a point may be used in answers: points measured from the command line are accepted at once."""
_FACTS = TypeAdapter(dict[str, float])


def insert_run(connection: sql.Connection, values: Mapping[str, Any]) -> int:
    """Insert a run, with cleaned texts; its number."""
    row = connection.execute(sql.insert(runs).values(_cleaned(values)).returning(runs.c.id))
    return int(row.scalar_one())


def update_run(
    connection: sql.Connection, run_id: int, values: Mapping[str, Any], *, owner: Owner | None = None
) -> bool:
    """Change columns of a run, with an `owner` only if the run belongs to it; whether it was changed.

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
    return Owner.of(row)


def at_work(connection: sql.Connection, run_id: int, clock: sql.ColumnElement[float]) -> Owner | None:
    """The live process that is measuring a run, None if there is none. The run's row is locked until the transaction
    ends.

    Raises StoreError if there is no such run.
    """
    query = sql.select(runs, silent_s(clock)).where(runs.c.id == run_id)
    row = connection.execute(query.with_for_update()).mappings().one_or_none()
    if row is None:
        raise unknown(run_id)
    owner = Owner.of(row)
    return owner if row["state"] == "running" and owner.lives(row["silent_s"]) else None


def silent_s(clock: sql.ColumnElement[float]) -> sql.Label[float]:
    """A column ``silent_s``: the seconds since a run's last heartbeat."""
    return (clock - runs.c.heartbeat).label("silent_s")


def unknown(run_id: int) -> StoreError:
    """The error for the number of a run that does not exist."""
    return StoreError(f"there is no run {run_id}; python -m calibration list shows the runs there are")


def insert_points(
    connection: sql.Connection, run_id: int, kept: Sequence[Measurement], recorded: Sequence[bool]
) -> list[str]:
    """Insert points; for each the name of its file in the folder of records, empty if it is not `recorded`.

    Points are numbered in the order of insertion, so the caller must hold the run's lock (`at_work`). Raises StoreError
    if the run has a point at one of their levels.
    """
    first = connection.execute(sql.select(sql.func.count()).where(points.c.run == run_id)).scalar_one() + 1
    run = connection.execute(sql.select(runs.c.uuid, runs.c.review).where(runs.c.id == run_id)).one()
    told = {"run": run_id, "standing": "pending" if run.review else "accepted"}
    names = [
        records_name(run_id, run.uuid, number) if logged else "" for number, logged in enumerate(recorded, start=first)
    ]
    rows = [
        {**told, "number": number, "records": name, **_columns(each)}
        for number, (each, name) in enumerate(zip(kept, names, strict=True), start=first)
    ]
    try:
        connection.execute(sql.insert(points), rows)
    except IntegrityError:
        raise StoreError(f"run {run_id} has a point at this level already: is it being measured twice?") from None
    return names


def holds(connection: sql.Connection, run_id: int, point: Point) -> bool:
    """Whether a run has exactly this point, and not just another one at its level."""
    level = (points.c[name] == getattr(point, name) for name in LEVEL)
    row = connection.execute(of_run(run_id).where(*level)).mappings().one_or_none()
    return row is not None and point_of(row) == cleaned(point)


def records_name(run_id: int, run_uuid: str, number: int) -> str:
    """Name of the file of records of a run's point `number`, in the folder of records."""
    return f"{folder_name(run_id, run_uuid)}/level-{number}.parquet"


def folder_name(run_id: int, run_uuid: str) -> str:
    """Name of a run's own folder in the folder of records."""
    return f"run-{run_id}-{run_uuid[:8]}"


def name_records(connection: sql.Connection, run_id: int, number: int, name: str) -> None:
    """Store that the log of a run's point `number` is in the file of records `name`."""
    mine = (points.c.run == run_id, points.c.number == number)
    connection.execute(sql.update(points).where(*mine).values(records=name))


def set_standing(connection: sql.Connection, run_id: int, standing: Standing) -> int:
    """Set the standing of every point of a run; how many had another one."""
    others = (points.c.run == run_id, points.c.standing != standing)
    return connection.execute(sql.update(points).where(*others).values(standing=standing)).rowcount


def of_run(run_id: int | None, *, as_measured: bool = False) -> sql.Select[Any]:
    """All columns of the points of one run, or of the accepted points of all runs.

    Sorted by run, then by lengths and load or in the order measured.
    """
    by_level = [points.c[name] for name in LEVEL]
    query = sql.select(points).order_by(points.c.run, *([points.c.number] if as_measured else []), *by_level)
    return query.where(points.c.standing == "accepted" if run_id is None else points.c.run == run_id)


def point_of(row: sql.RowMapping) -> Point:
    """The point in a row. Raises StoreError if the row was changed so that it is not a point."""
    try:
        return Point(**{name: row[name] for name in COLUMNS})
    except ValidationError as error:
        fault = first_fault(error, "unknown")
        raise StoreError(
            f"the store holds an impossible value: a point of run {row['run']}, column {clean(str(fault))}"
        ) from None


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
    """Columns with their texts made safe to store and print; a plan and a log keep their line breaks."""
    texts = {name: value for name, value in values.items() if isinstance(value, str)}
    return {**values, **{name: (storable if name in ("plan", "log") else clean)(text) for name, text in texts.items()}}


def _json(facts: Mapping[str, float]) -> str:
    known = {clean(name): float(value) for name, value in facts.items() if math.isfinite(value)}
    return json.dumps(known, sort_keys=True)


# --- Points with their logs: a log is on disk before its point is committed. An import deletes it if that fails; a run
# --- does not, since the commit may have succeeded although its answer was lost


def keep(
    connection: sql.Connection,
    folder: Path,
    run_id: int,
    kept: Sequence[Measurement],
    *,
    written: list[Path] | None = None,
    seed: Sequence[int] = (),
    clock: str = "monotonic",
) -> None:
    """Insert points and write the logs that they have into the folder of records; `written` gets the files.

    `seed` and `clock` are stored with each log. Raises StoreError as `insert_points` and `write_log` do.
    """
    names = insert_points(connection, run_id, kept, [each.log is not None for each in kept])
    run_uuid = connection.execute(sql.select(runs.c.uuid).where(runs.c.id == run_id)).scalar_one()
    for each, name in zip(kept, names, strict=True):
        if each.log is None:
            continue
        start_s, stop_s = (each.facts.get(f"window_{edge}_s", math.nan) for edge in ("start", "stop"))
        window_s = (start_s, stop_s) if math.isfinite(start_s + stop_s) else None
        about = About(run=run_uuid, level=level_key(each.point), window_s=window_s, clock=clock, seed=tuple(seed))
        write_log(folder / name, each.log, about)
        if written is not None:
            written.append(folder / name)


@contextmanager
def removed_on_error() -> Iterator[list[Path]]:
    """A list for the files that the enclosed transaction writes: they are deleted if it fails."""
    written: list[Path] = []
    try:
        yield written
    except BaseException:
        for file in written:
            with suppress(OSError):
                file.unlink(missing_ok=True)
                file.parent.rmdir()
        raise


Ending = Literal["done", "interrupted", "failed"]
State = Literal["queued", "running", "lost"] | Ending
"""Queued: its process has started and is querying the server. Lost: its process is gone, by kill -9 or a power cut."""
LIVE: tuple[State, ...] = ("queued", "running")


def _silent() -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True, slots=True)
class Run:
    """One sweep: the text of its plan and the folder where its paths start, with `points` of `levels` measured so far.

    `id` is its number in this store, `uuid` is the same in every store. `label` names server and model. Times are ISO
    8601 in UTC; `ended` is None and `error` empty while they are unknown. `void` points are unfit for use, `pending`
    ones are not accepted yet, `discarded` ones were refused. `target` is the server's host:port, empty for an import.
    `owner` is the process that measures or measured the run here, empty if unknown.
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


_RUN = TypeAdapter(Run)


class Store:
    """The database of runs and points. Tables are created, or upgraded, on first use.

    `url` is an SQLAlchemy URL, by default that in SIZING_DATABASE_URL, else the SQLite file data/calibration.db.
    Several processes may use one store at once; a run belongs to the process that started or resumed it. Every method
    raises StoreError if the database cannot be reached or fails.
    """

    def __init__(self, url: str | None = None) -> None:
        self.database = Database(url)

    def create_run(
        self,
        plan: str,
        *,
        folder: Path | str = "",
        label: str = "",
        levels: int = 0,
        target: str = "",
        reviewed: bool = False,
    ) -> int:
        """A new run in state ``running`` that belongs to this process; its number is returned. `reviewed`: no answer
        rests on its points until they are accepted.

        Raises StoreError if a run at `target`, the server's host:port, is queued or going on: see `check_free`.
        """
        said = {"plan": plan, "folder": str(folder), "label": label, "levels": levels, "target": target}
        begun = {"uuid": str(uuid.uuid4()), "state": "running", "created": now(), "review": int(reviewed)}
        with self.database.alone() as connection:
            check_free(connection, target, self.database.clock)
            return insert_run(connection, said | begun | self.mine())

    def restart_run(self, run_id: int, *, levels: int | None = None, target: str = "", plan: str = "") -> None:
        """Take over a queued or resumed run, and set its levels, `target` and `plan` if given.

        Raises StoreError if a live process is still measuring it, or another run at its server is active.
        """
        given = {"levels": levels, "target": target, "plan": plan}
        fresh = {"state": "running", **BEGUN}
        fresh |= {name: value for name, value in given.items() if value not in (None, "")}
        with self.database.alone() as connection:
            if owner := at_work(connection, run_id, self.database.clock):
                raise StoreError(
                    f"run {run_id} is being measured by {owner}: wait until it ends or stop it, then resume"
                )
            known = connection.execute(sql.select(runs.c.target).where(runs.c.id == run_id)).scalar_one()
            check_free(connection, target or known, self.database.clock, but=run_id)
            asked = sql.case((runs.c.state == "queued", runs.c.stop_asked), else_=0.0)  # before it started
            update_run(connection, run_id, fresh | {"stop_asked": asked} | self.mine())

    @contextmanager
    def kept_alive(
        self,
        run_id: int,
        every_s: float = HEARTBEAT_S,
        *,
        news: Callable[[], Mapping[str, Any]] = _silent,
        on_stop: Callable[[], None] = lambda: None,
    ) -> Iterator[None]:
        """Store a heartbeat every `every_s` seconds, with the progress: `news` are columns of the table of runs.

        `on_stop` is called, in another thread, once the run is asked to stop.
        """
        over, mine = threading.Event(), Owner.here()

        def beat() -> None:
            with suppress(StoreError):  # the database may be away for a moment; if not, storing the next point fails
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
            beat()  # the final progress

    def finish_run(self, run_id: int, state: Ending, error: str = "") -> None:
        """Store that the run has ended, with an error in one line if it failed, unless another process took it over."""
        with self.database.writing() as connection:
            update_run(connection, run_id, {"state": state, "ended": now(), "error": error}, owner=Owner.here())

    def add_point(self, run_id: int, measured: Point | Measurement, *, seed: Sequence[int] = ()) -> None:
        """Store a point with its facts and log: on return all of it is safe on disk, on an error none is in the store.

        Facts that are not finite are left out. `seed` is stored with the log. Storing the same point again changes
        nothing, so a caller without an answer may try again. Raises StoreError if the run has another point at this
        level, or belongs to another process, which took it over.
        """
        kept = measured if isinstance(measured, Measurement) else Measurement(measured)
        with self.database.writing() as connection:
            if not update_run(connection, run_id, {"heartbeat": self.database.clock}, owner=Owner.here()):
                raise StoreError(f"run {run_id} belongs to {owner_of(connection, run_id)}: this one adds nothing to it")
            if not holds(connection, run_id, kept.point):
                keep(connection, self.database.records, run_id, [kept], seed=seed)

    def run(self, run_id: int) -> Run:
        """The run with this number. Raises StoreError if there is none."""
        found = self._runs(runs.c.id == run_id)
        if not found:
            raise unknown(run_id)
        return found[0]

    def runs(self) -> list[Run]:
        """All runs, newest first."""
        return self._runs(sql.true())

    def points(self, run_id: int | None = None, *, as_measured: bool = False) -> list[Point]:
        """The points of one run, or the accepted points of all, by run, then by lengths and load or as measured.

        Void points are included; their verdict says so.
        """
        return [point_of(row) for row in self._rows(run_id, as_measured)]

    def measurements(self, run_id: int, *, as_measured: bool = False) -> list[Measurement]:
        """The points of one run with their facts, in the order of `points`, without their logs (see `log`)."""
        return [measurement_of(row) for row in self._rows(run_id, as_measured)]

    def records(self, run_id: int) -> dict[LevelKey, Path]:
        """Files with the logs of a run's levels that are on this machine."""
        return {key: path for key, path in self._named(run_id).items() if path.is_file()}

    def logs_elsewhere(self, run_id: int) -> set[LevelKey]:
        """Keys of a run's levels whose stored log is not on this machine: it is where it was measured, or lost."""
        return {key for key, path in self._named(run_id).items() if not path.is_file()}

    def log(self, run_id: int, key: LevelKey) -> RequestLog | None:
        """The requests of a level; None if no log was stored, or it is on another machine. Raises StoreError."""
        path = self.records(run_id).get(key)
        return None if path is None else read_log(path)

    def folder(self, run_id: int) -> Path:
        """The run's own folder among the records on this machine; it may not exist. Raises StoreError."""
        return self.database.records / folder_name(run_id, self.run(run_id).uuid)

    def _named(self, run_id: int) -> dict[LevelKey, Path]:
        """Files with the logs of a run's levels, as named on the machine that measured it."""
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
            silent_s(self.database.clock),
            count.scalar_subquery().label("points"),
            count.where(points.c.verdict.not_in(NOT_VOID)).scalar_subquery().label("void"),
            *(
                count.where(points.c.standing == word).scalar_subquery().label(word)
                for word in ("pending", "discarded")
            ),
        )
        query = query.where(chosen).order_by(runs.c.id.desc())
        with self.database.reading() as connection:
            found = [_run(row) for row in connection.execute(query).mappings()]
        if any(run.state == "lost" for run in found):
            # a run's process may have ended normally between the reading of its row and the look at /proc
            with self.database.reading() as connection:
                found = [_run(row) for row in connection.execute(query).mappings()]
        return found

    def _beat(self, run_id: int, owner: Owner, news: Mapping[str, Any]) -> bool:
        """Whether the run has been asked to stop."""
        with self.database.writing() as connection:
            update_run(connection, run_id, {**news, "heartbeat": self.database.clock}, owner=owner)
            return bool(connection.execute(sql.select(runs.c.stop_asked).where(runs.c.id == run_id)).scalar())

    def mine(self) -> dict[str, Any]:
        """Columns of a run that belongs to this process from now on."""
        return asdict(Owner.here()) | {"heartbeat": self.database.clock}


def check_free(
    connection: sql.Connection, target: str, clock: sql.ColumnElement[float], *, but: int | None = None
) -> None:
    """Raises StoreError if a run other than `but` at `target`, a host:port, is queued or running.

    Two runs at one server would each measure half of it. The row of a live run is the lock on its server, so this must
    be called in the `alone` transaction that makes a run live. The lock is released when the run has ended, or its
    process is known to be dead. A loopback address is a different server on each machine.
    """
    if not target:
        return
    live = sql.select(runs, silent_s(clock)).where(runs.c.state.in_(LIVE))
    for row in connection.execute(live).mappings():
        owner = Owner.of(row)
        elsewhere = is_here(target) and owner.host != Owner.here().host
        if row["id"] == but or elsewhere or not same_server(row["target"], target) or not owner.lives(row["silent_s"]):
            continue
        raise StoreError(
            f"{target} is being measured by run {row['id']} ({owner}), started {row['created']}: "
            "wait until it ends or stop it, then try again"
        )


def _run(row: sql.RowMapping) -> Run:
    owner = Owner.of(row)
    lost = row["state"] in LIVE and not owner.lives(row["silent_s"])
    told = {"state": "lost" if lost else row["state"], "owner": str(owner) if owner.pid else ""}
    try:
        return _RUN.validate_python({field.name: {**row, **told}[field.name] for field in fields(Run)})
    except ValidationError as error:
        fault = clean(str(first_fault(error)))
        raise StoreError(f"the store holds an impossible value: run {row['id']}, column {fault}") from None


def now() -> str:
    """The time as the store keeps it: ISO 8601 in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
