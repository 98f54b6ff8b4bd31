"""What a benchmark tool's file holds, parsed with limits: one JSON object, JSON lines, or a CSV table."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibration.errors import FileError

LIMIT_BYTES = 100_000_000
NUMBER_TEXT_LIMIT = 4000
"""Digits of a whole number in a file beyond which it cannot mean anything."""

MOST_LINES = 250_000
"""Of a table, or of single requests: a hundred MB of real ones are fewer."""
MOST_CELLS = 10_000
MOST_PARTS = 4_000_000
"""Lists and objects in a JSON file: an empty one takes three bytes there and twenty times that in memory."""

Row = tuple[str, ...]
Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class JsonFile:
    """A file of one JSON object."""

    name: str
    value: Object


@dataclass(frozen=True, slots=True)
class JsonLines:
    """A file of one JSON object a line: the first, and the numbered lines of them all, read when asked for."""

    name: str
    first: Object
    lines: tuple[tuple[int, str], ...]

    def values(self) -> Iterator[Object]:
        """The objects in their order. Raises FileError at the first line that is none."""
        yield self.first
        for number, line in self.lines[1:]:
            yield _line(line, number, self.name)


@dataclass(frozen=True, slots=True)
class CsvFile:
    """A file of comma-separated rows, empty ones left out; `lines` is where in the file each ends."""

    name: str
    rows: tuple[Row, ...]
    lines: tuple[int, ...]


Content = JsonFile | JsonLines | CsvFile


def read_content(path: Path | str) -> Content:
    """The content of the file at `path`, of at most 100 MB of UTF-8.

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
    """The object that the first line is by itself, None where an object only begins there."""
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
        return json.loads(text, object_pairs_hook=_unique, parse_int=_whole)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise FileError(f"{name}: cut short or not JSON at {place}: {error.msg}") from None
    except RecursionError:
        raise FileError(f"{name}: nested too deeply") from None
    except _Faulty as fault:
        raise FileError(f"{name}: {fault}") from None


class _Faulty(Exception):
    """What the JSON parser's hooks found."""


def _unique(pairs: list[tuple[str, Any]]) -> Object:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _Faulty("a key is there twice in one object")
    return found


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
