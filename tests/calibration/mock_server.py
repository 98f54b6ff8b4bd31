"""A KServe v2 gRPC server with known timings and chosen faults, standing in for Triton.

In a test: ``async with MockServer(Script(...)) as server`` in the test's own event loop, or `subprocess_server(...)`
where the code under test runs a loop of its own. A word is a token here, as in the project's own reference server.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio
import numpy as np
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc

ROOT = Path(__file__).resolve().parents[2]
ENGINE = {"model": "toy", "precision": "fp32", "gpu": "cpu", "tp": "1", "engine": "mock", "batching": "in_flight"}


@dataclass(frozen=True, slots=True)
class Script:
    """How the server answers. Times in seconds; `*_every`: 0 never, n every n-th request; `error_osl`: refused.

    `counter` is the output that tells token counts, empty for a model with text only. A server without
    `takes_max_tokens` answers with three tokens, whatever is asked.
    """

    ttft_s: float = 0.02
    itl_s: float = 0.002
    tokens_per_response: int = 1
    empty_first: bool = False
    late_final_s: float = 0.0
    final_flag: bool = True
    short_by: int = 0
    error_every: int = 0
    error_osl: int = 0
    hang_up_every: int = 0
    die_after: int = 0
    counter: str = "output_ids"
    echo_id: bool = True
    decoupled: bool = True
    takes_max_tokens: bool = True
    engine: dict[str, str] = field(default_factory=lambda: dict(ENGINE))
    engine_backend: str = ""
    max_batch_size: int = 8
    preprocessing: dict[str, str] = field(default_factory=dict)


class MockServer(service_pb2_grpc.GRPCInferenceServiceServicer):
    """`requests` are those received; `in_flight` counts those not answered yet, `peak` its highest value."""

    def __init__(self, script: Script | None = None, port: int = 0) -> None:
        self.script = script or Script()
        self.port = port
        self.requests: list[Any] = []
        self.in_flight = self.peak = 0
        self.url = ""

    async def __aenter__(self) -> Self:
        self._server = grpc.aio.server()
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(self, self._server)
        self.url = f"127.0.0.1:{self._server.add_insecure_port(f'127.0.0.1:{self.port}')}"
        await self._server.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._server.stop(None)

    async def ServerLive(self, request: Any, context: Any) -> Any:  # noqa: N802
        return service_pb2.ServerLiveResponse(live=True)

    async def ModelReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        return service_pb2.ModelReadyResponse(ready=True)

    async def ModelConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        config = model_config_pb2.ModelConfig(name=request.name, max_batch_size=self.script.max_batch_size)
        config.model_transaction_policy.decoupled = self.script.decoupled
        if request.name == "tensorrt_llm":
            parameters = self.script.engine
            config.backend = self.script.engine_backend
        elif request.name == "preprocessing":
            parameters = self.script.preprocessing
        elif request.name == "ensemble":
            parameters = {}
            self._declare_tensors(config)
        else:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"Request for unknown model: '{request.name}' is not found")
        for key, value in parameters.items():
            config.parameters[key].string_value = value
        return service_pb2.ModelConfigResponse(config=config)

    def _declare_tensors(self, config: Any) -> None:
        for name, kind, optional in (
            ("text_input", model_config_pb2.TYPE_STRING, False),
            ("max_tokens", model_config_pb2.TYPE_INT32, False),
            ("stream", model_config_pb2.TYPE_BOOL, True),
            ("end_id", model_config_pb2.TYPE_INT32, True),
            ("temperature", model_config_pb2.TYPE_FP32, True),
        ):
            if name == "max_tokens" and not self.script.takes_max_tokens:
                continue
            config.input.add(name=name, data_type=kind, dims=[-1], optional=optional)
        config.output.add(name="text_output", data_type=model_config_pb2.TYPE_STRING, dims=[-1])
        if self.script.counter:
            config.output.add(name=self.script.counter, data_type=model_config_pb2.TYPE_INT32, dims=[-1, -1])

    async def ModelStreamInfer(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:  # noqa: N802
        async for request in requests:
            self.requests.append(request)
            self.in_flight += 1
            self.peak = max(self.peak, self.in_flight)
            try:
                async for response in self._answer(request, len(self.requests), context):
                    yield response
            finally:
                self.in_flight -= 1

    async def _answer(self, request: Any, number: int, context: Any) -> AsyncIterator[Any]:
        script = self.script
        if script.die_after and number > script.die_after:
            sys.exit(1)
        if _due(number, script.error_every) or asked(request) == script.error_osl:
            yield service_pb2.ModelStreamInferResponse(error_message="out of\nblocks")
            return
        if script.empty_first:
            yield self._response(request, 0, final=False)
        await asyncio.sleep(script.ttft_s)
        left = asked(request) - script.short_by
        while left > 0:
            tokens = min(left, script.tokens_per_response)
            left -= tokens
            yield self._response(request, tokens, final=not left and not script.late_final_s)
            if _due(number, script.hang_up_every):
                await context.abort(grpc.StatusCode.INTERNAL, "hung up")
            await asyncio.sleep(script.itl_s * tokens if left else 0)
        if script.late_final_s:
            await asyncio.sleep(script.late_final_s)
            yield self._response(request, 0, final=True)

    def _response(self, request: Any, tokens: int, final: bool) -> Any:
        answer = service_pb2.ModelInferResponse(model_name=request.model_name)
        answer.id = request.id if self.script.echo_id else ""
        if tokens:
            self._add(answer, "text_output", "BYTES", [1, 1], b"\x04\x00\x00\x00word")
            if self.script.counter == "output_ids":
                self._add(answer, "output_ids", "INT32", [1, 1, tokens], np.arange(tokens, dtype=np.int32).tobytes())
            elif self.script.counter == "sequence_length":
                self._add(answer, "sequence_length", "INT32", [1, 1], np.int32(tokens).tobytes())
            elif self.script.counter == "output_log_probs":
                self._add(answer, "output_log_probs", "FP32", [1, 1, tokens], np.zeros(tokens, np.float32).tobytes())
        if self.script.final_flag:
            answer.parameters["triton_final_response"].bool_param = final
        return service_pb2.ModelStreamInferResponse(infer_response=answer)

    def _add(self, answer: Any, name: str, datatype: str, shape: list[int], raw: bytes) -> None:
        answer.outputs.add(name=name, datatype=datatype, shape=shape)
        answer.raw_output_contents.append(raw)


def asked(request: Any) -> int:
    """The value of max_tokens in a request, 3 where it has none."""
    names = [tensor.name for tensor in request.inputs]
    if "max_tokens" not in names:
        return 3
    return int(np.frombuffer(request.raw_input_contents[names.index("max_tokens")], np.int32)[0])


def prompt(request: Any) -> str:
    """The text of a request."""
    names = [tensor.name for tensor in request.inputs]
    return bytes(request.raw_input_contents[names.index("text_input")][4:]).decode()


def _due(number: int, every: int) -> bool:
    return bool(every) and number % every == 0


@contextlib.contextmanager
def subprocess_server(script: Script, port: int = 0) -> Iterator[str]:
    """A mock in a process of its own, on a free port if none is named; its host:port."""
    told = [json.dumps(dataclasses.asdict(script)), str(port)]
    command = [sys.executable, "-m", "tests.calibration.mock_server", *told]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


async def _serve(script: Script, port: int) -> None:
    async with MockServer(script, port) as server:
        sys.stdout.write(f"{server.url}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(Script(**json.loads(sys.argv[1])), int(sys.argv[2])))
