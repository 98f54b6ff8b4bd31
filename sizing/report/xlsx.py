"""A report as a workbook: the answer, every table, native charts, and a sheet that works the count out again, live.

Text stays text: nothing from outside becomes a formula or a link.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from textwrap import wrap
from typing import Any, Literal

from xlsxwriter import Workbook
from xlsxwriter.format import Format
from xlsxwriter.worksheet import Worksheet

from sizing.analyses.daily import HOURS
from sizing.points import FORMULA_STARTS
from sizing.report import tables
from sizing.report.model import (
    Configuration,
    Day,
    LatencyRow,
    LimitCurve,
    LoadCurves,
    Quantity,
    Report,
    digest,
    question_digest,
)
from sizing.report.sections import WAYS
from sizing.report.tables import Cell, Table, line, moment, number_of, paragraphs, text_of, when
from sizing.text import DEFINITIONS, capital
from sizing.workload import Metric

Look = Literal[
    "plain", "title", "heading", "column", "column beside", "column of numbers", "beside", "right", "quiet", "input"
]
LOOKS: dict[Look, dict[str, Any]] = {
    "plain": {},
    "title": {"bold": True, "font_size": 16},
    "heading": {"bold": True, "font_size": 12},
    "column": {"bold": True, "bottom": 1, "text_wrap": True, "valign": "bottom"},
    "column of numbers": {"bold": True, "bottom": 1, "text_wrap": True, "valign": "bottom", "align": "right"},
    "column beside": {"bold": True, "bottom": 1, "text_wrap": True, "valign": "bottom", "align": "left", "indent": 1},
    "beside": {"indent": 1},
    "right": {"align": "right"},
    "quiet": {"font_color": "#4A5563", "text_wrap": False},
    "input": {"bg_color": "#FFF3C4", "border": 1},
}
IN_FORMAT = ("s", "share", "")
"""Units that a number format shows: times as ms or s, shares as per cent."""
NARROW, WIDE, HEADING = 9, 60, 18
"""Widths of columns, in characters."""
UNSET, BOLD = 8.43, 0.9
"""Width of a column that was given none; share of a width that bold letters can use."""
TITLE_PT, LINE_PT = 24, 15
"""Heights of a row that holds a title, and of a line."""


class Book:
    """Sheets of a workbook and the formats they share; `put` writes one cell, `table` a whole table."""

    def __init__(self, workbook: Workbook) -> None:
        self.workbook = workbook
        self._formats: dict[tuple[Look, str], Format] = {}
        self._widths: dict[str, tuple[float, ...]] = {}

    def sheet(self, name: str, widths: tuple[float, ...] = ()) -> Worksheet:
        """A new sheet, printed on as many pages as it is long but on one across."""
        sheet = self.workbook.add_worksheet(name)
        sheet.set_landscape()
        sheet.set_paper(9)  # A4
        sheet.fit_to_pages(1, 0)
        for column, width in enumerate(widths):
            sheet.set_column(column, column, width)
        self._widths[name] = widths
        return sheet

    def format(self, look: Look, number: str = "") -> Format:
        """The format of a look and a number format, made once."""
        if (look, number) not in self._formats:
            settings = LOOKS[look] | ({"num_format": number} if number else {})
            self._formats[look, number] = self.workbook.add_format(settings)
        return self._formats[look, number]

    def put(self, sheet: Worksheet, row: int, column: int, cell: Cell, look: Look = "plain") -> None:
        """One cell: a text as it is read, a quantity as a number that shows the same digits as in other formats."""
        if look == "title":
            sheet.set_row(row, TITLE_PT)
        if isinstance(cell, str):
            sheet.write_string(row, column, safe(line(cell)), self.format(look))
        elif cell.value is None:
            sheet.write_string(row, column, number_of(cell), self.format(look))
        else:
            sheet.write_number(row, column, in_cell(cell), self.format(look, number_format(cell)))

    def formula(
        self, sheet: Worksheet, place: tuple[int, int], formula: str, found: Quantity, number: str = ""
    ) -> None:
        """A live formula with the value that the report has for it, for viewers that do not calculate."""
        value = "" if found.value is None else in_cell(found)
        sheet.write_formula(*place, formula, self.format("plain", number or number_format(found)), value)

    def headings(self, sheet: Worksheet, row: int, names: Sequence[str], numbers: Sequence[bool]) -> None:
        """A row of headings, those of numbers over them; as high as the longest takes in its column, which not every
        spreadsheet program finds out by itself."""
        known, lines = self._widths[sheet.get_name()], 1
        for column, (name, of_numbers) in enumerate(zip(names, numbers, strict=True)):
            text: Look = "column beside" if column else "column"
            self.put(sheet, row, column, name, "column of numbers" if of_numbers else text)
            width = known[column] if column < len(known) else UNSET
            lines = max(lines, len(wrap(name, max(1, int(BOLD * width) - 1))))
        sheet.set_row(row, LINE_PT * lines)

    def table(self, sheet: Worksheet, row: int, table: Table, titled: bool = True) -> int:
        """A whole table from `row` on; the row after it and a gap.

        Where rows have different units these stand in a column of their own, not in the number format of a cell.
        """
        if titled:
            self.put(sheet, row, 0, table.title, "heading")
            row += 1
        if not table.rows:
            self.put(sheet, row, 0, table.empty, "quiet")
            return row + 2
        unit = ("Unit",) if table.fixed else ()
        numbers = [*map(table.is_number, range(len(table.columns))), *(False for _ in unit)]
        self.headings(sheet, row, (*table.columns, *unit), numbers)
        for cells in table.rows:
            row += 1
            for column, cell in enumerate((*cells, *(unit_beside(cells[-1]) for _ in unit))):
                look: Look = "right" if numbers[column] else "beside" if column else "plain"
                self.put(sheet, row, column, cell, look)
        if table.note:
            row += 1
            self.put(sheet, row, 0, table.note, "quiet")
        return row + 2


def widths(table: Table) -> tuple[float, ...]:
    """Widths of the columns of a table, by the text in them."""
    cells = zip(*([*map(table.text, row)] for row in table.rows), strict=True)
    longest = (max(map(len, column)) for column in cells)
    names = (min(len(name), HEADING) for name in table.columns)
    return tuple(min(max(each + 2, NARROW, name), WIDE) for each, name in zip(longest, names, strict=False))


def safe(text: str) -> str:
    """A text with a leading apostrophe where a spreadsheet would take it for a formula once saved as CSV."""
    return f"'{text}" if text.startswith(FORMULA_STARTS) else text


def in_cell(quantity: Quantity) -> float:
    """The number in a cell: times in milliseconds, whatever they are shown in; others as they are."""
    assert quantity.value is not None
    return quantity.value * 1000 if quantity.unit == "s" else quantity.value


def unit_beside(cell: Cell) -> str:
    """The unit of a cell where its number format does not show it."""
    found = text_of(cell).partition(" ")[2] if isinstance(cell, Quantity) and cell.value is not None else ""
    return found if isinstance(cell, Quantity) and cell.unit not in IN_FORMAT else ""


def number_format(quantity: Quantity) -> str:
    """The number format that shows the digits of `number_of`, and its unit; a comma at its end divides by 1,000.

    >>> number_format(Quantity(0.0247, "s", "estimated")), number_format(Quantity(2.5, "per hour", "estimated"))
    ('#,##0.0" ms"', '#,##0.0')
    """
    digits, _, unit = number_of(quantity).partition(" ")
    decimals = len(digits.partition(".")[2])
    places = "." + "0" * decimals if decimals else ""
    if quantity.unit == "share":
        return f"0{places} %"
    thousandths = "," if unit == "s" else ""
    return f'#,##0{places}{thousandths}" {unit}"' if unit else f"#,##0{places}"


# --- The workbook's sheet of GPUs over a day: the hours, their sums as live formulas, and a chart

NAME = "Over a day"
DAY_FIRST_ROW = 13
"""Of the hours, counted from 0: row 14 on screen."""
HOUR_GPUS = f"$D${DAY_FIRST_ROW + 1}:$D${DAY_FIRST_ROW + HOURS}"
CONSTANT, FOLLOWING, ALL_DAY = "$B$5", "$B$6", "$B$7"
DAY_COLUMNS = ("Hour", "Requests/s", "Replicas", "GPUs", "Busiest hour's fleet")
NOTE = "Hours times running GPUs, spares included. Replicas are assumed to start and stop instantly."


def day_sheet(book: Book, day: Day) -> None:
    """The whole sheet."""
    sheet = book.sheet(NAME, (44, 16, 12, 12, 12))
    book.put(sheet, 0, 0, NAME, "title")
    book.put(sheet, 1, 0, day.sentence)
    book.put(sheet, 2, 0, day.working)
    day_figures(book, sheet, day)
    book.headings(sheet, DAY_FIRST_ROW - 1, DAY_COLUMNS, [column > 0 for column in range(len(DAY_COLUMNS))])
    for row, cells in enumerate(day.hours, start=DAY_FIRST_ROW):
        for column, cell in enumerate(cells):
            book.put(sheet, row, column, cell)
        book.formula(sheet, (row, 4), f"={CONSTANT}", day.constant_gpus)
    book.put(sheet, DAY_FIRST_ROW + HOURS, 0, NOTE, "quiet")
    chart(book, sheet, day)


def day_figures(book: Book, sheet: Worksheet, day: Day) -> None:
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
    last = DAY_FIRST_ROW + HOURS - 1
    hours = [NAME, DAY_FIRST_ROW, 0, last, 0]
    columns = book.workbook.add_chart({"type": "column"})
    values = {"categories": hours, "values": [NAME, DAY_FIRST_ROW, 3, last, 3]}
    columns.add_series({"name": "follows the load", **values, "fill": {"color": "#0072B2"}, "gap": 20})
    line = book.workbook.add_chart({"type": "line"})
    look = {"color": "#B42318", "dash_type": "dash", "width": 1.25}
    line.add_series(
        {"name": DAY_COLUMNS[4], "categories": hours, "values": [NAME, DAY_FIRST_ROW, 4, last, 4], "line": look}
    )
    columns.combine(line)
    columns.set_title({"name": "GPUs over the day", "name_font": {"size": 12}})
    columns.set_x_axis({"name": "Hour"})
    columns.set_y_axis({"name": "GPUs running, spares included", "min": 0})
    columns.set_legend({"position": "bottom"})
    columns.set_size({"width": 620, "height": 320})
    sheet.insert_chart(DAY_FIRST_ROW - 1, 6, columns, {"description": day.sentence})


# --- The sheet that works the count out again: change the load, the headroom or the spares, and GPUs and cost follow

LOAD, HEADROOM, SPARE = "$B$4", "$B$5", "$B$6"
WORKING_FIRST_ROW = 9
"""Of the table, counted from 0: row 10 on screen."""
WORKING_COLUMNS = (
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
    "Change a yellow cell and everything below follows. The capacity of a replica stays as computed for the planned "
    "load and lengths; for other lengths or limits ask the planner again."
)
SIMULATED = "Sessions were simulated for this number of them: for another one ask the planner again."
ADDED = "Added: replicas beyond the quotient, if latencies jump just above the planned load. Usually 0."


def working_sheet(book: Book, report: Report) -> None:
    """The whole sheet; of sessions, without an answer, or without the question, it says so."""
    sheet = book.sheet("Working", (34, *(13,) * (len(WORKING_COLUMNS) - 1)))
    book.put(sheet, 0, 0, "Working", "title")
    if report.sessions is not None:
        book.put(sheet, 1, 0, report.working)
        book.put(sheet, 2, 0, SIMULATED, "quiet")
        return
    load, headroom, spare = (report.given(key) for key in ("rate_per_s", "headroom", "spare"))
    if report.answer is None or load is None or headroom is None or spare is None:
        book.put(sheet, 2, 0, "There is no count to compute.", "quiet")
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
    book.headings(sheet, WORKING_FIRST_ROW - 1, WORKING_COLUMNS, [column > 0 for column in range(len(WORKING_COLUMNS))])
    for row, found in enumerate(report.configurations, start=WORKING_FIRST_ROW):
        configuration_row(book, sheet, row, found, load)
    after = WORKING_FIRST_ROW + len(report.configurations)
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
    first, answer = row + 2, WORKING_FIRST_ROW + 1
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
    alt = "GPUs of the answer at shares of the planned load, computed from the adjacent cells."
    sheet.insert_chart(row, 4, chart, {"description": alt})


def gpus_at(found: Configuration, load: float) -> float:
    """GPUs of a configuration at another load, its replica's capacity kept: what the formula gives."""
    planned = found.planned_per_replica.value or 0.0
    if planned <= 0:
        return 0.0
    quotient = load / planned * (1 - 1e-9)
    whole = int(quotient) + (quotient > int(quotient))
    return (whole + found.extra_working + (found.spare.value or 0)) * found.gpus_per_replica


# --- Rows for a sheet of total cost of ownership, with the columns that such sheets for LLM serving have

METRICS: tuple[tuple[Metric, str], ...] = (("itl", "ITL"), ("ttft", "TTFT"), ("e2e", "Request latency"))
FIGURES = (("mean", "avg"), ("p90", "p90"), ("p99", "p99"))
TCO_COLUMNS = (
    *("Model", "GPU Type", "number_of_gpus", "Precision", "Execution Mode"),
    *(f"{name} {figure} (ms)" for _, name in METRICS for _, figure in FIGURES),
    *("Requests per Second", "Tokens per Second", "ISL_OSL", "Concurrency"),
)

NO_ONE_LENGTH = "Such a sheet needs one ISL and OSL, but the turns of a session grow. See the sheet Sessions."


def tco(report: Report) -> Table:
    """One row for each configuration: a single replica with its GPUs, at the load it is planned for; of recorded
    traffic, each that was replayed at the mean load of the trace, as its latencies are of the whole trace.

    Latencies in milliseconds; tokens per second are output tokens; concurrency is the mean of requests in flight.
    None of sessions, whose turns have no one ISL and OSL.
    """
    if report.sessions is not None:
        return Table("TCO rows", TCO_COLUMNS, (), empty=NO_ONE_LENGTH)
    isl, osl, rate_per_s = (report.given(key) or 0.0 for key in ("isl", "osl", "rate_per_s"))
    shown, load = report.configurations, "of each configuration at the planned load"
    if report.traffic is not None:
        shown = tuple(found for found in shown if found.verified_by == "simulation")
        rate_per_s /= report.given("peak_factor") or 1.0
        load = "of each configuration that was replayed, at the mean load of the trace"
    rows = tuple(tco_row(report.model, found, isl, osl, rate_per_s) for found in shown)
    note = f"One replica {load}; tokens per second are output tokens."
    return Table("TCO rows", TCO_COLUMNS, rows, empty="No configuration meets the SLA.", note=note)


def tco_row(model: str, found: Configuration, isl: float, osl: float, rate_per_s: float) -> tuple[Cell, ...]:
    """The row of one configuration."""
    latencies = {each.metric: each for each in found.latencies}
    per_replica = rate_per_s / found.working.value if found.working.value else None
    tokens_per_s = None if per_replica is None else per_replica * osl
    mean_s = latencies["e2e"].mean.value if "e2e" in latencies else None
    in_flight = None if per_replica is None or mean_s is None else per_replica * mean_s  # Little's law
    return (
        *(model, found.gpu, Quantity(found.gpus_per_replica, "GPUs", "given"), found.precision, found.execution),
        *(in_ms(latencies.get(metric), figure) for metric, _ in METRICS for figure, _ in FIGURES),
        *(Quantity(per_replica, "requests/s", found.basis), Quantity(tokens_per_s, "output tokens/s", found.basis)),
        *(f"{isl:g}_{osl:g}", Quantity(in_flight, "requests", found.basis)),
    )


def in_ms(latency: LatencyRow | None, figure: str) -> Cell:
    """One figure of a latency as a bare number of milliseconds; empty where there is none."""
    found = None if latency is None else getattr(latency, figure)
    if found is None or found.value is None:
        return ""
    return Quantity(found.value * 1000, "", found.basis)


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
    if report.traffic is not None:
        if report.traffic.classes:
            table_sheet(book, "Classes", tables.classes(report))
        table_sheet(book, "Recorded traffic", tables.traffic_hours(report))
    if report.sessions is not None:
        table_sheet(book, "Sessions", tables.session_loads(report))
        if report.sessions.routings:
            table_sheet(book, "Routings", tables.session_routings(report))
    table_sheet(book, "Sensitivity", tables.sensitivity(report))
    if report.goodput:
        table_sheet(book, "Goodput", tables.goodput(report))
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
    lines = (report.working or capital(report.reason), f"Basis: {found.basis}" if found else "", report.author)
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
        row = book.table(sheet, row, tables.ways_out(report))
    if report.together:
        row = book.table(sheet, row, tables.together(report))
    row = bullets(book, sheet, row, "Remarks" if found else WAYS, report.remarks, verbatim=not found)
    row = bullets(book, sheet, row, "Before buying", report.warnings)
    row = bullets(book, sheet, row, "Sessions", report.sessions.lines if report.sessions else ())
    row = bullets(book, sheet, row, "Recorded traffic", report.traffic.lines if report.traffic else ())
    where = (
        report.link or "No link was given.",
        f"{report.program}, report {digest(report)}, question {question_digest(report)}",
    )
    bullets(book, sheet, row, "Link and program", where, verbatim=True)


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


def bullets(book: Book, sheet: Worksheet, row: int, title: str, texts: tuple[str, ...], verbatim: bool = False) -> int:
    """A heading and a line for each text, with a capital unless `verbatim`; nothing where there are none."""
    if not texts:
        return row
    book.put(sheet, row, 0, title, "heading")
    for at, text in enumerate(texts, start=row + 1):
        book.put(sheet, at, 0, text if verbatim else capital(text))
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
    counts = table.columns.index("GPUs")
    series = {"name": "GPUs", "values": ["Candidates", first, counts, last, counts], "fill": {"color": "#0072B2"}}
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
        book.put(sheet, row, beside + 2, Quantity(value, curve.latency.unit, basis))
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
    unit = "ms" if curve.latency.unit == "s" else "share of the limits"
    chart.set_y_axis({"name": f"{curve.name} ({unit})", "min": 0, "num_format": "General"})
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
