"""The built-in mock against real clients over gRPC, and what its script asks for: its truth, its faults."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
import tritonclient.grpc.aio as triton
from tritonclient.grpc import service_pb2, service_pb2_grpc

from calibration.errors import PlanError
from lab.mock.process import RunningMock
from lab.mock.server import Serving
from lab.mock.service import Script
from tests.lab.mock.asking import (
    FAST,
    HALF_A_TICK_S,
    answered,
    answers,
    in_process,
    message,
    seen,
    stub,
)

# the service, over gRPC


def test_what_triton_says_of_itself(mock: RunningMock) -> None:
    with grpc.insecure_channel(mock.grpc_url) as channel:
        service = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        assert service.ServerLive(service_pb2.ServerLiveRequest()).live
        assert service.ServerReady(service_pb2.ServerReadyRequest()).ready
        assert service.ModelReady(service_pb2.ModelReadyRequest(name=mock.contract.model)).ready
        assert not service.ModelReady(service_pb2.ModelReadyRequest(name="other")).ready
        config = service.ModelConfig(service_pb2.ModelConfigRequest(name=mock.contract.model)).config
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
            yield {"model_name": mock.contract.model, "inputs": [prompt, tokens], "request_id": "first"}

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
    """Slow answers: all four requests are there before the first is answered, on a busy machine too."""
    requests = [message(5, name) for name in "abcd"]
    _, truth = in_process(Script(0.15, 0.05, slots=2), lambda serving: answers(serving.grpc_url, *requests))
    assert (truth.first_sent_s[2:] >= truth.last_sent_s[:2].min() + 0.15 - 2 * HALF_A_TICK_S).all()
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
