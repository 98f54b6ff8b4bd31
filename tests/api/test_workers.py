"""Processes that compute: each question once, cheap ones past dear ones, and none lost with a process."""

from __future__ import annotations

import asyncio
import ctypes
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numba
import numpy as np
import psutil
import pytest

from api import forked
from api import workers as module
from api.forked import Lost
from api.workers import Full, Workers
from sizing.engine import Batching, Replica, StepLaw
from sizing.errors import TimeLimitReached
from sizing.simulator import replay

QUICK_S, LIMIT_S = 1.0, 100.0
SOON_S = 0.02


@dataclass(frozen=True)
class Told:
    """Answers at once, or when the file `gate` is there; leaves its process's number in `folder` each time it begins.
    Needs `cost_s` seconds of CPU, it says, once the file `spent` is there."""

    name: str
    folder: Path
    cost_s: float = 0.0
    gate: str = ""
    spent: str = ""

    @property
    def kept_as(self) -> Told:
        return self

    def answer(self, limit_s: float) -> str:
        with (self.folder / f"{self.name}.began").open("a") as began:
            began.write(f"{os.getpid()}\n")
        self.wait_for(self.spent)
        if self.cost_s > limit_s:
            raise TimeLimitReached(f"{self.name} takes {self.cost_s:g} s")
        self.wait_for(self.gate)
        return self.name

    def wait_for(self, file: str) -> None:
        while file and not (self.folder / file).exists():
            time.sleep(SOON_S)

    @property
    def began(self) -> list[int]:
        """The processes in which it began."""
        file = self.folder / f"{self.name}.began"
        return [int(line) for line in file.read_text().splitlines() if line] if file.exists() else []

    async def running(self, times: int = 1) -> int:
        """The process in which it began for the last time, once it has begun so often."""
        while len(self.began) < times:
            await asyncio.sleep(SOON_S)
        return self.began[-1]


def dear(name: str, folder: Path) -> Told:
    """One that begins twice, and does not end in the slow lane."""
    return Told(name, folder, cost_s=10 * QUICK_S, gate="never")


@contextmanager
def pool(processes: int = 2) -> Iterator[Workers]:
    made = Workers(processes, LIMIT_S, QUICK_S)
    try:
        yield made
    finally:
        made.end()


def test_of_several_who_ask_the_same_one_is_computed_for_and_the_answer_is_kept(tmp_path: Path) -> None:
    async def ask() -> None:
        with pool() as workers:
            job = Told("same", tmp_path, gate="open")
            asked = [asyncio.create_task(workers.answer(Told("same", tmp_path, gate="open"))) for _ in range(5)]
            await job.running()
            (tmp_path / "open").touch()
            assert await asyncio.gather(*asked) == ["same"] * 5
            assert await workers.answer(job) == "same"
            assert len(job.began) == 1

    asyncio.run(ask())


def test_the_answers_asked_for_last_are_kept_in_as_much_memory_as_they_may_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("first", "other", "third")
    sizes = [len(forked.packed(Told(name, tmp_path), LIMIT_S).answer) for name in names]
    assert len(set(sizes)) == 1
    for name in names:
        (tmp_path / f"{name}.began").unlink()
    monkeypatch.setattr(module, "KEPT_BYTES", 2 * sizes[0])

    async def ask() -> None:
        with pool(1) as workers:
            for name in ("first", "other", "first", "third"):  # the first is asked for again, so the other is oldest
                assert await workers.answer(Told(name, tmp_path)) == name
            assert [len(Told(name, tmp_path).began) for name in names] == [1, 1, 1]
            for name in ("first", "third", "other"):
                assert await workers.answer(Told(name, tmp_path)) == name
            assert [len(Told(name, tmp_path).began) for name in names] == [1, 2, 1]
            large = hashlib.sha512(b"an answer larger than all that may be kept").hexdigest()
            for times in (1, 2):
                assert await workers.answer(Told(large, tmp_path)) == large
                assert len(Told(large, tmp_path).began) == times
            for _ in range(2):
                assert await workers.answer(Told("first", tmp_path)) == "first"
            assert len(Told("first", tmp_path).began) == 2

    asyncio.run(ask())


class Holey:
    """An answer on the way to which memory is taken and left again, but for its end: from there it is not returned."""

    end = bytearray()

    @property
    def kept_as(self) -> Holey:
        return self

    def answer(self, limit_s: float) -> str:
        taken = [bytearray(4000) for _ in range(20_000)]
        Holey.end = taken[-1]
        return "ok"


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="another C library than glibc")
def test_memory_that_an_answer_took_is_given_back() -> None:
    process = psutil.Process()
    before = process.memory_info().rss
    Holey().answer(LIMIT_S)
    assert process.memory_info().rss > before + 60e6, "the C library keeps it"
    forked.packed(Holey(), LIMIT_S)
    assert process.memory_info().rss < before + 20e6


@dataclass(frozen=True)
class Compiling:
    """Answers with the number of its process, having compiled a function there."""

    number: int

    @property
    def kept_as(self) -> Compiling:
        return self

    def answer(self, limit_s: float) -> int:
        numba.njit(lambda: 0)()
        return os.getpid()


def test_a_process_that_has_compiled_ends_with_its_answer(tmp_path: Path) -> None:
    async def ask() -> None:
        with pool(1) as workers:
            first = await workers.answer(Compiling(1))
            assert await workers.answer(Told("next", tmp_path)) == "next"
            assert Told("next", tmp_path).began != [first]
            assert await workers.answer(Told("last", tmp_path)) == "last"
            assert Told("last", tmp_path).began == Told("next", tmp_path).began

    asyncio.run(ask())


def test_dear_questions_leave_a_process_to_cheap_ones(tmp_path: Path) -> None:
    async def ask() -> None:
        with pool() as workers:
            dears = [Told(f"dear {number}", tmp_path, cost_s=10 * QUICK_S, gate="open") for number in range(3)]
            waiting = [asyncio.create_task(workers.answer(job)) for job in dears]
            while max(len(job.began) for job in dears) < 2:  # one of them has come to the slow lane
                await asyncio.sleep(SOON_S)
            cheap = [workers.answer(Told(f"cheap {number}", tmp_path)) for number in range(6)]
            assert await asyncio.gather(*cheap) == [f"cheap {number}" for number in range(6)]
            assert not any(task.done() for task in waiting)
            (tmp_path / "open").touch()
            assert await asyncio.gather(*waiting) == [job.name for job in dears]

    asyncio.run(ask())


def test_a_question_beyond_the_limit_says_what_took_so_long(tmp_path: Path) -> None:
    async def ask() -> None:
        with pool(1) as workers:
            with pytest.raises(TimeLimitReached, match="endless takes 200 s"):
                await workers.answer(Told("endless", tmp_path, cost_s=2 * LIMIT_S))
            assert await workers.answer(Told("next", tmp_path)) == "next"

    asyncio.run(ask())


def test_a_killed_process_costs_nobody_an_answer(tmp_path: Path) -> None:
    async def ask() -> None:
        with pool() as workers:
            hit, other = (Told(name, tmp_path, gate="open") for name in ("hit", "other"))
            both = [asyncio.create_task(workers.answer(job)) for job in (hit, other)]
            await other.running()
            os.kill(await hit.running(), signal.SIGKILL)
            await hit.running(times=2)
            (tmp_path / "open").touch()
            assert await asyncio.gather(*both) == ["hit", "other"]
            assert len(other.began) == 1

    asyncio.run(ask())


def test_a_process_that_died_idle_is_not_missed(tmp_path: Path) -> None:
    async def ask() -> None:
        with pool(1) as workers:
            await workers.answer(Told("first", tmp_path))
            process = Told("first", tmp_path).began[0]
            os.kill(process, signal.SIGKILL)
            while is_running(process):
                await asyncio.sleep(SOON_S)
            assert await workers.answer(Told("next", tmp_path)) == "next"

    asyncio.run(ask())


def test_the_death_of_what_processes_are_forked_from_costs_nobody_an_answer(tmp_path: Path) -> None:
    async def ask() -> None:
        with pool() as workers:
            hit, other = (Told(name, tmp_path, gate="open") for name in ("hit", "other"))
            both = [asyncio.create_task(workers.answer(job)) for job in (hit, other)]
            await other.running()
            process = psutil.Process(await hit.running())
            origin = process.parent()
            assert origin and origin.parent() == psutil.Process()
            origin.kill()
            await hit.running(times=2)
            assert psutil.Process(await other.running(times=2)).parent() not in (None, origin)
            (tmp_path / "open").touch()
            assert await asyncio.gather(*both) == ["hit", "other"]

    asyncio.run(ask())


LOADS = "SIZING_TEST_LOADS"


def compiles() -> None:
    """Compiles, and leaves its process's number in the file that the environment names."""
    numba.njit(lambda: 0)()
    with Path(os.environ[LOADS]).open("a") as loads:
        loads.write(f"{os.getpid()}\n")


def test_what_is_loaded_is_loaded_again_without_the_compiler_and_then_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LOADS, str(tmp_path / "loads"))

    async def ask() -> None:
        workers = Workers(2, LIMIT_S, load=(compiles,))
        try:
            jobs = [Told(name, tmp_path, gate="open") for name in ("one", "other")]
            both = [asyncio.create_task(workers.answer(job)) for job in jobs]
            origins = {psutil.Process(await job.running()).parent() for job in jobs}
            (tmp_path / "open").touch()
            await asyncio.gather(*both)
            await workers.answer(Told("next", tmp_path))
            assert Told("next", tmp_path).began[0] in {job.began[0] for job in jobs}, "it has not compiled itself"
            assert [f"{origin and origin.pid}" for origin in origins] * 2 == (tmp_path / "loads").read_text().split()
        finally:
            workers.end()

    asyncio.run(ask())


def shared_replay() -> float:
    """A replay large enough for two threads, on however many cores: its requests/s."""
    replay.cores = lambda: 2  # type: ignore[assignment, misc]
    lengths = np.full(replay.WORTH_SHARING // 2, 8)
    runs = [replay.closed_run(row, 4, lengths, lengths, 0.0) for row in range(2)]
    engine = Replica(StepLaw(1e-3, 0.0, 1e-6, 1e-6, 1e-9), Batching())
    assert len(replay.shared_out(runs, 2)) == 2
    return float(replay.Replay(runs, engine).means(engine)[1, 0])


class Replayed:
    """Asks for a shared replay."""

    kept_as = "replayed"

    def answer(self, limit_s: float) -> float:
        return shared_replay()


def test_threads_of_what_processes_are_forked_from_are_not_waited_for() -> None:
    """A fork has the pool of threads and none of the threads: work that is given to it would never be begun."""

    async def ask() -> None:
        workers = Workers(1, LIMIT_S, load=(shared_replay,))
        try:
            assert await asyncio.wait_for(workers.answer(Replayed()), 120) > 0
        finally:
            workers.end()

    asyncio.run(ask())


class Odd:
    """Raises what no server should."""

    def __init__(self, error: str) -> None:
        self.error = error

    @property
    def kept_as(self) -> str:
        return self.error

    def answer(self, limit_s: float) -> None:
        raise {"exit": SystemExit(1), "local": type("Local", (Exception,), {})("mine"), "plain": ValueError("plain")}[
            self.error
        ]


@pytest.mark.parametrize(
    ("error", "raised", "says"),
    [("exit", RuntimeError, "SystemExit"), ("local", RuntimeError, "mine"), ("plain", ValueError, "plain")],
)
def test_what_a_question_raises_is_raised_to_who_asked(error: str, raised: type[Exception], says: str) -> None:
    async def ask() -> None:
        with pool(1) as workers:
            with pytest.raises(raised, match=says) as told:
                await workers.answer(Odd(error))
            assert raised is RuntimeError or "in answer" in "".join(told.value.__notes__), "where it was raised"

    asyncio.run(ask())


@pytest.mark.long
def test_a_question_that_kills_every_process_is_given_up(tmp_path: Path) -> None:
    async def ask() -> None:
        with pool(1) as workers:
            job = Told("deadly", tmp_path, gate="never")
            asked = asyncio.create_task(workers.answer(job))
            for life in range(1, module.LIVES + 1):
                os.kill(await job.running(times=life), signal.SIGKILL)
            with pytest.raises(Lost):
                await asked
            assert await workers.answer(Told("next", tmp_path)) == "next"

    asyncio.run(ask())


def test_a_dear_question_is_given_up_when_the_last_who_asked_has_left(tmp_path: Path) -> None:
    async def ask() -> None:
        with pool(1) as workers:
            job = dear("left", tmp_path)
            asked = [asyncio.create_task(workers.answer(job)) for _ in range(2)]
            process = await job.running(times=2)
            asked[0].cancel()
            await asyncio.sleep(5 * SOON_S)
            assert Path(f"/proc/{process}").exists() and not asked[1].done()
            asked[1].cancel()
            assert await workers.answer(Told("next", tmp_path)) == "next"
            assert Told("next", tmp_path).began != [process]

    asyncio.run(ask())


def test_a_cheap_question_that_everyone_has_left_still_ends_and_keeps_its_process(tmp_path: Path) -> None:
    """A planner who drags a slider leaves questions behind, and may come back to them."""

    async def ask() -> None:
        with pool(1) as workers:
            left, waits = (Told(name, tmp_path, gate="open") for name in ("left", "waits"))
            asked = [asyncio.create_task(workers.answer(job)) for job in (left, waits)]
            process = await left.running()
            for each in asked:
                each.cancel()
            await asyncio.wait(asked)
            (tmp_path / "open").touch()
            assert await workers.answer(Told("next", tmp_path)) == "next"
            assert await workers.answer(left) == "left"
            assert left.began == Told("next", tmp_path).began == [process]
            assert not waits.began, "a question that was left before a process had time for it is not begun"

    asyncio.run(ask())


@pytest.mark.parametrize("asked_again", (False, True))
def test_a_question_that_turns_out_dear_goes_on_only_if_somebody_waits(tmp_path: Path, asked_again: bool) -> None:
    async def ask() -> None:
        with pool(1) as workers:
            job = Told("left", tmp_path, cost_s=10 * QUICK_S, spent="spent")
            asked = asyncio.create_task(workers.answer(job))
            await job.running()
            asked.cancel()
            await asyncio.wait([asked])
            again = asyncio.create_task(workers.answer(job)) if asked_again else None
            await asyncio.sleep(0)
            (tmp_path / "spent").touch()
            assert await workers.answer(Told("next", tmp_path)) == "next"
            assert not again or await again == "left"
            assert len(job.began) == 1 + asked_again

    asyncio.run(ask())


SERVER = """
import asyncio, sys
from pathlib import Path
from api.workers import Workers
from tests.api.test_workers import Told

async def serve(folder):
    workers = Workers(2, 100.0)
    await workers.answer(Told("idle", folder))
    await asyncio.gather(*(workers.answer(Told(name, folder, gate="never")) for name in ("first", "second")))

asyncio.run(serve(Path(sys.argv[1])))
"""


def test_no_process_outlives_a_server_that_was_killed(tmp_path: Path) -> None:
    server = subprocess.Popen([sys.executable, "-c", SERVER, str(tmp_path)])
    try:
        jobs = [Told(name, tmp_path) for name in ("first", "second")]
        asyncio.run(asyncio.wait_for(begun(jobs), 60))
    finally:
        server.kill()
        server.wait()
    left = {process for job in jobs for process in job.began}
    assert len(left) == 2
    until_s = time.monotonic() + 30
    while left and time.monotonic() < until_s:
        time.sleep(SOON_S)
        left = {process for process in left if is_running(process)}
    assert not left


async def begun(jobs: list[Told]) -> None:
    for job in jobs:
        await job.running()


def is_running(process: int) -> bool:
    """False once it has ended, though nobody has asked for its exit status yet."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_beyond_so_many_questions_new_ones_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_WAITING", 3)

    async def ask() -> None:
        with pool(1) as workers:
            waiting = [
                asyncio.create_task(workers.answer(Told(f"{number}", tmp_path, gate="open"))) for number in range(3)
            ]
            await asyncio.sleep(0)
            with pytest.raises(Full):
                await workers.answer(Told("one more", tmp_path))
            (tmp_path / "open").touch()
            await asyncio.gather(*waiting)
            assert await workers.answer(Told("one more", tmp_path)) == "one more"

    asyncio.run(ask())
