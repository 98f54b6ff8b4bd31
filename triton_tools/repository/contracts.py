"""The published wire contracts of the TensorRT-LLM backend, v0.5.0 and v0.8.0: tensors, wiring, parameters, as data.

A table has one entry per tensor, "name TYPE dims flags". Dims leave out the batch dimension, and -1 is any length.
Flags: o optional, r ragged (requests of a batch may differ in shape), s scalar (declared [1], but the model sees []).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from lab.reference import contract as v08
from lab.reference.contract import Model, Step, Tensor


def tensors(table: str) -> tuple[Tensor, ...]:
    """The tensors of a table.

    >>> tensors("words INT32 2,-1 or; n INT32 1 s")[0]
    Tensor(name='words', data_type='INT32', dims=(2, -1), optional=True, ragged=True, scalar=False)
    """
    return tuple(_tensor(*entry.split()) for entry in table.split(";"))


def _tensor(name: str, data_type: str, dims: str, flags: str = "") -> Tensor:
    sizes = tuple(int(size) for size in dims.split(","))
    return Tensor(name, data_type, sizes, optional="o" in flags, ragged="r" in flags, scalar="s" in flags)


def wires(table: str) -> tuple[tuple[str, str], ...]:
    """Pairs (tensor of the model, tensor of the ensemble) from texts "model=ensemble"; a single name stands for both.

    >>> wires("QUERY=text_input stop")
    (('QUERY', 'text_input'), ('stop', 'stop'))
    """
    pairs = (entry.partition("=") for entry in table.split())
    return tuple((inner, outer or inner) for inner, _, outer in pairs)


@dataclass(frozen=True, slots=True)
class Contract:
    """One release of the repository `inflight_batcher_llm`.

    Attributes:
        models: preprocessing, tensorrt_llm, postprocessing, ensemble and, from v0.7, tensorrt_llm_bls.
        steps: of the ensemble, in order.
        parameters: per model, parameter -> what stands in its place in the template: "${placeholder}" or a value.
        batched: whether tensorrt_llm has a dynamic batcher as published.
    """

    name: str
    models: tuple[Model, ...]
    steps: tuple[Step, ...]
    parameters: Mapping[str, Mapping[str, str]]
    batched: bool

    def model(self, name: str) -> Model | None:
        """The model of that name; None if this release has none."""
        return next((model for model in self.models if model.name == name), None)


V05_MODELS = (
    Model(
        "preprocessing",
        tensors(
            "QUERY STRING -1; BAD_WORDS_DICT STRING -1; STOP_WORDS_DICT STRING -1; REQUEST_OUTPUT_LEN UINT32 -1",
        ),
        tensors(
            "INPUT_ID INT32 -1; REQUEST_INPUT_LEN INT32 1; BAD_WORDS_IDS INT32 2,-1; STOP_WORDS_IDS INT32 2,-1;"
            "REQUEST_OUTPUT_LEN UINT32 -1"
        ),
    ),
    Model(
        "tensorrt_llm",
        tensors(
            "input_ids INT32 -1; input_lengths INT32 1 s; request_output_len UINT32 1; end_id UINT32 1 os;"
            "pad_id UINT32 1 os; beam_width UINT32 1 os; temperature FP32 1 os; runtime_top_k UINT32 1 os;"
            "runtime_top_p FP32 1 os; len_penalty FP32 1 os; repetition_penalty FP32 1 os; min_length UINT32 1 os;"
            "presence_penalty FP32 1 os; random_seed UINT64 1 os; stop BOOL 1 o; streaming BOOL 1 o"
        ),
        tensors("output_ids INT32 -1,-1"),
    ),
    Model("postprocessing", tensors("TOKENS_BATCH INT32 -1,-1"), tensors("OUTPUT STRING -1,-1")),
    Model(
        "ensemble",
        tensors(
            "text_input STRING -1; max_tokens UINT32 -1; bad_words STRING -1; stop_words STRING -1; end_id UINT32 1 o;"
            "pad_id UINT32 1 o; top_k UINT32 1 o; top_p FP32 1 o; temperature FP32 1 o; length_penalty FP32 1 o;"
            "repetition_penalty FP32 1 o; min_length UINT32 1 o; presence_penalty FP32 1 o; random_seed UINT64 1 o;"
            "beam_width UINT32 1 o; stream BOOL 1 o"
        ),
        tensors("text_output STRING -1,-1"),
    ),
)

V05_STEPS = (
    Step(
        "preprocessing",
        wires("BAD_WORDS_DICT=bad_words QUERY=text_input REQUEST_OUTPUT_LEN=max_tokens STOP_WORDS_DICT=stop_words"),
        wires("INPUT_ID=_INPUT_ID REQUEST_INPUT_LEN=_REQUEST_INPUT_LEN REQUEST_OUTPUT_LEN=_REQUEST_OUTPUT_LEN"),
    ),
    Step(
        "tensorrt_llm",
        wires(
            "beam_width end_id input_ids=_INPUT_ID input_lengths=_REQUEST_INPUT_LEN len_penalty=length_penalty "
            "min_length pad_id presence_penalty random_seed repetition_penalty request_output_len=_REQUEST_OUTPUT_LEN "
            "runtime_top_k=top_k runtime_top_p=top_p streaming=stream temperature"
        ),
        wires("output_ids=_TOKENS_BATCH"),
    ),
    Step("postprocessing", wires("TOKENS_BATCH=_TOKENS_BATCH"), wires("OUTPUT=text_output")),
)

# the reference server's contract exposes this tensor as `output_ids`; here it has the published name
_WIRE_OF_IDS = {"output_ids": "_TOKENS_BATCH"}


def _as_published(step: Step) -> Step:
    def renamed(pairs: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
        return tuple((inner, _WIRE_OF_IDS.get(outer, outer)) for inner, outer in pairs)

    return Step(step.model, renamed(step.inputs), renamed(step.outputs))


_V08_ENSEMBLE = replace(
    v08.ENSEMBLE, outputs=tuple(tensor for tensor in v08.ENSEMBLE.outputs if tensor.name not in _WIRE_OF_IDS)
)
_SCALAR_IN_BLS = ("return_context_logits", "return_generation_logits")
_V08_BLS = Model(
    "tensorrt_llm_bls",
    tuple(replace(tensor, scalar=tensor.name in _SCALAR_IN_BLS) for tensor in _V08_ENSEMBLE.inputs),
    _V08_ENSEMBLE.outputs,
)

_TOKENIZER = {"tokenizer_dir": "${tokenizer_dir}", "tokenizer_type": "${tokenizer_type}"}
_ENGINE = {
    "gpt_model_path": "${engine_dir}",
    "batch_scheduler_policy": "${batch_scheduler_policy}",
    "max_tokens_in_paged_kv_cache": "${max_tokens_in_paged_kv_cache}",
    "kv_cache_free_gpu_mem_fraction": "${kv_cache_free_gpu_mem_fraction}",
    "enable_trt_overlap": "${enable_trt_overlap}",
    "FORCE_CPU_ONLY_INPUT_TENSORS": "no",
}

V05 = Contract(
    name="v0.5",
    models=V05_MODELS,
    steps=V05_STEPS,
    parameters={
        "preprocessing": _TOKENIZER,
        "tensorrt_llm": _ENGINE
        | {
            "gpt_model_type": "inflight_fused_batching",
            "max_num_sequences": "${max_num_sequences}",
            "max_beam_width": "1",
        },
        "postprocessing": _TOKENIZER,
    },
    batched=False,
)

V08 = Contract(
    name="v0.8",
    models=(v08.PREPROCESSING, replace(v08.TENSORRT_LLM, decoupled=False), v08.POSTPROCESSING, _V08_ENSEMBLE, _V08_BLS),
    steps=tuple(_as_published(step) for step in v08.STEPS),
    parameters={
        "preprocessing": _TOKENIZER | {"add_special_tokens": "False"},
        "tensorrt_llm": _ENGINE
        | {
            "gpt_model_type": "${batching_strategy}",
            "max_beam_width": "${max_beam_width}",
            "max_attention_window_size": "${max_attention_window_size}",
            "enable_kv_cache_reuse": "${enable_kv_cache_reuse}",
            "enable_chunked_context": "${enable_chunked_context}",
            "exclude_input_in_output": "${exclude_input_in_output}",
            "normalize_log_probs": "${normalize_log_probs}",
            "gpu_device_ids": "${gpu_device_ids}",
        },
        "postprocessing": _TOKENIZER | {"skip_special_tokens": "True"},
        "tensorrt_llm_bls": {"accumulate_tokens": "${accumulate_tokens}"},
    },
    batched=True,
)

CONTRACTS = {contract.name: contract for contract in (V08, V05)}

# The workshop's text model on the Python backend, to compare with the engine: without any batch dimension.
TEXT = Model("llama-python", tensors("text_input STRING -1; max_tokens UINT32 -1"), tensors("text_output STRING -1"))
