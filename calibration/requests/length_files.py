"""Files that say how long requests are: histograms of lengths, data sets of texts, recorded traces.

What they hold is data and only data: texts are sent as prompts, numbers are checked.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from calibration.errors import FileError
from sizing.workload import Lengths, Seconds, Tokens

LARGEST_FILE_BYTES = 256 * 2**20
LONGEST_TOKENS = 1_000_000
TRACE_HEADERS = (
    ("arrival_s", "isl", "osl"),
    ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),  # the Azure LLM inference traces
    ("timestamp", "input_length", "output_length"),  # the Mooncake traces, JSON lines, milliseconds
)

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Histogram:
    """Pairs of lengths and how often each comes: arrays of shape (n,), `share` rising to exactly 1."""

    isl: Tokens
    osl: Tokens
    share: Seconds

    def pair(self, number: int, rng: np.random.Generator) -> tuple[int, int]:
        """(ISL, OSL) of a request, drawn from `rng`."""
        row = int(np.searchsorted(self.share, rng.random(), side="right"))
        return int(self.isl[row]), int(self.osl[row])

    def summary(self) -> Lengths:
        """Weighted means and coefficients of variation."""
        return summary(self.isl, self.osl, np.diff(self.share, prepend=0.0))


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests as they once came: seconds since the first, and lengths; arrays of shape (n,), in order of arrival."""

    arrival_s: Seconds
    isl: Tokens
    osl: Tokens

    def pair(self, number: int, rng: np.random.Generator) -> tuple[int, int] | None:
        """(ISL, OSL) of request `number`; None after the last."""
        return (int(self.isl[number]), int(self.osl[number])) if number < len(self.isl) else None

    def summary(self) -> Lengths:
        """Means and coefficients of variation."""
        return summary(self.isl, self.osl)


@dataclass(frozen=True, slots=True)
class Text:
    """One item of a data set: what is asked, and an answer to it, empty where the file has none."""

    prompt: str
    answer: str


def summary(isl: Tokens, osl: Tokens, weights: Seconds | None = None) -> Lengths:
    """Means and coefficients of variation of lengths in arrays of shape (n,)."""
    isl_mean, isl_cv = _mean_and_cv(isl, weights)
    osl_mean, osl_cv = _mean_and_cv(osl, weights)
    return Lengths(isl_mean, osl_mean, isl_cv, osl_cv)


def _mean_and_cv(values: Tokens, weights: Seconds | None) -> tuple[float, float]:
    if values.min() == values.max():
        return float(values[0]), 0.0  # exactly, whatever rounding the weights would bring in
    mean = float(np.average(values, weights=weights))
    return mean, math.sqrt(float(np.average((values - mean) ** 2, weights=weights))) / mean


def read_histogram(path: Path) -> Histogram:
    """A CSV with the columns isl, osl and, unless every pair is as frequent, weight. Raises FileError."""
    rows = list(_csv_rows(path, (("isl", "osl"),)))
    isl = np.array([_tokens(row, "isl", where) for where, row in rows], np.int64)
    osl = np.array([_tokens(row, "osl", where) for where, row in rows], np.int64)
    weight = np.array([_number(row, "weight", where) if "weight" in row else 1.0 for where, row in rows])
    if not weight.sum():
        raise FileError(f"{path}: every weight is 0; give at least one pair of lengths a weight above 0")
    share = np.cumsum(weight)
    return Histogram(isl, osl, share / share[-1])


def read_trace(path: Path) -> Trace:
    """A CSV with arrival_s, isl, osl, an Azure LLM trace (CSV), or a Mooncake trace (JSON lines). Raises FileError."""
    lines = _json_rows(path) if path.suffix == ".jsonl" else _csv_rows(path, TRACE_HEADERS)
    rows = list(lines)
    when, isl_name, osl_name = next(header for header in TRACE_HEADERS if set(header) <= set(rows[0][1]))
    read_s = _SECONDS[when]
    arrival_s = np.array([read_s(row, when, where) for where, row in rows])
    isl = np.array([_tokens(row, isl_name, where) for where, row in rows], np.int64)
    osl = np.array([_tokens(row, osl_name, where) for where, row in rows], np.int64)
    order = np.argsort(arrival_s, kind="stable")
    return Trace(arrival_s[order] - arrival_s[order[0]], isl[order], osl[order])


def read_dataset(path: Path) -> list[Text]:
    """A JSON list of {input, instruction, output}, the last two optional; prompts are input and instruction.

    The prompt is put together as the clients of the TensorRT-LLM backend do it. Raises FileError.
    """
    content = _json(_read(path), str(path))
    if not isinstance(content, list) or not content:
        raise FileError(f'{path}: a data set is a JSON list of {{"input", "instruction", "output"}}')
    return [_text(item, f"{path}, item {number}") for number, item in enumerate(content, start=1)]


def _text(item: Any, where: str) -> Text:
    if not isinstance(item, dict):
        raise FileError(f"{where}: not an object with the keys input, instruction, output")
    parts = {key: item.get(key, "") for key in ("input", "instruction", "output")}
    for key, value in parts.items():
        if not isinstance(value, str):
            raise FileError(f"{where}, key {key!r}: text is needed, this is {type(value).__name__}")
        if any("\ud800" <= character <= "\udfff" for character in value):
            raise FileError(f"{where}, key {key!r}: half a surrogate pair, which is no text; remove it")
    prompt = " ".join(part for part in (parts["input"], parts["instruction"]) if part)
    if not prompt.strip():
        raise FileError(f"{where}, key 'input': is missing or empty")
    return Text(prompt, parts["output"])


def _csv_rows(path: Path, headers: tuple[tuple[str, ...], ...]) -> Iterator[tuple[str, Row]]:
    """(where, row) of each line of a CSV that has all columns of one of `headers`."""
    reader = csv.DictReader(StringIO(_read(path), newline=""))
    row = None
    try:
        found = set(reader.fieldnames or ())
        if not any(set(header) <= found for header in headers):
            wanted = " or ".join(", ".join(header) for header in headers)
            raise FileError(f"{path}: no header with the columns {wanted}")
        for row in reader:
            yield f"{path}, line {reader.line_num}", row
    except csv.Error as error:
        raise FileError(f"{path}, line {reader.line_num}: not CSV ({error})") from None
    if row is None:
        raise FileError(f"{path}: the file has a header and no rows")


def _json_rows(path: Path) -> Iterator[tuple[str, Row]]:
    names = TRACE_HEADERS[-1]
    row = None
    for number, line in enumerate(_read(path).splitlines(), start=1):
        where = f"{path}, line {number}"
        if line.strip():
            row = _json(line, where)
            if not isinstance(row, dict) or not set(names) <= set(row):
                raise FileError(f"{where}: not an object with the keys {', '.join(names)}")
            yield where, row
    if row is None:
        raise FileError(f"{path}: the file is empty")


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FileError(f"{where}: not JSON ({error})") from None


def _read(path: Path) -> str:
    try:
        size_bytes = path.stat().st_size
        if size_bytes > LARGEST_FILE_BYTES:
            limit = f"{LARGEST_FILE_BYTES >> 20} MiB"
            raise FileError(f"{path}: {size_bytes >> 20} MiB are more than the {limit} read; cut the file")
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise FileError(f"{path}: no such file; correct the path, which starts at the plan's folder") from None
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{path}: cannot be read ({error})") from None


def _number(row: Row, name: str, where: str) -> float:
    try:
        value = float(row[name])
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise FileError(f"{where}, {name}: a number of 0 or more is needed (got {row[name]!r})")
    return value


def _tokens(row: Row, name: str, where: str) -> int:
    value = _number(row, name, where)
    if not (value.is_integer() and 1 <= value <= LONGEST_TOKENS):
        raise FileError(f"{where}, {name}: a whole number from 1 to {LONGEST_TOKENS} is needed (got {row[name]!r})")
    return int(value)


def _milliseconds(row: Row, name: str, where: str) -> float:
    return _number(row, name, where) / 1000


def _date(row: Row, name: str, where: str) -> float:
    try:
        # without a zone both ends of a difference are read alike, which is all that counts
        return (datetime.fromisoformat(row[name]).replace(tzinfo=None) - datetime(2000, 1, 1)).total_seconds()
    except (TypeError, ValueError):
        raise FileError(f"{where}, {name}: a date and time is needed (got {row[name]!r})") from None


_SECONDS: dict[str, Callable[[Row, str, str], float]] = {
    "arrival_s": _number,
    "TIMESTAMP": _date,
    "timestamp": _milliseconds,
}
