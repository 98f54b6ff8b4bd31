"""Replays of traces: parts add up to one run, which is that of the simulator, and no request is lost between them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sizing.engine import Batching, Replica, Speculation, StepLaw
from sizing.errors import ScenarioError
from sizing.simulator import Watch, simulate_trace
from sizing.simulator.fleet import serve
from sizing.simulator.recorded import Replayed, replay
from sizing.simulator.sampling import checked_requests
from sizing.simulator.sessions import drawn_sessions, serve_sessions
from sizing.trace import HOUR_S, Trace
from sizing.workload import OF_REQUESTS, ROUTINGS, Lengths, Limit, Prefix, Routing, Sessions, Sla, Workload

LAW = StepLaw(4.8e-3, 1e-3, 20e-6, 10e-6, 49e-9, 1.3e-9, 0.5e-3, 4e-3)
SLA = Sla(Limit("ttft", 95, 0.3), Limit("itl", 90, 0.012), Limit("e2e", 99, 4.0))
PLAIN = Workload(Lengths(100, 10), 1.0)
ENGINES = (
    Replica(LAW, Batching("chunked", 64, 2048, 400_000)),
    Replica(LAW, Batching("chunked", 16, 256, 4_000, kv_policy="max_utilization")),
    Replica(LAW, Batching("prefill_first", 16, 2048, 20_000)),
    Replica(LAW, Batching("static", 8, 8192, 100_000)),
    Replica(LAW, Batching("chunked", 32, 1024, 50_000, lookahead_steps=1.5)),
    Replica(LAW, Batching("chunked", 32, 1024, 50_000), Speculation(3, 0.7, StepLaw(1e-3, 1e-4, 1e-6, 1e-6, 1e-9))),
    Replica(LAW, Batching("chunked", 16, 1024, 50_000, max_waiting=20)),
)


def recorded(seed: int, requests: int = 400, rate_per_s: float = 30.0, hours: float = 1.0) -> Trace:
    """Bursts: gaps whose mean changes tenfold every fifty requests; over `hours` times as long, with pauses."""
    rng = np.random.default_rng(seed)
    slow = np.repeat(rng.choice([0.4, 4.0], math.ceil(requests / 50)), 50)[:requests]
    arrival_s = np.cumsum(rng.exponential(slow / rate_per_s / 2))
    arrival_s += np.floor(np.linspace(0, hours, requests, endpoint=False)) * HOUR_S
    return Trace(
        arrival_s, rng.integers(1, 900, requests).astype(np.int32), rng.integers(1, 80, requests).astype(np.int32)
    )


def same(one: Replayed, other: Replayed) -> None:
    """To rounding: a deadline that nobody waits for any more cuts a stretch of decode steps in two."""
    for name, left, right in zip(one.tally._fields, one.tally, other.tally, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-9, err_msg=name)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    engine=st.sampled_from(ENGINES),
    part=st.integers(1, 150),
    replicas=st.integers(1, 4),
    routing=st.sampled_from(["random", "round_robin", "power_of_two", "least_outstanding"]),
    patience=st.sampled_from([(math.inf, math.inf), (0.4, math.inf), (math.inf, 0.9), (0.3, 1.1)]),
    prefix=st.sampled_from([Prefix(), Prefix(64, 0.6)]),
)
def test_parts_are_one_run(
    seed: int,
    engine: Replica,
    part: int,
    replicas: int,
    routing: Routing,
    patience: tuple[float, float],
    prefix: Prefix,
) -> None:
    """Requests in every place of a replica at the end of a part: waiting, paused, cut in chunks, decoding, given up."""
    trace = recorded(seed, rate_per_s=60.0 * replicas, hours=3)
    workload = replace(PLAIN, prefix=prefix, queue_timeout_s=patience[0], cancel_s=patience[1])
    at_once = replay(engine, trace, workload, SLA, replicas=replicas, routing=routing, seed=seed)
    in_parts = replay(engine, trace, workload, SLA, replicas=replicas, routing=routing, seed=seed, part=part)
    same(at_once, in_parts)
    assert at_once.tally.gone.sum() == len(trace)


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.batching.policy)
@pytest.mark.parametrize("replicas", [1, 3])
def test_a_replay_counts_what_the_simulator_sees(engine: Replica, replicas: int) -> None:
    """Round robin draws nothing: request by request the same run. A bin is 0.8 % wide."""
    if engine.speculation:
        engine = replace(engine, speculation=None)
    trace = recorded(7, 3000, 40.0 * replicas)
    gaps = SLA.with_limits(Limit("gap", 95, 0.05))
    found = replay(engine, trace, PLAIN, gaps, replicas=replicas, routing="round_robin", part=700)
    run = simulate_trace(
        *(engine, trace.arrival_s, trace.isl, trace.osl),
        replicas=replicas,
        routing="round_robin",
        watch=Watch(token_gaps=True),
    )
    for limit in SLA.limits:
        assert found.exceeding_share(limit) == pytest.approx(run.exceeding_share(limit), abs=1e-12)
    assert found.goodput() == pytest.approx(run.goodput(SLA), abs=1e-12)
    assert int(found.tally.lost.sum()) == run.lost
    for metric in OF_REQUESTS:
        seconds = run.of(metric)
        own = seconds[np.isfinite(seconds)]
        quantiles = found.quantiles(metric)
        assert quantiles.mean_s == pytest.approx(own.mean(), rel=1e-9)
        for percentile in (50, 90, 95, 99):
            exact = np.percentile(own, percentile, method="inverted_cdf")
            assert quantiles.at(percentile) == pytest.approx(exact, rel=0.009)
    assert found.gaps is not None
    limit = gaps.limits[2]
    assert found.gaps.total == sum(trace.osl.astype(int) - 1)
    assert found.exceeding_share(limit) == pytest.approx(run.gaps.share_above(0.05), abs=2e-3)


def test_hours_are_told_apart() -> None:
    """A busy hour between two quiet ones: only its requests wait."""
    quiet = np.arange(0.0, HOUR_S, 10.0)
    busy = HOUR_S + np.linspace(0, 100, 30_000)
    arrival_s = np.concatenate([quiet, busy, quiet + 2 * HOUR_S])
    ones = np.ones(len(arrival_s), np.int32)
    found = replay(ENGINES[0], Trace(arrival_s, 500 * ones, 50 * ones), PLAIN, SLA)
    assert [hour.last - hour.first for hour in found.hours] == [len(quiet), len(busy), len(quiet)]
    assert found.tally.gone.tolist() == [len(quiet), len(busy), len(quiet)]
    assert found.exceeding_share(SLA.limits[0], 1) > 0.5
    # What arrived in 100 s is done before the last hour begins.
    assert found.exceeding_share(SLA.limits[0], 0) == found.exceeding_share(SLA.limits[0], 2) == 0
    assert found.quantiles("ttft", 0).p99_s == pytest.approx(found.quantiles("ttft", 2).p99_s, rel=0.01)
    whole = found.quantiles("ttft").mean_s
    by_hour = [found.quantiles("ttft", hour).mean_s for hour in range(3)]
    assert whole == pytest.approx(np.average(by_hour, weights=found.tally.gone), rel=1e-9)


def test_speed_offers_the_same_requests_in_less_time() -> None:
    trace = recorded(3, 2000)
    faster = Trace(trace.arrival_s / 1.25, trace.isl, trace.osl)
    same(replay(ENGINES[0], trace, PLAIN, SLA, speed=1.25), replay(ENGINES[0], faster, PLAIN, SLA))


def test_a_hopeless_replay_ends_early_and_does_not_meet() -> None:
    trace = recorded(5, 20_000, rate_per_s=500.0)
    ended = replay(ENGINES[0], trace, PLAIN, SLA, part=500, to_the_end=False)
    finished = replay(ENGINES[0], trace, PLAIN, SLA, part=500)
    assert not ended.whole and finished.whole
    assert not ended.meets and not finished.meets
    assert ended.tally.gone.sum() < len(trace) == finished.tally.gone.sum()


def test_percentiles_agree_with_the_verdict() -> None:
    """A limit inside the bin that the percentile falls in: the count decides, and the percentile follows."""
    trace = recorded(11, 5000)
    exact = np.sort(simulate_trace(ENGINES[0], trace.arrival_s, trace.isl, trace.osl).ttft_s)
    edge = math.ceil(0.95 * len(exact)) - 1
    for limit_s, meets in ((exact[edge] * (1 + 1e-9), True), (exact[edge] * (1 - 1e-9), False)):
        found = replay(ENGINES[0], trace, PLAIN, Sla(Limit("ttft", 95, float(limit_s))))
        assert found.meets is meets
        assert found.prediction(0.5).meets(found.sla) is meets


def test_a_request_that_never_fits_is_refused() -> None:
    trace = Trace(np.array([0.0, 1.0]), np.array([10, 5000], np.int32), np.array([5, 5], np.int32))
    with pytest.raises(ScenarioError, match="never fits"):
        replay(ENGINES[1], trace, PLAIN, SLA)


def classed(trace: Trace, seed: int = 0) -> Trace:
    of_class = np.random.default_rng(seed).choice(3, len(trace), p=(0.6, 0.3, 0.1)).astype(np.uint8)
    return replace(trace, classes=("chat", "code", "batch"), of_class=of_class)


CLASS_SLAS = (
    Sla(Limit("ttft", 95, 0.3), Limit("itl", 90, 0.012)),
    Sla(Limit("ttft", 99, 0.1), Limit("gap", 95, 0.05)),
    Sla(Limit("e2e", 50, 2.0)),
)


@pytest.mark.parametrize("engine", [ENGINES[0], ENGINES[1], ENGINES[6]], ids=("chunked", "paused", "full"))
@pytest.mark.parametrize("replicas", [1, 3])
def test_each_class_is_judged_by_its_own_requests(engine: Replica, replicas: int) -> None:
    """Every request of the simulator, by class: shares beyond limits exactly, percentiles within a bin."""
    trace = classed(recorded(7, 3000, 40.0 * replicas))
    found = replay(
        *(engine, trace, PLAIN, SLA), replicas=replicas, routing="round_robin", part=700, class_slas=CLASS_SLAS
    )
    run = simulate_trace(engine, trace.arrival_s, trace.isl, trace.osl, replicas=replicas, routing="round_robin")
    assert [seen.name for seen in found.classes] == ["chat", "code", "batch"]
    good = np.zeros(len(trace), bool)
    for number, seen in enumerate(found.classes):
        mine = trace.of_class == number
        within = mine & (run.outcome == 0)
        for limit in seen.sla.limits:
            if limit.metric == "gap":
                continue
            seconds = run.of(limit.metric)
            beyond = mine & ((run.outcome != 0) | (seconds > limit.limit_s))
            counted = mine & ((run.outcome != 0) | np.isfinite(seconds))
            assert seen.exceeding_share(limit) == pytest.approx(beyond.sum() / counted.sum(), abs=1e-12)
            within &= ~(seconds > limit.limit_s)
        assert int(seen.tally.gone.sum()) == mine.sum()
        assert seen.goodput() == pytest.approx(within.sum() / mine.sum(), abs=1e-12)
        good |= within
        ttft_s = run.ttft_s[mine & (run.outcome == 0)]
        assert seen.quantiles("ttft").p95_s == pytest.approx(
            np.percentile(ttft_s, 95, method="inverted_cdf"), rel=0.009
        )
    assert found.goodput() == pytest.approx(good.mean(), abs=1e-12)
    assert found.meets == all(seen.meets for seen in found.classes)
    gaps = found.classes[1].gaps
    assert gaps is not None and gaps.total == sum(trace.osl[trace.of_class == 1].astype(int) - 1)
    assert found.classes[0].gaps is None


@pytest.mark.parametrize("seed", range(3))
def test_one_class_is_the_trace_without_classes(seed: int) -> None:
    trace = recorded(seed, 2000, 80.0)
    plain = replay(ENGINES[1], trace, PLAIN, SLA, replicas=2, seed=seed, part=300)
    one = replay(ENGINES[1], trace.as_class("all"), PLAIN, SLA, replicas=2, seed=seed, part=300, class_slas=[SLA])
    for left, right, own in zip(plain.tally, one.tally, one.classes[0].tally, strict=True):
        assert np.array_equal(left, right) and np.array_equal(left, own)
    assert plain.meets == one.meets and plain.prediction(0.5) == one.prediction(0.5)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 150))
def test_classes_in_parts_are_one_run(seed: int, part: int) -> None:
    trace = classed(recorded(seed, rate_per_s=60.0, hours=3), seed)
    at_once, in_parts = (
        replay(ENGINES[6], trace, PLAIN, SLA, class_slas=CLASS_SLAS, seed=seed, part=size) for size in (1 << 18, part)
    )
    for one, other in zip(at_once.classes, in_parts.classes, strict=True):
        same(one, other)


def test_an_sla_for_each_class_or_none() -> None:
    with pytest.raises(ScenarioError, match="an SLA each for 3 classes"):
        replay(ENGINES[0], classed(recorded(1)), PLAIN, SLA, class_slas=CLASS_SLAS[:2])


# --- Sessions on engines with a prefix cache


def caching(kv_tokens: int) -> Replica:
    rule = Batching("chunked", 16, 1024, kv_tokens, "max_utilization", kv_block_tokens=16, prefix_cache=True)
    return Replica(LAW, rule)


def conversations(replica: Replica, seed: int, sessions: int = 120) -> tuple[Trace, dict[str, float]]:
    """A run of sessions as it would have been recorded, and what its turns found and saw."""
    chat = Sessions(0.8, 5, 300, 60, 80, first_cv=0.6, user_cv=0.7, output_cv=0.6, think_s=3.0, context_tokens=3500)
    run, think_s = drawn_sessions(replica, chat, sessions, seed)
    serve_sessions(replica, run, think_s)
    run = run[np.argsort(run["arrival_s"], kind="stable")]
    columns = (run[name].astype(np.int32) for name in ("isl", "osl", "session"))
    isl, osl, session = columns
    ttft_s = run["first_token_s"] - run["arrival_s"] + replica.law.request_s
    seen = {"found": float(run["found_tokens"].sum()), "ttft_s": float(ttft_s.mean())}
    return Trace(run["arrival_s"].copy(), isl, osl, session=session), seen


@pytest.mark.parametrize("kv_tokens", [4_000, 8_000, 400_000])
@pytest.mark.parametrize("seed", range(3))
def test_a_replay_of_sessions_is_the_run_that_was_recorded(kv_tokens: int, seed: int) -> None:
    """Turns sent when the run of sessions sent them find the same tokens and see the same times. Which of two that end
    in one iteration is evicted first depends on their numbers, which are others there: exact where they are the same.
    """
    replica = caching(kv_tokens)
    trace, seen = conversations(replica, seed)
    run = checked_requests(replica, trace.isl.astype(np.int64), trace.osl.astype(np.int64), trace.arrival_s)
    run["session"] = trace.session
    serve([replica], run, "random", np.random.default_rng(0))
    for one in (trace, trace.continued()):
        for part in (1 << 18, 37):
            found = replay(replica, one, PLAIN, SLA, part=part)
            assert found.tally.found_tokens.sum() == run["found_tokens"].sum()
            assert found.hit_rate() == pytest.approx(seen["found"] / trace.isl.sum(), rel=0.01)
            ttft_s = run["first_token_s"] - run["arrival_s"] + replica.law.request_s
            assert found.quantiles("ttft").mean_s == pytest.approx(ttft_s.mean(), rel=1e-9)
            assert found.quantiles("ttft").mean_s == pytest.approx(seen["ttft_s"], rel=0.01)
    most = trace.continued().repeated_tokens(16)
    assert seen["found"] == most if kv_tokens == 400_000 else seen["found"] < most
    without = replace(replica, batching=replace(replica.batching, prefix_cache=False))
    assert replay(without, trace, PLAIN, SLA).hit_rate() == 0


def test_an_earlier_turn_that_ends_later_takes_nothing_from_the_cache() -> None:
    """The second has computed 609 tokens, 38 whole blocks, and leaves first; the first, 575."""
    isl, osl = np.array([96, 608, 640], np.int32), np.array([480, 2, 2], np.int32)
    trace = Trace(np.array([0.0, 0.01, 60.0]), isl, osl, session=np.zeros(3, np.int32))
    assert replay(caching(400_000), trace.continued(), PLAIN, SLA).tally.found_tokens.sum() == 38 * 16


@pytest.mark.parametrize("kv_tokens", [4_000, 400_000])
@pytest.mark.parametrize("replicas", [2, 3])
def test_a_session_stays_with_the_replica_of_its_first_turn(kv_tokens: int, replicas: int) -> None:
    """Round robin over first turns: the fleet is as many replicas, each with its sessions, and nothing in common."""
    replica = caching(kv_tokens)
    trace, _ = conversations(replica, 5)
    fleet = replay(replica, trace, PLAIN, SLA, replicas=replicas, routing="round_robin", part=50)
    homes = np.empty(int(trace.session.max()) + 1, np.int64)
    homes[list(dict.fromkeys(trace.session.tolist()))] = np.arange(len(homes)) % replicas
    alone = []
    for home in range(replicas):
        mine = homes[trace.session] == home
        own = Trace(trace.arrival_s[mine], trace.isl[mine], trace.osl[mine], session=trace.session[mine])
        alone.append(replay(replica, own, PLAIN, SLA))
    for name in ("found_tokens", "prompt_tokens", "gone", "good"):
        assert getattr(fleet.tally, name).sum() == sum(getattr(one.tally, name).sum() for one in alone)
    assert fleet.tally.sums_s.sum() == pytest.approx(sum(one.tally.sums_s.sum() for one in alone), rel=1e-9)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_with_memory_for_all_every_routing_finds_what_is_repeated(routing: Routing) -> None:
    replica = caching(400_000)
    trace, _ = conversations(replica, 6)
    found = replay(replica, trace, PLAIN, SLA, replicas=3, routing=routing)
    assert found.tally.found_tokens.sum() == trace.continued().repeated_tokens(16)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    part=st.integers(1, 150),
    replicas=st.integers(1, 3),
    kv_tokens=st.sampled_from([3_000, 20_000]),
    patience=st.sampled_from([(math.inf, math.inf), (0.4, 0.9)]),
)
def test_sessions_in_parts_are_one_run(
    seed: int, part: int, replicas: int, kv_tokens: int, patience: tuple[float, float]
) -> None:
    """Turns that come before the last answer is complete among them, and such that are given up."""
    trace = recorded(seed, rate_per_s=50.0 * replicas, hours=3)
    trace = replace(trace, session=np.random.default_rng(seed).integers(0, 60, len(trace)).astype(np.int32)).continued()
    workload = replace(PLAIN, queue_timeout_s=patience[0], cancel_s=patience[1])
    at_once, in_parts = (
        replay(caching(kv_tokens), trace, workload, SLA, replicas=replicas, seed=seed, part=size)
        for size in (1 << 18, part)
    )
    same(at_once, in_parts)
    assert at_once.tally.gone.sum() == len(trace)
    assert at_once.tally.found_tokens.sum() <= trace.repeated_tokens(16)
