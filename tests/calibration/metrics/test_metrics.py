"""Points from request logs: exact on synthetic loops, and the laws that any measurement obeys."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration.errors import NothingAnswered, ServerError
from calibration.metrics.measurement import bounds, measurement, samples_needed
from calibration.records import ClientHealth, Ended, Load, Measurement
from sizing.points import Point
from sizing.workload import Lengths
from tests.calibration.loads import DEPLOYMENT, level, queue
from tests.calibration.loads import closed_loop as lasting_loop
from tests.calibration.timings import Timing, logged

TIMES = ("ttft", "itl", "e2e")


def timing(
    sent_s: float, ttft_s: float, gaps_s: list[float], error: str = "", counts: list[int] | None = None
) -> Timing:
    at_s = sent_s + ttft_s + np.cumsum([0.0, *gaps_s])
    tokens = tuple(zip(at_s.tolist(), counts or [1] * len(at_s), strict=True))
    return Timing(sent_s, sent_s, tokens[-1][0], tokens, 4, len(tokens), error)


def load_of(timings: list[Timing], start_s: float, stop_s: float, client: ClientHealth | None = None) -> Load:
    return Load(logged(timings), start_s, stop_s, 1, "count", client or ClientHealth())


def measured(timings: list[Timing], start_s: float, stop_s: float, users: float = 1) -> Measurement:
    return measurement(load_of(timings, start_s, stop_s), level(users), DEPLOYMENT, source="test")


def point(timings: list[Timing], start_s: float, stop_s: float) -> Point:
    return measured(timings, start_s, stop_s).point


def closed_loop(users: int, each: int, rng: np.random.Generator, lockstep: bool = False) -> Load:
    """Back-to-back requests of random times; the window is cut at arbitrary places inside all users' activity."""
    timings, ends_s = [], []
    for _ in range(users):
        now_s = 0.0
        user_rng = np.random.default_rng(0) if lockstep else rng
        for _ in range(each):
            answer = timing(now_s, user_rng.exponential(0.1), user_rng.exponential(0.02, 4).tolist())
            timings.append(answer)
            now_s = answer.end_s
        ends_s.append(now_s)
    stop_s = min(ends_s)
    return load_of(timings, stop_s * rng.uniform(0.0, 0.4), stop_s * rng.uniform(0.6, 1.0))


def batched(users: int, warm_s: float, window_s: float, rng: np.random.Generator) -> Load:
    """Users back to back at an engine whose steps take longer the more requests run; after the window it empties."""
    now_s, done, running = 0.0, [], []
    while True:
        while len(running) < users and now_s < warm_s + window_s:
            running.append((now_s, int(rng.integers(10, 91)), []))
        if not running:
            return load_of(done, warm_s, warm_s + window_s)
        now_s += 0.005 * (1 + len(running) / 4)
        for _, _, at_s in running:
            at_s.append(now_s)
        over = [each for each in running if len(each[2]) == each[1]]
        running = [each for each in running if len(each[2]) < each[1]]
        done += [timing(sent_s, at_s[0] - sent_s, np.diff(at_s).tolist()) for sent_s, _, at_s in over]


def test_one_request_by_hand() -> None:
    found = point([timing(10.0, 0.5, [0.1, 0.2, 0.1, 0.2])], start_s=10.0, stop_s=12.0)
    assert found.ttft_mean_s == pytest.approx(0.5)
    assert found.e2e_mean_s == pytest.approx(1.1)
    assert found.itl_mean_s == pytest.approx(0.6 / 4)
    assert found.itl_p50_s == pytest.approx(0.6 / 4)
    assert found.gap_p50_s == pytest.approx(0.15)
    assert found.requests_per_s == pytest.approx(1 / 2)
    assert found.mean_in_flight == pytest.approx(1.1 / 2)
    assert found.output_tokens_per_s == pytest.approx(5 / 2)
    assert found.deployment == DEPLOYMENT


def test_a_request_at_the_edge_counts_by_its_share_inside() -> None:
    """Two requests of 2 s, the second only half inside: 1.5 requests in 3 s."""
    found = point([timing(0.0, 1.0, [1.0]), timing(2.0, 1.0, [1.0])], start_s=0.0, stop_s=3.0)
    assert found.requests_per_s == pytest.approx(0.5)
    assert found.requests == 1
    assert found.output_tokens_per_s == pytest.approx(2 / 3)


@given(users=st.integers(1, 12), each=st.integers(2, 12), seed=st.integers(0, 10**6), lockstep=st.booleans())
def test_littles_law_holds_in_any_window_of_any_closed_loop(users: int, each: int, seed: int, lockstep: bool) -> None:
    load = closed_loop(users, each, np.random.default_rng(seed), lockstep)
    found = measurement(load, level(users), DEPLOYMENT, source="test")
    assert found.point.mean_in_flight == pytest.approx(users)
    assert found.point.little == pytest.approx(1)
    assert found.facts["little_without_edges"] == pytest.approx(1)


def test_rate_and_latency_come_near_the_truth_of_the_process() -> None:
    """A closed loop of renewal processes: requests/s tends to users / mean time, mean E2E to the mean time."""
    load = closed_loop(8, 400, np.random.default_rng(5))
    found = measurement(load, level(8), DEPLOYMENT, source="test").point
    truth_s = 0.1 + 4 * 0.02
    tolerance = 5 / math.sqrt(8 * 400 * 0.2)  # the window is at least a fifth of the loop; E2E has a cv under 1
    assert found.requests_per_s == pytest.approx(8 / truth_s, rel=tolerance)
    assert found.e2e_mean_s == pytest.approx(truth_s, rel=tolerance)
    assert found.ttft_p95_s == pytest.approx(0.1 * math.log(20), rel=2 * tolerance)


@pytest.mark.parametrize("window_s", [1.5, 3.0, 10.0])
def test_what_finishes_on_an_emptying_server_does_not_make_it_look_faster(window_s: float) -> None:
    users, step_s, osl = 32, 0.005 * (1 + 32 / 4), 50.0
    loads = [batched(users, 10.0, window_s, np.random.default_rng(seed)) for seed in range(8)]
    points = [measurement(load, level(users), DEPLOYMENT, source="test").point for load in loads]
    assert np.mean([found.itl_mean_s for found in points]) == pytest.approx(step_s, rel=0.01)
    assert np.mean([found.e2e_mean_s for found in points]) == pytest.approx(step_s * osl, rel=0.05)
    assert np.mean([found.requests_per_s for found in points]) == pytest.approx(users / (step_s * osl), rel=0.05)


def slower(load: Load, factor: float) -> Load:
    log = load.log
    times = {field.name: getattr(log, field.name) * factor for field in fields(log) if field.name.endswith("_s")}
    return replace(load, log=replace(log, **times), start_s=load.start_s * factor, stop_s=load.stop_s * factor)


@settings(max_examples=15)
@given(seed=st.integers(0, 10**6), factor=st.sampled_from([0.25, 0.5, 2.0, 8.0]))
def test_a_slower_clock_scales_times_and_rates(seed: int, factor: float) -> None:
    load = closed_loop(3, 60, np.random.default_rng(seed))
    before, after = (measurement(each, level(3), DEPLOYMENT, source="test") for each in (load, slower(load, factor)))
    assert after.point.requests_per_s == pytest.approx(before.point.requests_per_s / factor)
    assert after.point.mean_in_flight == pytest.approx(before.point.mean_in_flight)
    assert after.facts["e2e_mean_half_width"] == pytest.approx(before.facts["e2e_mean_half_width"])
    for name in [f"{metric}_{what}_s" for metric in TIMES for what in ("mean", "p50")]:
        assert getattr(after.point, name) == pytest.approx(getattr(before.point, name) * factor)


@settings(max_examples=15)
@given(seed=st.integers(0, 10**6))
def test_percentiles_rise_within_their_bounds_and_ttft_is_part_of_e2e(seed: int) -> None:
    found = measurement(closed_loop(4, 200, np.random.default_rng(seed)), level(4), DEPLOYMENT, source="test")
    for metric in TIMES:
        values = [getattr(found.point, f"{metric}_p{q}_s") for q in (50, 90, 95)]
        assert values == sorted(values)
        for q, value in zip((50, 90, 95), values, strict=True):
            assert found.facts[f"{metric}_p{q}_low_s"] <= value <= found.facts[f"{metric}_p{q}_high_s"]
    rest_s = found.point.e2e_mean_s - found.point.ttft_mean_s  # type: ignore[operator]
    assert rest_s == pytest.approx(4 * found.point.itl_mean_s)  # type: ignore[operator]


@pytest.mark.parametrize(("name", "needed"), [("p90", 64), ("p95", 130), ("p99", 662)])
def test_a_percentile_needs_enough_samples(name: str, needed: int) -> None:
    """MLPerf's early stopping at one query over the bound: 64 samples for p90, 662 for p99."""

    def back_to_back(n: int) -> Point:
        return point([timing(float(i), 0.5, [0.5]) for i in range(n)], start_s=0.0, stop_s=n + 0.5)

    few, enough = back_to_back(needed - 1), back_to_back(needed)
    assert (few.requests, enough.requests) == (needed - 1, needed)
    for metric in TIMES:
        assert getattr(few, f"{metric}_{name}_s") is None
        assert getattr(enough, f"{metric}_{name}_s") == 0.5 * (2 if metric == "e2e" else 1)


@pytest.mark.parametrize("q", [90, 95, 99])
def test_with_enough_samples_the_second_largest_is_an_upper_bound_of_the_percentile(q: int) -> None:
    """By simulation on uniform samples: it fails in 1 % of cases; four standard errors of 4,000 are 0.6 %."""
    largest = np.partition(np.random.default_rng(q).random((4000, samples_needed(q))), -2, axis=1)[:, -2]
    assert np.mean(largest < q / 100) == pytest.approx(0.01, abs=0.006)


@pytest.mark.parametrize(("q", "n"), [(50, 40), (90, 100), (95, 200), (99, 700)])
def test_percentile_bounds_hold_the_truth_in_95_percent_of_cases(q: int, n: int) -> None:
    shares = bounds(q, n)
    assert shares is not None
    ordered = np.sort(np.random.default_rng(q).random((3000, n)), axis=1)
    low, high = (ordered[:, round(share * n) - 1] for share in shares)
    assert np.mean((low <= q / 100) & (q / 100 <= high)) >= 0.94


def test_a_lone_token_has_no_itl() -> None:
    found = point([timing(0.0, 0.5, [])], start_s=0.0, stop_s=0.5)
    assert found.itl_mean_s is found.gap_p50_s is None
    assert found.e2e_mean_s == found.ttft_mean_s == 0.5


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_itl_does_not_depend_on_how_tokens_are_packed(size: int) -> None:
    """64 tokens, one made each 5 ms, sent in chunks of `size` when the last of a chunk is made."""
    chunks = 64 // size
    stream = timing(0.0, 0.02 + 0.005 * size, [0.005 * size] * (chunks - 1), counts=[size] * chunks)
    found = measured([stream], start_s=0.0, stop_s=1.0)
    assert found.point.itl_mean_s == pytest.approx(0.005)
    assert found.point.ttft_mean_s == pytest.approx(0.02 + 0.005 * size)
    assert found.point.e2e_mean_s == pytest.approx(0.02 + 0.005 * 64)
    assert found.facts["chunk_gap_p50_s"] == pytest.approx(0.005 * size)
    assert (found.point.gap_p50_s is None) == (size > 1)
    assert ("tokens per response" in found.point.notes) == (size > 1)


def test_an_answer_in_one_chunk_has_no_itl() -> None:
    found = point([timing(0.0, 0.5, [], counts=[8]), timing(1.0, 0.5, [0.3], counts=[1, 3])], 0.0, 2.0)
    assert found.itl_mean_s == pytest.approx(0.1)


def test_gaps_do_not_reach_over_to_the_next_request() -> None:
    found = point([timing(0.0, 0.5, [0.1, 0.1]), timing(5.0, 0.5, [0.1, 0.1])], start_s=0.0, stop_s=6.0)
    assert found.gap_p50_s == pytest.approx(0.1)


def test_errors_are_counted_and_kept_out_of_latencies() -> None:
    good, bad = timing(0.0, 0.5, [0.5]), timing(1.0, 0.1, [0.1], error="out of blocks")
    found = measured([good, bad], start_s=0.0, stop_s=2.0)
    assert (found.point.requests, found.point.errors, found.facts["failed"]) == (1, 1, 1)
    assert "errors: 1 request failed, 50.0%" in found.point.notes
    assert found.point.e2e_mean_s == pytest.approx(1.0)
    assert "out of blocks" in found.point.notes


def test_a_void_point_keeps_its_numbers() -> None:
    short = timing(0.0, 0.5, [0.5], error="2 tokens in the answer where 8 were asked for")
    found = measured([short, timing(1.0, 0.5, [0.5])], start_s=0.0, stop_s=2.5)
    assert found.point.verdict == "wrong_lengths"
    assert found.point.void
    assert (found.point.errors, found.facts["wrong_lengths"], found.facts["failed"]) == (1, 1, 0)
    assert found.point.e2e_mean_s == pytest.approx(1.0)
    assert found.point.requests == 2


def test_latencies_of_an_open_loop_start_when_a_request_was_due() -> None:
    late = replace(timing(1.0, 0.5, [0.5]), intended_s=0.2)
    load = replace(load_of([late], 0.0, 3.0), offered_per_s=0.4)
    found = measurement(load, level(0.4, "poisson_rate"), DEPLOYMENT, source="test")
    assert (found.point.ttft_mean_s, found.point.e2e_mean_s) == (pytest.approx(1.3), pytest.approx(1.8))
    assert found.facts["ttft_sent_mean_s"] == pytest.approx(0.5)
    assert found.facts["e2e_sent_p50_s"] == pytest.approx(1.0)
    assert found.facts["late_max_s"] == pytest.approx(0.8)
    assert found.facts["offered_per_s"] == 0.4
    assert found.point.itl_mean_s == pytest.approx(0.5)
    assert found.point.verdict == "client_limited"


def test_offered_and_achieved_rates_of_an_overload_stand_side_by_side() -> None:
    load = queue(np.random.default_rng(0), 400, 2.0, 8, settle=50)
    found = measurement(load, level(16, "poisson_rate"), DEPLOYMENT, source="test")
    assert found.point.verdict == "overloaded"
    assert found.facts["offered_per_s"] == 16
    assert found.facts["achieved_per_s"] == pytest.approx(8, rel=0.15)  # eight servers of 1 s, 200 completions


def lockstep_loop(spread_s: float) -> Measurement:
    load = lasting_loop(16, 20, lambda at_s, number: 1.0, spread_s=spread_s)
    return measurement(load, level(16), DEPLOYMENT, source="test")


def test_lockstep_is_told_and_spread_starts_are_not() -> None:
    together, spread = lockstep_loop(0.01), lockstep_loop(1.0)
    assert "lockstep" in together.point.notes
    assert "lockstep" not in spread.point.notes
    assert together.facts["clumping"] == pytest.approx((16**2 / 10 - 1.6**2 - 1.6) / 1.6**2, rel=0.1)
    assert spread.facts["clumping"] < 0


def test_batches_of_half_the_places_are_lockstep_too() -> None:
    """Two groups of eight, half an E2E apart: 8 completions in each fifth tenth of an E2E, 1.6 on average."""
    timings = [timing(0.5 * (user % 2) + k, 0.2, [0.8]) for user in range(16) for k in range(20)]
    found = measured(timings, 1.0, 19.0, users=16)
    assert found.facts["clumping"] == pytest.approx((8**2 / 5 - 1.6**2 - 1.6) / 1.6**2, rel=0.1)
    assert "lockstep" in found.point.notes


def test_other_lengths_than_the_level_has_are_told() -> None:
    load = lasting_loop(8, 20, lambda at_s, number: 1.0)
    planned = replace(level(8), lengths=Lengths(float(load.log.isl.mean()), 2 * float(load.log.osl.mean())))
    notes = measurement(load, planned, DEPLOYMENT, source="test").point.notes
    assert (
        f"mean OSL of {load.log.osl.mean():.4g} instead of {planned.lengths.osl:.4g}" in notes
        and "mean ISL" not in notes
    )
    # A window of sessions begins with their first turns, which are shorter than the mean of all.
    turns = replace(load, log=replace(load.log, turn=np.ones(len(load.log), np.int64)))
    assert "mean OSL" not in measurement(turns, planned, DEPLOYMENT, source="test").point.notes


@pytest.mark.parametrize(("ended", "told"), [("budget", True), ("precise", False), ("count", False)])
def test_a_budget_that_ended_the_level_is_told(ended: Ended, told: bool) -> None:
    load = replace(lasting_loop(8, 20, lambda at_s, number: 1.0 + 0.01 * (number % 5)), ended=ended)
    notes = measurement(load, level(8), DEPLOYMENT, source="test").point.notes
    assert ("ended by the time budget" in notes) == told
    assert ("mean E2E known to" in notes) == told


def test_lag_of_the_client_is_told_where_gaps_hold_it() -> None:
    load = replace(
        lasting_loop(8, 20, lambda at_s, number: 0.05, spread_s=0.05), client=ClientHealth(loop_lag_p99_s=0.003)
    )
    found = measurement(load, level(8), DEPLOYMENT, source="test")
    assert found.point.verdict == "steady"  # 3 ms of lag are let pass for the means
    assert "gaps between tokens include up to 3 ms" in found.point.notes


def test_a_level_that_was_given_up_says_so() -> None:
    timings = [timing(float(k), 0.2, [0.3], error="out of blocks" if k % 3 else "") for k in range(9)]
    load = replace(load_of(timings, 0.0, 9.0), ended="failing")
    found = measurement(load, level(1), DEPLOYMENT, source="test")
    assert found.point.verdict == "errors"
    assert "ended after 9 s because more requests failed than were answered" in found.point.notes


def test_a_level_without_an_answer_is_refused_with_its_first_error() -> None:
    """As an error of its own kind, so that a sweep can go on with its next level."""
    assert issubclass(NothingAnswered, ServerError)
    with pytest.raises(NothingAnswered, match=r"concurrency 1: every request failed.*out of blocks"):
        measured([timing(0.0, 0.5, [], error="out of blocks")], start_s=0.0, stop_s=1.0)


def test_facts_are_finite_numbers_and_the_log_goes_along() -> None:
    load = closed_loop(4, 200, np.random.default_rng(2))
    server: dict[str, Any] = {"queue_mean_s": 0.01}
    found = measurement(load, level(4), DEPLOYMENT, source="test", notes=["seen by eye"], server=server)
    assert all(math.isfinite(value) for value in found.facts.values())
    assert found.facts["window_stop_s"] - found.facts["window_start_s"] == found.point.duration_s
    assert found.log is load.log
    assert found.server == server
    assert found.point.notes.startswith("seen by eye")
