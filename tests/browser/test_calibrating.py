"""A calibration from the browser: started, watched, left alone, found again, accepted; then answers rest on it."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from calibration import jobs
from calibration.store import Store
from tests.browser.served import served
from tests.browser.visit import rested, unhurried
from tests.calibration.mock_server import Script, subprocess_server

pytestmark = pytest.mark.browser

SLOW = Script(ttft_s=0.3, itl_s=0.05)
"""So slow that the client's own delays, on a busy machine, are no matter."""
QUESTION = "v=1&model=toy&gpu=any&precision=any&tp=any&rate=1&isl=12&osl=8&ttft=p95%3A3s&itl=p95%3A1s&e2e=off"
WAIT_MS = 120_000
expect.set_options(timeout=WAIT_MS)


@dataclass(frozen=True, slots=True)
class Setting:
    """An app that may start runs, and its store."""

    address: str
    store: Store
    database: Path

    def link(self, page: str, view: str = "") -> str:
        return link_to(self.address, page, view)


def link_to(address: str, page: str, view: str = "") -> str:
    return f"{address}/{page}?{QUESTION}&show.calibrate={view}"


@pytest.fixture
def setting(tmp_path: Path) -> Iterator[Setting]:
    """Of each test its own: one that is run once more starts from an empty store again."""
    path = tmp_path / "calibration.db"
    url = f"sqlite:///{path}"
    with pytest.MonkeyPatch.context() as patch, subprocess_server(SLOW) as target:
        patch.setenv(jobs.ALLOW_VARIABLE, "1")
        patch.setenv(jobs.TARGETS_VARIABLE, target)
        with served(url) as address:
            yield Setting(address, Store(url), path)


def visit(browser: Browser, link: str) -> Page:
    """A new visitor, who knows only the link."""
    page = unhurried(browser).new_page()
    page.set_default_timeout(WAIT_MS)
    page.goto(link)
    return page


def await_the_points(page: Page, setting: Setting) -> int:
    """Wait for the end of run 1, resumed where a busy machine broke it off; the number of its points.

    The load generator refuses to measure where it fell behind its mock, and a level without an answer has no point,
    which on a busy machine may be the one of random arrivals: tests/calibration prove both.
    """
    points = page.get_by_text(re.compile(r"Awaiting acceptance: \d points?\."))
    resume = page.get_by_role("button", name=re.compile("^Resume"))
    for _ in range(3):
        try:
            expect(points.or_(resume).first).to_be_visible()
        except AssertionError as error:
            error.add_note(f"{setting.store.run(1)}\n{jobs.log_tail(setting.store, 1)}")
            raise
        if points.is_visible():
            found = setting.store.run(1).points
            expect(points).to_contain_text(f"Awaiting acceptance: {found} point")
            return found
        assert setting.store.run(1).state in ("failed", "lost")
        resume.click()
        expect(resume).to_have_count(0)
    raise AssertionError(f"{setting.store.run(1)}\n{jobs.log_tail(setting.store, 1)}")


def as_of_a_quiet_machine(setting: Setting) -> bool:
    """Lift the verdicts that a busy machine brings; True if there were any.

    It delays the load generator, whose points are then void and kept out of fits: tests/calibration/metrics prove that.
    What is asked here is what becomes of points that count.
    """
    with closing(sqlite3.connect(setting.database)) as database, database:
        late = database.execute(
            "UPDATE points SET verdict = '' WHERE verdict IN ('client_limited', 'unsteady', 'little')"
        )
        return late.rowcount > 0


def start_a_run(page: Page) -> None:
    """Two levels of two seconds, and the one of random arrivals that follows.

    One field after the other, each when the page has taken the last: it writes its fields at every run, and a run that
    began before would write over what was typed since.
    """
    main = page.get_by_test_id("stMain")
    levels = page.get_by_role("combobox", name="Concurrency (users)")
    levels.click()
    for last in ("89", "21"):
        levels.press("Backspace")
        expect(main.get_by_text(last, exact=True)).to_have_count(0)
        rested(page)
    levels.press("Escape")
    longest = main.get_by_label("Time limit per level (s)", exact=True)
    longest.fill("2")
    longest.press("Enter")
    expect(page.get_by_role("button", name="Start: at most 0.133 GPU-minutes of measuring")).to_be_visible()
    rested(page)
    main.get_by_text("One level with long prompts", exact=True).click()
    page.get_by_role("button", name="Start: at most 0.1 GPU-minutes of measuring").click()


@pytest.mark.timeout(300)
def test_a_run_started_in_one_browser_is_accepted_in_another_and_the_answer_rests_on_it(
    browser: Browser, setting: Setting
) -> None:
    first = visit(browser, setting.link("calibrate", "new"))
    start_a_run(first)
    expect(first.get_by_role("heading", level=1)).to_have_text("Run 1 is active")
    first.context.close()

    second = visit(browser, setting.link("calibrate", "runs"))
    points = await_the_points(second, setting)
    assert setting.store.run(1).state == "done" and points >= 2
    if as_of_a_quiet_machine(setting):
        second.reload()
        expect(second.get_by_text(f"Awaiting acceptance: {points} points.")).to_be_visible()
    assert {point.verdict for point in setting.store.points(1)} <= {"", "steady"}
    expect(second.locator(".js-plotly-plot")).to_have_count(3)
    unanswered = visit(browser, setting.link(""))
    expect(unanswered.get_by_role("heading", level=1)).to_have_text("Choose a GPU or measure one")

    second.get_by_role("button", name=f"Accept {points} points").click()
    expect(second.get_by_text(f"All points are accepted ({points})")).to_be_visible()
    second.get_by_role("link", name="Curves").click()
    expect(second.get_by_role("heading", level=1)).to_contain_text("requests/s under this SLA")
    second.get_by_text("Measured points", exact=True).click()
    expect(second.get_by_role("heading", level=1)).to_have_text(re.compile("requests/s at most.* at concurrency 5"))
    second.get_by_role("link", name="Size").click()
    expect(second.get_by_role("heading", level=1)).to_have_text(re.compile(r"You need \d+ × cpu to serve 1\s"))
    expect(second.locator(".stMarkdownBadge").first).to_contain_text(re.compile("Measured|Fitted"))
    assert setting.store.points() == setting.store.points(1)


def test_a_file_that_is_too_large_or_of_no_kind_is_refused_in_a_line(
    browser: Browser, planner: str, tmp_path: Path
) -> None:
    large = tmp_path / "large.csv"
    with large.open("wb") as file:
        file.truncate(1_000_000_000)
    page = visit(browser, link_to(planner, "calibrate", "import"))
    chooser = page.get_by_test_id("stFileUploaderDropzoneInput")
    chooser.wait_for(state="attached")
    chooser.set_input_files(str(large))
    expect(page.get_by_text(re.compile("must be 20(.0)?MB or smaller"))).to_be_visible()
    page.goto(link_to(planner, "calibrate", "import"))
    chooser.wait_for(state="attached")
    chooser.set_input_files({"name": "../../x.json", "mimeType": "text/plain", "buffer": b'{"my secret": 1}'})
    expect(page.get_by_text("This file was not accepted")).to_be_visible()
    expect(page.get_by_text(re.compile(r"^x\.json: not a file of any known kind"))).to_be_visible()
    assert "my secret" not in page.get_by_test_id("stMain").inner_text()
    page.context.close()
