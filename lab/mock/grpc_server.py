"""The calls of Triton's gRPC service that the mock answers, each on an HTTP/2 stream.

HTTP/2 is written by hand because the mock must not be slower than the load generator that it judges. At 128 streams
and 24,000 responses/s it takes 6 to 10 µs of CPU a response; on grpc.aio it takes 45 to 55 µs, gives half the
responses/s, and its own ITL is twice the 5 ms of its script (`python -m validation.speed mock` prints both); on the
library h2 it took 19 to 23 µs, of which 6 µs are h2's for a frame that costs 0.3 µs here.
"""

from __future__ import annotations

import asyncio
import struct
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import hpack
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from lab.mock import service as messages
from lab.mock.service import Answer, Moment, Record, Script, Service, Wire

# --- HTTP/2 frames (RFC 9113, sections 4 and 6): writing them, and a reader that finds them in received bytes

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER_BYTES = 9
MAX_PAYLOAD_BYTES = 16_384  # every peer accepts this much, and the mock no more
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
WITH_PRIORITY = 0x20
HEADER_TABLE_SIZE, INITIAL_WINDOW_SIZE, MAX_CONCURRENT_STREAMS = 0x1, 0x4, 0x3
PROTOCOL_ERROR, FLOW_CONTROL_ERROR, STREAM_CLOSED, FRAME_SIZE_ERROR, CANCEL = 0x1, 0x3, 0x5, 0x6, 0x8
DEFAULT_WINDOW_BYTES = 65_535
MAX_WINDOW_BYTES = 2**31 - 1


class ConnectionFault(Exception):
    """The peer broke the protocol: the connection ends with GOAWAY and `code`."""

    def __init__(self, code: int, what: str) -> None:
        super().__init__(what)
        self.code = code


class Frame(NamedTuple):
    """A frame as read; `payload` without padding."""

    kind: int
    flags: int
    stream_id: int
    payload: bytes


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """The bytes of a frame.

    >>> frame(PING, ACK, 0, b"12345678").hex(" ", 1)
    '00 00 08 06 01 00 00 00 00 31 32 33 34 35 36 37 38'
    """
    size = len(payload)
    return struct.pack(">BHBBI", size >> 16, size & 0xFFFF, kind, flags, stream_id) + payload


def settings(values: dict[int, int]) -> bytes:
    """A SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", key, value) for key, value in values.items()))


def window_update(stream_id: int, size: int) -> bytes:
    """A WINDOW_UPDATE frame for `size` more bytes; stream 0 is the connection."""
    return frame(WINDOW_UPDATE, 0, stream_id, struct.pack(">I", size))


def number(frame: Frame) -> int:
    """The 31-bit number that is all of a WINDOW_UPDATE. Raises ConnectionFault."""
    if len(frame.payload) != 4:
        raise ConnectionFault(FRAME_SIZE_ERROR, f"a frame of kind {frame.kind} of {len(frame.payload)} bytes")
    return int.from_bytes(frame.payload, "big") & MAX_WINDOW_BYTES


class FrameReader:
    """Splits received bytes into frames. Raises ConnectionFault if they cannot be HTTP/2."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._preface_left = PREFACE

    def read(self, data: bytes) -> Iterator[Frame]:
        """The frames completed by `data`."""
        buffer = self._buffer
        buffer += data
        if self._preface_left:
            self._read_preface()
        at = 0
        try:
            while len(buffer) - at >= HEADER_BYTES:
                size = buffer[at] << 16 | buffer[at + 1] << 8 | buffer[at + 2]
                if size > MAX_PAYLOAD_BYTES:
                    raise ConnectionFault(FRAME_SIZE_ERROR, f"a frame of {size} bytes")
                end = at + HEADER_BYTES + size
                if len(buffer) < end:
                    break
                kind, flags = buffer[at + 3], buffer[at + 4]
                stream_id = int.from_bytes(buffer[at + 5 : at + 9], "big") & MAX_WINDOW_BYTES
                payload = bytes(buffer[at + HEADER_BYTES : end])
                at = end
                yield Frame(kind, flags, stream_id, _without_padding(kind, flags, payload))
        finally:
            del buffer[:at]

    def _read_preface(self) -> None:
        expected = self._preface_left
        got = bytes(self._buffer[: len(expected)])
        if got != expected[: len(got)]:
            raise ConnectionFault(PROTOCOL_ERROR, "not the preface of HTTP/2")
        del self._buffer[: len(got)]
        self._preface_left = expected[len(got) :]


def _without_padding(kind: int, flags: int, payload: bytes) -> bytes:
    if kind not in (DATA, HEADERS) or not flags & (PADDED | WITH_PRIORITY):
        return payload
    padding = 0
    if flags & PADDED:
        if not payload or payload[0] >= len(payload):
            raise ConnectionFault(PROTOCOL_ERROR, "more padding than payload")
        padding, payload = payload[0], payload[1:]
    if kind == HEADERS and flags & WITH_PRIORITY:
        payload = payload[5:]
    if padding > len(payload):
        raise ConnectionFault(PROTOCOL_ERROR, "more padding than payload")
    return payload[: len(payload) - padding]


# --- Sending on one stream of an HTTP/2 connection: data waits for the client's flow-control windows

Headers = Sequence[tuple[str, str]]


class Line(Wire):
    """The connection of a stream; `window`: bytes that the client accepts on all its streams together."""

    window: int

    @abstractmethod
    def send_headers(self, stream_id: int, headers: Headers, *, end: bool) -> None:
        """Send headers, or trailers."""

    @abstractmethod
    def forget(self, stream: Stream) -> None:
        """End the stream."""


class Call(Protocol):
    """The call on a stream, notified of the client's actions."""

    @abstractmethod
    def data(self, data: bytes) -> None:
        """Bytes were received."""

    @abstractmethod
    def half_closed(self) -> None:
        """The client has sent everything."""

    @abstractmethod
    def cancelled(self) -> None:
        """The client has cancelled, or is gone."""


class _Held(NamedTuple):
    payload: bytes
    record: Record | None
    moments: tuple[str, ...]


class Stream:
    """One stream of a connection: data waits for the client's windows, of the stream and of the connection."""

    def __init__(self, connection: Line, stream_id: int, window: int) -> None:
        self.connection = connection
        self.id = stream_id
        self.window = window
        self.call: Call | None = None
        self.unacknowledged = 0
        self._held: deque[_Held] = deque()
        self._trailers: Headers | None = None

    def headers(self, headers: Headers) -> None:
        """Send the response's headers."""
        self.connection.send_headers(self.id, headers, end=False)

    def data(self, payload: bytes) -> bytes:
        """`payload` as DATA frames for `send`, which may send them repeatedly."""
        if len(payload) <= MAX_PAYLOAD_BYTES:
            return frame(DATA, 0, self.id, payload)
        parts = range(0, len(payload), MAX_PAYLOAD_BYTES)
        return b"".join(frame(DATA, 0, self.id, payload[at : at + MAX_PAYLOAD_BYTES]) for at in parts)

    def send(self, data: bytes, record: Record | None = None, *moments: str) -> None:
        """Send frames made by `data`, now or as soon as the client's windows allow."""
        size = len(data) - HEADER_BYTES
        connection = self.connection
        if self._held or size > self.window or size > connection.window or size > MAX_PAYLOAD_BYTES:
            self._hold(data, record, moments)
            return
        self.window -= size
        connection.window -= size
        connection.put(data, record, moments)

    def end(self, trailers: Headers) -> None:
        """End the stream once everything has been sent."""
        self._trailers = trailers
        self.release()

    def release(self) -> None:
        """Send as much of the waiting data as the windows allow."""
        connection = self.connection
        while self._held:
            held = self._held[0]
            size = min(len(held.payload), self.window, connection.window, MAX_PAYLOAD_BYTES)
            if size <= 0:
                return
            self.window -= size
            connection.window -= size
            part, rest = held.payload[:size], held.payload[size:]
            if rest:
                connection.put(frame(DATA, 0, self.id, part))
                self._held[0] = held._replace(payload=rest)
            else:
                connection.put(frame(DATA, 0, self.id, part), held.record, held.moments)
                self._held.popleft()
        if self._trailers is not None:
            connection.send_headers(self.id, self._trailers, end=True)
            connection.forget(self)

    def _hold(self, data: bytes, record: Record | None, moments: tuple[str, ...]) -> None:
        step = HEADER_BYTES + MAX_PAYLOAD_BYTES
        payload = b"".join(data[at + HEADER_BYTES : at + step] for at in range(0, len(data), step))
        self._held.append(_Held(payload, record, moments))
        self.release()


# --- The server's side of an HTTP/2 connection (RFC 9113), as far as gRPC clients need it: many streams, flow control

RECEIVE_WINDOW_BYTES = 1 << 20
MAX_METADATA_BYTES = 1 << 20
MAX_TABLE_BYTES = 4096
MANY_STREAMS = 100_000
Answering = Callable[[Stream, dict[str, str]], Call]


class Connection(Line):
    """One connection. `answer(stream, headers)` returns the call for a new stream."""

    def __init__(self, answer: Answering) -> None:
        super().__init__()
        self.window = DEFAULT_WINDOW_BYTES
        self._answer = answer
        self._reader = FrameReader()
        self._streams: dict[int, Stream] = {}
        self._stream_window = DEFAULT_WINDOW_BYTES
        self._newest = 0
        self._unacknowledged = 0
        self._block: tuple[Frame, bytearray] | None = None
        self._decoder = hpack.Decoder(max_header_list_size=MAX_METADATA_BYTES)
        self._encoder = hpack.Encoder()
        self._on_frame = {
            DATA: self._data,
            HEADERS: self._headers,
            CONTINUATION: self._continuation,
            RST_STREAM: self._reset,
            SETTINGS: self._settings,
            PING: self._ping,
            WINDOW_UPDATE: self._window_update,
        }

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        ours = {INITIAL_WINDOW_SIZE: RECEIVE_WINDOW_BYTES, MAX_CONCURRENT_STREAMS: MANY_STREAMS}
        self.put(settings(ours))
        self.put(window_update(0, RECEIVE_WINDOW_BYTES - DEFAULT_WINDOW_BYTES))
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for stream in list(self._streams.values()):
            self._cancel(stream)

    def data_received(self, data: bytes) -> None:
        try:
            for got in self._reader.read(data):
                if self._block is not None and got.kind != CONTINUATION:
                    raise ConnectionFault(PROTOCOL_ERROR, "headers were not completed")
                if got.kind in self._on_frame:
                    self._on_frame[got.kind](got)
        except ConnectionFault as fault:
            self._go_away(fault.code, str(fault))
        except hpack.HPACKError as fault:
            self._go_away(PROTOCOL_ERROR, f"headers: {fault}")
        self.flush()

    def send_headers(self, stream_id: int, headers: Headers, *, end: bool) -> None:
        flags = END_HEADERS | (END_STREAM if end else 0)
        self.put(frame(HEADERS, flags, stream_id, self._encoder.encode(headers)))

    def forget(self, stream: Stream) -> None:
        self._streams.pop(stream.id, None)

    def _go_away(self, code: int, what: str) -> None:
        self.put(frame(GOAWAY, 0, 0, struct.pack(">II", self._newest, code) + what.encode()))
        self.close()

    def _cancel(self, stream: Stream) -> None:
        self.forget(stream)
        if stream.call is not None:
            stream.call.cancelled()

    def _headers(self, got: Frame) -> None:
        self._block = (got, bytearray(got.payload))
        if got.flags & END_HEADERS:
            self._open()

    def _continuation(self, got: Frame) -> None:
        if self._block is None or self._block[0].stream_id != got.stream_id:
            raise ConnectionFault(PROTOCOL_ERROR, "a continuation of no headers")
        self._block[1].extend(got.payload)
        if len(self._block[1]) > MAX_METADATA_BYTES:
            raise ConnectionFault(PROTOCOL_ERROR, f"headers of over {MAX_METADATA_BYTES} bytes")
        if got.flags & END_HEADERS:
            self._open()

    def _open(self) -> None:
        """The headers are complete: a new stream, or trailers that end one."""
        assert self._block is not None
        (got, block), self._block = self._block, None
        headers = {str(name): str(value) for name, value in self._decoder.decode(bytes(block))}
        stream = self._streams.get(got.stream_id)
        if stream is None:
            if got.stream_id % 2 == 0 or got.stream_id <= self._newest:
                raise ConnectionFault(STREAM_CLOSED, f"headers on stream {got.stream_id}")
            self._newest = got.stream_id
            stream = self._streams[got.stream_id] = Stream(self, got.stream_id, self._stream_window)
            stream.call = self._answer(stream, headers)
        if got.flags & END_STREAM and stream.call is not None:
            stream.call.half_closed()

    def _data(self, got: Frame) -> None:
        self._unacknowledged = self._acknowledge(0, self._unacknowledged + len(got.payload))
        stream = self._streams.get(got.stream_id)
        if stream is None or stream.call is None:
            return
        stream.unacknowledged = self._acknowledge(stream.id, stream.unacknowledged + len(got.payload))
        stream.call.data(got.payload)
        if got.flags & END_STREAM:
            stream.call.half_closed()

    def _acknowledge(self, stream_id: int, size: int) -> int:
        """Return the client's window once half of it is used; the bytes not returned yet."""
        if size < RECEIVE_WINDOW_BYTES // 2:
            return size
        self.put(window_update(stream_id, size))
        return 0

    def _reset(self, got: Frame) -> None:
        if (stream := self._streams.get(got.stream_id)) is not None:
            self._cancel(stream)

    def _settings(self, got: Frame) -> None:
        if got.flags & ACK:
            return
        if len(got.payload) % 6:
            raise ConnectionFault(FRAME_SIZE_ERROR, f"settings of {len(got.payload)} bytes")
        self.put(frame(SETTINGS, ACK, 0))  # first: the client opens larger windows when it has this
        for key, value in struct.iter_unpack(">HI", got.payload):
            if key == INITIAL_WINDOW_SIZE:
                self._resize_windows(value)
            elif key == HEADER_TABLE_SIZE:
                self._encoder.header_table_size = min(value, MAX_TABLE_BYTES)

    def _resize_windows(self, size: int) -> None:
        if size > MAX_WINDOW_BYTES:
            raise ConnectionFault(FLOW_CONTROL_ERROR, f"a window of {size} bytes")
        change, self._stream_window = size - self._stream_window, size
        for stream in list(self._streams.values()):
            stream.window += change
            stream.release()

    def _ping(self, got: Frame) -> None:
        if not got.flags & ACK:
            self.put(frame(PING, ACK, 0, got.payload))

    def _window_update(self, got: Frame) -> None:
        size = number(got)
        if got.stream_id == 0:
            self.window += size
            for stream in list(self._streams.values()):
                stream.release()
        elif got.stream_id in self._streams:
            stream = self._streams[got.stream_id]
            stream.window += size
            stream.release()


SERVICE = "/inference.GRPCInferenceService/"
PREFIX_BYTES = 5
OK, NOT_FOUND, UNIMPLEMENTED, INTERNAL = 0, 5, 12, 13
RESPONSE_HEADERS = ((":status", "200"), ("content-type", "application/grpc"))


class Refusal(Exception):
    """A call ends with the gRPC status `code`."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def serve(service: Service, script: Script) -> Callable[[], Connection]:
    """Creates the connections of a gRPC server."""

    def answer(stream: Stream, headers: dict[str, str]) -> Call:
        method = headers.get(":path", "").removeprefix(SERVICE)
        if method == "ModelStreamInfer":
            return StreamInfer(stream, service, script)
        return Unary(stream, method)

    return lambda: Connection(answer)


class Messages:
    """Splits the bytes of a stream into gRPC messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def read(self, data: bytes) -> list[bytes]:
        """The messages completed by `data`. Raises Refusal for a compressed one."""
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
    """A unary call: one message and one reply."""

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
        self._stream.headers(RESPONSE_HEADERS)
        self._stream.send(self._stream.data(messages.grpc_message(message)))
        self._stream.end(status(OK))

    def cancelled(self) -> None:
        """Nothing to do."""


class StreamInfer:
    """ModelStreamInfer: any number of requests, in sequence or at once, with their answers as they come."""

    def __init__(self, stream: Stream, service: Service, script: Script) -> None:
        self.stream = stream
        self.final_flag = script.final_flag
        self._service = service
        self._messages = Messages()
        self._answers: set[Answer] = set()
        self._no_more = False
        stream.headers(RESPONSE_HEADERS)

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
        """`answer` is complete; None: it never started."""
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
    stream.end((*RESPONSE_HEADERS, *status(refusal.code, str(refusal))))


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
