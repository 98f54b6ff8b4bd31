"""HTTP with server-sent events (``data: {json}``, an empty line): connections, and Triton's POST .../generate_stream.

Bytes go through a bare asyncio protocol and httptools: one time stamp and one append for each event, which takes 5 to
10 µs of CPU, where an HTTP client library takes 25 to 80. The events are read afterwards.
"""

from __future__ import annotations

import asyncio
import errno
import json
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Any, Self
from urllib.parse import quote

from google.protobuf import json_format
from httptools import HttpParserError, HttpResponseParser
from tritonclient.grpc import model_config_pb2

from calibration.errors import KEY, CalibrationError, ClientLimitedError, ServerError
from calibration.load.exchange import MOST_BYTES, TOO_LONG, Exchange, Prepared, Reader, one_line
from calibration.page import get
from calibration.plan import ServerPlan
from calibration.requests.source import PromptRequest

ANSWER_WITHIN_S = 3.0
ALIVE_WITHIN_S = 15.0
"""A server at its limit may take this long to answer that it is alive; one that is gone refuses the connection."""
_LINE_END = b"\n"
_EVENT_END = b"\n\n"
_DATA = b"data:"
_ERROR = b'data: {"error"'


class HttpClient:
    """Keep-alive connections to one server. Use as ``async with``.

    `root` is the base of the server's paths, `headers` are sent with every request, `tls` is None without HTTPS.
    `alive_page`: the page that shows whether the server is alive.
    """

    alive_page = "/v2/health/live"

    def __init__(self, server: ServerPlan) -> None:
        self.server = server
        self.root = f"http://{server.address}"
        self.headers: dict[str, str] = {}
        self.tls: ssl.SSLContext | None = None
        self._host, _, self._port = server.address.rpartition(":")
        self._connections: list[Connection] = []
        self._spare: list[Connection] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for connection in self._connections:
            connection.close()

    async def connect(self, streams: int) -> None:
        """Open `streams` connections before the load starts. Raises ServerError if the server is absent."""
        fresh = [Connection(self) for _ in range(streams - len(self._spare))]
        self._connections += fresh
        self._spare += fresh
        for connection in fresh:
            try:
                await connection.open()
            except ConnectionError as error:
                raise self._absent(error) from None

    def stream(self, contract: Any) -> Connection:
        """A connection for one user, an open one if any is left."""
        if self._spare:
            return self._spare.pop()
        self._connections.append(Connection(self))
        return self._connections[-1]

    def prepare(self, contract: Any, request: PromptRequest) -> Prepared:
        """`request` as the bytes of a POST."""
        body = json.dumps(contract.values(request)).encode()
        head = (
            f"POST /v2/models/{quote(contract.model)}/generate_stream HTTP/1.1\r\nHost: {self.server.url}\r\n"
            f"Content-Type: application/json\r\nAccept: text/event-stream\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return Prepared(b"", head.encode() + body, request.isl, request.osl)

    def reader(self, contract: Any) -> Reader:
        """How the answers on these connections are read."""
        return Reader(lambda raw: sum(map(contract.json_tokens, events(raw))), contract.exact)

    def error_in(self, raw: Sequence[bytes]) -> str:
        """The error in the events of an answer, "" if there is none: Triton sends it as the last event."""
        last = b"".join(raw[-2:]).strip().rpartition(_EVENT_END)[2] if raw else b""
        return reason(last.removeprefix(_DATA), self.hide) if last.startswith(_ERROR) else ""

    def hide(self, text: str) -> str:
        """What the server said, in a form that may be shown and stored."""
        return text

    async def model_config(self, name: str) -> Any:
        """The ModelConfig of model `name`; None if the server has no such model. Raises ServerError."""
        status, page = await self._get(f"/v2/models/{quote(name)}/config")
        if status != 200:
            return None
        try:
            return json_format.Parse(page, model_config_pb2.ModelConfig(), ignore_unknown_fields=True)
        except (json_format.ParseError, UnicodeDecodeError, RecursionError) as error:
            reason = one_line(str(error))
            raise ServerError(f"{self.server.url}: the config of {name!r} cannot be read ({reason})") from None

    async def check_ready(self) -> None:
        """Raises ServerError if the server or its model is not ready."""
        status, _ = await self._get(f"/v2/models/{quote(self.server.model)}/ready")
        if status != 200:
            raise ServerError(f"{self.server.url}: model {self.server.model!r} is not ready; see the server's log")

    async def check_alive(self) -> None:
        """Raises ServerError if the server does not answer any more."""
        try:
            await self._get(self.alive_page, ALIVE_WITHIN_S)
        except ServerError:
            raise ServerError(f"{self.server.url}: the server stopped answering in the middle of a level") from None

    async def dial(self, connection: Connection) -> asyncio.Transport:
        """A new TCP connection of which `connection` is the protocol.

        Raises ConnectionError if the server is too busy for one, ServerError if it is not there.
        """
        loop = asyncio.get_running_loop()
        host, port = self._host.strip("[]"), int(self._port)
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                made, _ = await loop.create_connection(lambda: connection, host, port, ssl=self.tls)
        except TimeoutError:
            await self.check_alive()
            raise ConnectionError(f"no connection within {ANSWER_WITHIN_S:g} s") from None
        except OSError as error:
            raise self._absent(error) from None
        return made

    async def _get(self, path: str, within_s: float | None = None) -> tuple[int, bytes]:
        within_s = ANSWER_WITHIN_S if within_s is None else within_s
        try:
            return await asyncio.to_thread(get, f"{self.root}{path}", within_s, self.headers, self.tls)
        except OSError as error:
            raise self._absent(error) from error

    def _absent(self, error: OSError) -> CalibrationError:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            return ClientLimitedError(
                f"this machine opens no more connections ({error.strerror}): raise its limit (ulimit -n) above the "
                "users, or plan fewer"
            )
        return self.absent(error)

    def absent(self, error: OSError) -> ServerError:
        """The error for a server that is not there, or does not speak the protocol."""
        hint = f"start one, or correct {KEY} (the protocol is http)"
        reason = error.strerror or str(error) or "timed out"
        return ServerError(
            f"{self.server.url}: no Triton server answers over HTTP there ({reason}); {hint}", "server.url"
        )


class Connection(asyncio.Protocol):
    """One request at a time over one keep-alive connection, which is reopened when it is lost.

    `status` is that of the last answer, 0 before the first. An answer without a stated length ends with the connection.
    """

    status = 0

    def __init__(self, client: HttpClient) -> None:
        self._client = client
        self._transport: asyncio.Transport | None = None
        self._exchange = Exchange(0, 0, 0)
        self._over: asyncio.Future[None] | None = None
        self._now_ns = 0
        self._rest = b""
        self._room = MOST_BYTES
        self._keeps_alive = True
        self._length_told = self._until_closed = False

    @property
    def is_open(self) -> bool:
        """Whether it is connected."""
        return self._transport is not None and not self._transport.is_closing()

    async def open(self) -> asyncio.Transport:
        """Connect, if that is not done. Raises as `HttpClient.dial` does."""
        if self._transport is None:
            self._parser = HttpResponseParser(self)
            self._transport = await self._client.dial(self)
        return self._transport

    async def exchange(self, prepared: Prepared) -> Exchange:
        """Send a request and wait for the end of its answer. If it fails, `Exchange.error` says why.

        Raises ServerError if the server is gone.
        """
        begun_ns = time.perf_counter_ns()
        try:
            transport = await self.open()
        except ConnectionError as error:
            failed = Exchange(prepared.isl, prepared.osl, begun_ns, time.perf_counter_ns(), turn=prepared.turn)
            failed.error = f"UNAVAILABLE: {error}"
            return failed
        self._over = asyncio.get_running_loop().create_future()
        self._rest = b""
        self._until_closed = False
        self._room = MOST_BYTES
        self._exchange = exchange = Exchange(prepared.isl, prepared.osl, time.perf_counter_ns(), turn=prepared.turn)
        transport.write(prepared.body)
        timeout_s = self._client.server.timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await self._over
        except TimeoutError:
            exchange.error = f"no complete answer within {timeout_s:g} s"
        except ConnectionError as error:
            await self._client.check_alive()
            exchange.error = f"UNAVAILABLE: {error}"
        self._over = None
        if exchange.error or not self._keeps_alive:
            exchange.end_ns = exchange.end_ns or time.perf_counter_ns()
            self.close()
        return exchange

    def close(self) -> None:
        """Close the connection; the next request opens a new one."""
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        self._now_ns = time.perf_counter_ns()
        self._room -= len(data)
        if self._room < 0:
            self._exchange.error = TOO_LONG
            self._end()
            return
        try:
            self._parser.feed_data(data)
        except HttpParserError as error:
            self._fail(f"the server does not speak HTTP ({error})")

    def on_message_begin(self) -> None:
        """Called by the parser at the start of an answer."""
        self._length_told = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser for each line of the head."""
        chunked = name.lower() == b"transfer-encoding" and b"chunked" in value.lower()
        self._length_told |= chunked or name.lower() == b"content-length"

    def on_headers_complete(self) -> None:
        """Called by the parser at the end of the head."""
        self._until_closed = not self._length_told

    def on_body(self, body: bytes) -> None:
        """Called by the parser for each part of a body: mostly one whole event. Kept in whole lines."""
        if self._rest or not body.endswith(_LINE_END):
            body = self._rest + body
            whole = body.rfind(_LINE_END) + 1
            body, self._rest = body[:whole], body[whole:]
        if body:
            self._exchange.at_ns.append(self._now_ns)
            self._exchange.raw.append(body)

    def on_message_complete(self) -> None:
        """Called by the parser at the end of an answer."""
        exchange = self._exchange
        exchange.end_ns = self._now_ns
        if self._rest:
            exchange.at_ns.append(self._now_ns)
            exchange.raw.append(self._rest)
        self._keeps_alive = self._parser.should_keep_alive()  # known to the parser during this call only
        self.status = self._parser.get_status_code()
        if self.status != 200:
            exchange.error = f"HTTP {self.status}: {reason(b''.join(exchange.raw), self._client.hide)}"
        else:
            exchange.error = self._client.error_in(exchange.raw)
        self._end()

    def _end(self) -> None:
        if self._over is not None and not self._over.done():
            self._over.set_result(None)

    def eof_received(self) -> None:
        """Called by the event loop when the server closes the connection normally."""
        if self._until_closed:
            self._now_ns = time.perf_counter_ns()
            self.on_message_complete()

    def connection_lost(self, error: Exception | None) -> None:
        """Called by the event loop."""
        self._transport = None
        self._fail("the server closed the connection")

    def _fail(self, reason: str) -> None:
        if self._over is not None and not self._over.done():
            self._over.set_exception(ConnectionError(reason))


def events(raw: bytes) -> list[dict[str, Any]]:
    """The JSON objects in whole server-sent events."""
    lines = (line.removeprefix(_DATA) for line in raw.split(b"\n") if line.startswith(_DATA))
    return [event for event in map(_json, lines) if isinstance(event, dict)]


def _json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def reason(body: bytes, hide: Callable[[str], str]) -> str:
    """The error text in a JSON body, else the body itself, on one line: what `hide` leaves of it, which sees all of the
    text, as half a key that the line cuts off is not known for one."""
    found = _json(body)
    for name in ("error", "message", "detail"):  # Triton and OpenAI's; vLLM's of old; FastAPI's
        if isinstance(found, dict) and name in found:
            found = found[name]
    if isinstance(found, dict | list) or found is None:
        return one_line(hide(body.decode("utf-8", "replace")))
    return one_line(hide(str(found)))
