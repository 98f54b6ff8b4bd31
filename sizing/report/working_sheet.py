"""The sheet that works the count out again: change the load, the headroom or the spares, and GPUs and cost follow."""

from __future__ import annotations

from sizing.report.book import Book, Worksheet
from sizing.report.model import Configuration, Report
from sizing.report.quantity import Quantity

LOAD, HEADROOM, SPARE = "$B$4", "$B$5", "$B$6"
FIRST_ROW = 9
"""Of the table, counted from 0: row 10 on screen."""
COLUMNS = (
    "Configuration",
    "Capacity of a replica (requests/s)",
    "Planned for a replica (requests/s)",
    "Load ÷ planned",
    "Working replicas",
    "Spare replicas",
    "Replicas",
    "GPUs of a replica",
    "GPUs",
    "Requests/s per GPU",
    "Price per GPU-hour",
    "Cost per hour",
    "Working replicas added",
)
SHARES = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
"""Of the load, for the chart of GPUs against load."""
ROUNDING = "(1-1E-9)"
"""A quotient this little above a whole number is that number: the planner's own allowance for rounding."""
HOW = (
    "Change a yellow cell: everything below follows. The capacity of a replica stays as it was found for the planned "
    "load and lengths; for other lengths or limits ask the planner again."
)
ADDED = "Added: replicas beyond the division, where latencies jump just above the planned load. Mostly 0."


def working_sheet(book: Book, report: Report) -> None:
    """The whole sheet; without an answer, or without the question, it says so."""
    sheet = book.sheet("Working", (34, *(13,) * (len(COLUMNS) - 1)))
    book.put(sheet, 0, 0, "Working", "title")
    load, headroom, spare = (report.given(key) for key in ("rate_per_s", "headroom", "spare"))
    if report.answer is None or load is None or headroom is None or spare is None:
        book.put(sheet, 2, 0, "There is no count to work out.", "quiet")
        return
    book.put(sheet, 1, 0, report.working)
    book.put(sheet, 2, 0, HOW, "quiet")
    asked = (
        ("Planned load (requests/s)", load),
        ("Headroom (share)", headroom),
        ("Spare replicas", spare),
    )
    for row, (name, value) in enumerate(asked, start=3):
        book.put(sheet, row, 0, name)
        sheet.write_number(row, 1, value, book.format("input"))
    book.headings(sheet, FIRST_ROW - 1, COLUMNS, [column > 0 for column in range(len(COLUMNS))])
    for row, found in enumerate(report.configurations, start=FIRST_ROW):
        configuration_row(book, sheet, row, found, load)
    after = FIRST_ROW + len(report.configurations)
    book.put(sheet, after, 0, ADDED, "quiet")
    loads_table(book, sheet, after + 2, report.answer, load)


def configuration_row(book: Book, sheet: Worksheet, row: int, found: Configuration, load: float) -> None:
    """One configuration: capacity, GPUs of a replica and price as numbers, everything else as formulas."""
    number, basis = row + 1, found.basis
    planned = found.planned_per_replica
    replicas = Quantity((found.working.value or 0) + (found.spare.value or 0), "replicas", basis)
    book.put(sheet, row, 0, found.label)
    book.put(sheet, row, 1, found.capacity_per_replica)
    book.put(sheet, row, 7, Quantity(found.gpus_per_replica, "GPUs", basis))
    book.put(sheet, row, 10, found.price if found.price.value is not None else "")
    book.put(sheet, row, 12, Quantity(found.extra_working, "replicas", basis))
    quotient = Quantity(load / planned.value if planned.value else None, "", basis)
    for column, formula, value in (
        (2, f"=B{number}*(1-{HEADROOM})", planned),
        (3, f"={LOAD}/C{number}", quotient),
        (4, f"=ROUNDUP(D{number}*{ROUNDING},0)+M{number}", found.working),
        (5, f"={SPARE}", found.spare),
        (6, f"=E{number}+F{number}", replicas),
        (8, f"=G{number}*H{number}", found.gpus),
        (9, f"=C{number}/H{number}", found.planned_per_gpu),
        (11, f'=IF(K{number}="","",I{number}*K{number})', found.cost_per_hour),
    ):
        book.formula(sheet, (row, column), formula, value)


def loads_table(book: Book, sheet: Worksheet, row: int, found: Configuration, load: float) -> None:
    """GPUs of the answer at shares of the load, live, and their chart."""
    book.put(sheet, row, 0, "GPUs of the answer against load", "heading")
    book.headings(sheet, row + 1, ("Share of the load", "Load (requests/s)", "GPUs"), (True, True, True))
    first, answer = row + 2, FIRST_ROW + 1
    for at, share in enumerate(SHARES, start=first):
        book.put(sheet, at, 0, Quantity(share, "share", "given"))
        gpus = Quantity(gpus_at(found, load * share), "GPUs", found.basis)
        load_there = Quantity(load * share, "requests/s", "given")
        book.formula(sheet, (at, 1), f"=A{at + 1}*{LOAD}", load_there, "General")
        working = f"ROUNDUP(B{at + 1}/$C${answer}*{ROUNDING},0)+$M${answer}"
        book.formula(sheet, (at, 2), f"=({working}+{SPARE})*$H${answer}", gpus)
    last = first + len(SHARES) - 1
    chart = book.workbook.add_chart({"type": "column"})
    chart.add_series(
        {
            "name": "GPUs",
            "categories": ["Working", first, 1, last, 1],
            "values": ["Working", first, 2, last, 2],
            "fill": {"color": "#0072B2"},
            "data_labels": {"value": True},
        }
    )
    chart.set_title({"name": "GPUs against load", "name_font": {"size": 12}})
    chart.set_x_axis({"name": "Load (requests/s)"})
    chart.set_y_axis({"name": "GPUs, spares included", "min": 0})
    chart.set_legend({"none": True})
    alt = "GPUs of the answer at shares of the planned load, worked out from the cells beside it."
    sheet.insert_chart(row, 4, chart, {"description": alt})


def gpus_at(found: Configuration, load: float) -> float:
    """GPUs of a configuration at another load, its replica's capacity kept: what the formula gives."""
    planned = found.planned_per_replica.value or 0.0
    if planned <= 0:
        return 0.0
    quotient = load / planned * (1 - 1e-9)
    whole = int(quotient) + (quotient > int(quotient))
    return (whole + found.extra_working + (found.spare.value or 0)) * found.gpus_per_replica
