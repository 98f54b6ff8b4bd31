"""Mutated files of every format: bytes flipped, ends cut, stretches doubled, keys gone, values of odd kinds."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calibration.errors import FileError
from tests.calibration.importers.samples import SAMPLES, imported


def _flip(raw: bytes, rng: random.Random) -> bytes:
    changed = bytearray(raw)
    for _ in range(rng.randint(1, 8)):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def _cut(raw: bytes, rng: random.Random) -> bytes:
    return raw[: rng.randrange(len(raw))]


def _splice(raw: bytes, rng: random.Random) -> bytes:
    """A stretch repeated or left out: keys twice, cells too many or too few."""
    start = rng.randrange(len(raw))
    end = min(len(raw), start + rng.randint(1, 200))
    return raw[:end] + raw[start:] if rng.random() < 0.5 else raw[:start] + raw[end:]


ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 10**30, 1e308, -1e308, 5e-324, math.nan, math.inf, -math.inf, "", "NaN", "inf",
    "\ud800", "x" * 500, [], {}, [[]], [None], {"a": {}}, [1e300, -1e300], 2**63, 0.5,
)  # fmt: skip


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) in a document."""
    pairs = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())
    return [(value, key) for key, _ in pairs] + [place for _, inner in pairs for place in _places(inner)]


def _swap(raw: bytes, rng: random.Random) -> bytes:
    """Values of a JSON document taken out, or changed for odd ones; in CSV, cells."""
    try:
        document = json.loads(raw)
    except ValueError:
        cells = raw.split(b",")
        cells[rng.randrange(len(cells))] = str(rng.choice(ODD)).encode("utf-8", "replace")
        return b",".join(cells)
    for _ in range(rng.randint(1, 3)):
        places = _places(document)
        if not places:
            break
        container, key = rng.choice(places)
        if rng.random() < 0.3:
            del container[key]
        else:
            container[key] = deepcopy(rng.choice(ODD))
    return json.dumps(document).encode()


MUTATIONS: tuple[Callable[[bytes, random.Random], bytes], ...] = (_flip, _cut, _splice, _swap, _swap, _swap)
LOADS: tuple[dict[str, object], ...] = ({}, {"concurrency": 2}, {"rate": 9.5}, {"isl": None, "osl": None})


@settings(max_examples=1200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
