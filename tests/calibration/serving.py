"""How tests ask the local server: inputs, a stream of answers, HTTP and its metrics."""

import json
import queue
import re
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from click.testing import CliRunner, Result
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from calibration.__main__ import main
from lab.reference.server import ReferenceServer

WITHIN_S = 60.0
PROMPT = "baba gito bila bebo hemi"
SERVE = [sys.executable, "-m", "calibration", "serve"]
FREE_PORTS = ["--grpc-port", "0", "--http-port", "0", "--metrics-port", "0"]


def serve_here(*options: str) -> Result:
    """What `serve` says in this process, for options with which nothing starts; the signals it takes are given back."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return CliRunner().invoke(main, ["serve", *options])
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def until(condition: Callable[[], bool]) -> None:
    """Wait until `condition` holds; fail if it never does."""
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline, "never came true"
        time.sleep(0.05)


def tensor(name: str, value: Any, dtype: type) -> triton.InferInput:
    array = np.array(value, dtype=dtype)
    made = triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    return made.set_data_from_numpy(array)


def ensemble_inputs(text: str, max_tokens: int, stream: bool = True, **more: Any) -> list[triton.InferInput]:
    types = {"bad_words": object, "stop_words": object, "embedding_bias_words": object, "random_seed": np.uint64}
    types |= dict.fromkeys(("temperature", "top_p", "embedding_bias_weights"), np.float32)
    types |= {"return_log_probs": bool}
    given = {"end_id": -1, **more}
    return [
        tensor("text_input", [[text.encode()]], object),
        tensor("max_tokens", [[max_tokens]], np.int32),
        tensor("stream", [[stream]], bool),
        *(
            tensor(name, [value if isinstance(value, list) else [value]], types.get(name, np.int32))
            for name, value in given.items()
        ),
    ]


def engine_inputs(
    prompt: list[int], max_tokens: int, stop: bool = False, stream: bool = False
) -> list[triton.InferInput]:
    return [
        tensor("input_ids", [prompt], np.int32),
        tensor("input_lengths", [[len(prompt)]], np.int32),
        tensor("request_output_len", [[max_tokens]], np.int32),
        tensor("streaming", [[stream]], bool),
        tensor("stop", [[stop]], bool),
    ]


Answer = triton.InferResult | InferenceServerException


class Stream:
    """A gRPC stream whose answers can be waited for."""

    def __init__(self, url: str) -> None:
        self.client = triton.InferenceServerClient(url)
        self.answers: queue.Queue[Answer] = queue.Queue()
        self.client.start_stream(lambda result, error: self.answers.put(result if error is None else error))

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self.client.stop_stream()
        self.client.close()

    def ask(self, inputs: list[triton.InferInput], model: str = "ensemble", request_id: str = "") -> None:
        self.client.async_stream_infer(model, inputs, request_id=request_id, enable_empty_final_response=True)

    def next(self) -> Answer:
        return self.answers.get(timeout=WITHIN_S)

    def whole(self, inputs: list[triton.InferInput]) -> list[triton.InferResult]:
        """Every answer with tensors until the final one; fails on an error."""
        self.ask(inputs)
        return self.rest()

    def rest(self) -> list[triton.InferResult]:
        results = []
        while True:
            answer = self.next()
            if isinstance(answer, InferenceServerException):
                raise answer
            if answer.as_numpy("output_ids") is not None:
                results.append(answer)
            if answer.get_response().parameters["triton_final_response"].bool_param:
                return results


def ids(results: list[triton.InferResult]) -> list[int]:
    return [int(token) for result in results for token in result.as_numpy("output_ids").reshape(-1)]


def completed(server: ReferenceServer, inputs: list[triton.InferInput]) -> list[triton.InferResult]:
    with Stream(server.grpc_url) as stream:
        return stream.whole(inputs)


def http(url: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(f"http://{url}", data), timeout=WITHIN_S) as response:
        text = response.read().decode()
    return json.loads(text) if text.startswith(("{", "[")) else text


def gauges(server: ReferenceServer, family: str) -> dict[str, float]:
    """Value by category label of one of the backend's metric families."""
    text = http(server.metrics_url)
    found = re.findall(rf"^nv_trt_llm_{family}_metrics\{{(.*?)\}} (\S+)$", text, re.MULTILINE)
    assert found, f"no family {family}"
    return {
        next(v for k, v in re.findall(r'(\w+)="(.*?)"', labels) if k.endswith(("type", "metric"))): float(value)
        for labels, value in found
    }
