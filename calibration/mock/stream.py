"""One stream of an HTTP/2 connection, as the server sends on it: data waits for the client's flow-control windows."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from calibration.mock import frames
from calibration.mock.frames import frame
from calibration.mock.truth import Record
from calibration.mock.wire import Wire

Headers = Sequence[tuple[str, str]]


class Line(Wire):
    """The connection that a stream belongs to; `window`: bytes that the client takes on all its streams together."""

    window: int

    @abstractmethod
    def send_headers(self, stream_id: int, headers: Headers, *, end: bool) -> None:
        """Send headers, or trailers."""

    @abstractmethod
    def forget(self, stream: Stream) -> None:
        """The stream is over."""


class Call(Protocol):
    """What a stream carries, told of what the client does with it."""

    @abstractmethod
    def data(self, data: bytes) -> None:
        """Bytes came."""

    @abstractmethod
    def half_closed(self) -> None:
        """The client has sent all it has to send."""

    @abstractmethod
    def cancelled(self) -> None:
        """The client has given up, or is gone."""


class _Held(NamedTuple):
    payload: bytes
    record: Record | None
    moments: tuple[str, ...]


class Stream:
    """One stream of a connection: what is sent waits until the client's windows, of stream and connection, let it."""

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
        """`payload` as DATA frames for `send`, which may send them any number of times."""
        if len(payload) <= frames.MAX_PAYLOAD_BYTES:
            return frame(frames.DATA, 0, self.id, payload)
        parts = range(0, len(payload), frames.MAX_PAYLOAD_BYTES)
        return b"".join(frame(frames.DATA, 0, self.id, payload[at : at + frames.MAX_PAYLOAD_BYTES]) for at in parts)

    def send(self, data: bytes, record: Record | None = None, *moments: str) -> None:
        """Send frames made by `data`, now or as soon as the client lets them."""
        size = len(data) - frames.HEADER_BYTES
        connection = self.connection
        if self._held or size > self.window or size > connection.window or size > frames.MAX_PAYLOAD_BYTES:
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
        """Send as much of what waits as the windows let now."""
        connection = self.connection
        while self._held:
            held = self._held[0]
            size = min(len(held.payload), self.window, connection.window, frames.MAX_PAYLOAD_BYTES)
            if size <= 0:
                return
            self.window -= size
            connection.window -= size
            part, rest = held.payload[:size], held.payload[size:]
            if rest:
                connection.put(frame(frames.DATA, 0, self.id, part))
                self._held[0] = held._replace(payload=rest)
            else:
                connection.put(frame(frames.DATA, 0, self.id, part), held.record, held.moments)
                self._held.popleft()
        if self._trailers is not None:
            connection.send_headers(self.id, self._trailers, end=True)
            connection.forget(self)

    def _hold(self, data: bytes, record: Record | None, moments: tuple[str, ...]) -> None:
        step = frames.HEADER_BYTES + frames.MAX_PAYLOAD_BYTES
        payload = b"".join(data[at + frames.HEADER_BYTES : at + step] for at in range(0, len(data), step))
        self._held.append(_Held(payload, record, moments))
        self.release()
