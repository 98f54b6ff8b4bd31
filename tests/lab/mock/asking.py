"""How tests ask the built-in mock: in its own event loop or over gRPC, and what came back."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import grpc
import grpc.aio
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from lab.mock.server import Serving, serve
from lab.mock.service import FINAL, TICKS_PER_S, Script, Truth

FAST = Script(ttft_s=0.004, itl_s=0.001)
HALF_A_TICK_S = 0.5 / TICKS_PER_S
Seen = tuple[int, bool | None]
"""Of a response: its tokens, and whether it says that it is the final one (None: it does not say)."""
T = TypeVar("T")


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
