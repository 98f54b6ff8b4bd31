"""The load generator judged against known timings: what counts as distortion, and how many processes are tried."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration.errors import ClientLimitedError, ServerError
from calibration.load.self_check import (
    FEWEST_TOKENS,
    LONGEST_E2E_S,
    MOST_ADDED_TTFT_S,
    MOST_ITL_ERROR,
    Distortion,
    Mock,
    Protocol,
    TrueTimes,
    check,
    distortion,
    processes_needed,
    rehearsal,
    started,
)
from calibration.records import ClientHealth, Load
from lab.mock.service import Record, Script, Truth
from tests.calibration.timings import Timing, logged

TTFT_S, ITL_S, OSL = 0.02, 0.005, 8
seconds = st.floats(1e-4, 2.0)


def truth_of(starts_s: Sequence[float], osl: int = OSL) -> Truth:
    """A mock that kept to its script exactly."""
    records = []
    for start_s in starts_s:
        record = Record(start_s)
        record.first_sent_s = start_s + TTFT_S
        record.last_sent_s = record.final_sent_s = record.first_sent_s + (osl - 1) * ITL_S
        record.first_tokens, record.tokens = 1, osl
        records.append(record)
    return Truth.of(records, responses=osl * len(records), cpu_s=0.1)


def seen_by(starts_s: Sequence[float], late_s: float = 0.0, slower: float = 1.0, osl: int = OSL) -> list[Timing]:
    """A client that sees the first token `late_s` late, and the gaps after it `slower` times as long."""
    found = []
    for start_s in starts_s:
        first_s = start_s + TTFT_S + late_s
        tokens = tuple((first_s + number * ITL_S * slower, 1) for number in range(osl))
        found.append(Timing(start_s, start_s, tokens[-1][0], tokens, 128, osl))
    return found


def load_of(timings: Sequence[Timing], start_s: float = 0.0, stop_s: float = 10.0) -> Load:
    log = logged(timings)
    return Load(log, start_s, stop_s, len(log), "budget", ClientHealth(processes=2, cpu_cores=0.5, busiest_core=0.3))


def judged(load: Load, truth: Truth) -> Distortion:
    return distortion(load, TrueTimes(**truth.means(load.start_s, load.stop_s)), users=4, ideal_per_s=11.0)


STARTS_S = np.linspace(0.0, 9.0, 40).tolist()


@settings(deadline=None)
@given(st.floats(0, 0.1), st.floats(0.5, 3.0))
def test_distortion_is_what_the_client_adds(late_s: float, slower: float) -> None:
    found = judged(load_of(seen_by(STARTS_S, late_s, slower)), truth_of(STARTS_S))
    assert found.added_ttft_s == pytest.approx(late_s, abs=1e-9)
    assert found.itl_error == pytest.approx(slower - 1, abs=1e-9)
    assert found.acceptable == (found.added_ttft_s <= MOST_ADDED_TTFT_S and abs(found.itl_error) <= MOST_ITL_ERROR)
    assert (found.processes, found.cpu_cores, found.busiest_core) == (2, 0.5, 0.3)


@pytest.mark.parametrize(
    ("late_s", "slower", "acceptable"),
    [(0.0049, 1.0, True), (0.0051, 1.0, False), (0.0, 1.009, True), (0.0, 1.011, False), (0.0, 0.989, False)],
)
def test_what_is_acceptable(late_s: float, slower: float, acceptable: bool) -> None:
    load = load_of(seen_by(STARTS_S, late_s, slower))
    assert judged(load, truth_of(STARTS_S)).acceptable is acceptable


def test_requests_outside_the_window_and_failed_ones_do_not_count() -> None:
    failed = Timing(5.0, 5.0, 5.1, (), 128, OSL, "hung up")
    before = seen_by([-3.0, -2.0], late_s=1.0)
    after = seen_by([10.5], late_s=1.0)
    load = load_of([*before, *seen_by(STARTS_S, late_s=0.002), failed, *after])
    found = judged(load, truth_of([-3.0, -2.0, *STARTS_S, 10.5]))
    assert found.added_ttft_s == pytest.approx(0.002)
    assert found.itl_error == pytest.approx(0.0, abs=1e-9)


def test_requests_per_s_are_counted_by_tokens() -> None:
    load = load_of(seen_by(STARTS_S), stop_s=STARTS_S[-1] + 1)
    assert judged(load, truth_of(STARTS_S)).requests_per_s == pytest.approx(40 / load.duration_s)
    half_a_request = load_of(seen_by([0.0]), stop_s=TTFT_S + (OSL / 2 - 0.5) * ITL_S)
    found = judged(half_a_request, truth_of([0.0]))
    assert found.requests_per_s == pytest.approx(0.5 / half_a_request.duration_s)


def test_answers_of_one_token_have_no_itl_to_be_wrong() -> None:
    found = judged(load_of(seen_by(STARTS_S, osl=1)), truth_of(STARTS_S, osl=1))
    assert found.itl_error == 0


def test_a_client_that_gets_no_answer_from_its_own_mock_is_refused() -> None:
    failed = Timing(5.0, 5.0, 5.1, (), 128, OSL, "out of file descriptors")
    with pytest.raises(ClientLimitedError, match="out of file descriptors"):
        judged(load_of([failed]), truth_of([]))


@settings(deadline=None)
@given(st.integers(1, 512), st.floats(1.0, 1e6), seconds, seconds, st.integers(1, 4000))
def test_a_rehearsal_puts_the_planned_tokens_on_the_client(
    users: int, tokens_per_s: float, ttft_s: float, itl_s: float, osl: int
) -> None:
    planned = rehearsal(users, tokens_per_s, ttft_s, itl_s, osl)
    at_idle_pace = users * osl / (ttft_s + (osl - 1) * itl_s)
    assert users * planned.osl / planned.e2e_s == pytest.approx(min(tokens_per_s, at_idle_pace))
    assert planned.itl_s >= itl_s
    assert min(osl, FEWEST_TOKENS) <= planned.osl <= osl


@settings(deadline=None)
@given(st.integers(1, 512), seconds, st.floats(1e-4, 0.05), st.integers(100, 4000))
def test_a_rehearsal_is_short(users: int, ttft_s: float, itl_s: float, osl: int) -> None:
    planned = rehearsal(users, math.inf, ttft_s, itl_s, osl)
    token_s = planned.e2e_s / planned.osl
    assert planned.e2e_s <= max(LONGEST_E2E_S + token_s, FEWEST_TOKENS * token_s) * (1 + 1e-9)


FINE = Distortion(64, 1, 0.001, 0.002, 190.0, 191.0, 0.4, 0.4)


class Machine:
    """Stands in for `check`: a machine that keeps up from `enough` processes on; keeps what it was asked."""

    def __init__(self, enough: int) -> None:
        self.enough = enough
        self.tried: list[int] = []

    def __call__(self, *planned: Any, processes: int) -> Distortion:
        assert planned == (64, 4000.0, 0.02, 0.005, 64, "grpc")
        self.tried.append(processes)
        return replace(FINE, processes=processes, itl_error=0.0 if processes >= self.enough else 0.3)


@pytest.mark.parametrize(("enough", "tried"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 4]), (5, [1, 2, 4, 6])])
def test_more_processes_are_tried_until_they_keep_up(enough: int, tried: list[int]) -> None:
    machine = Machine(enough)
    found = processes_needed(64, 4000.0, 0.02, 0.005, 64, "grpc", most=6, measure=machine)
    assert (found.processes, machine.tried) == (tried[-1], tried)


def test_a_machine_that_cannot_keep_up_is_told_so_with_figures() -> None:
    machine = Machine(enough=99)
    with pytest.raises(ClientLimitedError) as refused:
        processes_needed(64, 4000.0, 0.02, 0.005, 64, "grpc", most=2, measure=machine)
    assert machine.tried == [1, 2]
    for said in ("64 streams over grpc", "1 process: TTFT +1.0 ms, ITL +30.0 %", "2 processes: ", "190 of 191"):
        assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_no_more_processes_than_streams() -> None:
    tried: list[int] = []

    def measure(*planned: Any, processes: int) -> Distortion:
        tried.append(processes)
        return replace(FINE, added_ttft_s=1.0)

    with pytest.raises(ClientLimitedError):
        processes_needed(3, math.inf, 0.02, 0.005, 64, "http", most=16, measure=measure)
    assert tried == [1, 2, 3]


@pytest.mark.parametrize(
    "protocol", ["openai", *(pytest.param(other, marks=pytest.mark.long) for other in ("grpc", "http"))]
)
def test_the_real_load_generator_on_the_real_mock(protocol: Protocol) -> None:
    found = check(4, math.inf, 0.02, 0.005, 16, protocol, processes=2)
    assert (found.users, found.processes) == (4, 2)
    assert found.ideal_per_s == pytest.approx(4 / (0.02 + 15 * 0.005))
    # faster than the mock speaks is impossible; how much slower is this machine's affair
    assert 0 < found.requests_per_s <= 1.1 * found.ideal_per_s
    assert found.busiest_core <= found.cpu_cores


def test_where_the_mock_is_not_installed_the_plan_can_do_without(capfd: pytest.CaptureFixture[str]) -> None:
    says = r"did not start.*set client: \{self_check: false\} in the plan"
    with pytest.raises(ServerError, match=says) as refused, started({}, Mock, program="lab.no_such_mock"):
        pass
    assert "\n" not in str(refused.value)
    assert "No module named lab.no_such_mock" in capfd.readouterr().err


def test_a_truth_slower_than_planned_is_the_mock_s_fault_not_the_client_s() -> None:
    """A late mock moves both views alike."""
    late = [
        Timing(t.intended_s, t.sent_s, t.end_s + 1, tuple((at + 1, n) for at, n in t.tokens), 128, OSL)
        for t in seen_by(STARTS_S, late_s=0.002)
    ]
    truth = truth_of(STARTS_S)
    slow = replace(truth, first_sent_s=truth.first_sent_s + 1, last_sent_s=truth.last_sent_s + 1)
    assert judged(load_of(late), slow).added_ttft_s == pytest.approx(0.002)
    assert Script().e2e_s(OSL) == pytest.approx(TTFT_S + (OSL - 1) * ITL_S)
