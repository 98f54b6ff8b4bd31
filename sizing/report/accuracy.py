"""How well this planner predicts, as its table of evidence (docs/accuracy.md) has it: read there, never typed in."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from sizing.numbers import significant
from sizing.plan import Fleet
from sizing.report.model import Evidence

TABLE = Path(__file__).parents[2] / "docs" / "accuracy.md"
CHOSEN = (
    "systems with exact answers",
    "largest rate, fit and simulation",
    "largest rate, long prompts and long answers measured",
    "largest rate, fit and formula",
    "replicas, planned with the true law",
    "dense servers",
    "two highest rates, one law, simulated",
    "second half of a trace",
    "static batches",
)
"""Claims that speak of answers such as a report's."""
COLUMNS = 9


@cache
def evidence(path: Path = TABLE) -> tuple[Evidence, ...]:
    """The chosen rows of the table of evidence, in its order, missed goals included; none where the file is missing."""
    if not path.is_file():
        return ()
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = [cells(line) for line in lines if line.startswith("| ")]
    return tuple(Evidence(*row[:COLUMNS]) for row in rows if len(row) > COLUMNS and row[0] in CHOSEN)


def cells(line: str) -> list[str]:
    """The cells of a row of a markdown table, in which a bar may be written ``\\|``."""
    parts = line.replace("\\|", "\0").strip().strip("|").split("|")
    return [part.strip().replace("\0", "|") for part in parts]


def accuracy(fleet: Fleet) -> str:
    """What is known of how far off this answer may be."""
    sigma = significant(100 * fleet.candidate.relative_sigma)
    checked = "checked by simulation" if fleet.verified else "by formula, not checked by simulation"
    start = f"The count is {checked}; the law of the engine's times has a standard error of {sigma} %"
    if fleet.basis == "estimated":
        return (
            f"{start}. Nothing was measured: day-zero estimates are outside the table of evidence. "
            "Measure before buying."
        )
    if fleet.basis == "extrapolated":
        return f"{start} where it was measured; this answer lies outside. Measure nearer to it before buying."
    return f"{start}, inside the range that was measured."
