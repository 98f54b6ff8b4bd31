"""The calls of Triton's gRPC service that the mock answers, each on an HTTP/2 stream."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from tritonclient.grpc import service_pb2

from calibration.mock import messages
from calibration.mock.http2 import Connection
from calibration.mock.script import Script
from calibration.mock.service import Answer, Moment, Service
from calibration.mock.stream import Call, Stream
from calibration.mock.truth import Record
from calibration.mock.wire import Wire

SERVICE = "/inference.GRPCInferenceService/"
PREFIX_BYTES = 5
OK, INVALID_ARGUMENT, NOT_FOUND, UNIMPLEMENTED, INTERNAL = 0, 3, 5, 12, 13
HEADERS = ((":status", "200"), ("content-type", "application/grpc"))


class Refusal(Exception):
    """A call ends with the gRPC status `code`."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def serve(service: Service, script: Script) -> Callable[[], Connection]:
    """Makes the connections of a gRPC server."""

    def answer(stream: Stream, headers: dict[str, str]) -> Call:
        method = headers.get(":path", "").removeprefix(SERVICE)
        if method == "ModelStreamInfer":
            return StreamInfer(stream, service, script)
        return Unary(stream, method)

    return lambda: Connection(answer)


class Messages:
    """Cuts the bytes of a stream into gRPC messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def read(self, data: bytes) -> list[bytes]:
        """The messages that `data` completes. Raises Refusal for a compressed one."""
        self._buffer += data
        found = []
        while len(self._buffer) >= PREFIX_BYTES:
            compressed, size = struct.unpack_from(">BI", self._buffer)
            if compressed:
                raise Refusal(UNIMPLEMENTED, "the mock reads no compressed messages")
            end = PREFIX_BYTES + size
            if len(self._buffer) < end:
                break
            found.append(bytes(self._buffer[PREFIX_BYTES:end]))
            del self._buffer[:end]
        return found


class Unary:
    """A call of one message and one reply."""

    def __init__(self, stream: Stream, method: str) -> None:
        self._stream = stream
        self._method = method
        self._messages = Messages()
        self._request = b""

    def data(self, data: bytes) -> None:
        for message in self._messages.read(data):
            self._request = message

    def half_closed(self) -> None:
        try:
            if self._method not in _UNARY:
                raise Refusal(UNIMPLEMENTED, f"the mock has no {self._method!r}")
            kind, reply = _UNARY[self._method]
            message = reply(kind.FromString(self._request)).SerializeToString()
        except Refusal as refusal:
            refuse(self._stream, refusal)
            return
        except DecodeError:
            refuse(self._stream, Refusal(INTERNAL, f"not a message for {self._method}"))
            return
        self._stream.headers(HEADERS)
        self._stream.send(self._stream.data(messages.grpc_message(message)))
        self._stream.end(status(OK))

    def cancelled(self) -> None:
        """Nothing is left to be done."""


class StreamInfer:
    """ModelStreamInfer: any number of requests, one after another or at once, their answers as they come."""

    def __init__(self, stream: Stream, service: Service, script: Script) -> None:
        self.stream = stream
        self.final_flag = script.final_flag
        self._service = service
        self._messages = Messages()
        self._answers: set[Answer] = set()
        self._no_more = False
        stream.headers(HEADERS)

    def data(self, data: bytes) -> None:
        try:
            for message in self._messages.read(data):
                self._infer(service_pb2.ModelInferRequest.FromString(message))
        except Refusal as refusal:
            self.refuse(refusal)
        except DecodeError:
            self.refuse(Refusal(INTERNAL, "not a ModelInferRequest"))

    def half_closed(self) -> None:
        self._no_more = True
        self._end_if_done()

    def cancelled(self) -> None:
        for answer in self._answers:
            self._service.drop(answer)
        self._answers.clear()

    def done(self, answer: Answer | None) -> None:
        """`answer` is complete; None stands for one that never began."""
        if answer is not None:
            self._answers.discard(answer)
        self._end_if_done()

    def refuse(self, refusal: Refusal) -> None:
        """End the stream with an error."""
        self.cancelled()
        self.stream.end(status(refusal.code, str(refusal)))

    def _infer(self, request: Any) -> None:
        outlet = GrpcOutlet(self, request.id)
        osl = messages.asked(request)
        if request.model_name != messages.MODEL:
            outlet.fail(f"Request for unknown model: '{request.model_name}' is not found")
        elif osl is None or osl < 1:
            outlet.fail("the mock wants max_tokens of 1 or more")
        else:
            outlet.answer = self._service.receive(outlet, osl)
            if outlet.answer.outlet is not None:
                self._answers.add(outlet.answer)

    def _end_if_done(self) -> None:
        if self._no_more and not self._answers:
            self.stream.end(status(OK))


class GrpcOutlet:
    """The responses to one request on a stream."""

    def __init__(self, call: StreamInfer, request_id: str) -> None:
        self.answer: Answer | None = None
        self.wire: Wire = call.stream.connection
        self._call = call
        self._id = request_id
        self._send = call.stream.send

    def response(self, tokens: int, final: bool) -> bytes:
        marked = final if self._call.final_flag else None
        return self._call.stream.data(messages.grpc_response(self._id, tokens, marked))

    def send(self, response: bytes, record: Record | None = None, *moments: Moment) -> None:
        self._send(response, record, *moments)

    def finish(self) -> None:
        self._call.done(self.answer)

    def fail(self, message: str) -> None:
        self._send(self._call.stream.data(messages.grpc_error(message)))
        self._call.done(self.answer)

    def hang_up(self) -> None:
        self._call.refuse(Refusal(INTERNAL, "hung up"))


def refuse(stream: Stream, refusal: Refusal) -> None:
    """End a call that has not been answered yet."""
    stream.end((*HEADERS, *status(refusal.code, str(refusal))))


def status(code: int, message: str = "") -> tuple[tuple[str, str], ...]:
    """The trailers of a call."""
    return (("grpc-status", str(code)), *((("grpc-message", message),) if message else ()))


def _model(request: Any) -> Any:
    found = messages.config(request.name)
    if found is None:
        raise Refusal(NOT_FOUND, f"Request for unknown model: '{request.name}' is not found")
    return found


_UNARY: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "ServerLive": (service_pb2.ServerLiveRequest, lambda request: service_pb2.ServerLiveResponse(live=True)),
    "ServerReady": (service_pb2.ServerReadyRequest, lambda request: service_pb2.ServerReadyResponse(ready=True)),
    "ModelReady": (
        service_pb2.ModelReadyRequest,
        lambda request: service_pb2.ModelReadyResponse(ready=messages.config(request.name) is not None),
    ),
    "ModelConfig": (
        service_pb2.ModelConfigRequest,
        lambda request: service_pb2.ModelConfigResponse(config=_model(request)),
    ),
}
