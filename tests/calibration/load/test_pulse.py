"""The load generator's pulse: beats that a stall swallows, CPU time by window."""

from __future__ import annotations

import asyncio
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration.load.worker import BEAT_S, Heartbeat, Pulse

STALL_S = 0.3


def stalled(*, wakes_again: bool) -> tuple[Pulse, float, float]:
    """The pulse of a loop that stood still for `STALL_S`, and when; it ends with the stall, or a little later."""

    async def run() -> tuple[Pulse, float, float]:
        heart = Heartbeat()
        beating = asyncio.create_task(heart.beat())
        await asyncio.sleep(2 * BEAT_S)
        began_s = time.perf_counter()
        time.sleep(STALL_S)
        ended_s = time.perf_counter()
        if wakes_again:
            await asyncio.sleep(2 * BEAT_S)
        beating.cancel()
        return heart.pulse(), began_s, ended_s

    return asyncio.run(run())


@pytest.mark.parametrize("wakes_again", [True, False])
def test_every_beat_that_a_stall_swallows_is_as_late_as_it_was(wakes_again: bool) -> None:
    pulse, began_s, ended_s = stalled(wakes_again=wakes_again)
    assert np.diff(pulse.due_s) == pytest.approx(BEAT_S)
    assert (pulse.lag_s >= 0).all()
    swallowed = (began_s <= pulse.due_s) & (pulse.due_s < ended_s)
    assert swallowed.sum() >= STALL_S / BEAT_S - 1
    assert (pulse.lag_s >= ended_s - pulse.due_s)[swallowed].all()


def test_lags_are_those_of_the_window() -> None:
    pulse = Pulse(np.arange(5.0), np.array([9.0, 0.1, 0.2, 0.3, 9.0]), np.zeros(1), np.zeros(1))
    assert pulse.lags_s(1.0, 4.0).tolist() == [0.1, 0.2, 0.3]
    assert pulse.lags_s(1.5, 1.7).size == 0


def test_cores_are_those_of_the_window() -> None:
    """A core in full for a second of making ready, a tenth of one in the window of ten, a core for another second."""
    nothing = np.empty(0)
    pulse = Pulse(nothing, nothing, np.array([0.0, 1.0, 11.0, 12.0]), np.array([5.0, 6.0, 7.0, 8.0]))
    assert pulse.cores(1.0, 11.0) == pytest.approx(0.1)
    assert pulse.cores(0.0, 12.0) == pytest.approx(3 / 12)
    assert pulse.cores(11.0, 13.0) == pytest.approx(1 / 2)  # whose share is over does nothing


@given(st.lists(st.floats(0, 100), min_size=3, max_size=3, unique_by=lambda at_s: round(at_s, 3)), st.integers(0, 99))
def test_cpu_time_of_parts_adds_up(times_s: list[float], seed: int) -> None:
    rng, nothing = np.random.default_rng(seed), np.empty(0)
    pulse = Pulse(nothing, nothing, np.cumsum(rng.exponential(5, 20)), np.cumsum(rng.exponential(1, 20)))
    a, b, c = sorted(times_s)
    parts = pulse.cores(a, b) * (b - a) + pulse.cores(b, c) * (c - b)
    assert parts == pytest.approx(pulse.cores(a, c) * (c - a))


def test_cpu_time_is_that_of_this_process() -> None:
    heart = Heartbeat()
    began_s, cpu_s = time.perf_counter(), time.process_time()
    while time.process_time() - cpu_s < 0.05:
        pass
    pulse = heart.pulse()
    assert pulse.cores(began_s, pulse.read_s[-1]) * (pulse.read_s[-1] - began_s) >= 0.04
