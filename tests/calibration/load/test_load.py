"""The load drivers without a server: who is in flight when, and which times are told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from calibration.errors import ServerError
from calibration.load.contract import Contract, ModelInput
from calibration.load.exchange import Exchange, Exchanges, Prepared, Reader, log_of
from calibration.load.loops import Lines, LoadTally, ask, client, closed_loop, open_loop
from calibration.load.system import Alarm
from calibration.plan import ServerPlan
from calibration.records import RequestLog
from calibration.requests.source import PromptRequest
from tests.calibration.mock_server import MockServer, Script

OSL = 6
READER = Reader(count=len, exact=True)  # a byte is a token


def endless(osl: int = OSL) -> Iterator[Prepared]:
    while True:
        yield Prepared(b"1", b"two words", 2, osl)


class Desk:
    """Answers after `takes_s`, and counts how many requests wait for it at once."""

    def __init__(self, takes_s: float = 0.004) -> None:
        self.takes_s = takes_s
        self.waiting = 0
        self.seen_waiting: list[int] = []

    async def exchange(self, prepared: Prepared) -> Exchange:
        exchange = Exchange(prepared.isl, prepared.osl, time.perf_counter_ns())
        self.waiting += 1
        self.seen_waiting.append(self.waiting)
        await asyncio.sleep(self.takes_s)
        self.waiting -= 1
        exchange.end_ns = time.perf_counter_ns()
        exchange.at_ns, exchange.raw = [exchange.end_ns], [b"x" * prepared.osl]
        return exchange


def closed(
    desk: Desk, users: int, stop_after_s: float, warm_up: int = 2, ramp_s: float = 0.0
) -> tuple[LoadTally, RequestLog]:
    async def run() -> LoadTally:
        tally = LoadTally(READER, cold=users)
        now_s = time.perf_counter()
        asyncio.get_running_loop().call_later(stop_after_s, tally.stop)
        starts_s = [now_s + ramp_s * number / users for number in range(users)]
        await closed_loop([desk.exchange] * users, endless(), tally, warm_up=warm_up, starts_s=starts_s)
        return tally

    tally = asyncio.run(run())
    return tally, tally.answers.log()


@pytest.mark.parametrize("users", [1, 3, 8])
def test_a_closed_loop_keeps_exactly_n_in_flight(users: int) -> None:
    desk = Desk()
    _, log = closed(desk, users, stop_after_s=0.1)
    assert max(desk.seen_waiting) == users
    steady = desk.seen_waiting[2 * users :]
    assert steady.count(users) == len(steady)
    assert len(log) == len(desk.seen_waiting)
    assert not log.failed.any()


def test_users_are_warm_once_each_has_had_its_answers_and_none_sends_after_the_stop() -> None:
    tally, log = closed(Desk(takes_s=0.2), users=4, stop_after_s=1.5, warm_up=3, ramp_s=0.16)
    assert tally.warm_s is not None and tally.stopped_s is not None
    assert (log.end_s <= tally.warm_s).sum() >= 4 * 3
    assert log.sent_s.max() <= tally.stopped_s
    assert log.end_s.max() >= tally.stopped_s  # what was in flight has been waited for
    # Before any answer: each user a quarter of the ramp after the last, if the first is not late.
    assert np.ptp(np.sort(log.sent_s)[:4]) >= 0.16 * 3 / 4 - 0.05


def test_a_closed_loop_ends_when_the_requests_do() -> None:
    async def run() -> LoadTally:
        tally = LoadTally(READER, cold=2)
        some = iter([Prepared(b"1", b"", 1, 1)] * 7)
        await closed_loop([Desk().exchange] * 2, some, tally, warm_up=1, starts_s=[0.0, 0.0])
        return tally

    tally = asyncio.run(run())
    assert len(tally.answers.log()) == 7
    assert tally.stopped_s is not None


def opened(desk: Desk, offsets_s: list[float], stop_after_s: float | None = None) -> tuple[list[float], RequestLog]:
    async def run() -> tuple[list[float], LoadTally]:
        tally = LoadTally(READER)
        due_s = [time.perf_counter() + offset_s for offset_s in offsets_s]
        if stop_after_s is not None:
            asyncio.get_running_loop().call_later(stop_after_s, tally.stop)
        await open_loop(desk.exchange, endless(), tally, due_s=due_s)
        return due_s, tally

    due_s, tally = asyncio.run(run())
    return due_s, tally.answers.log()


def test_an_open_loop_does_not_wait_for_slow_answers() -> None:
    desk = Desk(takes_s=0.5)
    _, log = opened(desk, [number * 0.002 for number in range(40)])
    assert max(desk.seen_waiting) == 40
    assert len(log) == 40


class FarDesk:
    """Lines that take a while to open and are closed after each answer, or never; counts requests that found none
    open."""

    def __init__(self, closes: bool) -> None:
        self.closes, self.late, self.made = closes, 0, 0

    def stream(self, _: Any) -> FarLine:
        self.made += 1
        return FarLine(self)


class FarLine:
    def __init__(self, desk: FarDesk) -> None:
        self.desk, self.is_open, self.answers = desk, False, Desk()

    async def open(self) -> None:
        await asyncio.sleep(0.02)
        self.is_open = True

    async def exchange(self, prepared: Prepared) -> Exchange:
        self.desk.late += not self.is_open
        self.is_open = not self.desk.closes
        return await self.answers.exchange(prepared)

    def close(self) -> None:
        self.is_open = False


@pytest.mark.parametrize("closes", [True, False])
def test_an_open_loop_has_the_next_lines_open(closes: bool) -> None:
    desk = FarDesk(closes)

    async def run() -> LoadTally:
        tally = LoadTally(READER)
        async with Lines(desk, None) as lines:  # type: ignore[arg-type]
            now_s = time.perf_counter()
            await open_loop(lines.exchange, endless(), tally, due_s=[now_s + 0.05 * n for n in range(20)])
        return tally

    assert len(asyncio.run(run()).answers.log()) == 20
    assert desk.late == 0
    assert desk.made <= 8


def test_intended_times_are_the_planned_ones_and_nothing_is_sent_before() -> None:
    due_s, log = opened(Desk(), [0.01, 0.02, 0.02, 0.05])
    order = np.argsort(log.intended_s)
    assert log.intended_s[order] == pytest.approx(due_s, abs=1e-8)
    assert (log.sent_s >= log.intended_s - 1e-6).all()


def test_a_late_sender_is_seen_in_the_log_and_every_request_is_still_sent() -> None:
    async def run() -> RequestLog:
        tally = LoadTally(READER)
        now_s = time.perf_counter()
        asyncio.get_running_loop().call_later(0.01, time.sleep, 0.1)  # something holds the loop
        await open_loop(Desk().exchange, endless(), tally, due_s=[now_s + 0.02 + 0.01 * n for n in range(5)])
        return tally.answers.log()

    log = asyncio.run(run())
    assert len(log) == 5
    assert (log.sent_s - log.intended_s).max() >= 0.08


def test_a_stop_cuts_the_arrivals_also_while_the_next_is_far() -> None:
    began_s = time.perf_counter()
    _, log = opened(Desk(), [0.001, 0.002, 30.0], stop_after_s=0.05)
    assert len(log) == 2
    assert time.perf_counter() - began_s < 10


def test_an_open_loop_ends_where_an_arrival_finds_no_request() -> None:
    async def run() -> tuple[LoadTally, float]:
        tally, now_s = LoadTally(READER), time.perf_counter()
        some = iter([Prepared(b"1", b"", 1, 1)] * 3)
        await open_loop(Desk().exchange, some, tally, due_s=[now_s + 0.01 * number for number in range(1, 9)])
        return tally, now_s

    tally, began_s = asyncio.run(run())
    assert len(tally.answers.log()) == 3
    assert tally.stopped_s == pytest.approx(began_s + 0.04)


def test_what_was_due_before_the_stop_is_sent_though_the_stop_came_while_it_was_waited_for() -> None:
    """Else an arrival inside the window would be missing in the log, for no fault of the client."""

    async def run() -> tuple[LoadTally, float]:
        tally, now_s = LoadTally(READER), time.perf_counter()
        asyncio.get_running_loop().call_later(0.02, tally.stop, now_s + 0.06)
        await open_loop(Desk().exchange, endless(), tally, due_s=[now_s + 0.05, now_s + 0.07])
        return tally, now_s

    tally, began_s = asyncio.run(run())
    assert tally.answers.log().intended_s.tolist() == pytest.approx([began_s + 0.05])


@pytest.mark.parametrize("kind", ["closed", "open"])
def test_a_lost_server_ends_the_loop_with_its_own_error(kind: str) -> None:
    async def lost(prepared: Prepared) -> Exchange:
        raise ServerError("gone")

    async def run() -> None:
        tally = LoadTally(READER, cold=3)
        if kind == "closed":
            await closed_loop([lost] * 3, endless(), tally, warm_up=1, starts_s=[0.0] * 3)
        else:
            now_s = time.perf_counter()
            await open_loop(lost, endless(), tally, due_s=[now_s, now_s + 0.001, now_s + 30.0])

    with pytest.raises(ServerError, match="gone"):
        asyncio.run(run())


def exchange(*chunks: tuple[int, int], isl: int = 2, osl: int = OSL, error: str = "") -> Exchange:
    """An exchange sent at 0 ns with responses of (time in ns, tokens)."""
    at_ns, raw = [at for at, _ in chunks], [b"x" * tokens for _, tokens in chunks]
    return Exchange(isl, osl, 0, max([0, *at_ns]), at_ns, raw, error)


def test_what_is_told_while_it_runs_are_the_times_of_first_and_last_token() -> None:
    tally = LoadTally(READER)
    tally.add(exchange((1_000_000, 0), (2_000_000, 2), (4_000_000, 2), (10_000_000, 2), (90_000_000, 0)))
    tally.add(exchange((5_000_000, 6)))
    tally.add(exchange(error="broken"))
    (several, single), failed = tally.news()
    assert several == pytest.approx((0.010, 0.002, 0.008 / 4, 0.010))
    assert single[:2] == pytest.approx((0.005, 0.005))
    assert np.isnan(single.itl_s)
    assert failed == 1
    assert tally.news() == ([], 0)


def test_answers_past_the_bound_are_read_early_and_the_log_is_the_same() -> None:
    """With room for nothing, for some and for all: the same requests, whichever were kept raw."""
    many = [exchange(*((1000 * number, number % 3) for number in range(9)), osl=9) for _ in range(20)]
    logs = []
    for kept_bytes in (0, 5_000, 10**9):
        answers = Exchanges(READER, kept_bytes)
        for one in many:
            answers.add(one)
        logs.append(answers.log())
    whole = log_of(many, READER)
    for log in logs:
        assert log.error == whole.error
        assert (log.chunk_at_s == whole.chunk_at_s).all()
        assert (log.chunk_tokens == whole.chunk_tokens).all()
        assert log.tokens.tolist() == [9] * 20


def test_an_alarm_never_rings_early_and_a_past_time_lets_others_run() -> None:
    async def run() -> None:
        async with Alarm() as alarm:
            for wait_s in (0.0001, 0.003, 0.02):
                at_s = time.perf_counter() + wait_s
                await alarm.sleep_until(at_s)
                assert time.perf_counter() >= at_s - 1e-7
            ran: list[int] = []
            asyncio.get_running_loop().call_soon(ran.append, 1)
            await alarm.sleep_until(0.0)
            assert ran == [1]

    asyncio.run(run())


def test_a_probe_asks_one_request_after_another() -> None:
    contract = Contract(
        "ensemble",
        {"text_input": ModelInput("BYTES", False), "max_tokens": ModelInput("INT32", False)},
        ("text_output", "output_ids"),
        batched=True,
    )

    async def run() -> tuple[RequestLog, int]:
        async with MockServer(Script()) as server:
            requests = [PromptRequest("two words", 2, osl) for osl in (1, 4)]
            return await ask(ServerPlan(url=server.url), contract, requests), server.peak

    log, peak = asyncio.run(run())
    assert log.tokens.tolist() == [1, 4]
    assert log.sent_s[1] >= log.end_s[0]
    assert peak == 1


def test_the_plan_chooses_the_protocol() -> None:
    plans = [ServerPlan(), ServerPlan(protocol="http"), ServerPlan(protocol="openai", url="http://h:1", model="m")]
    assert [type(client(plan)).__name__ for plan in plans] == ["GrpcClient", "HttpClient", "OpenAiClient"]
