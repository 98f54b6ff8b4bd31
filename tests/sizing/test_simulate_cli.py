"""``python -m sizing simulate``: its options reach the simulator, and what makes no sense is one line."""

from __future__ import annotations

import json

import numpy as np
import pytest

from sizing.cli import main
from sizing.engine import Batching, Replica, Speculation, StepLaw
from sizing.simulator import Failure, Watch, simulate, simulate_fleet
from sizing.workload import Lengths, Workload

LAW = StepLaw(4.8e-3, 1e-3, 20e-6, 0.0, 0.0)
BASE = "simulate --weights 4.8ms --overhead 1ms --token 20us --isl 300 --osl 60 --osl-cv 0.5 --requests 2000".split()
LOAD = Workload(Lengths(300, 60, 0.0, 0.5), 40.0)


def run(arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main([*BASE, *arguments.split()])
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


def test_the_options_are_those_of_the_library(capsys: pytest.CaptureFixture[str]) -> None:
    """Little memory and much patience, then little patience: every figure as the functions give it."""
    rule = Batching(max_batch_size=16, kv_tokens=3000, kv_policy="max_utilization", max_tokens=100)
    replica = Replica(LAW, rule, Speculation(3, 0.6))
    load = Workload(LOAD.lengths, 40.0, queue_timeout_s=0.2, cancel_s=1.5)
    expected = simulate(replica, load, requests=2000, seed=5, watch=Watch(token_gaps=True))
    code, out, err = run(
        "--rate 40 --max-batch-size 16 --kv-tokens 3000 --kv-policy max_utilization --kv-max-tokens 100 "
        "--speculate 3:0.6 --queue-timeout 200ms --cancel 1.5s --token-gaps --seed 5 --json",
        capsys,
    )
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert found["predicted"]["e2e"]["p95_s"] == pytest.approx(np.nanpercentile(expected.e2e_s, 95))
    assert found["gap_p99_s"] == expected.watched.gap_p99_s
    assert found["timed_out_share"] == expected.timed_out / len(expected.outcome) > 0
    assert found["cancelled_share"] == expected.cancelled / len(expected.outcome)


def test_a_replica_that_fails(capsys: pytest.CaptureFixture[str]) -> None:
    """Two replicas; one is down for half of the run: every request is served, later than without."""
    asked = "--rate 40 --replicas 2 --routing least_outstanding"
    code, out, err = run(f"{asked} --failure 1:10s:35s --json", capsys)
    assert (code, err) == (0, "")
    hit, unhurt = json.loads(out), json.loads(run(f"{asked} --json", capsys)[1])
    replica = Replica(LAW, Batching(kv_tokens=1_000_000))
    expected = simulate_fleet(
        [replica] * 2, LOAD, routing="least_outstanding", failures=[Failure(1, 10, 35)], requests=2000
    )
    assert hit["predicted"]["e2e"]["p95_s"] == pytest.approx(np.quantile(expected.e2e_s, 0.95))
    assert hit["predicted"]["e2e"]["p95_s"] > unhurt["predicted"]["e2e"]["p95_s"]
    told = " ".join(run(f"{asked} --failure 1:10s:35s --failure 0:40s", capsys)[1].split())
    assert "replica 1 down from 10 s to 35 s; replica 0 down from 40 s on" in told


@pytest.mark.parametrize(
    ("failure", "why"),
    [
        ("0", "write it as REPLICA:FROM:UNTIL"),
        ("-1:1s", "write it as REPLICA:FROM:UNTIL"),
        ("0:10", "needs a unit"),
        ("0:10s:5s", "from_s from 0 to below until_s"),
        ("2:10s:20s", "the fleet has replicas 0 to 1"),
        ("0:1000s", "the requests have arrived after 50 s"),
    ],
)
def test_a_failure_that_cannot_be_is_one_line(failure: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(f"--rate 40 --replicas 2 --failure {failure}", capsys)
    assert (code, out) == (2, "") and why in err and len(err.splitlines()) == 1


def test_gaps_are_printed_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Gaps between tokens: p50 " in run("--rate 5 --token-gaps", capsys)[1]
    assert "Gaps" not in run("--rate 5", capsys)[1]


def test_times_above_a_second_and_unknown_ones_are_written_as_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    """Steps of 1.3 s, and a single token, which has no gap."""
    slow = "--rate 0.1 --weights 1.3s --overhead 0s --token 0s"
    assert "p95 1,300 ms, p99 1,300 ms" in run(f"{slow} --token-gaps", capsys)[1]
    assert "p50 —, p95 —, p99 —." in run(f"{slow} --osl 1 --osl-cv 0 --token-gaps", capsys)[1]


def test_replications_give_intervals(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "sizing.analyses.parallel.cpu_count", lambda: 1
    )  # in this process: others take a while to start
    code, out, _ = run("--rate 20 --replications 2 --json", capsys)
    found = json.loads(out)
    assert code == 0 and found["replications"] == 2
    assert 0 < found["half_width_90"]["e2e"]["p95_s"] < found["predicted"]["e2e"]["p95_s"]
    assert "in 2 runs" in " ".join(run("--rate 20 --replications 2", capsys)[1].split())


@pytest.mark.parametrize("runs", [1, 2])
def test_whoever_is_turned_away_is_told_of(
    runs: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the text and in the JSON, of one run and of several."""
    monkeypatch.setattr("sizing.analyses.parallel.cpu_count", lambda: 1)
    options = f"--rate 500 --queue-timeout 100ms --requests 10000 --replications {runs}"
    found = json.loads(run(f"{options} --json", capsys)[1])
    (told,) = found["warnings"]
    assert told.endswith("the latencies are those of the others")
    assert float(told.split(" %")[0]) == pytest.approx(100 * found["timed_out_share"], abs=0.05)
    assert found["timed_out_share"] > 0.1
    assert f"warning: {told}" in run(options, capsys)[1]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("--rate 5 --seed -1", "--seed"),
        ("--rate 5 --isl 1e30", "ISL must be at most 1e+09 tokens"),
        ("--rate 5 --weights infs", "--weights: 'infs' is not a finite time"),
        ("--rate 5 --kv-token 3", "--kv-token: '3' needs a unit"),
        ("--rate 5 --max-batch-size 10000000", "10,000,000 slots"),
        ("--rate 5 --speculate 3", "tokens:acceptance"),
        ("--rate 5 --cancel 0s", "cancel_s must be above 0 s"),
        ("--rate 5 --replications 2 --token-gaps", "omit --replications"),
    ],
)
def test_what_makes_no_sense_is_one_line(options: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(options, capsys)
    assert (code, out) == (2, "")
    assert why in err and err.count("\n") == 1
