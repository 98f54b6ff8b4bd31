"""A model's inputs and outputs: requests are built, and tokens counted, according to its config.

Names are those of the TensorRT-LLM backend (ensemble, `tensorrt_llm`, `tensorrt_llm_bls`, in all its releases, and its
LLM API) and of the vLLM backend unless the plan maps others; the same values are sent as gRPC messages and as the JSON
of `generate_stream`.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from tritonclient.grpc import service_pb2

from calibration.errors import KEY, ServerError
from calibration.plan import TensorNames
from calibration.requests.source import PromptRequest

CountedBy = Literal["output_ids", "sequence_length", "num_output_tokens", "output_log_probs", "responses"]
Value = str | bool | int | float | tuple[int, ...]
NO_END_ID = -1
MOST_TOKENS = 2**31 - 1
LENGTH_NAMES = ("max_tokens", "request_output_len", "sampling_param_max_tokens")
MINIMUM_NAMES = ("min_tokens", "min_length")
SUMMED = ("sequence_length", "num_output_tokens")
"""Outputs with the number of tokens in a response."""
OF_VLLM = "sampling_parameters"
"""The input of the vLLM backend that takes the length, and everything else, as JSON."""
_DTYPES: dict[str, Any] = {
    "BOOL": np.bool_,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
}


@dataclass(frozen=True, slots=True)
class ModelInput:
    """An input tensor of a model: its datatype on the wire (``INT32``, ``BYTES``) and whether it may be left out."""

    datatype: str
    optional: bool


@dataclass(frozen=True, slots=True)
class Contract:
    """Inputs and outputs of one model. `batched`: tensors carry a leading batch dimension, 1 here.

    `tensors` are the plan's names for them. `decoupled`: the model may answer with many responses; None if its config
    does not say, like that of an ensemble.
    """

    model: str
    inputs: dict[str, ModelInput]
    outputs: tuple[str, ...]
    batched: bool
    tensors: TensorNames = field(default_factory=TensorNames)
    decoupled: bool | None = None

    @classmethod
    def of(cls, config: Any, tensors: TensorNames) -> Contract:
        """The contract of a model by its Triton ModelConfig. Raises ServerError as `check` does."""
        found = cls(
            model=config.name,
            inputs={tensor.name: ModelInput(_datatype(tensor), tensor.optional) for tensor in config.input},
            outputs=tuple(tensor.name for tensor in config.output),
            batched=config.max_batch_size > 0,
            tensors=tensors,
            decoupled=None if config.platform == "ensemble" else config.model_transaction_policy.decoupled,
        )
        found.check()
        return found

    @property
    def is_ensemble(self) -> bool:
        """True if the config does not say whether the model is decoupled: that depends on its steps."""
        return self.decoupled is None

    @property
    def ids_name(self) -> str:
        """The output with the token ids of an answer."""
        return self.tensors.output_ids or "output_ids"

    @property
    def text_name(self) -> str:
        """The output with the text of an answer."""
        return self.tensors.text or "text_output"

    @property
    def counted_by(self) -> CountedBy:
        """The output from which tokens are counted: the server's own token ids if it returns them."""
        if self.ids_name in self.outputs:
            return "output_ids"
        if OF_VLLM in self.inputs and "num_output_tokens" in self.outputs:
            return "num_output_tokens"
        if "sequence_length" in self.outputs:
            return "sequence_length"
        return "output_log_probs" if "output_log_probs" in self.outputs else "responses"

    @property
    def takes_token_ids(self) -> bool:
        """True for a model that takes token ids instead of text, such as the engine's own (`tensorrt_llm`)."""
        if self.tensors.prompt or self.tensors.token_ids:
            return self.tensors.prompt is None
        return "input_ids" in self.inputs and "text_input" not in self.inputs

    @property
    def forces_osl(self) -> bool:
        """True if the model can be told how many tokens to answer with."""
        return any(name in self.inputs for name in (*self._length_names(), OF_VLLM))

    @property
    def exact(self) -> bool:
        """True if an answer of another length than requested is an error: it is forced, and the server counts."""
        return self.forces_osl and self.counted_by != "responses"

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks on the lengths and times of a point of this model."""
        found = []
        if self.counted_by == "responses":
            found.append("OSL is responses: the model reports no token counts")
        if not self.forces_osl:
            found.append("OSL is not forced: the model accepts no maximum number of tokens")
        if self.decoupled is False:
            found.append("the model is not decoupled: its answer comes at once, and TTFT is E2E")
        return tuple(found)

    def values(self, request: PromptRequest) -> dict[str, Value]:
        """What each declared input is given for `request`; optional ones that are unknown are left out.

        Raises ServerError if the model requires an input that neither this client nor the plan knows.
        """
        known = self._known(request)
        for name, declared in self.inputs.items():
            if name not in known and not declared.optional:
                raise ServerError(
                    f"model {self.model!r} requires the input {name!r}, which this client does not know: "
                    "give it a value under server.tensors.constants in the plan"
                )
        return {name: known[name] for name in self.inputs if name in known}

    def message(self, request: PromptRequest, request_id: str) -> bytes:
        """The ModelInferRequest for `request`: streaming, its output length forced, an empty final response asked for.

        Raises ServerError as `values` does.
        """
        message = service_pb2.ModelInferRequest(model_name=self.model, id=request_id)
        message.parameters["triton_enable_empty_final_response"].bool_param = True
        for name, value in self.values(request).items():
            datatype = self.inputs[name].datatype
            shape = [len(value)] if isinstance(value, tuple) else [1]
            message.inputs.add(name=name, datatype=datatype, shape=[1, *shape] if self.batched else shape)
            message.raw_input_contents.append(_raw(name, datatype, value))
        for name in dict.fromkeys((self.text_name, self._counter)):
            if name in self.outputs:
                message.outputs.add(name=name)
        return bytes(message.SerializeToString())

    def tokens(self, response: Any) -> int:
        """New tokens in one ModelInferResponse; 0 for an empty one."""
        for index, output in enumerate(response.outputs):
            if output.name == self._counter:
                raw = response.raw_output_contents[index] if index < len(response.raw_output_contents) else b""
                return _count(self.counted_by, output, raw)
        return 0

    def json_tokens(self, event: Mapping[str, Any]) -> int:
        """New tokens in one event of `generate_stream`, its JSON read; 0 for an empty one.

        Triton writes a tensor of one element as a number, one of several as a flat list.
        """
        found = event.get(self._counter)
        if self.counted_by == "responses":
            return int(bool(found))
        numbers = found if isinstance(found, list) else [] if found is None else [found]
        return sum(map(_whole, numbers)) if self.counted_by in SUMMED else len(numbers)

    def check(self) -> None:
        """Raises ServerError if the plan names tensors that the model has not, or no prompt can be given to it."""
        for key, names in (
            ("prompt", self.inputs),
            ("token_ids", self.inputs),
            ("prompt_length", self.inputs),
            ("max_tokens", self.inputs),
            ("text", self.outputs),
            ("output_ids", self.outputs),
        ):
            named = getattr(self.tensors, key)
            if named is not None and named not in names:
                raise ServerError(f"model {self.model!r} has no {named!r} (server.tensors.{key}), only {_list(names)}")
        for name in self.tensors.constants:
            if name not in self.inputs:
                raise ServerError(f"model {self.model!r} has no input {name!r} (server.tensors.constants)")
        if not {self._prompt_name(), self._ids_input()} & set(self.inputs):
            raise ServerError(
                f"model {self.model!r} takes neither text_input nor input_ids: it is not an LLM of the known kind; "
                f"map its inputs ({_list(self.inputs)}) under server.tensors in the plan"
            )

    @property
    def _counter(self) -> str:
        named = {"output_ids": self.ids_name, "responses": self.text_name}
        return named.get(self.counted_by, self.counted_by)

    def _length_names(self) -> tuple[str, ...]:
        return LENGTH_NAMES if self.tensors.max_tokens is None else (self.tensors.max_tokens,)

    def _prompt_name(self) -> str:
        return self.tensors.prompt or "text_input"

    def _ids_input(self) -> str:
        return self.tensors.token_ids or "input_ids"

    def _known(self, request: PromptRequest) -> dict[str, Value]:
        """Every input this client has a value for, whether the model declares it or not; the plan's word is last."""
        osl: dict[str, Value] = dict.fromkeys((*self._length_names(), *MINIMUM_NAMES), request.osl)
        streaming: dict[str, Value] = {"stream": True, "streaming": True}
        ending: dict[str, Value] = {
            "end_id": NO_END_ID,
            "exclude_input_in_output": True,
            "sampling_param_exclude_input_from_output": True,
            "return_num_output_tokens": self.counted_by == "num_output_tokens",
            OF_VLLM: json.dumps({"max_tokens": request.osl, "min_tokens": request.osl, "ignore_eos": True}),
            "return_log_probs": self.counted_by == "output_log_probs",
        }
        return self._words() | streaming | ending | osl | self._prompt(request) | dict(self.tensors.constants)

    def _prompt(self, request: PromptRequest) -> dict[str, Value]:
        if not self.takes_token_ids:
            return {self._prompt_name(): request.prompt}
        if request.token_ids is None:
            raise ServerError(f"model {self.model!r} takes token ids: name its tokenizer.json as {KEY}", "tokenizer")
        length_name = self.tensors.prompt_length or "input_lengths"
        return {self._ids_input(): request.token_ids, length_name: len(request.token_ids)}

    def _words(self) -> dict[str, Value]:
        """Empty lists of words, where the model insists on them (release 0.5 of the backend)."""
        names = ("bad_words", "stop_words")
        return {name: "" for name in names if name in self.inputs and not self.inputs[name].optional}


def _datatype(tensor: Any) -> str:
    known = tensor.DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number
    name = known[tensor.data_type].name if tensor.data_type in known else f"TYPE_{tensor.data_type}"
    return "BYTES" if name == "TYPE_STRING" else str(name).removeprefix("TYPE_")


def _count(counted_by: CountedBy, output: Any, raw: bytes) -> int:
    if counted_by == "responses":
        return int(len(raw) > 4)  # a text is preceded by its length in 4 bytes
    if counted_by in SUMMED:
        dtype = np.dtype(_DTYPES.get(output.datatype, np.uint8))
        return sum(map(_whole, np.frombuffer(raw[: len(raw) - len(raw) % dtype.itemsize], dtype).tolist()))
    return _whole(output.shape[-1]) if output.shape and math.prod(output.shape) else 0


def _whole(number: Any) -> int:
    """A number of tokens that a server tells; 0 for what cannot be one."""
    return int(number) if isinstance(number, int | float) and 0 <= number <= MOST_TOKENS else 0


def _raw(name: str, datatype: str, value: Value) -> bytes:
    if datatype == "BYTES":
        text = str(value).encode()
        return struct.pack("<I", len(text)) + text
    if datatype not in _DTYPES:
        raise ServerError(f"input {name!r} has datatype {datatype}, which this client does not know")
    if isinstance(value, str):
        raise ServerError(f"input {name!r} has datatype {datatype}, and the plan gives it the text {value!r}")
    return bytes(np.atleast_1d(np.array(value)).astype(_DTYPES[datatype]).tobytes())


def _list(names: Any) -> str:
    return ", ".join(names) or "nothing"
