"""The pages that app.py names, and how to tell in a browser that one has been drawn to its end."""

from __future__ import annotations

import ast
from typing import Literal

from playwright.sync_api import Browser, Page, expect

from tests.browser.served import ROOT

Theme = Literal["light", "dark"]
THEMES: tuple[Theme, ...] = ("light", "dark")
DESK, PHONE = (1440, 900), (390, 844)
WAIT_MS = 180_000
SETTLED_FOR_MS = 400
"""Transitions end within it."""


def pages() -> dict[str, str]:
    """Title and path of each st.Page of app.py, in the order of the navigation."""
    calls = [node for node in ast.walk(ast.parse((ROOT / "app.py").read_text())) if isinstance(node, ast.Call)]
    found = [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "Page"]
    arguments = [{word.arg: ast.literal_eval(word.value) for word in call.keywords} for call in found]
    return {words["title"]: f"/{words.get('url_path', '')}" for words in arguments}


def open_page(browser: Browser, address: str, theme: Theme = "light", size: tuple[int, int] = DESK) -> Page:
    """A new visitor with that theme and screen; the page is there and done. Close its context afterwards."""
    context = browser.new_context(
        color_scheme=theme, viewport={"width": size[0], "height": size[1]}, reduced_motion="reduce"
    )
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    page.goto(address)
    wait_until_drawn(page)
    return page


def wait_until_drawn(page: Page) -> None:
    """Until the script has ended, its title is there, no element is still a grey bar, and nothing moves any more."""
    expect(page.get_by_role("heading", level=1).first).to_be_visible(timeout=WAIT_MS)
    page.wait_for_selector("[data-testid=stApp][data-test-script-state=notRunning]", timeout=WAIT_MS)
    expect(page.get_by_test_id("stSkeleton")).to_have_count(0, timeout=WAIT_MS)
    for chart in page.locator("[data-testid=stPlotlyChart]").all():
        chart.locator(".main-svg").first.wait_for()
    page.wait_for_timeout(SETTLED_FOR_MS)
