"""When to stop: neither before the goal is met nor long after, with intervals that hold the truth."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from calibration.metrics.precision import Done, StopRule, Until, batch_means, batch_rates, batches
from calibration.records import Ended
from sizing.stats import half_width
from tests.calibration.loads import closed_loop


def answers(seed: int, *, users: int = 8, each: int = 250, memory: float = 0.9, shared: float = 0.15) -> list[Done]:
    """A closed loop whose E2E of mean 1 s follows a slow state that all requests share, as they share an engine."""
    rng, state = np.random.default_rng([7, seed]), [0.0]
    mean = math.exp((shared**2 + 0.1**2) / 2)

    def lasting(_at_s: float, _number: int) -> float:
        state[0] = memory * state[0] + shared * math.sqrt(1 - memory**2) * rng.standard_normal()
        return math.exp(state[0] + 0.1 * rng.standard_normal()) / mean

    log = closed_loop(users, each, lasting).log
    done = [
        Done(end_s, 0.2 * (end_s - due_s), 0.8 * (end_s - due_s), end_s - due_s)
        for due_s, end_s in zip(log.intended_s.tolist(), log.end_s.tolist(), strict=True)
    ]
    return sorted(done)


def run(done: list[Done], until: Until, start_s: float = 3.0, every: int = 20) -> tuple[Ended | None, list[Done]]:
    """Why and after which answers a window opened at `start_s` is shut."""
    rule = StopRule(until, start_s)
    for n in range(0, len(done), every):
        rule.add(done[n : n + every])
        ended = rule.ended(done[min(n + every - 1, len(done) - 1)].end_s)
        if ended:
            return ended, [item for item in done[: n + every] if item.end_s >= start_s]
    return None, done


def test_intervals_of_correlated_closed_loops_hold_the_truth() -> None:
    """Nominal 95 %, a fixed number of requests, E2E of one user's neighbours in time correlated at 0.9."""
    held = 0
    for seed in range(100):
        e2e_s = np.array([item.e2e_s for item in answers(seed, each=60)])
        cut = batches(len(e2e_s), 8)
        assert cut is not None
        means = batch_means(e2e_s, cut)
        held += abs(means.mean() - 1) <= half_width(means, 0.95)
    assert held >= 90


def test_where_the_rule_stops_the_mean_is_as_near_as_promised() -> None:
    """A rule that looks again and again tends to stop at a lucky moment: at least 90 % of runs must be near enough."""
    until, near, stopped = Until(of=("e2e_mean",)), 0, 0
    for seed in range(80):
        ended, seen = run(answers(seed), until)
        stopped += ended == "precise"
        near += ended != "precise" or abs(np.mean([item.e2e_s for item in seen]) - 1) <= 0.05
    assert near >= 72
    assert stopped >= 64


def test_it_stops_when_a_constant_server_is_known_and_no_sooner_than_fifty_answers() -> None:
    done = [Done(k + 1.0, 0.2, 0.01, 1.0) for k in range(200)]
    ended, seen = run(done, Until(), start_s=0.0, every=1)
    assert ended == "precise"
    assert 50 <= len(seen) <= 80


@pytest.mark.parametrize(("requests_max", "budget_s", "expected"), [(60, None, "count"), (None, 20.0, "budget")])
def test_requests_and_time_bound_what_is_not_precise(
    requests_max: int | None, budget_s: float | None, expected: Ended
) -> None:
    until = Until(half_width=0.001, requests_max=requests_max, budget_s=budget_s)
    ended, seen = run(answers(0), until)
    assert ended == expected
    if requests_max is not None:
        assert requests_max <= len(seen) < requests_max + 20
    if budget_s is not None:
        assert seen[-1].end_s - 3.0 == pytest.approx(budget_s, rel=0.1)


def test_a_noisier_server_is_measured_longer() -> None:
    calm, noisy = (len(run(answers(1, shared=shared), Until(of=("e2e_mean",)))[1]) for shared in (0.05, 0.15))
    assert calm < noisy


def test_no_stop_while_the_longest_request_has_not_fitted_in_several_times() -> None:
    done = sorted([Done(k / 10 + 0.1, 0.02, 0.01, 0.1) for k in range(1000)] + [Done(50.0, 0.02, 0.01, 40.0)])
    ended, seen = run(done, Until(of=("ttft_mean",)), start_s=0.0)
    assert ended is None or seen[-1].end_s < 50.0  # before the long one ended there was no sign of it


def test_answers_from_before_the_window_do_not_count() -> None:
    rule = StopRule(Until(requests_max=2), start_s=10.0)
    rule.add([Done(9.0, 0.1, 0.01, 1.0)] * 5)
    assert rule.ended(10.0) is None
    rule.add([Done(11.0, 0.1, 0.01, 1.0)] * 2)
    assert rule.ended(11.0) == "count"


def test_a_metric_that_nothing_tells_does_not_hold_up_the_stop() -> None:
    done = [Done(k + 1.0, 0.2, math.nan, 1.0) for k in range(200)]
    assert run(done, Until(), start_s=0.0)[0] == "precise"
    assert run(done, Until(of=("itl_mean",)), start_s=0.0)[0] is None


@given(seed=st.integers(0, 20), budget_s=st.floats(1.0, 100.0), steps=st.integers(1, 12))
def test_the_share_done_is_a_share_and_whole_when_time_is_up(seed: int, budget_s: float, steps: int) -> None:
    rule = StopRule(Until(budget_s=budget_s), start_s=0.0)
    rng = np.random.default_rng(seed)
    for step in range(steps):
        rule.add([Done(step + 1.0, 0.1, 0.01, float(rng.uniform(0.5, 1.0))) for _ in range(9)])
        rule.ended(step + 1.0)
        assert 0 <= rule.share(step + 1.0) <= 1
    assert rule.share(budget_s) == 1


def test_the_share_done_foretells_the_end() -> None:
    """Half the requests that it took in the end: the estimate is within a factor of two of one half in most runs."""
    fair = 0
    for seed in range(10):
        done = answers(seed)
        total = len(run(done, Until(of=("e2e_mean",)))[1])
        rule = StopRule(Until(of=("e2e_mean",)), 3.0)
        inside = [item for item in done if item.end_s >= 3.0][: total // 2]
        for n in range(0, len(inside), 10):
            rule.add(inside[n : n + 10])
            rule.ended(inside[min(n + 9, len(inside) - 1)].end_s)
        fair += 0.25 <= rule.share(inside[-1].end_s) <= 1.0
    assert fair >= 8


def test_rates_by_shares_do_not_jump_in_lockstep() -> None:
    """16 users in step, requests of 1 s: whatever the parts of the window, each holds 16 requests/s."""
    load = closed_loop(16, 12, lambda at_s, number: 1.0, spread_s=1e-6)
    rates = batch_rates(load.log.intended_s, load.log.end_s, (2.1, 9.4), 13)
    assert rates == pytest.approx(np.full(13, 16.0), rel=1e-4)


@given(requests=st.integers(0, 5000), in_flight=st.floats(0.1, 300))
def test_batches_are_whole_waves_and_waste_little(requests: int, in_flight: float) -> None:
    cut = batches(requests, in_flight)
    wave = max(1, round(in_flight))
    if cut is None:
        assert requests < 8 * wave
        return
    assert 8 <= cut.count <= 20
    assert cut.size % wave == 0
    assert 0.6 * requests <= cut.count * cut.size <= requests


@pytest.mark.parametrize(
    "wrong", [{"half_width": 0.0}, {"of": []}, {"of": ["speed"]}, {"requests_min": 9, "requests_max": 3}, {"x": 1}]
)
def test_a_wrong_rule_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Until.model_validate(wrong)


def test_a_list_of_means_as_yaml_gives_it_is_read() -> None:
    assert Until.model_validate({"of": ["ttft_mean", "requests_per_s"]}).of == ("ttft_mean", "requests_per_s")
