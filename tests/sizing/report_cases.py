"""A plan of a made-up engine and its report, for the tests of reports; and readers of the four formats."""

from __future__ import annotations

import dataclasses
import io
from functools import cache
from html.parser import HTMLParser

import openpyxl
import pypdfium2

from sizing import planner
from sizing.analyses import relax
from sizing.analyses.curves import load_curve
from sizing.analyses.daily import Daily, gpus_by_hour
from sizing.analyses.relax import Relaxation, Together
from sizing.analyses.sensitivity import sensitivities
from sizing.catalog import Layout
from sizing.engine import Batching, Replica, StepLaw
from sizing.plans import Candidate, Plan, Rejection
from sizing.question import Question
from sizing.report.build import Cover, refusal_of, report_of
from sizing.report.model import Report
from sizing.text import Extras
from sizing.workload import Lengths, Limit, Sla, Workload

LAW = StepLaw(4.8e-3, 1e-3, 20e-6, 10e-6, 49e-9, 1.3e-9, 0.5e-3, 4e-3)
COVER = Cover(
    "2026-11-20T10:00:00+00:00", "Chat, autumn", "A. Planner", "First line.\nSecond line.", "http://x.test/?v=1"
)
REJECTED = Rejection("slow_gpu", Layout(2), "bf16", "memory", "3.5 GB short; TP4 fits")
QUESTION = Question(
    "acme/tiny",
    Workload(Lengths(1000, 200, 0.3, 0.5), 40.0),
    Sla(Limit("ttft", 95, 0.5), Limit("itl", 95, 0.02)),
    price_per_gpu_hour=2.5,
)


def candidate(gpu: str, tp: int, law: StepLaw, sigma: float = 0.05) -> Candidate:
    replica = Replica(law, Batching("chunked", 256, 8192, 400_000))
    return Candidate("acme/tiny", gpu, Layout(tp), "bf16", replica, "estimated", "a law given in a test", sigma)


CANDIDATES = [
    candidate("small", 1, LAW),
    candidate("small", 2, LAW.scaled(0.55)),
    candidate("big", 1, LAW.scaled(0.6)),
]


@cache
def plan() -> Plan:
    return planner.plan(QUESTION, CANDIDATES, [REJECTED])


@cache
def report() -> Report:
    found = plan()
    fleet = found.answer
    return report_of(found, load_curve(QUESTION, fleet), Extras(sensitivities(QUESTION, fleet)), COVER)


RATES = tuple(40.0 * share / 24 for share in range(1, 25))
"""Requests/s of each hour of a day that grows busier until midnight, its last hour at the planned load."""


@cache
def daily() -> Daily:
    return gpus_by_hour(QUESTION, plan().answer, RATES)


@cache
def day_report() -> Report:
    found = plan()
    return report_of(found, load_curve(QUESTION, found.answer), Extras(daily=daily()), COVER)


STRICT = dataclasses.replace(QUESTION, sla=Sla(Limit("ttft", 95, 0.5), Limit("itl", 95, 0.003)))
"""A question that no candidate answers: its TTFT is kept, its ITL is not."""
STRICTER = dataclasses.replace(QUESTION, sla=Sla(Limit("ttft", 95, 0.001), Limit("itl", 95, 0.003)))
"""One of which every candidate misses both limits."""


@cache
def ways(question: Question) -> tuple[tuple[Relaxation, ...], Together | None]:
    return relax.ways(question, CANDIDATES)


@cache
def refusal_with_ways(question: Question) -> Report:
    miss = Rejection("big", Layout(1), "bf16", "sla", "misses ITL even alone", question.sla.itl, 0.04)
    return refusal_of(question, "No configuration meets this SLA", "none meets it", [miss], COVER, *ways(question))


@cache
def refusal() -> Report:
    cost = Rejection("big", Layout(8), "bf16", "cost", "needs at least 72 GPUs; 36 of the same GPU meet the SLA")
    miss = Rejection("big", Layout(1), "bf16", "sla", "misses ITL even alone", QUESTION.sla.itl, 0.04)
    return refusal_of(QUESTION, "No configuration meets this SLA", "no configuration meets it", [miss, cost], COVER)


class Page(HTMLParser):
    """What a browser would show: tables as rows of cells, all text, tags with their attributes."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.cell: list[str] | None = None
        self.feed(document)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.cell = []

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th") and self.cell is not None:
            self.tables[-1][-1].append("".join(self.cell))
            self.cell = None

    def handle_data(self, data: str) -> None:
        self.texts.append((self.tags[-1][0] if self.tags else "", data))
        if self.cell is not None:
            self.cell.append(data)

    @property
    def text(self) -> str:
        return "".join(text for tag, text in self.texts if tag not in ("style", "pre"))

    def table(self, first: str) -> list[list[str]]:
        """The rows below the headings of the table whose headings begin with `first`."""
        return next(rows[1:] for rows in self.tables if rows[0][0] == first)


def pdf_text(data: bytes) -> str:
    """All text of a PDF in reading order, without white space: lines break anywhere."""
    document = pypdfium2.PdfDocument(data)
    try:
        pages = [document[number] for number in range(len(document))]
        texts = [page.get_textpage() for page in pages]
        found = "".join(text.get_text_bounded() for text in texts)
        for each in (*texts, *pages):
            each.close()
        return squeezed(found)
    finally:
        document.close()


def squeezed(text: str) -> str:
    """Text without white space and without places to break words."""
    return "".join(text.replace("\u200b", "").replace("\ufffe", "").split())


def sheets(data: bytes, values: bool = True) -> dict[str, list[tuple[object, ...]]]:
    """Sheets of a workbook as rows of stored values, or of formulas."""
    book = openpyxl.load_workbook(io.BytesIO(data), data_only=values)
    found = {sheet.title: list(sheet.iter_rows(values_only=True)) for sheet in book}
    book.close()
    return found


def rows_below(rows: list[tuple[object, ...]], first: str) -> list[tuple[object, ...]]:
    """Rows below the headings that begin with `first`, up to the first that is empty or a note."""
    start = next(number for number, row in enumerate(rows) if row[0] == first) + 1
    found = []
    for row in rows[start:]:
        if row[0] is None or row[1] is None:
            break
        found.append(row)
    return found
