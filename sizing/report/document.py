"""A report to read: as one HTML file, and as PDF by typst.

The HTML has no script and takes nothing from a network; it is light and dark, fit for paper and for telephones. The PDF
has pages to decide by, then annexes, tagged for screen readers (PDF/UA-1). Nothing is read but the template: text and
charts go in as data, which typst shows as it is and never as markup.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from sizing.report import tables
from sizing.report.charts import INKS, Drawing, charts, drawable
from sizing.report.model import Report, ReportError, ReportToolMissing, as_dict, digest, question_digest
from sizing.report.sections import Section, cards, sections
from sizing.report.tables import UNTITLED, Table, line, moment, paragraphs, when

TEMPLATES = Path(__file__).parent / "templates"
COLOUR = re.compile("|".join(INKS))
NAMED = re.compile(r'(\bid="|href="#|url\(#)')
"""Where an SVG names its parts or refers to them."""


def as_html(report: Report) -> str:
    """The whole page. Every text is escaped; the report's JSON is in it, to be read again."""
    return template().render(
        report=report,
        title=line(report.title) or UNTITLED,
        sentence=line(report.sentence) or UNTITLED,
        working=line(report.working),
        author=line(report.author, 120),
        notes=paragraphs(report.notes),
        made=when(report.made_at),
        program=line(report.program, 60),
        digest=digest(report),
        question=question_digest(report),
        cards=cards(report),
        basis=report.answer.basis if report.answer else "",
        sections=sections(report),
        charts={chart.name: (chart, svg_of(chart)) for chart in charts(report)},
        chart_data={"latency": tables.curve_data(report), "day": tables.day_hours(report)},
        document=json.dumps(as_dict(report), indent=1),
    )


@cache
def template() -> Template:
    """The page's template; every value put into it is escaped."""
    places = FileSystemLoader(TEMPLATES)
    environment = Environment(
        loader=places, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("report.html.j2")


def svg_of(chart: Drawing) -> Markup:
    """A chart to put into the page: its colours are the page's, its parts have names of their own."""
    coloured = COLOUR.sub(lambda found: f"var(--{INKS[found[0]]})", chart.svg)
    return Markup(NAMED.sub(rf"\g<1>{chart.name}-", coloured))


# --- PDF

TEMPLATE = Path(__file__).parent / "templates" / "report.typ"
FONTS = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
"""DejaVu, for the characters that typst's own fonts lack; it comes with matplotlib."""
LONG_WORD = re.compile(r"\S{24,}")
BREAK_EVERY = 12
BREAK = "\u200b"
"""A space of no width: where a word that fits on no line may be broken."""


def as_pdf(report: Report) -> bytes:
    """The PDF; the same report gives the same bytes. Raises ReportToolMissing where typst is not installed."""
    try:
        import typst
    except ImportError:
        raise ReportToolMissing(
            "PDF needs typst, which is not installed: pip install 'sizing[report]', or write .html"
        ) from None
    drawings = charts(report)
    files = {f"{chart.name}.svg": chart.svg.encode() for chart in drawings}
    data = content(report) | {"charts": {chart.name: {"alt": shown(chart.alt)} for chart in drawings}}
    files |= {"main.typ": TEMPLATE.read_bytes(), "report.json": json.dumps(data).encode()}
    try:
        found = compiler(typst).compile(files, format="pdf", pdf_standards=["ua-1"], timestamp=moment(report.made_at))
    except typst.TypstError as error:
        raise ReportError(f"typst could not set the report: {line(str(error))}") from None
    assert isinstance(found, bytes)
    return found


def content(report: Report) -> dict[str, Any]:
    """Every text of the PDF, ready to be set."""
    return {
        "title": shown(line(report.title, 200) or UNTITLED),
        "sentence": shown(line(report.sentence) or UNTITLED),
        "working": shown(line(report.working)),
        "author": shown(line(report.author, 120)),
        "made": shown(when(report.made_at)),
        "program": shown(line(report.program, 60)),
        "digest": digest(report),
        "question": question_digest(report),
        "basis": report.answer.basis if report.answer else "",
        "notes": [shown(each) for each in paragraphs(report.notes)],
        "cards": [{name: shown(text) for name, text in asdict(card).items()} for card in cards(report)],
        "sections": [section_data(section) for section in sections(report)],
    }


def section_data(section: Section) -> dict[str, Any]:
    """One section as the template takes it."""
    return {
        "title": section.title,
        "annex": section.annex,
        "texts": [shown(each) for each in section.texts],
        "bullets": [shown(each) for each in section.bullets],
        "lists": [{"title": title, "bullets": [shown(each) for each in bullets]} for title, bullets in section.lists],
        "charts": section.charts,
        "terms": section.terms,
        "code": shown(section.code),
        "tables": [table_data(table) for table in section.tables],
    }


def table_data(table: Table) -> dict[str, Any]:
    """One table as the template takes it: cells are texts."""
    return {
        "title": table.title,
        "columns": table.columns,
        "rows": [[shown(line(table.text(cell))) for cell in row] for row in table.rows],
        "numbers": [table.is_number(column) for column in range(len(table.columns))],
        "wide": [column in table.wide for column in table.columns],
        "note": table.note,
        "empty": table.empty,
    }


def shown(text: str) -> str:
    """`text` that the fonts can show (a box for what they cannot, a space for a tab) and that fits a line however long
    its words are."""
    drawn = "\n".join(map(drawable, text.replace("\t", " ").split("\n")))
    return LONG_WORD.sub(lambda found: breakable(found[0]), drawn)


def breakable(word: str) -> str:
    """A long word with places to break it."""
    return BREAK.join(word[start : start + BREAK_EVERY] for start in range(0, len(word), BREAK_EVERY))


@cache
def compiler(typst: Any) -> Any:
    """A compiler that knows only the fonts that come with it and with matplotlib: the same on every machine."""
    return typst.Compiler(font_paths=[str(FONTS)], ignore_system_fonts=True)
