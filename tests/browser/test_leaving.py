"""A visitor closes the browser amid a dear question: the server stops working on it, and serves the next."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from playwright.sync_api import Browser, expect

from sizing import catalog
from sizing.workload import Arrivals
from tests.browser.served import started
from tests.browser.visit import ONE, opened, title_of, unhurried, url_of, visitor
from ui.visit import LIMIT_VARIABLE

pytestmark = pytest.mark.browser

HERDS = replace(ONE, routing="least_outstanding", arrivals=Arrivals("constant"), rate_per_s=2.0)
DEAR = replace(
    HERDS, gpus=tuple(catalog.gpus()), precisions=(), tps=(), isl=30_000, headroom=0.0, rate_per_s=1_000_000.0
)
"""Tens of seconds of computing."""
BUSY_S, ENOUGH_S, IDLE_WITHIN_S = 2.0, 6.0, 120.0


def cpu_s(server: psutil.Process) -> float:
    """Seconds of CPU that the server and the processes that compute for it have used, of those that are there."""
    used_s = 0.0
    for process in (server, *server.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            used_s += sum(process.cpu_times()[:2])
    return used_s


def spent_until_idle_s(server: psutil.Process) -> float:
    """Seconds of CPU from now until the server uses less than a fifth of a core for two seconds."""
    begin_s, give_up_s = cpu_s(server), time.monotonic() + IDLE_WITHIN_S
    while time.monotonic() < give_up_s:
        before_s = cpu_s(server)
        time.sleep(2)
        if cpu_s(server) - before_s < 0.4:
            break
    return cpu_s(server) - begin_s


def test_work_ends_when_the_browser_is_closed(browser: Browser, tmp_path: Path) -> None:
    """Counted in CPU: a busy machine takes longer for it, not more."""
    with started(f"sqlite:///{tmp_path / 'store.db'}", **{LIMIT_VARIABLE: "0", "OPENBLAS_NUM_THREADS": "1"}) as server:
        known = unhurried(browser)
        process = psutil.Process(server.process.pid)
        with visitor(known, server.address) as page:
            opened(page, url_of(server.address, scenario=HERDS))  # what is compiled is loaded
        with visitor(known, server.address) as page:
            page.goto(url_of(server.address, scenario=DEAR))
            expect(page.get_by_text("Sizing and simulating")).to_be_visible()
            asked_s = cpu_s(process)
            while cpu_s(process) - asked_s < BUSY_S:
                time.sleep(0.1)
        assert spent_until_idle_s(process) < ENOUGH_S
        with visitor(known, server.address) as page:
            opened(page, url_of(server.address, scenario=replace(HERDS, rate_per_s=3.0)))
            assert re.match("You need", title_of(page))
