"""The built-in mock against real clients: grpc, tritonclient and http.client; its truth, its faults, its HTTP/2."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, TypeVar

import grpc
import grpc.aio
import numpy as np
import pytest
import tritonclient.grpc.aio as triton
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2, service_pb2_grpc

from calibration.errors import PlanError, ServerError
from calibration.mock import RunningMock, Script, Truth, running
from calibration.mock.messages import FINAL, asked, grpc_response
from calibration.mock.process import ROOT
from calibration.mock.server import Serving, serve
from calibration.mock.wheel import TICKS_PER_S, Wheel

FAST = Script(ttft_s=0.004, itl_s=0.001)
HALF_A_TICK_S = 0.5 / TICKS_PER_S
Seen = tuple[int, bool | None]
"""Of a response: its tokens, and whether it says that it is the final one (None: it does not say)."""
T = TypeVar("T")


@pytest.fixture(scope="module")
def mock() -> Iterator[RunningMock]:
    with running(FAST) as found:
        yield found


def in_process(script: Script, ask: Callable[[Serving], Awaitable[T]]) -> tuple[T, Truth]:
    """What `ask` returns of a mock in its own event loop, and the truth."""
    found: list[tuple[T, Truth]] = []

    async def until(serving: Serving) -> None:
        found.append((await ask(serving), serving.service.truth()))

    asyncio.run(serve(script, until))
    return found[0]


def message(osl: int, request_id: str = "r", prompt: bytes = b"hello") -> Any:
    request = service_pb2.ModelInferRequest(model_name="ensemble", id=request_id)
    for name, kind, raw in (
        ("text_input", "BYTES", struct.pack("<I", len(prompt)) + prompt),
        ("max_tokens", "INT32", np.int32(osl).tobytes()),
    ):
        request.inputs.add(name=name, datatype=kind, shape=[1, 1])
        request.raw_input_contents.append(raw)
    return request


def seen(response: Any) -> Seen:
    answer = response.infer_response
    tokens = [output.shape[-1] for output in answer.outputs if output.name == "output_ids"]
    final = answer.parameters[FINAL].bool_param if FINAL in answer.parameters else None
    return (tokens[0] if tokens else 0), final


@contextlib.asynccontextmanager
async def stub(url: str) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(url) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


async def answers(url: str, *requests: Any) -> list[Any]:
    """Every response to `requests`, sent at once over one stream that is then closed."""
    async with stub(url) as service:
        return [response async for response in service.ModelStreamInfer(iter(requests))]


def answered(script: Script, osl: int = 4) -> tuple[list[Seen], Truth]:
    responses, truth = in_process(script, lambda serving: answers(serving.grpc_url, message(osl)))
    return [seen(response) for response in responses], truth


# the service, over gRPC


def test_what_triton_says_of_itself(mock: RunningMock) -> None:
    with grpc.insecure_channel(mock.grpc_url) as channel:
        service = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        assert service.ServerLive(service_pb2.ServerLiveRequest()).live
        assert service.ServerReady(service_pb2.ServerReadyRequest()).ready
        assert service.ModelReady(service_pb2.ModelReadyRequest(name=mock.model)).ready
        assert not service.ModelReady(service_pb2.ModelReadyRequest(name="other")).ready
        config = service.ModelConfig(service_pb2.ModelConfigRequest(name=mock.model)).config
        assert {"text_input", "max_tokens"} <= {tensor.name for tensor in config.input if not tensor.optional}
        assert "output_ids" in {tensor.name for tensor in config.output}
        with pytest.raises(grpc.RpcError) as absent:
            service.ModelConfig(service_pb2.ModelConfigRequest(name="other"))
        assert absent.value.code() is grpc.StatusCode.NOT_FOUND
        with pytest.raises(grpc.RpcError) as unknown:
            service.ModelStatistics(service_pb2.ModelStatisticsRequest())
        assert unknown.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_tritonclient_streams(mock: RunningMock) -> None:
    async def ask() -> list[Any]:
        prompt = triton.InferInput("text_input", [1, 1], "BYTES")
        prompt.set_data_from_numpy(np.array([[b"hello"]], np.object_))
        tokens = triton.InferInput("max_tokens", [1, 1], "INT32")
        tokens.set_data_from_numpy(np.array([[3]], np.int32))

        async def requests() -> AsyncIterator[dict[str, Any]]:
            yield {"model_name": mock.model, "inputs": [prompt, tokens], "request_id": "first"}

        async with triton.InferenceServerClient(mock.grpc_url) as client:
            return [found async for found in client.stream_infer(requests())]

    found = asyncio.run(ask())
    assert [error for _, error in found] == [None] * 3
    assert [result.as_numpy("output_ids").shape for result, _ in found] == [(1, 1, 1)] * 3
    assert {result.get_response().id for result, _ in found} == {"first"}


def test_many_streams_share_a_connection_and_each_carries_many_requests(mock: RunningMock) -> None:
    async def one(service: Any, name: str) -> list[str]:
        call = service.ModelStreamInfer()
        ids = []
        for number in range(3):
            await call.write(message(5, f"{name}-{number}"))
            got = [await call.read() for _ in range(5)]
            assert [seen(response) for response in got] == [(1, False)] * 4 + [(1, True)]
            ids += [response.infer_response.id for response in got]
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        return ids

    async def ask() -> list[list[str]]:
        async with stub(mock.grpc_url) as service:
            return await asyncio.gather(*(one(service, f"s{number}") for number in range(40)))

    for number, ids in enumerate(asyncio.run(ask())):
        assert ids == [f"s{number}-{request}" for request in range(3) for _ in range(5)]


def test_requests_at_once_on_one_stream_are_told_apart_by_id() -> None:
    requests = [message(6, name) for name in "abc"]
    found, _ = in_process(FAST, lambda serving: answers(serving.grpc_url, *requests))
    for name in "abc":
        assert [seen(one)[0] for one in found if one.infer_response.id == name] == [1] * 6


def test_large_metadata_and_large_prompts_pass(mock: RunningMock) -> None:
    async def ask() -> list[Any]:
        async with stub(mock.grpc_url) as service:
            metadata = [(f"x-note-{number}", "n" * 6000) for number in range(10)]  # more than three frames of headers
            call = service.ModelStreamInfer(metadata=metadata)
            found = []
            for _ in range(3):
                await call.write(message(2, prompt=b"p" * 3_000_000))  # several windows
                found += [await call.read(), await call.read()]
            return found

    assert [seen(response) for response in asyncio.run(ask())] == [(1, False), (1, True)] * 3


def test_a_reader_that_dawdles_gets_everything() -> None:
    async def ask(serving: Serving) -> list[Any]:
        async with stub(serving.grpc_url) as service:
            call = service.ModelStreamInfer(iter([message(60 * 30_000)]))
            await asyncio.sleep(0.2)  # 60 responses of 270 kB each: far more than any window
            return [response async for response in call]

    found, truth = in_process(Script(0.001, 0.0, tokens_per_response=30_000), ask)
    assert [seen(response) for response in found] == [(30_000, False)] * 59 + [(30_000, True)]
    assert truth.tokens.tolist() == [60 * 30_000]


# what the script asks for


def test_plain_answer_and_its_truth() -> None:
    before_s = time.perf_counter()
    found, truth = answered(Script(ttft_s=0.02, itl_s=0.005), osl=10)
    after_s = time.perf_counter()
    assert found == [(1, False)] * 9 + [(1, True)]
    assert truth.responses == 10
    assert truth.tokens.tolist() == [10]
    moments = [truth.received_s[0], truth.first_sent_s[0], truth.last_sent_s[0]]
    assert before_s < moments[0] < moments[1] < moments[2] < after_s
    assert truth.final_sent_s[0] == moments[2]
    assert truth.ttft_s[0] >= 0.02 - HALF_A_TICK_S
    assert moments[2] - moments[0] >= Script(0.02, 0.005).e2e_s(10) - HALF_A_TICK_S


def test_a_client_sees_no_response_before_the_truth_says_it_left(mock: RunningMock) -> None:
    async def ask() -> tuple[float, list[float]]:
        async with stub(mock.grpc_url) as service:
            call = service.ModelStreamInfer()
            await call.write(message(1, "warm"))
            await call.read()
            sent_s = time.perf_counter()
            await call.write(message(4))
            times_s = []
            for _ in range(4):
                await call.read()
                times_s.append(time.perf_counter())
            return sent_s, times_s

    sent_s, times_s = asyncio.run(ask())
    truth = mock.truth().between(sent_s, times_s[-1])
    assert len(truth) == 1  # the same clock in both processes
    assert sent_s < truth.received_s[0]
    assert truth.first_sent_s[0] < times_s[0]
    assert truth.last_sent_s[0] < times_s[-1]


def test_several_tokens_in_a_response() -> None:
    found, truth = answered(Script(0.002, 0.003, tokens_per_response=4), osl=10)
    assert found == [(4, False), (4, False), (2, True)]
    assert truth.first_tokens.tolist() == [4]
    assert truth.last_sent_s[0] - truth.received_s[0] >= 0.002 + 8 * 0.003 - HALF_A_TICK_S


def test_empty_first_response_is_no_token() -> None:
    found, truth = answered(Script(0.01, 0.001, empty_first=True))
    assert found == [(0, False), (1, False), (1, False), (1, False), (1, True)]
    assert truth.ttft_s[0] >= 0.01 - HALF_A_TICK_S


def test_late_final_response_is_after_the_last_token() -> None:
    found, truth = answered(Script(0.002, 0.001, late_final_s=0.03))
    assert found == [(1, False)] * 4 + [(0, True)]
    assert truth.final_sent_s[0] - truth.last_sent_s[0] >= 0.03 - 2 * HALF_A_TICK_S


def test_no_final_flag() -> None:
    found, _ = answered(Script(0.002, 0.001, final_flag=False))
    assert found == [(1, None)] * 4


def test_tokens_withheld() -> None:
    found, truth = answered(Script(0.002, 0.001, short_by=3), osl=8)
    assert [tokens for tokens, _ in found] == [1] * 5
    assert truth.tokens.tolist() == [5]


def test_an_error_in_place_of_every_second_answer() -> None:
    async def ask(serving: Serving) -> list[Any]:
        return [await answers(serving.grpc_url, message(3)) for _ in range(4)]

    found, truth = in_process(Script(0.002, 0.001, error_every=2), ask)
    assert [len(one) for one in found] == [3, 1, 3, 1]
    assert found[1][0].error_message
    assert truth.tokens.tolist() == [3, 0, 3, 0]


def test_hanging_up_ends_the_stream_in_the_middle() -> None:
    async def ask(serving: Serving) -> tuple[int, grpc.StatusCode]:
        got = 0
        async with stub(serving.grpc_url) as service:
            try:
                async for _ in service.ModelStreamInfer(iter([message(5)])):
                    got += 1
            except grpc.aio.AioRpcError as error:
                return got, error.code()
        raise AssertionError("the stream ended as if nothing were wrong")

    (got, code), truth = in_process(Script(0.002, 0.001, hang_up_every=1), ask)
    assert (got, code) == (1, grpc.StatusCode.INTERNAL)
    assert truth.tokens.tolist() == [1]
    assert np.isnan(truth.last_sent_s).all()


def test_slots_make_requests_wait_for_each_other() -> None:
    requests = [message(5, name) for name in "abcd"]
    _, truth = in_process(Script(0.003, 0.001, slots=2), lambda serving: answers(serving.grpc_url, *requests))
    assert (truth.first_sent_s[2:] >= truth.last_sent_s[:2].min() + 0.003 - 2 * HALF_A_TICK_S).all()
    assert (truth.received_s < truth.last_sent_s[:2].min()).all()
    assert truth.ttft_s[2:].min() > truth.ttft_s[:2].max()


def test_a_cancelled_request_frees_its_slot() -> None:
    async def ask(serving: Serving) -> list[Any]:
        async with stub(serving.grpc_url) as service:
            hog = service.ModelStreamInfer(iter([message(1_000_000)]))
            await hog.read()
            hog.cancel()
            return [response async for response in service.ModelStreamInfer(iter([message(2)]))]

    found, truth = in_process(Script(0.002, 0.001, slots=1), ask)
    assert [seen(response)[0] for response in found] == [1, 1]
    assert truth.tokens[0] < 1_000_000


@pytest.mark.parametrize(
    "wrong", [{"ttft_s": -1.0}, {"itl_s": float("nan")}, {"slots": 0}, {"tokens_per_response": 0}, {"short_by": -1}]
)
def test_an_impossible_script_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match=next(iter(wrong))):
        Script(**wrong)


@pytest.mark.parametrize("request_", [message(0), service_pb2.ModelInferRequest(model_name="ensemble"), message(-5)])
def test_a_request_for_no_tokens_gets_an_error(request_: Any) -> None:
    found, truth = in_process(FAST, lambda serving: answers(serving.grpc_url, request_))
    assert ["max_tokens" in one.error_message for one in found] == [True]
    assert not len(truth)


# over HTTP


@contextlib.contextmanager
def connection(url: str) -> Iterator[http.client.HTTPConnection]:
    found = http.client.HTTPConnection(url, timeout=10)
    try:
        yield found
    finally:
        found.close()


def events(body: bytes) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in body.decode().split("\n\n") if line]


def generate(to: http.client.HTTPConnection, body: bytes, model: str = "ensemble", **headers: str) -> tuple[int, bytes]:
    to.request("POST", f"/v2/models/{model}/generate_stream", body, headers)
    response = to.getresponse()
    return response.status, response.read()


def test_server_sent_events_over_a_connection_kept_alive(mock: RunningMock) -> None:
    with connection(mock.http_url) as client:
        for osl in (1, 5, 3):
            status, body = generate(client, json.dumps({"text_input": "hello", "max_tokens": osl}).encode())
            assert status == 200
            assert [event["output_ids"] for event in events(body)] == [7] * osl
            opened = client.sock
            assert opened is not None
        assert client.sock is opened


def test_http_health_and_config_say_what_grpc_says(mock: RunningMock) -> None:
    with connection(mock.http_url) as client:
        for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/ensemble/ready"):
            client.request("GET", path)
            response = client.getresponse()
            assert (response.status, response.read()) == (200, b"")
        client.request("GET", "/v2/models/ensemble/config")
        config = json.loads(client.getresponse().read())
    with grpc.insecure_channel(mock.grpc_url) as channel:
        service = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        said = service.ModelConfig(service_pb2.ModelConfigRequest(name=mock.model)).config
    assert [tensor["name"] for tensor in config["input"]] == [tensor.name for tensor in said.input]
    assert [tensor["dims"] for tensor in config["output"]] == [list(tensor.dims) for tensor in said.output]
    assert config["max_batch_size"] == said.max_batch_size


@pytest.mark.parametrize("body", [b"{", b"[]", b"{}", b'{"max_tokens": 0}', b'{"max_tokens": "many"}', b"\xff"])
def test_http_bad_body_is_400_and_the_connection_goes_on(mock: RunningMock, body: bytes) -> None:
    with connection(mock.http_url) as client:
        status, answer = generate(client, body)
        assert (status, "max_tokens" in json.loads(answer)["error"]) == (400, True)
        assert generate(client, b'{"max_tokens": 1}')[0] == 200


def test_http_unknown_model_and_path(mock: RunningMock) -> None:
    with connection(mock.http_url) as client:
        status, answer = generate(client, b"{}", model="other")
        assert (status, "'other'" in json.loads(answer)["error"]) == (404, True)
        client.request("GET", "/nothing")
        assert client.getresponse().status == 404


def test_http_faults_and_close() -> None:
    async def ask(serving: Serving) -> list[Any]:
        def blocking() -> list[Any]:
            found: list[Any] = []
            for _ in range(3):
                with connection(serving.http_url) as client:
                    try:
                        found.append(generate(client, b'{"max_tokens": 4}', Connection="close"))
                    except http.client.IncompleteRead as cut:
                        found.append(cut.partial)
            return found

        return await asyncio.to_thread(blocking)

    (first, failed, cut), truth = in_process(Script(0.002, 0.001, error_every=2, hang_up_every=3), ask)
    assert len(events(first[1])) == 4
    assert [list(event) for event in events(failed[1])] == [["error"]]
    assert len(events(cut)) == 1
    assert truth.tokens.tolist() == [4, 0, 1]


def test_what_is_not_http_ends_its_own_connection_only(mock: RunningMock) -> None:
    for url in (mock.grpc_url, mock.http_url):
        host, _, port = url.partition(":")
        with socket.create_connection((host, int(port)), timeout=10) as line:
            line.sendall(b"\x16\x03\x01 this is no HTTP of any version\r\n\r\n")
            while line.recv(4096):
                pass
    assert len(asyncio.run(answers(mock.grpc_url, message(2)))) == 2


# messages, timers, truth, process


@settings(deadline=None)
@given(st.text(max_size=200), st.integers(0, 300), st.sampled_from([True, False, None]))
def test_responses_made_by_hand_are_what_protobuf_reads(request_id: str, tokens: int, final: bool | None) -> None:
    raw = grpc_response(request_id, tokens, final)
    assert struct.unpack(">BI", raw[:5]) == (0, len(raw) - 5)
    response = service_pb2.ModelStreamInferResponse.FromString(raw[5:])
    assert response.infer_response.id == request_id
    assert seen(response) == (tokens, final)
    words = list(response.infer_response.raw_output_contents[:1])
    assert sum(len(word[4:].split()) for word in words) == tokens


@settings(deadline=None)
@given(st.integers(1, 2**31 - 1))
def test_tokens_asked_for_are_read_from_raw_and_from_typed_contents(osl: int) -> None:
    assert asked(message(osl)) == osl
    typed = service_pb2.ModelInferRequest(model_name="ensemble")
    typed.inputs.add(name="max_tokens", datatype="INT32", shape=[1, 1]).contents.int_contents.append(osl)
    assert asked(typed) == osl


@settings(deadline=None)
@given(st.lists(st.floats(-0.01, 0.02), min_size=1, max_size=30))
def test_the_wheel_hands_over_everything_in_order_and_nothing_early(delays_s: list[float]) -> None:
    async def turn() -> list[tuple[float, float]]:
        found: list[tuple[float, float]] = []
        all_there = asyncio.Event()

        def on_due(due: list[float]) -> None:
            found.extend((due_s, time.perf_counter()) for due_s in due)
            if len(found) == len(delays_s):
                all_there.set()

        wheel = Wheel(on_due)
        start_s = time.perf_counter()
        for delay_s in delays_s:
            wheel.at(start_s + delay_s, start_s + delay_s)
        await all_there.wait()
        return found

    found = asyncio.run(turn())
    ticks = [round(due_s * TICKS_PER_S) for due_s, _ in found]
    assert ticks == sorted(ticks)
    assert all(came_s >= due_s - 2 * HALF_A_TICK_S for due_s, came_s in found)


def test_the_wheel_turns_for_an_earlier_item_than_it_was_waiting_for() -> None:
    async def first() -> str:
        came: asyncio.Queue[list[str]] = asyncio.Queue()
        wheel = Wheel(came.put_nowait)
        wheel.at(time.perf_counter() + 3600, "in an hour")
        wheel.at(time.perf_counter() + 0.002, "now")
        async with asyncio.timeout(30):
            return (await came.get())[0]

    assert asyncio.run(first()) == "now"


def test_truth_survives_its_file(tmp_path: Any) -> None:
    _, truth = answered(FAST)
    truth.save(tmp_path / "truth.npz")
    again = Truth.load(tmp_path / "truth.npz")
    assert (again.responses, again.cpu_s) == (truth.responses, truth.cpu_s)
    assert np.array_equal(again.ttft_s, truth.ttft_s)
    assert np.array_equal(again.tokens, truth.tokens)


def test_little_s_law_of_a_script() -> None:
    assert Script(0.02, 0.005).requests_per_s(256, osl=64) * (0.02 + 63 * 0.005) == pytest.approx(256)
    assert Script(0.02, 0.005, slots=8).requests_per_s(256, osl=64) == Script(0.02, 0.005).requests_per_s(8, osl=64)


def test_a_mock_ends_with_its_owner() -> None:
    with running(FAST) as found:
        assert not len(found.truth())
    with pytest.raises(ProcessLookupError):
        os.kill(found.pid, 0)
    with pytest.raises(ServerError, match="ended"), running(FAST) as lost:
        os.kill(lost.pid, signal.SIGKILL)
        lost.truth()


def test_ctrl_c_in_a_terminal_is_for_the_owner_who_then_ends_the_mock() -> None:
    """The terminal sends it to every process of its group; a mock that took it would print a traceback."""
    code = (
        "import signal, time; from calibration.mock import Script, running\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a background job of a shell ignores it
        "try:\n"
        "    with running(Script()) as mock:\n"
        "        print(mock.pid, flush=True)\n"
        "        time.sleep(60)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )
    command = [sys.executable, "-c", code]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=ROOT, start_new_session=True) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        os.killpg(owner.pid, signal.SIGINT)
        assert owner.communicate() == ("interrupted\n", "")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_people_start_it_from_a_shell_and_are_told_what_it_did() -> None:
    command = [sys.executable, "-m", "calibration.mock", "--ttft", "2ms", "--itl", "1ms"]
    ports = ["--grpc-port", "0", "--http-port", "0"]
    with subprocess.Popen([*command, *ports], stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        words = process.stdout.readline().split()
        assert words[0] == "READY"
        assert len(asyncio.run(answers(words[2], message(3)))) == 3
        process.send_signal(signal.SIGINT)
        assert process.stdout.read().startswith("1 requests, 1 answered: TTFT ")
        assert process.wait() == 0
    bad = subprocess.run([*command[:3], "--ttft", "soon"], capture_output=True, text=True, cwd=ROOT)
    assert bad.returncode == 2
    assert "'soon' is not a time" in bad.stderr
