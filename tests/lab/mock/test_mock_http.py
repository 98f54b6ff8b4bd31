"""The built-in mock over HTTP: server-sent events, what it says of itself, bad requests, faults."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
from collections.abc import Iterator
from typing import Any

import grpc
import grpc.aio
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from lab.mock.process import RunningMock
from lab.mock.server import Serving
from lab.mock.service import Script
from tests.lab.mock.asking import (
    answers,
    in_process,
    message,
)


@contextlib.contextmanager
def connection(url: str) -> Iterator[http.client.HTTPConnection]:
    found = http.client.HTTPConnection(url, timeout=10)
    try:
        yield found
    finally:
        found.close()


def events(body: bytes) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in body.decode().split("\n\n") if line]


def generate(to: http.client.HTTPConnection, body: bytes, model: str = "ensemble", **headers: str) -> tuple[int, bytes]:
    to.request("POST", f"/v2/models/{model}/generate_stream", body, headers)
    response = to.getresponse()
    return response.status, response.read()


def test_server_sent_events_over_a_connection_kept_alive(mock: RunningMock) -> None:
    with connection(mock.http_url) as client:
        for osl in (1, 5, 3):
            status, body = generate(client, json.dumps({"text_input": "hello", "max_tokens": osl}).encode())
            assert status == 200
            assert [event["output_ids"] for event in events(body)] == [7] * osl
            opened = client.sock
            assert opened is not None
        assert client.sock is opened


def test_http_health_and_config_say_what_grpc_says(mock: RunningMock) -> None:
    with connection(mock.http_url) as client:
        for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/ensemble/ready"):
            client.request("GET", path)
            response = client.getresponse()
            assert (response.status, response.read()) == (200, b"")
        client.request("GET", "/v2/models/ensemble/config")
        config = json.loads(client.getresponse().read())
    with grpc.insecure_channel(mock.grpc_url) as channel:
        service = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        said = service.ModelConfig(service_pb2.ModelConfigRequest(name=mock.contract.model)).config
    assert [tensor["name"] for tensor in config["input"]] == [tensor.name for tensor in said.input]
    assert [tensor["dims"] for tensor in config["output"]] == [list(tensor.dims) for tensor in said.output]
    assert config["max_batch_size"] == said.max_batch_size


@pytest.mark.parametrize("body", [b"{", b"[]", b"{}", b'{"max_tokens": 0}', b'{"max_tokens": "many"}', b"\xff"])
def test_http_bad_body_is_400_and_the_connection_goes_on(mock: RunningMock, body: bytes) -> None:
    with connection(mock.http_url) as client:
        status, answer = generate(client, body)
        assert (status, "max_tokens" in json.loads(answer)["error"]) == (400, True)
        assert generate(client, b'{"max_tokens": 1}')[0] == 200


def test_http_unknown_model_and_path(mock: RunningMock) -> None:
    with connection(mock.http_url) as client:
        status, answer = generate(client, b"{}", model="other")
        assert (status, "'other'" in json.loads(answer)["error"]) == (404, True)
        client.request("GET", "/nothing")
        assert client.getresponse().status == 404


def test_http_faults_and_close() -> None:
    async def ask(serving: Serving) -> list[Any]:
        def blocking() -> list[Any]:
            found: list[Any] = []
            for _ in range(3):
                with connection(serving.http_url) as client:
                    try:
                        found.append(generate(client, b'{"max_tokens": 4}', Connection="close"))
                    except http.client.IncompleteRead as cut:
                        found.append(cut.partial)
            return found

        return await asyncio.to_thread(blocking)

    (first, failed, cut), truth = in_process(Script(0.002, 0.001, error_every=2, hang_up_every=3), ask)
    assert len(events(first[1])) == 4
    assert [list(event) for event in events(failed[1])] == [["error"]]
    assert len(events(cut)) == 1
    assert truth.tokens.tolist() == [4, 0, 1]


def test_what_is_not_http_ends_its_own_connection_only(mock: RunningMock) -> None:
    for url in (mock.grpc_url, mock.http_url):
        host, _, port = url.partition(":")
        with socket.create_connection((host, int(port)), timeout=10) as line:
            line.sendall(b"\x16\x03\x01 this is no HTTP of any version\r\n\r\n")
            while line.recv(4096):
                pass
    assert len(asyncio.run(answers(mock.grpc_url, message(2)))) == 2
