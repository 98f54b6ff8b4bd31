"""Kill -9 in the middle of sweeps: a short campaign. The long one is a command: see `kills`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from calibration.store import Store
from tests.calibration.kept import POINT, measurement
from tests.calibration.kills import LEVELS, Campaign, campaign
from tests.calibration.mock_server import Script, subprocess_server
from tests.calibration.outside import altered


@pytest.mark.timeout(600)
def test_a_sweep_that_is_killed_again_and_again_loses_and_doubles_no_level(database_url: str, tmp_path: Path) -> None:
    with subprocess_server(Script(ttft_s=0.004, itl_s=0.001)) as server:
        seen = campaign(database_url, tmp_path, server, kills=3, seed=3, says=print)
    assert seen.faults == []
    assert (seen.kills, seen.levels % LEVELS) == (3, 0) and seen.levels >= LEVELS


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("DELETE FROM points WHERE load_value = 4", "gone or changed"),
        ("UPDATE points SET requests_per_s = 1 WHERE load_value = 4", "gone or changed"),
        ("", "requests of 8 users are not all there"),
    ],
)
def test_a_campaign_sees_what_is_gone_or_changed(tmp_path: Path, change: str, says: str) -> None:
    url = f"sqlite:///{tmp_path / 'points.db'}"
    seen = Campaign(Store(url))
    run_id = seen.store.create_run("plan")
    seen.store.add_point(run_id, measurement())
    seen.look()
    assert (seen.faults, seen.levels) == ([], 1)
    if change:
        altered(url, change)
    else:
        seen.store.add_point(run_id, replace(POINT, load_value=8))  # a point without its log
    seen.look()
    assert len(seen.faults) == 1 and says in seen.faults[0]
