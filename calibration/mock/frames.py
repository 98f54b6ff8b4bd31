"""HTTP/2 frames (RFC 9113, section 4 and 6): the bytes of one, and a reader that cuts them out of what arrives."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER_BYTES = 9
MAX_PAYLOAD_BYTES = 16_384  # what every peer accepts, and all that is accepted here

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
WITH_PRIORITY = 0x20

HEADER_TABLE_SIZE, INITIAL_WINDOW_SIZE, MAX_CONCURRENT_STREAMS = 0x1, 0x4, 0x3
NO_ERROR, PROTOCOL_ERROR, FLOW_CONTROL_ERROR, STREAM_CLOSED, FRAME_SIZE_ERROR, CANCEL = 0x0, 0x1, 0x3, 0x5, 0x6, 0x8
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
    """Cuts what a connection receives into frames. Raises ConnectionFault where that cannot be HTTP/2."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._preface_left = PREFACE

    def read(self, data: bytes) -> Iterator[Frame]:
        """The frames that `data` completes."""
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
