"""A visit to the app in a real browser: the pages, how to tell that one is settled, what is on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote, urlencode, urlsplit

from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, expect

from ui import link
from ui.scenario import Scenario

WAIT_MS = 120_000
DESK, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
PAGES = ("", "compare", "curves", "simulate", "calibrate", "report", "method")
"""Paths of the pages; the first is Size."""
ANSWERING = ("", "compare", "curves", "simulate", "report")
"""Pages that say something else for another answer."""
ONE = Scenario(gpus=("h200_sxm",), precisions=("fp8",), tps=(1,))
"""A scenario with a single candidate: quick to answer."""
PROBES = ("/_stcore/host-config", "/_stcore/health")
"""Streamlit's client asks for these under the page's own path first and takes the 404 for an answer."""
SIDEWAYS = "element => element.scrollWidth - element.clientWidth"

expect.set_options(timeout=WAIT_MS)


@contextmanager
def visitor(
    browser: Browser, address: str, viewport: dict[str, int] = DESK, color_scheme: str = "light"
) -> Iterator[Page]:
    """A fresh visitor; at the end it is an error if the console held one, a dialog opened or a foreign host was asked."""
    context = browser.new_context(viewport=viewport, color_scheme=color_scheme, reduced_motion="reduce")
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
    context.close()
    assert complaints == []


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


def rested(page: Page) -> None:
    """Wait until the script has run to its end and everything it drew is there."""
    expect(page.get_by_test_id("stApp")).to_have_attribute("data-test-script-state", "notRunning")
    expect(page.get_by_test_id("stSkeleton")).to_have_count(0)


def opened(page: Page, url: str) -> Locator:
    """Open an address; the main part of the page, settled."""
    page.goto(url)
    return settled(page)


def text_of(main: Locator) -> str:
    """What a reader of the page sees, its white space made one."""
    return " ".join(main.inner_text().split())


def title_of(page: Page) -> str:
    """The title of the page; there is exactly one."""
    heading = page.get_by_role("heading", level=1)
    expect(heading).to_have_count(1)
    return heading.inner_text()
