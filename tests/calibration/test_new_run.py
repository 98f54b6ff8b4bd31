"""A plan from the fields of a form, and how long it is said to take."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration.errors import PlanError
from calibration.jobs import NewRun, duration, plan_file
from calibration.levels import Pace
from sizing.workload import Lengths
from tests.calibration.kept import POINT

NEW = NewRun("gpu-7:8001", Lengths(64, 32), (1, 4, 16))
users = st.lists(st.integers(1, 512), min_size=1, max_size=6, unique=True).map(tuple)


@settings(max_examples=30, deadline=None)
@given(users, st.integers(1, 3600), st.floats(1, 5000), st.floats(0, 3), st.integers(0, 2**31))
def test_the_plan_has_what_the_fields_say(
    levels: tuple[int, ...], longest_s: int, isl: float, cv: float, seed: int
) -> None:
    new = NewRun("gpu-7:8001", Lengths(isl, 32, cv, 0.0), levels, longest_s=longest_s, seed=seed)
    plan = plan_file(new).plan
    assert [level.value for level in plan.levels()] == sorted(levels)
    assert (plan.server.url, plan.budget_s, plan.seed) == ("gpu-7:8001", longest_s, seed)
    assert (plan.lengths[0].isl, plan.lengths[0].isl_cv, plan.lengths[0].osl_cv) == (isl, cv, 0.0)


@pytest.mark.parametrize(
    "text", ["x: [1", "'; rm -rf /", "a\nserver: {url: 'evil:1'}", "<script>", "!!python/name:os.system", "é"]
)
def test_a_name_is_a_name_whatever_is_in_it(text: str) -> None:
    plan = plan_file(replace(NEW, model=text, labels={"model": text, "gpu": text})).plan
    assert (plan.server.model, plan.deployment.model, plan.deployment.gpu) == (text, text, text)
    assert plan.server.url == "gpu-7:8001"


@pytest.mark.parametrize("key", ["sk-secret", ""])
def test_an_openai_server_gets_its_endpoint_and_the_operators_key_by_name(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIZING_RUN_API_KEY", key)
    file = plan_file(replace(NEW, protocol="openai", endpoint="chat", model="llama"))
    server = file.plan.server
    assert (server.url, server.address, server.endpoint) == ("http://gpu-7:8001", "gpu-7:8001", "chat")
    assert server.api_key_env == ("SIZING_RUN_API_KEY" if key else None)
    assert "sk-secret" not in file.text


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"concurrency": ()}, "no load levels"),
        ({"target": "gpu-7"}, "server.url"),
        ({"model": ""}, "server.model"),
        ({"labels": {"tp": 0}}, "deployment.tp"),
        ({"labels": {"shell": "x"}}, "deployment.shell: unknown key"),
        ({"longest_s": float("nan")}, "budget_s"),
        ({"question": {"gpu_minutes": 5.0, "rate": 1.0}}, "adaptive"),
    ],
)
def test_fields_that_are_no_plan_are_named(change: dict[str, object], says: str) -> None:
    with pytest.raises(PlanError, match=says) as caught:
        plan_file(replace(NEW, **change))  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


@settings(max_examples=20, deadline=None)
@given(users, st.integers(1, 600), st.integers(1, 8))
def test_without_points_every_level_may_take_all_its_time(levels: tuple[int, ...], longest_s: int, gpus: int) -> None:
    found = duration(plan_file(replace(NEW, concurrency=levels, longest_s=longest_s)).plan, [], gpus)
    assert found.at_most
    assert found.gpu_minutes(gpus) == pytest.approx((len(levels) + 1) * longest_s * gpus / 60)  # + random arrivals


def test_with_points_it_is_the_sweeps_own_estimate_and_never_over_the_longest_time() -> None:
    plan = plan_file(replace(NEW, concurrency=(4,), check_load=0.0)).plan
    known = replace(POINT, e2e_mean_s=0.4, ttft_mean_s=0.1, itl_mean_s=0.01)
    found = duration(plan, [known])
    (level,) = plan.levels()
    assert not found.at_most
    assert found.seconds == pytest.approx(Pace(level.lengths, 4, 0.4, 0.1, 0.01).expected_s(plan, level))
    slow = duration(plan, [replace(known, e2e_mean_s=40.0)])
    assert found.seconds < slow.seconds <= 120 + 4 * 40
    assert duration(plan, [replace(known, isl=65)]).at_most


def test_an_adaptive_run_takes_its_budget_however_many_levels() -> None:
    question = {"gpu_minutes": 30.0, "rate": 2.0, "ttft": "p95:1s"}
    plan = plan_file(replace(NEW, question=question)).plan
    assert duration(plan, [], gpus=4).gpu_minutes(4) == 30
    of_the_server = {"minutes": 30.0, "rate": 2.0, "ttft": "p95:1s"}
    assert duration(plan_file(replace(NEW, question=of_the_server)).plan, [], gpus=4).gpu_minutes(4) == 120
