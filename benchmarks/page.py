"""How long a visitor waits: seconds until the answer stands on the page, on a warm server, and after a change.

Run: python -m benchmarks.page [--visits 10]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterable
from urllib.parse import urlencode

from playwright.sync_api import Browser, Page, expect

from benchmarks.waits import in_a_line
from sizing.workload import Limit
from tests.browser.served import chromium, served
from ui import link
from ui.scenario import Scenario

WAIT_MS = 180_000
LOAD, INPUT = "Peak load (requests/s)", "Input (tokens)"
KEYS = {LOAD: "rate", INPUT: "isl"}
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


def measure(database: str, visits: int) -> None:
    """Every wait, over the store at `database`."""
    with served(database) as address, chromium() as browser:
        print(f"first visit of a server just started {visit_s(browser, address):7.2f} s")
        for name, scenario in (("estimated", Scenario()), ("measured", MEASURED)):
            opened = f"{address}/?{urlencode(link.to_query(scenario))}"
            visit_s(browser, opened)
            print(in_a_line(f"{name}: visit, server warm", [visit_s(browser, opened) for _ in range(visits)]))
            loads, tokens = range(30, 31 + visits), range(scenario.isl + 1, scenario.isl + 2 + visits)
            print(in_a_line(f"{name}: change of the load", changes_s(browser, opened, LOAD, loads)))
            print(in_a_line(f"{name}: change of input tokens", changes_s(browser, opened, INPUT, tokens)))


def visit_s(browser: Browser, address: str) -> float:
    """Seconds from asking for the page until the answer's sentence is on it; a new visitor, nothing in their cache."""
    with browser.new_context(viewport={"width": 1440, "height": 900}) as context:
        page = context.new_page()
        start = time.perf_counter()
        page.goto(address)
        expect(page.get_by_role("heading", level=1)).to_contain_text("You need", timeout=WAIT_MS)
        return time.perf_counter() - start


def changes_s(browser: Browser, address: str, label: str, values: Iterable[int]) -> list[float]:
    """Seconds from entering each value, never asked for before, until the URL, written last, holds the answer to it.

    The first change of a page is left out: with it the browser loads more of Streamlit than with all others.
    """
    with browser.new_context(viewport={"width": 1440, "height": 900}) as context:
        page = context.new_page()
        page.goto(address)
        expect(page.get_by_role("heading", level=1)).to_contain_text("You need", timeout=WAIT_MS)
        return [change_s(page, label, value) for value in values][1:]


def change_s(page: Page, label: str, value: int) -> float:
    """Seconds of one change."""
    field = page.get_by_label(label, exact=True)
    field.fill(str(value))
    start = time.perf_counter()
    field.press("Enter")
    answered = f"new RegExp('[?&]{KEYS[label]}={value}([.]0)?&.*&n=').test(location.search)"
    page.wait_for_function(answered, timeout=WAIT_MS, polling=10)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
