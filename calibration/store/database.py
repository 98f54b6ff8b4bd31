"""The database behind the store: where it is, its tables and their versions, and its errors, one line each.

Also text that every database and file format accepts, and that is harmless when printed on a terminal.
"""

from __future__ import annotations

import os
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sql
from sqlalchemy.exc import IntegrityError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.schema import CreateColumn

from calibration.errors import StoreAway, StoreError
from sizing.files import written
from sizing.points import COLUMNS

DATABASE_VARIABLE = "SIZING_DATABASE_URL"
RECORDS_VARIABLE = "SIZING_RECORDS"
DEFAULT_FILE = written("data/calibration.db")
WAIT_FOR_LOCK_S = 30
CONNECT_WITHIN_S = 5
NETWORK_GONE_AFTER_S = 10
"""Time after which a connection whose data nobody acknowledges counts as lost: a heartbeat that was caught in one is
followed by another long before its run is presumed dead."""
TRY_AGAIN_FOR_S = 60.0
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 8.0
SCHEMA = 10
"""Version of the tables, raised with every added column. 1: without verdicts, facts, records and owners. 2: without
progress, requests to stop and acceptance of points. 3: without shared prefixes of prompts. 4: without the size of the
KV cache. 5: without how users started. 6: without how engines schedule. 7: without how often they look for requests.
8: without how long prompts wait for others. 9: without the size of a block of the KV cache."""

T = TypeVar("T")

LEVEL = ("isl", "osl", "isl_cv", "osl_cv", "load_kind", "load_value")
"""Columns that distinguish the points of one run."""
WHOLE = (
    *("tp", "pp", "max_batch_size", "requests", "errors", "kv_tokens"),
    *("token_budget", "receive_interval_steps", "batch_wait_steps", "kv_block_tokens"),
)
LARGEST_WHOLE = 2**31 - 1
"""Largest value of the columns `WHOLE`, on every database."""
_TEXT = set("model precision gpu engine engine_version batching load_kind source measured_at notes".split())
_UPGRADE_LOCK = 0x5129C0DE  # any number, the same in all processes: only one upgrades a PostgreSQL database
_ONE_AT_A_TIME = 0x5129C0DF  # another number: only one starts a run at a time
_FORMS = "sqlite:////folder/file.db or postgresql://user:password@host:5432/name"


def _column(name: str) -> sql.Column[Any]:
    if name in ("verdict", "protocol", "policy"):
        return sql.Column(name, sql.Text, nullable=False, server_default="")
    kind: Any = sql.Integer if name in WHOLE else sql.Text if name in _TEXT else sql.Double
    return sql.Column(name, kind, primary_key=name in LEVEL)


_tables = sql.MetaData()
runs = sql.Table(
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
    sql.Column("uuid", sql.Text),
    sql.Column("host", sql.Text, nullable=False, server_default=""),
    sql.Column("pid", sql.BigInteger, nullable=False, server_default="0"),
    sql.Column("born", sql.Text, nullable=False, server_default=""),
    sql.Column("heartbeat", sql.Double, nullable=False, server_default="0"),
    sql.Column("target", sql.Text, nullable=False, server_default=""),
    sql.Column("review", sql.Integer, nullable=False, server_default="0"),
    sql.Column("phase", sql.Text, nullable=False, server_default=""),
    sql.Column("share", sql.Double, nullable=False, server_default="0"),
    sql.Column("left_s", sql.Double),
    sql.Column("log", sql.Text, nullable=False, server_default=""),
    sql.Column("stop_asked", sql.Double, nullable=False, server_default="0"),
    sql.Index("runs_uuid", "uuid", unique=True),
)
points = sql.Table(
    "points",
    _tables,
    sql.Column("run", sql.ForeignKey("runs.id"), primary_key=True),
    *map(_column, COLUMNS),
    sql.Column("number", sql.Integer, nullable=False, server_default="0"),
    sql.Column("facts", sql.Text, nullable=False, server_default="{}"),
    sql.Column("server", sql.Text, nullable=False, server_default="{}"),
    sql.Column("records", sql.Text, nullable=False, server_default=""),
    sql.Column("standing", sql.Text, nullable=False, server_default="accepted"),
)
_schema = sql.Table("schema", _tables, sql.Column("version", sql.Integer, nullable=False))


class Database:
    """A SQLite file or a PostgreSQL database; its tables are created, or upgraded, on first use.

    `url` is an SQLAlchemy URL, by default that in SIZING_DATABASE_URL, else the file data/calibration.db. No connection
    stays open between transactions. `clock` is the database's own time in SQL, seconds since 1970, so that times
    written by several machines are comparable. Raises StoreError if the database cannot be reached or used.
    """

    def __init__(self, url: str | None = None) -> None:
        self.url = _parsed(url or os.environ.get(DATABASE_VARIABLE) or f"sqlite:///{DEFAULT_FILE}")
        lite = self.url.get_backend_name() == "sqlite"
        now = "(julianday('now') - 2440587.5) * 86400" if lite else "extract(epoch from clock_timestamp())::float8"
        self.clock: sql.ColumnElement[float] = sql.literal_column(now, sql.Double)
        with explained(self.url):
            self._engine = _sqlite(self.url) if lite else _postgresql(self.url)
        self._writer = self._engine.execution_options(writes=True)
        self._bring_up_to_date()

    @property
    def records(self) -> Path:
        """Folder of the request logs: beside a SQLite file; for a server SIZING_RECORDS, by default data/records."""
        if file := _file(self.url):
            return file.with_name(f"{file.stem}-records")
        return Path(os.environ.get(RECORDS_VARIABLE) or written("data/records"))

    @contextmanager
    def reading(self) -> Iterator[sql.Connection]:
        """A transaction that sees a single state of the database."""
        with explained(self.url), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[sql.Connection]:
        """A transaction that writes: at the end it is committed as a whole, or not at all."""
        with explained(self.url), self._writer.begin() as connection:
            yield connection

    @contextmanager
    def alone(self) -> Iterator[sql.Connection]:
        """A writing transaction that begins when all others of this kind have ended."""
        with self.writing() as connection:
            if connection.dialect.name == "postgresql":  # in SQLite every writer is alone
                connection.execute(sql.select(sql.func.pg_advisory_xact_lock(_ONE_AT_A_TIME)))
            yield connection

    def _bring_up_to_date(self) -> None:
        with self.reading() as connection:
            if _version(connection) == SCHEMA:
                return
        with self.writing() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(sql.select(sql.func.pg_advisory_xact_lock(_UPGRADE_LOCK)))
            if _version(connection) != SCHEMA:  # another process may have been first
                _upgrade(connection)


def _version(connection: sql.Connection) -> int:
    """Version of the existing tables; 0 if none is recorded. Raises StoreError if it is newer than this program."""
    if not sql.inspect(connection).has_table(_schema.name):
        return 0
    version = connection.execute(sql.select(sql.func.max(_schema.c.version))).scalar() or 0
    if not isinstance(version, int):
        raise StoreError(
            f"database {_name(connection.engine.url)}: it has no version: it is damaged; restore a copy of it"
        )
    if version > SCHEMA:
        raise StoreError(
            f"database {_name(connection.engine.url)}: written by a newer version of this program (tables of version "
            f"{version}, this one knows {SCHEMA}): update the program"
        )
    return version


def _upgrade(connection: sql.Connection) -> None:
    """Create missing tables, and add missing columns to those of an older version."""
    for table in (runs, points):
        if not sql.inspect(connection).has_table(table.name):
            continue
        present = {column["name"] for column in sql.inspect(connection).get_columns(table.name)}
        for column in table.columns:
            if column.name not in present:
                definition = CreateColumn(column).compile(dialect=connection.dialect)
                connection.execute(sql.text(f"ALTER TABLE {table.name} ADD COLUMN {definition}"))
    _tables.create_all(connection)
    for index in runs.indexes:
        index.create(connection, checkfirst=True)
    for run_id in connection.execute(sql.select(runs.c.id).where(runs.c.uuid.is_(None))).scalars().all():
        connection.execute(sql.update(runs).where(runs.c.id == run_id).values(uuid=str(uuid.uuid4())))
    connection.execute(sql.delete(_schema))
    connection.execute(sql.insert(_schema).values(version=SCHEMA))


def _parsed(text: str) -> sql.URL:
    try:
        url = sql.make_url(text.replace("postgres://", "postgresql://", 1) if text.startswith("postgres://") else text)
        backend = url.get_backend_name()
    except (SQLAlchemyError, ValueError):  # the parser's message may quote a password
        raise StoreError(f"database URL: not a URL: set {DATABASE_VARIABLE} to {_FORMS}") from None
    if backend not in ("sqlite", "postgresql"):
        raise StoreError(f"database {_name(url)}: {backend} is not supported: set {DATABASE_VARIABLE} to {_FORMS}")
    if backend == "sqlite" and url.database in (None, "", ":memory:"):
        raise StoreError(
            f"database {_name(url)}: it would be lost with the process: set {DATABASE_VARIABLE} to {_FORMS}"
        )
    return url.set(drivername="postgresql+psycopg") if url.drivername == "postgresql" else url


def _file(url: sql.URL) -> Path | None:
    """The SQLite file, None for a server."""
    if url.get_backend_name() != "sqlite":
        return None
    return Path(str(url.database).removeprefix("file:"))


def _sqlite(url: sql.URL) -> sql.Engine:
    file = Path(str(url.database))
    if file.is_file() and not (os.access(file, os.W_OK) and os.access(file.parent, os.W_OK)):
        engine = sql.create_engine(url, poolclass=sql.NullPool, creator=partial(_read_only, file.absolute()))
    else:
        Path(str(_file(url))).parent.mkdir(parents=True, exist_ok=True)
        engine = sql.create_engine(url, poolclass=sql.NullPool, connect_args={"timeout": WAIT_FOR_LOCK_S})
        sql.event.listen(engine, "connect", _set_up_sqlite)
    sql.event.listen(engine, "connect", _leave_transactions)
    sql.event.listen(engine, "begin", _begin_sqlite)
    return engine


def _read_only(file: Path) -> sqlite3.Connection:
    """Open a file on a read-only mount, or of another user, to list and export it.

    If the index (-shm) beside the file's log exists, another program may be writing, and SQLite uses their locks.
    Otherwise it must be told that the file does not change, because it would try to create that index. It then passes
    over the log, so a log that holds something is refused.
    """
    shared, log = (file.with_name(f"{file.name}{end}") for end in ("-shm", "-wal"))
    if not shared.exists() and log.exists() and log.stat().st_size:
        raise sqlite3.OperationalError(f"the points in its log {log.name} cannot be read without writing beside it")
    how = "mode=ro" if shared.exists() else "immutable=1"
    return sqlite3.connect(f"{file.as_uri()}?{how}", uri=True, timeout=WAIT_FOR_LOCK_S)


def _leave_transactions(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # transactions begin in `_begin_sqlite`, not at the first write


def _set_up_sqlite(connection: Any, _record: object) -> None:
    _write_ahead(connection)
    connection.execute("PRAGMA synchronous=FULL")  # a committed point survives a power cut
    connection.execute("PRAGMA foreign_keys=ON")


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Write ahead, so that readers (the web page) and the writer do not wait for each other.

    Two processes that open a new file at once may collide here, and SQLite does not wait for this lock as for others.
    """
    deadline_s = time.monotonic() + WAIT_FOR_LOCK_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline_s:
                raise
            time.sleep(0.02)


def _begin_sqlite(connection: sql.Connection) -> None:
    # a writer takes the lock at once: two that read first and write later would fail instead of waiting
    connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options().get("writes") else "BEGIN")


def _postgresql(url: sql.URL) -> sql.Engine:
    limits = {"connect_timeout": CONNECT_WITHIN_S, "tcp_user_timeout": NETWORK_GONE_AFTER_S * 1000}
    chosen = {name: value for name, value in limits.items() if name not in url.query}
    return sql.create_engine(url, poolclass=sql.NullPool, connect_args=chosen)


@contextmanager
def explained(url: sql.URL) -> Iterator[None]:
    """Turn errors of the database into a StoreError, one line without its password; IntegrityError passes.

    SQLite's driver raises OverflowError, which SQLAlchemy does not wrap, for whole numbers of more than 64 bits.
    """
    try:
        yield
    except IntegrityError:
        raise
    except (SQLAlchemyError, ImportError, OSError, OverflowError) as error:
        reason = " ".join(str(getattr(error, "orig", None) or error).split())
        for secret in filter(None, (url.password, url.query.get("password"))):
            reason = reason.replace(str(secret), "***")
        away = isinstance(error, OperationalError | InterfaceError) and (
            url.get_backend_name() == "postgresql" or "locked" in reason
        )
        raise (StoreAway if away else StoreError)(f"database {_name(url)}: {reason}; {_advice(reason)}") from None


def patient(act: Callable[[], T], says: Callable[[str], None]) -> T:
    """The result of `act`, retried for up to a minute while the database is away; `says` receives one line about that.

    A level that took minutes to measure must not be lost because the database restarts or stalls. `act` must be
    idempotent: a commit may have succeeded although its answer was lost. Raises what `act` raised last.
    """
    deadline_s, wait_s = time.monotonic() + TRY_AGAIN_FOR_S, FIRST_WAIT_S
    while True:
        try:
            return act()
        except StoreAway as error:
            if time.monotonic() + wait_s > deadline_s:
                raise
            if wait_s == FIRST_WAIT_S:
                says(f"{error}; retrying for up to {TRY_AGAIN_FOR_S:g} s")
        time.sleep(wait_s)
        wait_s = min(2 * wait_s, LONGEST_WAIT_S)


def _name(url: sql.URL) -> str:
    """The database in error messages: its place, without user, password and options."""
    if url.get_backend_name() == "sqlite":
        return str(url.database)
    host = url.host or url.query.get("host") or "local socket"
    return f"{host}{f':{url.port}' if url.port else ''}/{url.database or ''}"


def _advice(reason: str) -> str:
    if "full" in reason or "No space left" in reason:
        return "free some space; what was stored before is intact"
    if "in its log" in reason:
        return "copy both to a folder of your own"
    if "I/O error" in reason:
        return "the disk refused: check its space, quotas and limits (ulimit -f), and its health"
    if "readonly" in reason:
        return "it is read-only: it can be listed and exported; copy it elsewhere to change it"
    if "locked" in reason:
        return "another program has locked it: close that program, or wait for it"
    if "too large" in reason or "out of range" in reason:
        return "give a smaller number"
    return f"check {DATABASE_VARIABLE}"


_BREAKS = "\t\n\v\f\r\x1c\x1d\x1e\x85\u2028\u2029"
_BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
_CONTROLS = [*map(chr, range(0x20)), *map(chr, range(0x7F, 0xA0)), *_BIDI]
_HARMLESS = str.maketrans(dict.fromkeys(_CONTROLS, "\ufffd") | dict.fromkeys(_BREAKS, " "))


def clean(text: str) -> str:
    """`text` on one line: tabs and line breaks become blanks, other control characters a replacement mark.

    Control characters (C0, C1) can move a terminal's cursor or set its clipboard, and marks of writing direction can
    disguise a text. They are replaced, not removed, so that no text becomes empty.

    >>> clean("two\\nlines, \\x1b[31mred") == "two lines, \\ufffd[31mred"
    True
    """
    return storable(text).translate(_HARMLESS)


def storable(text: str) -> str:
    """`text` with a replacement mark for NUL and for lone surrogates, which PostgreSQL, UTF-8 and Parquet refuse.

    >>> storable("a\\0b") == storable("a\\ud800b") == "a\\ufffdb"
    True
    """
    return text.replace("\0", "\ufffd").encode("utf-16", "surrogatepass").decode("utf-16", "replace")
