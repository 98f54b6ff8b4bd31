"""Streaming requests to a Triton server over gRPC: every response gets a time stamp, and is read only afterwards.

The generated stubs of tritonclient are used over grpc.aio directly, because `tritonclient.grpc.aio.stream_infer` cannot
ask for an empty final response, and because its result objects cost more than the rest of the client.
"""

from __future__ import annotations

import asyncio
import itertools
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Awaitable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import grpc  # type: ignore[import-untyped]
import grpc.aio  # type: ignore[import-untyped]
from tritonclient.grpc import service_pb2, service_pb2_grpc

from calibration.contract import Contract
from calibration.errors import ServerError
from calibration.plan import ServerPlan
from calibration.requests import Request

ANSWER_WITHIN_S = 3.0
STREAMS_PER_CHANNEL = 32
FINAL = "triton_final_response"
_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # else all channels share one connection, which serialises their streams
)


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to one request: when it was sent, and (time, new tokens) of each non-empty response.

    Seconds of `time.perf_counter`. `end_s`: when the request was over, its empty final response included. `error`, if
    not empty, is what went wrong, and the rest then means little.
    """

    sent_s: float
    end_s: float
    tokens: tuple[tuple[float, int], ...]
    error: str = ""


class Client:
    """Channels to one server. Use as ``async with``."""

    def __init__(self, server: ServerPlan) -> None:
        self.server = server
        self._channels: list[Any] = []
        self._opened = 0
        self._name = uuid.uuid4().hex[:8]
        self._numbers = itertools.count()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for channel in self._channels:
            await channel.close()

    def stream(self, contract: Contract) -> Stream:
        """A new stream; every 32 streams share a connection."""
        channel = self._channel(self._opened // STREAMS_PER_CHANNEL)
        self._opened += 1
        return Stream(self, service_pb2_grpc.GRPCInferenceServiceStub(channel), contract)

    def next_id(self) -> str:
        """An id no other request has, of this client or of another on the same server."""
        return f"calibration-{self._name}-{next(self._numbers)}"

    async def model_config(self, name: str) -> Any:
        """The ModelConfig of model `name`, None if the server has no such model. Raises ServerError."""
        call = self._stub().ModelConfig(service_pb2.ModelConfigRequest(name=name), timeout=ANSWER_WITHIN_S)
        try:
            return (await self._ask(call)).config
        except _NoSuchModel:
            return None

    async def check_ready(self) -> None:
        """Raises ServerError if the server or its model is not ready."""
        name = self.server.model
        call = self._stub().ModelReady(service_pb2.ModelReadyRequest(name=name), timeout=ANSWER_WITHIN_S)
        if not (await self._ask(call)).ready:
            raise ServerError(f"{self.server.url}: model {name!r} is not ready; look into the server's log")

    async def check_alive(self) -> None:
        """Raises ServerError if the server does not answer any more."""
        call = self._stub().ServerLive(service_pb2.ServerLiveRequest(), timeout=ANSWER_WITHIN_S)
        try:
            await call
        except grpc.aio.AioRpcError:
            raise ServerError(f"{self.server.url}: the server stopped answering in the middle of a level") from None

    def _stub(self) -> Any:
        return service_pb2_grpc.GRPCInferenceServiceStub(self._channel(0))

    def _channel(self, index: int) -> Any:
        while len(self._channels) <= index:
            self._channels.append(grpc.aio.insecure_channel(self.server.url, options=_OPTIONS))
        return self._channels[index]

    async def _ask(self, call: Awaitable[Any]) -> Any:
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            if error.code() == grpc.StatusCode.NOT_FOUND or "unknown model" in str(error.details()):
                raise _NoSuchModel from None
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                hint = "start one, or correct server.url in the plan"
                raise ServerError(f"{self.server.url}: no Triton server answers over gRPC there; {hint}") from None
            raise ServerError(f"{self.server.url}: {_one_line(error.details())}") from None


class _NoSuchModel(Exception):
    pass


class Stream:
    """One request at a time over one long-lived ModelStreamInfer call, opened anew after a failure."""

    def __init__(self, client: Client, stub: Any, contract: Contract) -> None:
        self._client = client
        self._stub = stub
        self._contract = contract
        self._call: Any = None

    async def infer(self, request: Request) -> Reply:
        """Send `request` and wait for the end of its answer. What goes wrong with the request is in `Reply.error`.

        Raises ServerError if the server is gone.
        """
        message = self._contract.message(request, self._client.next_id())
        if self._call is None:
            self._call = self._stub.ModelStreamInfer()
        sent_ns = time.perf_counter_ns()
        responses: list[tuple[int, Any]] = []
        error = await self._exchange(message, request.osl, responses)
        end_ns = time.perf_counter_ns()
        if error:
            self.close()
        return self._reply(request, sent_ns, end_ns, responses, error)

    def close(self) -> None:
        """End the call; the next request opens a new one."""
        if self._call is not None:
            self._call.cancel()
            self._call = None

    async def _exchange(self, message: Any, osl: int, responses: list[tuple[int, Any]]) -> str:
        """Send, then collect (perf_counter_ns, response) until the answer is over. Returns an error, "" if none."""
        timeout_s = self._client.server.timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await self._call.write(message)
                return await self._collect(message.id, osl, responses)
        except TimeoutError:
            return f"no complete answer within {timeout_s:g} s"
        except grpc.aio.AioRpcError as error:
            return await self._failed(error.code().name, _one_line(error.details()))
        except asyncio.InvalidStateError:  # a write on a call that the server has ended between two requests
            return await self._failed("UNAVAILABLE", "the server closed the stream")

    async def _collect(self, request_id: str, osl: int, responses: list[tuple[int, Any]]) -> str:
        tokens = 0
        while True:
            response = await self._call.read()
            now_ns = time.perf_counter_ns()
            if response is grpc.aio.EOF:
                return await self._failed("UNAVAILABLE", "the server closed the stream")
            if response.error_message:
                return _one_line(response.error_message)
            answer = response.infer_response
            if answer.id not in ("", request_id):
                continue  # a late end of the request before
            responses.append((now_ns, answer))
            if FINAL in answer.parameters:
                if answer.parameters[FINAL].bool_param:
                    return ""
            else:  # a server that does not mark the end: the tokens asked for are the end
                tokens += self._contract.tokens(answer)
                if tokens >= osl:
                    return ""

    async def _failed(self, code: str, details: str) -> str:
        if code == "UNAVAILABLE":
            await self._client.check_alive()
        return f"{code}: {details}"

    def _reply(
        self, request: Request, sent_ns: int, end_ns: int, responses: list[tuple[int, Any]], error: str
    ) -> Reply:
        counted = [(at_ns / 1e9, self._contract.tokens(answer)) for at_ns, answer in responses]
        tokens = tuple((at_s, count) for at_s, count in counted if count)
        got = sum(count for _, count in tokens)
        exact = self._contract.counted_by != "responses"
        if not error and not got:
            error = "an answer without tokens"
        if not error and exact and got != request.osl:
            error = f"{got} tokens in the answer where {request.osl} were asked for"
        return Reply(sent_ns / 1e9, end_ns / 1e9, tokens, error)


class StreamPool:
    """Streams for an open loop: an idle one is taken, a new one opened where none is idle."""

    def __init__(self, client: Client, contract: Contract) -> None:
        self._client = client
        self._contract = contract
        self._idle: list[Stream] = []

    async def infer(self, request: Request) -> Reply:
        """As `Stream.infer`; any number of calls may run at once."""
        stream = self._idle.pop() if self._idle else self._client.stream(self._contract)
        try:
            return await stream.infer(request)
        finally:
            self._idle.append(stream)


def requests_served(metrics_url: str, model: str) -> int:
    """Requests that `model` has answered since the server started, by its Prometheus metrics.

    Raises ServerError if the page cannot be had or does not count the model's requests.
    """
    try:
        with urllib.request.urlopen(metrics_url, timeout=ANSWER_WITHIN_S) as page:
            lines = page.read().decode("utf-8", "replace").splitlines()
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise ServerError(
            f"{metrics_url}: no metrics there ({error}); correct server.metrics_url in the plan"
        ) from None
    counts = [
        float(line.rsplit(" ", 1)[1])
        for line in lines
        if line.startswith("nv_inference_request_success{") and f'model="{model}"' in line
    ]
    if not counts:
        raise ServerError(f"{metrics_url}: no nv_inference_request_success of model {model!r} there")
    return round(sum(counts))


def _one_line(text: str | None) -> str:
    return " ".join((text or "no reason given").split())
