"""The results of a study (CSV): a row per scenario, written as it is answered, so that a study can be interrupted.

Rows hold the whole question and its answer. While the study runs they stand in the order in which they were answered;
at its end the file is written anew in the order of the scenarios. `inputs` is a hash of what the answers hang on beside
the question: the points that were measured, and this package.
"""

from __future__ import annotations

import csv
import io
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from sizing.errors import ScenarioError
from sizing.faults import LONGEST_QUOTE
from sizing.study import answers, scenarios
from sizing.study.answers import Cell
from sizing.study.scenarios import Scenario

COLUMNS = ("scenario", "inputs", *scenarios.COLUMNS, *answers.COLUMNS)


class Table:
    """The file at `path` as it grows; `done` are the places of the scenarios (from 0) whose rows it holds.

    Use as ``with``. Raises ScenarioError when the file is there but of another study, that is of other questions or
    `inputs`, or no table of results, and when it cannot be written.
    """

    def __init__(self, path: Path, study: Sequence[Scenario], inputs: str) -> None:
        self._path, self._study, self._inputs = path, study, inputs
        self._rows = _rows(path, study, inputs)
        _replace(path, self._rows)  # a row cut off in the middle is dropped

    @property
    def done(self) -> frozenset[int]:
        return frozenset(self._rows)

    @property
    def answered(self) -> int:
        """Rows with a count of GPUs."""
        return sum(row["gpus"] != "" for row in self._rows.values())

    def __enter__(self) -> Self:
        with _writing(self._path):
            self._file = self._path.open("a", newline="", encoding="utf-8")
        return self

    def add(self, place: int, answer: Mapping[str, Cell]) -> None:
        """Write the answer to the scenario at `place`, at once."""
        own: dict[str, Cell] = {"scenario": place + 1, "inputs": self._inputs}
        self._rows[place] = _texts(own | self._study[place].model_dump() | dict(answer))
        with _writing(self._path):
            self._file.write(_line(self._rows[place].values()))
            self._file.flush()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _writing(self._path):
            self._file.close()
        if len(self._rows) == len(self._study):
            _replace(self._path, self._rows)


def _rows(path: Path, study: Sequence[Scenario], inputs: str) -> dict[int, dict[str, str]]:
    """The complete rows of the file, by place; empty when it does not exist."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise ScenarioError(f"--out {path}: is no file that could hold a table of results; give another name")
        held = path.read_bytes()
        text = held[: held.rfind(b"\n") + 1].decode()  # the last row may be cut off, even inside a letter
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ScenarioError(f"{path}: cannot be read as a table of results ({reason})") from None
    if _line(COLUMNS).encode().startswith(held):
        return {}
    rows = {}
    for row in _table(path, text):
        place = int(row["scenario"]) - 1 if re.fullmatch("[0-9]{1,9}", row["scenario"]) else -1
        where = f"{path}: row {row['scenario'][:LONGEST_QUOTE]}"
        if not 0 <= place < len(study) or _question(row) != _texts(study[place].model_dump()):
            raise ScenarioError(f"{where} is of another study; give --out another name")
        if row["inputs"] != inputs:
            raise ScenarioError(
                f"{where} is of another study: the same question, but other points or another version of this package; "
                "give --out another name"
            )
        rows[place] = {column: row[column] for column in COLUMNS}
    return rows


def _table(path: Path, text: str) -> list[dict[str, str]]:
    reader = csv.DictReader(io.StringIO(text, newline=""))
    with suppress(csv.Error):
        if tuple(reader.fieldnames or ()) == COLUMNS:
            return list(reader)
    raise ScenarioError(f"{path}: is no table of results of this version; give --out another name")


def _replace(path: Path, rows: Mapping[int, Mapping[str, str]]) -> None:
    """Write all rows in the order of the scenarios; the file is the old one or the new one at any moment."""
    fresh = path.with_name(path.name + ".new")
    with _writing(path):
        with fresh.open("w", newline="", encoding="utf-8") as file:
            file.write(_line(COLUMNS))
            file.writelines(_line(rows[place].values()) for place in sorted(rows))
        fresh.replace(path)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ScenarioError(f"--out {path}: cannot be written ({error.strerror or error})") from None


def _question(row: Mapping[str, str]) -> dict[str, str]:
    return {column: row[column] for column in scenarios.COLUMNS}


def _texts(row: Mapping[str, Cell]) -> dict[str, str]:
    """Cells as text on one line, floats in full so that equal results are equal files; unknown is empty."""
    return {column: "" if value is None else " ".join(str(value).split()) for column, value in row.items()}


def _line(cells: object) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow(cells)  # type: ignore[arg-type]
    return out.getvalue()
