"""`calibration check`: an unchanged server passes, a slower one fails, and what cannot be told is said."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration import check
from calibration.check import Check, again, change, found_run
from calibration.errors import ServerError, StoreError
from calibration.records import Measurement
from calibration.store import Store
from calibration.store.work import discard
from lab.mock.process import running
from lab.mock.service import Script
from tests.calibration.called import call
from tests.calibration.kept import POINT
from tests.calibration.mock_server import ROOT

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("unhurried", "database")]
TTFT_S, ITL_S = 0.5, 0.05
"""So long that the lateness of a busy machine is no matter."""


def script(slower: float) -> Script:
    return Script(ttft_s=slower * TTFT_S, itl_s=slower * ITL_S)


def measured(tmp_path: Path, url: str, requests: int = 12, users: str = "[3, 6]", osl_cv: float = 0) -> None:
    """Run 1: levels of the mock."""
    path = tmp_path / "plan.yaml"
    path.write_text(
        f"server: {{protocol: http, url: '{url}', model: ensemble}}\n"
        "deployment: {model: small, gpu: none, precision: fp16, tp: 1}\n"
        f"lengths: [{{isl: 16, osl: 8, isl_cv: 0, osl_cv: {osl_cv}}}]\nconcurrency: {users}\n"
        f"check_load: 0\nrequests_per_level: {requests}\nclient: {{self_check: false}}\n"
    )
    result = call("run", path)
    assert result.exit_code == 0, result.output


def test_an_unchanged_server_passes_and_one_that_is_a_fifth_slower_fails(tmp_path: Path) -> None:
    with running(script(1.0)) as server:
        measured(tmp_path, server.http_url)
        same = call("check", 1, "--json")
        assert same.exit_code == 0, same.output
        found = json.loads(same.stdout)
        assert (found["holds"], found["run"], found["now"]) == (True, 1, 2)
        assert [(each["concurrency"], each["figure"]) for each in found["figures"]] == [
            (users, figure) for users in (3, 6) for figure in ("requests_per_s", "ttft_mean_s", "itl_mean_s")
        ]
        for each in found["figures"]:
            assert each["low"] <= each["change"] <= each["high"] and each["verdict"] == "holds"
            assert 0 <= each["p_value"] <= 1
    with running(script(1.2)) as server:
        slower = call("check", "small", "--url", server.http_url, "--json")
        assert slower.exit_code == 4, slower.output
        figures = json.loads(slower.stdout)["figures"]
    for each in figures:
        true = 1 / 1.2 if each["figure"] == "requests_per_s" else 1.2
        assert each["low"] <= true - 1 <= each["high"], each
        assert each["verdict"] == "changed" or each["figure"] == "ttft_mean_s"
    store = Store()
    assert [run.label.startswith("check of run 1: ") for run in store.runs()] == [True, True, False]
    assert [run.discarded for run in store.runs()] == [2, 2, 0], "no answer rests on what a check has measured"


def test_another_server_is_not_judged_by_the_metrics_of_the_first() -> None:
    plan = (
        "server: {protocol: http, url: 'old:8000', model: ensemble, metrics_url: 'http://old:8002/metrics'}\n"
        "deployment: {model: small, gpu: none, precision: fp16, tp: 1}\n"
        "lengths: [{isl: 16, osl: 8, isl_cv: 0, osl_cv: 0}]\nconcurrency: [3]\n"
    )
    run = Store().run(Store().create_run(plan))
    levels = [Measurement(replace(POINT, isl=16.0, osl=8.0, isl_cv=0.0, osl_cv=0.0, load_value=3.0))]
    same, other = (again(run, levels, url, None).plan.server for url in (None, "new:8000"))
    assert (same.url, same.metrics_url) == ("old:8000", "http://old:8002/metrics")
    assert (other.url, other.metrics_url) == ("new:8000", None)


@pytest.mark.parametrize("rule", ["requests_per_level: 12", "until: {requests_max: 60}", "until: {half_width: 0.2}"])
def test_minutes_that_are_given_are_measured_whatever_the_plan_ends_a_level_by(rule: str) -> None:
    """What is too wide after them is narrower after more."""
    plan = (
        "server: {protocol: http, url: 'old:8000', model: ensemble}\n"
        f"lengths: [{{isl: 16, osl: 8, isl_cv: 0, osl_cv: 0}}]\nconcurrency: [3, 6]\n{rule}\n"
    )
    run = Store().run(Store().create_run(plan))
    point = replace(POINT, isl=16.0, osl=8.0, isl_cv=0.0, osl_cv=0.0)
    levels = [Measurement(replace(point, load_value=users)) for users in (3.0, 6.0)]
    now = again(run, levels, None, 4.0).plan
    for level in now.levels():
        until = now.until_of(level)
        assert (until.budget_s, until.requests_max) == (120.0, None)
        assert until.requests_min is not None and until.requests_min > 10**6, "no interval ends it earlier"


def test_a_deployment_is_compared_with_the_newest_run_that_answers_rest_on() -> None:
    store = Store()

    def kept(reviewed: bool = False, **fields: Any) -> int:
        run_id = store.create_run("a plan", reviewed=reviewed)
        store.add_point(run_id, Measurement(replace(POINT, **fields)))
        store.finish_run(run_id, "done")
        return run_id

    with pytest.raises(StoreError, match="no measured run of 'toy'"):
        kept(load_kind="poisson_rate", load_value=2.0)
        found_run(store, "toy")
    counts, discarded = kept(), kept()
    discard(store, discarded)
    kept(reviewed=True)
    kept(verdict="client_limited")
    assert found_run(store, "toy").id == counts
    assert found_run(store, str(discarded)).id == discarded, "by its number any run"


def test_the_points_of_a_reviewed_run_are_in_no_answer_until_they_are_accepted() -> None:
    """Those of a check are: also while it runs, and where it is killed before it can discard them."""
    store = Store()
    for reviewed, expected in ((True, 0), (False, 1)):
        run_id = store.create_run("", reviewed=reviewed)
        store.add_point(run_id, POINT)
        assert len(store.points()) == expected
        assert len(store.points(run_id)) == 1


def test_too_few_requests_tell_nothing(tmp_path: Path) -> None:
    """A change is one of over 50 % here: a busy machine delays the server of this test too."""
    with running(script(1.0)) as server:
        measured(tmp_path, server.http_url, requests=4, users="[1]", osl_cv=1.0)
        result = call("check", 1, "--tolerance", 0.5)
    assert result.exit_code == 2 and result.stderr.splitlines()[-1].startswith(
        "error: whether run 1 holds is undecided"
    )


def test_more_minutes_are_advised_where_they_would_tell(tmp_path: Path) -> None:
    """The instrument's own 2 % is beyond a tolerance of 1 %, however long the new run lasts; else it may be the new
    one that is short."""
    with running(script(1.0)) as server:
        measured(tmp_path, server.http_url, requests=6, users="[1]", osl_cv=1.0)
        result = call("check", 1, "--tolerance", 0.01)
    assert (result.exit_code, "run 1 was too short: calibrate anew" in result.stderr) == (2, True)
    run, unsure = Store().run(1), change(1, "itl_mean_s", (0.02, 0.02), 0.2, 0.1)
    assert "give more --minutes" in Check(run, run, (unsure,), 0.1).sentence


@pytest.mark.parametrize(
    ("name", "says"),
    [("7", "no run 7"), ("nobody", "no measured run of 'nobody'"), ("1", "was imported and has no plan")],
)
def test_what_cannot_be_checked(name: str, says: str) -> None:
    assert call("import", ROOT / "data" / "curves" / "reference-cpu.csv").exit_code == 0
    result = call("check", name)
    assert result.exit_code == 2 and says in result.stderr and result.stderr.count("\n") == 1


def test_a_server_that_is_gone_is_one_line(tmp_path: Path) -> None:
    with running(script(0.2)) as server:
        measured(tmp_path, server.http_url, requests=4, users="[1]")
    result = call("check", 1)
    assert result.exit_code == 2 and result.stderr.count("error:") == 1 and "correct --url" in result.stderr


def test_a_server_that_dies_in_a_check_leaves_no_run_to_go_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(file: Any, store: Store, bar: Any, **_: Any) -> int:
        bar.run_id = store.create_run("")
        store.finish_run(bar.run_id, "failed", "it died")
        raise ServerError(f"it died; points are kept; continue with: python -m calibration resume {bar.run_id}")

    with running(script(0.2)) as server:
        measured(tmp_path, server.http_url, requests=4, users="[1]")
    monkeypatch.setattr(check.sweep, "run", dies)
    result = call("check", 1)
    assert result.exit_code == 2
    assert result.stderr.strip() == "error: it died; undecided: run the same command again"


@given(ratio=st.floats(0.3, 3.0), error=st.floats(0.001, 0.3), tolerance=st.floats(0.01, 0.4))
def test_the_rule_of_a_change(ratio: float, error: float, tolerance: float) -> None:
    """Its interval is that of a log-normal ratio; both verdicts are only given where the data allow them."""
    found = change(1, "itl_mean_s", (0.02, 0.02 * ratio), error, tolerance)
    assert math.isclose(1 + found.change, ratio)
    assert math.isclose((1 + found.low) * (1 + found.high), ratio**2)
    excludes_no_change = found.low > 0 or found.high < 0
    assert excludes_no_change == (found.p_value < 0.05) or math.isclose(found.p_value, 0.05, rel_tol=1e-3)
    if found.verdict == "changed":
        assert excludes_no_change and abs(found.change) > tolerance
    if found.verdict == "holds":
        assert abs(found.change) <= tolerance and found.high - found.change <= tolerance * ratio * (1 + 1e-9)
