"""The mock in a process of its own, so that it shares no event loop with what it is to judge."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from subprocess import PIPE

from calibration.errors import ServerError
from calibration.mock.service import Script, Truth
from sizing.places import IMPORTED_FROM

ENDS_WITHIN_S = 5.0


class RunningMock:
    """A mock that is up: `grpc_url` and `http_url` as host:port, `model` by that name, `pid` of its process."""

    model = "ensemble"

    def __init__(self, process: subprocess.Popen[str], grpc_url: str, http_url: str, folder: Path) -> None:
        self.grpc_url = grpc_url
        self.http_url = http_url
        self.pid = process.pid
        self._process = process
        self._folder = folder

    def truth(self) -> Truth:
        """What it has really done until now. Raises ServerError if it is gone."""
        path = self._folder / "truth.npz"
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(f"{path}\n")
            self._process.stdin.flush()
        except OSError:
            raise ServerError(f"{self.grpc_url}: the mock has ended") from None
        if self._process.stdout.readline().rstrip("\n") != str(path):
            raise ServerError(f"{self.grpc_url}: the mock has ended")
        return Truth.load(path)


@contextmanager
def running(script: Script) -> Iterator[RunningMock]:
    """A mock that answers as `script` says, on free ports of this machine. Raises ServerError if it does not start."""
    command = [sys.executable, "-m", "calibration.mock.server", json.dumps(asdict(script))]
    with (
        tempfile.TemporaryDirectory(prefix="mock-") as folder,
        # a session of its own: Ctrl-C is for the parent, and the mock ends with its stdin
        subprocess.Popen(
            command, stdin=PIPE, stdout=PIPE, text=True, cwd=IMPORTED_FROM, start_new_session=True
        ) as process,
    ):
        assert process.stdin is not None and process.stdout is not None
        try:
            said = process.stdout.readline()
            if not said:
                raise ServerError("the built-in mock did not start; see its message above")
            yield RunningMock(process, **json.loads(said), folder=Path(folder))
        finally:
            process.stdin.close()  # the mock ends with its stdin
            try:
                process.wait(ENDS_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
