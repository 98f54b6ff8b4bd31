"""The mock's model as Triton would describe it, and its responses as bytes made once and sent often.

The model is an ensemble of the TensorRT-LLM backend's kind (`text_input`, `max_tokens` ... in; `text_output`,
`output_ids` out). Every token is the word "word" and the id 7.
"""

from __future__ import annotations

import json
import struct
from functools import lru_cache
from typing import Any

import numpy as np
from google.protobuf import json_format  # type: ignore[import-untyped]
from tritonclient.grpc import model_config_pb2, service_pb2

MODEL, ENGINE = "ensemble", "tensorrt_llm"
MAX_BATCH_SIZE = 256
ENGINE_SAYS = {"model": "mock", "precision": "none", "gpu": "none", "tp": "1", "engine": "mock"}
ASKED_BY = ("max_tokens", "request_output_len")
FINAL = "triton_final_response"
INPUTS = (  # name, datatype, may be left out
    ("text_input", "BYTES", False),
    ("max_tokens", "INT32", False),
    ("stream", "BOOL", True),
    ("end_id", "INT32", True),
    ("min_tokens", "INT32", True),
    ("exclude_input_in_output", "BOOL", True),
)
OUTPUTS = (("text_output", "BYTES"), ("output_ids", "INT32"))
_KIND = {
    "BYTES": model_config_pb2.TYPE_STRING,
    "INT32": model_config_pb2.TYPE_INT32,
    "BOOL": model_config_pb2.TYPE_BOOL,
}
# how protobuf opens the fields ModelInferResponse.id (3) and ModelStreamInferResponse.infer_response (2)
_ID, _INFER_RESPONSE = b"\x1a", b"\x12"


def config(model: str) -> Any:
    """The ModelConfig of `model`, None if there is no such model."""
    if model not in (MODEL, ENGINE):
        return None
    found = model_config_pb2.ModelConfig(name=model, max_batch_size=MAX_BATCH_SIZE)
    found.model_transaction_policy.decoupled = True
    if model == ENGINE:
        for key, value in ENGINE_SAYS.items():
            found.parameters[key].string_value = value
        return found
    found.platform = "ensemble"
    for name, datatype, optional in INPUTS:
        found.input.add(name=name, data_type=_KIND[datatype], dims=[1], optional=optional)
    for name, datatype in OUTPUTS:
        found.output.add(name=name, data_type=_KIND[datatype], dims=[-1])
    return found


def config_json(model: str) -> bytes | None:
    """The same as Triton's HTTP endpoint writes it."""
    found = config(model)
    if found is None:
        return None
    written: dict[str, Any] = json_format.MessageToDict(found, preserving_proto_field_name=True)
    for tensor in (*written.get("input", ()), *written.get("output", ())):
        tensor["dims"] = [int(size) for size in tensor["dims"]]  # protobuf writes 64-bit numbers as text
    return json.dumps(written).encode()


def asked(request: Any) -> int | None:
    """The number of tokens that a ModelInferRequest asks for, None if it does not say."""
    for position, tensor in enumerate(request.inputs):
        if tensor.name in ASKED_BY:
            if position < len(request.raw_input_contents):
                return int.from_bytes(request.raw_input_contents[position], "little", signed=True)
            return next(iter(tensor.contents.int_contents), None)
    return None


def grpc_response(request_id: str, tokens: int, final: bool | None) -> bytes:
    """A ModelStreamInferResponse with `tokens` new tokens, as a gRPC message; `final` None: not said."""
    name = request_id.encode()
    response = _outputs(tokens, final) + _ID + _varint(len(name)) + name
    return grpc_message(_INFER_RESPONSE + _varint(len(response)) + response)


def grpc_error(message: str) -> bytes:
    """The ModelStreamInferResponse that Triton sends where a request failed, as a gRPC message."""
    return grpc_message(service_pb2.ModelStreamInferResponse(error_message=message).SerializeToString())


def grpc_message(payload: bytes) -> bytes:
    """A message as gRPC sends it: not compressed, its length, itself."""
    return b"\x00" + struct.pack(">I", len(payload)) + payload


@lru_cache(maxsize=4096)
def _outputs(tokens: int, final: bool | None) -> bytes:
    """All of a ModelInferResponse but its request's id: fields may stand in any order."""
    answer = service_pb2.ModelInferResponse(model_name=MODEL, model_version="1")
    if tokens:
        text = " ".join(["word"] * tokens).encode()
        ids = np.full(tokens, 7, np.int32)
        answer.outputs.add(name="text_output", datatype="BYTES", shape=[1, 1])
        answer.outputs.add(name="output_ids", datatype="INT32", shape=[1, 1, tokens])
        answer.raw_output_contents.extend((struct.pack("<I", len(text)) + text, ids.tobytes()))
    if final is not None:
        answer.parameters[FINAL].bool_param = final
    return bytes(answer.SerializeToString())


@lru_cache(maxsize=4096)
def server_sent_event(tokens: int) -> bytes:
    """A response of generate_stream with `tokens` new tokens, as a chunk of an HTTP/1.1 body.

    As Triton does it, a tensor of one element is written as a number, not as a list of one.
    """
    ids = 7 if tokens == 1 else [7] * tokens
    text = " ".join(["word"] * tokens)
    answer = {"model_name": MODEL, "model_version": "1", "output_ids": ids, "text_output": text}
    return http_chunk(b"data: " + json.dumps(answer).encode() + b"\n\n")


def http_chunk(data: bytes) -> bytes:
    """`data` as one chunk of a chunked body.

    >>> http_chunk(b"word")
    b'4\\r\\nword\\r\\n'
    """
    return b"%x\r\n%b\r\n" % (len(data), data)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
