"""Length distributions other than the lognormal: uniform, a few fixed lengths, a histogram, lengths as recorded.

All of them have one form: cells of lengths, in each of which every whole number is equally likely.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sizing.errors import LONGEST_QUOTE, ScenarioError, one_line
from sizing.numbers import Floats

MOST_CELLS = 256
"""Most cells of a law. If recorded lengths have more different values, they go into as many bins, a few per cent
wide."""
MOST_TOKENS = 10**9
MOST_WEIGHT = 1e15
MOST_CV = 100
LARGEST_FILE_BYTES = 64 * 2**20
LOGNORMAL = "lognormal"
"""The distribution of lengths given only by a mean and a coefficient of variation."""
FORMS = "uniform:LOW-HIGH, points:TOKENS@SHARE,... or histogram:LOW-HIGH@COUNT,..."
HEADERS = (("tokens",), ("tokens", "count"), ("low", "high", "count"))
_CELL = re.compile(r"([0-9]{1,10})(?:-([0-9]{1,10}))?(?:@([0-9.eE+-]{1,32}))?")

Cell = tuple[int, int, float]


@dataclass(frozen=True, slots=True)
class TokenLaw:
    """The distribution of a length: `cells` (low, high, weight), ascending and disjoint.

    A length falls into a cell with a probability in proportion to its weight, and is there any whole number of tokens
    from low to high, ends included, equally often. `mean` in tokens; `cv`: standard deviation over mean. Both are
    exact. Raises ScenarioError for cells that do not form a distribution.

    >>> law = TokenLaw.parse("points:200@0.8,4000@0.2")
    >>> law.mean, str(law)
    (960.0, 'points:200@0.8,4000@0.2')
    """

    cells: tuple[Cell, ...]
    mean: float = field(init=False, compare=False)
    cv: float = field(init=False, compare=False)
    _low: Floats = field(init=False, compare=False, repr=False)
    _width: Floats = field(init=False, compare=False, repr=False)
    _share: Floats = field(init=False, compare=False, repr=False)
    _reached: Floats = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_cells(self.cells)
        if len(self.cells) == 1:  # its weight means nothing
            object.__setattr__(self, "cells", ((*self.cells[0][:2], 1.0),))
        low, high, weight = np.array(self.cells, dtype=float).T
        share = weight / weight.sum()
        middle, width = (low + high) / 2, high - low + 1
        mean = float(share @ middle)
        variance = float(share @ ((middle - mean) ** 2 + (width**2 - 1) / 12))
        if variance > (MOST_CV * mean) ** 2:
            raise ScenarioError(f"the standard deviation is more than {MOST_CV} times the mean")
        found: dict[str, Any] = {"mean": mean, "cv": math.sqrt(variance) / mean}
        found |= {"_low": low, "_width": width, "_share": share, "_reached": np.cumsum(share)}
        for name, value in found.items():
            object.__setattr__(self, name, value)

    @classmethod
    def parse(cls, text: str) -> TokenLaw | None:
        """Read ``uniform:100-300``, ``points:200@0.8,4000@0.2`` or ``histogram:1-500@10,501-2000@3``; None for
        ``lognormal``. Without shares all are equal. Raises ScenarioError, one line that quotes the text."""
        return _parsed(text)

    @classmethod
    def of(cls, tokens: ArrayLike, counts: ArrayLike | None = None) -> TokenLaw:
        """The distribution of recorded lengths, whole and at least 1; `counts` of each, 1 if not given.

        Exact for up to MOST_CELLS different lengths; more are put into bins of equal width in the logarithm.
        """
        values, place = np.unique(np.asarray(tokens, dtype=np.int64), return_inverse=True)
        weight = np.bincount(place, None if counts is None else np.asarray(counts, dtype=float)).astype(float)
        values, weight = values[weight > 0], weight[weight > 0]
        if not len(values):
            raise ScenarioError("lengths: none was recorded")
        if len(values) <= MOST_CELLS:
            return cls(tuple((int(one), int(one), float(many)) for one, many in zip(values, weight, strict=True)))
        edges = np.unique(np.rint(np.geomspace(max(values[0], 1), values[-1] + 1, MOST_CELLS + 1)).astype(np.int64))
        total = np.bincount(np.searchsorted(edges, values, side="right") - 1, weight, len(edges) - 1)
        bins = zip(edges[:-1], edges[1:] - 1, total, strict=True)
        return cls(tuple((int(low), int(high), float(many)) for low, high, many in bins if many > 0))

    def at(self, uniform: Floats) -> Floats:
        """Whole tokens at quantiles from 0 to 1; shape as given."""
        cell = np.minimum(np.searchsorted(self._reached, uniform, side="right"), len(self._low) - 1)
        share = self._share[cell]
        within = (uniform - self._reached[cell]) / share + 1
        return np.asarray(self._low[cell] + np.clip(np.floor(within * self._width[cell]), 0, self._width[cell] - 1))

    def nodes(self, count: int) -> tuple[Floats, Floats]:
        """Quantiles that represent the law in sums, about `count` of them, and their shares: never across two cells."""
        parts = np.minimum(self._width, np.maximum(np.rint(self._share * count), 4)).astype(np.int64)
        number = np.concatenate([np.arange(each) for each in parts])
        share, start = (np.repeat(each, parts) for each in (self._share / parts, self._reached - self._share))
        return start + (number + 0.5) * share, share

    @property
    def kind(self) -> str:
        """Uniform, points or histogram."""
        if all(low == high for low, high, _ in self.cells):
            return "points"
        return "uniform" if len(self.cells) == 1 else "histogram"

    @property
    def parameters(self) -> str:
        """The text without the kind."""
        alike = all(weight == 1 for _, _, weight in self.cells)
        return ",".join(
            (f"{low}" if low == high else f"{low}-{high}") + ("" if alike else f"@{weight!r}".removesuffix(".0"))
            for low, high, weight in self.cells
        )

    def __str__(self) -> str:
        return f"{self.kind}:{self.parameters}"


@lru_cache(maxsize=256)
def _parsed(text: str) -> TokenLaw | None:
    """Cached, because a study uses the same law many times."""
    if text.strip() == LOGNORMAL:
        return None
    kind, _, rest = text.strip().partition(":")
    try:
        if kind not in ("uniform", "points", "histogram") or not rest:
            raise ScenarioError(f"write it as {FORMS}, or {LOGNORMAL}")
        words = rest.split(",", MOST_CELLS)
        if len(words) > MOST_CELLS:
            raise ScenarioError(f"more than {MOST_CELLS} lengths or ranges: join some, or give a histogram as a file")
        law = TokenLaw(tuple(sorted(_cell(word.strip()) for word in words)))
        if kind == "uniform" and (len(words) > 1 or "@" in rest):
            raise ScenarioError("uniform takes one range, for instance uniform:100-300")
        if kind == "points" and any(low < high for low, high, _ in law.cells):
            raise ScenarioError("points are single lengths, for instance points:200@0.8,4000@0.2")
    except ScenarioError as error:
        raise ScenarioError(f"lengths {one_line(text, LONGEST_QUOTE)!r}: {error}") from None
    return law


def check_cells(cells: Iterable[Cell]) -> None:
    """Raise ScenarioError for cells that do not form a distribution."""
    before = 0
    for number, (low, high, weight) in enumerate(cells, start=1):
        if not 1 <= low <= high <= MOST_TOKENS:
            raise ScenarioError(f"{low}-{high}: a range goes up, within 1 to {MOST_TOKENS:,} tokens")
        if not 0 < weight <= MOST_WEIGHT:
            raise ScenarioError(f"the share of {low} must be above 0 and at most {MOST_WEIGHT:g}, got {weight:g}")
        if low <= before:
            raise ScenarioError(f"{low} is in two of its ranges")
        if number > MOST_CELLS:
            raise ScenarioError(f"more than {MOST_CELLS} lengths or ranges: join some")
        before = high
    if not before:
        raise ScenarioError("it has no lengths")


def _cell(word: str) -> Cell:
    found = _CELL.fullmatch(word)
    try:
        weight = float(found[3] or 1) if found else math.nan
    except ValueError:
        weight = math.nan
    if not found or math.isnan(weight):
        raise ScenarioError(f"{one_line(word, 20)!r} is no length or range with a share: write 200@0.8 or 100-300@12")
    return int(found[1]), int(found[2] or found[1]), weight


def with_file(text: str, folder: Path | str = "") -> str:
    """The text of a law, ``histogram:FILE.csv`` replaced by the file's contents; `folder`: where its path starts.

    The file has the column `tokens`, one length a row, or `tokens` and `count`, or `low`, `high` and `count`. Raises
    ScenarioError that names the file and the line.
    """
    kind, _, name = text.strip().partition(":")
    if kind != "histogram" or not name.lower().endswith(".csv"):
        return text
    return str(read_law(Path(folder) / name))


def read_law(path: Path) -> TokenLaw:
    """The law in a CSV file of lengths, see `with_file`."""
    try:
        about = path.stat()
        if about.st_size > LARGEST_FILE_BYTES:
            raise ScenarioError(f"{path}: more than the {LARGEST_FILE_BYTES >> 20} MiB read; cut the file")
        return _held(path, about.st_mtime_ns)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "the path or the text has characters that it cannot have"
        raise ScenarioError(f"{path}: the lengths cannot be read: {why}") from None
    except csv.Error as error:
        raise ScenarioError(f"{path}: not CSV ({error})") from None


@lru_cache(maxsize=16)
def _held(path: Path, _: int) -> TokenLaw:
    """The law of a file in its current version; cached, because every scenario of a study reads it."""
    rows = list(csv.reader(path.read_text(encoding="utf-8-sig").splitlines()))
    header = tuple(cell.strip() for cell in rows[0]) if rows else ()
    if header not in HEADERS:
        raise ScenarioError(f"{path}: the header must be tokens; tokens,count; or low,high,count")
    found = [_numbers(row, len(header), f"{path}, line {line}") for line, row in enumerate(rows[1:], start=2) if row]
    try:
        if len(header) == 3:
            return TokenLaw(tuple(sorted((int(low), int(high), count) for low, high, count in found if count)))
        return TokenLaw.of(*np.array(found).reshape(-1, len(header)).T)
    except ScenarioError as error:
        raise ScenarioError(f"{path}: {error}") from None


def _numbers(row: list[str], width: int, where: str) -> list[float]:
    """The cells of a row: whole tokens, and a count of 0 or more in the last column where there are several."""
    try:
        values = [float(cell) for cell in row]
    except ValueError:
        values = []
    lengths = values[: max(width - 1, 1)]
    whole = all(value.is_integer() and 1 <= value <= MOST_TOKENS for value in lengths)
    if len(values) != width or not whole or not all(0 <= value < math.inf for value in values):
        raise ScenarioError(f"{where}: whole tokens of 1 or more are needed, and counts of 0 or more")
    return values
