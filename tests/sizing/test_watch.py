"""Token gaps, pauses and time series of a run, against hand counts and Little's law."""

from __future__ import annotations

import numpy as np
import pytest

from sizing.engine import Batching, Replica, StepLaw
from sizing.errors import ScenarioError
from sizing.simulator import Watch, simulate, simulate_fleet, simulate_trace
from sizing.workload import Lengths, Workload

GPU = StepLaw(4.8e-3, 1e-3, 20e-6, 10e-6, 49e-9, attention_s=1.3e-9, prefill_s=0.5e-3, request_s=3e-3)
VARIED = Lengths(isl=600, osl=150, isl_cv=0.5, osl_cv=0.8)


def test_gaps_of_one_request_are_its_steps() -> None:
    run = simulate_trace(Replica(GPU), np.zeros(1), np.array([1000]), np.array([401]), watch=Watch(token_gaps=True))
    steps_s = [GPU.decode_s(1, 1000 + step) for step in range(400)]
    gaps_s = (run.watched.gap_p50_s, run.watched.gap_p95_s, run.watched.gap_p99_s)
    assert gaps_s == pytest.approx(np.percentile(steps_s, (50, 95, 99)), rel=0.02)


def test_a_stall_is_in_the_gaps_not_in_the_mean() -> None:
    """Prompts alone stall every running sequence: the 99th gap holds a prefill, the ITL of no request does."""
    load = Workload(Lengths(4000, 200, 0.2, 0.2), 1.5)
    run = simulate(Replica(GPU, Batching("prefill_first")), load, requests=3000, watch=Watch(token_gaps=True))
    assert run.watched.gap_p99_s > GPU.prefill_alone_s(3000)
    assert np.percentile(run.itl_s, 99) < GPU.prefill_alone_s(3000)
    assert run.watched.gap_p50_s == pytest.approx(np.median(run.itl_s), rel=0.5)


def test_samples_average_to_what_is_in_flight() -> None:
    run = simulate(Replica(GPU), Workload(VARIED, 15.0), requests=20_000, watch=Watch(sample_every_s=0.5))
    (series,) = run.watched.series
    part = (series.time_s > run.arrival_s[0]) & (series.time_s < run.arrival_s[-1])
    inside = (series.running + series.waiting + series.prefilling)[part].mean()
    in_engine_s = float((run.e2e_s - GPU.request_s).mean())
    assert inside == pytest.approx(15.0 * in_engine_s, rel=0.1)
    assert np.all(np.diff(series.time_s) > 0)


def test_a_full_cache_pauses_and_a_reserved_one_does_not() -> None:
    load = Workload(VARIED, 4.0)
    pausing, reserving = (
        simulate(Replica(GPU, Batching(kv_tokens=6000, kv_policy=policy)), load, requests=2000).watched.pauses
        for policy in ("max_utilization", "guaranteed_no_evict")
    )
    assert pausing > 0
    assert reserving == 0


def test_every_replica_of_a_fleet_has_its_series() -> None:
    fleet = [Replica(GPU), Replica(GPU.scaled(2.0))]
    run = simulate_fleet(fleet, Workload(VARIED, 10.0), requests=4000, watch=Watch(True, 1.0))
    busy = [series.running.mean() for series in run.watched.series]
    assert len(busy) == 2
    assert busy[1] > 1.5 * busy[0]


def test_what_was_not_asked_for_is_not_there() -> None:
    run = simulate(Replica(GPU), Workload(VARIED, 5.0), requests=100)
    assert np.isnan(run.watched.gap_p50_s)
    assert run.watched.series == ()


def test_samples_need_an_interval() -> None:
    with pytest.raises(ScenarioError, match="sample_every_s must be above 0 s"):
        Watch(sample_every_s=0.0)
