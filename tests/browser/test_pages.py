"""Every page as it is drawn, light and dark, at a desk and on a phone, and with names that were made to do harm."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page, ViewportSize, expect

from tests.browser.pages import THEMES, Theme, pages, wait_until_drawn
from tests.browser.served import ROOT
from tests.browser.visit import (
    ANSWERING,
    DESK,
    ONE,
    PAGES,
    PHONE,
    TITLES,
    fits_sideways,
    opened,
    rested,
    text_of,
    title_of,
    turned,
    url_of,
    visitor,
    walk,
)
from ui.charts.base import DARK, LIGHT
from ui.scenario import Scenario

pytestmark = pytest.mark.browser

CHARTS = {"Size": 2, "Curves": 2, "Simulate": 2}
"""Pages that open on charts, and how many."""
COLOURS = tomllib.loads((ROOT / ".streamlit" / "config.toml").read_text())["theme"]
SERIES = {"light": LIGHT.series[0], "dark": DARK.series[0]}
HARMFUL = '=HYPERLINK("x")<script>alert(1)</script>'
STOPS = 12
"""Elements that the tabulator key visits in the test of the focus: help, presets, model, GPUs."""
AROUND_FOCUS = """() => {
    const box = document.activeElement.getBoundingClientRect();
    const x = Math.max(0, box.x - 6), y = Math.max(0, box.y - 6);
    return {x, y, width: Math.max(8, box.width + 12), height: Math.max(8, box.height + 12)};
}"""
GRAVE = ("serious", "critical")
CUT = """() => [...document.querySelectorAll('[data-testid=stMetric] *, [data-testid=stMain] .dvn-scroller')]
    .filter(one => getComputedStyle(one).overflowX !== 'visible' && one.scrollWidth > one.clientWidth + 1)
    .map(one => one.innerText || 'a table')"""
"""Cards whose words are cut, and tables that are wider than the page."""


# --- One visit per theme, from page to page


@dataclass(frozen=True, slots=True)
class Drawn:
    """A page at the end of its drawing, and the visitor who looks at it."""

    name: str
    main: Locator
    page: Page
    theme: Theme


# The wider scope has the pages of one theme tested before those of the next: two visits, not one for each page.
@pytest.fixture(scope="package", params=THEMES)
def theme(request: pytest.FixtureRequest) -> Theme:
    chosen: Theme = request.param
    return chosen


@pytest.fixture(scope="package")
def visit(browser: Browser, planner: str, theme: Theme) -> Iterator[Page]:
    """A visitor at a desk, on the Size page; the complaints of the whole visit fail its last test."""
    with visitor(browser, planner, color_scheme=theme) as page:
        opened(page, url_of(planner))
        wait_until_drawn(page)
        yield page


@pytest.fixture(scope="module", params=pages())
def drawn(request: pytest.FixtureRequest, visit: Page, theme: Theme) -> Drawn:
    """A page of app.py, turned to by the navigation."""
    main = turned(visit, request.param)
    wait_until_drawn(visit)
    return Drawn(request.param, main, visit, theme)


def grave(page: Page) -> list[str]:
    """One line for each element in which axe-core finds something serious or critical."""
    found: dict[str, list[dict[str, Any]]] = Axe().run(page).response
    assert found["passes"], "axe looked at nothing"
    return [
        f"{finding['id']}: {node['target']} {node['html'][:200]}: {node['failureSummary']}"
        for finding in found["violations"]
        if finding["impact"] in GRAVE
        for node in finding["nodes"]
    ]


def test_what_has_the_focus_is_seen(visit: Page) -> None:
    previous: tuple[dict[str, float], bytes] | None = None
    seen = []
    for _ in range(STOPS):
        visit.keyboard.press("Tab")
        visit.wait_for_timeout(250)
        if previous is not None:
            area, focused = previous
            seen.append(visit.screenshot(clip=area) != focused)  # type: ignore[arg-type]
        box = visit.evaluate(AROUND_FOCUS)
        previous = (box, visit.screenshot(clip=box))
    assert len(seen) == STOPS - 1 and all(seen), f"at these stops nothing shows the focus: {seen}"


def test_no_grave_finding(drawn: Drawn) -> None:
    assert grave(drawn.page) == []


def test_where_there_is_an_answer_the_title_gives_it_without_a_warning(drawn: Drawn) -> None:
    if drawn.name in ANSWERING:
        assert TITLES[drawn.name] in title_of(drawn.page)
        assert drawn.main.get_by_test_id("stAlert").count() == 0


def test_page_and_charts_have_the_colours_of_the_theme(drawn: Drawn) -> None:
    own, other = COLOURS[drawn.theme], SERIES["dark" if drawn.theme == "light" else "light"]
    expect(drawn.page.get_by_test_id("stApp")).to_have_css("background-color", css(own["backgroundColor"]))
    expect(drawn.main.get_by_role("heading", level=1)).to_have_css("color", css(own["textColor"]))
    expect(drawn.main.locator(".js-plotly-plot .main-svg:first-child")).to_have_count(CHARTS.get(drawn.name, 0))
    plots = drawn.main.locator(".js-plotly-plot")
    markup = plots.evaluate_all("plots => plots.map(plot => plot.outerHTML).join('')")
    if drawn.name in CHARTS:
        assert css(SERIES[drawn.theme]) in markup and css(other) not in markup


@pytest.mark.parametrize("theme", ["light"], indirect=True, scope="package")
def test_no_card_and_no_table_is_cut_at_a_desk(drawn: Drawn) -> None:
    assert drawn.page.evaluate(CUT) == []


@pytest.mark.parametrize("theme", ["light"], indirect=True, scope="package")
def test_no_page_scrolls_sideways_on_a_phone(drawn: Drawn) -> None:
    drawn.page.set_viewport_size(PHONE)
    rested(drawn.page)
    fits_sideways(drawn.page)
    drawn.page.set_viewport_size(DESK)


@pytest.mark.parametrize(
    ("page", "shows"), [("method", {"show.method": "accuracy"}), ("compare", {"price": "2.5", "show.cost": "on"})]
)
def test_no_wide_table_is_cut_at_a_desk(desk: Page, planner: str, page: str, shows: dict[str, str]) -> None:
    main = opened(desk, url_of(planner, page, Scenario(), **shows))
    wait_until_drawn(desk)
    expect(main.get_by_test_id("stDataFrame").first).to_be_visible()
    assert desk.evaluate(CUT) == []


def css(colour: str) -> str:
    """A colour as the browser writes it."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgb({red}, {green}, {blue})"


# --- Visits of their own


def test_a_phone_opens_on_the_answer_with_the_form_folded_away(browser: Browser, planner: str) -> None:
    with visitor(browser, planner, viewport=PHONE) as page:
        main = opened(page, url_of(planner))
        title = main.get_by_role("heading", level=1)
        box = title.bounding_box()
        assert box and box["y"] + box["height"] < PHONE["height"] / 2
        expect(page.get_by_label("Peak load (requests/s)", exact=True)).not_to_be_in_viewport()
        wait_until_drawn(page)
        expect(page.locator(".js-plotly-plot .main-svg").first).to_be_visible()
        fits_sideways(page)
        assert grave(page) == []


@pytest.mark.parametrize(("screen", "columns"), [(DESK, 3), (PHONE, 2)], ids=["desk", "phone"])
def test_six_cards_stand_in_even_rows_with_all_their_words(
    browser: Browser, planner: str, screen: ViewportSize, columns: int
) -> None:
    with visitor(browser, planner, viewport=screen) as page:
        main = opened(page, url_of(planner, ttft="p95:1s", itl="p95:0.03s", e2e="p95:20s", goodput="99%"))
        wait_until_drawn(page)
        assert "99 % goodput" in text_of(main)
        tops = main.get_by_test_id("stMetric").evaluate_all("all => all.map(one => one.getBoundingClientRect().top)")
        assert [tops.count(top) for top in tops] == [columns] * 6
        assert set(page.evaluate(CUT)) <= {"a table"}


@pytest.mark.parametrize("screen", [DESK, PHONE], ids=["desk", "phone"])
def test_a_limit_and_its_percentile_share_a_row_as_long_as_the_other_fields(
    browser: Browser, planner: str, screen: ViewportSize
) -> None:
    with visitor(browser, planner, viewport=screen) as page:
        opened(page, url_of(planner))
        if screen == PHONE:
            page.get_by_test_id("stExpandSidebarButton").click()
        wait_until_drawn(page)
        limit, percentile, below = (
            page.locator(f".st-key-{key}").evaluate("one => one.getBoundingClientRect().toJSON()")
            for key in ("ttft_limit", "ttft_percentile", "spare")
        )
        assert limit["top"] == percentile["top"]
        assert percentile["right"] == pytest.approx(below["right"], abs=1)


def test_no_instruction_covers_the_digits_of_a_number(desk: Page, planner: str) -> None:
    opened(desk, url_of(planner))
    field = desk.get_by_label("Peak load (requests/s)", exact=True)
    field.fill("201.25")
    expect(desk.get_by_text("Press Enter to apply")).not_to_be_visible()
    field.press("Tab")
    expect(desk).to_have_url(re.compile(r"rate=201\.25"))


def test_a_reason_takes_one_line_where_its_column_has_room(desk: Page, planner: str) -> None:
    opened(desk, url_of(planner, itl="p95:0.0001s"))
    reason = desk.get_by_role("cell").filter(has_text="the limit is")
    assert reason.evaluate("one => one.getBoundingClientRect().height") < 50


def test_no_card_of_the_lesson_is_cut_at_a_desk(desk: Page, planner: str) -> None:
    main = opened(desk, url_of(planner, "simulate", show_simulate="lesson"))
    expect(main.get_by_test_id("stMetric")).to_have_count(6)
    assert desk.evaluate(CUT) == []


def test_a_harmful_name_is_text_on_every_page(desk: Page, planner: str) -> None:
    opened(desk, url_of(planner, scenario=replace(ONE, model=HARMFUL)))
    for name, main in walk(desk, PAGES):
        expect(desk.get_by_role("combobox", name="Model")).to_have_value(HARMFUL)
        if name in ANSWERING:
            assert HARMFUL in text_of(main), name
        assert main.get_by_role("link", name=HARMFUL).count() == 0, name
        scripts = desk.locator("script").evaluate_all("all => all.filter(one => one.text.includes('alert(1)')).length")
        assert scripts == 0, name


def test_the_scan_sees_what_is_wrong(browser: Browser) -> None:
    page = browser.new_page(viewport=DESK)
    page.set_content("<html><body><img src='x'><p style='color:#999;background:#fff'>pale</p></body></html>")
    found = grave(page)
    page.close()
    assert {line.split(":")[0] for line in found} >= {"image-alt", "color-contrast", "html-has-lang"}
