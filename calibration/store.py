"""Runs and their points in a database: SQLite beside the project by default, another by SIZING_DATABASE_URL."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

import sqlalchemy as sql
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from calibration.errors import StoreError
from calibration.plan import LevelKey, level_key
from sizing.curves import COLUMNS, Point

DATABASE_VARIABLE = "SIZING_DATABASE_URL"
DEFAULT_FILE = Path(__file__).resolve().parent.parent / "data" / "calibration.db"
WAIT_FOR_LOCK_S = 30

State = Literal["running", "done", "interrupted", "failed"]
STATES: tuple[State, ...] = get_args(State)

_WHOLE = {"tp", "pp", "max_batch_size", "requests", "errors"}
_TEXT = {
    "model",
    "precision",
    "gpu",
    "engine",
    "engine_version",
    "batching",
    "load_kind",
    "source",
    "measured_at",
    "notes",
}
_LEVEL = ("isl", "osl", "isl_cv", "osl_cv", "load_kind", "load_value")


def _type(column: str) -> Any:
    if column in _WHOLE:
        return sql.Integer()
    return sql.Text() if column in _TEXT else sql.Double()


_tables = sql.MetaData()
_runs = sql.Table(
    "runs",
    _tables,
    sql.Column("id", sql.Integer, primary_key=True),
    sql.Column("plan", sql.Text, nullable=False),
    sql.Column("folder", sql.Text, nullable=False),
    sql.Column("label", sql.Text, nullable=False),
    sql.Column("levels", sql.Integer, nullable=False),
    sql.Column("state", sql.Text, nullable=False),
    sql.Column("created", sql.Text, nullable=False),
    sql.Column("ended", sql.Text),
    sql.Column("error", sql.Text, nullable=False, default=""),
)
_points = sql.Table(
    "points",
    _tables,
    sql.Column("run", sql.ForeignKey("runs.id"), primary_key=True),
    *(sql.Column(name, _type(name), primary_key=name in _LEVEL) for name in COLUMNS),
)


@dataclass(frozen=True, slots=True)
class Run:
    """One sweep: the text of its plan and the folder its paths start from, `points` of `levels` measured so far.

    `label` names server and model. Times are ISO 8601 in UTC; `ended` is None and `error` empty while they are unknown.
    """

    id: int
    plan: str
    folder: str
    label: str
    levels: int
    state: State
    created: str
    ended: str | None
    error: str
    points: int


class Store:
    """The database of runs and points. Tables are made on first use.

    `url` is an SQLAlchemy URL, by default what SIZING_DATABASE_URL says, else the SQLite file data/calibration.db. No
    connection is kept open between calls. Every method raises StoreError if the database cannot be reached.
    """

    def __init__(self, url: str | None = None) -> None:
        chosen = url or os.environ.get(DATABASE_VARIABLE) or f"sqlite:///{DEFAULT_FILE}"
        with _explained(chosen):
            self._url = sql.make_url(chosen)
            self._engine = _engine(self._url)
            _tables.create_all(self._engine)

    def create_run(self, plan: str, *, folder: Path | str = "", label: str = "", levels: int = 0) -> int:
        """A new run in state ``running``; its number is returned."""
        values = {
            "plan": plan,
            "folder": str(folder),
            "label": label,
            "levels": levels,
            "state": "running",
            "created": _now(),
        }
        with self._begin() as connection:
            return int(connection.execute(sql.insert(_runs).values(values)).inserted_primary_key[0])  # type: ignore[index]

    def restart_run(self, run_id: int) -> None:
        """Back to state ``running``, for a run that is resumed."""
        self._set_state(run_id, state="running", ended=None, error="")

    def finish_run(self, run_id: int, state: State, error: str = "") -> None:
        """The run has ended: ``done``, ``interrupted`` or ``failed`` with an error in one line."""
        self._set_state(run_id, state=state, ended=_now(), error=error)

    def _set_state(self, run_id: int, **values: object) -> None:
        with self._begin() as connection:
            if not connection.execute(sql.update(_runs).where(_runs.c.id == run_id).values(values)).rowcount:
                raise self._unknown(run_id)

    def add_point(self, run_id: int, point: Point) -> None:
        """Keep `point`, committed on return. Raises StoreError if the run has a point at this level already."""
        values = {name: getattr(point, name) for name in COLUMNS}
        try:
            with self._begin() as connection:
                connection.execute(sql.insert(_points).values(run=run_id, **values))
        except IntegrityError:
            raise StoreError(f"run {run_id} has a point at this level already: is it being measured twice?") from None

    def run(self, run_id: int) -> Run:
        """The run of that number. Raises StoreError if there is none."""
        found = self._read(_runs_with_counts().where(_runs.c.id == run_id))
        if not found:
            raise self._unknown(run_id)
        return Run(**found[0])

    def runs(self) -> list[Run]:
        """All runs, newest first."""
        return [Run(**row) for row in self._read(_runs_with_counts().order_by(_runs.c.id.desc()))]

    def points(self, run_id: int | None = None) -> list[Point]:
        """The points of one run, or of all, by run, lengths and load."""
        query = sql.select(*(_points.c[name] for name in COLUMNS)).order_by(
            _points.c.run, *(_points.c[name] for name in _LEVEL)
        )
        if run_id is not None:
            self.run(run_id)
            query = query.where(_points.c.run == run_id)
        return [Point(**row) for row in self._read(query)]

    def done_levels(self, run_id: int) -> set[LevelKey]:
        """Keys of the levels that the run has a point for."""
        return {level_key(point) for point in self.points(run_id)}

    def _read(self, query: sql.Select[Any]) -> list[dict[str, Any]]:
        with self._begin() as connection:
            return [dict(row) for row in connection.execute(query).mappings()]

    @contextmanager
    def _begin(self) -> Iterator[sql.Connection]:
        with _explained(str(self._url)), self._engine.begin() as connection:
            yield connection

    def _unknown(self, run_id: int) -> StoreError:
        return StoreError(f"there is no run {run_id}; python -m calibration list shows those there are")


def _runs_with_counts() -> sql.Select[Any]:
    count = sql.select(sql.func.count()).where(_points.c.run == _runs.c.id).scalar_subquery()
    return sql.select(_runs, count.label("points"))


def _engine(url: sql.URL) -> sql.Engine:
    if url.get_backend_name() != "sqlite":
        return sql.create_engine(url, poolclass=sql.NullPool)
    if url.database and url.database != ":memory:":
        Path(url.database).parent.mkdir(parents=True, exist_ok=True)
    engine = sql.create_engine(url, poolclass=sql.NullPool, connect_args={"timeout": WAIT_FOR_LOCK_S})
    sql.event.listen(engine, "connect", _set_up_sqlite)
    return engine


def _set_up_sqlite(connection: Any, _record: object) -> None:
    connection.execute("PRAGMA journal_mode=WAL")  # readers (the web page) and the writer do not wait for each other
    connection.execute("PRAGMA foreign_keys=ON")


@contextmanager
def _explained(url: str) -> Iterator[None]:
    try:
        yield
    except IntegrityError:
        raise
    except (SQLAlchemyError, ImportError, OSError) as error:
        reason = " ".join(str(getattr(error, "orig", None) or error).split())
        name = url.split("@")[-1]  # what stands before may be a password
        raise StoreError(f"database {name}: {reason}; check {DATABASE_VARIABLE}") from None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
