"""Requests as they are drawn for a simulation: splits of a stream, shared random numbers, prefixes, speculation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sizing.engine import Batching, Replica, Speculation, StepLaw
from sizing.errors import ScenarioError
from sizing.simulator import simulate
from sizing.simulator.sampling import sample_requests, speculative_steps, thinned_gaps
from sizing.workload import Arrivals, Lengths, Prefix, Routing, Workload

GPU = StepLaw(4.8e-3, 1e-3, 20e-6, 10e-6, 49e-9, attention_s=1.3e-9, prefill_s=0.5e-3, request_s=3e-3)
VARIED = Lengths(isl=600, osl=150, isl_cv=0.5, osl_cv=0.8)


ARRIVALS = ("poisson", "constant", "gamma:cv=2", "batch:size=6")


@pytest.mark.parametrize("replicas", [3, 10])
def test_a_batch_splits_into_binomial_batches(replicas: int) -> None:
    """Of a batch of 6 each member comes here with chance p: of those who come, all but the first of a batch follow at
    once, 1 - (1 - (1 - p)^6) / (6 p) of them; the gap between batches that have somebody here is exponential."""
    n, size, p, rate = 200_000, 6, 1 / replicas, 30.0
    gaps_s = thinned_gaps(Arrivals("batch", size=size), n, rate, replicas, np.random.default_rng(2))
    anybody = 1 - (1 - p) ** size
    at_once = 1 - anybody / (size * p)
    assert np.mean(gaps_s == 0) == pytest.approx(at_once, abs=4 * np.sqrt(at_once * (1 - at_once) / n))
    between_s = gaps_s[gaps_s > 0]
    assert between_s.mean() == pytest.approx(size / rate / anybody, rel=4 / np.sqrt(len(between_s)))
    assert between_s.std() == pytest.approx(between_s.mean(), rel=0.02)


@pytest.mark.parametrize("arrivals", ARRIVALS)
@pytest.mark.parametrize("routing", ["random", "round_robin"])
def test_the_part_of_a_stream_is_that_of_the_stream_split_by_hand(arrivals: str, routing: Routing) -> None:
    """Mean and scatter of the arrivals counted in windows of 3 s, against a fourth of a whole stream."""
    law, n, rate, fleet = Arrivals.parse(arrivals), 200_000, 40.0, 4
    part = sample_requests(
        Replica(GPU), Workload(Lengths(1, 1), rate, law), n, np.random.default_rng(1), replicas=fleet, routing=routing
    )
    rng = np.random.default_rng(2)
    whole_s = np.cumsum(law.gaps(fleet * n, rate, rng))
    by_hand_s = whole_s[rng.integers(0, fleet, fleet * n) == 0] if routing == "random" else whole_s[::fleet]
    counts = [np.diff(np.searchsorted(times, np.arange(3.0, 19_000, 3.0))) for times in (part["arrival_s"], by_hand_s)]
    assert counts[0].mean() == pytest.approx(counts[1].mean(), rel=0.02)
    assert counts[0].var() == pytest.approx(counts[1].var(), rel=0.1, abs=0.3)


@pytest.mark.parametrize("arrivals", ARRIVALS)
@pytest.mark.parametrize("routing", ["random", "round_robin"])
def test_two_rates_share_their_random_numbers(arrivals: str, routing: Routing) -> None:
    replica = Replica(GPU, speculation=Speculation(3, 0.7))
    slow, fast = (
        sample_requests(
            replica,
            Workload(VARIED, rate, Arrivals.parse(arrivals), Prefix(200, 0.5)),
            500,
            np.random.default_rng(9),
            replicas=5,
            routing=routing,
        )
        for rate in (1.0, 4.0)
    )
    assert slow["arrival_s"] == pytest.approx(4 * fast["arrival_s"])
    for field in ("isl", "osl", "cached_tokens", "steps"):
        assert np.array_equal(slow[field], fast[field])


def test_prefix_hits_leave_a_token_to_compute() -> None:
    load = Workload(VARIED, 1.0, prefix=Prefix(500, 0.3))
    run = sample_requests(Replica(GPU), load, 20_000, np.random.default_rng(3))
    hit = run["cached_tokens"] > 0
    assert np.array_equal(run["cached_tokens"][hit], np.minimum(500, run["isl"][hit] - 1))
    assert hit.mean() == pytest.approx(0.3, abs=4 * np.sqrt(0.21 / 20_000))


def test_outputs_end_at_max_tokens() -> None:
    run = sample_requests(Replica(GPU, Batching(max_tokens=100)), Workload(VARIED, 1.0), 2000, np.random.default_rng(3))
    whole = sample_requests(Replica(GPU), Workload(VARIED, 1.0), 2000, np.random.default_rng(3))
    assert np.array_equal(run["osl"], np.minimum(whole["osl"], 100))
    assert np.array_equal(run["steps"], run["osl"] - 1)


def test_reservations_beyond_the_cache_are_refused() -> None:
    rule = Batching(kv_tokens=1000, max_tokens=500, kv_block_tokens=64)
    with pytest.raises(ScenarioError, match=r"1024 tokens .* never fits in a KV cache of 1000"):
        simulate(Replica(GPU, rule), Workload(Lengths(500, 10), 1.0), requests=10)


def mean_steps(tokens: int, draft_tokens: int, acceptance: float) -> np.ndarray[Any, Any]:
    """Mean steps to make 0, 1, ..., `tokens` tokens, by conditioning on the first step."""
    yields = [acceptance**j * (1 - acceptance) for j in range(draft_tokens)] + [acceptance**draft_tokens]
    means = np.zeros(tokens + 1)
    for missing in range(1, tokens + 1):
        means[missing] = 1 + sum(chance * means[max(missing - j - 1, 0)] for j, chance in enumerate(yields))
    return means


@pytest.mark.parametrize(("draft_tokens", "acceptance"), [(1, 0.5), (3, 0.7), (5, 0.9)])
def test_speculative_steps_have_the_exact_mean(draft_tokens: int, acceptance: float) -> None:
    speculation = Speculation(draft_tokens, acceptance)
    exact = mean_steps(64, draft_tokens, acceptance)
    for osl in (2, 5, 65):
        steps = speculative_steps(speculation, np.full(20_000, osl), np.random.default_rng(osl))
        assert steps.mean() == pytest.approx(exact[osl - 1], abs=4 * steps.std() / np.sqrt(20_000) + 1e-12)


def test_speculation_at_its_ends() -> None:
    osl, rng = np.arange(1, 50), np.random.default_rng(0)
    assert np.array_equal(speculative_steps(Speculation(4, 0.0), osl, rng), osl - 1)
    assert np.array_equal(speculative_steps(Speculation(4, 1.0), osl, rng), -(-(osl - 1) // 5))
