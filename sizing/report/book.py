"""A workbook under way: how texts, numbers and tables are put into its sheets."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import Any, Literal

from xlsxwriter import Workbook  # type: ignore[import-untyped]
from xlsxwriter.format import Format  # type: ignore[import-untyped]
from xlsxwriter.worksheet import Worksheet  # type: ignore[import-untyped]

from sizing.curves import FORMULA_STARTS
from sizing.report.quantity import Quantity
from sizing.report.tables import Cell, Table
from sizing.report.words import line, number_of, text_of

__all__ = ["Book", "Workbook", "Worksheet", "in_cell", "number_format", "safe", "widths"]

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
LONGEST_CELL = 1_000


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
            sheet.write_string(row, column, safe(line(cell, LONGEST_CELL)), self.format(look))
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
