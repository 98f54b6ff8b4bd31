"""The mock over HTTP/1.1, keep-alive: Triton's generate_stream, and OpenAI's completions as vLLM streams them."""

from __future__ import annotations

import json
from collections.abc import Callable
from http import HTTPStatus

import httptools

from lab.mock import service as messages
from lab.mock.service import Answer, Moment, Record, Service, Wire

EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def serve(service: Service) -> Callable[[], HttpConnection]:
    """Creates the connections of an HTTP server."""
    return lambda: HttpConnection(service)


class HttpConnection(Wire):
    """One connection: one request at a time, as Triton's clients send them. httptools calls its `on_...` methods."""

    def __init__(self, service: Service) -> None:
        super().__init__()
        self._service = service
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._body = bytearray()
        self._answer: Answer | None = None
        self.prompt_tokens = 0

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._refuse(HTTPStatus.BAD_REQUEST, f"not HTTP/1.1: {error}")
            self.close()
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._answer is not None:
            self._service.drop(self._answer)

    def on_message_begin(self) -> None:
        self._url = b""
        self._body.clear()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"expect" and value.lower() == b"100-continue":
            self.put(CONTINUE)
            self.flush()

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        path = self._url.decode("ascii", "replace").partition("?")[0].strip("/").split("/")
        match self._parser.get_method(), path:
            case b"GET", ["v2", "health", "live" | "ready"]:
                self._reply(HTTPStatus.OK, b"")
            case b"GET", ["v2", "models", messages.MODEL | messages.ENGINE, "ready"]:
                self._reply(HTTPStatus.OK, b"")
            case b"GET", ["v2", "models", model, "config"] if (config := messages.config_json(model)) is not None:
                self._reply(HTTPStatus.OK, config)
            case b"POST", ["v2", "models", messages.MODEL, "generate_stream"]:
                self._generate(HttpOutlet(self))
            case b"POST", ["v1", "completions"]:
                self._generate(OpenAiOutlet(self, chat=False))
            case b"POST", ["v1", "chat", "completions"]:
                self._generate(OpenAiOutlet(self, chat=True))
            case b"GET", ["v1", "models"]:
                self._reply(HTTPStatus.OK, messages.OPENAI_MODELS)
            case b"GET", ["version"]:
                self._reply(HTTPStatus.OK, messages.OPENAI_VERSION)
            case _, ["v2", "models", model, *_]:
                self._refuse(HTTPStatus.NOT_FOUND, f"Request for unknown model: '{model}' is not found")
            case _:
                self._refuse(HTTPStatus.NOT_FOUND, "Not Found")

    def finished(self) -> None:
        """The answer is complete."""
        self._answer = None
        self.put(LAST_CHUNK)
        self._close_unless_kept()

    def _generate(self, outlet: HttpOutlet) -> None:
        try:
            asked = json.loads(self._body)
            osl, self.prompt_tokens = asked["max_tokens"], messages.prompt_tokens(asked)
        except (ValueError, TypeError, KeyError):
            osl = None
        if not isinstance(osl, int) or osl < 1:
            self._refuse(HTTPStatus.BAD_REQUEST, "the mock wants JSON with max_tokens of 1 or more")
            return
        self.put(EVENTS)
        answer = self._service.receive(outlet, osl)
        self._answer = answer if answer.outlet is not None else None

    def _reply(self, status: HTTPStatus, body: bytes) -> None:
        head = f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json\r\n"
        self.put(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        self._close_unless_kept()

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self._reply(status, json.dumps({"error": why}).encode())

    def _close_unless_kept(self) -> None:
        if not self._parser.should_keep_alive():
            self.close()


class HttpOutlet:
    """The responses to one request as events in the body of its answer."""

    def __init__(self, connection: HttpConnection) -> None:
        self.wire: Wire = connection
        self._connection = connection

    def response(self, tokens: int, final: bool) -> bytes:
        return messages.server_sent_event(tokens)

    def send(self, response: bytes, record: Record | None = None, *moments: Moment) -> None:
        self._connection.put(response, record, moments)

    def finish(self) -> None:
        self._connection.finished()

    def fail(self, message: str) -> None:
        self._connection.put(messages.http_chunk(b"data: " + json.dumps({"error": message}).encode() + b"\n\n"))
        self._connection.finished()

    def hang_up(self) -> None:
        self._connection.abort()


class OpenAiOutlet(HttpOutlet):
    """The same, streamed like an OpenAI server: each event has the number of tokens so far."""

    def __init__(self, connection: HttpConnection, chat: bool) -> None:
        super().__init__(connection)
        self._events = messages.OpenAiEvents(chat)

    def response(self, tokens: int, final: bool) -> bytes:
        return self._events.template(tokens)

    def send(self, response: bytes, record: Record | None = None, *moments: Moment) -> None:
        super().send(self._events.filled(response, self._connection.prompt_tokens), record, *moments)

    def finish(self) -> None:
        self._connection.put(messages.http_chunk(self._events.last(self._connection.prompt_tokens)))
        super().finish()
