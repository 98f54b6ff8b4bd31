"""The server's side of an HTTP/2 connection (RFC 9113), as far as gRPC clients use it: many streams, flow control."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable

import hpack

from calibration.mock import frames
from calibration.mock.frames import ConnectionFault, Frame, FrameReader, frame
from calibration.mock.stream import Call, Headers, Line, Stream

RECEIVE_WINDOW_BYTES = 1 << 20
MAX_METADATA_BYTES = 1 << 20
MAX_TABLE_BYTES = 4096
MANY_STREAMS = 100_000
Answering = Callable[[Stream, dict[str, str]], Call]


class Connection(Line):
    """One connection. `answer(stream, headers)` gives the call that a new stream carries."""

    def __init__(self, answer: Answering) -> None:
        super().__init__()
        self.window = frames.DEFAULT_WINDOW_BYTES
        self._answer = answer
        self._reader = FrameReader()
        self._streams: dict[int, Stream] = {}
        self._stream_window = frames.DEFAULT_WINDOW_BYTES
        self._newest = 0
        self._unacknowledged = 0
        self._block: tuple[Frame, bytearray] | None = None
        self._decoder = hpack.Decoder(max_header_list_size=MAX_METADATA_BYTES)
        self._encoder = hpack.Encoder()
        self._on_frame = {
            frames.DATA: self._data,
            frames.HEADERS: self._headers,
            frames.CONTINUATION: self._continuation,
            frames.RST_STREAM: self._reset,
            frames.SETTINGS: self._settings,
            frames.PING: self._ping,
            frames.WINDOW_UPDATE: self._window_update,
        }

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        ours = {frames.INITIAL_WINDOW_SIZE: RECEIVE_WINDOW_BYTES, frames.MAX_CONCURRENT_STREAMS: MANY_STREAMS}
        self.put(frames.settings(ours))
        self.put(frames.window_update(0, RECEIVE_WINDOW_BYTES - frames.DEFAULT_WINDOW_BYTES))
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for stream in list(self._streams.values()):
            self._cancel(stream)

    def data_received(self, data: bytes) -> None:
        try:
            for got in self._reader.read(data):
                if self._block is not None and got.kind != frames.CONTINUATION:
                    raise ConnectionFault(frames.PROTOCOL_ERROR, "headers were not completed")
                if got.kind in self._on_frame:
                    self._on_frame[got.kind](got)
        except ConnectionFault as fault:
            self._go_away(fault.code, str(fault))
        except hpack.HPACKError as fault:
            self._go_away(frames.PROTOCOL_ERROR, f"headers: {fault}")
        self.flush()

    def send_headers(self, stream_id: int, headers: Headers, *, end: bool) -> None:
        flags = frames.END_HEADERS | (frames.END_STREAM if end else 0)
        self.put(frame(frames.HEADERS, flags, stream_id, self._encoder.encode(headers)))

    def forget(self, stream: Stream) -> None:
        self._streams.pop(stream.id, None)

    def _go_away(self, code: int, what: str) -> None:
        self.put(frame(frames.GOAWAY, 0, 0, struct.pack(">II", self._newest, code) + what.encode()))
        self.close()

    def _cancel(self, stream: Stream) -> None:
        self.forget(stream)
        if stream.call is not None:
            stream.call.cancelled()

    def _headers(self, got: Frame) -> None:
        self._block = (got, bytearray(got.payload))
        if got.flags & frames.END_HEADERS:
            self._open()

    def _continuation(self, got: Frame) -> None:
        if self._block is None or self._block[0].stream_id != got.stream_id:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "a continuation of no headers")
        self._block[1].extend(got.payload)
        if len(self._block[1]) > MAX_METADATA_BYTES:
            raise ConnectionFault(frames.PROTOCOL_ERROR, f"headers of over {MAX_METADATA_BYTES} bytes")
        if got.flags & frames.END_HEADERS:
            self._open()

    def _open(self) -> None:
        """The headers are complete: a new stream, or trailers that end one."""
        assert self._block is not None
        (got, block), self._block = self._block, None
        headers = {str(name): str(value) for name, value in self._decoder.decode(bytes(block))}
        stream = self._streams.get(got.stream_id)
        if stream is None:
            if got.stream_id % 2 == 0 or got.stream_id <= self._newest:
                raise ConnectionFault(frames.STREAM_CLOSED, f"headers on stream {got.stream_id}")
            self._newest = got.stream_id
            stream = self._streams[got.stream_id] = Stream(self, got.stream_id, self._stream_window)
            stream.call = self._answer(stream, headers)
        if got.flags & frames.END_STREAM and stream.call is not None:
            stream.call.half_closed()

    def _data(self, got: Frame) -> None:
        self._unacknowledged = self._acknowledge(0, self._unacknowledged + len(got.payload))
        stream = self._streams.get(got.stream_id)
        if stream is None or stream.call is None:
            return
        stream.unacknowledged = self._acknowledge(stream.id, stream.unacknowledged + len(got.payload))
        stream.call.data(got.payload)
        if got.flags & frames.END_STREAM:
            stream.call.half_closed()

    def _acknowledge(self, stream_id: int, size: int) -> int:
        """Give the client its window back once half of it is used; what is left to give back."""
        if size < RECEIVE_WINDOW_BYTES // 2:
            return size
        self.put(frames.window_update(stream_id, size))
        return 0

    def _reset(self, got: Frame) -> None:
        if (stream := self._streams.get(got.stream_id)) is not None:
            self._cancel(stream)

    def _settings(self, got: Frame) -> None:
        if got.flags & frames.ACK:
            return
        if len(got.payload) % 6:
            raise ConnectionFault(frames.FRAME_SIZE_ERROR, f"settings of {len(got.payload)} bytes")
        self.put(frame(frames.SETTINGS, frames.ACK, 0))  # first: the client opens larger windows when it has this
        for key, value in struct.iter_unpack(">HI", got.payload):
            if key == frames.INITIAL_WINDOW_SIZE:
                self._resize_windows(value)
            elif key == frames.HEADER_TABLE_SIZE:
                self._encoder.header_table_size = min(value, MAX_TABLE_BYTES)

    def _resize_windows(self, size: int) -> None:
        if size > frames.MAX_WINDOW_BYTES:
            raise ConnectionFault(frames.FLOW_CONTROL_ERROR, f"a window of {size} bytes")
        change, self._stream_window = size - self._stream_window, size
        for stream in list(self._streams.values()):
            stream.window += change
            stream.release()

    def _ping(self, got: Frame) -> None:
        if not got.flags & frames.ACK:
            self.put(frame(frames.PING, frames.ACK, 0, got.payload))

    def _window_update(self, got: Frame) -> None:
        size = frames.number(got)
        if got.stream_id == 0:
            self.window += size
            for stream in list(self._streams.values()):
                stream.release()
        elif got.stream_id in self._streams:
            stream = self._streams[got.stream_id]
            stream.window += size
            stream.release()
