"""The four writers: the same numbers, the same bytes again, and text from outside that stays text."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pypdfium2
import pytest

from sizing.numbers import milliseconds, significant
from sizing.prediction import Caution
from sizing.report import tables
from sizing.report.charts import charts
from sizing.report.model import LoadCurves, Report, ReportError, ReportToolMissing, as_json, question_digest
from sizing.report.tables import line, visible
from sizing.report.write import WRITERS, render, write
from sizing.text import caution
from tests.sizing.report_cases import (
    QUESTION,
    STRICTER,
    Page,
    day_report,
    pdf_text,
    plan,
    refusal,
    refusal_with_ways,
    report,
    rows_below,
    sheets,
    squeezed,
)

ROOT = Path(__file__).parents[2]
HOSTILE = [
    "<script>alert(1)</script><img src=x onerror=alert(1)>",
    '=HYPERLINK("http://x.test","x")',
    '#eval("1") #set text(red) $x^2$ *b* @ref {{ 7*7 }} {% raw %} \\u{41} & &amp;',
    "left \u202eright\u202c \u05d0\u05d1 \u0645\u0631 \x07\x1b[31m",
    "W" * 10_000,
    "\u6f22\u5b57 \U0001f600",
    "   ",
]


@pytest.fixture(scope="module", name="made")
def made_() -> dict[str, bytes]:
    return {suffix: render(report(), suffix) for suffix in WRITERS}


def test_the_same_numbers_in_all_four(made: dict[str, bytes]) -> None:
    page, text, book = Page(made["html"].decode()), pdf_text(made["pdf"]), sheets(made["xlsx"])
    values = json.loads(made["json"])
    candidates = [
        (fleet.candidate.gpu, str(fleet.candidate.layout), fleet.gpus, fleet.requests_per_s_per_gpu)
        for fleet in plan().fleets
    ]
    shown = [(gpu, layout, f"{gpus:,}", significant(rate)) for gpu, layout, gpus, rate in candidates]
    in_page = page.table("GPU")
    assert [(row[0], row[1], row[4], row[6]) for row in in_page] == shown
    assert all(squeezed("".join(row)) in text for row in in_page)
    in_book = rows_below(book["Candidates"], "GPU")
    assert [(row[0], row[1], row[4], row[6]) for row in in_book] == [pytest.approx(each) for each in candidates]
    in_json = values["configurations"]
    assert [
        (c["gpu"], f"TP{c['tp']}", c["gpus"]["value"], c["planned_per_gpu"]["value"]) for c in in_json
    ] == candidates
    for line_ in (report().sentence, report().working, *report().assumptions, *report().excludes):
        assert line_.lower() in page.text.lower() and squeezed(line_).lower() in text.lower()
        assert any(line_.lower() == str(row[0]).lower() for sheet in book.values() for row in sheet)
        assert line_ in json.dumps(values, ensure_ascii=False)


def test_the_sla_reads_the_same_everywhere(made: dict[str, bytes]) -> None:
    fleet = plan().answer
    expected = [(milliseconds(x.limit_s), milliseconds(fleet.predicted.value_s(x))) for x in QUESTION.sla.limits]
    rows = Page(made["html"].decode()).table("Limit")
    assert [(row[1], row[2]) for row in rows] == expected
    assert all(squeezed("".join(row)) in pdf_text(made["pdf"]) for row in rows)
    in_book = rows_below(sheets(made["xlsx"])["Answer"], "Limit")
    seconds = [(limit.limit_s, fleet.predicted.value_s(limit)) for limit in QUESTION.sla.limits]
    assert [(row[1], row[2]) for row in in_book] == [pytest.approx((1000 * a, 1000 * b)) for a, b in seconds]


def test_every_table_of_the_pdf_is_that_of_the_page(made: dict[str, bytes]) -> None:
    text = pdf_text(made["pdf"])
    for rows in Page(made["html"].decode()).tables:
        assert all(squeezed("".join(row)) in text for row in rows[1:])


@pytest.mark.long
def test_the_same_reports_give_the_same_bytes_in_another_process(tmp_path: Path) -> None:
    reports = {"plan": report(), "day": day_report(), "none": refusal_with_ways(STRICTER)}
    made = {name: {suffix: render(found, suffix) for suffix in WRITERS} for name, found in reports.items()}
    for name, found in reports.items():
        assert {suffix: render(found, suffix) for suffix in WRITERS} == made[name], name
        (tmp_path / name).write_bytes(made[name]["json"])
    again = (
        "import sys, hashlib; from pathlib import Path; from sizing.report.write import WRITERS, read, render\n"
        "for name in sys.argv[1:]:\n"
        "    found = read(Path(name)); print(*(hashlib.sha256(render(found, each)).hexdigest() for each in WRITERS))"
    )
    command = [sys.executable, "-c", again, *(str(tmp_path / name) for name in reports)]
    other = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=240).stdout
    here = [[hashlib.sha256(data).hexdigest() for data in files.values()] for files in made.values()]
    assert [line.split() for line in other.splitlines()] == here


def test_each_format_says_which_question_it_answers(made: dict[str, bytes]) -> None:
    asked = f"question {question_digest(report())}"
    assert asked in Page(made["html"].decode()).text and squeezed(asked) in pdf_text(made["pdf"])
    assert any(asked in str(cell) for row in sheets(made["xlsx"])["Answer"] for cell in row)


def test_the_page_needs_nothing_from_outside(made: dict[str, bytes]) -> None:
    document = made["html"].decode()
    page = Page(document)
    assert not {"script", "link", "iframe", "object", "embed", "form", "img", "base"} & {tag for tag, _ in page.tags}
    for tag, attributes in page.tags:
        assert not any(name.startswith("on") for name in attributes), tag
        for name in ("src", "href", "xlink:href", "action", "data"):
            assert (attributes.get(name) or "#").startswith("#")
    assert not re.search(r"url\((?!#)|@import", document)
    assert "prefers-color-scheme: dark" in document and "@media print" in document


def test_charts_say_what_they_show_and_follow_the_theme(made: dict[str, bytes]) -> None:
    page = Page(made["html"].decode())
    figures = [attributes for tag, attributes in page.tags if tag == "figure"]
    assert [each["aria-label"] for each in figures] == [chart.alt for chart in charts(report())]
    assert milliseconds(plan().answer.predicted.ttft.p95_s) in str(figures[0]["aria-label"])
    drawn = made["html"].decode().partition("<svg")[2].partition("</svg>")[0]
    assert "var(--line)" in drawn and not re.search(r"#[0-9a-f]{6}", drawn)
    names = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(names) == len(set(names))


def test_the_page_holds_its_own_json(made: dict[str, bytes]) -> None:
    hostile = dataclasses.replace(report(), notes="</pre><script>\u202e\x00\n&lt;")
    for found in (report(), hostile):
        texts = Page(render(found, "html").decode()).texts
        document = "".join(text for tag, text in texts if tag == "pre" and '"schema"' in text)
        assert Report.from_json(document) == found


def test_the_pdf_is_tagged_and_titled(made: dict[str, bytes]) -> None:
    document = pypdfium2.PdfDocument(made["pdf"])
    try:
        assert document.get_metadata_dict()["Title"] == report().title
        assert document.is_tagged()
        assert len(document) <= 8
    finally:
        document.close()
    assert b"pdfuaid" in made["pdf"]


@pytest.mark.parametrize("text", HOSTILE, ids=[repr(text[:12]) for text in HOSTILE])
def test_text_from_outside_is_shown_as_text(text: str) -> None:
    found = hostile(text)
    page = Page(render(found, "html").decode())
    assert not {"script", "img"} & {tag for tag, _ in page.tags}
    assert {name for _, attributes in page.tags for name in attributes if name.startswith("on")} == set()
    assert line(text) in page.table("GPU")[0][0]
    assert Report.from_json(as_json(found)) == found
    pdf = pdf_text(render(found, "pdf"))
    if all(ord(char) < 0x500 for char in visible(text)):  # no box for what the fonts lack, one direction only
        assert squeezed(line(text)) in pdf
    book = sheets(render(found, "xlsx"), values=False)
    cells = [cell for sheet in book.values() for row in sheet for cell in row if isinstance(cell, str)]
    ours = [cell for cell in cells if re.match(r"=(B|\$B|ROUNDUP|E|G|C|IF|A|\()", cell)]
    formulas = [cell for cell in cells if cell.startswith(("=", "+", "-", "@"))]
    assert formulas == ours
    assert any(cell.removeprefix("'").startswith(line(text)[:200]) for cell in cells)


def test_a_tab_in_the_notes_is_a_space_on_paper() -> None:
    """Notes come from tables too; a box stands for characters that the fonts lack."""
    found = pdf_text(render(dataclasses.replace(report(), notes="peak\t40 requests/s"), "pdf"))
    assert "peak40requests/s" in found


def hostile(text: str) -> Report:
    """The report with one text in every field that may come from outside."""
    base = report()
    first = dataclasses.replace(base.configurations[0], gpu=text, precision=text, source=text, binding=text)
    return dataclasses.replace(
        base,
        **dict.fromkeys(("title", "author", "notes", "link", "model", "sentence", "working", "made_at"), text),
        configurations=(first, *base.configurations[1:]),
        left_out=tuple(dataclasses.replace(row, gpu=text, why=text, kind=text) for row in base.left_out),
        inputs=tuple(
            dataclasses.replace(row, value=text if isinstance(row.value, str) else row.value) for row in base.inputs
        ),
        sources=tuple(dataclasses.replace(row, configuration=text, engine=text) for row in base.sources),
        remarks=(text,),
        warnings=(text,),
    )


@pytest.mark.parametrize("suffix", WRITERS)
def test_without_an_answer_every_format_says_why_and_holds_no_count(suffix: str) -> None:
    data = render(refusal(), suffix)
    if suffix == "xlsx":
        text = "\n".join(str(cell) for rows in sheets(data).values() for row in rows for cell in row)
    else:
        text = pdf_text(data) if suffix == "pdf" else data.decode()
    for said in (refusal().sentence, refusal().left_out[0].why):
        assert squeezed(said).lower() in squeezed(text).lower()
    assert not re.search(r"\d+ ?GPUs", text)


@pytest.mark.parametrize("points", [0, 1, 2])
def test_reports_with_hardly_any_curve_are_whole(points: int) -> None:
    curves = report().curves
    assert curves is not None
    short = LoadCurves(
        dataclasses.replace(curves.load, values=curves.load.values[:points]),
        *(curves.planned_per_s, curves.capacity_per_s, curves.headroom),
        tuple(
            dataclasses.replace(each, latency=dataclasses.replace(each.latency, values=each.latency.values[:points]))
            for each in curves.curves
        ),
    )
    found = dataclasses.replace(report(), curves=short, sensitivity=(), left_out=(), cost=(), evidence=())
    for suffix in WRITERS:
        assert render(found, suffix)
    empty = tables.left_out(found).empty
    assert empty in Page(render(found, "html").decode()).text
    assert squeezed(empty) in pdf_text(render(found, "pdf"))


def test_a_caution_is_a_sentence_and_one_configuration_is_not_one_of_one() -> None:
    found = dataclasses.replace(report(), warnings=("measure it again", "Done."))
    text = Page(render(found, "html").decode()).text
    assert "Measure it again." in text and "Done." in text and "Done.." not in text
    assert f"Of {len(found.configurations)} configurations" in str(charts(found))
    assert " configurations that meet" not in str(
        charts(dataclasses.replace(found, configurations=found.configurations[:1]))
    )


MEMORY = {"requests_per_s": 0.12, "ttft": 0.4, "itl": 0.3, "cause": "memory"}
MEMORY |= {"load": "concurrency 250", "isl": 7000.0, "osl": 1000.0, "decoding": 15.0}


@pytest.mark.parametrize("suffix", ["html", "pdf", "xlsx"])
def test_no_sentence_of_the_program_is_cut(suffix: str) -> None:
    said = caution(Caution("poor_fit", MEMORY))
    assert said.endswith("give kv_tokens and max_batch_size of the points")
    left = dataclasses.replace(refusal().left_out[0], why=said)
    found = dataclasses.replace(report(), warnings=(said,), remarks=(said,), assumptions=(said,), left_out=(left,))
    for each in (found, dataclasses.replace(refusal(), reason=said)):
        made = render(each, suffix)
        if suffix == "xlsx":
            shown = "".join(str(cell) for rows in sheets(made).values() for row in rows for cell in row)
        else:
            shown = Page(made.decode()).text if suffix == "html" else pdf_text(made)
        assert squeezed(shown).lower().count(squeezed(said).lower()) == (4 if each is found else 1)


def test_the_chart_says_what_a_replica_carries_where_it_carries_it() -> None:
    found, curves = report(), report().curves
    assert curves is not None and curves.planned_per_s < curves.capacity_per_s * (1 - curves.headroom)
    alt = next(chart.alt for chart in charts(found) if chart.name == "latency")
    assert f"carries {significant(curves.planned_per_s)} requests/s" in alt and "planned for" not in alt


def test_a_long_source_is_not_broken_after_every_word_on_paper() -> None:
    found, source = report(), "aisimulate 0.13.0 of 2026-10-27, vllm 0.24.0, corrected by measured servers"
    dates = {"measured_from": "2026-11-26", "measured_to": "2026-11-27"}
    row = dataclasses.replace(found.sources[0], configuration="b200_sxm DP4 EP4 fp8_block vllm", source=source, **dates)
    document = pypdfium2.PdfDocument(render(dataclasses.replace(found, sources=(row,)), "pdf"))
    text = "\n".join(page.get_textpage().get_text_range() for page in document)
    document.close()
    lines = text[text.index("aisimulate 0.13.0") :].partition("servers")[0].splitlines()
    assert len(lines) <= 4, lines
    assert "vLLM 0.24.0" in " ".join(map(str.strip, lines))


def test_a_missing_typst_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "typst", None)
    with pytest.raises(ReportToolMissing, match=r"pip install 'sizing\[report\]'"):
        render(report(), "pdf")


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write(report(), path)
    assert Report.from_json(path.read_bytes()) == report()
    (tmp_path / "taken.json").mkdir()
    for bad in ("none/x.json", "x.doc", "x", "taken.json"):
        with pytest.raises(ReportError) as error:
            write(report(), tmp_path / bad)
        assert "\n" not in str(error.value)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["taken.json", "x.json"]
