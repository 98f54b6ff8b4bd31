"""From the tensors of a `tensorrt_llm` request to a Request, with the refusals in one line each."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.reference.engine.lora import read_adapter
from lab.reference.engine.refusals import InputError
from lab.reference.engine.request import Limits, Request, Sampling
from lab.reference.engine.shape import Shape

Tensors = Mapping[str, NDArray[Any]]
Words = tuple[tuple[int, ...], ...]

ALL_OUTPUTS = (
    "output_ids",
    "sequence_length",
    "cum_log_probs",
    "output_log_probs",
    "context_logits",
    "generation_logits",
)

# draft_input_ids, len_penalty, prompt_embedding_table and prompt_vocab_size are accepted because the contract has them,
# but not applied: they affect which tokens are generated, not how many or how fast.


def read_request(tensors: Tensors, limits: Limits, shape: Shape, outputs: Collection[str] = ALL_OUTPUTS) -> Request:
    """The request in `tensors` (name -> array, batch dimension first), which asks for `outputs`.

    Of a token id beyond the vocabulary the remainder is used: public load generators draw ids below 2**31, and clients
    without a tokenizer send those of another model.

    Raises:
        InputError: more than one sequence or beam, a negative token id, an adapter that does not fit the model, nothing
            to do, or too long.
    """
    prompt = [token % limits.vocab_size for token in _prompt(tensors, limits)]
    _refuse_what_is_not_there(tensors)
    adapter = read_adapter(tensors.get("lora_weights"), tensors.get("lora_config"), shape)
    wants_context = "context_logits" in outputs and bool(_scalar(tensors, "return_context_logits", False))
    request = Request(
        prompt=prompt,
        max_tokens=int(_scalar(tensors, "request_output_len", 0)),
        end_id=int(_scalar(tensors, "end_id", -1)),
        stop_words=_words(tensors, "stop_words_list"),
        sampling=_sampling(tensors, limits),
        wants_log_probs=bool(_scalar(tensors, "return_log_probs", False)),
        is_streamed=bool(_scalar(tensors, "streaming", False)),
        adapter=adapter,
        reuse_key=adapter.digest if adapter else "",
        may_reuse=not wants_context,
        wants_context_logits=wants_context,
        wants_generation_logits="generation_logits" in outputs
        and bool(_scalar(tensors, "return_generation_logits", False)),
    )
    _refuse_what_does_not_fit(request, limits)
    return request


def sent_prompt(tensors: Tensors) -> list[int]:
    """The prompt's token ids as the client sent them, which an answer repeats."""
    ids: list[int] = tensors["input_ids"].reshape(-1).tolist()
    return ids[: max(int(_scalar(tensors, "input_lengths", 0)), 0)]


def _prompt(tensors: Tensors, limits: Limits) -> list[int]:
    shape = tensors["input_ids"].shape
    if shape[0] != 1:
        raise InputError(f"Expected batch dimension to be 1 for each request, got input_ids of shape {shape}")
    prompt = sent_prompt(tensors)
    if not prompt:
        raise InputError("the prompt is empty: at least one token is needed")
    if len(prompt) >= limits.max_sequence_tokens:
        most = limits.max_sequence_tokens - 1
        raise InputError(f"Prompt length ({len(prompt)}) exceeds maximum input length ({most}).")
    if min(prompt) < 0:
        raise InputError(f"input_ids must not be negative, got {min(prompt)}")
    return prompt


def _refuse_what_is_not_there(tensors: Tensors) -> None:
    beams = int(_scalar(tensors, "beam_width", 1))
    if beams < 1:
        raise InputError(
            f"Requested value: {beams} for beamWidth is invalid. To de-activate beam searching set beamWidth to 1 "
            "instead."
        )
    if beams > 1:
        raise InputError(f"Requested beam width {beams} is larger than configured max beam width 1")
    if ("prompt_embedding_table" in tensors) != ("prompt_vocab_size" in tensors):
        raise InputError(
            "Prompt embedding table and prompt vocab size tensors must both be provided for requests with prompt "
            "tuning enabled."
        )


def _refuse_what_does_not_fit(request: Request, limits: Limits) -> None:
    if request.max_tokens < 1:
        raise InputError(f"request_output_len must be at least 1, got {request.max_tokens}")
    what = f"prompt ({len(request.prompt)} tokens) plus request_output_len ({request.max_tokens})"
    # the backend would silently generate fewer tokens than requested, and a measurement would be of another load
    if request.longest > limits.max_sequence_tokens:
        raise InputError(f"{what} exceeds the maximum sequence length of {limits.max_sequence_tokens}")
    if request.longest > limits.kv_tokens:
        raise InputError(f"{what} exceeds the whole KV cache of {limits.kv_tokens} tokens")


def _sampling(tensors: Tensors, limits: Limits) -> Sampling:
    return Sampling(
        temperature=_number(tensors, "temperature", 1.0),
        top_k=int(_scalar(tensors, "runtime_top_k", 0)),
        top_p=_number(tensors, "runtime_top_p", 0.0),
        repetition_penalty=_number(tensors, "repetition_penalty", 1.0),
        presence_penalty=_number(tensors, "presence_penalty", 0.0),
        frequency_penalty=_number(tensors, "frequency_penalty", 0.0),
        min_length=int(_scalar(tensors, "min_length", 0)),
        bad_words=_possible(_words(tensors, "bad_words_list"), limits.vocab_size),
        bias=_bias(tensors, limits.vocab_size),
        seed=int(_scalar(tensors, "random_seed", 0)),
    )


def _bias(tensors: Tensors, vocab_size: int) -> tuple[float, ...]:
    bias = tensors.get("embedding_bias", np.zeros(0)).reshape(-1)
    if len(bias) not in (0, vocab_size):
        raise InputError(f"embedding_bias must have one value per vocabulary entry ({vocab_size}), got {len(bias)}")
    return tuple(bias.tolist())


def _possible(words: Words, vocab_size: int) -> Words:
    """The words of which all tokens are in the vocabulary."""
    return tuple(word for word in words if all(0 <= token < vocab_size for token in word))


def _words(tensors: Tensors, name: str) -> Words:
    """Token sequences of a word list [1, 2, n]: row 0 their ids one after another, row 1 where each ends, then -1."""
    if name not in tensors or tensors[name].size == 0:
        return ()
    ids, ends = tensors[name].reshape(2, -1).tolist()
    bounds = [0, *(end for end in ends if end >= 0)]
    return tuple(tuple(ids[start:end]) for start, end in itertools.pairwise(bounds))


def _number(tensors: Tensors, name: str, default: float) -> float:
    value = float(_scalar(tensors, name, default))
    if not math.isfinite(value):
        raise InputError(f"{name} must be a finite number, got {value}")
    return value


def _scalar(tensors: Tensors, name: str, default: float) -> float:
    if name not in tensors or tensors[name].size == 0:
        return default
    value: float = tensors[name].reshape(-1)[0].item()
    return value
