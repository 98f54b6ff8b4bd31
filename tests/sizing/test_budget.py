"""What a question may cost: the limit, what it says, and that a question within it is answered as without."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sizing import budget, edge, planner
from sizing.engine import Replica
from sizing.errors import ScenarioError, TimeLimitReached
from sizing.simulator import fleet, simulate
from sizing.workload import Lengths, Workload
from tests.sizing.engines import LAW, candidate, question
from tests.sizing.test_cli import PLAN, run


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The CPU clock of the thread, in seconds, turned by hand."""
    now_s = [100.0]
    monkeypatch.setattr(budget, "thread_time", lambda: now_s[0])
    yield now_s


def test_the_limit_says_what_took_the_time(clock: list[float]) -> None:
    with pytest.raises(TimeLimitReached) as reached, budget.within(10.0):
        for _ in range(3):
            budget.checkpoint("simulation of 800,000 requests")
            clock[0] += 2.0
            budget.checkpoint()
            clock[0] += 1.0
        budget.checkpoint("prediction by formula")
        clock[0] += 1.5
        budget.checkpoint()
    said = str(reached.value)
    assert "no answer within 10 s" in said
    assert "9 s for 3 × simulation of 800,000 requests, 1.5 s for 1 × prediction by formula" in said


def test_what_is_paid_once_is_not_billed(clock: list[float]) -> None:
    with budget.within(10.0):
        clock[0] += 60.0
        budget.unbilled(60.0)
        clock[0] += 9.0
        budget.checkpoint()
        clock[0] += 2.0
        with pytest.raises(TimeLimitReached):
            budget.checkpoint()


def test_no_limit_and_no_terms_end_nothing(clock: list[float]) -> None:
    with budget.within(0.0):
        clock[0] += 1e6
        budget.checkpoint()
    clock[0] += 1e6
    budget.checkpoint()
    with pytest.raises(ScenarioError, match="time limit"), budget.within(-1.0):
        pass


def test_a_question_ends_where_it_is_when_nobody_waits() -> None:
    """The second look ends it: neither the plan nor what has begun goes on, and the next to ask is answered."""

    class LeftError(BaseException):
        pass

    looks = 0

    def left() -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            raise LeftError

    asked = question(rate=41.25)
    with pytest.raises(LeftError), budget.within(look_up=left):
        planner.plan(asked, [candidate()])
    assert looks == 2
    with budget.within(look_up=lambda: None):
        again = planner.plan(asked, [candidate()])
    assert again.answer.verified


@pytest.mark.parametrize(("replicas", "routing"), [(1, "random"), (4, "least_outstanding"), (4, "power_of_two")])
def test_looking_up_more_often_changes_nothing(replicas: int, routing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    load = Workload(Lengths(1000, 200, 0.3, 0.5), 4.0 * replicas)

    def e2e_s() -> list[float]:
        run = simulate(Replica(LAW), load, replicas=replicas, routing=routing, requests=3000)  # type: ignore[arg-type]
        return list(run.e2e_s)

    whole = e2e_s()
    monkeypatch.setattr(fleet, "PART", 7)
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1

    with budget.within(look_up=look):
        assert e2e_s() == whole
    assert looks >= 3000 // 7


def test_the_command_line_gives_up_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    edge.load_response.cache_clear()
    code, out, err = run([*PLAN, "--time-limit", "1e-9", "--json"], capsys)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "no answer within" in err and "--time-limit" in err
    code, out, _ = run([*PLAN, "--time-limit", "0", "--json"], capsys)
    assert code == 0
