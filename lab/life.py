"""The life of a local server: until it is ready, while it runs, and until all its processes have ended."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Self

from rich.console import Console

from calibration.errors import ServerError
from calibration.load import system
from lab import environment
from lab.environment import Environment, Recipe

HOST = "127.0.0.1"
READY_WITHIN_S = 120.0
STOPPED_WITHIN_S = 15.0
LOADING_STOPPED_WITHIN_S = 2.0  # servers ignore signals while they load models
SHARED_MEMORY = Path("/dev/shm")
POLL_S = 0.05
LOGS_KEPT = 10
HARMLESS = ("cuda", "pinned", "dcgm", "ignore import error")
"""What tritonserver and SGLang complain of on every machine without a GPU."""


class Server(ABC):
    """A running server as a context manager.

    Entering returns when the server is ready, leaving when all its processes and its work folder are gone. The server
    also ends when the thread that started it does. `log` is kept, one file per port, the newest ten.

    Raises:
        ServerError: on entering, in one line: a port in use, no usable environment, or a server that did not start.
    """

    recipe: Recipe
    ready_within_s = READY_WITHIN_S

    def __init__(self, port: int, console: Console | None = None) -> None:
        self._console = console
        self._process: subprocess.Popen[bytes] | None = None
        self._work: Path | None = None
        self._is_up = False
        self.log = self.recipe.default_folder / "logs" / f"server-{port}.log"

    @abstractmethod
    def _claim_ports(self) -> None:
        """Choose free ports for 0; ServerError if a port is in use."""

    @abstractmethod
    def _start(self, ready: Environment, work: Path) -> subprocess.Popen[bytes]:
        """Start the server from its environment, with its files in `work` and its output in `log`."""

    @property
    @abstractmethod
    def _pages(self) -> tuple[str, ...]:
        """Addresses that answer when the server is ready."""

    @property
    def pid(self) -> int:
        """Process id of the server."""
        return self._started.pid

    @property
    def work(self) -> Path:
        """Folder of the server's files; it exists while the server does."""
        assert self._work is not None
        return self._work

    @property
    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ServerError(f"{self.recipe.server} is not running")
        return self._process

    def __enter__(self) -> Self:
        self._claim_ports()
        ready = environment.ensure(self.recipe, console=self._console)
        self._work = Path(tempfile.mkdtemp(prefix=f"{Path(self.recipe.folder).name}-server-"))
        try:
            make_room_for_log(self.log.parent)
            self._process = self._start(ready, self._work)
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def check(self) -> None:
        """Raises ServerError if the server has died."""
        status = self._started.poll()
        if status is not None:
            raise ServerError(
                f"{self.recipe.server} ended with status {status}: {why_ended(status, self.log)}; log: {self.log}"
            )

    def stop(self) -> None:
        """Ask the server to unload and exit, kill what remains, and remove its work folder and shared memory."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(STOPPED_WITHIN_S if self._is_up else LOADING_STOPPED_WITHIN_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
            kill_group(self._process.pid)
            self._process.wait()
            self._process, self._is_up = None, False
        if self._work is not None:
            shutil.rmtree(self._work, ignore_errors=True)
            for region in SHARED_MEMORY.glob(f"{self._work.name}*"):  # a killed server leaves its own behind
                region.unlink(missing_ok=True)
            self._work = None

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + self.ready_within_s
        while not all(map(answers, self._pages)):
            if (status := self._started.poll()) is not None:
                why = why_ended(status, self.log)
                raise ServerError(f"{self.recipe.server} did not start: {why}; log: {self.log}")
            if time.monotonic() > deadline:
                within = f"{self.ready_within_s:.0f} s"
                raise ServerError(f"{self.recipe.server} was not ready within {within}; log: {self.log}")
            time.sleep(POLL_S)
        self._is_up = True


def free_port(port: int, option: str) -> socket.socket:
    """A socket bound to the port, or to any free one for 0; closing it leaves the port to the server.

    Raises:
        ServerError: the port is in use; the line names the port and its option.
    """
    probe = socket.socket()
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        probe.bind((HOST, port))
    except OSError as error:
        probe.close()
        raise ServerError(
            f"port {port} ({option}) is not free on {HOST} ({error.strerror}): give {option} another"
        ) from error
    return probe


def on_other_cores(threads: int, *command: str) -> list[str]:
    """The command of a server that ends with its parent, and leaves the last `threads` cores to its engine."""
    rest = system.usable() - set(system.of_engine(threads))
    return [sys.executable, str(Path(__file__).with_name("launch.py")), system.written(rest), *command]


def answers(address: str) -> bool:
    """True if the page answers."""
    try:
        urllib.request.urlopen(address, timeout=1.0).close()
    except (urllib.error.URLError, TimeoutError, ConnectionError):
        return False
    return True


def make_room_for_log(folder: Path) -> None:
    """Create the folder of logs if missing, and delete old logs, so that one more fits."""
    folder.mkdir(parents=True, exist_ok=True)
    logs = sorted(folder.glob("server-*.log"), key=lambda path: path.stat().st_mtime)
    for old in logs[: 1 - LOGS_KEPT]:
        old.unlink(missing_ok=True)


def kill_group(group: int) -> None:
    """Kill every remaining process of the group."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def why_ended(status: int, log: Path) -> str:
    """Why the server ended. One that was killed cannot say so in its log, which may name other faults."""
    if status == -signal.SIGKILL:
        return "it was killed, as the kernel does where memory runs out"
    return last_error(log)


def last_error(log: Path) -> str:
    """The server's error: the first line of `log` that names a fault, else its last line."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    telling = [line for line in lines if not any(word in line.lower() for word in HARMLESS)]
    faults = [line for line in telling if re.match(r"E\d{4} ", line)] or [line for line in telling if "rror" in line]
    fault = (faults or lines[-1:] or ["its log is empty"])[0]
    return re.sub(r"^[EWI]\d{4} .*?\] ", "", fault)[:300].strip('"')
