"""Laws and published figures of the clients' definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration.errors import ServerError
from calibration.records import RequestLog
from tests.calibration.bench.logs import log_of
from tests.calibration.timings import logged
from triton_tools.clients.stats import in_flight_mean, nearest_rank, stats

TIMES_S = st.floats(0.001, 100.0)
RUNS = st.lists(st.tuples(st.floats(0.0, 50.0), TIMES_S), min_size=1, max_size=40)

# (requests, seconds in all, sum of latencies ms) and what the brief prints of them: requests/s, mean ms, in flight
PUBLISHED = [
    ((98, 12.17266, 617150.932), (8.05, 6297.46, 50.75)),
    ((98, 9.31621, 501628.173), (10.52, 5118.65, 53.89)),
]


@pytest.mark.parametrize(("run", "printed"), PUBLISHED)
def test_published_runs_come_out_as_printed(run: tuple[int, float, float], printed: tuple[float, float, float]) -> None:
    """Only sums of the published runs are known: latencies that rise to the whole time, with that sum, are put in."""
    n, duration_s, sum_ms = run
    power = duration_s * n / (sum_ms / 1000) - 1
    latency_s = duration_s * (np.arange(1, n + 1) / n) ** power
    latency_s[:-1] *= (sum_ms / 1000 - duration_s) / latency_s[:-1].sum()
    found = stats(log_of(np.zeros(n), latency_s))
    assert found.requests_per_s == pytest.approx(printed[0], abs=0.005)
    assert found.latency_mean_s * 1000 == pytest.approx(printed[1], abs=0.006)
    assert found.in_flight_mean == pytest.approx(printed[2], abs=0.02)
    assert found.latency_sum_s * 1000 == pytest.approx(sum_ms, abs=0.1)


def _counted_by_hand(sent_s: list[float], latency_s: list[float], duration_s: float) -> float:
    """The clients' way, interval by interval."""
    n = len(sent_s)
    count = int(duration_s / ((duration_s / n) / 10))
    width_s = duration_s / count
    intervals = [0] * (count + 1)
    for start_s, took_s in zip(sent_s, latency_s, strict=True):
        place, at_s, stop_s = int((start_s - min(sent_s)) / width_s), 0.0, took_s
        step = 0
        while at_s < stop_s:
            intervals[min(place + step, count)] += 1
            step += 1
            at_s = step * width_s
    return sum(intervals) / count


@given(RUNS)
def test_in_flight_counts_every_interval_begun_and_so_little_and_a_bit(run: list[tuple[float, float]]) -> None:
    sent_s, latency_s = [at_s for at_s, _ in run], [took_s for _, took_s in run]
    duration_s = max(a + b for a, b in run) - min(sent_s)
    found = in_flight_mean(np.array(latency_s), duration_s)
    intervals = int(duration_s / ((duration_s / len(run)) / 10))
    widths = np.array(latency_s) / (duration_s / intervals)
    on_an_edge = int((np.abs(widths - np.rint(widths)) < 1e-6).sum())  # there the last digit decides
    by_hand = _counted_by_hand(sent_s, latency_s, duration_s)
    assert found == pytest.approx(by_hand, abs=1e-9 + on_an_edge / intervals)
    little = sum(latency_s) / duration_s
    assert little * (1 - 1e-9) <= found <= little + len(run) / intervals + 1e-9


@given(st.lists(TIMES_S, min_size=1, max_size=300), st.sampled_from([90, 99]))
def test_nearest_rank_is_the_smallest_value_that_enough_do_not_exceed(values: list[float], percent: int) -> None:
    found = nearest_rank(np.array(values), percent)
    assert found in values
    assert sum(value <= found for value in values) * 100 >= percent * len(values)
    assert sum(value < found for value in values) * 100 < percent * len(values)


@given(RUNS, st.floats(-1000.0, 1000.0))
def test_figures_do_not_depend_on_when_the_clock_started(run: list[tuple[float, float]], shift_s: float) -> None:
    sent_s, latency_s = np.array(run).T
    here, later = stats(log_of(sent_s, latency_s)), stats(log_of(sent_s + shift_s, latency_s))
    assert later.requests_per_s == pytest.approx(here.requests_per_s, rel=1e-6)
    assert later.latency_p99_s == pytest.approx(here.latency_p99_s, abs=2e-6)
    assert later.output_tokens_per_s == pytest.approx(here.requests_per_s * 4, rel=1e-6)


def test_failed_requests_are_left_out() -> None:
    found = stats(log_of([0, 0, 0, 0], [1.0, 9.0, 1.0, 1.0], failed=[1]))
    assert (found.requests, found.duration_s, found.latency_mean_s) == (3, 1.0, 1.0)


def test_answers_of_another_length_count_with_the_tokens_that_came() -> None:
    """The clients check no lengths: 3 answers of 4, 3 and 3 tokens within 2 s."""
    found = stats(log_of([0, 0, 0], [1.0, 2.0, 1.5], short=[1, 2]))
    assert (found.requests, found.duration_s, found.latency_mean_s) == (3, 2.0, 1.5)
    assert found.output_tokens_per_s == 10 / 2.0
    assert stats(log_of([0, 0], [1.0, 1.0], short=[0, 1])).requests == 2


@pytest.mark.parametrize("log", [log_of([0.0], [1.0], failed=[0]), logged(())])
def test_nothing_answered_is_an_error_that_says_why(log: RequestLog) -> None:
    with pytest.raises(ServerError, match=r"out of blocks|no request was sent"):
        stats(log)


def test_tokens_that_the_model_does_not_count_are_those_asked_for() -> None:
    one_response = log_of([0.0], [2.0], osl=1)
    asked_for_50 = RequestLog(
        **{name: getattr(one_response, name) for name in one_response.__slots__ if name != "osl"}, osl=np.array([50])
    )
    assert stats(asked_for_50, tokens_counted=False).output_tokens_per_s == 25.0
    assert stats(asked_for_50).output_tokens_per_s == 0.5


def test_latencies_are_rounded_as_the_clients_do() -> None:
    found = stats(log_of([0.0], [math.pi]))
    assert found.latency_mean_s * 1000 == pytest.approx(3141.593, abs=1e-9)
