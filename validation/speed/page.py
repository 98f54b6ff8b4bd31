"""How long a visitor waits: seconds until the answer stands on the page, on a warm server, and after a change.

Run: python -m validation.speed.page [--visits 10]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlencode

from playwright.sync_api import Browser, Page, expect

from sizing.workload import Limit
from tests.browser.served import chromium, served
from ui import link
from ui.scenario import Scenario
from validation.speed.waits import in_a_line

WAIT_MS, REST_MS = 180_000, 300
LOAD, INPUT = "Peak load (requests/s)", "Input (tokens)"
KEYS = {LOAD: "rate", INPUT: "isl"}
STEP = {LOAD: 1, INPUT: 8}
"""Between values asked one after the other: enough to change the arithmetic that stands below the answer."""
WATCH = """([url]) => {
    const working = () => document.querySelector('h1').closest('[data-testid="stElementContainer"]')
        .nextElementSibling?.textContent;
    const before = working(), asked = new RegExp(url), waits = window.waits = {};
    addEventListener('keydown', pressed => {
        const look = () => {
            const now_s = (performance.now() - pressed.timeStamp) / 1000;
            if (asked.test(location.search)) waits.whole ??= now_s;
            if (waits.whole || working() !== before) waits.answer ??= now_s;
            if (!waits.whole) setTimeout(look, 4);
        };
        look();
    }, {once: true, capture: true});
}"""
"""The browser's own clock, from the key that enters the value: `answer`, the sentence with its arithmetic is the new
one; `whole`, charts and tables are there too and the URL, which is written last, holds the answer."""
MEASURED = Scenario(
    model="reference-512x4", gpus=(), isl=64, osl=32, ttft=Limit("ttft", 95, 1.0), itl=Limit("itl", 95, 0.1)
)
"""A question about the deployment whose measured points are shipped in data/curves."""


def main() -> None:
    """Print median, 95th percentile and worst seconds of each kind of wait."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--visits", type=int, default=10, help="How often each wait is measured.")
    visits = parser.parse_args().visits
    with tempfile.TemporaryDirectory() as folder:
        measure(f"sqlite:///{folder}/calibration.db", visits)


@dataclass(frozen=True, slots=True)
class Waits:
    """Seconds from entering a value until the answer's sentence and arithmetic are the new ones, and the whole page."""

    answer: float
    whole: float


def measure(database: str, visits: int) -> None:
    """Every wait, over the store at `database`."""
    with served(database) as address, chromium() as browser:
        print(f"first visit of a server just started {visit_s(browser, address):7.2f} s")
        for name, scenario in (("estimated", Scenario()), ("measured", MEASURED)):
            opened = f"{address}/?{urlencode(link.to_query(scenario))}"
            visit_s(browser, opened)
            print(in_a_line(f"{name}: visit, server warm", [visit_s(browser, opened) for _ in range(visits)]))
            for label, first in ((LOAD, 30), (INPUT, scenario.isl + STEP[INPUT])):
                values = range(first, first + STEP[label] * (visits + 1), STEP[label])
                waits = changes(browser, opened, label, values)
                print(in_a_line(f"{name}: {label}: answer", [wait.answer for wait in waits]))
                print(in_a_line(f"{name}: {label}: whole page", [wait.whole for wait in waits]))


def visit_s(browser: Browser, address: str) -> float:
    """Seconds from asking for the page until the answer's sentence is on it; a new visitor, nothing in their cache."""
    with browser.new_context(viewport={"width": 1440, "height": 900}) as context:
        page = context.new_page()
        start = time.perf_counter()
        page.goto(address)
        expect(page.get_by_role("heading", level=1)).to_contain_text("You need", timeout=WAIT_MS)
        return time.perf_counter() - start


def changes(browser: Browser, address: str, label: str, values: Iterable[int]) -> list[Waits]:
    """The waits after entering each value, never asked for before.

    The first change of a page is left out: with it the browser loads more of Streamlit than with all others.
    """
    with browser.new_context(viewport={"width": 1440, "height": 900}) as context:
        page = context.new_page()
        page.goto(address)
        expect(page.get_by_role("heading", level=1)).to_contain_text("You need", timeout=WAIT_MS)
        return [change(page, label, value) for value in values][1:]


def change(page: Page, label: str, value: int) -> Waits:
    """The waits of one change; the next is made when the page has come to rest."""
    expect(page.get_by_test_id("stStatusWidget")).to_have_count(0, timeout=WAIT_MS)
    page.wait_for_timeout(REST_MS)
    field = page.get_by_label(label, exact=True)
    field.fill(str(value))
    page.evaluate(WATCH, [f"[?&]{KEYS[label]}={value}([.]0)?&.*&n="])
    field.press("Enter")
    page.wait_for_function("waits.whole", timeout=WAIT_MS)
    return Waits(**page.evaluate("waits"))


if __name__ == "__main__":
    main()
