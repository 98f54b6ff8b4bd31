"""Disaggregated serving: one request by hand, the pools against theory and against each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sizing.engine import Batching, Replica, StepLaw
from sizing.errors import ScenarioError
from sizing.simulator import runs, simulate, simulate_disaggregated
from sizing.workload import ROUTINGS, Lengths, Routing, Workload

GPU = StepLaw(4.8e-3, 1e-3, 20e-6, 10e-6, 49e-9, attention_s=1.3e-9, prefill_s=0.5e-3, request_s=3e-3)
VARIED = Lengths(isl=600, osl=150, isl_cv=0.5, osl_cv=0.8)
REPLICA = Replica(GPU)
NOTHING = StepLaw(0.0, 0.0, 0.0, 0.0, 0.0)


def test_one_request_takes_what_the_laws_say() -> None:
    """Prefill, the journey of its KV cache, and three steps on an idle decode replica of another law."""
    slow = GPU.scaled(2.0)
    run = simulate_disaggregated(
        REPLICA,
        Replica(slow),
        Workload(Lengths(1000, 4), 1e-3),
        transfer_token_s=3e-5,
        requests=10,
        warmup=0.0,
    )
    ttft_s = GPU.prefill_alone_s(1000) + GPU.request_s
    steps_s = sum(slow.decode_s(1, 1000 + step) for step in range(3))
    assert run.ttft_s == pytest.approx(ttft_s)
    assert run.e2e_s == pytest.approx(ttft_s + 0.03 + steps_s)
    assert run.itl_s == pytest.approx((0.03 + steps_s) / 3)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_the_prefill_pool_does_not_know_of_the_other(routing: Routing) -> None:
    """TTFT is that of the prompts alone, whatever happens to the tokens after the first."""
    load = Workload(Lengths(600, 150, isl_cv=0.5), 40.0)
    slots = Replica(GPU, Batching(max_batch_size=4))
    calm, crowded = (
        simulate_disaggregated(
            REPLICA, decode, load, prefill_replicas=3, decode_replicas=5, routing=routing, requests=2000, warmup=0.0
        )
        for decode in (REPLICA, slots)
    )
    n = min(len(calm.ttft_s), len(crowded.ttft_s))
    assert np.array_equal(calm.ttft_s[:n], crowded.ttft_s[:n])
    assert crowded.e2e_s[:n].mean() > calm.e2e_s[:n].mean()


def test_prompts_alone_are_the_prefill_replica_alone() -> None:
    load = Workload(Lengths(600, 1, isl_cv=0.5), 20.0)
    both = simulate_disaggregated(REPLICA, REPLICA, load, requests=2000)
    alone = simulate(REPLICA, load, requests=2000)
    assert np.array_equal(both.ttft_s, alone.ttft_s)
    assert np.array_equal(both.e2e_s, alone.e2e_s)
    assert both.utilization == pytest.approx(alone.utilization, rel=0.02)


def test_a_longer_journey_only_shifts_the_end() -> None:
    load = Workload(Lengths(600, 150, osl_cv=0.8), 10.0)
    near, far = (
        simulate_disaggregated(REPLICA, REPLICA, load, transfer_token_s=transfer_s / 600, requests=3000, warmup=0.0)
        for transfer_s in (0.0, 0.5)
    )
    n = min(len(near.e2e_s), len(far.e2e_s))
    assert far.ttft_s[:n] == pytest.approx(near.ttft_s[:n])
    two_tokens = np.isfinite(near.itl_s[:n])
    assert far.e2e_s[:n][two_tokens] == pytest.approx(near.e2e_s[:n][two_tokens] + 0.5)


def test_the_decode_pool_shares_its_processor() -> None:
    """Prompts in no time, a step of d sequences takes d ms: M/G/1 processor sharing, mean E[S] / (1 - load)."""
    load, tokens, tick_s = 0.7, 300, 1e-3
    decode = Replica(NOTHING.with_values(token_s=tick_s), Batching(max_batch_size=2000))
    prefill = Replica(NOTHING.with_values(overhead_s=1e-7), Batching("whole_prompt", 2000))
    run = simulate_disaggregated(
        prefill, decode, Workload(Lengths(1, tokens + 1), load / (tokens * tick_s)), requests=150_000
    )
    assert run.e2e_s.mean() == pytest.approx(tokens * tick_s / (1 - load), rel=0.03)
    assert run.utilization == pytest.approx(load, rel=0.02)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_pools_carry_the_whole_rate(routing: Routing) -> None:
    """Little's law, and the rate in full, of pools so large that a part stands for them."""
    run = simulate_disaggregated(
        REPLICA,
        REPLICA,
        Workload(VARIED, 500.0),
        prefill_replicas=20,
        decode_replicas=80,
        transfer_token_s=3e-5,
        routing=routing,
        requests=20_000,
    )
    assert run.requests_per_s == pytest.approx(500, rel=0.05)
    assert run.mean_in_flight == pytest.approx(500 * run.e2e_s.mean(), rel=0.05)
    assert not run.saturated


def test_a_part_of_the_pools_stands_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def p95_s() -> Any:
        run = simulate_disaggregated(
            REPLICA,
            Replica(GPU, Batching(max_batch_size=32)),
            Workload(VARIED, 700.0),
            prefill_replicas=24,
            decode_replicas=72,
            routing="power_of_two",
            requests=100_000,
        )
        return np.array([np.percentile(run.ttft_s, 95), np.nanpercentile(run.itl_s, 95), np.percentile(run.e2e_s, 95)])

    part_s = p95_s()
    monkeypatch.setattr(runs, "MOST_REPLICAS", 72)
    assert part_s == pytest.approx(p95_s(), rel=0.05)


def test_decoding_apart_is_not_stalled_by_prompts() -> None:
    """Long prompts on two replicas that do both stall the tokens of others; on a pool each they do not."""
    load = Workload(Lengths(8000, 200, 0.3, 0.3), 3.0)
    rule = Batching("prefill_first")
    both = simulate(Replica(GPU, rule), load, replicas=2, requests=4000)
    apart = simulate_disaggregated(Replica(GPU, rule), Replica(GPU, rule), load, requests=4000)
    assert np.percentile(apart.itl_s, 95) < 0.6 * np.percentile(both.itl_s, 95)


def test_transferred_prompts_take_memory_in_the_decode_pool() -> None:
    """Sequences of 1000 + 100 tokens, room for two: a third waits as if only two slots were there."""
    load = Workload(Lengths(1000, 100), 1.2)
    memory, slots = (
        simulate_disaggregated(REPLICA, Replica(GPU.scaled(2.0), rule), load, requests=2000)
        for rule in (Batching(kv_tokens=2250), Batching(max_batch_size=2))
    )
    assert memory.e2e_s == pytest.approx(slots.e2e_s)


def test_a_client_who_gives_up_on_the_way_is_gone() -> None:
    """TTFT is about 0.03 s, the journey takes 1 s, and nobody waits longer than half a second."""
    load = Workload(Lengths(1000, 100), 2.0, cancel_s=0.5)
    run = simulate_disaggregated(REPLICA, REPLICA, load, transfer_token_s=1e-3, requests=100, warmup=0.0)
    assert run.cancelled == len(run.outcome)
    assert run.requests_per_s == 0


def test_what_overloads_either_pool_is_said() -> None:
    few_slots = Replica(GPU, Batching(max_batch_size=4))
    load = Workload(VARIED, 20.0)
    assert simulate_disaggregated(REPLICA, few_slots, load, requests=4000).saturated
    assert simulate_disaggregated(Replica(GPU.scaled(5.0)), REPLICA, load, requests=4000).saturated
    assert not simulate_disaggregated(REPLICA, REPLICA, load, requests=4000).saturated


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"prefill_replicas": 0}, "replicas must be 1 or more"),
        ({"decode_replicas": 0}, "replicas must be 1 or more"),
        ({"transfer_token_s": -1.0}, "transfer_token_s must be 0 or more and finite"),
        ({"transfer_token_s": float("nan")}, "transfer_token_s must be 0 or more and finite"),
        ({"transfer_token_s": float("inf")}, "transfer_token_s must be 0 or more and finite"),
    ],
)
def test_bad_questions_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ScenarioError, match=words):
        simulate_disaggregated(REPLICA, REPLICA, Workload(VARIED, 1.0), **change)


def test_herding_is_warned_of_in_pools_too() -> None:
    load = Workload(Lengths(600, 50), 2.0)
    pools = {"prefill_replicas": 1, "decode_replicas": 2, "requests": 100}
    herds = simulate_disaggregated(REPLICA, REPLICA, load, routing="least_outstanding", **pools)
    assert [each.kind for each in herds.warnings] == ["herding"]
    assert simulate_disaggregated(REPLICA, REPLICA, load, routing="round_robin", **pools).warnings == ()


def test_static_batching_cannot_decode_for_others() -> None:
    with pytest.raises(ScenarioError, match="static batching cannot take sequences"):
        simulate_disaggregated(REPLICA, Replica(GPU, Batching("static")), Workload(VARIED, 1.0))
