"""The mock in a process of its own, with a log of what it really did."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from calibration.load.self_check import Mock, started
from lab.mock.service import Script, Truth


class RunningMock(Mock):
    """A mock that is up, and can be asked for every request."""

    def truth(self) -> Truth:
        """What it has really done until now. Raises ServerError if it is gone."""
        with tempfile.TemporaryDirectory(prefix="mock-") as folder:
            path = Path(folder) / "truth.npz"
            self.ask(save=str(path))
            return Truth.load(path)


@contextmanager
def running(script: Script) -> Iterator[RunningMock]:
    """A mock that answers as `script` says, on free ports of this machine. Raises ServerError if it does not start."""
    with started(asdict(script), RunningMock) as mock:
        yield mock
