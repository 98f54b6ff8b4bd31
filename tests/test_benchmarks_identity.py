"""A burst under static and in-flight batching: what any law must give, and closed forms where every step lasts as long.

The counts of steps are found here by walking through batches and slots, without the simulator.
"""

from __future__ import annotations

import heapq
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sizing.engine import Batching, StepLaw
from validation.speed.identity_burst import Burst, drawn, engines, simulated
from validation.speed.identity_llama import LENGTHS, LONGEST, on_pcie

STEP_S = 0.01
SAME_STEPS = StepLaw(0.0, STEP_S, 0.0, 0.0, 0.0)
SLOTS = Batching(max_batch_size=8, token_budget=10**6)


def burst_of(isl: list[int], osl: list[int]) -> Burst:
    return Burst(np.zeros(len(isl)), np.array(isl), np.array(osl))


bursts = st.lists(st.tuples(st.integers(1, 800), st.integers(1, 150)), min_size=12, max_size=60).map(
    lambda pairs: burst_of([isl for isl, _ in pairs], [osl for _, osl in pairs])
)
laws = st.builds(
    StepLaw,
    weights_s=st.floats(0, 10e-3),
    overhead_s=st.floats(1e-4, 2e-3),
    token_s=st.floats(0, 60e-6),
    sequence_s=st.floats(0, 1e-3),
    kv_token_s=st.floats(0, 1e-6),
    attention_s=st.floats(0, 1e-8),
    request_s=st.floats(0, 5e-3),
)


@settings(max_examples=150, deadline=None)
@given(burst=bursts, law=laws, slots=st.integers(1, 16))
def test_in_flight_is_never_slower(burst: Burst, law: StepLaw, slots: int) -> None:
    """Whatever the law, as long as a pass costs nothing for holding a prompt: what fills empty lanes saves passes."""
    static, in_flight = engines(law, replace(SLOTS, max_batch_size=slots))
    assert simulated(in_flight, burst).total_s <= simulated(static, burst).total_s * (1 + 1e-9)


@settings(max_examples=50, deadline=None)
@given(law=laws, prefill_s=st.floats(0, 1e-3), isl=st.integers(1, 800), osl=st.integers(1, 100))
def test_equal_requests_gain_nothing(law: StepLaw, prefill_s: float, isl: int, osl: int) -> None:
    """A whole batch ends at once, so that the next is admitted whole: the two are one scheduler."""
    static, in_flight = engines(law.with_values(prefill_s=prefill_s), SLOTS)
    burst = burst_of([isl] * 40, [osl] * 40)
    assert simulated(in_flight, burst).total_s == pytest.approx(simulated(static, burst).total_s, rel=1e-9)


@settings(max_examples=50, deadline=None)
@given(burst=bursts)
def test_with_room_for_all_and_equal_steps_the_longest_decides_both(burst: Burst) -> None:
    for engine in engines(SAME_STEPS, replace(SLOTS, max_batch_size=64)):
        assert simulated(engine, burst).total_s == pytest.approx(STEP_S * burst.osl.max())


@settings(max_examples=80, deadline=None)
@given(burst=bursts, slots=st.integers(1, 16))
def test_equal_steps_are_counted(burst: Burst, slots: int) -> None:
    """Static: the longest output of each batch. In-flight: the next request goes to the slot that is free first."""
    static, in_flight = engines(SAME_STEPS, replace(SLOTS, max_batch_size=slots))
    steps = burst.osl.tolist()
    longest = [max(steps[first : first + slots]) for first in range(0, len(steps), slots)]
    assert simulated(static, burst).total_s == pytest.approx(STEP_S * sum(longest))
    free = [0] * slots
    for count in steps:
        heapq.heapreplace(free, free[0] + count)
    assert simulated(in_flight, burst).total_s == pytest.approx(STEP_S * max(free))


def test_a_static_batch_answers_at_its_end() -> None:
    """98 requests in batches of 8 are answered at 13 moments, eight at each and two at the last; in-flight at many."""
    burst = drawn(LENGTHS, 0, LONGEST)
    static, in_flight = (simulated(engine, burst) for engine in engines(SAME_STEPS, SLOTS))
    _, together = np.unique(np.round(static.end_s, 6), return_counts=True)
    assert together.tolist() == [8] * 12 + [2]
    assert len(np.unique(np.round(in_flight.end_s, 6))) > 50
    assert in_flight.mean_s < static.mean_s


@settings(max_examples=60, deadline=None)
@given(burst=bursts, law=laws)
def test_packed_prompts_cost_no_more_than_padded(burst: Burst, law: StepLaw) -> None:
    packed, _ = engines(law, SLOTS)
    padded = replace(packed, batching=replace(packed.batching, padded=True))
    assert simulated(packed, burst).total_s <= simulated(padded, burst).total_s * (1 + 1e-9)
    even = Burst(burst.sent_s, np.full(len(burst.isl), 100), burst.osl)
    assert simulated(packed, even).total_s == pytest.approx(simulated(padded, even).total_s, rel=1e-9)


@given(law=laws, batch=st.integers(1, 64))
def test_a_card_that_reads_and_counts_slower_steps_slower_within_its_ratios(law: StepLaw, batch: int) -> None:
    """Nothing else than bandwidth and arithmetic differs: a step lasts 1 to 1.675 times as long."""
    sxm_s, pcie_s = (one.decode_s(batch, 800 * batch) for one in (law, on_pcie(law)))
    assert sxm_s <= pcie_s <= 3.35 / 2.0 * sxm_s * (1 + 1e-12)
