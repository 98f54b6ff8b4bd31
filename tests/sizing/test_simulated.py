"""What a run returns: losses, goodput, steady state, confidence intervals; several streams on one fleet."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sizing.engine import Batching, Replica, StepLaw
from sizing.errors import ScenarioError
from sizing.prediction import Caution
from sizing.simulator import Simulated, Stream, simulate, simulate_streams, simulate_trace, simulated_stable_rate_per_s
from sizing.simulator.result import open_loop, queue_grows
from sizing.simulator.state import CANCELLED, REJECTED, SERVED, TIMED_OUT, requests_of
from sizing.stats import quantile_interval, share_error
from sizing.workload import Lengths, Limit, Sla, Workload

GPU = StepLaw(4.8e-3, 1e-3, 20e-6, 10e-6, 49e-9, attention_s=1.3e-9, prefill_s=0.5e-3, request_s=3e-3)
VARIED = Lengths(isl=600, osl=150, isl_cv=0.5, osl_cv=0.8)
REPLICA = Replica(GPU, Batching(max_batch_size=32))
SLA = Sla(Limit("ttft", 95, 0.9), Limit("itl", 95, 0.05), Limit("e2e", 99, 5.0))


def finished(n: int = 100, rejected: int = 0, timed_out: int = 0, cancelled: int = 0) -> Any:
    """A run without a simulator: one request a second, first token after 0.5 s, 11 tokens, 0.1 s between them."""
    run = requests_of(np.full(n, 50), np.full(n, 11), np.arange(n, dtype=float))
    run["scheduled_s"], run["first_token_s"] = run["arrival_s"] + 0.2, run["arrival_s"] + 0.5
    run["done_s"] = run["arrival_s"] + 1.5
    outcomes = [REJECTED] * rejected + [TIMED_OUT] * timed_out + [CANCELLED] * cancelled
    run["outcome"][10 : 10 + len(outcomes)] = outcomes
    run["done_s"][run["outcome"] == REJECTED] = run["arrival_s"][run["outcome"] == REJECTED]
    return run


def result_of(run: Any, utilization: float = 0.5) -> Simulated:
    return open_loop(run, utilization, drain=False)


def test_the_lost_are_counted_and_have_no_latency() -> None:
    result = result_of(finished(rejected=3, timed_out=2, cancelled=1))
    assert (result.rejected, result.timed_out, result.cancelled, result.lost) == (3, 2, 1, 6)
    for seconds in (result.queue_s, result.ttft_s, result.itl_s, result.e2e_s):
        assert np.array_equal(np.isnan(seconds), result.outcome != SERVED)
    assert np.nanmean(result.ttft_s) == pytest.approx(0.5)
    assert np.nanmean(result.itl_s) == pytest.approx(0.1)
    assert result.prediction().warnings == (Caution("lost_requests", {"share": 0.06}),)
    assert not result_of(finished()).prediction().warnings


@pytest.mark.parametrize("metric", ["ttft", "itl", "e2e"])
def test_the_lost_exceed_every_limit(metric: Any) -> None:
    """Six lost of a hundred, the others far below the limit: p90 holds, p95 does not."""
    result = result_of(finished(rejected=3, timed_out=2, cancelled=1))
    assert result.exceeding_share(Limit(metric, 95, 100.0)) == pytest.approx(0.06)
    assert result.meets(Sla(Limit(metric, 90, 100.0)))
    assert not result.meets(Sla(Limit(metric, 95, 100.0)))
    assert result_of(finished()).meets(Sla(Limit(metric, 99, 100.0)))


@pytest.mark.parametrize("percentile", [50, 90, 95, 99])
def test_exactly_the_share_allowed_is_allowed(percentile: int) -> None:
    """1 - 90 / 100 is less than 0.1 in binary."""
    sla = Sla(Limit("ttft", percentile, 100.0))
    allowed = 100 - percentile
    assert result_of(finished(rejected=allowed)).meets(sla)
    assert not result_of(finished(rejected=allowed + 1)).meets(sla)


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_goodput_counts_request_by_request(data: st.DataObject) -> None:
    n = 60
    times = st.lists(st.floats(0.01, 2.0), min_size=n, max_size=n)
    run = finished(n, rejected=data.draw(st.integers(0, 9)))
    run["osl"] = data.draw(st.lists(st.integers(1, 3), min_size=n, max_size=n))
    run["first_token_s"] = run["arrival_s"] + data.draw(times)
    run["done_s"] = run["first_token_s"] + np.array(data.draw(times)) * (run["osl"] > 1)
    good = 0
    for request in run:
        ttft_s = request["first_token_s"] - request["arrival_s"]
        e2e_s = request["done_s"] - request["arrival_s"]
        late = request["osl"] > 1 and (request["done_s"] - request["first_token_s"]) / (request["osl"] - 1) > 0.05
        good += bool(request["outcome"] == SERVED and ttft_s <= 0.9 and e2e_s <= 5.0 and not late)
    result = result_of(run)
    assert result.goodput(SLA) == pytest.approx(good / n)
    assert result.goodput(SLA) <= 1 - max(result.exceeding_share(limit) for limit in (SLA.ttft, SLA.e2e) if limit)


def test_an_overload_that_turns_nobody_away_is_not_steady() -> None:
    assert result_of(finished(), utilization=1.1).saturated
    assert not result_of(finished(rejected=20), utilization=1.1).saturated
    assert result_of(finished()).saturated is False


def test_a_growing_queue_is_seen() -> None:
    run = finished()
    assert not result_of(run).saturated
    wait_s = 0.1 * np.arange(100)
    for field in ("scheduled_s", "first_token_s", "done_s"):
        run[field] += wait_s
    assert result_of(run).saturated
    assert queue_grows(wait_s, served_s=7.4) and not queue_grows(wait_s, served_s=7.5)
    assert not queue_grows(wait_s + 3.0, served_s=0.0)


def test_requests_per_s_are_answers() -> None:
    """One arrival a second of which one in five is rejected."""
    run = finished(1000)
    run["outcome"][::5], run["done_s"][::5] = REJECTED, run["arrival_s"][::5]
    result = result_of(run)
    assert result.requests_per_s == pytest.approx(0.8, rel=0.01)
    assert result.mean_in_flight == pytest.approx(0.8 * 1.5, rel=0.01)


# confidence


@pytest.mark.parametrize("share", [0.5, 0.05])
def test_the_error_of_independent_requests_is_the_binomial_one(share: float) -> None:
    rng, n = np.random.default_rng(0), 4000
    errors = [share_error(rng.random(n) < share) for _ in range(200)]
    binomial = 1.73 * math.sqrt(share * (1 - share) / n)  # Student's t, 19 degrees of freedom
    assert binomial < np.mean(errors) < 1.25 * binomial  # the correction for correlation only ever widens


def single_server(load: float, n: int, seed: int) -> Any:
    """E2E seconds of M/M/1 with mean service 1 s: the walk of service less gap, above its lowest point so far."""
    rng = np.random.default_rng(seed)
    service_s, gaps_s = rng.exponential(1.0, n), rng.exponential(1 / load, n)
    walk = np.concatenate([[0.0], np.cumsum(service_s - gaps_s)[:-1]])
    waits_s = walk - np.minimum.accumulate(walk)
    return (waits_s + service_s)[n // 20 :]


@pytest.mark.parametrize("percentile", [50, 95])
def test_intervals_of_a_queue_hold_nine_times_in_ten(percentile: int) -> None:
    """E2E of M/M/1 at load 0.8 is exponential with mean 5 s; independent errors would cover half as often."""
    truth = -5 * math.log(1 - percentile / 100)
    covered = 0
    for seed in range(200):
        low, high = quantile_interval(single_server(0.8, 20_000, seed), percentile)
        covered += low <= truth <= high
    assert covered / 200 > 0.9 - 4 * math.sqrt(0.9 * 0.1 / 200)


@pytest.mark.parametrize(("metric", "percentile"), [("ttft", 95), ("itl", 90)])
def test_intervals_of_an_engine_hold_nine_times_in_ten(metric: Any, percentile: int) -> None:
    """The truth: a run fifty times as long."""
    load = Workload(VARIED, 0.7 * simulated_stable_rate_per_s(REPLICA, VARIED))
    truth = float(np.percentile(simulate(REPLICA, load, requests=400_000, seed=999).of(metric), percentile))
    ends = np.array([simulate(REPLICA, load, requests=8000, seed=s).interval(metric, percentile) for s in range(100)])
    covered = np.mean((ends[:, 0] <= truth) & (truth <= ends[:, 1]))
    assert 0.9 - 4 * math.sqrt(0.9 * 0.1 / 100) < covered
    assert np.median(np.ptp(ends, axis=1)) < 0.5 * truth


def test_four_times_the_requests_halve_the_interval() -> None:
    widths = [
        np.mean([np.ptp(quantile_interval(single_server(0.6, n, seed), 90)) for seed in range(60)])
        for n in (8000, 32_000)
    ]
    assert widths[0] / widths[1] == pytest.approx(2, rel=0.25)


def test_the_interval_holds_the_percentile() -> None:
    run = simulate(REPLICA, Workload(VARIED, 8.0), requests=4000)
    low, high = run.interval("ttft", 95)
    middle = float(np.percentile(run.ttft_s, 95))
    assert low <= middle <= high


def test_nobody_beyond_a_limit_is_not_certainty() -> None:
    assert share_error(np.zeros(100, bool)) == pytest.approx(0.03)


def test_an_interval_needs_some_requests() -> None:
    with pytest.raises(ScenarioError, match="an interval needs 40 requests or more, got 39"):
        result_of(finished(39)).interval("ttft", 95)
    with pytest.raises(ScenarioError, match="got none with this metric"):
        quantile_interval(np.empty(0), 95)


# streams


def test_streams_of_one_kind_are_one_workload() -> None:
    """Poisson streams of 1, 2 and 3 requests/s of the same lengths are one of 6; each sees what it sees."""
    rate = 0.7 * simulated_stable_rate_per_s(REPLICA, VARIED)
    parts = [Stream(Workload(VARIED, share * rate)) for share in (1 / 6, 2 / 6, 3 / 6)]
    several = simulate_streams(REPLICA, parts, requests=120_000)
    whole = simulate(REPLICA, Workload(VARIED, rate), requests=120_000)
    for part, share in zip(several, (1 / 6, 2 / 6, 3 / 6), strict=True):
        assert part.requests_per_s == pytest.approx(share * rate, rel=0.04)
        assert part.e2e_s.mean() == pytest.approx(whole.e2e_s.mean(), rel=0.04)
        assert part.utilization == pytest.approx(whole.utilization, rel=0.02)


def test_a_stream_has_no_queue_of_its_own() -> None:
    with pytest.raises(ScenarioError, match="share one queue"):
        Stream(Workload(VARIED, 1.0, queue_limit=5))


@pytest.mark.parametrize("routing", ["random", "round_robin", "least_outstanding"])
def test_streams_keep_their_rates_on_a_fleet(routing: Any) -> None:
    chat, batch = Workload(Lengths(300, 100, 0.5, 0.5), 60.0), Workload(Lengths(3000, 40, 0.3, 0.3), 12.0)
    for result, load in zip(
        simulate_streams(REPLICA, [Stream(chat), Stream(batch)], replicas=12, routing=routing, requests=20_000),
        (chat, batch),
        strict=True,
    ):
        assert result.requests_per_s == pytest.approx(load.rate_per_s, rel=0.08)
        assert result.mean_in_flight == pytest.approx(load.rate_per_s * result.e2e_s.mean(), rel=0.08)
        assert not result.saturated


@pytest.mark.parametrize(
    ("other", "warned"), [(Lengths(300, 100), True), (Lengths(900, 100), True), (Lengths(300, 90), False)]
)
def test_streams_of_equal_requests_can_herd(other: Lengths, warned: bool) -> None:
    streams = [Stream(Workload(Lengths(300, 100), 5.0)), Stream(Workload(other, 5.0))]
    for result in simulate_streams(REPLICA, streams, replicas=2, routing="least_outstanding", requests=100):
        assert ("herding" in [each.kind for each in result.warnings]) == warned


@pytest.mark.parametrize("routing", ["random", "least_outstanding"])
def test_all_streams_faster_share_their_random_numbers(routing: Any) -> None:
    slow, fast = (
        simulate_streams(
            REPLICA,
            [Stream(Workload(VARIED, 2 * factor)), Stream(Workload(Lengths(100, 10), 3 * factor))],
            replicas=4,
            routing=routing,
            requests=2000,
            warmup=0.0,
        )
        for factor in (1.0, 1.5)
    )
    for one, other in zip(slow, fast, strict=True):
        assert one.arrival_s[:500] == pytest.approx(1.5 * other.arrival_s[:500])


def test_priority_decides_who_waits() -> None:
    """More than the fleet can carry, in two priorities: the first is steady, the second is not."""
    stable = simulated_stable_rate_per_s(REPLICA, VARIED)
    streams = [Stream(Workload(VARIED, 0.7 * stable), priority=1), Stream(Workload(VARIED, 0.5 * stable))]
    behind, ahead = simulate_streams(REPLICA, streams, requests=20_000)
    assert behind.saturated and not ahead.saturated
    assert (behind.utilization, ahead.utilization) == (pytest.approx(1.2, rel=0.03), pytest.approx(0.5, rel=0.03))
    alone = simulate(REPLICA, Workload(VARIED, 0.5 * stable), requests=10_000)
    assert np.median(ahead.queue_s) < 20 * max(float(np.median(alone.queue_s)), GPU.decode_s(32, 32 * 700))


@pytest.mark.parametrize(
    ("streams", "words"),
    [
        ([], "give at least one stream"),
        ([Stream(Workload(VARIED, 1000.0)), Stream(Workload(VARIED, 0.1))], "stream 1 is 0 of 1000 requests, too few"),
    ],
)
def test_streams_that_cannot_be_measured_are_refused(streams: list[Stream], words: str) -> None:
    with pytest.raises(ScenarioError, match=words):
        simulate_streams(REPLICA, streams, requests=1000)


def test_priorities_have_bounds() -> None:
    with pytest.raises(ScenarioError, match="priority must be from 0"):
        Stream(Workload(VARIED, 1.0), 16)


# losses, end to end


def test_a_short_line_rejects_as_erlang_says() -> None:
    """M/M/1 with room for K = 4 more in line than the one in service, load 1.2: blocking (1 - r) r^K' / (1 - r^(K'+1)),
    K' = 5 in the system."""
    load, places, n, tick_s = 1.2, 5, 60_000, 1e-3
    law = StepLaw(0.0, tick_s, 0.0, 0.0, 0.0)
    replica = Replica(law, Batching("whole_prompt", 1, max_waiting=places - 1))
    rng = np.random.default_rng(4)
    ones, outputs = np.ones(n, np.int64), rng.geometric(tick_s, n)
    run = simulate_trace(replica, np.cumsum(rng.exponential(1 / load, n)), ones, outputs)
    blocked = (1 - load) * load**places / (1 - load ** (places + 1))
    assert run.rejected / n == pytest.approx(blocked, rel=0.04)
    assert run.requests_per_s == pytest.approx(load * (1 - blocked), rel=0.03)
    assert not run.saturated
