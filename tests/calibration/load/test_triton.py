"""The gRPC client against a mock with known timings and faults."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from calibration.errors import ServerError
from calibration.load import grpc
from calibration.load.exchange import log_of
from calibration.load.grpc import GrpcClient
from calibration.plan import ServerPlan
from calibration.records import RequestLog
from calibration.requests.source import PromptRequest
from calibration.target import describe
from sizing.points import Scheduling
from tests.calibration.mock_server import MockServer, Script, asked, prompt

OSL = 6


def endless(osl: int = OSL) -> Iterator[PromptRequest]:
    while True:
        yield PromptRequest("two words", 2, osl)


async def answers(script: Script, n: int = 1, **plan: float) -> tuple[RequestLog, MockServer]:
    """The log of `n` requests, one after another over one stream."""
    async with MockServer(script) as server:
        target = ServerPlan(url=server.url, **plan)  # type: ignore[arg-type]
        contract = (await describe(target)).contract
        async with GrpcClient(target) as client:
            await client.connect(1)
            stream = client.stream(contract)
            prepared = [client.prepare(contract, request) for request, _ in zip(endless(), range(n), strict=False)]
            exchanges = [await stream.exchange(item) for item in prepared]
            return log_of(exchanges, client.reader(contract)), server


def chunks(log: RequestLog) -> list[list[int]]:
    """Tokens in each response with tokens, per request."""
    left = log.chunk_tokens.tolist()
    return [[left.pop(0) for _ in range(count)] for count in log.chunks]


IN_FLIGHT = {"gpt_model_type": "inflight_fused_batching"}


@pytest.mark.parametrize(
    ("backend", "parameters", "policy"),
    [
        ("tensorrtllm", IN_FLIGHT | {"enable_chunked_context": "True"}, "chunked"),
        ("tensorrtllm", IN_FLIGHT | {"enable_chunked_context": "1"}, "chunked"),
        ("tensorrtllm", IN_FLIGHT | {"enable_chunked_context": "false"}, "whole_prompt"),
        ("tensorrtllm", IN_FLIGHT | {"enable_chunked_context": "${enable_chunked_context}"}, "whole_prompt"),
        ("tensorrtllm", IN_FLIGHT, "whole_prompt"),
        ("tensorrtllm", {"gpt_model_type": "V1", "enable_chunked_context": "true"}, ""),
        ("tensorrtllm", {}, ""),
        ("python", IN_FLIGHT | {"enable_chunked_context": "false"}, "whole_prompt"),
        ("python", IN_FLIGHT, ""),
    ],
)
def test_the_backend_tells_whether_it_chunks_prompts(backend: str, parameters: dict[str, str], policy: str) -> None:
    """model_instance_state.cc: "enable_chunked_context is not specified, will be set to false."

    The Python backend leaves a missing flag to ExecutorConfig, whose default became true.
    """

    async def told() -> Scheduling:
        async with MockServer(Script(engine=parameters, engine_backend=backend)) as server:
            return (await describe(ServerPlan(url=server.url))).scheduling

    assert asyncio.run(told()) == Scheduling(policy)  # type: ignore[arg-type]


def test_times_are_those_of_the_server() -> None:
    """TTFT and E2E are at least what the server sleeps, and, of one of many answers, less than with one response more.

    A busy machine may be late with any answer, but hardly with twenty.
    """
    ttft_s, e2e_s = [], []
    for _ in range(20):
        log, _ = asyncio.run(answers(Script(ttft_s=0.05, itl_s=0.03), n=2))
        assert not log.failed.any()
        assert chunks(log) == [[1] * OSL] * 2
        assert (log.end_s >= log.last_token_s).all()
        ttft_s.append(float(log.first_token_s[-1] - log.sent_s[-1]))
        e2e_s.append(float(log.last_token_s[-1] - log.sent_s[-1]))
        if min(ttft_s) < 0.05 + 0.03 and min(e2e_s) < 0.05 + OSL * 0.03:
            break
    assert 0.05 <= min(ttft_s) < 0.05 + 0.03
    assert 0.05 + (OSL - 1) * 0.03 <= min(e2e_s) < 0.05 + OSL * 0.03


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (Script(empty_first=True), [1] * OSL),
        (Script(late_final_s=0.03), [1] * OSL),
        (Script(empty_first=True, late_final_s=0.03), [1] * OSL),
        (Script(tokens_per_response=4), [4, 2]),
        (Script(final_flag=False), [1] * OSL),
        (Script(final_flag=False, late_final_s=0.01), [1] * OSL),
        (Script(final_flag=False, late_final_s=0.01, echo_id=False, empty_first=True), [1] * OSL),
        (Script(final_flag=False, empty_first=True, tokens_per_response=4), [4, 2]),
        (Script(echo_id=False), [1] * OSL),
        (Script(counter="sequence_length", tokens_per_response=4), [4, 2]),
        (Script(counter="output_log_probs", tokens_per_response=4), [4, 2]),
        (Script(counter=""), [1] * OSL),
        (Script(max_batch_size=0), [1] * OSL),
    ],
)
def test_only_responses_with_tokens_count(script: Script, expected: list[int]) -> None:
    log, server = asyncio.run(answers(script, n=3))
    assert log.error == ("",) * 3
    assert chunks(log) == [expected] * 3
    assert [asked(request) for request in server.requests] == [OSL] * 3
    assert [prompt(request) for request in server.requests] == ["two words"] * 3
    assert len({request.id for request in server.requests}) == 3


def test_neither_an_early_empty_response_nor_a_late_final_one_moves_ttft_or_e2e() -> None:
    log, _ = asyncio.run(answers(Script(ttft_s=0.05, empty_first=True, late_final_s=0.2), n=2))
    assert (log.first_token_s - log.sent_s)[1] >= 0.05
    assert (log.end_s - log.last_token_s)[1] >= 0.1  # half of it: a busy machine reads the last token late


def test_an_error_response_ends_its_request_only() -> None:
    log, _ = asyncio.run(answers(Script(error_every=2), n=4))
    assert log.error == ("", "out of blocks", "", "out of blocks")


def test_a_stream_hung_up_on_is_an_error_and_the_next_request_goes_on() -> None:
    log, _ = asyncio.run(answers(Script(hang_up_every=2), n=3))
    assert log.failed.tolist() == [False, True, False]
    assert "hung up" in log.error[1]


def test_an_answer_of_another_length_is_an_error() -> None:
    log, _ = asyncio.run(answers(Script(short_by=2)))
    assert log.error == (f"{OSL - 2} tokens in the answer where {OSL} were asked for",)


def test_an_answer_that_repeats_its_prompt_is_told_as_such() -> None:
    log, _ = asyncio.run(answers(Script(short_by=-2)))
    assert "exclude_input_in_output" in log.error[0]


def test_a_model_that_takes_no_length_may_answer_with_any() -> None:
    log, _ = asyncio.run(answers(Script(takes_max_tokens=False, decoupled=False), n=2))
    assert log.error == ("", "")
    assert log.tokens.tolist() == [3, 3]


def test_a_request_without_end_is_given_up() -> None:
    log, _ = asyncio.run(answers(Script(ttft_s=60), timeout_s=0.1))
    assert log.error == ("no complete answer within 0.1 s",)


def test_a_server_that_went_away_is_a_server_error() -> None:
    async def lose() -> None:
        server = MockServer(Script(ttft_s=60))
        async with server:
            target = ServerPlan(url=server.url)
            contract = (await describe(target)).contract
            client = GrpcClient(target)
            prepared = client.prepare(contract, next(endless()))
            waiting = asyncio.create_task(client.stream(contract).exchange(prepared))
            while not server.requests:
                await asyncio.sleep(0.005)
        async with client:
            await waiting

    with pytest.raises(ServerError, match="stopped answering"):
        asyncio.run(lose())


def test_nobody_at_the_address_is_told_before_the_load_starts() -> None:
    async def call() -> None:
        async with GrpcClient(ServerPlan(url="127.0.0.1:9")) as client:
            await client.connect(1)

    with pytest.raises(ServerError, match=r"127\.0\.0\.1:9: no Triton server answers over gRPC"):
        asyncio.run(call())


@st.composite
def responses(draw: st.DrawFn) -> Any:
    """Responses with and without the flag, with parameters and texts that look like it."""
    answer = service_pb2.ModelInferResponse(model_name=draw(st.sampled_from(["ensemble", "triton_final_response"])))
    for key in draw(st.sets(st.sampled_from(["triton_final_response", "sequence_end", "a"]))):
        kind = draw(st.sampled_from(["bool", "number", "text"]))
        if kind == "bool" or key == "triton_final_response":
            answer.parameters[key].bool_param = draw(st.booleans())
        elif kind == "number":
            answer.parameters[key].int64_param = draw(st.integers(0, 9))
        else:
            answer.parameters[key].string_param = "triton_final_response"
    if draw(st.booleans()):
        answer.outputs.add(name="text_output", datatype="BYTES", shape=[1, 1])
        answer.raw_output_contents.append(draw(st.sampled_from([b"", b"x", b"triton_final_response\x12\x03\x08\x01"])))
    return service_pb2.ModelStreamInferResponse(infer_response=answer)


@settings(deadline=None)
@given(responses())
def test_the_end_of_an_answer_is_found_in_its_bytes_as_parsing_finds_it(response: Any) -> None:
    parameters = response.infer_response.parameters
    flag = parameters["triton_final_response"].bool_param if "triton_final_response" in parameters else None
    assert grpc._final(response.SerializeToString()) == flag
