"""From the tensors of a `tensorrt_llm` request to a Request, with the refusals in one line each."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibration.reference.engine.request import Limits, Request, Sampling

Tensors = Mapping[str, NDArray[Any]]
Words = tuple[tuple[int, ...], ...]

# Taken because the contract has them, and not applied: they change which tokens come, not how many or how fast.
NOT_APPLIED = (
    "draft_input_ids",
    "len_penalty",
    "prompt_embedding_table",
    "prompt_vocab_size",
    "lora_weights",
    "lora_config",
)
NEEDS_OTHER_ENGINE = {
    "return_context_logits": "context logits",
    "return_generation_logits": "generation logits",
}


class InputError(Exception):
    """A request that this engine refuses; the message goes to the client as it is."""


def read_request(tensors: Tensors, limits: Limits) -> Request:
    """The request that `tensors` (name -> array, batch dimension first) describe.

    Raises:
        InputError: more than one sequence or beam, a token outside the vocabulary, nothing to do, or too long.
    """
    prompt = _prompt(tensors, limits)
    _refuse_what_is_not_there(tensors)
    request = Request(
        prompt=prompt,
        max_tokens=int(_scalar(tensors, "request_output_len", 0)),
        end_id=int(_scalar(tensors, "end_id", -1)),
        stop_words=_words(tensors, "stop_words_list"),
        sampling=_sampling(tensors),
        wants_log_probs=bool(_scalar(tensors, "return_log_probs", False)),
        is_streamed=bool(_scalar(tensors, "streaming", False)),
    )
    _refuse_what_does_not_fit(request, limits)
    return request


def _prompt(tensors: Tensors, limits: Limits) -> list[int]:
    ids = tensors["input_ids"]
    if ids.shape[0] != 1:
        raise InputError(
            f"in-flight batching expects requests with batch size of 1, got input_ids of shape {ids.shape}"
        )
    prompt = [int(token) for token in ids.reshape(-1)[: int(_scalar(tensors, "input_lengths", 0))]]
    if not prompt:
        raise InputError("the prompt is empty: at least one token is needed")
    if min(prompt) < 0 or max(prompt) >= limits.vocab_size:
        raise InputError(f"input_ids must lie in [0, {limits.vocab_size}), got {min(prompt)} to {max(prompt)}")
    return prompt


def _refuse_what_is_not_there(tensors: Tensors) -> None:
    beams = int(_scalar(tensors, "beam_width", 1))
    if beams != 1:
        raise InputError(f"beam_width {beams} is not possible: this engine was built with max_beam_width 1")
    for name, what in NEEDS_OTHER_ENGINE.items():
        if _scalar(tensors, name, False):
            raise InputError(f"{name} is not possible: this engine was built without gathering {what}")


def _refuse_what_does_not_fit(request: Request, limits: Limits) -> None:
    if request.max_tokens < 1:
        raise InputError(f"request_output_len must be at least 1, got {request.max_tokens}")
    what = f"prompt ({len(request.prompt)} tokens) plus request_output_len ({request.max_tokens})"
    if request.longest > limits.max_sequence_tokens:
        raise InputError(f"{what} exceeds the maximum sequence length of {limits.max_sequence_tokens}")
    if request.longest > limits.kv_tokens:
        raise InputError(f"{what} exceeds the whole KV cache of {limits.kv_tokens} tokens")


def _sampling(tensors: Tensors) -> Sampling:
    bias = tensors.get("embedding_bias", np.zeros(0))
    return Sampling(
        temperature=float(_scalar(tensors, "temperature", 1.0)),
        top_k=int(_scalar(tensors, "runtime_top_k", 0)),
        top_p=float(_scalar(tensors, "runtime_top_p", 0.0)),
        repetition_penalty=float(_scalar(tensors, "repetition_penalty", 1.0)),
        presence_penalty=float(_scalar(tensors, "presence_penalty", 0.0)),
        frequency_penalty=float(_scalar(tensors, "frequency_penalty", 0.0)),
        min_length=int(_scalar(tensors, "min_length", 0)),
        bad_words=_words(tensors, "bad_words_list"),
        bias=tuple(bias.reshape(-1).tolist()),
        seed=int(_scalar(tensors, "random_seed", 0)),
    )


def _words(tensors: Tensors, name: str) -> Words:
    """Token sequences of a word list [1, 2, n]: row 0 their ids one after another, row 1 where each ends, then -1."""
    if name not in tensors or tensors[name].size == 0:
        return ()
    ids, ends = tensors[name].reshape(2, -1).tolist()
    bounds = [0, *(end for end in ends if end >= 0)]
    return tuple(tuple(ids[start:end]) for start, end in itertools.pairwise(bounds))


def _scalar(tensors: Tensors, name: str, default: float) -> float:
    if name not in tensors or tensors[name].size == 0:
        return default
    value: float = tensors[name].reshape(-1)[0].item()
    return value
