"""One run as one file: a zip archive of its plan, points and records, every member checked against its SHA-256.

    manifest.json      format and its version, the run's UUID, size and SHA-256 of each member below
    manifest.sha256    SHA-256 of manifest.json
    run.json           the run: plan, label, state, times
    points.json        the points with facts, each naming its file of records, if it has one
    records/level-1.parquet, ...

Members are stored as they are, not compressed: the same run gives the same bytes everywhere, a small file cannot turn
into a large one, and Parquet is compressed already. No name in the archive ever becomes a path on disk.
"""

from __future__ import annotations

import hashlib
import re
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, BinaryIO, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from calibration.errors import FileError, StoreError
from calibration.levels import level_key
from calibration.store import Ending
from calibration.store.records_file import MOST_VALUES, decoded, decoded_about
from calibration.store.text import clean
from sizing.curves import Point

VERSION = 1
MANIFEST, MANIFEST_SUM, RUN, POINTS = "manifest.json", "manifest.sha256", "run.json", "points.json"
_NAMES = re.compile(r"manifest\.json|manifest\.sha256|run\.json|points\.json|records/level-[0-9]{1,9}\.parquet")
_EPOCH = (1980, 1, 1, 0, 0, 0)
_BLOCK_BYTES = 1 << 20
_UTF8_NAME = 0x800  # the only flag that a plain stored member may carry


_Time = Annotated[str, Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\+00:00$")]
"""ISO 8601 in UTC, of one form only: so the later of two times is the later of two texts."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class _Head(BaseModel):
    """What every version of the manifest has."""

    format: Literal["calibration run"]
    version: int


class _Member(_Part):
    bytes: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class _Manifest(_Part):
    format: Literal["calibration run"] = "calibration run"
    version: int = VERSION
    run: str
    members: dict[str, _Member]


class RunPart(_Part):
    """A run that has ended, as `calibration.store.Run` has it, without what is particular to one store."""

    uuid: Annotated[str, Field(pattern="^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")]
    plan: str
    folder: str
    label: str
    levels: Annotated[int, Field(ge=0, lt=2**31)]
    state: Ending
    created: _Time
    ended: _Time | None
    error: str


class PointPart(_Part):
    """A point with its facts; `records` is the member with its log, None where none was kept."""

    point: Point
    facts: dict[str, float]
    server: dict[str, float]
    records: str | None


_POINT_PARTS = TypeAdapter(tuple[PointPart, ...])


@dataclass(frozen=True, slots=True)
class Bundle:
    """A run read from a file in which everything fits together; `read` gives the bytes of a member."""

    run: RunPart
    points: tuple[PointPart, ...]
    read: Callable[[str], bytes]


def write_bundle(file: BinaryIO, run: RunPart, points: Sequence[PointPart], records: Mapping[str, Path]) -> None:
    """Write a run to `file`; `records` are the files behind the members that the points name."""
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
    """The run in a file, checked to the last byte before anything of it is used; no log may hold over `most_values`.

    Raises FileError, one line, if the file is missing, cut short, changed, of another kind or of a newer version.
    """
    with _understood(path):
        archive = zipfile.ZipFile(path)
    with archive:
        with _understood(path):
            bundle = _checked(archive, path.stat().st_size, most_values)
        yield bundle


def is_bundle(path: Path) -> bool:
    """True for a file that starts as a zip archive does, as no benchmark tool's file of points."""
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
        fault = error.errors()[0]
        where = clean(".".join(map(str, fault["loc"])))[:80]
        raise FileError(f"{path}: not a calibration run: {where or 'its JSON'}: {fault['msg']}") from None
    except (FileError, StoreError) as error:
        raise FileError(f"{path}: {error}") from None
    except (zipfile.BadZipFile, NotImplementedError, OSError, EOFError, ValueError, struct.error) as error:
        reason = clean(" ".join(str(error).split()))
        raise FileError(f"{path}: not a calibration run, or damaged or cut short ({reason})") from None
