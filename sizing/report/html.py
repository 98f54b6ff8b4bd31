"""A report as one HTML file: no script, nothing from a network, light and dark, fit for paper and for telephones."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from sizing.report import tables
from sizing.report.charts import INKS, Drawing, charts
from sizing.report.model import Report, as_dict, digest, question_digest
from sizing.report.sections import cards, sections
from sizing.report.tables import UNTITLED, line, paragraphs, when

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
