"""A visit in a real browser: the answer is there, follows the form, travels in the URL; nothing complains."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from tests.browser.served import chromium, served
from tests.browser.visit import fits_sideways, rested

pytestmark = pytest.mark.browser

ONE = "/?gpu=h200_sxm&precision=fp8&tp=1"
WAIT_MS = 120_000
ANSWER = re.compile(r"You need \d+ × h200_sxm")
LATE = re.compile(r"/(Multiselect|Selectbox|Checkbox)\.[^/]*\.js")
PHONE = {"width": 390, "height": 844}
expect.set_options(timeout=WAIT_MS)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The app over an empty store."""
    with served(f"sqlite:///{tmp_path_factory.mktemp('store') / 'calibration.db'}") as url:
        yield url


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    """A fresh visitor on a desk's screen; the console must stay free of errors and no foreign host may be asked."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: message.type == "error" and complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "request", lambda request: request.url.startswith((address, "data:", "blob:")) or complaints.append(request.url)
    )
    page.set_default_timeout(WAIT_MS)
    yield page
    context.close()
    assert complaints == []


def answer(page: Page, words: str = "") -> str:
    """The answer's sentence, once it is there and holds `words`. While a page changes, its old heading is there too."""
    heading = page.get_by_role("heading", level=1).filter(has_text=words)
    expect(heading).to_have_text(ANSWER)
    return heading.inner_text()


def field(page: Page, label: str) -> Locator:
    """The number input of that label."""
    return page.get_by_label(label, exact=True)


def set_load(page: Page, rate: str) -> str:
    """Type a load; the answer to it."""
    load = field(page, "Peak load (requests/s)")
    load.fill(rate)
    load.press("Enter")
    return answer(page, f"{rate} requests/s")


def test_the_answer_is_there_follows_the_form_and_travels_in_the_url(page: Page, address: str) -> None:
    page.goto(address + ONE)
    first = answer(page)
    second = set_load(page, "200")
    assert first != second
    expect(page).to_have_url(re.compile(r"rate=200\.0.*&n=\d+"))
    page.goto(page.url)
    assert answer(page) == second


def test_a_field_changed_before_the_first_answer_is_kept(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """On a server of its own, where the first answer takes seconds."""
    with served(f"sqlite:///{tmp_path_factory.mktemp('cold') / 'calibration.db'}") as url:
        page = browser.new_page()
        page.set_default_timeout(WAIT_MS)
        page.goto(url + ONE)
        expect(field(page, "Peak load (requests/s)")).to_have_value("20")
        set_load(page, "200")
        page.close()


@pytest.mark.parametrize("turned", [False, True], ids=["field changed", "page turned"])
def test_a_form_that_was_half_drawn_when_the_visitor_went_on_is_drawn_whole(
    page: Page, address: str, turned: bool
) -> None:
    """The scripts of some kinds of widgets come late: those are drawn only when the next run has ended."""
    late: list[Route] = []
    released: list[Route] = []
    page.route(LATE, lambda route: route.continue_() if released else late.append(route))
    page.goto(address + ONE)
    expect(field(page, "Peak load (requests/s)")).to_have_value("20")
    if turned:
        page.get_by_role("link", name="Method").click()
    else:
        set_load(page, "30")
    expect(page).to_have_url(re.compile(r"/method\?.*&day=" if turned else r"rate=30\.0.*&day="))
    released += late
    for route in late:
        route.continue_()
    expect(page.get_by_test_id("stMultiSelect")).to_have_text([re.compile(name) for name in ("h200_sxm", "fp8", "1")])
    load = field(page, "Peak load (requests/s)")
    load.fill("40")
    load.press("Enter")
    expect(page).to_have_url(re.compile(r"model=Qwen%2FQwen3-32B&gpu=h200_sxm&precision=fp8&tp=1&rate=40\.0.*&day="))


def test_the_back_button_brings_the_older_question_back(page: Page, address: str) -> None:
    page.goto(address + ONE)
    first = answer(page)
    expect(page).to_have_url(re.compile("n="))
    rested(page)
    set_load(page, "200")
    expect(page).to_have_url(re.compile(r"rate=200"))
    rested(page)
    page.go_back()
    assert answer(page, "20 requests/s") == first
    expect(field(page, "Peak load (requests/s)")).to_have_value("20")


def test_the_answer_needs_no_scrolling_on_a_desk(page: Page, address: str) -> None:
    page.goto(address + ONE)
    answer(page)
    expect(page.locator(".js-plotly-plot .main-svg").first).to_be_visible()
    main = page.get_by_test_id("stMain")
    assert main.evaluate("element => element.scrollHeight - element.clientHeight") <= 0


def test_a_preset_answers_at_once(page: Page, address: str) -> None:
    page.goto(address + ONE)
    answer(page)
    page.get_by_role("radio", name="Code").or_(page.get_by_role("button", name="Code")).first.click()
    expect(page).to_have_url(re.compile(r"e2e=p95%3A3\.0s"))
    answer(page)
    expect(field(page, "Output (tokens)")).to_have_value("80")


def test_curves_opens_from_the_navigation_and_keeps_the_question(page: Page, address: str) -> None:
    page.goto(address + ONE)
    answer(page)
    rested(page)
    set_load(page, "50")
    rested(page)
    page.get_by_role("link", name="Curves").click()
    expect(page.get_by_role("heading", level=1).filter(has_text="requests/s under this SLA")).to_be_visible()
    expect(page.locator(".js-plotly-plot").first).to_be_visible()
    expect(field(page, "Peak load (requests/s)")).to_have_value("50")
    rested(page)
    page.get_by_role("link", name="Size").click()
    answer(page, "50 requests/s")


def test_a_phone_never_scrolls_sideways(page: Page, address: str) -> None:
    page.set_viewport_size(PHONE)
    page.goto(address + ONE)
    answer(page)
    expect(page.locator(".js-plotly-plot .main-svg").first).to_be_visible()
    fits_sideways(page)


def test_a_link_with_markup_runs_nothing(page: Page, address: str) -> None:
    dialogs: list[str] = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    page.goto(f"{address}{ONE}&model=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E&rate=%3Cscript%3Ealert(2)%3C/script%3E")
    expect(page.get_by_role("heading", level=1)).to_have_text("A name in this question is not known")
    expect(page.get_by_text("<script>alert(2)</script>")).to_be_visible()
    assert dialogs == [] and page.locator("img[src=x]").count() == 0
