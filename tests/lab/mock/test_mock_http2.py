"""The mock's HTTP/2 below gRPC: frames however they are cut, flow control, settings, what breaks the protocol."""

from __future__ import annotations

import asyncio
import itertools
import struct
from typing import Any, cast

import hpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.mock import grpc_server
from lab.mock.grpc_server import Connection, Frame, FrameReader, Headers, Line, Stream, frame


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2**31 - 1), st.binary(max_size=300))), st.data())
def test_frames_are_read_however_they_are_cut(sent: list[tuple[int, int, bytes]], data: st.DataObject) -> None:
    wire = grpc_server.PREFACE + b"".join(frame(kind, 0, stream_id, payload) for kind, stream_id, payload in sent)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(wire)))))
    reader = FrameReader()
    got = [
        (one.kind, one.stream_id, one.payload)
        for start, stop in itertools.pairwise([0, *cuts, len(wire)])
        for one in reader.read(wire[start:stop])
    ]
    assert got == sent


@settings(deadline=None)
@given(st.binary(max_size=50), st.integers(0, 255))
def test_padding_is_taken_off(payload: bytes, padding: int) -> None:
    reader = FrameReader()
    padded = bytes([padding]) + payload + bytes(padding)
    got = list(reader.read(grpc_server.PREFACE + frame(grpc_server.DATA, grpc_server.PADDED, 1, padded)))
    assert [one.payload for one in got] == [payload]


@pytest.mark.parametrize(
    "wire",
    [
        b"GET / HTTP/1.1\r\n",
        grpc_server.PREFACE + b"\x00\x40\x01" + bytes(6),
        grpc_server.PREFACE + frame(grpc_server.DATA, grpc_server.PADDED, 1, b"\x05abc"),
        grpc_server.PREFACE + frame(grpc_server.HEADERS, grpc_server.PADDED, 1),
    ],
)
def test_what_cannot_be_http2_is_a_fault(wire: bytes) -> None:
    with pytest.raises(grpc_server.ConnectionFault):
        list(FrameReader().read(wire))


class Tape(Line):
    """A connection that keeps what is put on it."""

    def __init__(self, window: int) -> None:
        super().__init__()
        self.window = window
        self.payload = b""
        self.ended = False

    def put(self, data: bytes, record: Any = None, moments: tuple[str, ...] = ()) -> None:
        for got in _reader().read(data):
            self.payload += got.payload
        for moment in moments:
            setattr(record, moment, len(self.payload))

    def send_headers(self, stream_id: int, headers: Headers, *, end: bool) -> None:
        self.ended = end

    def forget(self, stream: Stream) -> None:
        assert self.ended


def _reader() -> FrameReader:
    reader = FrameReader()
    assert not list(reader.read(grpc_server.PREFACE))
    return reader


@settings(deadline=None)
@given(
    st.integers(0, 100),
    st.integers(0, 100),
    st.lists(st.one_of(st.binary(min_size=1, max_size=60), st.integers(-60, 60))),
)
def test_windows_are_kept_and_nothing_is_lost(of_stream: int, of_line: int, steps: list[bytes | int]) -> None:
    """`steps`: a message to send; n > 0: n bytes more for the stream; n < 0: -n bytes more for the connection."""
    line = Tape(of_line)
    stream = Stream(line, 1, of_stream)
    wanted = b""
    for step in steps:
        if isinstance(step, bytes):
            wanted += step
            stream.send(stream.data(step))
        else:
            of_stream += max(0, step)
            of_line += max(0, -step)
            stream.window += max(0, step)
            line.window += max(0, -step)
            stream.release()
        assert line.payload == wanted[: min(of_stream, of_line)]
    stream.end(())
    assert line.ended == (len(wanted) <= min(of_stream, of_line))
    stream.window += len(wanted)
    line.window += len(wanted)
    stream.release()
    assert line.payload == wanted
    assert line.ended


def test_a_message_of_many_frames_and_its_moment() -> None:
    class Moments:
        last_sent_s = 0

    line = Tape(window=100_000)
    stream = Stream(line, 1, window=100_000)
    moments: Any = Moments()
    stream.send(stream.data(b"x" * 60_000), moments, "last_sent_s")
    stream.send(stream.data(b"y" * 60_000), moments, "last_sent_s")
    assert len(line.payload) == 100_000
    assert moments.last_sent_s == 60_000
    line.window = stream.window = 20_000
    stream.release()
    assert moments.last_sent_s == 120_000
    assert line.payload == b"x" * 60_000 + b"y" * 60_000


class Echo:
    """A call that answers with what it is sent."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.got = b""
        self.was_cancelled = False

    def data(self, data: bytes) -> None:
        self.got += data

    def half_closed(self) -> None:
        self.stream.headers([(":status", "200")])
        self.stream.send(self.stream.data(self.got))
        self.stream.end([("done", "yes")])

    def cancelled(self) -> None:
        self.was_cancelled = True


class Peer:
    """The client's end of a connection without a network: says frames, hears frames."""

    def __init__(self) -> None:
        self.calls: list[Echo] = []
        self.closed = False
        self._heard = _reader()
        self._written = b""
        self._server = Connection(self._call)
        self._server.connection_made(cast(asyncio.BaseTransport, self))
        self.greeting = self.say(grpc_server.PREFACE)

    def say(self, data: bytes) -> list[Frame]:
        self._server.data_received(data)
        found = list(self._heard.read(self._written))
        self._written = b""
        return found

    def vanish(self) -> None:
        self._server.connection_lost(None)

    def write(self, data: bytes) -> None:
        self._written += data

    def close(self) -> None:
        self.closed = True

    def _call(self, stream: Stream, headers: dict[str, str]) -> Echo:
        self.calls.append(Echo(stream))
        return self.calls[-1]


def open_stream(stream_id: int = 1, headers: Headers = ((":path", "/x"),)) -> bytes:
    return frame(grpc_server.HEADERS, grpc_server.END_HEADERS, stream_id, hpack.Encoder().encode(headers))


def window(size: int) -> bytes:
    return grpc_server.settings({grpc_server.INITIAL_WINDOW_SIZE: size})


def kinds(found: list[Frame]) -> list[int]:
    return [one.kind for one in found]


def payload(found: list[Frame]) -> bytes:
    return b"".join(one.payload for one in found if one.kind == grpc_server.DATA)


def test_a_call_from_headers_to_trailers() -> None:
    peer = Peer()
    assert kinds(peer.greeting) == [grpc_server.SETTINGS, grpc_server.WINDOW_UPDATE]
    assert not peer.say(open_stream())
    answer = peer.say(frame(grpc_server.DATA, grpc_server.END_STREAM, 1, b"hello"))
    assert kinds(answer) == [grpc_server.HEADERS, grpc_server.DATA, grpc_server.HEADERS]
    assert [bool(one.flags & grpc_server.END_STREAM) for one in answer] == [False, False, True]
    assert payload(answer) == b"hello"


def test_settings_are_acknowledged_before_data_uses_them() -> None:
    peer = Peer()
    peer.say(window(2) + open_stream())
    assert payload(peer.say(frame(grpc_server.DATA, grpc_server.END_STREAM, 1, b"hello"))) == b"he"
    assert not payload(peer.say(window(0)))  # the stream owes two bytes now
    assert not payload(peer.say(window(2)))
    grown = peer.say(window(100))
    assert kinds(grown) == [grpc_server.SETTINGS, grpc_server.DATA, grpc_server.HEADERS]
    assert grown[0].flags & grpc_server.ACK
    assert payload(grown) == b"llo"


def test_both_windows_are_waited_for() -> None:
    peer = Peer()
    peer.say(window(0) + open_stream())
    assert not payload(peer.say(frame(grpc_server.DATA, grpc_server.END_STREAM, 1, b"hello")))
    assert not payload(peer.say(grpc_server.window_update(0, 100)))
    assert payload(peer.say(grpc_server.window_update(1, 4))) == b"hell"
    assert kinds(peer.say(grpc_server.window_update(1, 4))) == [grpc_server.DATA, grpc_server.HEADERS]


def test_pings_are_answered_and_answers_to_pings_are_not() -> None:
    peer = Peer()
    assert peer.say(frame(grpc_server.PING, 0, 0, b"12345678")) == [
        Frame(grpc_server.PING, grpc_server.ACK, 0, b"12345678")
    ]
    assert not peer.say(frame(grpc_server.PING, grpc_server.ACK, 0, b"12345678"))


def test_the_client_gets_its_window_back() -> None:
    peer = Peer()
    peer.say(open_stream())
    part = frame(grpc_server.DATA, 0, 1, bytes(grpc_server.MAX_PAYLOAD_BYTES))
    given_back = {0: 0, 1: 0}
    for _ in range(200):
        for one in peer.say(part):
            given_back[one.stream_id] += grpc_server.number(one)
    assert all(200 * grpc_server.MAX_PAYLOAD_BYTES - size < 1 << 19 for size in given_back.values())


@pytest.mark.parametrize("cut", [1, 3, 10])
def test_headers_go_on_in_continuations(cut: int) -> None:
    peer = Peer()
    block = hpack.Encoder().encode([(":path", "/x"), ("long", "word " * 20)])
    peer.say(frame(grpc_server.HEADERS, 0, 1, block[:cut]))
    assert not peer.calls
    peer.say(frame(grpc_server.CONTINUATION, grpc_server.END_HEADERS, 1, block[cut:]))
    assert len(peer.calls) == 1


def test_a_reset_or_a_lost_connection_cancels_calls() -> None:
    peer = Peer()
    peer.say(open_stream(1) + open_stream(3))
    assert not peer.say(frame(grpc_server.RST_STREAM, 0, 1, struct.pack(">I", grpc_server.CANCEL)))
    assert [call.was_cancelled for call in peer.calls] == [True, False]
    peer.vanish()
    assert [call.was_cancelled for call in peer.calls] == [True, True]


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (frame(grpc_server.HEADERS, 0, 1, b"") + frame(grpc_server.PING, 0, 0, bytes(8)), grpc_server.PROTOCOL_ERROR),
        (frame(grpc_server.CONTINUATION, 0, 1, b""), grpc_server.PROTOCOL_ERROR),
        (open_stream(2), grpc_server.STREAM_CLOSED),
        (frame(grpc_server.HEADERS, grpc_server.END_HEADERS, 1, b"\xff" * 20), grpc_server.PROTOCOL_ERROR),
        (frame(grpc_server.SETTINGS, 0, 0, b"short"), grpc_server.FRAME_SIZE_ERROR),
        (window(2**31), grpc_server.FLOW_CONTROL_ERROR),
        (frame(grpc_server.WINDOW_UPDATE, 0, 0, b"abc"), grpc_server.FRAME_SIZE_ERROR),
        (
            frame(grpc_server.HEADERS, 0, 1, bytes(16_000)) + frame(grpc_server.CONTINUATION, 0, 1, bytes(16_000)) * 70,
            1,
        ),
    ],
)
def test_a_broken_protocol_ends_the_connection_with_its_code(wrong: bytes, code: int) -> None:
    peer = Peer()
    last = peer.say(wrong)[-1]
    assert last.kind == grpc_server.GOAWAY
    assert struct.unpack(">II", last.payload[:8])[1] == code
    assert peer.closed
