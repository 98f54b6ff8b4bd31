"""Points from timings: exact on synthetic loops, and the laws that any measurement obeys."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration.errors import ServerError
from calibration.load import Load, Timing
from calibration.metrics import point
from calibration.plan import Level
from sizing.curves import Deployment, Point
from sizing.workload import Lengths

DEPLOYMENT = Deployment("toy", "fp32", "cpu", 1, 1, "mock", "", "in_flight", 8)
TIMES = ("ttft", "itl", "e2e")


def level(users: float = 1, requests: int = 1, osl: float = 5) -> Level:
    return Level(0, Lengths(4, osl), "concurrency", users, requests)


def timing(
    sent_s: float, ttft_s: float, gaps_s: list[float], error: str = "", counts: list[int] | None = None
) -> Timing:
    at_s = sent_s + ttft_s + np.cumsum([0.0, *gaps_s])
    tokens = tuple(zip(at_s.tolist(), counts or [1] * len(at_s), strict=True))
    return Timing(sent_s, sent_s, tokens[-1][0], tokens, 4, len(tokens), error)


def measured(timings: list[Timing], start_s: float, stop_s: float, users: float = 1, cpu: float = 0.1) -> Point:
    load = Load(tuple(timings), start_s, stop_s, issued=1, client_cpu=cpu)
    return point(load, level(users), DEPLOYMENT, source="test")


def closed_loop(users: int, each: int, rng: np.random.Generator, lockstep: bool = False) -> Load:
    """Back-to-back requests of random times; the window is cut at arbitrary places inside all users' activity."""
    timings, ends_s = [], []
    for _ in range(users):
        now_s = 0.0
        user_rng = np.random.default_rng(0) if lockstep else rng
        for _ in range(each):
            answer = timing(now_s, user_rng.exponential(0.1), user_rng.exponential(0.02, 4).tolist())
            timings.append(answer)
            now_s = answer.last_token_s
        ends_s.append(now_s)
    stop_s = min(ends_s)
    return Load(tuple(timings), stop_s * rng.uniform(0.0, 0.4), stop_s * rng.uniform(0.6, 1.0), len(timings), 0.1)


def test_one_request_by_hand() -> None:
    found = measured([timing(10.0, 0.5, [0.1, 0.2, 0.1, 0.2])], start_s=10.0, stop_s=12.0)
    assert found.ttft_mean_s == pytest.approx(0.5)
    assert found.e2e_mean_s == pytest.approx(1.1)
    assert found.itl_mean_s == pytest.approx(0.6 / 4)
    assert found.itl_p50_s == found.itl_p95_s == pytest.approx(0.6 / 4)
    assert (found.gap_p50_s, found.gap_p95_s) == (pytest.approx(0.15), pytest.approx(0.2))
    assert found.requests_per_s == pytest.approx(1 / 2)
    assert found.mean_in_flight == pytest.approx(1.1 / 2)
    assert found.output_tokens_per_s == pytest.approx(5 / 2)
    assert found.deployment == DEPLOYMENT


def test_a_request_at_the_edge_counts_by_its_share_inside() -> None:
    """Two requests of 2 s, the second only half inside: 1.5 requests in 3 s."""
    found = measured([timing(0.0, 1.0, [1.0]), timing(2.0, 1.0, [1.0])], start_s=0.0, stop_s=3.0)
    assert found.requests_per_s == pytest.approx(0.5)
    assert found.requests == 1
    assert found.output_tokens_per_s == pytest.approx(2 / 3)


@given(users=st.integers(1, 12), each=st.integers(2, 12), seed=st.integers(0, 10**6), lockstep=st.booleans())
def test_littles_law_holds_in_any_window_of_any_closed_loop(users: int, each: int, seed: int, lockstep: bool) -> None:
    load = closed_loop(users, each, np.random.default_rng(seed), lockstep)
    found = point(load, level(users), DEPLOYMENT, source="test")
    assert found.mean_in_flight == pytest.approx(users)
    assert found.little == pytest.approx(1)


def test_rate_and_latency_come_near_the_truth_of_the_process() -> None:
    """A closed loop of renewal processes: requests/s tends to users / mean time, mean E2E to the mean time."""
    load = closed_loop(8, 400, np.random.default_rng(5))
    found = point(load, level(8), DEPLOYMENT, source="test")
    truth_s = 0.1 + 4 * 0.02
    tolerance = 5 / math.sqrt(8 * 400 * 0.2)  # the window is at least a fifth of the loop; E2E has a cv under 1
    assert found.requests_per_s == pytest.approx(8 / truth_s, rel=tolerance)
    assert found.e2e_mean_s == pytest.approx(truth_s, rel=tolerance)
    assert found.ttft_p95_s == pytest.approx(0.1 * math.log(20), rel=2 * tolerance)


@given(seed=st.integers(0, 10**6), factor=st.sampled_from([0.25, 0.5, 2.0, 8.0]))
def test_a_slower_clock_scales_times_and_rates(seed: int, factor: float) -> None:
    load = closed_loop(3, 6, np.random.default_rng(seed))
    slow = Load(
        tuple(
            Timing(
                item.intended_s * factor,
                item.sent_s * factor,
                item.end_s * factor,
                tuple((at_s * factor, count) for at_s, count in item.tokens),
                item.isl,
                item.osl,
            )
            for item in load.timings
        ),
        load.start_s * factor,
        load.stop_s * factor,
        load.issued,
        load.client_cpu,
    )
    before, after = (point(each, level(3), DEPLOYMENT, source="test") for each in (load, slow))
    assert after.requests_per_s == pytest.approx(before.requests_per_s / factor)
    assert after.output_tokens_per_s == pytest.approx(before.output_tokens_per_s / factor)  # type: ignore[operator]
    assert after.mean_in_flight == pytest.approx(before.mean_in_flight)
    for name in [f"{metric}_{what}_s" for metric in TIMES for what in ("mean", "p50", "p90", "p95")]:
        assert getattr(after, name) == pytest.approx(getattr(before, name) * factor)


@given(seed=st.integers(0, 10**6))
def test_percentiles_rise_and_ttft_is_part_of_e2e(seed: int) -> None:
    found = point(closed_loop(4, 40, np.random.default_rng(seed)), level(4), DEPLOYMENT, source="test")
    for metric in TIMES:
        values = [getattr(found, f"{metric}_p{q}_s") for q in (50, 90, 95)]
        assert values == sorted(values)
    assert found.e2e_mean_s == pytest.approx(found.ttft_mean_s + 4 * found.itl_mean_s)  # type: ignore[operator]


def test_p99_needs_a_hundred_samples() -> None:
    def back_to_back(n: int) -> Point:
        return measured([timing(float(i), 0.5, [0.5]) for i in range(n)], start_s=0.0, stop_s=n + 0.5)

    few, enough = back_to_back(99), back_to_back(100)
    assert (few.requests, enough.requests) == (99, 100)
    assert few.ttft_p99_s is few.itl_p99_s is few.e2e_p99_s is few.gap_p99_s is None
    assert enough.ttft_p99_s == enough.itl_p99_s == enough.gap_p99_s == 0.5
    assert few.ttft_p95_s is not None


def test_a_lone_token_has_no_itl() -> None:
    found = measured([timing(0.0, 0.5, [])], start_s=0.0, stop_s=0.5)
    assert found.itl_mean_s is found.gap_p50_s is None
    assert found.e2e_mean_s == found.ttft_mean_s == 0.5


def test_chunks_of_several_tokens_are_noted_and_give_no_gaps() -> None:
    found = measured([timing(0.0, 0.5, [0.4], counts=[4, 4])], start_s=0.0, stop_s=1.0)
    assert found.gap_p50_s is None
    assert found.itl_mean_s == pytest.approx(0.4 / 7)
    assert "4.0 tokens a response" in found.notes


def test_errors_are_counted_and_kept_out_of_latencies() -> None:
    good, bad = timing(0.0, 0.5, [0.5]), timing(1.0, 0.1, [0.1], error="out of blocks")
    found = measured([good, bad], start_s=0.0, stop_s=2.0)
    assert (found.requests, found.errors) == (1, 1)
    assert found.e2e_mean_s == pytest.approx(1.0)
    assert "out of blocks" in found.notes


def test_latencies_start_at_the_intended_time() -> None:
    late = replace(timing(1.0, 0.5, [0.5]), intended_s=0.2)
    found = measured([late], start_s=0.0, stop_s=3.0)
    assert found.ttft_mean_s == pytest.approx(1.3)
    assert "client-bound" in found.notes


def test_a_busy_client_is_noted() -> None:
    assert "client-bound" in measured([timing(0.0, 1.0, [1.0])], 0.0, 2.0, cpu=0.95).notes
    assert "client-bound" not in measured([timing(0.0, 1.0, [1.0])], 0.0, 2.0, cpu=0.5).notes


def test_a_level_without_an_answer_is_refused_with_its_first_error() -> None:
    with pytest.raises(ServerError, match=r"concurrency 1: every request failed.*out of blocks"):
        measured([timing(0.0, 0.5, [], error="out of blocks")], start_s=0.0, stop_s=1.0)
