"""What several tests of sizing start from."""

from __future__ import annotations

import pytest

from sizing.estimate import estimate
from sizing.plans import Candidate
from tests.sizing.whatif_cases import LENGTHS, QWEN


@pytest.fixture(scope="session")
def bf16() -> Candidate:
    """A law of the kernel database, from which what-ifs start."""
    return estimate(QWEN, "h200_sxm", 2, "bf16", LENGTHS)
