"""The app on a free port and a real Chromium to open it with; shared by the browser test and the benchmark."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).parents[2]
START_WITHIN_S = 180
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


class Server(NamedTuple):
    """A running server: where it answers, and its process."""

    address: str
    process: subprocess.Popen[bytes]


@contextmanager
def served(database: str, *options: str, **environment: str) -> Iterator[str]:
    """The address of `streamlit run serve.py OPTIONS` over the store at `database`; the server stops at the end."""
    with started(database, *options, **environment) as server:
        yield server.address


@contextmanager
def started(database: str, *options: str, **environment: str) -> Iterator[Server]:
    """The same with the server's process; `environment` is added to this one's."""
    port = free_port()
    command = [sys.executable, "-m", "streamlit", "run", "serve.py", f"--server.port={port}", *options]
    with running(command, port, SIZING_DATABASE_URL=database, **environment) as server:
        yield server


@contextmanager
def running(command: Sequence[str], port: int, **environment: str) -> Iterator[Server]:
    """The server that a command starts on a port of loopback, once it answers; it stops at the end."""
    variables = {**os.environ, **environment}
    with subprocess.Popen(command, cwd=ROOT, env=variables, stdout=subprocess.DEVNULL) as process:
        try:
            server = Server(f"http://127.0.0.1:{port}", process)
            _wait_until_healthy(server)
            yield server
        finally:
            process.terminate()


def free_port() -> int:
    """A TCP port of loopback that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_healthy(server: Server) -> None:
    deadline = time.monotonic() + START_WITHIN_S
    while time.monotonic() < deadline and server.process.poll() is None:
        try:
            with urllib.request.urlopen(f"{server.address}/_stcore/health", timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"streamlit run is not up after {START_WITHIN_S} s (exit status {server.process.poll()})")


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
