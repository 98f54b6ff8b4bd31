"""One level of the agenda on the real Triton server, kept and found again."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from lab.gpu.agenda import SMALL_PAIRS, Card, Item, Served
from lab.gpu.kept import Kept
from lab.gpu.level import Session, highest_rates
from lab.gpu.served import Setup
from lab.gpu.watch import Watch
from sizing.points import read_points

SERVED = Served("small")
SETUP = Setup("small", "in_flight", "cpu", "torch", max_batch_size=8, max_sequence_tokens=512, token_budget=256)


@pytest.mark.triton
def test_a_level_is_measured_kept_and_not_measured_again(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "a", tmp_path / "out", None)
    kept.learn("is_small", True)
    item = Item(SERVED, SMALL_PAIRS[1], "users", 4)
    with Watch(kept.work / "gpu.csv") as watch:
        session = Session(kept, Card("cpu", 5e9, 2e10), watch, processes=1)
        try:
            session.serve(SERVED, SETUP, 120)
            session.measure(item, 4, {}, time.monotonic() + 60)
        finally:
            session.stop()
    kept.save()
    point = session.done()[item.key]
    assert (point.model, point.engine, point.batching) == ("small", "reference-gpu", "in_flight")
    assert point.requests is not None and point.requests > 3 and point.errors == 0
    assert point.little == pytest.approx(1, abs=0.15)

    later = Kept(tmp_path / "b", tmp_path / "out2", kept.archive)
    found = Session(later, Card("cpu", 5e9, 2e10), Watch(later.work / "gpu.csv"), processes=1)
    assert found.done()[item.key] == point
    assert highest_rates(found) == {(SERVED.label, SMALL_PAIRS[1]): pytest.approx(point.requests_per_s)}

    from lab.gpu.home import bring

    bring(later.work, "here", tmp_path / "data")
    assert read_points(tmp_path / "data" / "curves" / "here.csv") == [point]
