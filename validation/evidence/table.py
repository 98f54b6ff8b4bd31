"""The table of evidence: a row for each claim, what was found beside the goal; for terminals, machines and the docs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.markup import escape
from rich.table import Table

from sizing.numbers import Floats, percent


@dataclass(frozen=True, slots=True)
class EvidenceRow:
    """One claim. `median`, `p90` and `worst` are shares (0.02 is 2 %) of the absolute error over `n` answers, NaN where
    the metric has none. `data`: what was taken for the truth. `holds`: whether `goal` was reached; None without a goal
    or without data, and then `note` says why.
    """

    name: str
    data: str
    n: int
    metric: str
    median: float
    p90: float
    worst: float
    goal: str = ""
    holds: bool | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Goal:
    """What errors may be, as shares; `optimistic`: the most answers that may promise over 5 % too much."""

    median: float
    p90: float = math.inf
    optimistic: float = math.inf

    def __str__(self) -> str:
        parts = {"median": self.median, "p90": self.p90, "> 5 % optimistic in": self.optimistic}
        return ", ".join(f"{name} ≤ {100 * share:g} %" for name, share in parts.items() if share < math.inf)


OPTIMISTIC = 0.05
COVERS = (0.85, 0.95)
"""How often 90 % bands should hold: too wide a band is of no use either."""
ENOUGH = 20
"""Answers below which a goal on shares of them is neither reached nor missed."""


def row_of_errors(
    name: str, data: str, metric: str, errors: Sequence[float], goal: Goal | None = None, note: str = ""
) -> EvidenceRow:
    """The row of signed relative errors, above 0 where the answer promises more than the truth (needs at least one).

    An infinite error is a wrong verdict, such as a load called saturated that was served: it counts like any other.
    """
    if not errors:
        return missing(name, data, metric, "no answer to judge", goal)
    size = np.abs(errors)
    median, p90 = (float(np.quantile(size, share, method="higher")) for share in (0.5, 0.9))
    optimistic = float(np.mean(np.array(errors) > OPTIMISTIC))
    holds = None
    if goal is not None and len(errors) >= ENOUGH:
        holds = median <= goal.median and p90 <= goal.p90 and optimistic <= goal.optimistic
    note = "; ".join(filter(None, [f"> 5 % optimistic in {percent(optimistic, 1)}", note]))
    worst = float(size.max())
    return EvidenceRow(name, data, len(errors), metric, median, p90, worst, str(goal or ""), holds, note)


def beside(row: EvidenceRow, rival: str, errors: Sequence[float], never_worse: bool = False) -> EvidenceRow:
    """The row with the errors of a simpler way on the same questions in its note; `never_worse`: being at least as good
    as that in median and p90 is a goal too."""
    size = np.abs(errors)
    median, p90 = (float(np.quantile(size, share, method="higher")) for share in (0.5, 0.9))
    row = noted(row, f"{rival} {shown(median)} / {shown(p90)}")
    if not never_worse:
        return row
    holds = row.median <= median and row.p90 <= p90 and row.holds is not False if row.n >= ENOUGH else None
    return replace(row, goal=", ".join(filter(None, [row.goal, f"no worse than {rival}"])), holds=holds)


def noted(row: EvidenceRow, note: str) -> EvidenceRow:
    """The row with one more remark."""
    return replace(row, note="; ".join(filter(None, [row.note, note])))


def of_saturated(errors: Sequence[float]) -> str:
    """How many loads were called saturated that were served; empty where none was."""
    count = sum(map(math.isinf, errors))
    return f"{count} called saturated that were served" if count else ""


def row_of_band(
    name: str,
    data: str,
    metric: str,
    errors: Sequence[float] | Floats,
    held: Sequence[bool] | NDArray[np.bool_],
    half_widths: Sequence[float] | Floats,
    covers: tuple[float, float] = COVERS,
) -> EvidenceRow:
    """How often 90 % bands held the truth, which should be in the shares `covers`: too wide a band is of no use either.
    `half_widths`: of the bands, as shares; `errors`: of the answers in their middle."""
    n, covered = len(errors), float(np.mean(held))
    likely = (covered * n + 0.5) / (n + 1)
    luck = math.sqrt(likely * (1 - likely) / n)
    size = np.abs(errors)
    ends = float(np.median(size)), float(np.quantile(size, 0.9)), float(size.max())
    goal = f"covers {percent(covers[0])} to {percent(covers[1])}"
    holds = covers[0] <= covered <= covers[1] if n >= ENOUGH else None
    width = percent(float(np.mean(half_widths)), 1)
    note = f"covers {percent(covered, 1)} (standard error {percent(luck)}), mean width ± {width}"
    return EvidenceRow(name, data, n, metric, *ends, goal, holds, note)


def missing(name: str, data: str, metric: str, why: str, goal: Goal | str | None = None) -> EvidenceRow:
    """The row of a claim that could not be checked."""
    return EvidenceRow(name, data, 0, metric, math.nan, math.nan, math.nan, str(goal or ""), None, why)


HEADER = ("claim", "against", "n", "metric", "median", "p90", "worst", "goal", "holds", "note")


def cells(row: EvidenceRow) -> tuple[str, ...]:
    """The row as text, in the order of HEADER."""
    holds = {True: "yes", False: "no", None: ""}[row.holds]
    errors = (shown(value) for value in (row.median, row.p90, row.worst))
    return (row.name, row.data, str(row.n), row.metric, *errors, row.goal, holds, row.note)


def shown(share: float) -> str:
    """A share in per cent; empty where there is none."""
    if math.isnan(share):
        return ""
    return percent(share, 1) if share < math.inf else "∞"


def drawn(rows: Iterable[EvidenceRow]) -> Table:
    """For a terminal: each row's note below it."""
    title = "Evidence: relative errors |answer - truth| / truth"
    table = Table("claim", "n", "median", "p90", "worst", "goal", "holds", title=title, title_justify="left")
    for row in rows:
        name, data, n, metric, *errors, goal, holds, note = map(escape, cells(row))
        claim = f"{name}\n[dim]{metric}, against {data}; {note}[/dim]"
        table.add_row(claim, n, *errors, goal, holds, style="red" if row.holds is False else None, end_section=True)
    return table


def verdict(lines: Iterable[Sequence[str]]) -> str:
    """How many goals hold, in a sentence. `lines`: rows as text (cells)."""
    goals = [line[HEADER.index("holds")] for line in lines if line[HEADER.index("goal")]]
    unjudged = f", {goals.count('')} not judged" if "" in goals else ""
    return f"Goals: {goals.count('yes')} of {len(goals)} hold, {goals.count('no')} missed{unjudged}."


def markdown(lines: Iterable[Sequence[str]]) -> str:
    """For the documentation. `lines`: rows as text (cells)."""
    lines = [HEADER, ("---",) * len(HEADER), *lines]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def as_json(rows: Iterable[EvidenceRow]) -> list[dict[str, Any]]:
    """For machines: unknown numbers are None, infinite ones "Infinity", which JSON has no number for."""
    return [{name: _as_json(value) for name, value in asdict(row).items()} for row in rows]


def _as_json(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "Infinity"
    return value
