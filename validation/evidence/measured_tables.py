"""Published measurements as rows of text: tables found in a folder by their column names, and cells as numbers."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from sizing.errors import PointsError

Cells = Mapping[str, str]
"""One row of a table: column name -> text."""


def find_table(folder: Path | None, columns: Sequence[str]) -> Path | None:
    """The first CSV file of `folder`, by name, whose header has all these columns; None where there is none."""
    if folder is None or not folder.is_dir():
        return None
    return next((path for path in sorted(folder.glob("*.csv")) if set(columns) <= set(_header(path))), None)


def _header(path: Path) -> list[str]:
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        return next(csv.reader(file), [])


def read_table(path: Path) -> Iterator[Cells]:
    """The rows of a CSV file, each with all columns. Raises PointsError for a row with cells missing."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            for number, row in enumerate(csv.DictReader(file), start=2):
                if None in row or None in row.values():
                    raise PointsError(f"{path}, row {number}: the number of cells differs from the header's")
                yield row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise PointsError(f"{path}: cannot be read as a CSV table ({error})") from None


def number(row: Cells, column: str) -> float:
    """The number in a cell; NaN for an empty one. Raises PointsError naming the column."""
    text = row[column].strip()
    try:
        return float(text) if text else math.nan
    except ValueError:
        raise PointsError(f"column {column!r}: {text!r} is not a number") from None


def seconds(row: Cells, column: str) -> float:
    """A cell in milliseconds (a column of ..._ms...) as seconds."""
    return number(row, column) / 1e3
