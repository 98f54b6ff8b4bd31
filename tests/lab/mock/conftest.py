"""The mock that most tests of it ask."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab.mock.process import RunningMock, running
from tests.lab.mock.asking import FAST


@pytest.fixture(scope="module")
def mock() -> Iterator[RunningMock]:
    """One that answers quickly."""
    with running(FAST) as found:
        yield found
