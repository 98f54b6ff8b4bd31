"""The app on a free port and a real Chromium to open it with; shared by the browser test and the benchmark."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).parents[2]
START_WITHIN_S = 60
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextmanager
def served(database: str) -> Iterator[str]:
    """The address of `streamlit run app.py` over the store at `database`; the server stops at the end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "streamlit", "run", "app.py", f"--server.port={port}"]
    environment = {**os.environ, "SIZING_DATABASE_URL": database}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL) as server:
        try:
            address = f"http://127.0.0.1:{port}"
            _wait_until_healthy(address, server)
            yield address
        finally:
            server.terminate()


def _wait_until_healthy(address: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_WITHIN_S
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(f"{address}/_stcore/health", timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"streamlit run app.py is not up after {START_WITHIN_S} s (exit status {server.poll()})")


@contextmanager
def chromium() -> Iterator[Browser]:
    """A headless Chromium of this machine; RuntimeError says what to install where there is none."""
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        raise RuntimeError("neither chromium nor google-chrome is on the PATH; on Debian: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, headless=True, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()
