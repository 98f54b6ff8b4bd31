"""What a Triton model takes and gives: requests are built, and tokens counted, by what its config declares."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from tritonclient.grpc import service_pb2

from calibration.errors import ServerError
from calibration.requests import Request

CountedBy = Literal["output_ids", "sequence_length", "output_log_probs", "responses"]
NO_END_ID = -1
_DTYPES = {
    "BOOL": np.bool_,
    "INT32": np.int32,
    "UINT32": np.uint32,
    "INT64": np.int64,
    "UINT64": np.uint64,
    "FP32": np.float32,
}
Value = str | bool | int | Sequence[int]


@dataclass(frozen=True, slots=True)
class Input:
    """An input tensor of a model: its datatype on the wire (``INT32``, ``BYTES``) and whether it may be left out."""

    datatype: str
    optional: bool


@dataclass(frozen=True, slots=True)
class Contract:
    """Inputs and outputs of one model. `batched`: tensors carry a leading batch dimension, 1 here."""

    model: str
    inputs: dict[str, Input]
    outputs: tuple[str, ...]
    batched: bool

    @property
    def counted_by(self) -> CountedBy:
        """The output from which tokens are counted: the server's own token ids if it gives them."""
        for name in ("output_ids", "sequence_length", "output_log_probs"):
            if name in self.outputs:
                return name
        return "responses"

    @property
    def takes_token_ids(self) -> bool:
        """True for the engine's own model (`tensorrt_llm`), which wants token ids in place of text."""
        return "input_ids" in self.inputs and "text_input" not in self.inputs

    def message(self, request: Request, request_id: str) -> Any:
        """The ModelInferRequest for `request`: streaming, its output length forced, an empty final response asked for.

        Raises ServerError if the model requires an input that is not of the TensorRT-LLM kind.
        """
        message = service_pb2.ModelInferRequest(model_name=self.model, id=request_id)
        message.parameters["triton_enable_empty_final_response"].bool_param = True
        values = self._values(request)
        for name, declared in self.inputs.items():
            if name in values:
                self._add(message, name, declared.datatype, values[name])
            elif not declared.optional:
                raise ServerError(f"model {self.model!r} requires the input {name!r}, which this client does not know")
        for name in dict.fromkeys(("text_output", self.counted_by)):
            if name in self.outputs:
                message.outputs.add(name=name)
        return message

    def _values(self, request: Request) -> dict[str, Value]:
        prompt: dict[str, Value] = {"text_input": request.prompt}
        if self.takes_token_ids:
            if request.token_ids is None:
                raise ServerError(
                    f"model {self.model!r} takes token ids: name its tokenizer.json as tokenizer in the plan"
                )
            prompt = {"input_ids": request.token_ids, "input_lengths": len(request.token_ids)}
        required_words = {
            name: "" for name in ("bad_words", "stop_words") if name in self.inputs and not self.inputs[name].optional
        }
        return (
            prompt
            | required_words
            | {
                "max_tokens": request.osl,
                "request_output_len": request.osl,
                "min_tokens": request.osl,
                "min_length": request.osl,
                "stream": True,
                "streaming": True,
                "end_id": NO_END_ID,
                "exclude_input_in_output": True,
                "return_log_probs": self.counted_by == "output_log_probs",
            }
        )

    def _add(self, message: Any, name: str, datatype: str, value: Value) -> None:
        shape = [len(value)] if isinstance(value, tuple) else [1]
        message.inputs.add(name=name, datatype=datatype, shape=[1, *shape] if self.batched else shape)
        message.raw_input_contents.append(_raw(name, datatype, value))

    def tokens(self, response: Any) -> int:
        """New tokens in one ModelInferResponse; 0 for an empty one."""
        name = self.counted_by if self.counted_by != "responses" else "text_output"
        for index, output in enumerate(response.outputs):
            if output.name == name:
                raw = response.raw_output_contents[index] if index < len(response.raw_output_contents) else b""
                return _count(self.counted_by, output, raw)
        return 0


def _count(counted_by: CountedBy, output: Any, raw: bytes) -> int:
    if counted_by == "responses":
        return int(len(raw) > 4)  # a text is preceded by its length in 4 bytes
    if counted_by == "sequence_length":
        return int(np.frombuffer(raw, _DTYPES[output.datatype]).sum())
    return int(output.shape[-1]) if math.prod(output.shape) else 0


def _raw(name: str, datatype: str, value: Value) -> bytes:
    if datatype == "BYTES":
        text = str(value).encode()
        return struct.pack("<I", len(text)) + text
    if datatype not in _DTYPES:
        raise ServerError(f"input {name!r} has datatype {datatype}, which this client does not know")
    return np.atleast_1d(np.array(value, np.int64)).astype(_DTYPES[datatype]).tobytes()
