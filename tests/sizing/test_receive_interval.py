"""Engines that look for new requests every so many decode steps: SGLang's --scheduler-recv-interval."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sizing.analyses.next_level import Option
from sizing.engine import Batching, Replica, StepLaw
from sizing.errors import ScenarioError
from sizing.fitting import fit
from sizing.points import read_points, write_points
from sizing.queueing import predict, stable_rate_per_s
from sizing.simulator import Watch, simulate, simulate_closed, simulate_trace
from sizing.workload import Lengths, Workload
from tests.sizing.simulated_levels import LAW as GPU
from tests.sizing.simulated_levels import simulated_point
from tests.sizing.test_cli import run as command

TICK_S = 10e-3
TICKING = StepLaw(0.0, TICK_S, 0.0, 0.0, 0.0)
"""Every iteration lasts one tick, whatever it holds."""


def looking(interval: int, law: StepLaw = TICKING, **settings: Any) -> Replica:
    return Replica(law, Batching(receive_interval_steps=interval, **settings))


def first_tokens(replica: Replica, arrival_ticks: list[float], osl: list[int]) -> list[float]:
    """In ticks."""
    run = simulate_trace(replica, TICK_S * np.array(arrival_ticks), np.full(len(osl), 10), np.array(osl))
    found: list[float] = ((run.arrival_s + run.ttft_s) / TICK_S).tolist()
    return found


@pytest.mark.parametrize(("arrives", "first_token"), [(1.5, 6), (3.9, 6), (4.9, 6), (5.1, 10), (8.5, 10)])
def test_by_hand(arrives: float, first_token: int) -> None:
    """A prompt runs in tick 1, and the engine looks after it: every fourth decode step from then on begins with a look,
    those of ticks 2, 6 and 10. What arrives before tick 5 ends is seen before the prompt of tick 6 is formed."""
    found = first_tokens(looking(4, policy="prefill_first"), [0.0, arrives], [60, 2])
    assert found == pytest.approx([1, first_token])


def test_a_prompt_is_followed_by_a_look() -> None:
    """The second prompt runs in tick 6, the third arrives while it does and the fourth just after the look that follows
    it, before tick 8, from which the next is four decode steps away."""
    found = first_tokens(looking(4, policy="prefill_first"), [0.0, 1.5, 5.5, 7.5], [60, 9, 9, 9])
    assert found == pytest.approx([1, 6, 7, 12])


def test_with_look_ahead_the_look_comes_before_the_prompts_have_run() -> None:
    """Iterations are fixed while the one before runs: the look after the first prompt, for tick 2, is at its start, and
    the next for tick 6, at the start of tick 5. What arrives in tick 5 waits for the look for tick 10."""
    engine = looking(4, policy="prefill_first", lookahead_steps=1.0)
    assert first_tokens(engine, [0.0, 3.5], [60, 2]) == pytest.approx([1, 6])
    assert first_tokens(engine, [0.0, 4.5], [60, 2]) == pytest.approx([1, 10])


def test_an_idle_engine_looks_all_the_time() -> None:
    arrival_s = 10.0 * np.arange(50)
    run = simulate_trace(looking(30, lookahead_steps=1.0), arrival_s, np.full(50, 100), np.full(50, 20))
    assert run.ttft_s == pytest.approx(TICK_S)


def test_an_engine_that_has_run_dry_takes_all_that_wait() -> None:
    """Tick 9 was not fixed before the only answer ended with tick 8: the engine had not looked since the first prompt.
    So it knows the request that came in tick 8 too. SGLang 0.5.23's own scheduler does the same."""
    engine = looking(10, policy="prefill_first", lookahead_steps=1.0)
    assert first_tokens(engine, [0.0, 1.5, 7.5], [8, 2, 2]) == pytest.approx([1, 9, 9])


def test_requests_that_wake_an_engine_together_start_together() -> None:
    arrival_s = np.array([0.0, 0.0, 0.0, 10.0, 10.0])
    run = simulate_trace(looking(30, policy="prefill_first"), arrival_s, np.full(5, 100), np.full(5, 20))
    assert run.ttft_s == pytest.approx(TICK_S)


def test_requests_that_were_seen_wait_for_a_slot_only() -> None:
    """The second and the third are seen together; the third starts when the only other slot is free, not at a look."""
    found = first_tokens(looking(10, policy="prefill_first", max_batch_size=2), [0.0, 1.5, 1.6], [60, 4, 4])
    assert found == pytest.approx([1, 12, 16])


def test_what_a_stretch_of_decode_steps_hides_is_half_an_interval_on_average() -> None:
    """Two users, of whom one always decodes: answers end at any step, so that the wait for the look is uniform."""
    rng = np.random.default_rng(3)
    osl = rng.integers(200, 400, 400)
    run = simulate_closed(looking(20, policy="prefill_first"), 2, np.full(400, 10), osl, ramp_s=0.5)
    waits = run.ttft_s[2:-2] / TICK_S - 1
    assert waits.mean() == pytest.approx(19 / 2, abs=3 * 20 / np.sqrt(12 * len(waits)))
    assert waits.max() <= 19 + 1e-6


@settings(max_examples=15, deadline=None)
@given(
    interval=st.integers(1, 30),
    ahead=st.sampled_from([0.0, 1.0]),
    load=st.floats(0.1, 0.7),
    policy=st.sampled_from(["chunked", "prefill_first", "whole_prompt"]),
)
def test_looking_less_often_is_never_faster(interval: int, ahead: float, load: float, policy: Any) -> None:
    lengths = Lengths(1000, 200, 0.4, 0.4)
    often, seldom = (looking(n, GPU, policy=policy, lookahead_steps=ahead) for n in (interval, 2 * interval + 5))
    check_slower(often, seldom, Workload(lengths, load * stable_rate_per_s(often, lengths)))


def check_slower(before: Replica, after: Replica, workload: Workload) -> None:
    """Mean TTFT is longer after, by formula and by simulation."""
    assert predict(after, workload).ttft.mean_s > predict(before, workload).ttft.mean_s
    slow, slower = (simulate(engine, workload, requests=3000).ttft_s.mean() for engine in (before, after))
    assert slower > slow


def test_static_batches_have_no_interval() -> None:
    workload = Workload(Lengths(100, 50, 0.5, 0.5), rate_per_s=4)
    now, seldom = (simulate(looking(n, GPU, policy="static"), workload, requests=2000) for n in (1, 30))
    assert np.array_equal(now.ttft_s, seldom.ttft_s)


def test_the_stable_rate_is_that_of_an_engine_that_always_looks() -> None:
    """A saturated engine has seen more requests than it has slots."""
    lengths = Lengths(1000, 200, 0.4, 0.4)
    always, seldom = (looking(n, GPU, policy="prefill_first") for n in (1, 30))
    assert stable_rate_per_s(seldom, lengths) == stable_rate_per_s(always, lengths)


@pytest.mark.parametrize("policy", ["chunked", "prefill_first"])
@pytest.mark.parametrize("load", [0.3, 0.7])
@pytest.mark.parametrize("ahead", [0.0, 1.0])
@pytest.mark.parametrize("interval", [10, 30])
def test_formula_and_simulation_agree(policy: Any, load: float, ahead: float, interval: int) -> None:
    lengths = Lengths(1000, 300, 0.5, 0.5)
    engine = looking(interval, GPU, policy=policy, lookahead_steps=ahead)
    workload = Workload(lengths, load * stable_rate_per_s(engine, lengths))
    told, run = predict(engine, workload), simulate(engine, workload, requests=40_000, seed=1)
    assert told.ttft.mean_s == pytest.approx(run.ttft_s.mean(), rel=0.04)
    assert told.ttft.p50_s == pytest.approx(np.median(run.ttft_s), rel=0.04)
    assert told.ttft.p95_s == pytest.approx(np.percentile(run.ttft_s, 95), rel=0.1)
    assert told.itl.mean_s == pytest.approx(run.itl_s.mean(), rel=0.06)
    assert told.e2e.p95_s == pytest.approx(np.percentile(run.e2e_s, 95), rel=0.05)


@pytest.mark.parametrize("ahead", [0.0, 1.0])
@pytest.mark.parametrize("load", [0.3, 0.7])
def test_short_answers_meet_fewer_looks_than_their_steps_have_on_average(load: float, ahead: float) -> None:
    """They start where the engine has looked: answers of 60 tokens, of two intervals, meet one more prompt or two."""
    lengths = Lengths(1000, 60, 0.5, 0.5)
    engine = looking(30, GPU, policy="prefill_first", lookahead_steps=ahead)
    workload = Workload(lengths, load * stable_rate_per_s(engine, lengths))
    told, run = predict(engine, workload), simulate(engine, workload, requests=20_000, seed=1)
    assert told.itl.mean_s == pytest.approx(run.itl_s.mean(), rel=0.06)
    assert told.ttft.p95_s == pytest.approx(np.percentile(run.ttft_s, 95), rel=0.1)


def test_the_formula_knows_gaps_of_prompts_that_wait_for_each_other() -> None:
    """Prompts of 30 steps run after one of them: fewer gaps hold some, and these hold more."""
    lengths = Lengths(1000, 300, 0.5, 0.5)
    engine = looking(30, GPU, policy="prefill_first")
    workload = Workload(lengths, 0.5 * stable_rate_per_s(engine, lengths))
    told = predict(engine, workload, gaps=True).gap
    run = simulate(engine, workload, requests=20_000, seed=1, watch=Watch(token_gaps=True)).watched
    assert told.p50_s == pytest.approx(run.gap_p50_s, rel=0.05)
    assert told.p99_s == pytest.approx(run.gap_p99_s, rel=0.15)


def test_a_fit_takes_the_interval_as_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without it the wait for a look is taken for work on prompts."""
    true = looking(20, GPU, policy="prefill_first")
    options = [
        Option(Lengths(isl, 200, 0.0, 0.5), users, 20 * users) for isl in (500, 3000) for users in (1, 4, 16, 64)
    ]
    points = [simulated_point(option, true, receive_interval_steps=20) for option in options]
    table = tmp_path / "points.csv"
    with table.open("w") as file:
        write_points(points, file)
    found = fit(read_points(table))
    assert found.batching.receive_interval_steps == 20
    untold = [replace(point, receive_interval_steps=None) for point in points]
    worst, worst_untold = (max(abs(error.ttft_error) for error in one.errors) for one in (found, fit(untold)))
    assert worst < 0.12 < worst_untold
    assert fit(untold, receive_interval_steps=20).law == found.law
    differ = [replace(points[0], receive_interval_steps=10), *points[1:]]
    assert fit(differ).batching.receive_interval_steps == 1
    asked = ["fit", "--points", str(table)]
    assert json.loads(command([*asked, "--json"], capsys)[1])["receive_interval_steps"] == 20
    assert "receive interval steps 20" in command(asked, capsys)[1]
    at_once = command([*asked, "--receive-interval-steps", "1", "--json"], capsys)[1]
    assert "receive_interval_steps" not in json.loads(at_once)


@pytest.mark.parametrize("interval", [0, -1, 10_001])
def test_impossible_intervals_of_an_engine(interval: int) -> None:
    with pytest.raises(ScenarioError, match="receive_interval_steps must be from 1 to 10000"):
        Batching(receive_interval_steps=interval)


def test_commands_take_it(capsys: pytest.CaptureFixture[str]) -> None:
    law = "--weights 4.8ms --overhead 1ms --token 20us --sequence 10us --kv-token 49ns --isl 500 --osl 100 --rate 4"
    asked = ["simulate", *law.split(), "--requests", "2000", "--json", "--receive-interval-steps"]
    at_once, seldom = (json.loads(command([*asked, steps], capsys)[1]) for steps in ("1", "30"))
    assert seldom["predicted"]["ttft"]["p50_s"] > 2 * at_once["predicted"]["ttft"]["p50_s"]
    code, _, told = command([*asked, "0"], capsys)
    assert code == 2 and told.startswith("error: ") and told.count("\n") == 1 and "--receive-interval-steps" in told
