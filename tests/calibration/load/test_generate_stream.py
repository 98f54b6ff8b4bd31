"""The HTTP client against a server that sends chosen bytes at chosen times."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration.errors import ServerError
from calibration.load.contract import Contract, ModelInput
from calibration.load.exchange import log_of
from calibration.load.http import HttpClient
from calibration.plan import ServerPlan
from calibration.records import RequestLog
from calibration.requests.source import PromptRequest
from calibration.target import describe

OSL = 4
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"
Step = bytes | float
Answer = Callable[[int], Sequence[Step]]
CONFIG = {
    "name": "ensemble",
    "platform": "ensemble",
    "max_batch_size": 8,
    "input": [
        {"name": "text_input", "data_type": "TYPE_STRING", "dims": [-1]},
        {"name": "max_tokens", "data_type": "TYPE_INT32", "dims": [-1]},
        {"name": "stream", "data_type": "TYPE_BOOL", "dims": [1], "optional": True},
    ],
    "output": [
        {"name": "text_output", "data_type": "TYPE_STRING", "dims": [-1]},
        {"name": "output_ids", "data_type": "TYPE_INT32", "dims": [-1, -1]},
    ],
}


def event(tokens: int, **more: Any) -> bytes:
    ids = list(range(tokens))
    answer = {"model_name": "ensemble", "text_output": "word " * tokens, "output_ids": ids[0] if tokens == 1 else ids}
    return f"data: {json.dumps(answer | more)}\n\n".encode()


def chunk(body: bytes) -> bytes:
    return f"{len(body):x}\r\n".encode() + body + b"\r\n"


@dataclass
class Server:
    """Answers each POST with the steps of `answer`: bytes are written, numbers are waited in seconds."""

    answer: Answer
    bodies: list[Any] = field(default_factory=list)
    connections: int = 0
    url: str = ""

    async def speak(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        if head.startswith("GET"):
            return await self._page(head.split()[1], writer)
        length = next(int(line.split(":")[1]) for line in head.splitlines() if line.startswith("Content-Length"))
        self.bodies.append(json.loads(await reader.readexactly(length)))
        for step in self.answer(len(self.bodies)):
            if isinstance(step, bytes):
                writer.write(step)
                await writer.drain()
            elif step < 0:
                return False
            else:
                await asyncio.sleep(step)
        return True

    async def _page(self, path: str, writer: asyncio.StreamWriter) -> bool:
        known = path in ("/v2/health/live", "/v2/models/ensemble/ready", "/v2/models/ensemble/config")
        body = json.dumps(CONFIG).encode() if path.endswith("config") else b""
        status = "200 OK" if known else "400 Bad Request"
        writer.write(f"HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        return False


HANG_UP = -1.0
GOOD = [HEAD, *(chunk(event(1)) for _ in range(OSL)), LAST]


@asynccontextmanager
async def serving(answer: Answer) -> Any:
    server = Server(answer)
    async with await asyncio.start_server(server.speak, "127.0.0.1", 0) as listening:
        server.url = f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        yield server


async def answers(answer: Answer, n: int = 1, timeout_s: float = 5) -> tuple[RequestLog, Server]:
    async with serving(answer) as server:
        target = ServerPlan(url=server.url, protocol="http", timeout_s=timeout_s)
        contract = (await describe(target)).contract
        server.connections = 0
        async with HttpClient(target) as client:
            await client.connect(1)
            connection = client.stream(contract)
            prepared = client.prepare(contract, PromptRequest('two "words"', 2, OSL))
            exchanges = [await connection.exchange(prepared) for _ in range(n)]
            return log_of(exchanges, client.reader(contract)), server


def test_requests_carry_the_same_values_as_over_grpc_and_share_one_connection() -> None:
    log, server = asyncio.run(answers(lambda n: GOOD, n=3))
    assert log.error == ("",) * 3
    assert log.tokens.tolist() == [OSL] * 3
    assert server.bodies == [{"text_input": 'two "words"', "max_tokens": OSL, "stream": True}] * 3
    assert server.connections == 1


def test_times_are_those_of_the_server() -> None:
    """An empty event first, then tokens 20 ms apart, then an end 50 ms late: only the tokens count."""
    steps = [HEAD, chunk(event(0)), 0.05, chunk(event(1)), 0.02, chunk(event(1)), 0.02, chunk(event(2)), 0.05, LAST]
    log, _ = asyncio.run(answers(lambda n: steps))
    assert log.error == ("",)
    assert log.chunk_tokens.tolist() == [1, 1, 2]
    assert log.first_token_s[0] - log.sent_s[0] >= 0.05
    assert log.last_token_s[0] - log.first_token_s[0] >= 0.04
    assert log.end_s[0] - log.last_token_s[0] >= 0.05


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 400), max_size=6), st.integers(1, 3))
def test_it_does_not_matter_where_the_bytes_are_cut(cuts: list[int], per_chunk: int) -> None:
    """Events split over chunks and packets, or several in one, count the same."""
    body = b"".join(event(1) for _ in range(OSL))
    chunks = b"".join(chunk(body[at : at + 170 * per_chunk]) for at in range(0, len(body), 170 * per_chunk))
    whole = HEAD + chunks + LAST
    edges = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    steps: list[Step] = []
    for start, stop in itertools.pairwise(edges):
        steps += [whole[start:stop], 0.001]
    log, _ = asyncio.run(answers(lambda n: steps))
    assert log.error == ("",)
    assert log.tokens.tolist() == [OSL]


def test_a_refused_request_is_an_error_with_the_servers_words() -> None:
    body = b'{"error":"unexpected\\ninput"}'
    refusal = b"HTTP/1.1 400 Bad Request\r\nContent-Length: " + str(len(body)).encode() + b"\r\n\r\n" + body
    log, _ = asyncio.run(answers(lambda n: [refusal] if n == 1 else GOOD, n=2))
    assert log.error == ("HTTP 400: unexpected input", "")


def test_an_error_event_ends_its_request_only() -> None:
    bad = [HEAD, chunk(event(1)), chunk(b'data: {"error":"out of blocks"}\n\n'), LAST]
    log, _ = asyncio.run(answers(lambda n: bad if n == 1 else GOOD, n=2))
    assert log.error == ("out of blocks", "")


def test_a_connection_lost_is_an_error_and_the_next_request_opens_another() -> None:
    log, server = asyncio.run(answers(lambda n: [HEAD, chunk(event(1)), HANG_UP] if n == 1 else GOOD, n=2))
    assert log.error == ("UNAVAILABLE: the server closed the connection", "")
    assert server.connections == 3  # the first, one to see whether the server lives, the new one


def test_a_server_that_closes_after_each_answer_is_followed() -> None:
    closing = [HEAD.replace(b"chunked", b"chunked\r\nConnection: close"), *GOOD[1:], HANG_UP]
    log, server = asyncio.run(answers(lambda n: closing, n=3))
    assert log.error == ("",) * 3
    assert server.connections == 3


def test_an_answer_of_no_told_length_ends_with_its_connection() -> None:
    """As Python's own http.server sends it."""
    head = b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    log, server = asyncio.run(answers(lambda n: [head, *[event(1)] * OSL, 0.05, HANG_UP], n=3))
    assert log.error == ("",) * 3 and log.tokens.tolist() == [OSL] * 3
    assert (log.end_s - log.last_token_s >= 0.04).all()
    assert server.connections == 3


@pytest.mark.parametrize(
    "cut",
    [
        [HEAD, chunk(event(1))],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n", event(1)],
        [b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n"],
        [],
    ],
    ids=["chunks", "length", "head", "nothing"],
)
def test_an_answer_that_ends_before_its_told_end_is_an_error(cut: list[Step]) -> None:
    whole = [b"HTTP/1.0 200 OK\r\n\r\n", *[event(1)] * OSL, HANG_UP]
    log, _ = asyncio.run(answers(lambda n: [*cut, HANG_UP] if n == 2 else whole, n=3))
    assert log.error == ("", "UNAVAILABLE: the server closed the connection", "")


def test_an_answer_of_another_length_is_an_error() -> None:
    log, _ = asyncio.run(answers(lambda n: [HEAD, chunk(event(1)), LAST]))
    assert log.error == (f"1 tokens in the answer where {OSL} were asked for",)


def test_a_request_without_end_is_given_up() -> None:
    log, _ = asyncio.run(answers(lambda n: [HEAD, 0.5] if n == 1 else GOOD, n=2, timeout_s=0.1))
    assert log.error == ("no complete answer within 0.1 s", "")


def test_another_protocol_on_the_port_is_an_error() -> None:
    log, _ = asyncio.run(answers(lambda n: [b"\x00\x00\x12\x04\x00\x00\x00\x00\x00"]))
    assert "does not speak HTTP" in log.error[0]


def absent(call: Callable[[HttpClient], Awaitable[Any]]) -> None:
    async def run() -> None:
        async with HttpClient(ServerPlan(url="127.0.0.1:9", protocol="http")) as client:
            await call(client)

    asyncio.run(run())


def test_nobody_at_the_address_is_a_server_error() -> None:
    contract = Contract("m", {"text_input": ModelInput("BYTES", False)}, ("text_output",), batched=True)
    calls: list[Callable[[HttpClient], Awaitable[Any]]] = [
        lambda client: client.connect(2),
        lambda client: client.model_config("m"),
        lambda client: client.stream(contract).exchange(client.prepare(contract, PromptRequest("a", 1, 1))),
    ]
    for call in calls:
        with pytest.raises(ServerError, match="no Triton server answers over HTTP"):
            absent(call)
    with pytest.raises(ServerError, match="stopped answering in the middle of a level"):
        absent(lambda client: client.check_alive())


def test_a_model_that_is_not_served_is_named() -> None:
    async def ask() -> None:
        async with serving(lambda n: GOOD) as server:
            await describe(ServerPlan(url=server.url, protocol="http", model="nemo"))

    with pytest.raises(ServerError, match="does not serve a model 'nemo'"):
        asyncio.run(ask())
