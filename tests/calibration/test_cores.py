"""Who computes where: the engine's cores and those of the rest never overlap."""

from __future__ import annotations

import os
import threading

import pytest

from calibration.load import system


@pytest.fixture
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 3, 5, 7}, raising=False)


@pytest.mark.parametrize("threads,expected", [(1, (7,)), (3, (3, 5, 7)), (4, ()), (9, ())])
def test_the_engine_gets_its_cores_only_if_some_are_left(
    four_cores: None, threads: int, expected: tuple[int, ...]
) -> None:
    assert system.of_engine(threads) == expected


@pytest.mark.parametrize("wanted", [(), (1,), (0, 3, 11)])
def test_cores_read_back_as_written(wanted: tuple[int, ...]) -> None:
    assert system.read(system.written(wanted)) == wanted


@pytest.mark.parametrize("text", ["", "${engine_cores}", "1,x", "-1"])
def test_what_is_no_list_of_cores_is_none(text: str) -> None:
    assert system.read(text) == ()


def test_threads_keep_off_and_come_back() -> None:
    before = system.usable()
    if len(before) < 2:
        pytest.skip("one core only")
    engine = {max(before)}
    seen: list[set[int]] = []
    gate, stop = threading.Event(), threading.Event()

    def other() -> None:
        gate.wait()
        seen.append(os.sched_getaffinity(0))
        stop.wait()

    thread = threading.Thread(target=other)
    thread.start()
    with system.kept_off(engine):
        assert system.usable() == before - engine
        gate.set()
        while not seen:
            stop.wait(0.01)
    stop.set()
    thread.join()
    assert seen == [before - engine]
    assert system.usable() == before


def test_the_only_core_is_not_given_up() -> None:
    before = system.usable()
    with system.kept_off(before):
        assert system.usable() == before
