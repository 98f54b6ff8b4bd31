"""The tables of a report, the same in every format: cells are texts or quantities."""

from __future__ import annotations

from dataclasses import dataclass

from sizing.numbers import percent
from sizing.report.model import Configuration, LimitRow, Report
from sizing.report.model_beside import Effect
from sizing.report.quantity import Quantity
from sizing.report.words import NONE, capital, line, number_of, text_of

Cell = str | Quantity

KINDS = {
    "memory": "does not fit in memory",
    "sla": "misses the SLA",
    "no_data": "has no data",
    "cost": "cannot win",
    "too_few": "lacks GPUs",
}
"""Kinds of reasons to leave a configuration out, in words."""
METHOD = {"analytic": "formula", "simulation": "simulation"}


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under headings. `empty` is said where there are no rows; `note` below them; `wide` columns hold long text.

    `fixed`: numbers carry their unit in the cell (rows of different units), not in the heading.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    empty: str = "Nothing to show."
    note: str = ""
    wide: tuple[str, ...] = ()
    fixed: bool = False

    def text(self, cell: Cell) -> str:
        """A cell as people read it."""
        if isinstance(cell, str):
            return line(cell)
        return text_of(cell) if self.fixed else number_of(cell)

    def is_number(self, column: int) -> bool:
        """True for a column of numbers, which goes to the right."""
        return any(isinstance(row[column], Quantity) for row in self.rows)


def sla(report: Report) -> Table:
    """Each limit against its prediction at the planned load."""
    return Table(
        "SLA at the planned load",
        ("Limit", "Allowed", "Predicted", "90 % band", "Room", "Kept"),
        tuple(
            (row.name, row.limit, row.predicted, latency_band(row), row.room, "yes" if row.kept else "no")
            for row in report.limits
        ),
        empty="No limit was set.",
        note="Predicted for the planned load spread over the working replicas; room is what is left of the limit.",
    )


def latency_band(row: LimitRow) -> str:
    """The 90 % band of a predicted latency; open where the slow end cannot carry the load."""
    if row.high.value is None:
        return f"{number_of(row.low)} or more"
    return f"{number_of(row.low)} to {number_of(row.high)}"


def gpus_band(found: Configuration) -> str:
    """The 90 % band of a count of GPUs; open where the slow end misses the SLA with any number."""
    if found.gpus_high.value is None:
        return f"{number_of(found.gpus_low)} or more"
    return f"{number_of(found.gpus_low)} to {number_of(found.gpus_high)}"


def configurations(report: Report) -> Table:
    """The answer and its alternatives."""
    priced = any(found.cost_per_hour.value is not None for found in report.configurations)
    columns = ("GPU", "TP", "Precision", "GPUs", "90 % band", "Requests/s per GPU", "Room", "Bound by", "Basis")
    return Table(
        "Configurations that meet the SLA",
        (*columns, "Verified by", *(("Cost per hour",) if priced else ())),
        tuple(configuration_row(found, priced) for found in report.configurations),
        empty="No configuration meets the SLA.",
        note="The first row is the answer. Requests/s per GPU is planned, headroom kept; room is at the planned load.",
    )


def configuration_row(found: Configuration, priced: bool) -> tuple[Cell, ...]:
    """One row of the configurations."""
    tp = f"{found.tp} × PP{found.pp}" if found.pp > 1 else Quantity(found.tp, "", "given")
    return (
        *(found.gpu, tp, found.precision, found.gpus, gpus_band(found), found.planned_per_gpu, found.room),
        *(found.binding.partition(" <= ")[0], found.basis, METHOD[found.verified_by]),
        *((found.cost_per_hour,) if priced else ()),
    )


def left_out(report: Report) -> Table:
    """What was left out, and why."""
    return Table(
        "Left out",
        ("GPU", "TP", "Precision", "Reason", "Why"),
        tuple(
            (row.gpu, Quantity(row.tp, "", "given"), row.precision, KINDS.get(row.kind, row.kind), capital(row.why))
            for row in report.left_out
        ),
        empty="No configuration was left out.",
        wide=("Why",),
    )


def sensitivity(report: Report) -> Table:
    """GPUs with each input changed."""
    changes = [effect.change for effect in report.sensitivity[0].effects] if report.sensitivity else []
    return Table(
        "GPUs if one input changes",
        ("Input", "As asked", *map(in_words, changes)),
        tuple((row.name, text_of(row.value), *map(gpus_or_not, row.effects)) for row in report.sensitivity),
        empty="No sensitivities were worked out.",
        note=as_asked(report),
    )


def in_words(change: float) -> str:
    """A change without a sign in front, which would make a spreadsheet take the cell for a formula."""
    return f"{percent(abs(change))} {'less' if change < 0 else 'more'}"


def gpus_or_not(effect: Effect) -> Cell:
    """GPUs after a change, or that no number of them will do."""
    return effect.gpus if effect.gpus.value is not None else "SLA fails"


def as_asked(report: Report) -> str:
    """What the sensitivities are to be held against."""
    found = report.answer
    start = "Everything else is kept; changes are relative: 25 % more than 20 % headroom is 25 %."
    return start if found is None else f"As asked: {number_of(found.gpus)} GPUs. {start}"


def cost(report: Report) -> Table:
    """Cost and energy of the answer."""
    return Table(
        "Cost and energy",
        ("Figure", "Value"),
        tuple((row.name, row.value) for row in report.cost),
        empty="No price was given, and the power of this GPU is not in the catalogue.",
        note="Of the whole fleet, spares included; tokens and requests at the mean load all day. Energy: every GPU at "
        "its thermal design power, without servers and cooling.",
        fixed=True,
    )


def inputs(report: Report) -> Table:
    """What was asked."""
    return Table(
        "Inputs",
        ("Input", "Value"),
        tuple((row.name, row.value) for row in report.inputs),
        empty="The question is not in this report.",
        fixed=True,
    )


def sources(report: Report) -> Table:
    """Where the numbers of each configuration come from."""
    return Table(
        "Where the numbers come from",
        ("Configuration", "Basis", "Source", "Standard error", "Points", "Measured", "Digest of the data"),
        tuple(
            (
                *(row.configuration, row.basis, row.source, row.error),
                *(str(row.points) if row.points else NONE, dates(row.measured_from, row.measured_to), row.digest),
            )
            for row in report.sources
        ),
        empty="Nothing was sized.",
        note="Every number of a configuration has its basis; limits, load, lengths, margins and prices are given. "
        "Standard error: of the engine's times, as a share.",
        wide=("Source",),
    )


def dates(first: str, last: str) -> str:
    """Days of the first and the last measurement."""
    days = list(dict.fromkeys(day[:10] for day in (first, last) if day))
    return " to ".join(days) or NONE


def evidence(report: Report) -> Table:
    """How this planner fares against truth that is known."""
    return Table(
        "How well the planner predicts",
        ("Claim", "Against", "Cases", "Figure", "Median error", "p90", "Goal", "Holds"),
        tuple(
            (row.claim, row.against, row.n, row.metric, row.median, row.p90, row.goal, row.holds or NONE)
            for row in report.evidence
        ),
        empty="The table of evidence was not to hand.",
        note="From docs/accuracy.md, which says how each row was made; goals that were missed are among them.",
        wide=("Claim", "Against", "Goal"),
    )


def curve_data(report: Report) -> Table:
    """The numbers of the chart of latency against load."""
    curves = report.curves
    if curves is None:
        return Table("Latency against load", (), (), empty="There is no curve.")
    loads = (Quantity(value, curves.load.unit, curves.load.basis) for value in curves.load.values)
    latencies = (
        tuple(Quantity(value, curve.latency.unit, curve.latency.basis) for value in curve.latency.values)
        for curve in curves.curves
    )
    return Table(
        "Latency against load",
        ("Requests/s per replica", *(curve.name for curve in curves.curves)),
        tuple(zip(loads, *latencies, strict=True)),
        note=f"By formula; {NONE} where the queue grows without end.",
    )
