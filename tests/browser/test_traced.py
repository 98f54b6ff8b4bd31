"""Recorded traffic in a real browser: a file is chosen, the answer comes, its plan is saved; all of it on a phone."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.app.test_traced import FILE, TRACE
from tests.browser.visit import PHONE, fits_sideways, opened, rested, title_of, url_of, visitor
from ui.answers import trace_digest

pytestmark = pytest.mark.browser


def test_a_file_is_answered_and_its_plan_saved(desk: Page, planner: str, tmp_path: Path) -> None:
    main = opened(desk, url_of(planner, show_size="trace"))
    chooser = main.get_by_test_id("stFileUploader").locator("input[type=file]")
    chooser.set_input_files({"name": "traffic.csv", "mimeType": "text/csv", "buffer": FILE})
    expect(main.get_by_role("heading", level=1)).to_contain_text("You need")
    expect(desk).to_have_url(re.compile(f"show.trace={trace_digest(TRACE)}"))
    rested(desk)
    main.get_by_role("button", name="Export").click()
    with desk.expect_download() as started:
        desk.get_by_role("button", name="The plan as JSON").click()
    started.value.save_as(tmp_path / "plan.json")
    with desk.expect_download() as started:
        desk.get_by_role("button", name="PDF").click()
    started.value.save_as(tmp_path / "report.pdf")
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert plan["trace"]["requests"] == len(TRACE) and plan["sentence"] == title_of(desk)


def test_the_example_fits_a_phone(browser: Browser, planner: str) -> None:
    with visitor(browser, planner, viewport=PHONE) as page:
        view = {"show_size": "trace", "show_trace": "example", "show_window": "worst-hour", "show_scale": "0.2"}
        opened(page, url_of(planner, **view))
        assert "You need" in title_of(page)
        fits_sideways(page)
