"""The simulator against a naive one, against laws that any queue obeys, and against bad input."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sizing import compiled, engine
from sizing.engine import POLICIES, Batching, Policy, Replica, StepLaw
from sizing.errors import ScenarioError
from sizing.simulator import closed_loop, simulate, simulate_closed, simulate_trace, simulated_stable_rate_per_s, state
from sizing.simulator.sampling import drawn_lengths
from sizing.workload import Arrivals, Lengths, Limit, Routing, Sla, Workload
from tests.sizing.reference_simulator import serve_users_slowly

GPU = StepLaw(4.8e-3, 1e-3, 20e-6, 10e-6, 49e-9, attention_s=1.3e-9, prefill_s=0.5e-3, request_s=3e-3)
VARIED = Lengths(isl=600, osl=150, isl_cv=0.5, osl_cv=0.8)
IN_FLIGHT: tuple[Policy, ...] = ("chunked", "whole_prompt", "prefill_first")


@st.composite
def replicas(draw: st.DrawFn) -> Replica:
    coefficient = st.floats(0.0, 1.0)
    law = GPU.with_values(
        token_s=20e-6 * (0.1 + draw(coefficient)),
        kv_token_s=2e-6 * draw(coefficient),
        prefill_s=5e-3 * draw(coefficient),
        request_s=20e-3 * draw(coefficient),
    )
    return Replica(
        law,
        Batching(
            policy=draw(st.sampled_from(POLICIES)),
            max_batch_size=draw(st.integers(1, 24)),
            token_budget=draw(st.sampled_from([16, 100, 512, 4096])),
            kv_tokens=draw(st.sampled_from([1200, 3000, 10**6])),
        ),
    )


def draw_lengths(n: int, rng: np.random.Generator) -> tuple[Any, Any]:
    """Prompts to 800 tokens, outputs to 300, one in five outputs a single token."""
    osl = np.where(rng.random(n) < 0.2, 1, rng.integers(1, 301, n))
    return rng.integers(1, 801, n), osl


@settings(max_examples=40, deadline=None)
@given(replica=replicas(), users=st.integers(1, 20), ramp_s=st.sampled_from([0, 0.3, 20]), seed=st.integers(0, 10**6))
def test_closed_loop_equals_the_naive_simulator(replica: Replica, users: int, ramp_s: float, seed: int) -> None:
    isl, osl = draw_lengths(3 * users + 10, np.random.default_rng(seed))
    run = closed_loop(replica, users, isl, osl, ramp_s)
    sent_s, slow = serve_users_slowly(replica, ramp_s * np.arange(users) / users, isl, osl)
    assert run["arrival_s"] - replica.law.request_s == pytest.approx(sent_s, abs=1e-6)
    assert run["first_token_s"] == pytest.approx([s.first_token_s for s in slow], abs=1e-6)
    assert run["done_s"] == pytest.approx([s.done_s for s in slow], abs=1e-6)


@pytest.mark.parametrize("policy", IN_FLIGHT)
def test_slots_and_kv_cache_are_never_overbooked(policy: Policy) -> None:
    isl, osl = VARIED.sample(3000, np.random.default_rng(3))
    replica = Replica(GPU, Batching(policy, max_batch_size=20, kv_tokens=9000))
    run = closed_loop(replica, 40, isl, osl)
    order = np.argsort(np.concatenate([run["done_s"], run["scheduled_s"]]), kind="stable")  # out before in
    tokens = np.cumsum(np.concatenate([-(isl + osl), isl + osl])[order])
    slots = np.cumsum(np.concatenate([-np.ones(3000), np.ones(3000)])[order])
    assert 0.9 * 9000 < tokens.max() <= 9000
    assert slots.max() <= 20


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("share", [0.3, 0.8])
def test_littles_law(policy: Policy, share: float) -> None:
    replica = Replica(GPU, Batching(policy, max_batch_size=64))
    rate = share * simulated_stable_rate_per_s(replica, VARIED)
    run = simulate(replica, Workload(VARIED, rate), requests=30_000)
    assert run.mean_in_flight == pytest.approx(run.requests_per_s * run.e2e_s.mean(), rel=0.03)
    assert run.requests_per_s == pytest.approx(rate, rel=0.03)
    assert not run.saturated


def test_littles_law_holds_exactly_for_users() -> None:
    isl, osl = VARIED.sample(64 * 40, np.random.default_rng(0))
    run = simulate_closed(Replica(GPU), 64, isl, osl, ramp_s=2.0)
    assert run.mean_in_flight == pytest.approx(64)
    assert run.requests_per_s * run.e2e_s.mean() == pytest.approx(64, rel=0.02)


@pytest.mark.parametrize("policy", POLICIES)
def test_an_engine_twice_as_slow_at_half_the_rate_takes_twice_the_time(policy: Policy) -> None:
    rule = Batching(policy, max_batch_size=32, kv_tokens=40_000)
    fast = simulate(Replica(GPU, rule), Workload(VARIED, 6.0), requests=4000)
    slow = simulate(Replica(GPU.scaled(2), rule), Workload(VARIED, 3.0), requests=4000)
    assert slow.e2e_s == pytest.approx(2 * fast.e2e_s)
    assert slow.ttft_s == pytest.approx(2 * fast.ttft_s)


@pytest.mark.parametrize("policy", IN_FLIGHT)
def test_more_load_never_helps(policy: Policy) -> None:
    replica = Replica(GPU, Batching(policy, max_batch_size=64))
    stable = simulated_stable_rate_per_s(replica, VARIED)
    p95_s = [
        np.percentile(simulate(replica, Workload(VARIED, share * stable), requests=20_000).e2e_s, 95)
        for share in (0.1, 0.3, 0.5, 0.7, 0.8, 0.9)
    ]
    assert all(later > 0.995 * earlier for earlier, later in pairwise(p95_s))


def test_static_batching_waits_for_the_longest() -> None:
    in_flight, static = (
        simulated_stable_rate_per_s(Replica(GPU, Batching(rule)), VARIED) for rule in ("chunked", "static")
    )
    assert static < in_flight / 2


def test_static_batching_loses_little_with_equal_outputs() -> None:
    same = Lengths(isl=100, osl=200)
    in_flight, static = (
        simulated_stable_rate_per_s(Replica(GPU, Batching(rule)), same) for rule in ("chunked", "static")
    )
    assert 0.75 * in_flight < static < 1.05 * in_flight


@pytest.mark.parametrize(("share", "saturated"), [(0.6, False), (0.9, False), (1.05, True), (2.0, True)])
def test_saturation_is_said(share: float, saturated: bool) -> None:
    replica = Replica(GPU, Batching(max_batch_size=64))
    load = Workload(VARIED, share * simulated_stable_rate_per_s(replica, VARIED))
    run = simulate(replica, load, requests=30_000)
    assert run.saturated is saturated
    assert run.prediction().saturated is saturated
    assert run.utilization == pytest.approx(share)


def test_a_trace_that_outruns_the_engine_is_saturated_and_a_calm_one_is_not() -> None:
    rng = np.random.default_rng(1)
    isl, osl = VARIED.sample(6000, rng)
    replica = Replica(GPU, Batching(max_batch_size=16))
    stable = simulated_stable_rate_per_s(replica, VARIED)
    gaps_s = rng.exponential(1, 6000)
    assert simulate_trace(replica, np.cumsum(gaps_s / (1.3 * stable)), isl, osl).saturated
    assert not simulate_trace(replica, np.cumsum(gaps_s / (0.7 * stable)), isl, osl).saturated


@pytest.mark.parametrize("routing", ["random", "round_robin", "least_outstanding"])
@pytest.mark.parametrize("arrivals", ["poisson", "constant", "gamma:cv=2"])
def test_a_fleet_carries_the_whole_rate(routing: Routing, arrivals: str) -> None:
    load = Workload(VARIED, 200.0, Arrivals.parse(arrivals))
    run = simulate(Replica(GPU), load, replicas=40, routing=routing, requests=30_000)
    assert run.requests_per_s == pytest.approx(200, rel=0.05)
    assert run.mean_in_flight == pytest.approx(200 * run.e2e_s.mean(), rel=0.05)
    assert not run.saturated


def pooled(replica: Replica, arrival_s: Any, isl: Any, osl: Any, where: Any, fleet: int) -> Any:
    """TTFT of every request of a fleet that is simulated replica by replica."""
    parts = [simulate_trace(replica, arrival_s[where == r], isl[where == r], osl[where == r]) for r in range(fleet)]
    return np.concatenate([part.ttft_s[len(part.ttft_s) // 10 :] for part in parts])


@pytest.mark.parametrize("routing", ["random", "round_robin"])
@pytest.mark.parametrize("arrivals", ["poisson", "gamma:cv=2"])
def test_one_replica_stands_for_the_fleet(routing: Routing, arrivals: str) -> None:
    """Against four replicas simulated one by one on the stream split by hand: p95 of 100,000 requests within 5 %."""
    replica, law, n = Replica(GPU, Batching(max_batch_size=64)), Arrivals.parse(arrivals), 100_000
    rate = 4 * 0.7 * simulated_stable_rate_per_s(replica, VARIED)
    rng = np.random.default_rng(8)
    isl, osl = VARIED.sample(n, rng)
    arrival_s = np.cumsum(law.gaps(n, rate, rng))
    where = rng.integers(0, 4, n) if routing == "random" else np.arange(n) % 4
    one = simulate(replica, Workload(VARIED, rate, law), replicas=4, routing=routing, requests=n)
    fleet_ttft_s = pooled(replica, arrival_s, isl, osl, where, 4)
    assert np.percentile(one.ttft_s, 95) == pytest.approx(np.percentile(fleet_ttft_s, 95), rel=0.05)


def test_counting_agrees_with_sorting() -> None:
    run = simulate(Replica(GPU), Workload(VARIED, 10.0), requests=5000)
    for metric in ("ttft", "itl", "e2e"):
        for percentile in (50, 90, 95, 99):
            limit_s = np.percentile(run.of(metric)[np.isfinite(run.of(metric))], percentile)
            for factor in (0.9, 1.1):
                sla = Sla(Limit(metric, percentile, factor * limit_s))
                assert run.meets(sla) is (factor > 1)
                assert run.prediction().meets(sla) is (factor > 1)


def test_a_saturated_run_meets_nothing() -> None:
    run = simulate(Replica(GPU, Batching(max_batch_size=4)), Workload(VARIED, 1000.0), requests=2000)
    assert not run.meets(Sla(Limit("itl", 50, 1e6)))


def test_seeds_make_runs_repeatable() -> None:
    load = Workload(VARIED, 5.0)
    first, again, other = (simulate(Replica(GPU), load, requests=500, seed=seed).e2e_s for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_one_request_on_an_idle_engine_takes_what_the_law_says() -> None:
    run = simulate_trace(Replica(GPU), np.zeros(1), np.array([1000]), np.array([3]))
    steps_s = GPU.decode_s(1, 1000) + GPU.decode_s(1, 1001)
    assert run.ttft_s == pytest.approx([GPU.prefill_alone_s(1000) + GPU.request_s])
    assert run.itl_s == pytest.approx([steps_s / 2])
    assert run.e2e_s == pytest.approx([GPU.prefill_alone_s(1000) + GPU.request_s + steps_s])


def test_equal_lengths_behind_least_outstanding_carry_a_warning() -> None:
    load = Workload(Lengths(100, 10), 10.0)
    assert simulate(Replica(GPU), load, replicas=4, routing="least_outstanding", requests=100).warnings
    assert not simulate(Replica(GPU), load, replicas=4, routing="round_robin", requests=100).warnings


def test_a_request_longer_than_the_cache_is_refused() -> None:
    with pytest.raises(ScenarioError, match=r"1500 tokens .* never fits in a KV cache of 1000"):
        simulate(Replica(GPU, Batching(kv_tokens=1000)), Workload(Lengths(1000, 500), 1.0))


def test_a_request_longer_than_a_record_can_hold_is_refused() -> None:
    roomy = Replica(GPU, Batching(kv_tokens=10**10))
    with pytest.raises(ScenarioError, match=r"2,147,483,648 tokens is longer than can be simulated"):
        simulate_trace(roomy, np.zeros(1), np.array([2**31 - 2]), np.array([2]))


@pytest.mark.parametrize("lengths", [VARIED, Lengths(600, 150)])
def test_lengths_kept_are_the_lengths_drawn(lengths: Lengths) -> None:
    """The second time, with another generator of the same seed, they are kept; the generators go on alike."""
    drawn, first, second = (np.random.default_rng(4) for _ in range(3))
    expected, after = lengths.sample(50, drawn), drawn.random()
    for rng in (first, second):
        assert np.array_equal(drawn_lengths(lengths, 50, rng), expected)
        assert rng.random() == after


def test_more_slots_than_can_be_simulated_are_named() -> None:
    with pytest.raises(ScenarioError, match="10,000,000 slots are more than can be simulated"):
        simulate(Replica(GPU, Batching(max_batch_size=10**7)), Workload(VARIED, 1.0), requests=10)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"replicas": 0}, "replicas"),
        ({"routing": "best"}, "routing"),
        ({"requests": 3}, "requests"),
        ({"warmup": 1.0}, "warmup"),
    ],
)
def test_bad_questions_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ScenarioError, match=words):
        simulate(Replica(GPU), Workload(VARIED, 1.0), **change)


ONES = np.ones(5, np.int64)


@pytest.mark.parametrize(
    ("arrival_s", "isl", "osl"),
    [
        ([0, 2, 1, 3, 4], ONES, ONES),
        ([0, 1], ONES, ONES),
        ([0, 1, 2, 3, np.nan], ONES, ONES),
        ([0, 1, 2, 3, 4], ONES, ONES[:3]),
        ([0, 1, 2, 3, 4], 0 * ONES, ONES),
        ([], ONES[:0], ONES[:0]),
    ],
)
def test_bad_traces_are_refused(arrival_s: list[float], isl: Any, osl: Any) -> None:
    with pytest.raises(ScenarioError):
        simulate_trace(Replica(GPU), np.array(arrival_s, float), isl, osl)


@pytest.mark.parametrize(("users", "ramp_s"), [(0, 0.0), (2, -1.0), (2, 0.0)])
def test_bad_closed_loops_are_refused(users: int, ramp_s: float) -> None:
    with pytest.raises(ScenarioError):
        simulate_closed(Replica(GPU), users, ONES, ONES, ramp_s)


def test_kept_machine_code_is_stamped_with_all_that_it_is_made_of() -> None:
    """Else an edit of the scheduler, or of a constant, would leave the old one frozen in the loops that use it."""
    stamped = {path.resolve() for path in compiled.STAMPED}
    kernels = [path for path in Path(state.__file__).parent.glob("*.py") if "@compiled" in path.read_text()]
    frozen = set(kernels)
    for kernel in kernels:
        module = importlib.import_module(f"sizing.simulator.{kernel.stem}")
        for name in re.findall(r"\b[A-Z][A-Z_]+\b", kernel.read_text()):
            if isinstance(getattr(module, name, None), int | float):
                frozen |= sources_of(name, module)
    assert Path(engine.__file__) in sources_of("KNEE", importlib.import_module("sizing.engine"))
    assert frozen <= stamped


@cache
def statements(module: ModuleType) -> list[ast.stmt]:
    return ast.parse(inspect.getsource(module)).body


def sources_of(name: str, module: ModuleType) -> set[Path]:
    """The files that the value of a constant comes from: where it is imported from, and what is read to assign it."""
    for statement in statements(module):
        if isinstance(statement, ast.ImportFrom) and name in [alias.name for alias in statement.names]:
            return sources_of(name, importlib.import_module(statement.module or ""))
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            held = ast.walk(statement)
            names = {node.id: isinstance(node.ctx, ast.Store) for node in held if isinstance(node, ast.Name)}
            if names.get(name):
                read = [other for other, stored in names.items() if not stored and other.isupper()]
                return {Path(inspect.getfile(module))}.union(*(sources_of(other, module) for other in read))
    return set()


@pytest.mark.parametrize("requests", [1 << 24, 10**30])
def test_more_requests_than_a_run_holds_are_refused_before_they_are_drawn(requests: int) -> None:
    with pytest.raises(ScenarioError, match="more than one run can hold"):
        simulate(Replica(GPU), Workload(Lengths(10, 10), 1.0), requests=requests)
