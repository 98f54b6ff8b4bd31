"""What is sent to each kind of model, and how tokens are counted in its answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from calibration.errors import ServerError
from calibration.load.contract import Contract, ModelInput
from calibration.plan import TensorNames
from calibration.requests.source import PromptRequest
from lab.reference.contract import ENSEMBLE, TENSORRT_LLM, Model

REQUEST = PromptRequest("two words", 2, 5, (7, 8))
DTYPES = {"INT32": np.int32, "UINT32": np.uint32, "BOOL": np.bool_, "FP32": np.float32}


def of(model: Model, **changes: Any) -> Contract:
    inputs = {
        tensor.name: ModelInput("BYTES" if tensor.data_type == "STRING" else tensor.data_type, tensor.optional)
        for tensor in model.inputs
    }
    return Contract(model.name, inputs, tuple(tensor.name for tensor in model.outputs), batched=True, **changes)


def sent(contract: Contract, request: PromptRequest = REQUEST) -> dict[str, tuple[list[int], Any]]:
    """Shape and value of each tensor in the message."""
    message = service_pb2.ModelInferRequest.FromString(contract.message(request, "id-1"))
    assert message.id == "id-1"
    assert message.parameters["triton_enable_empty_final_response"].bool_param
    found = {}
    for tensor, raw in zip(message.inputs, message.raw_input_contents, strict=True):
        value = bytes(raw[4:]).decode() if tensor.datatype == "BYTES" else np.frombuffer(raw, DTYPES[tensor.datatype])
        found[tensor.name] = (list(tensor.shape), value if isinstance(value, str) else value.tolist())
    return found


def test_the_ensemble_is_sent_text_and_a_forced_length() -> None:
    assert sent(of(ENSEMBLE)) == {
        "text_input": ([1, 1], "two words"),
        "max_tokens": ([1, 1], [5]),
        "min_length": ([1, 1], [5]),
        "end_id": ([1, 1], [-1]),
        "return_log_probs": ([1, 1], [False]),
        "stream": ([1, 1], [True]),
    }


def test_the_engine_itself_is_sent_token_ids() -> None:
    found = sent(of(TENSORRT_LLM))
    assert found["input_ids"] == ([1, 2], [7, 8])
    assert found["input_lengths"] == ([1, 1], [2])
    assert found["request_output_len"] == ([1, 1], [5])
    assert found["streaming"] == ([1, 1], [True])
    with pytest.raises(ServerError, match="takes token ids: name its tokenizer"):
        of(TENSORRT_LLM).message(PromptRequest("a b", 2, 5), "1")


def test_a_model_without_batching_is_sent_no_batch_dimension() -> None:
    inputs = {"text_input": ModelInput("BYTES", False), "max_tokens": ModelInput("UINT32", False)}
    found = sent(Contract("llama-python", inputs, ("text_output",), batched=False, decoupled=False))
    assert found == {"text_input": ([1], "two words"), "max_tokens": ([1], [5])}


def test_word_lists_are_sent_only_where_they_are_required() -> None:
    inputs = {
        "text_input": ModelInput("BYTES", False),
        "bad_words": ModelInput("BYTES", False),
        "stop_words": ModelInput("BYTES", True),
    }
    assert sent(Contract("ensemble", inputs, ("text_output",), batched=True)).keys() == {"text_input", "bad_words"}


def test_an_unsigned_end_id_is_one_that_no_vocabulary_has() -> None:
    inputs = {"text_input": ModelInput("BYTES", False), "end_id": ModelInput("UINT32", False)}
    assert sent(Contract("ensemble", inputs, ("text_output",), batched=True))["end_id"] == ([1, 1], [2**32 - 1])


def mapped(**names: Any) -> Contract:
    inputs = {
        "PROMPT": ModelInput("BYTES", False),
        "N": ModelInput("INT32", False),
        "TEMPERATURE": ModelInput("FP32", False),
        "USER": ModelInput("BYTES", True),
    }
    return Contract("nemo", inputs, ("TEXT", "IDS"), batched=False, tensors=TensorNames(**names))


def test_the_plan_names_tensors_and_constants_of_any_other_model() -> None:
    contract = mapped(
        prompt="PROMPT", max_tokens="N", text="TEXT", output_ids="IDS", constants={"TEMPERATURE": 0.5, "USER": "me"}
    )
    contract.check()
    assert sent(contract) == {
        "PROMPT": ([1], "two words"),
        "N": ([1], [5]),
        "TEMPERATURE": ([1], [0.5]),
        "USER": ([1], "me"),
    }
    assert contract.counted_by == "output_ids"
    assert contract.exact


def test_a_constant_of_the_plan_outweighs_what_would_be_sent() -> None:
    assert sent(of(ENSEMBLE, tensors=TensorNames(constants={"end_id": 2})))["end_id"] == ([1, 1], [2])


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"prompt": "QUERY"}, r"no 'QUERY' \(server.tensors.prompt\), only PROMPT, N, TEMPERATURE, USER"),
        ({"prompt": "PROMPT", "text": "ANSWER"}, r"no 'ANSWER' \(server.tensors.text\), only TEXT, IDS"),
        ({"prompt": "PROMPT", "constants": {"SEED": 1}}, r"no input 'SEED' \(server.tensors.constants\)"),
        ({}, "neither text_input nor input_ids"),
    ],
)
def test_names_that_the_model_has_not_are_refused(names: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ServerError, match=message):
        mapped(**names).check()


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        ({}, "requires the input 'TEMPERATURE', which this client does not know.*server.tensors.constants"),
        ({"TEMPERATURE": "hot"}, "'TEMPERATURE' has datatype FP32, and the plan gives it the text 'hot'"),
    ],
)
def test_a_required_input_needs_a_value_of_its_kind(constants: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ServerError, match=message):
        mapped(prompt="PROMPT", max_tokens="N", constants=constants).message(REQUEST, "1")


def test_a_model_that_cannot_be_told_its_length_says_so_and_is_not_held_to_it() -> None:
    contract = Contract(
        "m", {"text_input": ModelInput("BYTES", False)}, ("text_output", "output_ids"), batched=False, decoupled=False
    )
    assert not contract.exact
    assert [note.split(":")[0] for note in contract.notes] == ["OSL is not forced", "the model is not decoupled"]


def test_the_complete_contract_has_nothing_to_warn_of() -> None:
    assert of(ENSEMBLE).notes == ()
    assert of(ENSEMBLE).exact


def response(name: str, datatype: str, shape: list[int], raw: bytes) -> Any:
    answer = service_pb2.ModelInferResponse()
    for other in ("cum_log_probs", name):
        answer.outputs.add(name=other, datatype=datatype, shape=shape)
        answer.raw_output_contents.append(raw)
    return answer


@settings(deadline=None)
@given(st.integers(0, 40), st.sampled_from(["output_ids", "sequence_length", "output_log_probs"]))
def test_grpc_and_json_answers_count_alike(tokens: int, counter: str) -> None:
    """The same answer in both encodings: Triton writes one element as a number and more as a list."""
    contract = Contract("m", {"text_input": ModelInput("BYTES", False)}, ("text_output", counter), batched=True)
    values = [tokens] if counter == "sequence_length" else list(range(tokens))
    answer = response(counter, "INT32", [1, 1, len(values)], np.array(values, np.int32).tobytes())
    assert contract.tokens(answer) == tokens
    assert contract.json_tokens({counter: values[0] if len(values) == 1 else values, "text_output": "x"}) == tokens


@pytest.mark.parametrize(("text", "tokens"), [("", 0), ("word", 1), ("three more words", 1)])
def test_a_text_model_is_counted_by_responses(text: str, tokens: int) -> None:
    contract = Contract("m", {"text_input": ModelInput("BYTES", False)}, ("text_output",), batched=True)
    raw = len(text).to_bytes(4, "little") + text.encode()
    assert contract.tokens(response("text_output", "BYTES", [1, 1], raw)) == tokens
    assert contract.json_tokens({"text_output": text}) == tokens
    assert contract.tokens(service_pb2.ModelInferResponse()) == contract.json_tokens({}) == 0


TEXT, FLAG = ModelInput("BYTES", False), ModelInput("BOOL", True)
VLLM_INPUTS = {
    "text_input": TEXT,
    "stream": FLAG,
    "sampling_parameters": ModelInput("BYTES", True),
    "exclude_input_in_output": FLAG,
    "return_finish_reason": FLAG,
    "return_num_output_tokens": FLAG,
}


def test_the_vllm_backend_is_sent_its_parameters_as_json_and_counts_its_own_tokens() -> None:
    contract = Contract("vllm_model", VLLM_INPUTS, ("text_output", "finish_reason", "num_output_tokens"), batched=False)
    found = sent(contract)
    parameters = json.loads(found.pop("sampling_parameters")[1])
    assert parameters == {"max_tokens": 5, "min_tokens": 5, "ignore_eos": True}
    assert found == {
        "text_input": ([1], "two words"),
        "stream": ([1], [True]),
        "exclude_input_in_output": ([1], [True]),
        "return_num_output_tokens": ([1], [True]),
    }
    assert contract.exact and not contract.notes
    response = service_pb2.ModelInferResponse()
    response.outputs.add(name="text_output", datatype="BYTES", shape=[1])
    response.raw_output_contents.append(b"\x00\x00\x00\x00")
    response.outputs.add(name="num_output_tokens", datatype="UINT32", shape=[1])
    response.raw_output_contents.append(np.uint32(3).tobytes())
    assert contract.tokens(response) == contract.json_tokens({"text_output": "", "num_output_tokens": 3}) == 3


def test_an_old_vllm_backend_has_its_length_forced_and_its_responses_counted() -> None:
    inputs = {name: VLLM_INPUTS[name] for name in ("text_input", "stream", "sampling_parameters")}
    contract = Contract("vllm_model", inputs, ("text_output",), batched=False)
    assert set(sent(contract)) == set(inputs)
    assert contract.forces_osl and not contract.exact
    assert contract.notes == ("OSL is responses: the model reports no token counts",)


def test_the_llm_api_of_tensorrt_llm_is_told_a_length_and_to_leave_the_prompt_out() -> None:
    names = {
        "text_input": TEXT,
        "streaming": FLAG,
        "sampling_param_max_tokens": ModelInput("INT32", True),
        "sampling_param_exclude_input_from_output": FLAG,
        "sampling_param_temperature": ModelInput("FP32", True),
    }
    assert sent(Contract("tensorrt_llm", names, ("text_output",), batched=False)) == {
        "text_input": ([1], "two words"),
        "streaming": ([1], [True]),
        "sampling_param_max_tokens": ([1], [5]),
        "sampling_param_exclude_input_from_output": ([1], [True]),
    }
