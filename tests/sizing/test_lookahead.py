"""Engines that fix iterations before they start: arrivals at a busy engine wait for those fixed already."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import kolmogorov

from sizing.analyses.next_level import Option
from sizing.engine import MOST_LOOKAHEAD, Batching, Policy, Replica, StepLaw
from sizing.engine_defaults import engine_defaults
from sizing.errors import ScenarioError
from sizing.fitting import fit
from sizing.points import write_points
from sizing.queueing import predict, stable_rate_per_s
from sizing.simulator import simulate, simulate_closed, simulate_trace
from sizing.workload import Lengths, Workload
from tests.sizing.simulated_levels import LAW as GPU
from tests.sizing.simulated_levels import simulated_point
from tests.sizing.test_cli import run as command

TICK_S = 10e-3
TICKING = StepLaw(0.0, TICK_S, 0.0, 0.0, 0.0)
"""Every iteration lasts one tick, whatever it holds."""


def looking(steps: float, law: StepLaw = TICKING, **settings: Any) -> Replica:
    return Replica(law, Batching(lookahead_steps=steps, **settings))


@pytest.mark.parametrize("steps", [0.0, 0.3, 1.0, 2.6])
def test_a_busy_engine_answers_after_a_uniform_time(steps: float) -> None:
    """Iterations of one tick T: the end of the one in progress is uniform on [0, T] away, the contents of the next L
    are fixed, a part f of one being as likely as f, and the own one follows: TTFT is uniform on [1 + L, 2 + L] T.

    20 requests/s of 200 tokens keep 40 sequences running: the engine is idle with probability e^-40.
    """
    run = simulate(looking(steps), Workload(Lengths(100, 200), rate_per_s=20), requests=20_000)
    ticks = run.ttft_s / TICK_S
    few = np.sort(ticks[::10]) - (1 + steps)
    apart = max(np.max(np.arange(1, len(few) + 1) / len(few) - few), np.max(few - np.arange(len(few)) / len(few)))
    assert kolmogorov(np.sqrt(len(few)) * apart) > 0.001  # Kolmogorov and Smirnov's test of a uniform law
    assert ticks.min() >= 1 + steps - 1e-6
    assert ticks.max() <= 2 + steps + 1e-6
    assert run.itl_s == pytest.approx(TICK_S)


def test_an_idle_engine_starts_at_once() -> None:
    arrival_s = 10.0 * np.arange(50)
    run = simulate_trace(looking(2.0), arrival_s, np.full(50, 100), np.full(50, 20))
    assert run.ttft_s == pytest.approx(TICK_S)


def test_requests_that_wake_an_engine_together_start_together() -> None:
    arrival_s = np.array([0.0, 0.0, 0.0, 10.0, 10.0])
    run = simulate_trace(looking(1.0), arrival_s, np.full(5, 100), np.full(5, 20))
    assert run.ttft_s == pytest.approx(TICK_S)


@pytest.mark.parametrize(("steps", "first_token"), [(0.0, 3), (0.4, 3), (0.6, 4), (1.0, 4), (1.4, 4), (1.6, 5), (3, 6)])
def test_by_hand(steps: float, first_token: int) -> None:
    """One sequence runs from 0 on; another request comes in the middle of iteration 2, half of which is left.

    Iteration 3 is open to it unless contents are fixed half an iteration ahead or more.
    """
    run = simulate_trace(looking(steps), np.array([0.0, 1.5 * TICK_S]), np.array([10, 10]), np.array([50, 5]))
    assert run.arrival_s[1] + run.ttft_s[1] == pytest.approx(first_token * TICK_S)


def test_an_engine_that_runs_dry_has_fixed_nothing() -> None:
    """The sequence that was running ends with iteration 3: no fourth is fixed, so the request starts in it."""
    run = simulate_trace(looking(4.0), np.array([0.0, 1.5 * TICK_S]), np.array([10, 10]), np.array([3, 5]))
    assert run.arrival_s[1] + run.ttft_s[1] == pytest.approx(4 * TICK_S)


@pytest.mark.parametrize("memory", [False, True])
def test_slots_and_memory_are_free_when_the_next_iteration_is_fixed(memory: bool) -> None:
    """Two slots, or room for two, and answers of 5 and 9 tokens. The third request starts in iteration 7: the 6th was
    fixed when the 5th began, whose end frees the slot. The fourth starts in the 11th, which the end of the 9th comes
    before. With nothing fixed they start in iterations 6 and 10."""
    limits: dict[str, Any] = {"kv_tokens": 38} if memory else {"max_batch_size": 2}
    arrival_s, isl, osl = np.zeros(4), np.full(4, 10), np.array([5, 9, 20, 3])
    if memory:
        isl = 19 - osl
        isl[2], osl[2] = 1, 18
    for steps, third, fourth in ((0.0, 6, 10), (1.0, 7, 11)):
        run = simulate_trace(looking(steps, **limits), arrival_s, isl, osl)
        assert run.ttft_s / TICK_S == pytest.approx([1, 1, third, fourth])


def test_a_slot_is_free_at_once_if_nothing_else_runs() -> None:
    run = simulate_trace(looking(1.0, max_batch_size=1), np.zeros(3), np.full(3, 10), np.full(3, 4))
    assert run.ttft_s / TICK_S == pytest.approx([1, 5, 9])


def test_two_slots_that_are_free_together_are_taken_together() -> None:
    """Nothing could be fixed for iteration 6, as the 5th ends both answers: it also holds what came during the 5th."""
    run = simulate_trace(
        looking(1.0, max_batch_size=2), TICK_S * np.array([0, 0, 1.5, 4.5]), np.full(4, 10), np.full(4, 5)
    )
    assert (run.arrival_s + run.ttft_s) / TICK_S == pytest.approx([1, 1, 6, 6])


def test_two_users_wait_for_the_iterations_fixed() -> None:
    """Each answer ends with an iteration, and the other user's sequence runs on: 1 iteration fixed, the own prompt's,
    then 99 tokens."""
    run = simulate_closed(looking(1.0), 2, np.full(40, 10), np.full(40, 100), ramp_s=0.5)
    assert run.ttft_s == pytest.approx(2 * TICK_S)
    assert run.requests_per_s == pytest.approx(2 / (101 * TICK_S), rel=1e-3)


def test_static_batches_look_nowhere() -> None:
    workload = Workload(Lengths(100, 50, 0.5, 0.5), rate_per_s=4)
    now, ahead = (simulate(looking(steps, GPU, policy="static"), workload, requests=2000) for steps in (0.0, 3.0))
    assert np.array_equal(now.ttft_s, ahead.ttft_s)


@settings(max_examples=20, deadline=None)
@given(
    steps=st.floats(0, 3),
    more=st.floats(0.1, 1),
    load=st.floats(0.1, 0.85),
    policy=st.sampled_from(["chunked", "prefill_first", "whole_prompt"]),
)
def test_looking_further_ahead_is_never_faster(steps: float, more: float, load: float, policy: Any) -> None:
    lengths = Lengths(1000, 200, 0.4, 0.4)
    near, far = (looking(ahead, GPU, policy=policy) for ahead in (steps, steps + more))
    workload = Workload(lengths, load * stable_rate_per_s(near, lengths))
    before, after = (predict(engine, workload) for engine in (near, far))
    for percentile in (50, 90, 95, 99):
        assert after.ttft.at(percentile) >= before.ttft.at(percentile) * (1 - 1e-9)
    slow, slower = (simulate(engine, workload, requests=3000).ttft_s.mean() for engine in (near, far))
    assert slower > slow * 0.98


@pytest.mark.parametrize("policy", ["chunked", "prefill_first"])
@pytest.mark.parametrize("load", [0.3, 0.7])
@pytest.mark.parametrize("steps", [1.0, 2.0])
def test_formula_and_simulation_agree(policy: Any, load: float, steps: float) -> None:
    lengths = Lengths(1000, 300, 0.5, 0.5)
    engine = looking(steps, GPU, policy=policy)
    workload = Workload(lengths, load * stable_rate_per_s(engine, lengths))
    told, run = predict(engine, workload), simulate(engine, workload, requests=40_000, seed=1)
    assert told.ttft.mean_s == pytest.approx(run.ttft_s.mean(), rel=0.03)
    assert told.ttft.p50_s == pytest.approx(np.median(run.ttft_s), rel=0.03)
    assert told.ttft.p95_s == pytest.approx(np.percentile(run.ttft_s, 95), rel=0.06)
    assert told.e2e.p95_s == pytest.approx(np.percentile(run.e2e_s, 95), rel=0.04)


def test_without_running_sequences_the_formula_adds_nothing() -> None:
    """One output token: whatever waits at the end of an iteration starts in the next."""
    workload = Workload(Lengths(500, 1), rate_per_s=30)
    assert predict(looking(1.0, GPU), workload).ttft == predict(looking(0.0, GPU), workload).ttft
    run, ahead = (simulate(looking(steps, GPU), workload, requests=4000) for steps in (0.0, 1.0))
    assert np.array_equal(run.ttft_s, ahead.ttft_s)


@pytest.mark.parametrize(
    ("engine", "version", "steps"),
    [
        ("vllm", "0.14.0", 1),
        ("vLLM", "v0.32.0+cpu", 1),
        ("vllm", "0.13.9", 0),
        ("vllm", "", 0),
        ("tensorrt_llm", "1.0.0", 1),
        ("trtllm", "0.17", 0),
        ("sglang", "0.5", 1),
        ("sglang", "0.3.6", 0),
        ("reference-torch", "triton 2.51.0 / torch 2.13.0", 0),
        ("", "", 0),
    ],
)
def test_what_is_known_of_engines(engine: str, version: str, steps: float) -> None:
    assert engine_defaults(engine, version).lookahead_steps == steps


@pytest.mark.parametrize(
    ("memory_bytes", "budgets"),
    [
        (16e9, (2048,)),
        (24e9, (4096,)),
        (48e9, (4096,)),
        (85e9, (8192,)),
        (150e9, (8192,)),
        (190e9, (16_384,)),
        (0, (8192, 4096)),
    ],
)
def test_sglangs_chunks_grow_with_the_memory(memory_bytes: float, budgets: tuple[int, ...]) -> None:
    """As SGLang's own table has it: T4; A10 and 4090; A100 of 40 GB and L40; H100; H200; B200; unknown: a large GPU's,
    or a small one's."""
    assert engine_defaults("sglang", memory_bytes=memory_bytes).token_budgets == budgets


@pytest.mark.parametrize(
    ("engine", "gpu", "memory_bytes", "slots", "budgets"),
    [
        ("vllm", "h100_sxm", 80e9, 1024, (8192,)),
        ("vllm", "a100_sxm", 80e9, 256, (2048,)),
        ("vllm", "A100-PCIE-40GB", 40e9, 256, (2048,)),
        ("vllm", "l40s", 48e9, 256, (2048,)),
        ("vllm", "cpu", 0, 128, (2048,)),
        ("vllm", "b200_sxm", 192e9, 1024, (8192,)),
        ("vllm", "", 0, 256, (8192, 2048)),
        ("sglang", "a100_sxm", 80e9, 2048, (8192,)),
        ("trtllm", "a100_sxm", 80e9, 2048, (8192,)),
        ("mine", "h100_sxm", 80e9, 256, (8192,)),
    ],
)
def test_batches_by_default(engine: str, gpu: str, memory_bytes: float, slots: int, budgets: tuple[int, ...]) -> None:
    """vLLM's `EngineArgs` count an A100 among the small GPUs whatever its memory, and have a CPU apart."""
    found = engine_defaults(engine, gpu=gpu, memory_bytes=memory_bytes)
    assert (found.max_batch_size, found.token_budgets) == (slots, budgets)


def test_vllm_has_larger_blocks_on_a_cpu() -> None:
    """`platforms/cpu.py` of vLLM 0.32: 128 tokens, unless told otherwise."""
    assert engine_defaults("vllm", "0.32.0", "cpu").kv_block_tokens == 128
    assert engine_defaults("vllm", "0.32.0", "h100_sxm").kv_block_tokens == 16


def test_vllm_has_wider_batches_on_gpus_of_160_gib_since_0_28() -> None:
    """`get_batch_defaults` of vLLM 0.28 has a third tier, of 16,384 tokens, which 0.27 has not."""
    for version, memory_bytes, budget in (("0.27.1", 192e9, 8192), ("0.28.0", 192e9, 16_384), ("0.32.0", 141e9, 8192)):
        assert engine_defaults("vllm", version, "b200_sxm", memory_bytes).token_budgets == (budget,)


@pytest.mark.parametrize(("kv_tokens", "at_once"), [(319, 1), (320, 2)])
def test_tensorrt_llm_reserves_answers_in_blocks_of_32_tokens(kv_tokens: int, at_once: int) -> None:
    """`KvCacheConfig.tokens_per_block`: 150 tokens of prompt and answer are five blocks, 160 tokens."""
    engine = looking(0.0, kv_tokens=kv_tokens, kv_block_tokens=engine_defaults("trtllm").kv_block_tokens)
    run = simulate_trace(engine, np.zeros(2), np.full(2, 100), np.full(2, 50))
    assert np.count_nonzero(run.ttft_s < 2 * TICK_S) == at_once


@pytest.mark.parametrize("steps", [-0.1, MOST_LOOKAHEAD + 0.1, float("nan")])
def test_impossible_numbers_of_steps(steps: float) -> None:
    with pytest.raises(ScenarioError, match="lookahead_steps must be from 0 to 4"):
        Batching(lookahead_steps=steps)


def test_a_fit_takes_what_is_known_of_the_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known = {"engine": "vllm", "engine_version": "0.15.1"}
    options = [Option(Lengths(1000, 100), users, 10 * users) for users in (1, 4, 16, 64)]
    points = [simulated_point(option, looking(1.0, GPU), **known) for option in options]
    assert fit(points).batching.lookahead_steps == 1
    assert fit(points, lookahead_steps=0.0).batching.lookahead_steps == 0
    table = tmp_path / "points.csv"
    with table.open("w") as file:
        write_points(points, file)
    asked = ["fit", "--points", str(table)]
    assert json.loads(command([*asked, "--json"], capsys)[1])["lookahead_steps"] == 1
    assert "lookahead_steps" not in json.loads(command([*asked, "--lookahead-steps", "0", "--json"], capsys)[1])
    assert "lookahead steps 1" in command(asked, capsys)[1]


@pytest.mark.parametrize("policy", ["chunked", "prefill_first", "whole_prompt"])
def test_a_fit_takes_what_a_server_told_of_its_scheduler(policy: Policy) -> None:
    """Whatever the engine does by its defaults and whatever explains the points better, unless they disagree."""
    engine = {"engine": "vllm", "engine_version": "0.15.1", "batching": "in_flight"}
    told = engine | {"policy": policy, "token_budget": 300, "lookahead_steps": 0.0}
    options = [Option(Lengths(1000, 100), users, 10 * users) for users in (1, 4, 16, 64)]
    first, *rest = (simulated_point(option, looking(1.0, GPU), **told) for option in options)
    found = fit([first, *rest])
    assert (found.batching.policy, found.batching.token_budget, found.batching.lookahead_steps) == (policy, 300, 0)
    assert "fitted_lookahead" not in [each.kind for each in found.warnings]
    assert fit([first, *rest], token_budget=400, lookahead_steps=1.0).batching.token_budget == 400
    assert fit([first, *rest], token_budget=400, lookahead_steps=1.0).batching.lookahead_steps == 1
    unlike = fit([replace(first, token_budget=500, lookahead_steps=None, policy="static"), *rest]).batching
    assert unlike.token_budget not in (300, 500) and unlike.lookahead_steps == 1 and unlike.policy == "chunked"
    nothing = [replace(point, policy="", token_budget=0, lookahead_steps=None) for point in (first, *rest)]
    assert fit(nothing).batching == unlike


@pytest.mark.parametrize(
    ("engine", "told"),
    [
        (looking(0.0, GPU), {"lookahead_steps": 1.0}),
        (Replica(GPU, Batching("chunked", token_budget=256)), {"token_budget": 8192}),
    ],
)
def test_what_a_server_told_holds_where_the_points_say_otherwise(engine: Replica, told: dict[str, Any]) -> None:
    known = {"engine": "vllm", "engine_version": "0.32.0", "batching": "in_flight"}
    options = [Option(Lengths(1000, 100, 0.3, 0.5), users, 20 * users) for users in (1, 2, 4, 16, 64)]
    points = [simulated_point(option, engine, 1, **known) for option in options]
    found, held = fit(points), fit([replace(point, **told) for point in points])
    ((name, value),) = told.items()
    assert getattr(held.batching, name) == value != getattr(found.batching, name)
    assert "fitted_lookahead" not in [each.kind for each in held.warnings] or name != "lookahead_steps"


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("steps", [0.0, 1.0])
def test_a_fit_finds_out_that_look_ahead_is_off(steps: float, seed: int) -> None:
    """As vLLM's is for some features and where people turn it off: the points tell, beside their noise."""
    known = {"engine": "vllm", "engine_version": "0.32.0"}
    options = [Option(Lengths(1000, 100, 0.3, 0.5), users, 20 * users) for users in (1, 2, 4, 16, 64)]
    points = [simulated_point(option, looking(steps, GPU), seed, **known) for option in options]
    found = fit(points)
    assert found.batching.lookahead_steps == steps
    assert ("fitted_lookahead" in [each.kind for each in found.warnings]) == (steps == 0)
    told = fit(points, lookahead_steps=steps)
    assert "fitted_lookahead" not in [each.kind for each in told.warnings]


def test_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    asked = "simulate --overhead 10ms --isl 100 --osl 200 --rate 20 --requests 2000 --json --lookahead-steps".split()
    ttft_s = [json.loads(command([*asked, steps], capsys)[1])["predicted"]["ttft"]["p50_s"] for steps in ("0", "1")]
    assert ttft_s[1] - ttft_s[0] == pytest.approx(TICK_S, rel=0.05)
    code, _, error = command([*asked, "5"], capsys)
    assert code == 2
    assert "0<=x<=4" in error
