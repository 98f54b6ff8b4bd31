"""The four reports as a visitor downloads them: opened, and compared with each other and with the page."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import openpyxl
import pypdfium2
import pytest
from playwright.sync_api import Browser, Download, Page, expect

from sizing.numbers import milliseconds, significant
from sizing.report.document import as_html
from sizing.report.model import Report
from tests.browser.visit import fits_sideways, opened, rested, settled, text_of, title_of, turned, url_of
from tests.sizing.report_cases import report

pytestmark = pytest.mark.browser

FORMATS = ("PDF", "HTML", "XLSX", "JSON")
TITLE = "<script>alert(1)</script> Chat, spring"
AUTHOR = '=HYPERLINK("x")'


class Texts(HTMLParser):
    """What stands in an HTML file, and what in it could run or ask a network."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: set[str] = set()
        self.asked: list[str] = []
        self.feed(document)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.asked += [value or "" for name, value in attrs if name in ("src", "srcset", "data") or name[:2] == "on"]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def cover(page: Page, title: str = TITLE) -> None:
    """Type the cover of the report."""
    for label, value in (("Title", title), ("Author", AUTHOR), ("Notes", "First line.\nSecond line.")):
        page.get_by_label(label, exact=True).fill(value)
    page.get_by_role("button", name="Apply to the report").click()
    expect(page.get_by_test_id("stMain").get_by_text(title[:25]).first).to_be_visible()
    rested(page)


def saved(page: Page, name: str, folder: Path) -> Path:
    """Press the button of a format; the file that the browser got, under the name that it was given."""
    with page.expect_download() as started:
        page.get_by_role("button", name=f"Download {name}").click()
    download: Download = started.value
    assert download.suggested_filename.endswith(f".{name.lower()}")
    path = folder / download.suggested_filename
    download.save_as(path)
    return path


def text_of_pdf(path: Path) -> str:
    with pypdfium2.PdfDocument(path) as document:
        pages = [document[number].get_textpage().get_text_bounded() for number in range(len(document))]
    return " ".join(" ".join(pages).split())


def solid(text: str) -> str:
    """`text` without white space and places to break a line, which a page of paper has where it likes."""
    return re.sub(r"[\s\u200b]", "", text)


def cells_of(path: Path) -> dict[str, list[list[object]]]:
    """Rows of every sheet, formulas by the values stored with them."""
    book = openpyxl.load_workbook(path, data_only=True)
    return {sheet.title: [[cell for cell in row if cell is not None] for row in sheet.values] for sheet in book}


def test_all_four_say_what_the_page_says(desk: Page, browser: Browser, planner: str, tmp_path: Path) -> None:
    size = opened(desk, url_of(planner))
    sentence = title_of(desk)
    cards = [card.inner_text().split("\n") for card in size.get_by_test_id("stMetric").all()]
    said = turned(desk, "Report")
    cover(desk)
    assert sentence in text_of(said)
    pdf, html, xlsx, json = (saved(desk, name, tmp_path) for name in FORMATS)
    found = Report.from_json(json.read_bytes())
    assert found.answer is not None
    shown = [significant(found.answer.planned_per_gpu.value or 0), f"{found.answer.gpus.value:,.0f}"]
    for limit in found.limits:
        shown += [milliseconds(limit.limit.value or 0), milliseconds(limit.predicted.value or 0)]
    assert all(any(value in line for card in cards for line in card) for value in shown), (shown, cards)

    page, printed = Texts(html.read_text()), text_of_pdf(pdf)
    for text in (page.text, printed):
        for part in (sentence, TITLE, AUTHOR, "Second line.", *shown):
            assert solid(part) in solid(text), part
    assert not page.tags & {"script", "iframe", "object", "embed", "link"} and page.asked == []
    assert found.sentence == sentence and (found.title, found.author) == (TITLE, AUTHOR)

    sheets = cells_of(xlsx)
    answer = {row[0]: row[1] for row in sheets["Answer"] if len(row) == 2}
    assert answer["GPUs"] == found.answer.gpus.value
    assert answer["Requests/s per GPU"] == pytest.approx(found.answer.planned_per_gpu.value)
    texts = {cell for row in sheets["Answer"] for cell in row}
    assert {sentence, TITLE, f"'{AUTHOR}"} <= texts  # a leading apostrophe keeps a spreadsheet from computing it
    for limit in found.limits:
        row = next(row for row in sheets["Answer"] if row and row[0] == limit.name)
        assert row[1:3] == pytest.approx([1000 * (each.value or 0) for each in (limit.limit, limit.predicted)])  # ms

    offline(browser, html)


def offline(browser: Browser, html: Path) -> None:
    """The HTML file opens without a network, runs nothing, and fits a phone."""
    context = browser.new_context(offline=True, viewport={"width": 390, "height": 844})
    page = context.new_page()
    asked: list[str] = []
    page.on("request", lambda request: request.url.startswith("file:") or asked.append(request.url))
    page.on("console", lambda message: message.type == "error" and asked.append(message.text))
    page.on("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
    page.goto(html.as_uri())
    expect(page.get_by_text(TITLE).first).to_be_visible()
    fits_sideways(page)
    assert asked == []
    context.close()


def test_costs_are_read_on_a_phone_without_scrolling_sideways(browser: Browser, tmp_path: Path) -> None:
    html = tmp_path / "report.html"
    html.write_text(as_html(report()), encoding="utf-8")
    context = browser.new_context(offline=True, viewport={"width": 390, "height": 844})
    page = context.new_page()
    page.goto(html.as_uri())
    costs = page.get_by_role("table", name="Cost and energy")
    assert costs.evaluate("table => table.scrollWidth <= table.parentElement.clientWidth")
    context.close()


def test_a_file_asked_for_with_the_change_of_a_field_is_not_taken_for_the_new_one(
    desk: Page, planner: str, tmp_path: Path
) -> None:
    """The click leaves the field, so the change and the click reach the server together.

    Streamlit then gives the file of the question before, of the new one, or none: it drops the answer that a new run
    of the page overtakes.
    """
    opened(desk, url_of(planner, "report"))
    before = saved(desk, "JSON", tmp_path)
    field = desk.get_by_label("Peak load (requests/s)", exact=True)
    field.fill("21")
    given: list[Download] = []
    desk.on("download", lambda file: given.append(file))
    desk.get_by_role("button", name="Download JSON").click()
    expect(desk.get_by_role("heading", name="to serve 21 requests/s")).to_be_visible()
    rested(desk)
    told = desk.get_by_text("answers the question before the last change")
    while not (given or told.is_visible()):  # the suite's limit on a test ends this one if neither comes
        desk.wait_for_timeout(100)
    for file in given:
        belated = Report.from_json(Path(file.path()).read_bytes()).given("rate_per_s") == 20
        assert belated == (file.suggested_filename == before.name) == told.is_visible()
    after = saved(desk, "JSON", tmp_path)
    assert Report.from_json(after.read_bytes()).given("rate_per_s") == 21 and after.name != before.name


def test_a_day_chosen_on_the_size_page_comes_along_and_survives_a_reload(
    desk: Page, planner: str, tmp_path: Path
) -> None:
    opened(desk, url_of(planner))
    desk.get_by_role("radio", name="Over a day").click()
    expect(desk.get_by_role("heading", level=1)).to_contain_text("over the day")
    rested(desk)
    sentence = title_of(desk)
    turned(desk, "Report")
    expect(desk).to_have_url(re.compile(r"show\.size=day"))
    pdf, html, xlsx, json = (saved(desk, name, tmp_path) for name in FORMATS)
    found = Report.from_json(json.read_bytes())
    assert found.day is not None and found.day.sentence == sentence
    for text in (Texts(html.read_text()).text, text_of_pdf(pdf), str(cells_of(xlsx)["Over a day"])):
        assert solid(sentence) in solid(text)
    desk.reload()
    settled(desk)
    expect(desk).to_have_url(re.compile(r"show\.size=day"))
    again = Report.from_json(saved(desk, "JSON", tmp_path).read_bytes())  # of which the other three are made
    assert again.day == found.day
    opened(desk, found.link)
    expect(desk.get_by_role("heading", level=1)).to_have_text(sentence)


def test_a_title_of_ten_kilobytes_reaches_every_file_as_text(desk: Page, planner: str, tmp_path: Path) -> None:
    title = "<script>alert(1)</script>" + "long title " * 1000
    opened(desk, url_of(planner, "report"))
    cover(desk, title)
    fits_sideways(desk)
    pdf, html, xlsx, json = (saved(desk, name, tmp_path) for name in FORMATS)
    assert Report.from_json(json.read_bytes()).title == title
    assert title[:200] in Texts(html.read_text()).text and "script" not in Texts(html.read_text()).tags
    assert solid(title[:60]) in solid(text_of_pdf(pdf))
    assert title[:200] in cells_of(xlsx)["Answer"][0][0]  # type: ignore[operator]


def test_without_an_answer_the_files_hold_no_count(desk: Page, planner: str, tmp_path: Path) -> None:
    opened(desk, url_of(planner, "report", itl="p99:0.0001s"))
    pdf, html, xlsx, json = (saved(desk, name, tmp_path) for name in FORMATS)
    found = Report.from_json(json.read_bytes())
    assert found.answer is None and found.configurations == ()
    texts = [Texts(html.read_text()).text, text_of_pdf(pdf), str(cells_of(xlsx)["Answer"])]
    for text in texts:
        assert "No configuration meets this SLA" in text and "You need" not in text
