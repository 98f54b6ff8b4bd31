"""Mutated files of every format: bytes flipped, ends cut, stretches doubled, keys gone, values of odd kinds."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calibration.errors import FileError
from tests.calibration.importers.samples import SAMPLES, imported
from tests.fuzz.mutations import cut, flip, splice, swap

MUTATIONS: tuple[Callable[[bytes, random.Random], bytes], ...] = (flip, cut, splice, swap, swap, swap)
LOADS: tuple[dict[str, object], ...] = ({}, {"concurrency": 2}, {"rate": 9.5}, {"isl": None, "osl": None})


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(sorted(SAMPLES)),
    mutation=st.sampled_from(MUTATIONS),
    said=st.sampled_from(LOADS),
    seed=st.integers(0, 2**32),
)
def test_mutated_files_make_points_or_a_file_error(
    name: str, mutation: Callable[..., bytes], said: dict[str, object], seed: int, tmp_path: Path
) -> None:
    raw = mutation(SAMPLES[name], random.Random(seed))
    try:
        points = imported(raw, tmp_path, **said)
    except FileError as error:
        assert "\n" not in str(error)
    else:
        assert points
        assert all(math.isfinite(point.requests_per_s) and len(point.notes) < 2000 for point in points)
