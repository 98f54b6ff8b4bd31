"""Every page on a phone, in the dark, and with names and titles that were made to do harm."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.served import ROOT
from tests.browser.visit import (
    ANSWERING,
    DESK,
    ONE,
    PAGES,
    PHONE,
    fits_sideways,
    opened,
    rested,
    text_of,
    turned,
    url_of,
    visitor,
    walk,
)
from ui.charts.base import DARK, LIGHT

pytestmark = pytest.mark.browser

CHARTS = {"Size": 2, "Curves": 2, "Simulate": 2}
"""Pages that open on charts, and how many."""
THEME = tomllib.loads((ROOT / ".streamlit" / "config.toml").read_text())["theme"]["dark"]
HARMFUL = ("<script>alert(1)</script>", '=HYPERLINK("x")')


def test_no_page_scrolls_sideways_on_a_phone(desk: Page, planner: str) -> None:
    opened(desk, url_of(planner))
    for name in PAGES:
        desk.set_viewport_size(DESK)
        turned(desk, name)
        desk.set_viewport_size(PHONE)
        rested(desk)
        fits_sideways(desk)


def test_a_phone_opens_on_the_answer_with_the_form_folded_away(browser: Browser, planner: str) -> None:
    with visitor(browser, planner, viewport=PHONE) as page:
        main = opened(page, url_of(planner))
        title = main.get_by_role("heading", level=1)
        box = title.bounding_box()
        assert box and box["y"] + box["height"] < PHONE["height"] / 2
        expect(page.get_by_label("Peak load (requests/s)", exact=True)).not_to_be_in_viewport()
        fits_sideways(page)


def test_in_the_dark_every_page_and_its_charts_are_dark(browser: Browser, planner: str) -> None:
    with visitor(browser, planner, color_scheme="dark") as page:
        opened(page, url_of(planner))
        for name, main in walk(page, PAGES):
            expect(page.get_by_test_id("stApp")).to_have_css("background-color", css(THEME["backgroundColor"]))
            expect(main.get_by_role("heading", level=1)).to_have_css("color", css(THEME["textColor"]))
            expect(main.locator(".js-plotly-plot .main-svg:first-child")).to_have_count(CHARTS.get(name, 0))
            drawn = main.locator(".js-plotly-plot").evaluate_all("plots => plots.map(plot => plot.outerHTML).join('')")
            if name in CHARTS:
                assert css(DARK.series[0]) in drawn and css(LIGHT.series[0]) not in drawn, name


def css(colour: str) -> str:
    """A colour as the browser writes it."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgb({red}, {green}, {blue})"


@pytest.mark.parametrize("harmful", HARMFUL)
def test_a_harmful_name_is_text_on_every_page(desk: Page, planner: str, harmful: str) -> None:
    opened(desk, url_of(planner, scenario=replace(ONE, model=harmful)))
    for name, main in walk(desk, PAGES):
        expect(desk.get_by_role("combobox", name="Model")).to_have_value(harmful)
        if name in ANSWERING:
            assert harmful in text_of(main), name
        assert main.get_by_role("link", name=harmful).count() == 0, name
        scripts = desk.locator("script").evaluate_all("all => all.filter(one => one.text.includes('alert(1)')).length")
        assert scripts == 0, name
