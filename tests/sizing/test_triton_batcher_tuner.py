"""The tuner and the command line: settings that hold, for the least instances, and what is said when none does."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from sizing.cli import main
from sizing.plans import NoFeasiblePlan
from sizing.workload import Limit
from triton_tools.batcher.dynamic import simulate
from triton_tools.batcher.outcome import percentile
from triton_tools.batcher.pbtxt import parse_config
from triton_tools.batcher.preferred import standing_out
from triton_tools.batcher.report import config_text, print_tuned
from triton_tools.batcher.requests import Requests
from triton_tools.batcher.service import Measured, ServiceTimes, parse_service_times
from triton_tools.batcher.trial import Load, Setting, attempt, largest_rate
from triton_tools.batcher.tuner import Tuned, tune

LAW = "8ms+1ms*n"
BUDGET = Limit("e2e", 95, 0.05)


@pytest.fixture(scope="module")
def tuned() -> Tuned:
    return tune(parse_service_times(LAW), Load(400, BUDGET), start_batch=4)


def test_the_setting_holds_under_other_arrivals(tuned: Tuned) -> None:
    model = parse_config(config_text(tuned.best.setting))
    arrivals = Requests.poisson(400, 30_000, np.random.default_rng(99))
    outcome = simulate(model, parse_service_times(LAW).of(1), arrivals)
    assert percentile(outcome.latency_s, 95) <= 0.05


def test_the_process_is_the_recommended_one(tuned: Tuned) -> None:
    default, sizes, delays = tuned.stages
    assert [(trial.setting.max_batch_size, trial.setting.delay_us) for trial in default.trials] == [(4, 0)]
    assert {trial.setting.delay_us for trial in sizes.trials} == {0}
    raised = [trial.setting.delay_us for trial in delays.trials]
    assert raised == sorted(raised) and raised[0] > 0
    assert all(trial.meets(BUDGET) for trial in delays.trials[:-1])
    # one execution of four rows takes 12 ms: the default cannot carry 400/s, a larger batch can
    assert not default.trials[0].meets(BUDGET)
    assert tuned.best.setting.max_batch_size > 4


TIGHT = Limit("e2e", 95, 0.02)


@pytest.fixture(scope="module")
def tightly_tuned() -> Tuned:
    return tune(parse_service_times(LAW), Load(400, TIGHT), start_batch=8)


def test_no_instance_more_than_needed(tightly_tuned: Tuned) -> None:
    found = tightly_tuned
    assert found.best.setting.instances > 1
    # with one instance fewer no setting of a wide grid holds
    fewer = [
        attempt(Setting(found.best.setting.instances - 1, most, delay), ServiceTimes(0.008, 0.001), Load(400, TIGHT))
        for most in (1, 2, 4, 8, 12, 16, 32, 64)
        for delay in (0, 500, 2000, 8000)
    ]
    assert not any(trial.meets(TIGHT) for trial in fewer)


def test_preferred_sizes_do_not_help_on_a_law_and_the_reason_is_said(tuned: Tuned) -> None:
    verdict = tuned.preferred
    assert (verdict.helps, verdict.standing_out) == (False, ())
    assert "Preferred sizes do not help: no size is much faster per row than the next" in verdict.why
    assert verdict.with_preferred is not None and verdict.with_preferred.latency_s >= 0.95 * verdict.plain.latency_s


def test_a_size_with_a_kernel_of_its_own_stands_out() -> None:
    """Steps of a profile made for 4 and for 16 rows: 5 rows cost as much as 16."""
    service = ServiceTimes(points=((1, 0.010), (4, 0.010), (5, 0.030), (16, 0.030)))
    assert standing_out(service, 16) == (4,)
    assert standing_out(ServiceTimes(0.008, 0.001), 64) == ()


@pytest.mark.parametrize("size", [1, 8, 64])
def test_the_largest_rate_is_found_far_below_the_capacity(size: int) -> None:
    """A request waits more than the 1 ms left if another came in the 8 ms before: 5 % do at ln(1/0.95)/8 ms, 6.4/s."""
    load = Load(0.1, Limit("e2e", 95, 0.010))
    edge = largest_rate(Setting(1, size), parse_service_times(LAW).of(1), load, meets_at=0.1)
    assert edge == pytest.approx(np.log(1 / 0.95) / 0.008, rel=0.1)


def test_the_largest_rate_is_at_the_edge_of_the_budget() -> None:
    setting, service, load = Setting(1, 16), ServiceTimes(0.008, 0.001), Load(100, BUDGET)
    edge = largest_rate(setting, service, load, meets_at=100)
    assert attempt(setting, service, Load(edge, BUDGET)).meets(BUDGET)
    assert not attempt(setting, service, Load(1.04 * edge, BUDGET)).meets(BUDGET)


def test_a_larger_budget_never_needs_more_instances(tuned: Tuned, tightly_tuned: Tuned) -> None:
    assert BUDGET.limit_s > TIGHT.limit_s
    assert tuned.best.setting.instances <= tightly_tuned.best.setting.instances


def test_only_measured_instance_counts_are_tried() -> None:
    slower = ServiceTimes(0.016, 0.002)  # two on one GPU run at half the speed: nothing is won
    measured = Measured(((1, ServiceTimes(0.008, 0.001)), (2, slower)))
    with pytest.raises(NoFeasiblePlan, match=r"nearest is|capacity of the largest"):
        tune(measured, Load(2000, BUDGET), 8)


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(["batcher", *arguments])
    captured = capsys.readouterr()
    assert isinstance(stopped.value.code, int)
    return stopped.value.code, captured.out, captured.err


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "config.pbtxt"
    path.write_text('name: "encoder" max_batch_size: 8 dynamic_batching { }')
    return str(path)


def test_the_command_prints_triton_s_counters_as_json(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = [config, "--service-times", LAW, "--rate", "300", "--requests", "2000", "--json"]
    code, out, err = run(given, capsys)
    answer = json.loads(out)
    assert (code, err) == (0, "")
    assert answer["counters"]["nv_inference_request_success"] == answer["counters"]["nv_inference_count"] == 2000
    assert sum(int(size) * count for size, count in answer["batch_sizes"].items()) == 2000
    assert answer["waiting"]["p50_s"] <= answer["waiting"]["p95_s"] < answer["latency"]["p95_s"]
    assert run([*given, "--seed", "1"], capsys)[1] != out
    assert run(given, capsys)[1] == out


def test_the_command_tunes(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = [config, "--service-times", LAW, "--rate", "400", "--budget", "p95:50ms", "--tune", "--json"]
    code, out, _ = run(given, capsys)
    answer = json.loads(out)
    assert code == 0 and answer["feasible"] and answer["best"]["latency_s"] <= 0.05
    assert answer["preferred"]["helps"] is False
    assert parse_config(answer["config"]).max_batch_size == answer["best"]["max_batch_size"]


def test_a_tuning_says_what_it_leaves_out(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = [config, "--service-times", LAW, "--rate", "50", "--budget", "p95:50ms", "--tune"]
    assert "queue policies" not in run(given, capsys)[1]
    Path(config).write_text("max_batch_size: 8 dynamic_batching { default_queue_policy { max_queue_size: 10 } }")
    assert "Tuned without the configuration's priorities, queue policies and" in run(given, capsys)[1]


def test_a_tuning_for_people_has_the_setting_and_the_reason(tuned: Tuned, capsys: pytest.CaptureFixture[str]) -> None:
    print_tuned(tuned, Load(400, BUDGET))
    out = capsys.readouterr().out
    assert config_text(tuned.best.setting) in out
    assert "Preferred sizes do not help" in out


@pytest.mark.parametrize(
    ("changed", "code", "says"),
    [
        (["--rate", "300", "--budget", "p95:5ms"], 3, ""),
        (
            ["--rate", "300", "--budget", "p95:5ms", "--tune", "--max-instances", "2"],
            3,
            "no setting carries 300 requests/s with a p95 latency",
        ),
        (["--rate", "1e6", "--budget", "p95:50ms", "--tune"], 3, "the capacity of the largest tried"),
        (["--rate", "0"], 2, "rate"),
        (["--rate", "300", "--max-instances", "2"], 2, "--max-instances goes with --tune"),
        (["--rate", "300", "--budget", "p95:50ms", "--tune", "--requests", "500"], 2, "--requests does not go with"),
        (["--rate", "300", "--budget", "p95:50ms", "--tune", "--strategy", "s.py"], 2, "--strategy does not go with"),
        (["--rate", "300", "--budget", "p95:50ms", "--tune", "--late-wakeup"], 2, "--late-wakeup does not go with"),
        (["--rate", "300", "--tune"], 2, "--tune needs --budget"),
        (["--rate", "300", "--budget", "50ms"], 2, "percentile:time"),
        (["--rate", "300", "--budget", "p0:50ms"], 2, "percentile:time"),
        (["--rate", "300", "--strategy", "auto"], 2, "no batchstrategy.py"),
        (["--rate", "300", "--service-times", "none.csv"], 2, "none.csv"),
    ],
)
def test_exit_codes_and_one_line(
    config: str, changed: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ended, _, err = run([config, "--service-times", LAW, *changed], capsys)
    assert ended == code
    assert says in err and len(err.splitlines()) == bool(says)


def test_a_bounded_queue_does_not_grow_beyond_the_capacity(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Ten wait at most, so a served request waits for two executions of 16 ms at most."""
    given = [config, "--service-times", LAW, "--rate", "3000", "--requests", "5000"]
    assert "waiting grows for as long as" in run(given, capsys)[1]
    Path(config).write_text("max_batch_size: 8 dynamic_batching { default_queue_policy { max_queue_size: 10 } }")
    assert "requests are rejected for as long as" in run(given, capsys)[1]


def test_rejected_requests_are_beyond_any_budget(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Those served wait for two executions of 16 ms at most, but five of six are refused."""
    Path(config).write_text("max_batch_size: 8 dynamic_batching { default_queue_policy { max_queue_size: 10 } }")
    given = [config, "--service-times", LAW, "--rate", "3000", "--requests", "5000", "--budget", "p95:50ms"]
    ended, out, _ = run(given, capsys)
    assert ended == 3 and "does not hold: 8" in out and "of the requests are rejected. Try --tune" in out
    told = json.loads(run([*given, "--json"], capsys)[1])["budget"]
    assert (told["met"], told["latency_s"]) == (False, None)


def test_a_missing_configuration_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(["nowhere/config.pbtxt", "--service-times", LAW, "--rate", "1"], capsys)
    assert (code, err) == (2, "error: nowhere/config.pbtxt: cannot be read: No such file or directory\n")


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["--help"], capsys)
    assert code == 0 and "--budget p95:50ms --tune" in out
