"""Tables of what stands beside count and latencies: ways out where nothing meets the SLA, and GPUs over a day."""

from __future__ import annotations

from collections.abc import Iterator

from sizing.report.model import Report
from sizing.report.model_beside import Day, WayOut
from sizing.report.quantity import Quantity
from sizing.report.tables import Cell, Table
from sizing.report.words import NONE


def ways_out(report: Report) -> Table:
    """What each limit would have to give alone."""
    return Table(
        "What would have to give",
        ("Limit", "Asked", "Smallest that works", "Roomy", "Kept as asked at", "Configuration"),
        tuple(map(way_out_row, report.ways_out)),
        empty="Not worked out.",
        note="One limit at a time, the others kept. Smallest: from there on, by simulation, the configuration meets "
        "the SLA; its replicas are then all but idle, so it takes very many. Roomy: they carry half of what they can.",
    )


def way_out_row(way: WayOut) -> tuple[Cell, ...]:
    """One limit; words where it is met as it is, or where no value of it helps."""
    lower = f"p{way.kept_at} ({way.kept_by})" if way.kept_at is not None else NONE
    if way.kept:
        return way.name, way.limit, "kept as asked", NONE, lower, way.configuration
    if way.smallest.value is None:
        return way.name, way.limit, "none alone", NONE, lower, "another limit is missed too"
    return way.name, way.limit, way.smallest, way.roomy, lower, way.configuration


def together(report: Report) -> Table:
    """What all limits would have to give where none alone will do."""
    return Table(
        "Together",
        ("Limit", "Asked", "Smallest that works", "Configuration"),
        tuple((row.name, row.limit, row.smallest, row.configuration) for row in report.together),
        note="No limit alone will do: all of these must give, and then this configuration meets the SLA.",
    )


def day_figures(report: Report) -> Table:
    """What following the load takes and saves over a day."""
    return Table(
        "GPU-hours",
        ("Figure", "Value"),
        tuple(day_rows(report.day)) if report.day else (),
        empty="No day was asked about.",
        note="Hours times GPUs that run, spares included. Replicas are taken to start and stop at once.",
        fixed=True,
    )


def day_rows(day: Day) -> Iterator[tuple[str, Quantity]]:
    """Figures of a day; costs where a price is known."""
    yield "GPUs of the busiest hour", day.constant_gpus
    yield "GPU-hours a day, following the load", day.gpu_hours
    yield "GPU-hours a day, the busiest hour's fleet all day", day.constant_gpu_hours
    yield "Saved", day.saved
    if day.cost.value is not None:
        yield "Cost, following the load", day.cost
        yield "Cost, the busiest hour's fleet all day", day.constant_cost


def day_hours(report: Report) -> Table:
    """Load, replicas and GPUs of each hour."""
    return Table(
        "GPUs of each hour",
        ("Hour", "Requests/s", "Replicas", "GPUs"),
        report.day.hours if report.day else (),
        empty="No day was asked about.",
        note="Replicas and GPUs include the spares.",
    )
