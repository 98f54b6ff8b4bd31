"""Verdicts: each rule on a load that breaks it and one that just does not; false alarms and power by simulation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from calibration.metrics.measurement import measurement
from calibration.metrics.verdict import RULES, fell_behind, judge, little
from calibration.metrics.window import sample
from calibration.plan import Level
from calibration.records import ClientHealth, Load
from sizing.points import Verdict
from tests.calibration.loads import DEPLOYMENT, Lasting, closed_loop, level, queue


def verdict(load: Load, at: Level) -> Verdict:
    return judge(load, at, sample(load))[0]


def reasons(load: Load, at: Level) -> str:
    return "; ".join(judge(load, at, sample(load))[1])


def noisy(rng: np.random.Generator, noise: float = 0.1, memory: float = 0.9, shared: float = 0.05) -> Lasting:
    """Requests of about 1 s; a slow state shared by all, first order autoregressive, and noise of each."""
    state = [0.0]

    def lasting(_at_s: float, _number: int) -> float:
        state[0] = memory * state[0] + shared * np.sqrt(1 - memory**2) * rng.standard_normal()
        return float(np.exp(state[0] + noise * rng.standard_normal()))

    return lasting


def steady(users: int = 8, each: int = 20) -> Load:
    return closed_loop(users, each, noisy(np.random.default_rng(1)))


def steady_queue(late_s: float = 0.0, n: int = 400) -> Load:
    """An open loop at half its capacity, mean TTFT from sending about 0.1 s and a little; all sent `late_s` late."""
    load = queue(np.random.default_rng(3), n, 0.5, servers=8)
    log = load.log
    return replace(load, log=replace(log, sent_s=log.sent_s + late_s))


def simulated(one: Callable[[np.random.Generator], Load], at: Level, runs: int) -> Counter[Verdict]:
    return Counter(verdict(one(np.random.default_rng([runs, seed])), at) for seed in range(runs))


def test_steady_loads_are_steady_and_no_reason_is_given() -> None:
    assert judge(steady(), level(8), sample(steady())) == ("steady", ())
    assert verdict(steady_queue(), level(4, "poisson_rate")) == "steady"


def test_stationary_queues_are_seldom_called_void() -> None:
    """Waiting times of M/M/c are skewed and, near capacity, correlated over hundreds of requests: 2 in 100 at most."""
    found: Counter[Verdict] = Counter()
    for servers, load, n in ((1, 0.5, 400), (1, 0.8, 600), (8, 0.7, 500), (8, 0.9, 800)):
        found += simulated(
            partial(queue, n=n, load=load, servers=servers), level(load * servers, "poisson_rate"), runs=30
        )
    assert set(found) <= {"steady", "", "unsteady", "overloaded"}
    assert found["unsteady"] + found["overloaded"] <= 2
    assert found["steady"] >= 100


@pytest.mark.parametrize("memory", [0.0, 0.9, 0.98])
def test_stationary_closed_loops_are_seldom_called_void(memory: float) -> None:
    def one(rng: np.random.Generator) -> Load:
        return closed_loop(8, 16, noisy(rng, memory=memory))

    found = simulated(one, level(8), runs=60)
    assert found["steady"] + found[""] >= 59


@pytest.mark.parametrize(("each", "times_as_slow", "least_found"), [(40, 1.3, 0.4), (40, 1.5, 0.85), (16, 2.0, 0.75)])
def test_a_server_that_slows_down_is_unsteady(each: int, times_as_slow: float, least_found: float) -> None:
    def one(rng: np.random.Generator) -> Load:
        base = noisy(rng)
        return closed_loop(8, each, lambda at_s, k: base(at_s, k) * (1 + (times_as_slow - 1) * at_s / each))

    assert simulated(one, level(8), runs=40)["unsteady"] >= 40 * least_found


def test_a_server_that_was_still_warming_up_is_unsteady() -> None:
    def one(rng: np.random.Generator) -> Load:
        base = noisy(rng)
        return closed_loop(8, 40, lambda at_s, k: base(at_s, k) * (2.0 if at_s < 12 else 1.0))

    found = simulated(one, level(8), runs=40)
    assert found["unsteady"] >= 32


@pytest.mark.parametrize(("load", "n", "least_found"), [(1.1, 3000, 0.8), (1.3, 500, 0.9), (2.0, 300, 1.0)])
def test_more_than_the_server_can_do_is_overloaded(load: float, n: int, least_found: float) -> None:
    """Eight exponential servers: a queue that grows by 10 % of what comes needs thousands of requests to be told from
    one that wanders.
    """
    found = simulated(lambda rng: queue(rng, n, load, 8, settle=50), level(load * 8, "poisson_rate"), runs=40)
    assert found["overloaded"] >= 40 * least_found
    assert found["steady"] == 0


def test_a_backlog_that_may_be_chance_is_not_called_steady() -> None:
    found = simulated(lambda rng: queue(rng, 500, 1.1, 8, settle=50), level(8.8, "poisson_rate"), runs=40)
    assert found["steady"] <= 8
    assert found[""] > 0


def test_a_reason_tells_the_numbers() -> None:
    load = queue(np.random.default_rng(0), 300, 2.0, 8, settle=50)
    came, stays = load.issued / load.duration_s, reasons(load, level(16, "poisson_rate"))
    assert stays.startswith("overloaded: ")
    assert f" of {came:.4g} requests/s finished" in stays


@pytest.mark.parametrize(("late_s", "expected"), [(0.0, "steady"), (0.003, "steady"), (0.02, "client_limited")])
def test_late_sending_is_the_clients_fault(late_s: float, expected: Verdict) -> None:
    """TTFT from sending is 0.1 s and over: 5 % of it are 5 ms and over."""
    load = steady_queue()
    log = load.log
    late = replace(log, sent_s=log.sent_s + late_s, chunk_at_s=log.chunk_at_s + late_s, end_s=log.end_s + late_s)
    assert verdict(replace(load, log=late), level(4, "poisson_rate")) == expected


def test_sends_that_fall_ever_further_behind_are_client_limited_even_if_ttft_is_long() -> None:
    load = steady_queue()
    log = load.log
    late_s = np.maximum(0.0, log.intended_s - load.start_s) * 0.05
    behind = replace(log, sent_s=log.sent_s + late_s, chunk_at_s=log.chunk_at_s + 500.0, end_s=log.end_s + 500.0)
    told = reasons(replace(load, log=behind, stop_s=load.stop_s), level(4, "poisson_rate"))
    assert "client_limited" in told
    assert "requests/s due were sent" in told


def test_requests_that_were_due_and_never_sent_are_the_clients_fault() -> None:
    """The level ended while the client was behind by the last tenth of the window: the log holds what was sent."""
    load = steady_queue()
    reached_s = load.stop_s - 0.1 * load.duration_s
    cut = replace(load, log=load.log.where(load.log.intended_s < reached_s))
    assert verdict(cut, level(4, "poisson_rate")) == "client_limited"
    assert "requests/s due were sent" in reasons(cut, level(4, "poisson_rate"))
    assert fell_behind(cut, sample(cut))


@pytest.mark.parametrize(
    ("client", "expected"),
    [
        (ClientHealth(busiest_core=0.89, loop_lag_p99_s=0.0049), "steady"),
        (ClientHealth(busiest_core=0.91), "client_limited"),
        (ClientHealth(loop_lag_p99_s=0.015), "client_limited"),  # TTFT is about 0.2 s: 10 ms are allowed
    ],
)
def test_a_busy_or_lagging_client_is_named(client: ClientHealth, expected: Verdict) -> None:
    assert verdict(replace(steady(), client=client), level(8)) == expected


def test_lag_is_weighed_against_what_it_distorts() -> None:
    """A lag of 15 ms is nothing to a TTFT of 2 s and 8 s of decoding."""
    slow = closed_loop(8, 20, lambda at_s, k: 10.0 * (1 + 0.01 * (k % 7)), spread_s=10.0)
    assert verdict(replace(slow, client=ClientHealth(loop_lag_p99_s=0.015)), level(8)) == "steady"


def failing(load: Load, every: int, error: str) -> Load:
    errors = tuple(error if number % every == 0 else "" for number in range(len(load.log)))
    return replace(load, log=replace(load.log, error=errors))


def test_failed_requests_void_a_point_above_one_percent() -> None:
    load = steady(each=40)
    assert verdict(failing(load, 50, "out of blocks"), level(8)) == "errors"
    assert "out of blocks" in reasons(failing(load, 50, "out of blocks"), level(8))
    assert verdict(failing(load, 150, "out of blocks"), level(8)) == "steady"


def test_requests_that_hang_until_after_the_window_failed_in_it() -> None:
    """They are given up long after the load has ended, and it is the load they failed under."""
    load = failing(steady(each=40), 20, "no answer within 120 s")
    end_s = np.where(load.log.failed, load.stop_s + 120, load.log.end_s)
    hanging = replace(load, log=replace(load.log, end_s=end_s))
    assert (verdict(load, level(8)), verdict(hanging, level(8))) == ("errors", "errors")
    points = [measurement(each, level(8), DEPLOYMENT, source="test").point for each in (load, hanging)]
    assert points[0].errors == points[1].errors == load.log.failed[load.log.intended_s >= load.start_s].sum() > 0


@pytest.mark.parametrize(
    ("each", "others", "expected"),
    [
        (40, 0, "steady"),
        (40, 3, "steady"),
        (40, 4, "shared"),
        (40, 320, "shared"),
        (20, 1, "steady"),
        (20, 2, "shared"),
    ],
)
def test_requests_of_others_void_a_point_above_one_percent(each: int, others: int, expected: Verdict) -> None:
    """320 or 160 requests of ours; a single stray one never voids."""
    load = steady(each=each)
    shared = replace(load, served=len(load.log) + others)
    assert verdict(shared, level(8)) == expected
    told = f"other clients sent {others} of the {8 * each + others} requests that the server answered"
    assert (told in reasons(shared, level(8))) == (expected == "shared")
    kept = measurement(shared, level(8), DEPLOYMENT, source="test")
    assert kept.point.void == (expected == "shared")
    requests = "request" if others == 1 else "requests"
    assert (f"answered {others} {requests} of other clients" in kept.point.notes) == (
        expected == "steady" and others > 0
    )


def test_a_server_that_counts_fewer_than_were_sent_or_none_at_all_has_no_other_clients() -> None:
    """Requests that failed are not among those that the server calls answered."""
    for served in (None, 0, 300):
        assert verdict(replace(steady(each=40), served=served), level(8)) == "steady"


def test_one_wrong_length_voids_a_point() -> None:
    load = steady(each=40)
    wrong = failing(load, 150, "1 tokens in the answer where 2 were asked for")
    assert verdict(wrong, level(8)) == "wrong_lengths"
    assert "errors" not in reasons(wrong, level(8))


def test_idle_users_break_littles_law() -> None:
    assert verdict(closed_loop(8, 20, lambda at_s, k: 1.0, idle_s=0.1), level(8)) == "little"
    assert verdict(closed_loop(8, 20, lambda at_s, k: 1.0, idle_s=0.03), level(8)) == "steady"


def test_a_user_waits_until_the_end_of_the_answer_also_where_that_is_after_the_last_token() -> None:
    """Users who send again 0.1 s after the last token are idle for a tenth of their time, or waited for an end."""
    idle = closed_loop(8, 20, lambda at_s, k: 1.0, idle_s=0.1)
    waiting = replace(idle, log=replace(idle.log, end_s=idle.log.end_s + 0.1))
    assert (verdict(idle, level(8)), verdict(waiting, level(8))) == ("little", "steady")
    for cut_s in np.linspace(0.0, 1.1, 12):
        assert little(replace(waiting, stop_s=waiting.stop_s - cut_s), 8)[1] == pytest.approx(1)
        assert little(replace(waiting, start_s=waiting.start_s + cut_s), 8)[1] == pytest.approx(1)


def test_lockstep_is_no_breach_of_littles_law_however_the_edges_cut_it() -> None:
    """Ten waves: a window that shuts just before a wave ends misses a tenth of its completions."""
    load = closed_loop(16, 14, lambda at_s, k: 1.0, spread_s=1e-6)
    for cut_s in np.linspace(0.05, 0.95, 10):
        part = replace(load, start_s=load.start_s + 0.02, stop_s=load.stop_s - 1 + float(cut_s))
        plain, whole = little(part, 16)
        assert whole == pytest.approx(1, abs=1e-4)
        assert abs(plain - 1) < 1.1 / part.duration_s
        assert verdict(part, level(16)) == "steady"


def test_a_window_too_short_is_not_judged() -> None:
    load = steady(each=8)
    assert verdict(load, level(8)) == ""
    assert "steadiness needs 8" in reasons(load, level(8))


def test_a_load_that_varies_by_plan_is_not_judged_for_trends() -> None:
    load = queue(np.random.default_rng(0), 300, 2.0, 8, settle=50)
    assert verdict(load, level(16, "trace")) == ""
    assert verdict(replace(load, client=ClientHealth(busiest_core=1.0)), level(16, "schedule")) == "client_limited"


def test_causes_stand_before_what_they_bring_about() -> None:
    load = queue(np.random.default_rng(0), 300, 2.0, 8, settle=50)
    both = replace(failing(load, 20, "timed out"), client=ClientHealth(busiest_core=1.0))
    found, why = judge(both, level(16, "poisson_rate"), sample(both))
    names = [reason.split(":")[0] for reason in why]
    assert (found, names[:3]) == ("client_limited", ["client_limited", "overloaded", "errors"])
    order = [name for name, _ in RULES]
    assert [order.index(name) for name in names] == sorted(order.index(name) for name in names)
