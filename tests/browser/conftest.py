"""What the browser tests share: one server over a small store, and one browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page

from calibration.store import Store
from tests.app.conftest import keep, point
from tests.browser.served import chromium, served
from tests.browser.visit import unhurried, visitor


@pytest.fixture(scope="package")
def planner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the app over a store that has acme/tiny at three low levels and acme/known at seven."""
    database = f"sqlite:///{tmp_path_factory.mktemp('store') / 'calibration.db'}"
    keep(Store(database), [point(n) for n in (1, 2, 4)])
    keep(Store(database), [point(n, model="acme/known") for n in (1, 2, 4, 8, 16, 32, 64)])
    with served(database) as url:
        yield url


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """A Chromium; a test that wants a visitor whom nobody knows opens a context of its own."""
    with chromium() as started:
        yield started


@pytest.fixture(scope="package")
def desk_context(browser: Browser) -> BrowserContext:
    """A browser at a desk, light theme, that keeps the app's scripts in its cache from test to test."""
    return unhurried(browser)


@pytest.fixture
def desk(desk_context: BrowserContext, planner: str) -> Iterator[Page]:
    """A visitor at a desk: a session of its own, and no complaint at the end."""
    with visitor(desk_context, planner) as page:
        yield page
