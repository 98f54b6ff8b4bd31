"""The content of a benchmark tool's file, parsed within limits: one JSON object, JSON lines, or a CSV table."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from calibration.errors import FileError
from calibration.plan import RATE_KINDS
from sizing import errors
from sizing.files import KeyTwiceError, each_key_once
from sizing.points import Deployment, LoadKind

LIMIT_BYTES = 100_000_000
NUMBER_TEXT_LIMIT = 4000
"""Most digits of a whole number: longer ones are not data."""
MOST_LINES = 250_000
"""Most rows of a table, or single requests: 100 MB of real data have fewer."""
MOST_CELLS = 10_000
MOST_PARTS = 4_000_000
"""Most lists and objects in a JSON file: an empty one takes three bytes in the file and sixty in memory."""
Row = tuple[str, ...]
Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class JsonFile:
    """A file with one JSON object."""

    name: str
    value: Object


@dataclass(frozen=True, slots=True)
class JsonLines:
    """A file with one JSON object per line: the first, and all numbered lines, which are parsed on demand."""

    name: str
    first: Object
    lines: tuple[tuple[int, str], ...]

    def values(self) -> Iterator[Object]:
        """The objects in order. Raises FileError at the first line that is not one."""
        yield self.first
        for number, line in self.lines[1:]:
            yield _line(line, number, self.name)


@dataclass(frozen=True, slots=True)
class CsvFile:
    """A file of comma-separated rows, without empty ones; `lines` are the line numbers where they end."""

    name: str
    rows: tuple[Row, ...]
    lines: tuple[int, ...]


Content = JsonFile | JsonLines | CsvFile


def read_content(path: Path | str) -> Content:
    """The content of the file at `path`, at most 100 MB of UTF-8.

    Raises FileError, one line that names the file and the place, if it cannot be read, is cut short, repeats a key or
    is nested too deeply.
    """
    name = str(path)
    text = _text(Path(path), name)
    start = text.lstrip()[:1]
    if not start:
        raise FileError(f"{name}: the file is empty")
    if start not in "{[":
        return _csv(text, name)
    if text.count("[") + text.count("{") > MOST_PARTS:
        raise FileError(f"{name}: more than {MOST_PARTS:,} lists and objects; give a part of it or the tool's summary")
    lines = text.split("\n", MOST_LINES)
    whole = _complete_object(lines[0], name)
    if whole is not None and any(line.strip() for line in lines[1:]):
        if len(lines) > MOST_LINES:
            raise FileError(f"{name}: more than {MOST_LINES:,} lines; give a part of it or the tool's summary")
        return JsonLines(name, whole, tuple(_numbered(lines)))
    value = _json(text, name) if whole is None else whole
    if not isinstance(value, dict):
        raise FileError(f"{name}: a JSON object was expected, this is a {type(value).__name__}")
    return JsonFile(name, value)


def _text(path: Path, name: str) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(LIMIT_BYTES + 1)
    except FileNotFoundError:
        raise FileError(f"{name}: no such file") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FileError(f"{name}: cannot be read ({reason})") from None
    if len(raw) > LIMIT_BYTES:
        raise FileError(f"{name}: larger than {LIMIT_BYTES // 1_000_000} MB; give a part of it or the tool's summary")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(f"{name}: not UTF-8 text at byte {error.start}; is it compressed or of another kind?") from None


def _numbered(lines: list[str]) -> list[tuple[int, str]]:
    return [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]


def _complete_object(line: str, name: str) -> Object | None:
    """The object on the first line; None if it does not end there."""
    if not line.rstrip().endswith("}"):
        return None
    try:
        value = _json(line, name)
    except FileError:
        return None
    return value if isinstance(value, dict) else None


def _line(line: str, number: int, name: str) -> Object:
    value = _json(line, f"{name}, line {number}")
    if not isinstance(value, dict):
        raise FileError(f"{name}, line {number}: a JSON object was expected, this is a {type(value).__name__}")
    return value


def _json(text: str, name: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=each_key_once, parse_int=_whole)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise FileError(f"{name}: cut short or not JSON at {place}: {error.msg}") from None
    except RecursionError:
        raise FileError(f"{name}: nested too deeply") from None
    except KeyTwiceError:  # without its name: the content of a foreign file is not quoted
        raise FileError(f"{name}: a key is there twice in one object") from None
    except _Faulty as fault:
        raise FileError(f"{name}: {fault}") from None


class _Faulty(Exception):
    """A fault found by the JSON parser's hooks."""


def _whole(digits: str) -> int:
    if len(digits) > NUMBER_TEXT_LIMIT:
        raise _Faulty(f"a whole number of {len(digits)} digits")
    return int(digits)


def _csv(text: str, name: str) -> CsvFile:
    reader = csv.reader(io.StringIO(text), strict=True)
    rows: list[Row] = []
    lines: list[int] = []
    try:
        for row in filter(None, reader):
            if len(row) > MOST_CELLS or len(rows) == MOST_LINES:
                raise FileError(
                    f"{name}, line {reader.line_num}: more than {MOST_LINES:,} rows or {MOST_CELLS:,} cells"
                )
            rows.append(tuple(cell.strip() for cell in row))
            lines.append(reader.line_num)
    except csv.Error as error:
        raise FileError(f"{name}, line {reader.line_num}: cannot be read as CSV ({error})") from None
    return CsvFile(name, tuple(rows), tuple(lines))


# --- Where other tools' data comes in: types with bounds, checks that name file and key, text made harmless

TEXT_LIMIT = 120
LARGEST = 1e15
Number = Annotated[float, Field(ge=0, le=LARGEST)]
Positive = Annotated[float, Field(gt=0, le=LARGEST)]
Count = Annotated[int, Field(ge=0, le=10**9)]
Tokens = Annotated[int, Field(ge=0, le=10**7)]
Nanoseconds = Annotated[int, Field(ge=0, le=2**63 - 1)]
Item = TypeVar("Item")
Many = Annotated[list[Item], Field(fail_fast=True)]
"""A list whose validation stops at the first fault: errors for millions of entries would fill the memory."""
_ERROR_NAME = re.compile(r"[A-Za-z_]{0,40}(?:Error|Exception|Timeout)\b")
_SCALE_TO_S = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


class Edge(BaseModel):
    """Base of the models of foreign data: strict types, finite numbers, unknown keys ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, allow_inf_nan=False)


Model = TypeVar("Model", bound=BaseModel)


def checked(model: type[Model], data: object, where: str) -> Model:
    """`data` as a `model`. Raises FileError with `where` and the first faulty key."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise FileError(f"{where}, {first_fault(error)}") from None


def first_fault(error: ValidationError) -> str:
    """The first fault, as ``key 'what': why``, on one line of bounded length."""
    fault = errors.first_fault(error)
    return f"key {fault.key!r}: {fault.reason}"


def clean(text: str, limit: int = TEXT_LIMIT) -> str:
    """`text` on one line of at most `limit` characters, without control characters and halves of characters.

    >>> clean("a\\x1b[31m\\n  model")
    'a[31m model'
    """
    start = text[: 4 * limit]
    kept = "".join(" " if char.isspace() else char for char in start if char.isspace() or _printable(char))
    return " ".join(kept.split())[:limit].strip()


def _printable(char: str) -> bool:
    return not unicodedata.category(char).startswith("C")


def error_name(text: str) -> str:
    """The kind of error in a message or traceback, without its words: these may quote a prompt or a key.

    >>> error_name("Traceback ...\\naiohttp.ClientPayloadError: 400, prompt was 'secret'")
    'ClientPayloadError'
    """
    found = _ERROR_NAME.findall(text[-4000:])
    return found[-1] if found else "failed"


def scale_to_s(unit: str, where: str) -> float:
    """Seconds in one `unit`. Raises FileError for a unit that is not one of time."""
    try:
        return _SCALE_TO_S[unit]
    except KeyError:
        raise FileError(f"{where}: unit {clean(unit, 20)!r} is not one of time; expected ms") from None


def number(cell: str, where: str) -> float:
    """The number in a CSV cell. Raises FileError if it is not a number, not finite, negative or too large."""
    try:
        value = float(cell)
    except ValueError:
        raise FileError(f"{where}: {clean(cell, 40)!r} is not a number") from None
    if not math.isfinite(value) or not 0 <= value <= LARGEST:
        raise FileError(f"{where}: {clean(cell, 40)} is not a possible value")
    return value


def iso_time(epoch_s: float) -> str:
    """The moment in ISO 8601, UTC; empty if there is no such year."""
    try:
        return datetime.fromtimestamp(epoch_s, UTC).isoformat(timespec="seconds")
    except (OverflowError, OSError, ValueError):
        return ""


def iso_text(text: str) -> str:
    """A moment in ISO 8601 to the second, with its time zone if it has one; empty if `text` is not one."""
    try:
        return datetime.fromisoformat(text).isoformat(timespec="seconds")
    except ValueError:
        return ""


def unique(header: Iterable[str], where: str) -> None:
    """Raises FileError if a column is repeated."""
    seen: set[str] = set()
    for column in header:
        if column in seen:
            raise FileError(f"{where}: column {clean(column, 60)!r} is there twice")
        seen.add(column)


def only(values: Mapping[str, Any]) -> dict[str, Any]:
    """The entries that are known."""
    return {name: value for name, value in values.items() if value is not None}


Text = Annotated[str, Field(min_length=1, max_length=200)]
Whole = Annotated[int, Field(ge=1, le=10**6)]
ArrivalsName = Literal["constant", "poisson", "gamma"]


class Offered(NamedTuple):
    """A load level: `value` users (closed loop) or requests/s (open loop)."""

    kind: LoadKind
    value: float

    @property
    def open_loop(self) -> bool:
        """True if requests are sent at given times, not when an answer has come."""
        return self.kind != "concurrency"


class KnownFacts(BaseModel):
    """Facts given by the caller, each with a command-line flag: `max_batch_size` is ``--max-batch-size``.

    A value here overrides the file. `isl` and `osl` are mean tokens per request; `concurrency` is the users of a closed
    loop, `rate` the requests/s of an open loop, whose intervals follow `arrivals`.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    model: Text | None = None
    precision: Text | None = None
    gpu: Text | None = None
    tp: Whole | None = None
    pp: Whole | None = None
    engine: str | None = None
    engine_version: str | None = None
    batching: str | None = None
    max_batch_size: Whole | None = None
    isl: Positive | None = None
    osl: Positive | None = None
    concurrency: Whole | None = None
    rate: Positive | None = None
    arrivals: ArrivalsName | None = None

    @property
    def says_load(self) -> bool:
        """Whether the caller gives the load level."""
        return bool(self.concurrency or self.rate)

    def deployment(self, model: str | None, name: str) -> Deployment:
        """The deployment, with the file's model if the caller names none.

        Raises FileError with every flag that is missing.
        """
        chosen = self.model or model
        self._need(name, model=chosen, precision=self.precision, gpu=self.gpu, tp=self.tp)
        said = self.model_dump(include={*Deployment._fields}, exclude_none=True)
        return Deployment(**said | {"model": chosen})

    def lengths(self, isl: float | None, osl: float | None, name: str) -> tuple[float, float]:
        """Mean tokens in and out. Raises FileError with the missing flags if neither file nor caller says them."""
        chosen = (self.isl or isl, self.osl or osl)
        self._need(name, isl=chosen[0], osl=chosen[1])
        return chosen[0] or 1.0, chosen[1] or 1.0

    def load(self, in_file: Offered | None, name: str, *, arrivals: ArrivalsName = "poisson") -> Offered:
        """The load level; by default the arrivals of a rate are the tool's usual `arrivals`.

        Raises FileError with the flags if neither file nor caller says the load, or the caller says two.
        """
        if self.concurrency and self.rate:
            raise FileError("--concurrency and --rate exclude each other: a load is either a closed or an open loop")
        if self.concurrency:
            return Offered("concurrency", float(self.concurrency))
        if self.rate:
            return Offered(RATE_KINDS[self.arrivals or arrivals], self.rate)
        if in_file is None:
            raise FileError(f"{name}: the file does not say the load; give --concurrency N or --rate R")
        if in_file.open_loop and self.arrivals:
            return Offered(RATE_KINDS[self.arrivals], in_file.value)
        return in_file

    @staticmethod
    def _need(name: str, **values: object) -> None:
        lacking = [key for key, value in values.items() if not value]
        if lacking:
            flags = ", ".join(f"--{key}" for key in lacking)
            raise FileError(f"{name}: the file does not say everything; give {flags}")


def known(values: Mapping[str, object]) -> KnownFacts:
    """The values that are not None, with texts free of control characters. Raises FileError with the faulty flag."""
    said = {
        key: clean(value, len(value)) if isinstance(value, str) else value
        for key, value in values.items()
        if value is not None
    }
    try:
        return KnownFacts.model_validate(said)
    except ValidationError as error:
        raise FileError(f"options of the import, {first_fault(error)}") from None
