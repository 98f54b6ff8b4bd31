"""A visit to the app in a real browser: the pages, how to tell that one is settled, what is on it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Literal
from urllib.parse import quote, urlencode, urlsplit

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Locator, Page, ViewportSize, expect

from ui import link
from ui.scenario import Scenario

WAIT_MS = 120_000
Theme = Literal["light", "dark"]
DESK: ViewportSize = {"width": 1440, "height": 900}
PHONE: ViewportSize = {"width": 390, "height": 844}
PAGES = ("Size", "Compare", "Curves", "Simulate", "Calibrate", "Report", "Method")
ANSWERING = ("Size", "Compare", "Curves", "Simulate", "Report")
"""Pages that say something else for another answer."""
TITLES = {"Size": "You need", "Compare": "this SLA", "Curves": "carries", "Simulate": "SLA", "Report": "Report"}
"""What the title of each page holds where there is an answer."""
ONE = Scenario(gpus=("h200_sxm",), precisions=("fp8",), tps=(1,), engines=("trtllm",))
"""A scenario with a single candidate: quick to answer."""
PROBES = ("/_stcore/host-config", "/_stcore/health")
"""Streamlit's client asks for these under the page's own path first and takes the 404 for an answer."""
FITS = """() => [document.documentElement, document.querySelector('[data-testid=stMain]')]
  .filter(Boolean).every(element => element.scrollWidth <= element.clientWidth)"""

expect.set_options(timeout=WAIT_MS)


@contextmanager
def visitor(
    browser: Browser | BrowserContext, address: str, *, viewport: ViewportSize = DESK, color_scheme: Theme = "light"
) -> Iterator[Page]:
    """A fresh visitor; at the end it is an error if the console held one, a dialog opened or a foreign host was asked.

    Of a browser, with nothing in its cache; of a context (whose screen and theme stay), a session of its own there.
    """
    alone = isinstance(browser, Browser)
    context = unhurried(browser, viewport=viewport, color_scheme=color_scheme) if alone else browser
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    complaints: list[str] = []
    page.on("console", lambda message: _is_fault(message) and complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: (complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.on(
        "request", lambda request: request.url.startswith((address, "data:", "blob:")) or complaints.append(request.url)
    )
    yield page
    (context if alone else page).close()
    assert complaints == []


def unhurried(browser: Browser, *, viewport: ViewportSize = DESK, color_scheme: Theme = "light") -> BrowserContext:
    """A new context without animations, which a machine without a GPU draws at the price of a whole page."""
    return browser.new_context(viewport=viewport, color_scheme=color_scheme, reduced_motion="reduce")


def _is_fault(message: ConsoleMessage) -> bool:
    path = urlsplit(message.location["url"]).path
    return message.type == "error" and not (path.endswith(PROBES) and path not in PROBES)


def url_of(address: str, path: str = "", scenario: Scenario = ONE, **replaced: str) -> str:
    """The address of a page on a scenario, parameters of its link replaced or added (`show_x` is show.x)."""
    more = {key.replace("show_", "show."): value for key, value in replaced.items()}
    return f"{address}/{path}?{urlencode(link.to_query(scenario) | more, quote_via=quote)}"


def settled(page: Page) -> Locator:
    """The main part of the page, once it has its title and the script has run to its end."""
    expect(page.get_by_test_id("stMain").get_by_role("heading", level=1).first).to_be_visible()
    rested(page)
    return page.get_by_test_id("stMain")


def turned(page: Page, name: str) -> Locator:
    """Turn to another page by the navigation; its main part, settled. The app writes the link at the end of a run."""
    page.get_by_test_id("stTopNavLink").filter(has_text=name).click()
    path = "" if name == "Size" else name.lower()
    expect(page).to_have_url(re.compile(rf"//[^/]*/{path}\?.*&day="))
    return settled(page)


def walk(page: Page, names: Iterable[str]) -> Iterator[tuple[str, Locator]]:
    """Page after page by the navigation: name and main part of each."""
    for name in names:
        yield name, turned(page, name)


def rested(page: Page) -> None:
    """Wait until the script has run to its end and everything it drew is there."""
    expect(page.get_by_test_id("stApp")).to_have_attribute("data-test-script-state", "notRunning")
    expect(page.get_by_test_id("stSkeleton")).to_have_count(0)


def fits_sideways(page: Page) -> None:
    """Wait until nothing scrolls sideways; a table that was drawn for a wider screen takes a moment. TimeoutError."""
    page.wait_for_function(FITS, timeout=10_000)


def opened(page: Page, url: str) -> Locator:
    """Open an address; the main part of the page, settled."""
    page.goto(url)
    return settled(page)


def typed(page: Page, label: str, value: str, parameter: str) -> None:
    """Fill a field of the form; `parameter` (a pattern) is what the link then holds."""
    field = page.get_by_label(label, exact=True)
    field.fill(value)
    field.press("Enter")
    expect(page).to_have_url(re.compile(parameter))
    rested(page)


def text_of(main: Locator) -> str:
    """What a reader of the page sees, its white space made one: numbers are held to their units by other spaces."""
    return " ".join(main.inner_text().split())


def title_of(page: Page) -> str:
    """The title of the page, its white space made one; there is exactly one."""
    heading = page.get_by_role("heading", level=1)
    expect(heading).to_have_count(1)
    return text_of(heading)
