"""The workbook's sheet of GPUs over a day: the hours, their sums as live formulas, and a chart."""

from __future__ import annotations

from sizing.fleets.daily import HOURS
from sizing.report.book import Book, Worksheet
from sizing.report.model_beside import Day
from sizing.report.quantity import Quantity

NAME = "Over a day"
FIRST_ROW = 13
"""Of the hours, counted from 0: row 14 on screen."""
HOUR_GPUS = f"$D${FIRST_ROW + 1}:$D${FIRST_ROW + HOURS}"
CONSTANT, FOLLOWING, ALL_DAY = "$B$5", "$B$6", "$B$7"
COLUMNS = ("Hour", "Requests/s", "Replicas", "GPUs", "Busiest hour's fleet")
NOTE = "Hours times GPUs that run, spares included. Replicas are taken to start and stop at once."


def day_sheet(book: Book, day: Day) -> None:
    """The whole sheet."""
    sheet = book.sheet(NAME, (44, 16, 12, 12, 12))
    book.put(sheet, 0, 0, NAME, "title")
    book.put(sheet, 1, 0, day.sentence)
    book.put(sheet, 2, 0, day.working)
    figures(book, sheet, day)
    book.headings(sheet, FIRST_ROW - 1, COLUMNS, [column > 0 for column in range(len(COLUMNS))])
    for row, cells in enumerate(day.hours, start=FIRST_ROW):
        for column, cell in enumerate(cells):
            book.put(sheet, row, column, cell)
        book.formula(sheet, (row, 4), f"={CONSTANT}", day.constant_gpus)
    book.put(sheet, FIRST_ROW + HOURS, 0, NOTE, "quiet")
    chart(book, sheet, day)


def figures(book: Book, sheet: Worksheet, day: Day) -> None:
    """Sums over the hours, live, and what they cost; no price, no cost."""
    book.put(sheet, 4, 0, "GPUs of the busiest hour")
    book.put(sheet, 4, 1, day.constant_gpus)
    formulas: list[tuple[str, str, Quantity]] = [
        ("GPU-hours a day, following the load", f"=SUM({HOUR_GPUS})", day.gpu_hours),
        ("GPU-hours a day, the busiest hour's fleet all day", f"={CONSTANT}*{HOURS}", day.constant_gpu_hours),
        ("Saved", f"=1-{FOLLOWING}/{ALL_DAY}", day.saved),
    ]
    if day.price.value is not None:
        book.put(sheet, 8, 0, "Price per GPU-hour")
        book.put(sheet, 8, 1, day.price)
    for row, (name, formula, value) in enumerate(formulas, start=5):
        book.put(sheet, row, 0, name)
        book.formula(sheet, (row, 1), formula, value)
    costs = (
        ("Cost a day, following the load", f"=$B$9*{FOLLOWING}", day.cost),
        ("Cost a day, the busiest hour's fleet all day", f"=$B$9*{ALL_DAY}", day.constant_cost),
    )
    for row, (name, formula, value) in enumerate(costs, start=9):
        if value.value is not None:
            book.put(sheet, row, 0, name)
            book.formula(sheet, (row, 1), formula, value)


def chart(book: Book, sheet: Worksheet, day: Day) -> None:
    """GPUs of each hour as columns, the busiest hour's fleet as a line."""
    last = FIRST_ROW + HOURS - 1
    hours = [NAME, FIRST_ROW, 0, last, 0]
    columns = book.workbook.add_chart({"type": "column"})
    values = {"categories": hours, "values": [NAME, FIRST_ROW, 3, last, 3]}
    columns.add_series({"name": "follows the load", **values, "fill": {"color": "#0072B2"}, "gap": 20})
    line = book.workbook.add_chart({"type": "line"})
    look = {"color": "#B42318", "dash_type": "dash", "width": 1.25}
    line.add_series({"name": COLUMNS[4], "categories": hours, "values": [NAME, FIRST_ROW, 4, last, 4], "line": look})
    columns.combine(line)
    columns.set_title({"name": "GPUs over the day", "name_font": {"size": 12}})
    columns.set_x_axis({"name": "Hour"})
    columns.set_y_axis({"name": "GPUs running, spares included", "min": 0})
    columns.set_legend({"position": "bottom"})
    columns.set_size({"width": 620, "height": 320})
    sheet.insert_chart(FIRST_ROW - 1, 6, columns, {"description": day.sentence})
