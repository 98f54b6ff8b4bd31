"""Pictures of every page, on desk and phone, light and dark: python -m tests.browser.shots FOLDER [--link QUERY]"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from playwright.sync_api import Browser

from tests.browser.pages import DESK, PHONE, THEMES, open_page, pages
from tests.browser.served import chromium, served

SIZES = {"desk": DESK, "phone": PHONE}


def main() -> None:
    """Save FOLDER/page-size-theme.png for all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--link", default="", help="URL parameters that every page is opened with, default: none.")
    parser.add_argument("--pages", nargs="*", help="Titles of the pages wanted, default: all.")
    parser.add_argument("--sizes", nargs="*", choices=SIZES, default=list(SIZES))
    parser.add_argument("--whole", action="store_true", help="The page to its end instead of the first screen.")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        database = os.environ.get("SIZING_DATABASE_URL") or f"sqlite:///{folder}/calibration.db"
        with served(database) as address, chromium() as browser:
            for title in options.pages or pages():
                take(browser, address, title, options)


def take(browser: Browser, address: str, title: str, options: argparse.Namespace) -> None:
    """The pictures of one page."""
    for size in options.sizes:
        for theme in THEMES:
            page = open_page(browser, f"{address}{pages()[title]}?{options.link}", theme, SIZES[size])
            if options.whole:
                main = page.get_by_test_id("stMain")
                height = main.evaluate("element => element.scrollHeight") + 80
                page.set_viewport_size({"width": SIZES[size][0], "height": max(SIZES[size][1], height)})
                page.wait_for_timeout(400)
            path = options.folder / f"{title.lower()}-{size}-{theme}.png"
            page.screenshot(path=path)
            page.context.close()
            print(path)


if __name__ == "__main__":
    main()
