"""Triton over gRPC: requests are sent as prepared bytes, responses are kept as bytes with a time stamp each.

`tritonclient` is not in the path of a request: its clients parse every response on arrival (which costs as much as
receiving it), and `stream_infer` gives no control over channels. Only its message types are used.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
import uuid
from typing import Any, Self

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message
from tritonclient.grpc import service_pb2

from calibration.errors import KEY, ServerError
from calibration.load.contract import Contract
from calibration.load.exchange import MOST_BYTES, TOO_LONG, Exchange, Prepared, Reader, one_line
from calibration.load.http import ALIVE_WITHIN_S, ANSWER_WITHIN_S
from calibration.plan import ServerPlan
from calibration.requests.source import PromptRequest

STREAMS_PER_CHANNEL = 32
_SERVICE = "/inference.GRPCInferenceService"
_OPTIONS = (
    ("grpc.max_receive_message_length", MOST_BYTES),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # else all channels share a connection, which serialises their streams
)
_ERROR_TAG = b"\x0a"  # a ModelStreamInferResponse that starts with field 1 carries error_message
_FINAL = b"triton_final_response"
NO_MESSAGE = "a response on the stream is not a Triton message"
_TRUE = b"\x12\x02\x08\x01"  # the bytes after that key in the map of parameters: InferParameter{bool_param: true}
_FALSE = b"\x12\x02\x08\x00"


class GrpcClient:
    """Channels to one server. Use as ``async with``."""

    def __init__(self, server: ServerPlan) -> None:
        self.server = server
        self._channels: list[Any] = []
        self._opened = itertools.count()
        self._name = uuid.uuid4().hex[:12]
        self._numbers = itertools.count()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for channel in self._channels:
            await channel.close()

    async def connect(self, streams: int) -> None:
        """Open connections for `streams` streams, at most 32 on each. Raises ServerError if the server is not there."""
        channels = [self._channel(index) for index in range(max(1, math.ceil(streams / STREAMS_PER_CHANNEL)))]
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                await asyncio.gather(*map(_connected, channels))
        except (TimeoutError, ConnectionError):
            raise self._absent() from None

    def stream(self, contract: Contract) -> GrpcStream:
        """A new stream, on the next of the connections in turn."""
        return GrpcStream(self, self._channel(next(self._opened) % max(1, len(self._channels))), contract)

    def prepare(self, contract: Contract, request: PromptRequest) -> Prepared:
        """`request` as bytes, with an id that no other request to the server has."""
        request_id = f"calibration-{self._name}-{next(self._numbers)}"
        return Prepared(request_id.encode(), contract.message(request, request_id), request.isl, request.osl)

    def reader(self, contract: Contract) -> Reader:
        """How the answers of these streams are read."""
        return Reader(lambda raw: _tokens(contract, raw), contract.exact)

    async def model_config(self, name: str) -> Any:
        """The ModelConfig of model `name`; None if the server has no such model. Raises ServerError."""
        try:
            request = service_pb2.ModelConfigRequest(name=name)
            return (await self._ask("ModelConfig", request, service_pb2.ModelConfigResponse)).config
        except _NoSuchModel:
            return None

    async def check_ready(self) -> None:
        """Raises ServerError if the server or its model is not ready."""
        name = self.server.model
        request = service_pb2.ModelReadyRequest(name=name)
        if not (await self._ask("ModelReady", request, service_pb2.ModelReadyResponse)).ready:
            raise ServerError(f"{self.server.url}: model {name!r} is not ready; see the server's log")

    async def check_alive(self) -> None:
        """Raises ServerError if the server does not answer any more."""
        try:
            request = service_pb2.ServerLiveRequest()
            await self._ask("ServerLive", request, service_pb2.ServerLiveResponse, ALIVE_WITHIN_S)
        except (ServerError, _NoSuchModel):
            raise ServerError(f"{self.server.url}: the server stopped answering in the middle of a level") from None

    def _channel(self, index: int) -> Any:
        while len(self._channels) <= index:
            self._channels.append(grpc.aio.insecure_channel(self.server.url, options=_OPTIONS))
        return self._channels[index]

    async def _ask(self, method: str, request: Message, kind: type[Message], within_s: float | None = None) -> Any:
        """The answer to a unary call. Parsed here: gRPC would print a traceback for bytes that are not a message."""
        call = self._channel(0).unary_unary(f"{_SERVICE}/{method}")
        try:
            return kind.FromString(await call(request.SerializeToString(), timeout=within_s or ANSWER_WITHIN_S))
        except DecodeError:
            raise ServerError(f"{self.server.url}: its answer over gRPC is not a {kind.DESCRIPTOR.name}") from None
        except grpc.aio.AioRpcError as error:
            if error.code() == grpc.StatusCode.NOT_FOUND or "unknown model" in str(error.details()):
                raise _NoSuchModel from None
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise self._absent() from None
            raise ServerError(f"{self.server.url}: {one_line(error.details())}") from None

    def _absent(self) -> ServerError:
        hint = f"start one, or correct {KEY}"
        return ServerError(f"{self.server.url}: no Triton server answers over gRPC there; {hint}", "server.url")


class _NoSuchModel(Exception):
    pass


class GrpcStream:
    """One request at a time over one long-lived ModelStreamInfer call, which is reopened after a failure."""

    def __init__(self, client: GrpcClient, channel: Any, contract: Contract) -> None:
        self._client = client
        # no serialisers: bytes in, bytes out
        self._open = channel.stream_stream(f"{_SERVICE}/ModelStreamInfer")
        self._contract = contract
        self._call: Any = None

    @property
    def is_open(self) -> bool:
        """True: a stream on a connection that is open takes no time to begin."""
        return True

    async def open(self) -> None:
        """Nothing is to be done."""

    async def exchange(self, prepared: Prepared) -> Exchange:
        """Send a request and wait for the end of its answer. If it fails, `Exchange.error` says why.

        Raises ServerError if the server is gone.
        """
        if self._call is None:
            self._call = self._open()
        exchange = Exchange(prepared.isl, prepared.osl, time.perf_counter_ns())
        exchange.error = await self._send_and_collect(prepared, exchange)
        exchange.end_ns = time.perf_counter_ns()
        if exchange.error:
            self.close()
        return exchange

    def close(self) -> None:
        """End the call; the next request opens a new one."""
        if self._call is not None:
            self._call.cancel()
            self._call = None

    async def _send_and_collect(self, prepared: Prepared, exchange: Exchange) -> str:
        """Returns an error, "" if none."""
        timeout_s = self._client.server.timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await self._call.write(prepared.body)
                return await self._collect(prepared, exchange)
        except TimeoutError:
            return f"no complete answer within {timeout_s:g} s"
        except grpc.aio.AioRpcError as error:
            return await self._failed(error.code().name, one_line(error.details()))
        except asyncio.InvalidStateError:  # a write on a call that the server ended between two requests
            return await self._failed("UNAVAILABLE", "the server closed the stream")
        except DecodeError:
            return NO_MESSAGE

    async def _collect(self, prepared: Prepared, exchange: Exchange) -> str:
        """For every response: stamp it, keep it, check whether it is the last. Returns an error, "" if none."""
        at_ns, raw = exchange.at_ns, exchange.raw
        tokens, room = 0, MOST_BYTES
        while True:
            response = await self._call.read()
            now_ns = time.perf_counter_ns()
            if response is grpc.aio.EOF:
                return await self._failed("UNAVAILABLE", "the server closed the stream")
            if response.startswith(_ERROR_TAG):
                return one_line(_parsed(response).error_message)
            if prepared.id not in response and _parsed(response).infer_response.id:
                continue  # a late response of the request before
            room -= len(response)
            if room < 0:
                return TOO_LONG
            at_ns.append(now_ns)
            raw.append(response)
            final = _final(response)
            if final is None:  # a server that does not mark the end: it is over with the tokens requested
                tokens += self._contract.tokens(_parsed(response).infer_response)
                final = tokens >= prepared.osl
            if final:
                return ""

    async def _failed(self, code: str, details: str) -> str:
        if code == "UNAVAILABLE":
            await self._client.check_alive()
        return f"{code}: {details}"


async def _connected(channel: Any) -> None:
    """Raises ConnectionError as soon as a connection fails; `channel_ready` would retry without end."""
    state = channel.get_state(try_to_connect=True)
    while state is not grpc.ChannelConnectivity.READY:
        if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            raise ConnectionError
        await channel.wait_for_state_change(state)
        state = channel.get_state(try_to_connect=True)


def _final(response: bytes) -> bool | None:
    """Whether a response is marked as the last; None if it has no mark. Parsed only if the bytes leave doubt."""
    key = response.find(_FINAL)
    if key < 0:
        return None
    value = response[key + len(_FINAL) : key + len(_FINAL) + len(_TRUE)]
    if value == _TRUE:
        return True
    if value == _FALSE:
        return False
    parameters = _parsed(response).infer_response.parameters
    return bool(parameters[_FINAL.decode()].bool_param) if _FINAL.decode() in parameters else None


def _tokens(contract: Contract, raw: bytes) -> int:
    try:
        return contract.tokens(_parsed(raw).infer_response)
    except DecodeError:
        return 0


def _parsed(response: bytes) -> Any:
    """Raises DecodeError."""
    return service_pb2.ModelStreamInferResponse.FromString(response)
