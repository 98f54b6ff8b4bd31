"""Imported files: exported runs, points tables and the files of other tools, by path or as an upload."""

from __future__ import annotations

import csv
import hashlib
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath

from calibration.errors import CalibrationError, FileError
from calibration.importers import read_measurements
from calibration.plan import LevelKey, level_key
from calibration.records import Measurement
from calibration.store import Store
from calibration.store.bundle import Imported, import_bundle, import_measurements, is_bundle, read_bundle
from calibration.store.database import clean
from sizing.errors import PointsError
from sizing.points import MOST_POINTS, Point, read_points

POINTS_TABLE = "points"
MOST_UPLOAD_BYTES = 20 * 1000 * 1000
MOST_UPLOAD_POINTS = 10_000
MOST_UPLOAD_VALUES = 20_000_000
"""Most values of a request log: 160 MB in memory, however small the file."""
LONGEST_NAME = 80
MOST_TIMES = 100
"""Most measurements of one level in a file: each becomes a run of its own."""


def read_file(file: Path, kind: str | None, said: Mapping[str, object], most: int = MOST_POINTS) -> list[Measurement]:
    """The measurements in a points table or in another tool's file, at most `most` of them, each once.

    `kind`: POINTS_TABLE or one of `calibration.importers.KINDS`, detected from the content if None. `said` is what the
    file leaves out, by the names of `importers.reading.KnownFacts`. Raises FileError or PointsError, one line; a file
    with too many points is refused before the rest of it is read.
    """
    if kind == POINTS_TABLE or (kind is None and _is_points_table(file)):
        nothing_said("a points table", said)
        found = [Measurement(point) for point in read_points(file, most)]
    else:
        found = read_measurements(file, kind=kind, deployment=said, most=most)
    times, seen = Counter[LevelKey](), set[Point]()
    for point in (item.point for item in found):
        key = level_key(point)
        times[key] += 1
        if point in seen or times[key] > MOST_TIMES:
            isl, osl, _, _, load_kind, value = key
            what = "two equal points" if point in seen else f"more than {MOST_TIMES} measurements"
            remedy = "keep one of them" if point in seen else "split the file"
            raise FileError(f"{file}: {what} at ISL {isl:g}, OSL {osl:g}, {load_kind} {value:g}: {remedy}")
        seen.add(point)
    return found


def nothing_said(what: str, said: Mapping[str, object]) -> None:
    """Raises FileError if an option describes a file that is complete by itself."""
    if said:
        flag = next(iter(said)).replace("_", "-")
        raise FileError(f"--{flag}: {what} already says it; omit the option")


FEWEST_OF_TABLE = 3
"""Columns by which a table of points is known: what else it lacks is named by its reader."""


def _is_points_table(file: Path) -> bool:
    return len({"load_kind", "load_value", "requests_per_s", "isl", "osl", "gpu"} & _columns(file)) >= FEWEST_OF_TABLE


def _columns(file: Path) -> set[str]:
    """The columns named in the first line, if the file is a CSV, by commas or as spreadsheets elsewhere part them."""
    try:
        with file.open(encoding="utf-8-sig") as text:
            head = text.readline(4096)
    except (OSError, UnicodeDecodeError):
        return set()
    return {*next(csv.reader([re.sub("[;\t]", ",", head.strip())]), [])}


@dataclass(frozen=True, slots=True)
class Upload:
    """A file uploaded from a browser: its name, which is shown and never used as a path, and its bytes.

    `kind` and `said` are as in `read_file`, `said` as pairs.
    """

    name: str
    content: bytes
    kind: str | None = None
    said: tuple[tuple[str, object], ...] = ()

    @property
    def digest(self) -> str:
        """The same for the same content with the same name, `kind` and `said`."""
        told = repr((self.name, self.kind, self.said)).encode()
        return hashlib.sha256(told + hashlib.sha256(self.content).digest()).hexdigest()

    @property
    def shown_name(self) -> str:
        """The last part of the name, in one line without control characters."""
        last = PureWindowsPath(PurePosixPath(self.name).name).name
        return clean(last)[:LONGEST_NAME] or "the file"


def preview(store: Store, upload: Upload) -> tuple[Point, ...]:
    """The points in an upload; nothing is stored. Raises FileError or PointsError, one line with the upload's name."""
    with _laid_down(store, upload) as file:
        if _whole_run(upload, file):
            with read_bundle(file, MOST_UPLOAD_VALUES) as bundle:
                points = tuple(part.point for part in bundle.points)
                if len(points) > MOST_UPLOAD_POINTS:
                    raise FileError(f"{file}: more than {MOST_UPLOAD_POINTS:,} points: split it")
        else:
            points = tuple(item.point for item in _read(upload, file))
    return points


def take_in(store: Store, upload: Upload) -> list[Imported]:
    """Store an upload whose preview was accepted: as one run, or as several where levels were measured repeatedly.

    Raises FileError, PointsError or StoreError; then nothing is stored.
    """
    preview(store, upload)
    with _laid_down(store, upload) as file:
        if _whole_run(upload, file):
            return [import_bundle(store, file)]
        found = _read(upload, file)
        return import_measurements(store, f"imported from {upload.shown_name}", found)


def _whole_run(upload: Upload, file: Path) -> bool:
    if upload.kind is not None or not is_bundle(file):
        return False
    nothing_said("an exported run", dict(upload.said))
    return True


def _read(upload: Upload, file: Path) -> list[Measurement]:
    return read_file(file, upload.kind, dict(upload.said), MOST_UPLOAD_POINTS)


@contextmanager
def _laid_down(store: Store, upload: Upload) -> Iterator[Path]:
    """The upload as a temporary file among the store's records, under a name of our own."""
    if len(upload.content) > MOST_UPLOAD_BYTES:
        most = MOST_UPLOAD_BYTES // 1_000_000
        raise FileError(f"{upload.shown_name}: larger than {most} MB: import it by python -m calibration import FILE")
    if not upload.content:
        raise FileError(f"{upload.shown_name}: the file is empty")
    try:
        store.database.records.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="upload-", dir=store.database.records) as folder:
            file = Path(folder) / "upload"
            file.write_bytes(upload.content)
            yield file
    except OSError as error:
        raise FileError(f"{upload.shown_name}: cannot be stored for reading ({error.strerror or error})") from None
    except (CalibrationError, PointsError) as error:
        raise type(error)(str(error).replace(str(file), upload.shown_name)) from None
