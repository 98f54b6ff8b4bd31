"""Engines whose prompts wait for others: TensorRT-LLM's batch_wait_timeout_iters and batch_wait_max_tokens_ratio."""

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
from sizing.simulator import simulate, simulate_closed, simulate_trace, simulated_stable_rate_per_s
from sizing.workload import Lengths, Workload
from tests.sizing.simulated_levels import LAW as GPU
from tests.sizing.simulated_levels import simulated_point
from tests.sizing.test_cli import run as command
from tests.sizing.test_receive_interval import TICK_S, TICKING, check_slower


def waiting(steps: int, law: StepLaw = TICKING, **settings: Any) -> Replica:
    return Replica(law, Batching(batch_wait_steps=steps, **settings))


def first_tokens(replica: Replica, arrival_ticks: list[float], isl: list[int], osl: list[int]) -> list[float]:
    """In ticks."""
    run = simulate_trace(replica, TICK_S * np.array(arrival_ticks), np.array(isl), np.array(osl))
    found: list[float] = ((run.arrival_s + run.ttft_s) / TICK_S).tolist()
    return found


@pytest.mark.parametrize("policy", ["chunked", "whole_prompt"])
def test_by_hand(policy: Any) -> None:
    """The first prompt runs in tick 1, for it finds nothing to decode. The second could run in tick 3, and waits the
    four steps of ticks 3 to 6; so it runs in tick 7, and the third, which came meanwhile, with it. The fourth comes in
    tick 7 and waits those of ticks 8 to 11."""
    found = first_tokens(waiting(4, policy=policy), [0.0, 1.5, 4.5, 6.5], [10] * 4, [60, 9, 9, 9])
    assert found == pytest.approx([1, 7, 7, 12])


def test_the_wait_ends_with_the_tokens_that_it_is_for() -> None:
    """Of a budget of 100 tokens 0.5 are 50: the decode and two prompts of 25, or one of 49, which does not wait."""
    engine = waiting(20, policy="whole_prompt", token_budget=100, batch_wait_ratio=0.5)
    assert first_tokens(engine, [0.0, 1.5, 4.5], [10, 25, 25], [60, 9, 9]) == pytest.approx([1, 6, 6])
    assert first_tokens(engine, [0.0, 1.5], [10, 49], [60, 9]) == pytest.approx([1, 3])
    assert first_tokens(engine, [0.0, 1.5], [10, 48], [60, 9]) == pytest.approx([1, 23])


def test_prompts_that_do_not_fit_count_for_nothing() -> None:
    """The KV cache holds two answers: the third prompt waits for memory, and only then, four steps, for others."""
    engine = waiting(4, policy="whole_prompt", token_budget=100, batch_wait_ratio=0.9, kv_tokens=140)
    found = first_tokens(engine, [0.0, 0.0, 1.5, 1.6], [10, 10, 50, 50], [60, 9, 9, 9])
    # Prompt 2 ends with tick 9; prompt 3 could run in tick 10, waits up to tick 13 and runs in tick 14; it ends with
    # tick 22, and prompt 4 waits from 23 to 26.
    assert found == pytest.approx([1, 1, 14, 27])


def test_a_prompt_once_begun_goes_on() -> None:
    """A prompt of 250 tokens, in chunks of 99 beside the decode: it fills the first two iterations, and waits for
    nothing in the third."""
    engine = waiting(20, policy="chunked", token_budget=100, batch_wait_ratio=0.9)
    assert first_tokens(engine, [0.0, 1.5], [10, 250], [60, 9]) == pytest.approx([1, 5])


def test_prompts_that_run_with_nothing_to_decode_leave_the_steps_counted() -> None:
    """The second waits in ticks 3 and 4 and runs in tick 5, when the first has ended; TensorRT-LLM's counter, which it
    looks at beside decodes alone, still has these two of the four steps, so the third waits in ticks 7 and 8."""
    assert first_tokens(waiting(4), [0.0, 1.5, 5.5], [10] * 3, [4, 60, 9]) == pytest.approx([1, 5, 9])


def test_with_look_ahead_the_wait_begins_when_the_prompt_is_seen() -> None:
    engine = waiting(4, policy="whole_prompt", lookahead_steps=1.0)
    assert first_tokens(engine, [0.0, 1.5], [10, 10], [60, 9]) == pytest.approx([1, 8])


def test_with_look_ahead_a_prompt_that_is_seen_later_ends_the_wait_of_one_before_it() -> None:
    """The second is seen from tick 4 on, the third from tick 7, and then their tokens are enough."""
    engine = waiting(20, policy="whole_prompt", token_budget=100, batch_wait_ratio=0.5, lookahead_steps=1.0)
    assert first_tokens(engine, [0.0, 1.5, 4.5], [10, 25, 25], [60, 9, 9]) == pytest.approx([1, 7, 7])


def test_an_idle_engine_starts_at_once() -> None:
    arrival_s = 10.0 * np.arange(50)
    run = simulate_trace(waiting(30, lookahead_steps=1.0), arrival_s, np.full(50, 100), np.full(50, 20))
    assert run.ttft_s == pytest.approx(TICK_S)


def test_of_two_users_one_waits_all_the_steps() -> None:
    """While the other decodes: there is no third prompt to wait for. It seldom ends meanwhile."""
    osl = np.random.default_rng(3).integers(200, 400, 400)
    run = simulate_closed(waiting(20, policy="whole_prompt"), 2, np.full(400, 10), osl, ramp_s=0.5)
    waits = run.ttft_s[2:-2] / TICK_S
    assert waits.max() == pytest.approx(21) and np.isclose(waits, 21).mean() > 0.8


@settings(max_examples=15, deadline=None)
@given(
    steps=st.integers(0, 20),
    ahead=st.sampled_from([0.0, 1.0]),
    load=st.floats(0.1, 0.7),
    policy=st.sampled_from(["chunked", "whole_prompt"]),
)
def test_waiting_longer_is_never_faster(steps: int, ahead: float, load: float, policy: Any) -> None:
    lengths = Lengths(1000, 200, 0.4, 0.4)
    shorter, longer = (waiting(n, GPU, policy=policy, lookahead_steps=ahead) for n in (steps, 2 * steps + 5))
    check_slower(shorter, longer, Workload(lengths, load * stable_rate_per_s(shorter, lengths)))


def test_a_ratio_alone_keeps_nothing_waiting() -> None:
    lengths = Lengths(1000, 200, 0.4, 0.4)
    plain, rated = (waiting(0, GPU, batch_wait_ratio=ratio) for ratio in (1.0, 0.5))
    workload = Workload(lengths, 0.6 * stable_rate_per_s(plain, lengths))
    assert np.array_equal(*(simulate(engine, workload, requests=3000).ttft_s for engine in (plain, rated)))
    assert predict(plain, workload) == predict(rated, workload)


@pytest.mark.parametrize("policy", ["chunked", "whole_prompt"])
@pytest.mark.parametrize("load", [0.3, 0.7, 0.85])
@pytest.mark.parametrize("ahead", [0.0, 1.0])
def test_formula_and_simulation_agree(policy: Any, load: float, ahead: float) -> None:
    """As TensorRT-LLM was started for public measurements: 20 steps, 0.9 of a budget of 16,384."""
    lengths = Lengths(1000, 300, 0.5, 0.5)
    told, run = both(
        waiting(20, GPU, policy=policy, lookahead_steps=ahead, token_budget=16_384, batch_wait_ratio=0.9), lengths, load
    )
    assert told.ttft.mean_s == pytest.approx(run.ttft_s.mean(), rel=0.04)
    assert told.ttft.p50_s == pytest.approx(np.median(run.ttft_s), rel=0.04)
    assert told.ttft.p95_s == pytest.approx(np.percentile(run.ttft_s, 95), rel=0.06)
    assert told.itl.mean_s == pytest.approx(run.itl_s.mean(), rel=0.03)
    assert told.e2e.p95_s == pytest.approx(np.percentile(run.e2e_s, 95), rel=0.03)


@pytest.mark.parametrize(("steps", "ratio", "budget"), [(5, 1.0, 8192), (20, 0.9, 2048), (40, 0.8, 8192)])
@pytest.mark.parametrize("load", [0.3, 0.7])
def test_they_agree_where_tokens_end_the_wait(steps: int, ratio: float, budget: int, load: float) -> None:
    engine = waiting(steps, GPU, token_budget=budget, batch_wait_ratio=ratio)
    told, run = both(engine, Lengths(1000, 300, 0.5, 0.5), load)
    assert told.ttft.mean_s == pytest.approx(run.ttft_s.mean(), rel=0.08)
    assert told.ttft.p95_s == pytest.approx(np.percentile(run.ttft_s, 95), rel=0.15)
    assert told.itl.mean_s == pytest.approx(run.itl_s.mean(), rel=0.04)
    assert told.e2e.p95_s == pytest.approx(np.percentile(run.e2e_s, 95), rel=0.04)


@pytest.mark.parametrize(("steps", "ratio", "budget"), [(20, 0.9, 2048), (20, 0.9, 8192), (40, 0.8, 8192)])
@pytest.mark.parametrize("isl_cv", [0.0, 0.5])
def test_whole_prompts_that_never_fill_the_share_wait_in_vain(
    steps: int, ratio: float, budget: int, isl_cv: float
) -> None:
    """One more prompt does not fit, and what does is not enough: a backlog waits all the steps. The formula's rate is
    then hardly above the simulation's, and up to 30 % below."""
    lengths = Lengths(1000, 300, isl_cv, 0.5)
    engine = waiting(steps, GPU, policy="whole_prompt", token_budget=budget, batch_wait_ratio=ratio)
    found = stable_rate_per_s(engine, lengths) / simulated_stable_rate_per_s(engine, lengths)
    assert 0.7 < found < 1.06
    chunked = replace(engine, batching=replace(engine.batching, policy="chunked"))
    assert stable_rate_per_s(engine, lengths) < stable_rate_per_s(chunked, lengths)


def both(engine: Replica, lengths: Lengths, load: float) -> tuple[Any, Any]:
    """The formula's prediction and a simulation at this share of the stable rate."""
    workload = Workload(lengths, load * stable_rate_per_s(engine, lengths))
    return predict(engine, workload), simulate(engine, workload, requests=40_000, seed=1)


def test_a_fit_takes_the_wait_as_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without it the wait for others is taken for work on prompts."""
    true = waiting(20, GPU, policy="whole_prompt", batch_wait_ratio=0.9)
    told: dict[str, Any] = {"batch_wait_steps": 20, "batch_wait_ratio": 0.9}
    options = [
        Option(Lengths(isl, 200, 0.0, 0.5), users, 20 * users) for isl in (500, 3000) for users in (1, 4, 16, 64)
    ]
    points = [simulated_point(option, true, **told) for option in options]
    table = tmp_path / "points.csv"
    with table.open("w") as file:
        write_points(points, file)
    found = fit(read_points(table))
    assert (found.batching.batch_wait_steps, found.batching.batch_wait_ratio) == (20, 0.9)
    untold = [replace(point, batch_wait_steps=None, batch_wait_ratio=None) for point in points]
    worst, worst_untold = (max(abs(error.ttft_error) for error in one.errors) for one in (found, fit(untold)))
    assert worst < 0.12 < worst_untold
    assert fit(untold, **told).law == found.law
    of_no_policy = fit([replace(point, policy="", batching="") for point in points])
    assert of_no_policy.batching.policy in ("chunked", "whole_prompt")
    differ = [replace(points[0], batch_wait_steps=10), *points[1:]]
    assert fit(differ).batching.batch_wait_steps == 0
    with pytest.raises(ScenarioError, match="prefill_first"):
        fit([replace(point, policy="prefill_first", batching="") for point in points])
    asked = ["fit", "--points", str(table)]
    said = json.loads(command([*asked, "--json"], capsys)[1])
    assert (said["batch_wait_steps"], said["batch_wait_ratio"]) == (20, 0.9)
    assert "batch wait steps 20, batch wait ratio 0.9" in command(asked, capsys)[1]
    at_once = command([*asked, "--batch-wait-steps", "0", "--json"], capsys)[1]
    assert "batch_wait_steps" not in json.loads(at_once)


@pytest.mark.parametrize(
    ("asked", "refused"),
    [
        ({"batch_wait_steps": -1}, "batch_wait_steps must be from 0 to 10000"),
        ({"batch_wait_steps": 10_001}, "batch_wait_steps must be from 0 to 10000"),
        ({"batch_wait_ratio": 0.0}, "batch_wait_ratio must be a share"),
        ({"batch_wait_ratio": 1.01}, "batch_wait_ratio must be a share"),
        ({"batch_wait_steps": 1, "policy": "prefill_first"}, "not those of the policy prefill_first"),
        ({"batch_wait_steps": 1, "policy": "static"}, "not those of the policy static"),
        ({"batch_wait_steps": 1, "receive_interval_steps": 2}, "no engine has both"),
    ],
)
def test_impossible_waits_of_an_engine(asked: dict[str, Any], refused: str) -> None:
    with pytest.raises(ScenarioError, match=refused):
        Batching(**asked)


def test_commands_take_it(capsys: pytest.CaptureFixture[str]) -> None:
    law = "--weights 4.8ms --overhead 1ms --token 20us --sequence 10us --kv-token 49ns --isl 500 --osl 100 --rate 8"
    asked = ["simulate", *law.split(), "--requests", "2000", "--json", "--batch-wait-steps"]
    at_once, later, full = (
        json.loads(command([*asked, *more.split()], capsys)[1]) for more in ("0", "20", "20 --batch-wait-ratio 0.05")
    )
    p50_s = [found["predicted"]["ttft"]["p50_s"] for found in (at_once, full, later)]
    assert p50_s == sorted(p50_s) and p50_s[2] > 2 * p50_s[0] and p50_s[2] > p50_s[1]
    for wrong in ("-1", "many", "20 --batch-wait-ratio 0", "20 --policy prefill_first"):
        code, _, told = command([*asked, *wrong.split()], capsys)
        assert code == 2 and told.startswith("error: ") and told.count("\n") == 1


def test_a_plan_refuses_a_wait_that_no_engine_has(capsys: pytest.CaptureFixture[str]) -> None:
    asked = "plan --model Qwen/Qwen3-32B --gpu h100_sxm --tp 2 --precision bf16 --engine sglang --isl 2000 --osl 256"
    code, _, told = command([*asked.split(), *"--rate 4 --ttft p95:2s --batch-wait-steps 20".split()], capsys)
    assert code == 2 and "choose another engine or policy" in told
