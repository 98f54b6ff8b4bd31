"""The mock in its own process, with a log of its true timings."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from calibration.load.self_check import Mock, started
from lab.mock.service import Script, Truth


class RunningMock(Mock):
    """A running mock that returns its log of every request."""

    def truth(self) -> Truth:
        """Its true timings so far. Raises ServerError if it is gone."""
        with tempfile.TemporaryDirectory(prefix="mock-") as folder:
            path = Path(folder) / "truth.npz"
            self.ask(save=str(path))
            return Truth.load(path)


@contextmanager
def running(script: Script) -> Iterator[RunningMock]:
    """A mock that answers by `script`, on free ports of this machine. Raises ServerError if it does not start."""
    with started(asdict(script), RunningMock) as mock:
        yield mock
