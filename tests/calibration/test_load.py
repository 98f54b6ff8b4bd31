"""Load drivers without a server, and the gRPC client against a mock with known timings and faults."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from calibration.contract import Contract, Input
from calibration.describe import describe
from calibration.errors import ServerError
from calibration.load import Load, arrival_times, closed_loop, open_loop
from calibration.plan import ServerPlan
from calibration.requests import Request
from calibration.triton import Client, Reply, StreamPool, requests_served
from tests.calibration.mock_server import MockServer, Script, asked, prompt

OSL = 6


def endless(osl: int = OSL) -> Iterator[Request]:
    while True:
        yield Request("two words", 2, osl)


class Desk:
    """Answers after `takes_s`, and counts how many requests wait for it at once."""

    def __init__(self, takes_s: float = 0.004) -> None:
        self.takes_s = takes_s
        self.waiting = 0
        self.seen_waiting: list[int] = []

    async def infer(self, request: Request) -> Reply:
        sent_s = time.perf_counter()
        self.waiting += 1
        self.seen_waiting.append(self.waiting)
        await asyncio.sleep(self.takes_s)
        self.waiting -= 1
        end_s = time.perf_counter()
        return Reply(sent_s, end_s, ((end_s, request.osl),))


@pytest.mark.parametrize("users", [1, 3, 8])
def test_a_closed_loop_keeps_exactly_n_in_flight(users: int) -> None:
    desk = Desk()
    load = asyncio.run(closed_loop([desk.infer] * users, endless(), measured=10 * users, warm_up=2))
    assert max(desk.seen_waiting) == users
    assert desk.seen_waiting[2 * users :].count(users) == len(desk.seen_waiting[2 * users :])
    assert load.issued == 10 * users


def test_the_window_opens_after_every_users_warm_up_and_shuts_when_the_first_user_stops() -> None:
    desk = Desk()
    load = asyncio.run(closed_loop([desk.infer] * 4, endless(), measured=20, warm_up=3, ramp_s=0.02))
    ended_before = [timing for timing in load.timings if timing.end_s <= load.start_s]
    sent_inside = [timing for timing in load.timings if load.start_s <= timing.sent_s < load.stop_s]
    assert len(ended_before) >= 4 * 3
    assert len(sent_inside) == load.issued == 20
    assert max(timing.sent_s for timing in load.timings) <= load.stop_s <= max(timing.end_s for timing in load.timings)


def test_a_budget_cuts_a_closed_loop_short() -> None:
    load = asyncio.run(closed_loop([Desk().infer] * 2, endless(), measured=10**6, warm_up=0, budget_s=0.05))
    assert 0 < load.issued < 10**6
    assert load.stop_s >= load.start_s + 0.05


def test_answers_inside_the_window_are_told_and_never_more_than_wanted() -> None:
    told: list[int] = []
    asyncio.run(closed_loop([Desk().infer] * 4, endless(), measured=12, warm_up=1, on_done=told.append))
    assert told == sorted(told)
    assert told[-1] == 12


def test_an_open_loop_does_not_wait_for_slow_answers() -> None:
    desk = Desk(takes_s=0.3)
    arrivals_s = np.arange(1, 41) * 0.002
    load = asyncio.run(open_loop(desk.infer, endless(), arrivals_s=arrivals_s, warm_up=5))
    assert max(desk.seen_waiting) == 40
    assert len(load.timings) == 40
    assert load.issued == 34
    assert load.stop_s - load.start_s == pytest.approx(34 * 0.002)


def test_intended_and_actual_send_times_are_kept_apart() -> None:
    async def busy(request: Request) -> Reply:
        now_s = time.perf_counter()
        return Reply(now_s + 1.0, now_s + 2.0, ((now_s + 2.0, OSL),))

    load = asyncio.run(open_loop(busy, endless(), arrivals_s=np.array([0.01, 0.02, 0.03]), warm_up=0))
    assert np.diff([timing.intended_s for timing in load.timings]) == pytest.approx([0.01, 0.01])
    assert all(timing.sent_s - timing.intended_s >= 1.0 for timing in load.timings)


def test_a_budget_cuts_arrivals() -> None:
    arrivals_s = np.arange(1, 101) * 0.002
    load = asyncio.run(open_loop(Desk().infer, endless(), arrivals_s=arrivals_s, warm_up=10, budget_s=0.0201))
    assert len(load.timings) == 10 + 12
    assert load.issued == 11


@pytest.mark.parametrize("rate_per_s", [0.5, 20.0])
def test_poisson_gaps_have_mean_and_spread_one_over_the_rate(rate_per_s: float) -> None:
    gaps_s = np.diff(arrival_times(rate_per_s, 20_001, np.random.default_rng(3)))
    four_sigma = 4 / 20_000**0.5
    assert gaps_s.mean() * rate_per_s == pytest.approx(1, abs=four_sigma)
    assert gaps_s.std() * rate_per_s == pytest.approx(1, abs=2 * four_sigma)


@pytest.mark.parametrize("seed", range(5))
def test_a_short_open_loop_has_the_rate_asked_for(seed: int) -> None:
    assert arrival_times(8.0, 100, np.random.default_rng(seed))[-1] == pytest.approx(100 / 8.0)


@pytest.mark.parametrize("start", ["closed", "open"])
def test_a_lost_server_ends_the_loop_with_its_own_error(start: str) -> None:
    async def lost(request: Request) -> Reply:
        raise ServerError("gone")

    if start == "closed":
        loop = closed_loop([lost] * 3, endless(), measured=9, warm_up=1)
    else:
        loop = open_loop(lost, endless(), arrivals_s=np.array([0.001, 0.002, 5.0]), warm_up=0)
    with pytest.raises(ServerError, match="gone"):
        asyncio.run(loop)


async def replies(script: Script, n: int = 1, **plan: float) -> tuple[list[Reply], MockServer]:
    async with MockServer(script) as server:
        target = ServerPlan(url=server.url, **plan)  # type: ignore[arg-type]
        described = await describe(target)
        async with Client(target) as client:
            stream = client.stream(described.contract)
            return [await stream.infer(request) for request, _ in zip(endless(), range(n), strict=False)], server


def shape(reply: Reply) -> list[int]:
    return [count for _, count in reply.tokens]


def test_times_are_those_of_the_server() -> None:
    """TTFT and E2E are at least what the server sleeps, and under what one response more would make them."""
    script = Script(ttft_s=0.05, itl_s=0.02)
    (_, *found), _ = asyncio.run(replies(script, n=4))
    ttft_s = [reply.tokens[0][0] - reply.sent_s for reply in found]
    e2e_s = [reply.tokens[-1][0] - reply.sent_s for reply in found]
    assert 0.05 <= min(ttft_s) < 0.05 + 0.02
    assert 0.05 + (OSL - 1) * 0.02 <= min(e2e_s) < 0.05 + OSL * 0.02
    assert all(shape(reply) == [1] * OSL and not reply.error for reply in found)


@pytest.mark.parametrize(
    ("script", "shape_of_answer"),
    [
        (Script(empty_first=True), [1] * OSL),
        (Script(late_final_s=0.05), [1] * OSL),
        (Script(empty_first=True, late_final_s=0.05), [1] * OSL),
        (Script(tokens_per_response=4), [4, 2]),
        (Script(final_flag=False), [1] * OSL),
        (Script(final_flag=False, late_final_s=0.01), [1] * OSL),
        (Script(final_flag=False, empty_first=True, tokens_per_response=4), [4, 2]),
        (Script(counter="sequence_length", tokens_per_response=4), [4, 2]),
        (Script(counter="output_log_probs", tokens_per_response=4), [4, 2]),
        (Script(counter=""), [1] * OSL),
        (Script(max_batch_size=0), [1] * OSL),
    ],
)
def test_only_responses_with_tokens_count(script: Script, shape_of_answer: list[int]) -> None:
    found, server = asyncio.run(replies(script, n=3))
    for reply in found:
        assert not reply.error
        assert shape(reply) == shape_of_answer
    assert [asked(request) for request in server.requests] == [OSL] * 3
    assert [prompt(request) for request in server.requests] == ["two words"] * 3


def test_neither_an_early_empty_response_nor_a_late_final_one_moves_ttft_or_e2e() -> None:
    (_, found), _ = asyncio.run(replies(Script(ttft_s=0.05, empty_first=True, late_final_s=0.2), n=2))
    assert found.tokens[0][0] - found.sent_s >= 0.05
    assert found.end_s - found.tokens[-1][0] >= 0.2


def test_an_error_response_ends_its_request_only() -> None:
    found, _ = asyncio.run(replies(Script(error_every=2), n=4))
    assert [reply.error for reply in found] == ["", "out of blocks", "", "out of blocks"]


def test_a_stream_hung_up_on_is_an_error_and_the_next_request_goes_on() -> None:
    found, _ = asyncio.run(replies(Script(hang_up_every=2), n=3))
    assert [bool(reply.error) for reply in found] == [False, True, False]
    assert "hung up" in found[1].error


def test_an_answer_of_another_length_is_an_error() -> None:
    ((found,), _) = asyncio.run(replies(Script(short_by=2)))
    assert found.error == f"{OSL - 2} tokens in the answer where {OSL} were asked for"


def test_a_request_without_end_is_given_up() -> None:
    (found, *_), _ = asyncio.run(replies(Script(ttft_s=60), timeout_s=0.1))
    assert found.error == "no complete answer within 0.1 s"


def test_a_server_that_went_away_is_a_server_error() -> None:
    async def lose() -> Reply:
        server = MockServer(Script(ttft_s=60))
        async with server:
            target = ServerPlan(url=server.url)
            described = await describe(target)
            client = Client(target)
            waiting = asyncio.create_task(client.stream(described.contract).infer(next(endless())))
            while not server.requests:
                await asyncio.sleep(0.005)
        async with client:
            return await waiting

    with pytest.raises(ServerError, match="stopped answering"):
        asyncio.run(lose())


def test_closed_and_open_loop_over_grpc_bring_the_load_they_promise() -> None:
    async def both() -> tuple[Load, Load, int]:
        async with MockServer(Script(ttft_s=0.01, itl_s=0.001)) as server:
            target = ServerPlan(url=server.url)
            described = await describe(target)
            async with Client(target) as client:
                users = [client.stream(described.contract).infer for _ in range(4)]
                closed = await closed_loop(users, endless(), measured=20, warm_up=1)
                peak = server.peak
                pool = StreamPool(client, described.contract)
                opened = await open_loop(pool.infer, endless(), arrivals_s=np.arange(1, 21) * 0.002, warm_up=2)
                return closed, opened, peak

    closed, opened, peak = asyncio.run(both())
    assert peak == 4
    assert not [timing.error for timing in (*closed.timings, *opened.timings) if timing.error]
    assert len(opened.timings) == 20


def test_an_unknown_required_input_is_refused() -> None:
    contract = Contract("m", {"text_input": Input("BYTES", False), "image": Input("FP32", False)}, (), batched=True)
    with pytest.raises(ServerError, match="requires the input 'image'"):
        contract.message(next(endless()), "1")


def test_the_engine_itself_is_sent_token_ids() -> None:
    names = ("input_ids", "input_lengths", "request_output_len", "streaming")
    contract = Contract("tensorrt_llm", {name: Input("INT32", False) for name in names}, ("output_ids",), batched=True)
    message = contract.message(Request("a b", 2, 5, (7, 8)), "1")
    values = [np.frombuffer(raw, np.int32).tolist() for raw in message.raw_input_contents]
    assert values == [[7, 8], [2], [5], [1]]
    assert [list(tensor.shape) for tensor in message.inputs] == [[1, 2], [1, 1], [1, 1], [1, 1]]
    with pytest.raises(ServerError, match="takes token ids"):
        contract.message(Request("a b", 2, 5), "1")


def test_requests_served_are_read_from_the_metrics_page(tmp_path: Path) -> None:
    page = tmp_path / "metrics"
    page.write_text(
        "# TYPE nv_inference_request_success counter\n"
        'nv_inference_request_success{model="ensemble",version="1"} 41\n'
        'nv_inference_request_success{model="ensemble",version="2"} 1\n'
        'nv_inference_request_success{model="tensorrt_llm",version="1"} 7\n'
    )
    assert requests_served(page.as_uri(), "ensemble") == 42
    with pytest.raises(ServerError, match="no nv_inference_request_success of model 'nemo'"):
        requests_served(page.as_uri(), "nemo")
    with pytest.raises(ServerError, match="no metrics there"):
        requests_served((tmp_path / "absent").as_uri(), "ensemble")
