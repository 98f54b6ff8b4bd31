"""A report as a workbook: the answer, every table, native charts, and a sheet that works the count out again, live.

Text stays text: nothing from outside becomes a formula or a link.
"""

from __future__ import annotations

import io

from sizing.report import tables, tables_beside
from sizing.report.book import Book, Workbook, Worksheet, widths
from sizing.report.day_sheet import day_sheet
from sizing.report.json import digest, question_digest
from sizing.report.model import LimitCurve, LoadCurves, Report
from sizing.report.quantity import Quantity
from sizing.report.tables import Table
from sizing.report.tco import tco
from sizing.report.terms import DEFINITIONS
from sizing.report.words import capital, line, moment, paragraphs, when
from sizing.report.working_sheet import working_sheet

OPTIONS = {
    "in_memory": True,
    "strings_to_formulas": False,
    "strings_to_urls": False,
    "strings_to_numbers": False,
}
PLOT_PX = (520, 300)
LONGEST_PROPERTY = 200
ROWS_OF_PLOT = 16


def as_xlsx(report: Report) -> bytes:
    """The workbook; the same report gives the same bytes."""
    out = io.BytesIO()
    workbook = Workbook(out, OPTIONS)
    made = moment(report.made_at).replace(tzinfo=None)
    properties = {"title": report.title, "author": report.author, "comments": f"report {digest(report)}"}
    texts = {name: line(text, LONGEST_PROPERTY) for name, text in properties.items()}
    workbook.set_properties({**texts, "created": made})
    book = Book(workbook)
    answer_sheet(book, report)
    candidates_sheet(book, report)
    curves_sheet(book, report)
    if report.day:
        day_sheet(book, report.day)
    working_sheet(book, report)
    table_sheet(book, "Sensitivity", tables.sensitivity(report))
    assumptions_sheet(book, report)
    table_sheet(book, "Left out", tables.left_out(report))
    table_sheet(book, "Sources", tables.sources(report))
    table_sheet(book, "TCO rows", tco(report), titled=False)
    workbook.close()
    return out.getvalue()


def answer_sheet(book: Book, report: Report) -> None:
    """The sentence, its figures, the SLA, remarks and cost: what a reader opens first."""
    sheet = book.sheet("Answer", (34, 18, 16, 20, 18, 18))
    book.put(sheet, 0, 0, report.title, "quiet")
    book.put(sheet, 1, 0, report.sentence, "title")
    row = 2
    found = report.answer
    lines = (report.working or report.reason, f"Basis: {found.basis}" if found else "", report.author)
    for text in (*lines, when(report.made_at), *paragraphs(report.notes)):
        if text:
            book.put(sheet, row, 0, text)
            row += 1
    row += 1
    if found:
        row = figures(book, sheet, row, report)
        row = book.table(sheet, row, tables.sla(report))
        row = book.table(sheet, row, tables.cost(report))
    if report.ways_out:
        row = book.table(sheet, row, tables_beside.ways_out(report))
    if report.together:
        row = book.table(sheet, row, tables_beside.together(report))
    row = bullets(book, sheet, row, "Remarks", report.remarks)
    row = bullets(book, sheet, row, "Before buying", report.warnings)
    where = (
        report.link or "No link was given.",
        f"{report.program}, report {digest(report)}, question {question_digest(report)}",
    )
    bullets(book, sheet, row, "Link and program", where)


def figures(book: Book, sheet: Worksheet, row: int, report: Report) -> int:
    """GPUs, replicas and requests/s of the answer as numbers."""
    found = report.answer
    assert found is not None
    for name, value in (
        ("GPUs", found.gpus),
        ("Working replicas", found.working),
        ("Spare replicas", found.spare),
        ("Requests/s per GPU", found.planned_per_gpu),
        ("Requests/s per replica", found.planned_per_replica),
        ("Utilization", found.utilization),
    ):
        book.put(sheet, row, 0, name)
        book.put(sheet, row, 1, value)
        row += 1
    return row + 1


def bullets(book: Book, sheet: Worksheet, row: int, title: str, texts: tuple[str, ...]) -> int:
    """A heading and a line for each text; nothing where there are none."""
    if not texts:
        return row
    book.put(sheet, row, 0, title, "heading")
    for at, text in enumerate(texts, start=row + 1):
        book.put(sheet, at, 0, capital(text))
    return row + len(texts) + 2


def candidates_sheet(book: Book, report: Report) -> None:
    """The configurations that meet the SLA, and a chart of their GPUs."""
    table = tables.configurations(report)
    sheet = table_sheet(book, "Candidates", table)
    if not table.rows:
        return
    first, last, beside = 2, 1 + len(table.rows), len(table.columns) + 1
    sheet.set_column(beside, beside, 30)
    for row, found in enumerate(report.configurations, start=first):
        book.put(sheet, row, beside, found.label, "quiet")  # a name of one cell for each bar
    chart = book.workbook.add_chart({"type": "bar"})
    series = {"name": "GPUs", "values": ["Candidates", first, 3, last, 3], "fill": {"color": "#0072B2"}}
    names = ["Candidates", first, beside, last, beside]
    chart.add_series({**series, "categories": names, "data_labels": {"value": True}})
    chart.set_title({"name": "GPUs, spares included", "name_font": {"size": 12}})
    chart.set_y_axis({"reverse": True, "interval_unit": 1})
    chart.set_legend({"none": True})
    chart.set_size({"width": 620, "height": min(100 + 22 * len(table.rows), 2_000)})
    alt = f"GPUs of each configuration; the answer, {line(report.configurations[0].label)}, is the first."
    sheet.insert_chart(last + 3, 0, chart, {"description": alt})


def curves_sheet(book: Book, report: Report) -> None:
    """Latency against load as numbers, and a chart for each limit."""
    table = tables.curve_data(report)
    sheet = table_sheet(book, "Curves", table)
    if report.curves is None or not table.rows:
        return
    for number, curve in enumerate(report.curves.curves):
        chart_of(book, sheet, report.curves, curve, number, len(table.rows))


def chart_of(book: Book, sheet: Worksheet, curves: LoadCurves, curve: LimitCurve, number: int, rows: int) -> None:
    """A native chart of one latency: the line, its limit, the planned load. Its two helper tables stand beside it."""
    first, last, column = 2, 1 + rows, number + 1
    beside, basis = len(curves.curves) + 2 + 3 * number, curve.latency.basis
    helpers = (
        ("limit", 0.0, curve.limit_s),
        ("limit", max((value for value in curves.load.values if value), default=0.0), curve.limit_s),
        ("planned", curves.planned_per_s, curve.planned_s),
    )
    sheet.set_column(beside, beside, 2 + len(f"{curve.name} planned"))
    for row, (name, load, value) in enumerate(helpers, start=first):
        book.put(sheet, row, beside, f"{curve.name} {name}")
        book.put(sheet, row, beside + 1, Quantity(load, "requests/s per replica", "given"))
        book.put(sheet, row, beside + 2, Quantity(value, "s", basis))
    chart = book.workbook.add_chart({"type": "scatter", "subtype": "straight"})

    def series(name: str, top: int, end: int, x: int, y: int, **look: object) -> None:
        places = {"categories": ["Curves", top, x, end, x], "values": ["Curves", top, y, end, y]}
        chart.add_series({"name": name, **places, **look})

    series(curve.name, first, last, 0, column, line={"color": "#0072B2", "width": 2})
    limit = {"color": "#B42318", "dash_type": "dash", "width": 1.25}
    series("limit", first, first + 1, beside + 1, beside + 2, line=limit)
    dot = {"type": "circle", "size": 8, "fill": {"color": "#D55E00"}}
    series("planned load", first + 2, first + 2, beside + 1, beside + 2, marker=dot, line={"none": True})
    chart.set_title({"name": f"{curve.name} against load", "name_font": {"size": 12}})
    chart.set_x_axis({"name": "Load (requests/s per replica)", "min": 0, "num_format": "General"})
    chart.set_y_axis({"name": f"{curve.name} (ms)", "min": 0, "num_format": "General"})
    chart.set_size({"width": PLOT_PX[0], "height": PLOT_PX[1]})
    alt = f"{curve.name} against requests/s per replica, with its limit and the planned load."
    place = (first + len(helpers) + 1 + number * ROWS_OF_PLOT, len(curves.curves) + 2)
    sheet.insert_chart(*place, chart, {"description": alt})


def assumptions_sheet(book: Book, report: Report) -> None:
    """What was asked and assumed, what the number covers, how sure it is, and what the words mean."""
    sheet = book.sheet("Assumptions", (42, 24, 24, 24, 12, 12, 30, 10))
    book.put(sheet, 0, 0, "Assumptions", "title")
    row = book.table(sheet, 2, tables.inputs(report))
    row = bullets(book, sheet, row, "Assumptions", report.assumptions)
    row = bullets(book, sheet, row, "The number includes", report.includes)
    row = bullets(book, sheet, row, "The number does not include", report.excludes)
    row = bullets(book, sheet, row, "Accuracy", (report.accuracy,) if report.accuracy else ())
    if report.evidence:
        row = book.table(sheet, row, tables.evidence(report))
    bullets(book, sheet, row, "Definitions", tuple(f"{term}: {meaning}" for term, meaning in DEFINITIONS))


def table_sheet(book: Book, name: str, table: Table, titled: bool = True) -> Worksheet:
    """A sheet of one table, its headings kept in sight."""
    sheet = book.sheet(name, widths(table))
    book.table(sheet, 0, table, titled)
    sheet.freeze_panes(2 if titled else 1, 0)
    return sheet
