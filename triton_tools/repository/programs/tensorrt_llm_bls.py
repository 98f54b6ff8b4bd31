"""Triton model `tensorrt_llm_bls`: calls the three models in the ensemble's order, from a process of its own.

Tokens of a stream keep their order, whatever the number of postprocessing instances. With `accumulate_tokens`, every
answer of a stream holds the whole text so far.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

YES = ("true", "yes", "1", "t")
Tensors = dict[str, Any]


class TritonPythonModel:
    """Called by Triton's Python backend. `wiring.json` beside this file says which tensor goes where."""

    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        self.is_decoupled = bool(config.get("model_transaction_policy", {}).get("decoupled"))
        self.inputs = [tensor["name"] for tensor in config["input"]]
        self.outputs = [tensor["name"] for tensor in config["output"]]
        self.before, self.engine, self.after = json.loads(Path(__file__).with_name("wiring.json").read_text())
        given = config["parameters"].get("accumulate_tokens", {}).get("string_value", "")
        self.accumulates = given.lower() in YES

    def execute(self, requests: Sequence[Any]) -> list[Any] | None:
        if not self.is_decoupled:
            return [self._last_answer(request) for request in requests]
        for request in requests:
            sender = request.get_response_sender()
            try:
                for answer in self._answers(request):
                    sender.send(answer)
            except pb_utils.TritonModelException as error:
                sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error))))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None

    def _last_answer(self, request: Any) -> Any:
        try:
            return list(self._answers(request))[-1]
        except pb_utils.TritonModelException as error:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))

    def _answers(self, request: Any) -> Iterator[Any]:
        pool = {name: array for name in self.inputs if (array := _array(request, name)) is not None}
        pool |= next(_ask(self.before, pool, request))
        so_far: Tensors = {}
        for made in _ask(self.engine, pool, request, streams=self.is_decoupled):
            wired = {self.engine["outputs"][name]: array for name, array in self._joined(so_far, made).items()}
            text = next(_ask(self.after, pool | wired, request))
            yield pb_utils.InferenceResponse(
                [pb_utils.Tensor(name, array) for name, array in text.items() if name in self.outputs]
            )

    def _joined(self, so_far: Tensors, made: Tensors) -> Tensors:
        """The tokens for postprocessing: the new ones, or all so far; the new ones are added to `so_far`."""
        names = {outer: inner for inner, outer in self.engine["outputs"].items()}
        piece = {names[outer]: array for outer, array in made.items()}
        if not self.accumulates:
            return piece
        if so_far:
            piece["output_ids"] = np.concatenate([so_far["output_ids"], piece["output_ids"]], axis=-1)
            if "sequence_length" in piece:
                piece["sequence_length"] = so_far["sequence_length"] + piece["sequence_length"]
        so_far |= piece
        return piece


def _ask(step: Mapping[str, Any], pool: Tensors, request: Any, streams: bool = False) -> Iterator[Tensors]:
    """Call one model; its answers, as tensors by their names in the wiring.

    Raises:
        TritonModelException: the model refused.
    """
    inputs = [pb_utils.Tensor(inner, _batched(pool[outer])) for inner, outer in step["inputs"].items() if outer in pool]
    asked = pb_utils.InferenceRequest(
        model_name=step["model"],
        request_id=request.request_id(),
        inputs=inputs,
        requested_output_names=list(step["outputs"]),
    )
    for answer in asked.exec(decoupled=True) if streams else [asked.exec()]:
        if answer.has_error():
            raise pb_utils.TritonModelException(answer.error().message())
        tensors = {tensor.name(): tensor.as_numpy() for tensor in answer.output_tensors()}
        if tensors:  # the empty answer only closes a stream
            yield {outer: tensors[inner] for inner, outer in step["outputs"].items() if inner in tensors}


def _batched(array: Any) -> Any:
    """The input as the model declares it: one declared a scalar has lost its inner dimension on the way in."""
    return array.reshape(1, -1) if array.ndim < 2 else array


def _array(request: Any, name: str) -> Any:
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return None if tensor is None else tensor.as_numpy()
