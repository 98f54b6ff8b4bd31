"""The workbook's live formulas: what a spreadsheet would compute, with the load as it is and with another."""

from __future__ import annotations

import dataclasses
import io
import math
import re
import zipfile
from collections.abc import Callable
from typing import Any

import openpyxl
import pytest
from openpyxl.utils import get_column_letter

from sizing.report import tables
from sizing.report.model import Quantity, Unit
from sizing.report.tables import number_of, text_of
from sizing.report.write import render
from sizing.report.xlsx import TCO_COLUMNS, number_format
from tests.sizing.report_cases import QUESTION, daily, day_report, plan, refusal, report, rows_below, sheets

LOAD, HEADROOM, SPARE = "B4", "B5", "B6"
RANGE = re.compile(r"\$([A-Z]+)\$(\d+):\$\1\$(\d+)")
REFERENCE = re.compile(r"\$?([A-Z]+)\$?(\d+)")


class Spreadsheet:
    """A sheet's formulas, computed: numbers, the four operations, SUM of a column, ROUNDUP and IF(cell="","",...)."""

    def __init__(self, rows: list[tuple[object, ...]], **changed: float) -> None:
        self.cells: dict[str, object] = {
            f"{get_column_letter(column)}{number}": value
            for number, row in enumerate(rows, start=1)
            for column, value in enumerate(row, start=1)
        } | changed

    def value(self, name: str) -> Any:
        found = self.cells[name]
        if not (isinstance(found, str) and found.startswith("=")):
            return found
        return self.compute(found[1:])

    def compute(self, formula: str) -> Any:
        if chosen := re.fullmatch(r'IF\((\w+)="","",(.*)\)', formula):
            return "" if self.value(chosen[1]) in (None, "") else self.compute(chosen[2])
        known: dict[str, Callable[..., float]] = {
            "ROUNDUP": roundup,
            "SUM": sum,
            "cells": self.column,
            "at": self.value,
        }
        formula = RANGE.sub(r'cells("\1", \2, \3)', formula)
        python = REFERENCE.sub(r'at("\1\2")', formula)
        return eval(python, {"__builtins__": {}}, known)  # formulas of our own making

    def column(self, letter: str, first: int, last: int) -> list[Any]:
        return [self.value(f"{letter}{row}") for row in range(first, last + 1)]


def roundup(value: float, digits: int) -> float:
    assert digits == 0 and value >= 0
    return math.ceil(value)


def working(**changed: float) -> Spreadsheet:
    return Spreadsheet(sheets(render(report(), "xlsx"), values=False)["Working"], **changed)


def table_rows() -> list[int]:
    """Numbers of the rows of configurations."""
    rows = sheets(render(report(), "xlsx"))["Working"]
    start = next(number for number, row in enumerate(rows, start=1) if row[0] == "Configuration") + 1
    return list(range(start, start + len(report().configurations)))


def test_stored_values_are_what_the_formulas_give() -> None:
    data = render(report(), "xlsx")
    stored, live = Spreadsheet(sheets(data)["Working"]), Spreadsheet(sheets(data, values=False)["Working"])
    formulas = [name for name, cell in live.cells.items() if isinstance(cell, str) and cell.startswith("=")]
    assert len(formulas) >= 8 * len(report().configurations)
    for name in formulas:
        assert stored.value(name) == pytest.approx(live.value(name), rel=1e-12), name


def test_the_day_s_sums_follow_its_hours() -> None:
    data = render(day_report(), "xlsx")
    rows = sheets(data, values=False)["Over a day"]
    stored, live = Spreadsheet(sheets(data)["Over a day"]), Spreadsheet(rows)
    formulas = [name for name, cell in live.cells.items() if isinstance(cell, str) and cell.startswith("=")]
    assert len(formulas) == 24 + 3 + 2
    for name in formulas:
        assert stored.value(name) == pytest.approx(live.value(name), rel=1e-12), name
    names = {row[0]: f"B{number}" for number, row in enumerate(rows, start=1)}
    hours, gpu_hours = [hour.gpus for hour in daily().hours], names["GPU-hours a day, following the load"]
    first = next(number for number, row in enumerate(rows, start=1) if row[0] == "0:00")
    idle = Spreadsheet(rows, **{f"D{first}": 0.0})
    assert stored.value(gpu_hours) == sum(hours)
    assert idle.value(gpu_hours) == sum(hours[1:])
    assert idle.value(names["Saved"]) == pytest.approx(1 - sum(hours[1:]) / (24 * max(hours)))
    assert idle.value(names["Cost a day, following the load"]) == pytest.approx(2.5 * sum(hours[1:]))


@pytest.mark.parametrize("factor", [0.1, 0.5, 1.0, 1.7, 10.0])
@pytest.mark.parametrize(("headroom", "spare"), [(0.2, 1), (0.0, 0), (0.5, 3)])
def test_another_load_gives_the_planner_s_count(factor: float, headroom: float, spare: int) -> None:
    load = factor * QUESTION.workload.rate_per_s
    asked = dataclasses.replace(
        QUESTION, workload=dataclasses.replace(QUESTION.workload, rate_per_s=load), headroom=headroom, spare=spare
    )
    sheet = working(**{LOAD: load, HEADROOM: headroom, SPARE: spare})
    for row, fleet in zip(table_rows(), plan().fleets, strict=True):
        replicas = asked.replicas_at(fleet.capacity_per_s)
        assert sheet.value(f"E{row}") == replicas
        assert sheet.value(f"I{row}") == (replicas + spare) * fleet.candidate.gpus
        assert sheet.value(f"L{row}") == pytest.approx(2.5 * (replicas + spare) * fleet.candidate.gpus)


def test_the_loads_of_the_chart_follow_the_planned_load() -> None:
    rows = sheets(render(report(), "xlsx"))["Working"]
    first = next(number for number, row in enumerate(rows, start=1) if row[0] == "Share of the load") + 1
    doubled = working(**{LOAD: 80.0})
    for row in range(first, first + 7):
        load = float(str(doubled.value(f"A{row}"))) * 80.0
        asked = dataclasses.replace(QUESTION, workload=dataclasses.replace(QUESTION.workload, rate_per_s=load))
        fleet = plan().answer
        replicas = asked.replicas_at(fleet.capacity_per_s) + fleet.spare
        assert doubled.value(f"C{row}") == replicas * fleet.candidate.gpus


def test_without_a_price_there_is_no_cost() -> None:
    none = Quantity(None, "per GPU-hour", "given")
    unpriced = tuple(
        dataclasses.replace(each, price=none, cost_per_hour=Quantity(None, "per hour", each.basis))
        for each in report().configurations
    )
    data = render(dataclasses.replace(report(), configurations=unpriced), "xlsx")
    live, stored = Spreadsheet(sheets(data, values=False)["Working"]), Spreadsheet(sheets(data)["Working"])
    assert live.value(f"L{table_rows()[0]}") == "" and stored.value(f"L{table_rows()[0]}") in ("", None)


def test_without_an_answer_there_is_nothing_to_work_out() -> None:
    data = sheets(render(refusal(), "xlsx"), values=False)
    assert any(row[0] == "No configuration meets it" for row in data["Answer"]), "a sentence, as in the other formats"
    assert not any(str(cell).startswith("=") for rows in data.values() for row in rows for cell in row)


def test_tco_rows_describe_one_replica_at_its_planned_load() -> None:
    rows = sheets(render(report(), "xlsx"))["TCO rows"]
    assert tuple(rows[0]) == TCO_COLUMNS
    for row, fleet in zip(rows_below(rows, "Model"), plan().fleets, strict=True):
        found = dict(zip(TCO_COLUMNS, row, strict=True))
        assert (found["Model"], found["GPU Type"]) == ("acme/tiny", fleet.candidate.gpu)
        assert found["number_of_gpus"] == fleet.candidate.gpus
        assert found["TTFT p99 (ms)"] == pytest.approx(1000 * fleet.predicted.ttft.p99_s)
        assert found["Request latency avg (ms)"] == pytest.approx(1000 * fleet.predicted.e2e.mean_s)
        assert found["Requests per Second"] == pytest.approx(fleet.load_per_s)
        assert found["Tokens per Second"] == pytest.approx(200 * fleet.load_per_s)
        # Little's law
        assert found["Concurrency"] == pytest.approx(fleet.load_per_s * fleet.predicted.e2e.mean_s)
        assert found["ISL_OSL"] == "1000_200"


@pytest.mark.parametrize(
    ("value", "unit"), [(0.0247, "s"), (12.34, "s"), (0.177, "share"), (9.0, "GPUs"), (1234.5, "")]
)
def test_a_cell_shows_the_digits_of_the_other_formats(value: float, unit: Unit) -> None:
    quantity = Quantity(value, unit, "given")
    places = re.match(r"#?,?#?#?0(\.0+)?(,?)", number_format(quantity))
    assert places is not None
    scale = {"s": 1 if places[2] else 1000, "share": 100}.get(unit, 1)
    digits = f"{value * scale:,.{max(0, len(places[1] or '') - 1)}f}"
    assert number_of(quantity).split()[0] == digits


def test_every_number_has_its_unit_in_its_cell_or_beside_it() -> None:
    """Where rows differ in their unit; elsewhere the heading has it."""
    book = openpyxl.load_workbook(io.BytesIO(render(report(), "xlsx")))
    for name, rows in (("Answer", tables.cost(report()).rows), ("Assumptions", tables.inputs(report()).rows)):
        cells = {row[0].value: row[1:3] for row in book[name].iter_rows()}
        for label, quantity in rows:
            assert isinstance(label, str)
            if not isinstance(quantity, Quantity):
                continue
            value, beside = cells[label]
            shown = {"s": " ms", "share": " %"}.get(quantity.unit, "")
            assert value.number_format.replace('"', "").endswith(shown)
            assert shown or f"{number_of(quantity)} {beside.value or ''}".strip() == text_of(quantity)
    book.close()


def test_headings_stand_over_their_numbers_and_are_not_cut() -> None:
    book = openpyxl.load_workbook(io.BytesIO(render(day_report(), "xlsx")))
    for name, first in (("Candidates", "GPU"), ("Working", "Configuration"), ("Over a day", "Hour"), ("Curves", "R")):
        sheet = book[name]
        row = next(row for row in sheet.iter_rows(max_col=5) if str(row[0].value).startswith(first) and row[1].value)
        height = sheet.row_dimensions[row[0].row].height
        for cell in filter(lambda cell: cell.value, row):
            below = sheet.cell(cell.row + 1, cell.column)
            width = sheet.column_dimensions[cell.column_letter].width or 8.43
            assert height >= 15 * math.ceil(len(str(cell.value)) / width)
            assert (cell.alignment.horizontal == "right") == (below.data_type in "nf")
    book.close()


def test_charts_are_native_and_described() -> None:
    with zipfile.ZipFile(io.BytesIO(render(report(), "xlsx"))) as parts:
        names = parts.namelist()
        drawings = "".join(parts.read(name).decode() for name in names if "/drawings/drawing" in name)
    charts = [name for name in names if name.startswith("xl/charts/chart")]
    assert len(charts) == 2 + len(QUESTION.sla.limits)
    assert len(re.findall(r'descr="[^"]{20,}"', drawings)) == len(charts)


def test_the_bars_of_the_candidates_are_their_gpus() -> None:
    book = openpyxl.load_workbook(io.BytesIO(render(report(), "xlsx")))
    sheet = book["Candidates"]
    (bars,) = sheet._charts[0].series
    drawn = [cell.value for (cell,) in sheet[bars.val.numRef.f.partition("!")[2].replace("$", "")]]
    assert drawn == [fleet.gpus for fleet in plan().fleets]
    book.close()
