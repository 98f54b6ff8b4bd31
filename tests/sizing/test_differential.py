"""The compiled scheduler against the naive one, feature by feature and all together, to 1e-6 s."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sizing.engine import KV_POLICIES, POLICIES, Batching, Policy, Replica, Roughness, Speculation, StepLaw
from sizing.simulator import simulate_trace
from sizing.simulator.fleet import run_stream
from sizing.simulator.sampling import prefixes_found
from sizing.simulator.state import HOLDERS, engine_of, idle_states, requests_of, work_space
from tests.sizing.reference_simulator import Slot, SlowReplica, serve

GPU = StepLaw(4.8e-3, 1e-3, 20e-6, 10e-6, 49e-9, attention_s=1.3e-9, prefill_s=0.5e-3)
DRAFT = StepLaw(0.3e-3, 0.1e-3, 1e-6, 2e-6, 5e-9)
REQUESTS = 60
PREFIX_TOKENS = 390
OUTCOMES = ("served", "rejected", "timed_out", "cancelled")
BASE = Batching(max_batch_size=12, token_budget=512, kv_tokens=3000)


@st.composite
def engines(draw: st.DrawFn) -> Replica:
    """Any engine: laws, policies, memory rules, queue limits, speculation, unread weights, padding, softer knees."""
    law = GPU.with_values(
        token_s=20e-6 * draw(st.floats(0.1, 2)),
        kv_token_s=draw(st.sampled_from([0.0, 49e-9, 2e-6])),
        prefill_s=5e-3 * draw(st.floats(0, 1)),
        request_s=20e-3 * draw(st.floats(0, 1)),
        unread=draw(st.sampled_from([0.0, 0.4, 0.9])),
        unread_decay=draw(st.sampled_from([0.0, 0.9])),
    )
    kv_policy = draw(st.sampled_from(KV_POLICIES))
    batching = Batching(
        policy=draw(st.sampled_from(POLICIES)),
        max_batch_size=draw(st.integers(1, 24)),
        token_budget=draw(st.sampled_from([16, 64, 100, 512, 4096])),
        kv_tokens=draw(st.sampled_from([1600, 3000, 10**6])),
        kv_policy=kv_policy,
        max_tokens=draw(st.sampled_from([0, 150, 400])),
        kv_block_tokens=draw(st.sampled_from([1, 16, 64])),
        max_waiting=draw(st.sampled_from([0, 0, 1, 5, 20])),
        padded=draw(st.booleans()),
        lookahead_steps=draw(st.sampled_from([0.0, 0.0, 0.3, 1.0, 1.0, 2.5])),
        receive_interval_steps=draw(st.sampled_from([1, 1, 2, 7])),
        budget_guessed=draw(st.booleans()),
    )
    if batching.policy in ("chunked", "whole_prompt") and batching.receive_interval_steps == 1:
        wait, ratio = draw(st.sampled_from([0, 0, 1, 5, 20])), draw(st.sampled_from([0.1, 0.5, 0.9, 1.0]))
        batching = replace(batching, batch_wait_steps=wait, batch_wait_ratio=ratio)
    speculation = Speculation(draw(st.integers(1, 4)), 0.7, draw(st.sampled_from([DRAFT, DRAFT.scaled(0.0)])))
    speculates = kv_policy == "guaranteed_no_evict" and draw(st.booleans())
    rough = Roughness(padding=draw(st.sampled_from([1, 8])), knee=draw(st.sampled_from([4.0, 2.5])))
    return Replica(law, batching, speculation if speculates else None, rough)


def traffic(replica: Replica, seed: int, *, deadlines: bool, prefixes: bool, classes: int) -> list[Slot]:
    """Requests with every trait that the engine honours."""
    rng = np.random.default_rng(seed)
    slots = []
    for place in range(REQUESTS):
        isl, osl = int(rng.integers(1, 801)), int(rng.integers(2, 301)) if rng.random() < 0.8 else 1
        cached = 0
        if prefixes and replica.batching.policy != "static":
            cached = int(rng.choice([0, min(PREFIX_TOKENS, isl - 1), isl if osl > 1 else 0]))
        steps = osl - 1
        if replica.speculation and osl > 1:
            steps = int(rng.integers(-(-(osl - 1) // (replica.speculation.draft_tokens + 1)), osl))
        timeout_s, cancel_s = (float(rng.choice([0.05, 0.4, 2, np.inf])) for _ in range(2))
        if not deadlines:
            timeout_s = cancel_s = np.inf
        slots.append(
            Slot(
                *(place, isl, osl),
                priority=int(rng.integers(0, classes)),
                cached=cached,
                steps=steps,
                queue_timeout_s=timeout_s,
                cancel_s=cancel_s,
            )
        )
    return slots


def compare(replica: Replica, arrival_s: Any, slots: list[Slot]) -> SlowReplica:
    """Run both, compare every request, return the naive replica."""
    run = requests_of(np.array([s.isl for s in slots]), np.array([s.osl for s in slots]), arrival_s)
    for name, values in {
        "priority": [s.priority for s in slots],
        "cached_tokens": [s.cached for s in slots],
        "steps": [s.steps for s in slots],
        "queue_timeout_s": [s.queue_timeout_s for s in slots],
        "cancel_s": [s.cancel_s for s in slots],
    }.items():
        run[name] = values
    shared = prefixes_found(run)
    work = work_space(replica, 1, prefixes=shared)
    run_stream(engine_of(replica, by_priority=bool(np.ptp(run["priority"]))), idle_states(1), work, run)
    assert not work.prefixes[:, :, HOLDERS].any()
    engine = serve(replica, arrival_s, slots, int(shared.max(initial=0)))
    assert [OUTCOMES[outcome] for outcome in run["outcome"]] == [s.outcome for s in slots]
    assert run["done_s"] == pytest.approx([s.done_s for s in slots], abs=1e-6)
    served = [place for place, s in enumerate(slots) if s.outcome == "served"]
    assert run["scheduled_s"][served] == pytest.approx([slots[place].scheduled_s for place in served], abs=1e-6)
    assert run["first_token_s"][served] == pytest.approx([slots[place].first_token_s for place in served], abs=1e-6)
    assert run["outside_s"][served] == pytest.approx(replica.law.request_s)
    return engine


def arrivals(rate_per_s: float, seed: int) -> Any:
    return np.cumsum(np.random.default_rng(seed + 1).exponential(1 / rate_per_s, REQUESTS))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    replica=engines(),
    rate=st.sampled_from([1.0, 8.0, 40.0, 400.0]),
    seed=st.integers(0, 10**6),
    deadlines=st.booleans(),
    prefixes=st.booleans(),
    classes=st.sampled_from([1, 3]),
)
def test_any_engine_under_any_traffic(
    replica: Replica, rate: float, seed: int, deadlines: bool, prefixes: bool, classes: int
) -> None:
    slots = traffic(replica, seed, deadlines=deadlines, prefixes=prefixes, classes=classes)
    engine = compare(replica, arrivals(rate, seed), slots)
    assert engine.most_slots <= replica.batching.max_batch_size
    if replica.batching.policy != "static" and replica.batching.kv_policy == "guaranteed_no_evict":
        alone = max(s.isl + s.osl + engine.prefix_tokens for s in slots)  # a prefix longer than its prompt
        assert engine.most_kv_tokens <= max(replica.batching.kv_tokens, alone if prefixes else 0)


class Blocks(SlowReplica):
    """Memory in whole blocks, as vLLM hands it out: every sequence has all those that its next token needs."""

    def _held(self, slots: Sequence[Slot]) -> float:
        block = self.batching.kv_block_tokens
        return sum(math.ceil((s.memory + 1) / block) * block - 1 for s in slots)


@pytest.mark.parametrize("block", [16, 64, 128])
def test_sequences_hold_whole_blocks_on_average(block: int) -> None:
    """Twenty to thirty sequences at once; counted in tokens alone, TTFT would be 5, 17 and 30 % short."""
    batching = Batching("chunked", 64, 512, 30 * 128, "max_utilization", kv_block_tokens=block)
    replica, rng = Replica(GPU, batching), np.random.default_rng(0)
    isl, osl = rng.integers(20, 180, 400), rng.integers(1, 100, 400)
    engine, slots = Blocks(replica), [Slot(place, *lengths) for place, lengths in enumerate(zip(isl, osl, strict=True))]
    for slot in slots:
        engine.arrive(slot, 0.0)
    while not engine.idle:
        engine.iterate()
    run = simulate_trace(replica, np.zeros(400), isl, osl)
    assert run.ttft_s.mean() == pytest.approx(np.mean([slot.first_token_s for slot in slots]), rel=0.02)
    assert run.e2e_s.mean() == pytest.approx(np.mean([slot.done_s for slot in slots]), rel=0.02)


def test_a_paused_request_that_gave_up_leaves_its_place_in_the_queue() -> None:
    """Iterations of 1 s. Two requests fill the cache, and at 6 s the second is paused, with five tokens. Its client
    cancels while the iteration from 7 to 8 s runs, in which a third arrives at a queue that has room for one."""
    batching = Batching(max_batch_size=5, kv_tokens=30, kv_policy="max_utilization", max_waiting=1)
    replica = Replica(StepLaw(weights_s=1.0, overhead_s=0, token_s=0, sequence_s=0, kv_token_s=0), batching)
    slots = [Slot(0, 10, 20), Slot(1, 10, 20, cancel_s=6.8), Slot(2, 5, 2)]
    assert compare(replica, [0.0, 0.5, 7.6], slots).pauses == 1
    assert [s.outcome for s in slots] == ["served", "cancelled", "served"]
    assert [s.done_s for s in slots] == pytest.approx([20, 7.3, 10])


def test_a_client_that_cancels_leaves_nothing_to_run_and_so_nothing_is_fixed() -> None:
    """Iterations of 1 s, each fixed when the one before starts. The only client cancels during the third; both
    requests that arrive in it start in the fourth, as they would have behind a last token."""
    batching = Batching(max_batch_size=5, kv_tokens=1000, lookahead_steps=1.0)
    replica = Replica(StepLaw(weights_s=1.0, overhead_s=0, token_s=0, sequence_s=0, kv_token_s=0), batching)
    slots = [Slot(0, 10, 20, cancel_s=2.2), Slot(1, 10, 2), Slot(2, 10, 2)]
    compare(replica, [0.0, 2.4, 2.6], slots)
    assert [s.outcome for s in slots] == ["cancelled", "served", "served"]
    assert [s.done_s for s in slots] == pytest.approx([2.2, 5, 5])


FEATURES: dict[str, tuple[Replica, dict[str, Any]]] = {
    "plain": (Replica(GPU, BASE), {}),
    "pausing": (Replica(GPU, replace(BASE, kv_policy="max_utilization", kv_tokens=1400)), {}),
    "max_tokens and blocks": (Replica(GPU, replace(BASE, max_tokens=400, kv_block_tokens=64)), {}),
    "queue limit": (Replica(GPU, replace(BASE, max_waiting=4)), {}),
    "deadlines": (Replica(GPU, BASE), {"deadlines": True}),
    "priorities": (Replica(GPU, BASE), {"classes": 3}),
    "priorities, pausing": (
        Replica(GPU, replace(BASE, kv_policy="max_utilization", kv_tokens=1400)),
        {"classes": 3},
    ),
    "prefixes": (Replica(GPU, BASE), {"prefixes": True}),
    "prefixes, pausing": (
        Replica(GPU, replace(BASE, kv_policy="max_utilization", kv_tokens=1800, kv_block_tokens=16)),
        {"prefixes": True},
    ),
    "speculation": (Replica(GPU, BASE, Speculation(3, 0.7, DRAFT)), {}),
    "packed prompts": (Replica(GPU, replace(BASE, padded=False)), {}),
    "unread weights": (Replica(GPU.with_values(unread=0.9, unread_decay=0.9), BASE), {}),
    "look-ahead": (Replica(GPU, replace(BASE, lookahead_steps=1.0)), {}),
    "look-ahead of a part": (Replica(GPU, replace(BASE, lookahead_steps=0.4)), {}),
    "look-ahead, priorities, deadlines": (
        Replica(GPU, replace(BASE, lookahead_steps=2.0)),
        {"classes": 3, "deadlines": True},
    ),
    "receive interval": (Replica(GPU, replace(BASE, receive_interval_steps=10)), {}),
    "receive interval, pausing": (
        Replica(GPU, replace(BASE, kv_policy="max_utilization", kv_tokens=1400, receive_interval_steps=10)),
        {"deadlines": True},
    ),
    "receive interval, look-ahead": (
        Replica(GPU, replace(BASE, receive_interval_steps=10, lookahead_steps=1.0)),
        {"classes": 3, "deadlines": True},
    ),
    "waits for others": (Replica(GPU, replace(BASE, batch_wait_steps=20, batch_wait_ratio=0.9)), {}),
    "waits for others, whole prompts": (
        Replica(GPU, replace(BASE, policy="whole_prompt", batch_wait_steps=7, batch_wait_ratio=0.5, max_batch_size=8)),
        {"classes": 3, "deadlines": True},
    ),
    "waits for others, pausing": (
        Replica(GPU, replace(BASE, kv_policy="max_utilization", kv_tokens=1400, batch_wait_steps=20)),
        {},
    ),
    "waits for others, prefixes": (Replica(GPU, replace(BASE, batch_wait_steps=20)), {"prefixes": True}),
    "waits for others, look-ahead, pausing": (
        Replica(
            GPU,
            replace(BASE, kv_policy="max_utilization", kv_tokens=1400, lookahead_steps=1.0, batch_wait_steps=10),
        ),
        {"deadlines": True},
    ),
    "padding and knee": (Replica(GPU, BASE, rough=Roughness(padding=8, knee=2.5)), {}),
}


def has_it(policy: Policy, feature: str) -> bool:
    """False where prompts wait for no others under this policy."""
    return not FEATURES[feature][0].batching.batch_wait_steps or policy in ("chunked", "whole_prompt")


@pytest.mark.parametrize(
    ("feature", "policy"), [(name, policy) for name in FEATURES for policy in POLICIES if has_it(policy, name)]
)
def test_each_feature_alone(feature: str, policy: Policy) -> None:
    replica, traits = FEATURES[feature]
    replica = replace(replica, batching=replace(replica.batching, policy=policy))
    for seed in range(4):
        slots = traffic(replica, seed, **{"deadlines": False, "prefixes": False, "classes": 1, **traits})
        engine = compare(replica, arrivals(20.0, seed), slots)
        if feature.endswith("pausing") and policy != "static":
            assert engine.pauses > 0
