"""What axe-core finds on every page, light and dark: nothing serious or critical that is ours to mend."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser

from tests.browser.pages import DESK, PHONE, THEMES, Theme, open_page, pages
from tests.browser.served import chromium, served

pytestmark = pytest.mark.browser

ONE = "gpu=h200_sxm&precision=fp8&tp=1"
STOPS = 12
"""Elements that the tabulator key visits in the test of the focus: help, presets, model, GPUs."""
AROUND_FOCUS = """() => {
    const box = document.activeElement.getBoundingClientRect();
    const x = Math.max(0, box.x - 6), y = Math.max(0, box.y - 6);
    return {x, y, width: Math.max(8, box.width + 12), height: Math.max(8, box.height + 12)};
}"""
GRAVE = ("serious", "critical")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The app over an empty store."""
    with served(f"sqlite:///{tmp_path_factory.mktemp('store') / 'calibration.db'}") as url:
        yield url


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


def grave(findings: list[dict[str, Any]]) -> list[str]:
    """One line for each element with a grave finding."""
    return [
        f"{finding['id']}: {node['target']} {node['html'][:200]}: {node['failureSummary']}"
        for finding in findings
        if finding["impact"] in GRAVE
        for node in finding["nodes"]
    ]


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize(("title", "path"), pages().items(), ids=pages())
def test_no_grave_finding(browser: Browser, address: str, title: str, path: str, theme: Theme) -> None:
    page = open_page(browser, f"{address}{path}?{ONE}", theme)
    found = Axe().run(page).response
    page.context.close()
    assert found["passes"], "axe looked at nothing"
    assert grave(found["violations"]) == []


def test_no_grave_finding_on_a_phone(browser: Browser, address: str) -> None:
    page = open_page(browser, f"{address}/?{ONE}", size=PHONE)
    found = Axe().run(page).response
    page.context.close()
    assert grave(found["violations"]) == []


@pytest.mark.parametrize("theme", THEMES)
def test_what_has_the_focus_is_seen(browser: Browser, address: str, theme: Theme) -> None:
    page = open_page(browser, f"{address}/?{ONE}", theme)
    previous: tuple[dict[str, float], bytes] | None = None
    seen = []
    for _ in range(STOPS):
        page.keyboard.press("Tab")
        page.wait_for_timeout(250)
        if previous is not None:
            area, focused = previous
            seen.append(page.screenshot(clip=area) != focused)
        box = page.evaluate(AROUND_FOCUS)
        previous = (box, page.screenshot(clip=box))
    page.context.close()
    assert len(seen) == STOPS - 1 and all(seen), f"at these stops nothing shows the focus: {seen}"


def test_the_scan_sees_what_is_wrong(browser: Browser) -> None:
    page = browser.new_page(viewport={"width": DESK[0], "height": DESK[1]})
    page.set_content("<html><body><img src='x'><p style='color:#999;background:#fff'>pale</p></body></html>")
    found = grave(Axe().run(page).response["violations"])
    page.close()
    assert {line.split(":")[0] for line in found} >= {"image-alt", "color-contrast", "html-has-lang"}
