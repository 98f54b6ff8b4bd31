"""A visit in a real browser: the answer is there, follows the form, travels in the URL; nothing complains."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from tests.browser.served import served
from tests.browser.visit import rested, text_of

pytestmark = pytest.mark.browser

ONE = "/?gpu=h200_sxm&precision=fp8&tp=1&engine=trtllm"
WAIT_MS = 120_000
ANSWER = re.compile(r"You need \d+ × h200_sxm")
LATE = re.compile(r"/(Multiselect|Selectbox|Checkbox)\.[^/]*\.js")
expect.set_options(timeout=WAIT_MS)


def answer(page: Page, words: str = "") -> str:
    """The answer's sentence, once it is there and holds `words`. While a page changes, its old heading is there too."""
    heading = page.get_by_role("heading", level=1).filter(has_text=words)
    expect(heading).to_have_text(ANSWER)
    return text_of(heading)


def field(page: Page, label: str) -> Locator:
    """The number input of that label."""
    return page.get_by_label(label, exact=True)


def set_load(page: Page, rate: str) -> str:
    """Type a load; the answer to it."""
    load = field(page, "Peak load (requests/s)")
    load.fill(rate)
    load.press("Enter")
    return answer(page, f"{rate} requests/s")


def test_the_answer_is_there_follows_the_form_and_travels_in_the_url_and_back(desk: Page, planner: str) -> None:
    desk.goto(planner + ONE)
    first = answer(desk)
    expect(desk).to_have_url(re.compile("n="))
    expect(desk.locator(".js-plotly-plot .main-svg").first).to_be_visible()
    rested(desk)
    main = desk.get_by_test_id("stMain")
    assert main.evaluate("element => element.scrollHeight - element.clientHeight") <= 0, "the answer needs scrolling"
    second = set_load(desk, "200")
    assert first != second
    expect(desk).to_have_url(re.compile(r"rate=200\.0.*&n=\d+"))
    rested(desk)
    link = desk.url
    desk.go_back()
    assert answer(desk, "20 requests/s") == first
    expect(field(desk, "Peak load (requests/s)")).to_have_value("20")
    desk.goto(link)
    assert answer(desk, "200 requests/s") == second


def test_the_question_is_kept_over_pages_and_a_preset_answers_at_once(desk: Page, planner: str) -> None:
    desk.goto(planner + ONE)
    answer(desk)
    rested(desk)
    set_load(desk, "50")
    rested(desk)
    desk.get_by_role("link", name="Curves").click()
    expect(desk.get_by_role("heading", level=1).filter(has_text="requests/s under this SLA")).to_be_visible()
    expect(desk.locator(".js-plotly-plot").first).to_be_visible()
    expect(field(desk, "Peak load (requests/s)")).to_have_value("50")
    rested(desk)
    desk.get_by_role("link", name="Size").click()
    answer(desk, "50 requests/s")
    rested(desk)
    desk.get_by_role("radio", name="Code").or_(desk.get_by_role("button", name="Code")).first.click()
    expect(desk).to_have_url(re.compile(r"e2e=p95%3A3\.0s"))
    answer(desk)
    expect(field(desk, "Output (tokens)")).to_have_value("28")


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
    desk: Page, planner: str, turned: bool
) -> None:
    """The scripts of some kinds of widgets come late: those are drawn only when the next run has ended."""
    late: list[Route] = []
    released: list[Route] = []
    desk.route(LATE, lambda route: route.continue_() if released else late.append(route))
    desk.goto(planner + ONE)
    expect(field(desk, "Peak load (requests/s)")).to_have_value("20")
    if turned:
        desk.get_by_role("link", name="Method").click()
    else:
        set_load(desk, "30")
    expect(desk).to_have_url(re.compile(r"/method\?.*&day=" if turned else r"rate=30\.0.*&day="))
    released += late
    for route in late:
        route.continue_()
    expect(desk.get_by_test_id("stMultiSelect")).to_have_text(
        [re.compile(name) for name in ("h200_sxm", "fp8", "1", "TensorRT-LLM", "Layout")]
    )
    load = field(desk, "Peak load (requests/s)")
    load.fill("40")
    load.press("Enter")
    expect(desk).to_have_url(
        re.compile(r"model=Qwen%2FQwen3-32B&gpu=h200_sxm&precision=fp8&tp=1&engine=trtllm&layout=any&rate=40\.0.*&day=")
    )


def test_a_link_with_markup_runs_nothing(desk: Page, planner: str) -> None:
    """A dialog would be a complaint of the visit."""
    desk.goto(f"{planner}{ONE}&model=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E&rate=%3Cscript%3Ealert(2)%3C/script%3E")
    expect(desk.get_by_role("heading", level=1)).to_have_text("A name in this question is not known")
    expect(desk.get_by_text("<script>alert(2)</script>")).to_be_visible()
    assert desk.locator("img[src=x]").count() == 0
