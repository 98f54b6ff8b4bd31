"""The tensors of the TensorRT-LLM backend's model repository, release v0.8.0: names, types, shapes, flags, wiring.

One documented extension: the ensemble has the further output `output_ids`, so that a client can count the server's own
token ids. Its tensor between the engine and postprocessing carries the same name.
"""

from __future__ import annotations

from dataclasses import dataclass

Dims = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tensor:
    """One input or output. `dims` leave out the leading batch dimension; -1 is any length.

    `scalar`: declared [1], and reshaped to [] before the model sees it. `ragged`: requests of one batch
    may differ in shape.
    """

    name: str
    data_type: str
    dims: Dims
    optional: bool = False
    ragged: bool = False
    scalar: bool = False


def _optional(name: str, data_type: str, dims: Dims = (1,)) -> Tensor:
    return Tensor(name, data_type, dims, optional=True)


def _ragged(name: str, data_type: str, dims: Dims) -> Tensor:
    return Tensor(name, data_type, dims, optional=True, ragged=True)


def _scalar(name: str, data_type: str, optional: bool = True) -> Tensor:
    return Tensor(name, data_type, (1,), optional=optional, scalar=True)


@dataclass(frozen=True, slots=True)
class Model:
    """One model of the repository: its tensors, in the order of the published configuration."""

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    decoupled: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the ensemble, as pairs (tensor of the model, tensor of the ensemble)."""

    model: str
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]


PREPROCESSING = Model(
    name="preprocessing",
    inputs=(
        Tensor("QUERY", "STRING", (-1,)),
        Tensor("REQUEST_OUTPUT_LEN", "INT32", (-1,)),
        _optional("BAD_WORDS_DICT", "STRING", (-1,)),
        _optional("STOP_WORDS_DICT", "STRING", (-1,)),
        _optional("EMBEDDING_BIAS_WORDS", "STRING", (-1,)),
        _optional("EMBEDDING_BIAS_WEIGHTS", "FP32", (-1,)),
        _optional("END_ID", "INT32", (-1,)),
        _optional("PAD_ID", "INT32", (-1,)),
    ),
    outputs=(
        Tensor("INPUT_ID", "INT32", (-1,)),
        Tensor("REQUEST_INPUT_LEN", "INT32", (1,)),
        Tensor("BAD_WORDS_IDS", "INT32", (2, -1)),
        Tensor("STOP_WORDS_IDS", "INT32", (2, -1)),
        Tensor("EMBEDDING_BIAS", "FP32", (-1,)),
        Tensor("REQUEST_OUTPUT_LEN", "INT32", (-1,)),
        Tensor("OUT_END_ID", "INT32", (-1,)),
        Tensor("OUT_PAD_ID", "INT32", (-1,)),
    ),
)

TENSORRT_LLM = Model(
    name="tensorrt_llm",
    inputs=(
        Tensor("input_ids", "INT32", (-1,), ragged=True),
        _scalar("input_lengths", "INT32", optional=False),
        Tensor("request_output_len", "INT32", (1,)),
        _ragged("draft_input_ids", "INT32", (-1,)),
        _scalar("end_id", "INT32"),
        _scalar("pad_id", "INT32"),
        _ragged("stop_words_list", "INT32", (2, -1)),
        _ragged("bad_words_list", "INT32", (2, -1)),
        _ragged("embedding_bias", "FP32", (-1,)),
        _scalar("beam_width", "INT32"),
        _scalar("temperature", "FP32"),
        _scalar("runtime_top_k", "INT32"),
        _scalar("runtime_top_p", "FP32"),
        _scalar("len_penalty", "FP32"),
        _scalar("repetition_penalty", "FP32"),
        _scalar("min_length", "INT32"),
        _scalar("presence_penalty", "FP32"),
        _scalar("frequency_penalty", "FP32"),
        _scalar("random_seed", "UINT64"),
        _scalar("return_log_probs", "BOOL"),
        _scalar("return_context_logits", "BOOL"),
        _scalar("return_generation_logits", "BOOL"),
        _optional("stop", "BOOL"),
        _optional("streaming", "BOOL"),
        _ragged("prompt_embedding_table", "FP16", (-1, -1)),
        _scalar("prompt_vocab_size", "INT32"),
        _ragged("lora_weights", "FP16", (-1, -1)),
        _ragged("lora_config", "INT32", (-1, 3)),
    ),
    outputs=(
        Tensor("output_ids", "INT32", (-1, -1)),
        Tensor("sequence_length", "INT32", (-1,)),
        Tensor("cum_log_probs", "FP32", (-1,)),
        Tensor("output_log_probs", "FP32", (-1, -1)),
        Tensor("context_logits", "FP32", (-1, -1)),
        Tensor("generation_logits", "FP32", (-1, -1, -1)),
    ),
    decoupled=True,
)

POSTPROCESSING = Model(
    name="postprocessing",
    inputs=(
        Tensor("TOKENS_BATCH", "INT32", (-1, -1)),
        Tensor("SEQUENCE_LENGTH", "INT32", (-1,)),
        Tensor("CUM_LOG_PROBS", "FP32", (-1,)),
        Tensor("OUTPUT_LOG_PROBS", "FP32", (-1, -1)),
        _optional("CONTEXT_LOGITS", "FP32", (-1, -1)),
        _optional("GENERATION_LOGITS", "FP32", (-1, -1, -1)),
    ),
    outputs=(
        Tensor("OUTPUT", "STRING", (-1,)),
        Tensor("OUT_CUM_LOG_PROBS", "FP32", (-1,)),
        Tensor("OUT_OUTPUT_LOG_PROBS", "FP32", (-1, -1)),
        Tensor("OUT_CONTEXT_LOGITS", "FP32", (-1, -1)),
        Tensor("OUT_GENERATION_LOGITS", "FP32", (-1, -1, -1)),
    ),
)

ENSEMBLE = Model(
    name="ensemble",
    inputs=(
        Tensor("text_input", "STRING", (-1,)),
        Tensor("max_tokens", "INT32", (-1,)),
        _optional("bad_words", "STRING", (-1,)),
        _optional("stop_words", "STRING", (-1,)),
        _optional("end_id", "INT32"),
        _optional("pad_id", "INT32"),
        _optional("top_k", "INT32"),
        _optional("top_p", "FP32"),
        _optional("temperature", "FP32"),
        _optional("length_penalty", "FP32"),
        _optional("repetition_penalty", "FP32"),
        _optional("min_length", "INT32"),
        _optional("presence_penalty", "FP32"),
        _optional("frequency_penalty", "FP32"),
        _optional("random_seed", "UINT64"),
        _optional("return_log_probs", "BOOL"),
        _optional("return_context_logits", "BOOL"),
        _optional("return_generation_logits", "BOOL"),
        _optional("beam_width", "INT32"),
        _optional("stream", "BOOL"),
        _optional("prompt_embedding_table", "FP16", (-1, -1)),
        _optional("prompt_vocab_size", "INT32"),
        _optional("embedding_bias_words", "STRING", (-1,)),
        _optional("embedding_bias_weights", "FP32", (-1,)),
    ),
    outputs=(
        Tensor("text_output", "STRING", (-1,)),
        Tensor("cum_log_probs", "FP32", (-1,)),
        Tensor("output_log_probs", "FP32", (-1, -1)),
        Tensor("context_logits", "FP32", (-1, -1)),
        Tensor("generation_logits", "FP32", (-1, -1, -1)),
        Tensor("output_ids", "INT32", (-1, -1)),
    ),
)

SERVED = (PREPROCESSING, TENSORRT_LLM, POSTPROCESSING)
MODELS = (*SERVED, ENSEMBLE)

STEPS = (
    Step(
        model="preprocessing",
        inputs=(
            ("QUERY", "text_input"),
            ("REQUEST_OUTPUT_LEN", "max_tokens"),
            ("BAD_WORDS_DICT", "bad_words"),
            ("STOP_WORDS_DICT", "stop_words"),
            ("EMBEDDING_BIAS_WORDS", "embedding_bias_words"),
            ("EMBEDDING_BIAS_WEIGHTS", "embedding_bias_weights"),
            ("END_ID", "end_id"),
            ("PAD_ID", "pad_id"),
        ),
        outputs=(
            ("REQUEST_INPUT_LEN", "_REQUEST_INPUT_LEN"),
            ("INPUT_ID", "_INPUT_ID"),
            ("REQUEST_OUTPUT_LEN", "_REQUEST_OUTPUT_LEN"),
            ("STOP_WORDS_IDS", "_STOP_WORDS_IDS"),
            ("BAD_WORDS_IDS", "_BAD_WORDS_IDS"),
            ("EMBEDDING_BIAS", "_EMBEDDING_BIAS"),
            ("OUT_END_ID", "_PREPROCESSOR_END_ID"),
            ("OUT_PAD_ID", "_PREPROCESSOR_PAD_ID"),
        ),
    ),
    Step(
        model="tensorrt_llm",
        inputs=(
            ("input_ids", "_INPUT_ID"),
            ("input_lengths", "_REQUEST_INPUT_LEN"),
            ("request_output_len", "_REQUEST_OUTPUT_LEN"),
            ("end_id", "_PREPROCESSOR_END_ID"),
            ("pad_id", "_PREPROCESSOR_PAD_ID"),
            ("stop_words_list", "_STOP_WORDS_IDS"),
            ("bad_words_list", "_BAD_WORDS_IDS"),
            ("embedding_bias", "_EMBEDDING_BIAS"),
            ("runtime_top_k", "top_k"),
            ("runtime_top_p", "top_p"),
            ("temperature", "temperature"),
            ("len_penalty", "length_penalty"),
            ("repetition_penalty", "repetition_penalty"),
            ("min_length", "min_length"),
            ("presence_penalty", "presence_penalty"),
            ("frequency_penalty", "frequency_penalty"),
            ("random_seed", "random_seed"),
            ("return_log_probs", "return_log_probs"),
            ("return_context_logits", "return_context_logits"),
            ("return_generation_logits", "return_generation_logits"),
            ("beam_width", "beam_width"),
            ("streaming", "stream"),
            ("prompt_embedding_table", "prompt_embedding_table"),
            ("prompt_vocab_size", "prompt_vocab_size"),
        ),
        outputs=(
            ("output_ids", "output_ids"),
            ("sequence_length", "_SEQUENCE_LENGTH"),
            ("cum_log_probs", "_CUM_LOG_PROBS"),
            ("output_log_probs", "_OUTPUT_LOG_PROBS"),
            ("context_logits", "_CONTEXT_LOGITS"),
            ("generation_logits", "_GENERATION_LOGITS"),
        ),
    ),
    Step(
        model="postprocessing",
        inputs=(
            ("TOKENS_BATCH", "output_ids"),
            ("SEQUENCE_LENGTH", "_SEQUENCE_LENGTH"),
            ("CUM_LOG_PROBS", "_CUM_LOG_PROBS"),
            ("OUTPUT_LOG_PROBS", "_OUTPUT_LOG_PROBS"),
            ("CONTEXT_LOGITS", "_CONTEXT_LOGITS"),
            ("GENERATION_LOGITS", "_GENERATION_LOGITS"),
        ),
        outputs=(
            ("OUTPUT", "text_output"),
            ("OUT_CUM_LOG_PROBS", "cum_log_probs"),
            ("OUT_OUTPUT_LOG_PROBS", "output_log_probs"),
            ("OUT_CONTEXT_LOGITS", "context_logits"),
            ("OUT_GENERATION_LOGITS", "generation_logits"),
        ),
    ),
)
