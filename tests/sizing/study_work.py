"""Work for the tests of studies, quick to import in another process."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
from numpy.random import SeedSequence

from sizing.errors import ScenarioError


def walk(steps: float, seed: SeedSequence) -> list[float]:
    """A random walk: sums whose last bits depend on every number drawn and on their order."""
    return [*np.cumsum(np.random.default_rng(seed).lognormal(size=int(steps)))]


def dies_once(item: tuple[int, str], seed: SeedSequence) -> tuple[int, float]:
    """The first process to take item 5 is killed in the middle of it."""
    number, marker = item
    if number == 5 and not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number, np.random.default_rng(seed).random()


def fails(item: int, seed: SeedSequence) -> int:
    """Never works."""
    raise ScenarioError("no such thing")


def nap(place: int, seconds: float) -> float:
    """Work that takes a while."""
    time.sleep(seconds)
    return seconds
