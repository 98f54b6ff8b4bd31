"""Export of a run to one file, and its import into any store: the same run everywhere, as a whole or not at all."""

from __future__ import annotations

import hashlib
import re
import struct
import uuid
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, NamedTuple

import sqlalchemy as sql
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from sqlalchemy.exc import IntegrityError

from calibration.errors import FileError, StoreError
from calibration.plan import LevelKey, level_key
from calibration.records import Measurement
from calibration.store import LIVE, Ending, Run, Store
from calibration.store.database import clean, runs
from calibration.store.records_file import MOST_VALUES, decoded, decoded_about, read_log, replacing
from calibration.store.runs import (
    at_work,
    cleaned,
    insert_points,
    insert_run,
    keep,
    name_records,
    now,
    of_run,
    point_of,
    records_name,
    removed_on_error,
    set_standing,
    update_run,
)
from sizing.errors import first_fault
from sizing.points import Point

# --- One run as one file: a zip archive of its plan, points and records, every member checked against its SHA-256
#
# manifest.json      format and its version, the run's UUID, size and SHA-256 of each member below
#     manifest.sha256    SHA-256 of manifest.json
#     run.json           the run: plan, label, state, times
#     points.json        the points with facts, each naming its file of records, if it has one
#     records/level-1.parquet, ...
#
# Members are stored uncompressed: the same run gives the same bytes everywhere, a small file cannot expand into a large
# one, and Parquet is compressed already. No name in the archive ever becomes a path on disk.

VERSION = 1
MANIFEST, MANIFEST_SUM, RUN, POINTS = "manifest.json", "manifest.sha256", "run.json", "points.json"
_NAMES = re.compile(r"manifest\.json|manifest\.sha256|run\.json|points\.json|records/level-[0-9]{1,9}\.parquet")
_EPOCH = (1980, 1, 1, 0, 0, 0)
_BLOCK_BYTES = 1 << 20
_UTF8_NAME = 0x800  # the only flag that a plainly stored member may have
_Time = Annotated[str, Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\+00:00$")]
"""ISO 8601 in UTC, in one form only, so that texts sort as times do."""


class _BundlePart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class _Head(BaseModel):
    """The fields of every version of the manifest."""

    format: Literal["calibration run"]
    version: int


class _Member(_BundlePart):
    bytes: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class _Manifest(_BundlePart):
    format: Literal["calibration run"] = "calibration run"
    version: int = VERSION
    run: str
    members: dict[str, _Member]


class RunPart(_BundlePart):
    """A run that has ended, as `calibration.store.Run`, without the fields that are particular to one store."""

    uuid: Annotated[str, Field(pattern="^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")]
    plan: str
    folder: str
    label: str
    levels: Annotated[int, Field(ge=0, lt=2**31)]
    state: Ending
    created: _Time
    ended: _Time | None
    error: str


class PointPart(_BundlePart):
    """A point with its facts; `records` is the member with its log, None if there is none."""

    point: Point
    facts: dict[str, float]
    server: dict[str, float]
    records: str | None


_POINT_PARTS = TypeAdapter(tuple[PointPart, ...])


@dataclass(frozen=True, slots=True)
class Bundle:
    """A run read from a consistent file; `read` gives the bytes of a member."""

    run: RunPart
    points: tuple[PointPart, ...]
    read: Callable[[str], bytes]


def write_bundle(file: BinaryIO, run: RunPart, points: Sequence[PointPart], records: Mapping[str, Path]) -> None:
    """Write a run to `file`; `records` has the files for the members that the points name."""
    texts = {RUN: run.model_dump_json(indent=1).encode(), POINTS: _POINT_PARTS.dump_json(tuple(points), indent=1)}
    with zipfile.ZipFile(file, "w") as archive:
        members = {name: _put(archive, name, text) for name, text in texts.items()}
        members |= {name: _put(archive, name, path.read_bytes()) for name, path in records.items()}
        manifest = _Manifest(run=run.uuid, members=members).model_dump_json(indent=1).encode()
        _put(archive, MANIFEST, manifest)
        _put(archive, MANIFEST_SUM, hashlib.sha256(manifest).hexdigest().encode())


def _put(archive: zipfile.ZipFile, name: str, content: bytes) -> _Member:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.create_system = 3
    entry.external_attr = 0o644 << 16
    archive.writestr(entry, content, zipfile.ZIP_STORED)
    return _Member(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


@contextmanager
def read_bundle(path: Path, most_values: int = MOST_VALUES) -> Iterator[Bundle]:
    """The run in a file, all of which is checked before any of it is used; no log may hold more than `most_values`.

    Raises FileError, one line, if the file is missing, cut short, changed, of another kind or of a newer version.
    """
    with _understood(path):
        archive = zipfile.ZipFile(path)
    with archive:
        with _understood(path):
            bundle = _checked(archive, path.stat().st_size, most_values)
        yield bundle


def is_bundle(path: Path) -> bool:
    """True for a file that starts like a zip archive, unlike any benchmark tool's file of points."""
    try:
        with path.open("rb") as file:
            return file.read(4) == b"PK\x03\x04"
    except OSError:
        return False


def _checked(archive: zipfile.ZipFile, size_bytes: int, most_values: int) -> Bundle:
    _check_entries(archive.infolist(), size_bytes)
    manifest = _manifest(archive)
    if set(archive.namelist()) != {MANIFEST, MANIFEST_SUM, *manifest.members}:
        raise FileError("its members are not those that its manifest lists")
    for name, member in manifest.members.items():
        if _sum(archive, name) != member.sha256 or archive.getinfo(name).file_size != member.bytes:
            raise FileError(f"{name} is not what the manifest says: the file was damaged or changed")
    run = RunPart.model_validate_json(archive.read(RUN))
    points = _POINT_PARTS.validate_json(archive.read(POINTS))
    if len({level_key(part.point) for part in points}) != len(points):
        raise FileError("two of its points are at the same level")
    named = [part.records for part in points if part.records is not None]
    if run.uuid != manifest.run or sorted([RUN, POINTS, *named]) != sorted(manifest.members):
        raise FileError("its run and points are not those that its manifest lists")
    for part in points:
        if part.records is not None:
            _check_records(archive.read(part.records), part, run, most_values)
    return Bundle(run, points, archive.read)


def _check_entries(entries: Sequence[zipfile.ZipInfo], size_bytes: int) -> None:
    names = [entry.filename for entry in entries]
    if "[Content_Types].xml" in names:  # in every file of Excel
        raise FileError("a workbook, not a calibration run: save the sheet with its table as CSV")
    for entry in entries:
        if not _NAMES.fullmatch(entry.filename):
            raise FileError(f"member {entry.filename[:80]!r} does not belong into a calibration run")
        plain = entry.compress_type == zipfile.ZIP_STORED and entry.flag_bits in (0, _UTF8_NAME)
        if not plain or entry.file_size != entry.compress_size:
            raise FileError(f"member {entry.filename} is compressed or encrypted, which no calibration run is")
    if len(set(names)) != len(names) or sum(entry.file_size for entry in entries) > size_bytes:
        raise FileError("members overlap, or are there twice")
    for needed in (MANIFEST, MANIFEST_SUM, RUN, POINTS):
        if needed not in names:
            raise FileError(f"{needed} is missing: not a calibration run")


def _manifest(archive: zipfile.ZipFile) -> _Manifest:
    content = archive.read(MANIFEST)
    if archive.read(MANIFEST_SUM) != hashlib.sha256(content).hexdigest().encode():
        raise FileError("the manifest is not what its checksum says: the file was damaged or changed")
    if (version := _Head.model_validate_json(content).version) > VERSION:
        raise FileError(
            f"written by a newer version of this program (format {version}, this one knows {VERSION}): update this one"
        )
    return _Manifest.model_validate_json(content)


def _sum(archive: zipfile.ZipFile, name: str) -> str:
    digest = hashlib.sha256()
    with archive.open(name) as member:
        while block := member.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _check_records(content: bytes, part: PointPart, run: RunPart, most_values: int) -> None:
    about = decoded_about(content, str(part.records), most_values)
    if (about.run, about.level) != (run.uuid, level_key(part.point)):
        raise FileError(f"{part.records} holds the requests of another run or level")
    decoded(content, str(part.records), most_values)


@contextmanager
def _understood(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise FileError(f"{path}: no such file") from None
    except ValidationError as error:
        raise FileError(f"{path}: not a calibration run: {first_fault(error, 'its JSON')}") from None
    except (FileError, StoreError) as error:
        raise FileError(f"{path}: {error}") from None
    except (zipfile.BadZipFile, NotImplementedError, OSError, EOFError, ValueError, struct.error) as error:
        reason = clean(" ".join(str(error).split()))
        raise FileError(f"{path}: not a calibration run, or damaged or cut short ({reason})") from None


def export_bundle(store: Store, run_id: int, path: Path) -> int:
    """Write run `run_id` with its points, and its logs that are on this machine, to `path`; how many logs are not.

    Those are where they were measured: importing a file exported there adds them. With all of its logs, the same run
    gives the same bytes from any store. Raises StoreError if there is no such run, it is being measured, a log is
    damaged, or `path` cannot be written; the file at `path` is then unchanged.
    """
    run = store.run(run_id)
    if run.state in LIVE:
        raise StoreError(f"run {run_id} is being measured by {run.owner}: export it when it has ended")
    kept = store.measurements(run_id, as_measured=True)
    files = store.records(run_id)
    points, members = [], {}
    for number, item in enumerate(kept, start=1):
        file = files.get(level_key(item.point))
        name = f"records/level-{number}.parquet" if file else None
        points.append(PointPart(point=item.point, facts=dict(item.facts), server=dict(item.server), records=name))
        if file and name:
            read_log(file)  # a damaged one is reported here, not only on import
            members[name] = file
    with replacing(path) as target:
        write_bundle(target, _run_part(run), points, members)
    return len(store.logs_elsewhere(run_id))


def _run_part(run: Run) -> RunPart:
    names = RunPart.model_fields
    values: dict[str, Any] = {name: getattr(run, name) for name in names}
    return RunPart(**values | {"state": "interrupted" if run.state == "lost" else run.state})


class Imported(NamedTuple):
    """The number of a run, and whether it is new to the store."""

    run_id: int
    new: bool


def import_bundle(store: Store, path: Path) -> Imported:
    """Import the run in the file at `path`.

    A run is identified by its UUID. Importing it again adds what is missing here (points measured elsewhere since, and
    logs that are not on this machine) and accepts points that were discarded or pending. All or nothing. Raises
    FileError if `export_bundle` did not write the file, StoreError if the store fails, is measuring this very run, or
    has a different point of it at one of the levels.
    """
    with read_bundle(path) as bundle:
        try:
            return _adopt(store, bundle)
        except IntegrityError:  # another process has just imported it, so it is here now
            return _adopt(store, bundle)


def _adopt(store: Store, bundle: Bundle) -> Imported:
    with removed_on_error() as written, store.database.writing() as connection:
        known = connection.execute(sql.select(runs.c.id).where(runs.c.uuid == bundle.run.uuid)).scalar()
        run_id = insert_run(connection, bundle.run.model_dump()) if known is None else int(known)
        owner = at_work(connection, run_id, store.database.clock)  # which locks the run's row
        here = {level_key(point_of(row)): row for row in connection.execute(of_run(run_id)).mappings()}
        _check_same(run_id, here, bundle)
        missing = [part for part in bundle.points if level_key(part.point) not in here]
        logs = _place_logs(store, connection, run_id, here, bundle)
        if owner and (missing or logs):
            raise StoreError(f"run {run_id} of this store is being measured by {owner}: import when it has ended")
        if missing:
            _bring_up_to_date(connection, run_id, bundle.run)
            logs |= _insert(store, connection, run_id, missing)
        set_standing(connection, run_id, "accepted")
        for file, member in logs.items():
            written.append(file)
            with replacing(file) as content:
                content.write(bundle.read(member))
    return Imported(run_id, new=known is None)


def _insert(store: Store, connection: sql.Connection, run_id: int, parts: list[PointPart]) -> dict[Path, str]:
    """Insert points; the path of each log, and its member in the file."""
    kept = [Measurement(part.point, part.facts, part.server) for part in parts]
    names = insert_points(connection, run_id, kept, [part.records is not None for part in parts])
    named = zip(names, parts, strict=True)
    return {store.database.records / name: part.records for name, part in named if part.records is not None}


def _check_same(run_id: int, here: dict[LevelKey, sql.RowMapping], bundle: Bundle) -> None:
    """Raises StoreError if the run in the store has different points than the file at the same levels."""
    for part in bundle.points:
        row = here.get(level_key(part.point))
        if row is not None and cleaned(point_of(row)) != cleaned(part.point):
            raise StoreError(
                f"run {run_id} of this store has a different point than the file at {level_key(part.point)}"
            )


def _place_logs(
    store: Store, connection: sql.Connection, run_id: int, here: dict[LevelKey, sql.RowMapping], bundle: Bundle
) -> dict[Path, str]:
    """As `_insert`, for points that are in the store already, but whose logs are not on this machine."""
    logs: dict[Path, str] = {}
    for part in bundle.points:
        row = here.get(level_key(part.point))
        if row is None or part.records is None:
            continue
        name = row["records"]
        if name and (store.database.records / name).is_file():
            continue
        if not name:
            name = records_name(run_id, bundle.run.uuid, row["number"])
            name_records(connection, run_id, row["number"], name)
        logs[store.database.records / name] = part.records
    return logs


def _bring_up_to_date(connection: sql.Connection, run_id: int, run: RunPart) -> None:
    """Update how the run ended, unless it ended later here."""
    ended = connection.execute(sql.select(runs.c.ended).where(runs.c.id == run_id)).scalar()
    if ended is None or (run.ended or "") >= ended:
        update_run(connection, run_id, {"state": run.state, "ended": run.ended, "error": run.error})


_NAMESPACE = uuid.UUID("5c3b1b52-6f0c-4e5e-9a55-2f1f6c2d8a10")
_CLOCK = "seconds since the first request"


def import_measurements(store: Store, label: str, found: Sequence[Measurement]) -> list[Imported]:
    """Store `found` with their logs as finished runs called `label`, all accepted. All or nothing.

    A run holds a level once: where `found` has more measurements of one, the second of each level are a run of their
    own, and so on. The same points are the same run; if they were discarded, they are accepted again. Raises StoreError
    if the store fails.
    """
    try:
        return _take_in(store, label, found)
    except IntegrityError:  # another process has just imported them, so they are here now
        return _take_in(store, label, found)


def _take_in(store: Store, label: str, found: Sequence[Measurement]) -> list[Imported]:
    with removed_on_error() as written, store.database.writing() as connection:
        return [_run_of(store, connection, label, each, written) for each in _rounds(found)]


def _rounds(found: Sequence[Measurement]) -> list[list[Measurement]]:
    """The first measurements of all levels, then the second of those that have one, and so on."""
    before, rounds = Counter[LevelKey](), list[list[Measurement]]()
    for item in found:
        key = level_key(item.point)
        if before[key] == len(rounds):
            rounds.append([])
        rounds[before[key]].append(item)
        before[key] += 1
    return rounds


def _run_of(
    store: Store, connection: sql.Connection, label: str, found: Sequence[Measurement], written: list[Path]
) -> Imported:
    points = "\n".join(sorted(repr(item.point) for item in found))
    name = str(uuid.uuid5(_NAMESPACE, hashlib.sha256(points.encode()).hexdigest()))
    known = connection.execute(sql.select(runs.c.id).where(runs.c.uuid == name)).scalar_one_or_none()
    if known is not None:
        set_standing(connection, int(known), "accepted")
        return Imported(int(known), new=False)
    at = now()
    values = {"uuid": name, "plan": "", "folder": "", "label": label, "levels": len(found), "state": "done"}
    run_id = insert_run(connection, values | {"created": at, "ended": at, "error": ""})
    keep(connection, store.database.records, run_id, found, written=written, clock=_CLOCK)
    return Imported(run_id, new=True)
