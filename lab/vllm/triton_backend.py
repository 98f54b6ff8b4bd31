"""A backend `vllm` for Triton that drives vLLM's AsyncLLM, with the public contract of Triton's own vLLM backend.

Package registries do not carry the original, and none of its code is here: this is written from its documentation.
Inputs and outputs are those of releases 24.12 and later, without images and adapters. As there, a model is a folder
with a `config.pbtxt` that names the backend and a `1/model.json` of vLLM's engine arguments, and tritonserver's Python
backend runs this file as the backend's model.py. It runs in vLLM's environment: nothing of this project is imported.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import locale
import threading
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

INPUTS = {
    "text_input": "TYPE_STRING",
    "stream": "TYPE_BOOL",
    "sampling_parameters": "TYPE_STRING",
    "exclude_input_in_output": "TYPE_BOOL",
    "return_finish_reason": "TYPE_BOOL",
    "return_cumulative_logprob": "TYPE_BOOL",
    "return_logprobs": "TYPE_BOOL",
    "return_num_input_tokens": "TYPE_BOOL",
    "return_num_output_tokens": "TYPE_BOOL",
}
OUTPUTS = {
    "text_output": "TYPE_STRING",
    "finish_reason": "TYPE_STRING",
    "cumulative_logprob": "TYPE_FP32",
    "logprobs": "TYPE_STRING",
    "num_input_tokens": "TYPE_UINT32",
    "num_output_tokens": "TYPE_UINT32",
}
REQUIRED = "text_input"
ANSWERING = "answering"
"""Name of the tasks that answer requests."""
SHUTDOWN_WITHIN_S = 1.0
"""Time for vLLM's processes to end by themselves: nothing is computed any more, and Triton waits 10 s in all."""
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    """Called by Triton's Python backend. `execute` returns at once; answers come from the event loop of a thread."""

    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        """Set inputs, outputs and the policy of every model of this backend; its config.pbtxt need not have them."""
        for name, kind in INPUTS.items():
            config.add_input({"name": name, "data_type": kind, "dims": [1], "optional": name != REQUIRED})
        for name, kind in OUTPUTS.items():
            config.add_output({"name": name, "data_type": kind, "dims": [-1]})
        config.set_max_batch_size(0)
        config.set_model_transaction_policy({"decoupled": True})
        return config

    def initialize(self, args: dict[str, str]) -> None:
        """Raises vLLM's error for wrong arguments in model.json."""
        locale.setlocale(locale.LC_ALL, "C.UTF-8")  # the stub's locale is C, with which torch cannot read its own files
        file = Path(args["model_repository"]) / args["model_version"] / "model.json"
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="vllm", daemon=True)
        self.thread.start()
        starting = asyncio.run_coroutine_threadsafe(_engine(json.loads(file.read_text())), self.loop)
        self.engine = starting.result()

    def execute(self, requests: Sequence[Any]) -> None:
        for request in requests:
            asyncio.run_coroutine_threadsafe(self._answer(request, request.get_response_sender()), self.loop)

    def finalize(self) -> None:
        """Wait for the requests in flight, then end the engine's processes."""
        asyncio.run_coroutine_threadsafe(self._finish(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()

    async def _finish(self) -> None:
        answering = [task for task in asyncio.all_tasks() if task.get_name() == ANSWERING]
        await asyncio.gather(*answering, return_exceptions=True)
        self.engine.shutdown(SHUTDOWN_WITHIN_S)
        rest = asyncio.all_tasks() - {asyncio.current_task()}  # vLLM's own tasks, which it has cancelled
        await asyncio.gather(*rest, return_exceptions=True)

    async def _answer(self, request: Any, sender: Any) -> None:
        """Send what vLLM generates; a refused or failed request gets one line."""
        asyncio.current_task().set_name(ANSWERING)  # type: ignore[union-attr]
        try:
            async for response in self._responses(request, sender):
                sender.send(response)
        except Exception as error:  # whatever it is, this client must receive an error, and the others continue
            why = " ".join(str(error).split()) or type(error).__name__
            sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(why)))
        finally:
            sender.send(flags=FINAL)

    async def _responses(self, request: Any, sender: Any) -> AsyncIterator[Any]:
        """One response for each step of vLLM if the client streams, else one; none once the client has left."""
        from vllm.sampling_params import RequestOutputKind

        given = {name: tensor.as_numpy().flat[0] for name in INPUTS if (tensor := _tensor(request, name)) is not None}
        stream = bool(given.get("stream", False))
        prompt = given[REQUIRED].decode()
        excludes = bool(given.get("exclude_input_in_output", stream))
        if stream and not excludes:
            raise ValueError("exclude_input_in_output must be true when streaming")
        parameters = _sampling(given.get("sampling_parameters") or request.parameters())
        parameters.output_kind = RequestOutputKind.DELTA if stream else RequestOutputKind.FINAL_ONLY
        generating = self.engine.generate(prompt, parameters, uuid.uuid4().hex)
        async with contextlib.aclosing(generating):  # if closed early, vLLM drops the request
            async for output in generating:
                if sender.is_cancelled():
                    return
                yield _response(output, given, "" if excludes else prompt)


async def _engine(arguments: dict[str, Any]) -> Any:
    """vLLM's engine, started in the event loop that will use it."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.model_executor.models import registry
    from vllm.v1.engine.async_llm import AsyncLLM

    registry._run_in_subprocess = lambda inspect: inspect()  # as openai_server.py does

    return AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))


def _sampling(text: bytes | str) -> Any:
    """vLLM's sampling parameters from JSON, in which numbers may be texts. Raises ValueError for invalid ones."""
    import msgspec
    from vllm import SamplingParams

    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("sampling_parameters must be a JSON object")
    return msgspec.convert(found, SamplingParams, strict=False)


def _tensor(request: Any, name: str) -> Any:
    return pb_utils.get_input_tensor_by_name(request, name)


def _response(output: Any, given: dict[str, Any], before: str) -> Any:
    """The text since the last response, and the further outputs that the request asked for."""
    parts = output.outputs
    told: dict[str, Any] = {"text_output": _texts(before + part.text for part in parts)}
    if given.get("return_finish_reason"):
        told["finish_reason"] = _texts(str(part.finish_reason) for part in parts)
    if given.get("return_cumulative_logprob"):
        told["cumulative_logprob"] = np.array([part.cumulative_logprob for part in parts], np.float32)
    if given.get("return_logprobs"):
        told["logprobs"] = _texts(json.dumps(_logprobs(part.logprobs)) for part in parts)
    if given.get("return_num_input_tokens"):
        told["num_input_tokens"] = np.array([len(output.prompt_token_ids)], np.uint32)
    if given.get("return_num_output_tokens"):
        told["num_output_tokens"] = np.array([len(part.token_ids) for part in parts], np.uint32)
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, value) for name, value in told.items()])


def _texts(texts: Any) -> Any:
    return np.array([text.encode() for text in texts], np.object_)


def _logprobs(positions: Any) -> Any:
    """The candidates of each token by id; None if the request did not ask for them."""
    if positions is None:
        return None
    return [{token: asdict(candidate) for token, candidate in position.items()} for position in positions]
