"""The search for the edge of the SLA: found from either side, on the safe side, or said not to be there."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from sizing.edge import (
    BATCHES,
    BY_SIMULATION,
    EDGE_WITHIN,
    FAR,
    FIRST,
    IDLE,
    MOST_ASKED,
    MOST_SHARE,
    LoadResponse,
    Probe,
    analytic_capacity_per_s,
    edge_rate,
    load_response,
    log_excess,
    lost_to_doubt,
    predict_at,
    raised,
    scaled_capacities,
    upper_end,
    upper_excess,
    upper_percentile,
)
from sizing.engine import Batching, Replica, StepLaw
from sizing.planner import size
from sizing.plans import Fleet, Rejection
from sizing.question import Setting
from sizing.queueing import predict, stable_rate_per_s
from sizing.simulator import Simulated, simulate
from sizing.simulator.state import REJECTED, SERVED
from sizing.stats import rank
from sizing.workload import Lengths, Limit, RequestMetric, Sla, Workload
from tests.sizing.fleets_at_hand import candidate, question

LAW = StepLaw(4.8e-3, 1e-3, 20e-6, 10e-6, 49e-9)


def response(root: float, steepness: float) -> LoadResponse:
    """A model of the excess: a straight line in log rate through `root`."""
    rates = root * np.geomspace(0.01, 4, 12)
    return LoadResponse(rates, steepness * np.log(rates / root))


@given(
    root=st.floats(1e-3, 1e3),
    model_root=st.floats(0.4, 2.5),
    steepness=st.floats(0.2, 5),
    model_steepness=st.floats(0.2, 5),
)
def test_the_edge_is_found_whatever_the_model_believes(
    root: float, model_root: float, steepness: float, model_steepness: float
) -> None:
    model = response(root * model_root, model_steepness)
    found = edge_rate(lambda rate: steepness * math.log(rate / root), model, root * model_root, 100 * root)
    assert found == pytest.approx(root, rel=0.01)


@given(root=st.floats(0.2, 8))
@example(root=3.9921875)  # just below a rate that was tried
def test_a_cliff_is_bracketed(root: float) -> None:
    """An excess without any slope: below the root all is well, above nothing is."""
    found = edge_rate(lambda rate: -0.5 if rate <= root else 3.0, response(1.0, 1.0), 1.0, 100.0)
    assert root * 0.99 <= found <= root * (1 + 1e-9)


@given(root=st.floats(0.5, 2.0), bend=st.floats(0.0, 4.0), error=st.floats(0.97, 1.03))
def test_a_good_model_makes_the_search_short(root: float, bend: float, error: float) -> None:
    """A curve that bends upwards, known but for 3 % of the rate: two runs on either side, and one between them."""
    rates = root * np.geomspace(0.01, 4, 40)
    model = LoadResponse(error * rates, np.log(rates / root) + bend * (rates / root - 1))
    asked = []

    def excess(rate: float) -> float:
        asked.append(rate)
        return math.log(rate / root) + bend * (rate / root - 1)

    assert edge_rate(excess, model, error * root, 4 * root) == pytest.approx(root, rel=0.004)
    assert len(asked) <= 3


@pytest.mark.parametrize("root", [15.0, 28.0, 60.0])
def test_an_edge_far_behind_a_flat_stretch_is_found_in_time(root: float) -> None:
    """Equal prompts at even gaps: TTFT just within its limit at every load up to where they begin to queue."""
    asked: list[float] = []

    def excess(rate: float) -> float:
        asked.append(rate)
        return -0.0006 if rate <= root else 3.0 * math.log(rate / root)

    found = edge_rate(excess, response(1.0, 1.0), 1.0, 100.0)
    assert 0.9 * root <= found <= root * (1 + 1e-9)
    assert len(asked) <= 16


@given(slope=st.floats(0.1, 5), doubt=st.floats(0, 1), logs=st.lists(st.floats(-0.3, 0.3), min_size=2, max_size=2))
def test_a_doubt_costs_what_the_slope_makes_of_it(slope: float, doubt: float, logs: list[float]) -> None:
    """On a straight line `doubt` more excess is as much as `doubt / slope` less of the rate. A flat line, one that
    falls and a run without steady state tell no slope."""
    assume(abs(logs[0] - logs[1]) > 1e-3)
    one, other = (Probe(2 * math.exp(log), slope * log) for log in logs)
    assert lost_to_doubt(doubt, one, other) == pytest.approx(doubt / slope, rel=1e-6)
    assert lost_to_doubt(doubt, Probe(1.0, 0.1), Probe(2.0, 0.1)) == lost_to_doubt(doubt, one, one) == 0
    assert lost_to_doubt(doubt, Probe(1.0, 0.1), Probe(2.0, 0.0)) == 0
    assert lost_to_doubt(doubt, Probe(1.0, 0.1), Probe(2.0, FAR)) == 0


def test_where_a_line_hardly_rises_the_search_goes_on_at_the_ceiling() -> None:
    lost = lost_to_doubt(0.01, Probe(1.0, 0.1), Probe(1.1, 0.1 + 1e-9))
    assert raised(1.0, lost, 3.0) == pytest.approx(3.0) and raised(1.0, math.log(2), 3.0) == pytest.approx(2.0)


def test_the_doubt_of_a_flat_percentile_is_not_paid_in_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    """p99 TTFT of long prompts that vary hardly rises with the load up to a quarter of what can be carried: runs of the
    usual length leave a tenth of the rate in doubt. What is found is nearer the edge, and other random numbers keep the
    limits there too."""
    server = Replica(LAW, Batching("chunked", token_budget=2048))
    sla = Sla(Limit("ttft", 99, 0.150), Limit("itl", 99, 0.020))
    setting = Setting(Workload(Lengths(2000, 256, 0.5, 0.5), 1.0), sla, "random")
    found = BY_SIMULATION.capacity_per_s(server, setting)
    monkeypatch.setattr("sizing.edge.WORTH", math.inf)
    usual = BY_SIMULATION.capacity_per_s(Replica(LAW.scaled(1 + 1e-9), server.batching), setting)  # nothing remembered
    other = simulate(server, setting.at(found), requests=1_000_000, seed=1)
    assert found > 1.03 * usual
    assert other.meets(sla)


def test_an_excess_that_never_ends_gives_no_rate() -> None:
    assert edge_rate(lambda rate: 0.3, response(1.0, 1.0), 1.0, 10.0) == 0


def test_a_limit_that_is_never_reached_gives_the_ceiling() -> None:
    assert edge_rate(lambda rate: -2.0, response(1.0, 1.0), 1.0, 3.0) == pytest.approx(3.0, rel=0.01)


@cache
def run_of_100() -> Simulated:
    return simulate(Replica(LAW), Workload(Lengths(500, 100), 1.0), requests=100)


def sample(values: np.ndarray) -> Simulated:
    """A run whose requests had these TTFTs."""
    return dataclasses.replace(run_of_100(), ttft_s=values, outcome=np.full(len(values), SERVED))


@pytest.mark.parametrize("percentile", [50, 90, 95, 99])
def test_the_upper_percentile_covers_the_true_one(percentile: int) -> None:
    """Two standard errors up it lies above the true percentile of an exponential sample but for one sample in 37, by
    Student's t of 29 degrees of freedom; at none it is the rank's, which lies below about every other time."""
    samples, limit, true_s = 200, Limit("ttft", percentile, 1.0), -math.log(1 - percentile / 100)
    below = {0.0: 0, 2.0: 0}
    for seed in range(samples):
        values = np.random.default_rng(seed).exponential(1.0, 3000)
        for errors in below:
            below[errors] += upper_percentile(sample(values), limit, errors) < true_s
        assert upper_percentile(sample(values), limit, 0.0) == np.sort(values)[rank(percentile / 100, len(values))]
    assert below[2.0] <= 14, "chance of more: below 1 in 1,000"
    assert 0.35 * samples < below[0.0] < 0.65 * samples, "four standard errors to either side of a half"


def test_correlated_requests_widen_the_margin() -> None:
    """The same values sorted share their queue: they say less about the percentile than the shuffled ones."""
    values = np.sort(np.random.default_rng(1).exponential(1.0, 3000))
    shuffled = np.random.default_rng(2).permutation(values)
    limit = Limit("ttft", 90, 1.0)
    assert upper_percentile(sample(values), limit, 1.0) > upper_percentile(sample(shuffled), limit, 1.0)


@given(share=st.floats(0.01, 1.0), count=st.integers(BATCHES, 5000))
def test_no_more_than_allowed_lie_above_the_rank(share: float, count: int) -> None:
    assert 0 <= rank(share, count) < count
    assert count - 1 - rank(share, count) <= (1 - share) * count + 1e-6


def test_within_the_limit_by_the_margin_means_the_run_meets_it() -> None:
    run = simulate(Replica(LAW), Workload(Lengths(500, 100, 0.5, 0.8), 8.0), requests=20_000)
    worst = float(np.quantile(run.ttft_s, 0.95))
    for factor in (0.9, 0.999, 1.001, 1.1):
        sla = Sla(Limit("ttft", 95, worst * factor))
        assert upper_excess(run, sla) > 0 or run.meets(sla)
        assert upper_excess(run, sla, 0.0) <= upper_excess(run, sla)


def test_no_steady_state_is_far_over_any_limit() -> None:
    run = dataclasses.replace(sample(np.ones(100)), saturated=True)
    assert upper_excess(run, Sla(Limit("ttft", 95, 1e6))) == 3.0


def test_requests_that_are_not_served_are_over_every_limit() -> None:
    """At most 5 % may miss a p95: with 4 % lost it is finite, with 6 % it is not, whatever the others see."""
    sla = Sla(Limit("ttft", 95, 100.0))
    for lost, holds in ((40, True), (60, False)):
        outcome = np.full(1000, SERVED)
        outcome[:: 1000 // lost][:lost] = REJECTED
        run = dataclasses.replace(sample(np.ones(1000)), outcome=outcome)
        assert math.isfinite(upper_percentile(run, sla.limits[0], 0.0)) is holds
        assert (upper_excess(run, sla, 0.0) < 0) is holds
        assert run.meets(sla) is holds


def test_the_edge_of_a_server_that_drops_who_waits_too_long() -> None:
    """A queue timeout keeps TTFT short however high the load: the lost alone say where the SLA fails."""
    replica = Replica(LAW, Batching(max_batch_size=16))
    lengths, sla = Lengths(500, 100, 0.5, 0.8), Sla(Limit("ttft", 95, 10.0))
    setting = Setting(Workload(lengths, 1.0, queue_timeout_s=0.5), sla, "random")
    found = BY_SIMULATION.capacity_per_s(replica, setting)
    for factor, meets in ((0.97, True), (1.03, False)):
        run = simulate(replica, setting.at(factor * found), requests=240_000, seed=9)
        assert run.meets(sla) is meets
        assert run.timed_out > 0
        assert np.nanmax(run.ttft_s) < 10.0


@given(root=st.floats(0.02, 0.98), rise=st.floats(0.5, 5), far=st.floats(-2, -0.01))
@example(root=0.25, rise=4.0, far=-0.015625)  # idle within 2 % of the limit
@example(root=0.5, rise=0.5, far=-0.484375)  # just over the limit beyond it, and nothing known further up
def test_a_cliff_of_the_formula_is_found_in_few_predictions(root: float, rise: float, far: float) -> None:
    """The excess jumps at `root`, of a stable rate of 1, from `far` below the limit."""
    known = {rate: far if rate <= root else far + rise for rate in (IDLE, *FIRST)}
    for number in range(MOST_ASKED):
        rates = sorted(known)
        response = LoadResponse(np.array(rates), np.array([known[rate] for rate in rates]))
        asked = response.next_rate_per_s(0.0, MOST_SHARE, EDGE_WITHIN, number)
        if asked is None:
            break
        known[asked] = far if asked <= root else far + rise
    if far + rise > 0:
        assert response.rate_per_s(0.0) == pytest.approx(root, rel=0.14)


SERVER = Replica(LAW)


def bisected(replica: Replica, setting: Setting) -> float:
    """The rate at which the formula's latencies leave the SLA, by halving alone; 0 where they do without load."""
    stable_per_s = stable_rate_per_s(replica, setting.workload.lengths)
    low, high = IDLE * stable_per_s, MOST_SHARE * stable_per_s
    if log_excess(predict_at(replica, setting, low), setting.sla) > 0:
        return 0.0
    while high / low > 1.002:
        middle = math.sqrt(low * high)
        over = log_excess(predict_at(replica, setting, middle), setting.sla) > 0
        low, high = (low, middle) if over else (middle, high)
    return low


CASES = [
    pytest.param(Lengths(isl, osl, cv, cv), metric, percentile, share, id=f"{isl}/{osl} {metric} p{percentile} {share}")
    for isl, osl, cv in ((500, 200, 0.5), (2000, 256, 0.0), (6000, 100, 0.5))
    for metric, percentile in (("ttft", 95), ("itl", 95), ("e2e", 99))
    for share in (0.3, 0.6, 0.85)
]


def limited(lengths: Lengths, metric: RequestMetric, percentile: float, share: float) -> Setting:
    """A limit that the server just keeps at a share of its stable rate."""
    workload = Workload(lengths, share * stable_rate_per_s(SERVER, lengths))
    limit_s = predict(SERVER, workload).of(metric).at(percentile)
    return Setting(workload, Sla(Limit(metric, percentile, limit_s)), "random")


@pytest.mark.parametrize(("lengths", "metric", "percentile", "share"), CASES)
def test_the_edge_by_formula_is_what_halving_finds(
    lengths: Lengths, metric: RequestMetric, percentile: float, share: float
) -> None:
    setting = limited(lengths, metric, percentile, share)
    assert analytic_capacity_per_s(SERVER, setting) == pytest.approx(bisected(SERVER, setting), rel=0.02)


@pytest.mark.parametrize(("lengths", "metric", "percentile", "share"), CASES)
def test_the_band_of_an_estimate_is_that_of_a_slower_and_a_faster_engine(
    lengths: Lengths, metric: RequestMetric, percentile: float, share: float
) -> None:
    """Each of them asked by itself, where the band reads both off the response of the engine amid them."""
    setting, factor = limited(lengths, metric, percentile, share), 1.35
    low, high = scaled_capacities(SERVER, setting, factor)
    middle, slow, fast = (bisected(replace(SERVER, law=LAW.scaled(by)), setting) for by in (1, factor, 1 / factor))
    assert high == pytest.approx(fast / middle, rel=0.05)
    assert low == pytest.approx(slow / middle, rel=0.1)


def test_latencies_that_differ_by_rounding_are_equal() -> None:
    """A clock of years rounds more at its end: without load nearly all equal requests take the same time but for it."""
    values = 0.058 + np.linspace(0, 1e-9, 216_000)
    values[::300] = 0.11
    assert upper_end(values, 95, 3.0) == pytest.approx(0.058, rel=1e-6)


def test_a_limit_just_above_the_idle_latency_is_met_by_many_replicas() -> None:
    """Of equal requests: not by none, for the rounding of the clock."""
    for by in (1.02, 1.15):
        idle = load_response(candidate().replica, question().setting(1)).idle
        asked = replace(question(1.0), sla=Sla(Limit("ttft", 95, by * idle.ttft.p95_s)))
        found = size(asked, candidate(), BY_SIMULATION)
        assert isinstance(found, Fleet) and found.predicted.meets(asked.sla)


def test_what_an_idle_replica_misses_is_above_its_limit() -> None:
    """Also where the value itself keeps it, and only its upper end does not."""
    asked = replace(question(1.0), sla=Sla(Limit("ttft", 95, 0.02), Limit("itl", 95, 0.001)))
    missed = size(asked, candidate(), BY_SIMULATION)
    assert isinstance(missed, Rejection) and missed.limit is not None and missed.nearest_s is not None
    assert missed.nearest_s > missed.limit.limit_s
