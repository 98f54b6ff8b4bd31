"""Laws that every run of the scheduler of one replica keeps, whatever is asked of it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sizing.engine import KV_POLICIES, POLICIES, Batching, Replica, Roughness, Speculation, StepLaw
from sizing.simulator.state import CANCELLED, REJECTED, SERVED, TIMED_OUT, Requests, requests_of
from tests.sizing.replica_runs import serve


@st.composite
def scenes(draw: st.DrawFn) -> tuple[Replica, Requests]:
    """A replica and 60 requests that use all rules at once."""
    kv_tokens = draw(st.sampled_from([700, 1500, 10**6]))
    speculation = draw(st.sampled_from([None, Speculation(3, 0.6, StepLaw(1e-3, 1e-4, 1e-6, 1e-6, 1e-9))]))
    rule = Batching(
        draw(st.sampled_from(POLICIES)),
        max_batch_size=draw(st.integers(1, 12)),
        token_budget=draw(st.sampled_from([16, 100, 2048])),
        kv_tokens=kv_tokens,
        kv_policy=draw(st.sampled_from(KV_POLICIES)),
        max_tokens=draw(st.sampled_from([0, 300])),
        kv_block_tokens=draw(st.sampled_from([1, 32])),
        max_waiting=draw(st.sampled_from([0, 5])),
    )
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    n = 60
    run = requests_of(rng.integers(1, 400, n), rng.integers(1, 300, n), np.cumsum(rng.exponential(0.2, n)))
    run["priority"] = rng.integers(0, draw(st.integers(1, 3)), n)
    run["cached_tokens"] = np.where(rng.random(n) < 0.3, rng.integers(0, run["isl"] + 1), 0)
    if speculation is not None:
        run["steps"] = np.ceil(run["steps"] / rng.uniform(1, 4, n))
    if draw(st.booleans()):
        run["queue_timeout_s"], run["cancel_s"] = rng.exponential(3, n), rng.exponential(6, n)
    law = StepLaw(4.8e-3, 5e-3, 200e-6, 10e-6, 1e-6 * draw(st.floats(0, 5)), 1.3e-9, 0.5e-3)
    return Replica(law, rule, speculation, Roughness(padding=draw(st.sampled_from([1, 4])))), run


@settings(max_examples=100, deadline=None)
@given(scene=scenes())
def test_nobody_is_lost_and_nothing_is_overbooked(scene: tuple[Replica, Requests]) -> None:
    replica, run = scene
    ran = serve(replica, run, every_s=1e-6, samples=200_000)  # a row for every iteration
    served = run["outcome"] == SERVED
    early = np.minimum(run["queue_timeout_s"], run["cancel_s"])
    assert np.all(run["done_s"][served] >= run["first_token_s"][served])
    assert np.all(run["done_s"][served] <= (run["arrival_s"] + run["cancel_s"])[served])
    for outcome, patience in ((TIMED_OUT, early), (CANCELLED, run["cancel_s"]), (REJECTED, np.zeros(60))):
        left = run["outcome"] == outcome
        assert run["done_s"][left] == pytest.approx((run["arrival_s"] + patience)[left])
    assert ran.state["running"] == ran.state["waiting"] == ran.state["admitted"] == ran.state["lanes"] == 0
    assert ran.state["reserved_tokens"] == ran.state["used_tokens"] == ran.state["context_tokens"] == 0
    assert len(ran.rows) < 200_000
    counted = np.full(len(ran.rows), replica.batching.policy != "static")
    if replica.batching.kv_policy == "max_utilization":  # a last lane is not paused for a prompt in chunks
        counted &= ran.rows[:, 3] + np.roll(ran.rows[:, 3], 1) == 0
    if run["cached_tokens"].any():  # one longer than its prompt keeps nobody out of an empty cache
        counted &= ran.rows[:, 1] + ran.rows[:, 3] > 1
    most_tokens = replica.batching.kv_tokens + 1e-6
    if replica.batching.kv_policy == "max_utilization":  # those admitted together do not count each other's next step
        step_tokens = 1 + (replica.speculation.draft_tokens if replica.speculation else 0)
        most_tokens += step_tokens * (replica.batching.max_batch_size - 1)
    assert np.all(ran.rows[counted, 4] <= most_tokens)
    assert np.all(ran.rows[:, 1] + ran.rows[:, 3] <= replica.batching.max_batch_size)
    if not ran.state["paused"] and replica.speculation is None and np.all(served):
        assert ran.gaps.sum() == np.sum(run["osl"] - 1)


@settings(max_examples=100, deadline=None)
@given(scene=scenes())
def test_steps_taken_at_once_equal_steps_taken_one_by_one(scene: tuple[Replica, Requests]) -> None:
    replica, run = scene
    other = run.copy()
    skipped, stepwise = serve(replica, run), serve(replica, other, every_s=1e-6, samples=200_000)
    assert list(skipped.run["outcome"]) == list(stepwise.run["outcome"])
    for field in ("scheduled_s", "first_token_s", "done_s"):
        assert skipped.run[field] == pytest.approx(stepwise.run[field], abs=1e-6, nan_ok=True)
    assert skipped.state["paused"] == stepwise.state["paused"]
    assert skipped.gaps.sum() == stepwise.gaps.sum()


@pytest.mark.parametrize(
    ("isl", "osl", "steps"),
    [((16, 5, 15), (42, 31, 25), (18, 9, 16)), ((19, 20, 17), (10, 39, 51), (3, 17, 34))],
)
def test_a_cache_that_is_exactly_full_pauses_nobody(
    isl: tuple[int, ...], osl: tuple[int, ...], steps: tuple[int, ...]
) -> None:
    """Speculation: fractions of a token a step, which fill 100 tokens to a rounding error, however they are added."""
    rule = Batching("prefill_first", max_batch_size=3, token_budget=2048, kv_tokens=100, kv_policy="max_utilization")
    draft = Speculation(3, 0.6, StepLaw(1e-3, 1e-4, 1e-6, 1e-6, 1e-9))
    replica, run = (
        Replica(StepLaw(4.8e-3, 5e-3, 200e-6, 10e-6, 0.0), rule, draft),
        requests_of(np.array(isl), np.array(osl), np.zeros(3)),
    )
    run["steps"] = steps
    skipped, stepwise = serve(replica, run.copy()), serve(replica, run.copy(), every_s=1e-6, samples=5000)
    assert skipped.run["done_s"] == pytest.approx(stepwise.run["done_s"])
    assert skipped.state["paused"] == stepwise.state["paused"] == 0


@pytest.mark.parametrize("cancel_s", [math.inf, 4.0])
def test_littles_law_of_the_series(cancel_s: float) -> None:
    """Time average of the requests seen in the replica = rate x mean time in it, within 3 %."""
    rng, n = np.random.default_rng(4), 20_000
    replica = Replica(StepLaw(4.8e-3, 1e-3, 20e-6, 10e-6, 49e-9), Batching("chunked", max_batch_size=32))
    run = requests_of(rng.integers(1, 1000, n), rng.geometric(1 / 300, n), np.cumsum(rng.exponential(1 / 12, n)))
    run["cancel_s"] = cancel_s
    rows = serve(replica, run, every_s=0.1, samples=100_000).rows
    inside = rows[:, 1:4].sum(axis=1).mean()
    lasted_s = np.minimum(run["done_s"], run["arrival_s"] + cancel_s) - run["arrival_s"]
    assert inside == pytest.approx(lasted_s.sum() / rows[-1, 0], rel=0.03)
