"""Servers that break every rule: each is one line and exit code 2, or a point that says so, in bounded time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import Result
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2, service_pb2

from calibration.errors import ClientLimitedError, ServerError
from calibration.load import grpc as triton
from calibration.load.contract import Contract, ModelInput
from calibration.load.exchange import Exchange, log_of
from calibration.load.grpc import GrpcClient
from calibration.load.http import HttpClient
from calibration.load.loops import ask
from calibration.plan import ServerPlan
from calibration.requests.source import PromptRequest
from calibration.store import Store
from tests.calibration.called import call, failed
from tests.calibration.load.test_generate_stream import CONFIG, HEAD, LAST, chunk, event
from tests.calibration.mock_server import Script, subprocess_server

SERVICE = "inference.GRPCInferenceService"
WITHIN_S = 0.5
Behave = Callable[[socket.socket], None]

# a server that holds the client without end is found by the time-out
pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("database")]


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers get half a second, where they would get three."""
    for module in ("calibration.load.http", "calibration.load.grpc", "calibration.server_metrics"):
        monkeypatch.setattr(f"{module}.ANSWER_WITHIN_S", WITHIN_S)


@contextlib.contextmanager
def sockets(behave: Behave) -> Iterator[str]:
    """A server that does to each connection what `behave` does; its host:port."""
    taken: list[socket.socket] = []

    def one(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            behave(connection)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listening.accept()
                taken.append(connection)
                threading.Thread(target=one, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{listening.getsockname()[1]}"
        finally:
            for each in (listening, *taken):
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
            thread.join(5)


def says(*parts: bytes) -> Behave:
    """Hears one request, says `parts`, and hangs up."""

    def behave(connection: socket.socket) -> None:
        connection.recv(65536)
        for part in parts:
            connection.sendall(part)

    return behave


def dribbles(opening: bytes, part: bytes = b"x") -> Behave:
    """After `opening` a little, again and again: no single read waits long, and there is no end."""

    def behave(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(opening)
        while True:
            time.sleep(WITHIN_S / 10)
            connection.sendall(part)

    return behave


def floods(connection: socket.socket) -> None:
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        connection.sendall(b"0" * 65536)


def silent(connection: socket.socket) -> None:
    connection.recv(65536)
    connection.recv(65536)


def page(body: bytes, head: bytes = b"") -> bytes:
    return b"HTTP/1.1 200 OK\r\n" + head + b"Content-Length: %d\r\n\r\n" % len(body) + body


STATUS = b"HTTP/1.1 200 OK\r\n"
PAGES: dict[str, Behave] = {
    "hangs up": lambda connection: None,
    "hears and hangs up": says(),
    "garbage": says(b"\x00\x01garbage" * 100),
    "an endless first line": says(b"HTTP/1.1 200 " + b"x" * 200_000),
    "frames of HTTP/2": says(b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x05\x00\x00\x40\x00"),
    "more than a hundred headers": says(STATUS + b"X-A: b\r\n" * 101 + b"Content-Length: 2\r\n\r\n{}"),
    "a length beyond all memory": says(STATUS + b"Content-Length: 1000000000000000000\r\n\r\n{}"),
    "a length of no integer": says(STATUS + b"Content-Length: " + b"9" * 400 + b"\r\n\r\n{}"),
    "half a page": says(STATUS + b"Content-Length: 100\r\n\r\n{"),
    "half a chunk": says(STATUS + b"Transfer-Encoding: chunked\r\n\r\n64\r\n{"),
    "chunks of no size": says(STATUS + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{"),
    "half a header": says(STATUS + b"Content-Le"),
    "not UTF-8": says(page(b"\xff\xfe{}")),
    "deeper than a stack": says(page(b"[" * 200_000)),
    "a redirection to itself": says(b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n"),
    "a flood": floods,
    "silence": silent,
    "a dribbled head": dribbles(STATUS + b"X-Slow: "),
    "dribbled headers": dribbles(STATUS, b"X-A: b\r\n"),
    "a dribbled page": dribbles(STATUS + b"Content-Length: 1000000\r\n\r\n"),
    "a dribbled chunk": dribbles(STATUS + b"Transfer-Encoding: chunked\r\n\r\nffff\r\n"),
}


def plan(tmp_path: Path, server: str, more: str = "") -> Path:
    path = tmp_path / "plan.yaml"
    path.write_text(
        f"server: {{{server}}}\nlengths: [{{isl: 6, osl: 4, isl_cv: 0, osl_cv: 0}}]\nconcurrency: [2]\n"
        "deployment: {model: toy, precision: fp32, gpu: cpu, tp: 1}\n"
        f"check_load: 0\nclient: {{self_check: false}}\n{more}"
    )
    return path


def ran(path: Path) -> Result:
    return call("run", path)


def refused(result: Result, who: str) -> str:
    """The one line on stderr, which names `who`, of a command that ended with exit code 2."""
    line = failed(result)
    assert who in line
    return line


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("kind", PAGES)
def test_over_http(kind: str, tmp_path: Path) -> None:
    with sockets(PAGES[kind]) as url:
        refused(ran(plan(tmp_path, f"url: '{url}', protocol: http")), url)
    assert Store().runs() == []


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("kind", PAGES)
def test_over_the_openai_protocol(kind: str, tmp_path: Path) -> None:
    with sockets(PAGES[kind]) as url:
        refused(ran(plan(tmp_path, f"url: 'http://{url}', protocol: openai, model: toy")), url)
    assert Store().runs() == []


@pytest.fixture(scope="module")
def polite() -> Iterator[str]:
    """A server that keeps the rules."""
    with subprocess_server(Script()) as url:
        yield url


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("kind", PAGES)
def test_as_the_metrics_page(kind: str, tmp_path: Path, polite: str) -> None:
    with sockets(PAGES[kind]) as metrics:
        told = refused(ran(plan(tmp_path, f"url: '{polite}', metrics_url: 'http://{metrics}/metrics'")), metrics)
    assert "metrics" in told
    assert Store().runs() == []


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("kind", PAGES)
def test_over_grpc(kind: str, tmp_path: Path) -> None:
    with sockets(PAGES[kind]) as url:
        refused(ran(plan(tmp_path, f"url: '{url}'")), url)
    assert Store().runs() == []


def test_a_server_that_lists_no_model_yet_says_so(tmp_path: Path) -> None:
    with sockets(says(page(b'{"data": []}'))) as server:
        told = failed(call("run", plan(tmp_path, f"protocol: openai, model: toy, url: 'http://{server}'")))
    assert told.endswith("does not list a model 'toy': it lists none yet")


def test_a_server_that_redirects_to_https_says_where_to(tmp_path: Path) -> None:
    moved = says(b"HTTP/1.1 301 Moved\r\nLocation: https://llm.example/v1/models\r\nContent-Length: 0\r\n\r\n")
    with sockets(moved) as server:
        told = "HTTP 301: it redirects to https://llm.example/v1/models"
        load = ("--isl", 9, "--osl", 9, "--rate", 1, "--ttft", "p95:1s")
        assert told in failed(call("size", f"http://{server}", *load))
        assert told in failed(call("run", plan(tmp_path, f"protocol: openai, model: toy, url: 'http://{server}'")))


def test_http_at_the_grpc_port_and_grpc_at_the_http_port(tmp_path: Path, polite: str) -> None:
    assert "HTTP" in refused(ran(plan(tmp_path, f"url: '{polite}', protocol: http")), polite)
    with sockets(says(page(b"{}"))) as url:
        assert "gRPC" in refused(ran(plan(tmp_path, f"url: '{url}'")), url)


# gRPC whose messages are none

Answer = Callable[[bytes], bytes]


@contextlib.contextmanager
def grpc_server(**answers: Answer) -> Iterator[str]:
    """Methods that answer with any bytes; ModelStreamInfer gives one message of them for each request."""

    def unary(answer: Answer) -> Any:
        return grpc.unary_unary_rpc_method_handler(lambda request, context: answer(request))

    def stream(answer: Answer) -> Any:
        return grpc.stream_stream_rpc_method_handler(lambda requests, context: map(answer, requests))

    made = {name: (stream if name == "ModelStreamInfer" else unary)(answer) for name, answer in answers.items()}
    server = grpc.server(ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, made),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait(5)


GARBAGE = b"\xff\xff\xff no message"


def config(request: bytes, **changes: Any) -> bytes:
    """What a good server says of its ensemble; other models are described as nothing."""
    name = service_pb2.ModelConfigRequest.FromString(request).name
    found = model_config_pb2.ModelConfig(name=name, max_batch_size=8)
    if name == "ensemble":
        found.input.add(name="text_input", data_type=model_config_pb2.TYPE_STRING, dims=[-1])
        found.input.add(name="max_tokens", data_type=changes.get("data_type", model_config_pb2.TYPE_INT32), dims=[-1])
        found.output.add(name="text_output", data_type=model_config_pb2.TYPE_STRING, dims=[-1])
        found.output.add(name="output_ids", data_type=model_config_pb2.TYPE_INT32, dims=[-1, -1])
    return bytes(service_pb2.ModelConfigResponse(config=found).SerializeToString())


def ready(request: bytes) -> bytes:
    return bytes(service_pb2.ModelReadyResponse(ready=True).SerializeToString())


GOOD: dict[str, Answer] = {"ModelConfig": config, "ModelReady": ready, "ServerLive": lambda request: b"\x08\x01"}


@pytest.mark.parametrize("method", ["ModelConfig", "ModelReady"])
@pytest.mark.parametrize("answer", [GARBAGE, b"\x0a\xff\xff\xff\xff\x0f", b"0" * 80_000_000], ids=len)
def test_grpc_answers_that_are_no_protobuf(method: str, answer: bytes, tmp_path: Path) -> None:
    with grpc_server(**GOOD | {method: lambda request: answer}) as url:
        refused(ran(plan(tmp_path, f"url: '{url}'")), url)
    assert Store().runs() == []


def test_datatypes_that_there_are_not(tmp_path: Path) -> None:
    with grpc_server(**GOOD | {"ModelConfig": lambda request: config(request, data_type=99)}) as url:
        refused(ran(plan(tmp_path, f"url: '{url}'")), "max_tokens")
    strange = json.dumps(CONFIG).replace('"TYPE_INT32"', "99").encode()
    with sockets(says(page(strange))) as url:
        refused(ran(plan(tmp_path, f"url: '{url}', protocol: http")), "ISL 6")  # JSON has types of its own


def test_a_stream_of_no_protobuf_is_an_error_of_each_request(tmp_path: Path) -> None:
    with grpc_server(**GOOD | {"ModelStreamInfer": lambda request: GARBAGE}) as url:
        assert "is not a Triton message" in refused(ran(plan(tmp_path, f"url: '{url}'")), "ISL 6")


# Answers in the middle of a level


def turning(good: int, bad: bytes, heard: list[float]) -> Behave:
    """An HTTP server that describes its model, answers `good` requests as it should, and the others with `bad`.

    When each request came is noted in `heard`.
    """
    lock = threading.Lock()

    def behave(connection: socket.socket) -> None:
        while request := connection.recv(65536):
            if request.startswith(b"GET"):
                body = json.dumps(CONFIG).encode() if request.split()[1] == b"/v2/models/ensemble/config" else b"{}"
                connection.sendall(page(body, b"Connection: close\r\n"))
                return
            with lock:
                heard.append(time.monotonic())
                fine = len(heard) <= good
            connection.sendall(HEAD + b"".join([chunk(event(1))] * 4) + LAST if fine else bad)

    return behave


def test_a_server_too_busy_for_a_connection_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time to connect in: as if its backlog were full. What it answers to other questions tells that it is there."""
    monkeypatch.setattr("calibration.load.http.ANSWER_WITHIN_S", 0.0)
    with sockets(turning(9, b"", [])) as url:
        server = ServerPlan(url=url, protocol="http")
        log = asyncio.run(ask(server, CONTRACT, [PromptRequest("a", 1, 1)]))
        assert log.error == ("UNAVAILABLE: no connection within 0 s",)
    with pytest.raises(ServerError, match="stopped answering"):
        asyncio.run(ask(server, CONTRACT, [PromptRequest("a", 1, 1)]))


def test_a_limit_on_open_files_is_not_laid_to_the_server() -> None:
    async def connected(server: ServerPlan) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        async with HttpClient(server) as target:
            resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 10, hard))
            try:
                await target.connect(100)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    with sockets(silent) as url, pytest.raises(ClientLimitedError, match="ulimit -n"):
        asyncio.run(connected(ServerPlan(url=url, protocol="http")))


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        (b"\x00garbage\r\n\r\n", "does not speak HTTP"),
        (STATUS + b"Content-Length: 1000000000000000000\r\n\r\ndata", "no complete answer within 0.5 s"),
        (STATUS + b"X-A: b\r\n" * 500 + b"\r\n", "no complete answer within 0.5 s"),
        (HEAD + chunk(b"data: " + b"[" * 100_000 + b"\n\n") + LAST, "without tokens"),
        (HEAD + chunk(b'data: {"output_ids": [1e999, "a", {}]}\n\n') + LAST, "3 tokens in the answer where 4"),
        (HEAD + chunk(b"data: \xff\xfe\n\n") + LAST, "without tokens"),
        (HEAD + chunk(b'data: {"error"' + b"[" * 100_000 + b"\n\n") + LAST, "[["),
    ],
    ids=["garbage", "length", "headers", "depth", "types", "encoding", "error"],
)
def test_a_server_that_turns_bad_has_a_void_point(bad: bytes, told: str, tmp_path: Path) -> None:
    """8 good answers for probe and warm-up, and as many as are measured; then the level fails, and says with what."""
    with sockets(turning(40, bad, [])) as url:
        path = plan(tmp_path, f"url: '{url}', protocol: http, timeout_s: 0.5", "requests_per_level: 200\n")
        result = ran(path)
    assert "Traceback" not in result.output, (result.output, result.exception, result.exc_info)
    if result.exit_code == 2:  # on a busy machine the good answers may all fall into the warm-up
        assert "every request failed, the first with" in result.output
        return
    assert result.exit_code == 0
    (point,) = Store().points(1)
    assert point.void and told in point.notes


def test_a_server_that_answers_only_the_probe_is_given_up_after_two_time_outs(tmp_path: Path) -> None:
    """One user; a third request may just have left when the second time-out is over."""
    heard: list[float] = []
    behave = turning(2, STATUS + b"X-Slow: ", heard)
    with sockets(behave) as url:
        path = plan(tmp_path, f"url: '{url}', protocol: http, timeout_s: 0.5")
        path.write_text(path.read_text().replace("[2]", "[1]"))
        refused(ran(path), "no complete answer within 0.5 s")
    assert 2 <= len(heard) - 2 <= 3


# Single answers, whatever is in them


def read_over(client: Any, raw: bytes) -> str:
    """The error of a request whose answer was `raw`."""
    exchange = Exchange(2, 4, 0, at_ns=[1], raw=[raw])
    reader = client.reader(CONTRACT)
    reader.glance(exchange)
    return str(log_of([exchange], reader).error[0])


INPUTS = {"text_input": ModelInput("BYTES", False), "max_tokens": ModelInput("INT32", False)}
CONTRACT = Contract("ensemble", INPUTS, ("text_output", "output_ids"), batched=True)
LENGTHS = Contract("ensemble", INPUTS, ("text_output", "sequence_length"), batched=True)
json_values = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=4)


@settings(max_examples=60, deadline=None)
@given(value=json_values)
@example(value=10**30)
@example(value=[float("inf")])
@example(value={"a": 1})
@pytest.mark.parametrize("contract", [CONTRACT, LENGTHS], ids=["ids", "length"])
def test_any_json_in_an_event_is_counted_or_passed_over(contract: Contract, value: Any) -> None:
    raw = b"data: " + json.dumps({"output_ids": value, "sequence_length": value}).encode() + b"\n\n"
    reader = HttpClient(ServerPlan()).reader(contract)
    log_of([Exchange(2, 4, 0, at_ns=[1], raw=[raw])], reader)


def response(datatype: str, shape: list[int], raw: bytes, name: str) -> bytes:
    answer = service_pb2.ModelStreamInferResponse()
    answer.infer_response.outputs.add(name=name, datatype=datatype, shape=shape)
    answer.infer_response.raw_output_contents.append(raw)
    return bytes(answer.SerializeToString())


@settings(max_examples=60, deadline=None)
@given(
    datatype=st.sampled_from(["INT32", "FP64", "BYTES", "", "nonsense"]),
    shape=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3),
    raw=st.binary(max_size=9),
)
@example(datatype="FP64", shape=[1], raw=b"\x00\x00\x00\x00\x00\x00\xf0\x7f")
@example(datatype="INT32", shape=[1, 2**62], raw=b"")
@example(datatype="INT32", shape=[1, -4], raw=b"")
def test_any_tensor_is_counted_or_passed_over(datatype: str, shape: list[int], raw: bytes) -> None:
    reader = GrpcClient(ServerPlan())
    for contract, name in ((CONTRACT, "output_ids"), (LENGTHS, "sequence_length")):
        exchange = Exchange(2, 4, 0, at_ns=[1], raw=[response(datatype, shape, raw, name)])
        log_of([exchange], reader.reader(contract))


@settings(max_examples=60, deadline=None)
@given(raw=st.binary(max_size=40))
@example(raw=triton._FINAL + b"\xff\xff")
def test_any_bytes_are_an_answer_without_tokens(raw: bytes) -> None:
    assert read_over(GrpcClient(ServerPlan()), raw) in (
        "an answer without tokens",
        read_over(GrpcClient(ServerPlan()), raw),
    )
