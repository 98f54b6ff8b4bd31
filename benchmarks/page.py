"""How long a visitor waits: seconds until the answer stands on the page, on a warm server, and after a change.

Run: python -m benchmarks.page [--visits 5]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time

from playwright.sync_api import Browser, Page, expect

from tests.browser.served import chromium, served

WAIT_MS = 180_000
LOAD = "Peak load (requests/s)"


def main() -> None:
    """Print median and worst seconds of each kind of wait."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--visits", type=int, default=5, help="How often each wait is measured.")
    visits = parser.parse_args().visits
    with tempfile.TemporaryDirectory() as folder:
        measure(f"sqlite:///{folder}/calibration.db", visits)


def measure(database: str, visits: int) -> None:
    """Every wait, over the store at `database`."""
    with served(database) as address, chromium() as browser:
        print(f"first visit of a server just started {visit_s(browser, address):7.2f} s")
        report("visit, server warm", [visit_s(browser, address) for _ in range(visits)])
        report("change of the load", changes_s(browser, address, LOAD, [30 + 7 * n for n in range(visits)]))
        report("change of input tokens", changes_s(browser, address, "Input (tokens)", range(1000, 1000 + visits)))


def visit_s(browser: Browser, address: str) -> float:
    """Seconds from asking for the page until the answer's sentence is on it; a new visitor, nothing in their cache."""
    with browser.new_context(viewport={"width": 1440, "height": 900}) as context:
        page = context.new_page()
        start = time.perf_counter()
        page.goto(address)
        expect(page.get_by_role("heading", level=1)).to_contain_text("You need", timeout=WAIT_MS)
        return time.perf_counter() - start


def changes_s(browser: Browser, address: str, label: str, values: list[int] | range) -> list[float]:
    """Seconds from entering each value until the URL, written last of all, holds the answer to it."""
    with browser.new_context(viewport={"width": 1440, "height": 900}) as context:
        page = context.new_page()
        page.goto(address)
        expect(page.get_by_role("heading", level=1)).to_contain_text("You need", timeout=WAIT_MS)
        return [change_s(page, label, value) for value in values]


def change_s(page: Page, label: str, value: int) -> float:
    """Seconds of one change."""
    field = page.get_by_label(label, exact=True)
    field.fill(str(value))
    start = time.perf_counter()
    field.press("Enter")
    key = "rate" if label == LOAD else "isl"
    page.wait_for_function(
        f"new RegExp('[?&]{key}={value}([.]0)?&.*&n=').test(location.search)", timeout=WAIT_MS, polling=20
    )
    return time.perf_counter() - start


def report(name: str, seconds: list[float]) -> None:
    """One line: median and worst."""
    print(f"{name:36s} {statistics.median(seconds):7.2f} s median, {max(seconds):.2f} s worst of {len(seconds)}")


if __name__ == "__main__":
    main()
