"""The dynamic batcher against queueing theory, a naive second simulation, and the laws of any queue."""

from __future__ import annotations

from itertools import pairwise
from math import exp, factorial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triton_tools.batcher.config import DynamicBatching, ModelBatching, QueuePolicy
from triton_tools.batcher.dynamic import simulate
from triton_tools.batcher.requests import Request, Requests

SERVICE_S = 0.010
COUNT = 60_000


def mean_wait_s(most: int, rate_per_s: float) -> float:
    requests = Requests.poisson(rate_per_s, COUNT, np.random.default_rng(7))
    return float(simulate(ModelBatching(max_batch_size=most), lambda rows: SERVICE_S, requests).waiting_s.mean())


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_single_rows_are_the_m_d_1_queue(load: float) -> None:
    expected = load * SERVICE_S / (2 * (1 - load))  # Pollaczek and Khinchine, constant service
    assert mean_wait_s(1, load / SERVICE_S) == pytest.approx(expected, rel=0.06)


def bulk_queue_wait_s(most: int, rate_per_s: float, service_s: float) -> float:
    """Mean wait of M/D/1 with bulk service: whoever is there, up to `most`, is served together; an empty server waits
    for one. By the Markov chain of the number left behind at the ends of services, and Little's law.
    """
    states, mean = 400, rate_per_s * service_s
    poisson = np.array([exp(-mean) * mean**n / factorial(n) if n < 150 else 0.0 for n in range(states)])
    chain = np.zeros((states, states))
    for left in range(states):
        staying = max(left - most, 0)
        chain[left, staying:] = poisson[: states - staying]
        chain[left, -1] += 1 - chain[left].sum()
    stationary = np.linalg.matrix_power(chain, 2048)[0]
    staying = np.maximum(np.arange(states) - most, 0)
    queue_integral = stationary @ (staying * service_s + rate_per_s * service_s**2 / 2)
    cycle_s = service_s + stationary[0] / rate_per_s
    return float(queue_integral / cycle_s / rate_per_s)


@pytest.mark.parametrize(("most", "load"), [(2, 0.7), (8, 0.5), (8, 0.8), (16, 0.9)])
def test_default_batches_are_the_bulk_queue(most: int, load: float) -> None:
    rate = load * most / SERVICE_S
    assert mean_wait_s(most, rate) == pytest.approx(bulk_queue_wait_s(most, rate, SERVICE_S), rel=0.06)


def test_the_bulk_queue_of_single_rows_is_m_d_1() -> None:
    assert bulk_queue_wait_s(1, 60, SERVICE_S) == pytest.approx(0.6 * SERVICE_S / (2 * 0.4), rel=1e-6)


def test_with_enough_instances_nobody_waits_and_they_are_busy_for_the_offered_load() -> None:
    """With 40 instances of single rows nothing waits: M/G/∞."""
    requests = Requests.poisson(400, 20_000, np.random.default_rng(3))
    outcome = simulate(ModelBatching(max_batch_size=1, instances=40), lambda rows: SERVICE_S, requests)
    assert outcome.utilization == pytest.approx(400 * SERVICE_S / 40, rel=0.03)
    assert outcome.waiting_s.max() == 0
    assert set(outcome.batch_sizes) == {1}


def naive(arrivals: list[int], most: int, instances: int, service: int) -> list[int]:
    """Starts of a default batcher, from the rule alone: whenever an instance is free it takes all that wait, up to
    `most`, the oldest first.
    """
    free, starts, place = [0] * instances, [0] * len(arrivals), 0
    while place < len(arrivals):
        instance = free.index(min(free))
        now = max(free[instance], arrivals[place])
        batch = [n for n in range(place, min(place + most, len(arrivals))) if arrivals[n] <= now]
        for request in batch:
            starts[request] = now
        free[instance] = now + service
        place += len(batch)
    return starts


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=40),
    st.integers(1, 6),
    st.integers(1, 3),
    st.integers(1, 12),
)
def test_the_default_batcher_is_the_naive_one(gaps: list[int], most: int, instances: int, service_ms: int) -> None:
    arrivals = sorted(gap * 1_000_000 for gap in gaps)
    model = ModelBatching(max_batch_size=most, instances=instances)
    outcome = simulate(model, lambda rows: service_ms / 1000, Requests.at(arrivals))
    assert outcome.start_ns.tolist() == naive(arrivals, most, instances, service_ms * 1_000_000)


policies = st.builds(
    QueuePolicy,
    st.sampled_from(["REJECT", "DELAY"]),
    st.sampled_from([0, 5_000, 20_000]),
    st.booleans(),
    st.sampled_from([0, 1, 4]),
)
batchings = st.builds(
    DynamicBatching,
    preferred=st.sampled_from([(), (2,), (2, 4), (1, 3)]),
    delay_us=st.sampled_from([0, 3_000, 12_000]),
    priority_levels=st.just(2),
    default_priority=st.sampled_from([1, 2]),
    policy=policies,
) | st.builds(
    DynamicBatching,
    preferred=st.sampled_from([(), (2,), (2, 4), (1, 3)]),
    delay_us=st.sampled_from([0, 3_000, 12_000]),
    policy=policies | st.just(QueuePolicy()),
)
requests_ = st.lists(
    st.builds(
        Request,
        arrival_s=st.integers(0, 80).map(lambda ms: ms / 1000),
        rows=st.integers(1, 4),
        priority=st.integers(0, 3),
        timeout_us=st.sampled_from([0, 2_000, 30_000]),
        inputs=st.sampled_from(["x", "x", "x", "y"]),
    ),
    min_size=1,
    max_size=30,
)


@settings(max_examples=200, deadline=None)
@given(batchings, st.integers(1, 2), requests_, st.booleans())
def test_laws_of_any_batcher(
    batching: DynamicBatching, instances: int, asked: list[Request], late_wakeup: bool
) -> None:
    model = ModelBatching(max_batch_size=4, instances=instances, dynamic=batching)
    requests = Requests.of(asked)
    outcome = simulate(model, lambda rows: 0.004 + rows / 1000, requests, late_wakeup=late_wakeup)
    # every request is answered: in exactly one batch, or refused
    members = [member for batch in outcome.batches for member in batch.members]
    served = [number for number, status in enumerate(outcome.status) if status == "served"]
    assert sorted(members) == served
    assert (outcome.response_ns >= np.array(requests.arrival_ns)).all()
    # a batch fits, has equal inputs, and its rows are those of its members
    for batch in outcome.batches:
        assert batch.rows == sum(requests.rows[member] for member in batch.members) <= 4
        assert len({requests.inputs[member] for member in batch.members}) == 1
        assert all(batch.start_ns >= requests.arrival_ns[member] for member in batch.members)
    # an instance does one thing at a time
    for instance in range(instances):
        own = sorted((batch.start_ns, batch.end_ns) for batch in outcome.batches if batch.instance == instance)
        assert all(later[0] >= earlier[1] for earlier, later in pairwise(own))
    # Triton's counters add up
    counters = outcome.counters
    assert counters.request_success + counters.request_failure["REJECTED"] + counters.queue_full == len(asked)
    assert counters.count == sum(requests.rows[number] for number in served)
    if not batching.policy.timeout_us:
        assert counters.request_failure["REJECTED"] == 0
    if not batching.policy.max_size:
        assert counters.queue_full == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 80), min_size=1, max_size=30), st.sampled_from([2_000, 7_000]))
def test_on_an_idle_server_nobody_waits_longer_than_the_delay(arrivals_ms: list[int], delay_us: int) -> None:
    model = ModelBatching(max_batch_size=64, instances=64, dynamic=DynamicBatching(delay_us=delay_us))
    outcome = simulate(model, lambda rows: 0.005, Requests.of([Request(ms / 1000) for ms in arrivals_ms]))
    assert outcome.waiting_s.max() <= delay_us * 1e-6 + 1e-12


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 80), min_size=1, max_size=30), st.integers(2, 5))
def test_time_has_no_scale(arrivals_ms: list[int], factor: int) -> None:
    def starts(scale: int) -> list[int]:
        batching = DynamicBatching(preferred=(2, 4), delay_us=3000 * scale)
        requests = Requests.of([Request(ms * scale / 1000) for ms in arrivals_ms])
        outcome = simulate(ModelBatching(max_batch_size=4, dynamic=batching), lambda rows: 0.01 * scale, requests)
        return outcome.start_ns.tolist()

    assert starts(factor) == [start * factor for start in starts(1)]
