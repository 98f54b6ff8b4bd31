"""The parameters of `tensorrt_llm` that decide what runs when, read as the TensorRT-LLM backend (v0.8.0) reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lab.reference.settings import KV_BLOCK_TOKENS, POLICIES, Policy

TRUE = ("True", "true", "TRUE", "1")
FALSE = ("False", "false", "FALSE", "0")
STATIC_TYPES = ("V1", "v1")
IN_FLIGHT_TYPES = ("inflight_batching", "inflight_fused_batching")

Warn = Callable[[str], None]
Parameters = Mapping[str, str]


class ParameterError(Exception):
    """A parameter with which the engine does not load."""


@dataclass(frozen=True, slots=True)
class Scheduling:
    """What a repository asks of the scheduler, every default filled in.

    Attributes:
        is_static: V1: a batch runs until its longest request ends.
        policy: when a request may start, see InFlightEngine.
        kv_tokens: capacity of the KV cache in whole blocks.
        max_requests: most requests computed at once.
        reuses_kv: full blocks of prompts stay in the cache for prompts that begin alike.
        chunks_prompts: a prompt may be read in pieces over several passes.
    """

    is_static: bool
    policy: Policy
    kv_tokens: int
    max_requests: int
    reuses_kv: bool
    chunks_prompts: bool


def read_scheduling(parameters: Parameters, warn: Warn) -> Scheduling:
    """What `parameters` ask for; `warn` gets a line, in the backend's words, for each value that a default replaces.

    `kv_tokens` and `max_batch_size` are what the machine and the engine can hold; the backend's own
    max_tokens_in_paged_kv_cache, kv_cache_free_gpu_mem_fraction and max_num_sequences may limit that further.

    Raises:
        ParameterError: the batching type is none of the backend's, or the KV cache does not hold one block.
    """
    kind = parameters.get("gpt_model_type", "")
    if kind not in STATIC_TYPES + IN_FLIGHT_TYPES:
        raise ParameterError("Invalid gpt_model_type. Must be v1/inflight_batching/inflight_fused_batching.")
    _say_what_is_not_here(parameters, warn)
    is_static = kind in STATIC_TYPES
    chunks = _flag(parameters, "enable_chunked_context", warn, "will be set to false.")
    return Scheduling(
        is_static=is_static,
        policy=_policy(parameters, is_static, chunks, warn),
        kv_tokens=_kv_tokens(parameters, warn),
        max_requests=_max_requests(parameters, warn),
        reuses_kv=_flag(parameters, "enable_kv_cache_reuse", warn, "will be set to false"),
        chunks_prompts=chunks,
    )


def _policy(parameters: Parameters, is_static: bool, chunks: bool, warn: Warn) -> Policy:
    given = parameters.get("batch_scheduler_policy", "")
    if given not in POLICIES:
        warn(
            "batch_scheduler_policy parameter was not found or is invalid (must be max_utilization or "
            "guaranteed_no_evict)"
        )
    if given != "max_utilization":
        return "guaranteed_no_evict"
    if is_static:
        warn("batch_scheduler_policy max_utilization has no effect on V1: a batch under way neither grows nor shrinks")
        return "guaranteed_no_evict"
    if parameters.get("decoupled", "") in TRUE and not chunks:
        warn(
            "Decoupled mode with a batch scheduler policy other than guaranteed_no_evict requires building the model "
            "with use_paged_context_fmha and setting enable_chunked_context to true. The batch scheduler policy will "
            "be set to guaranteed_no_evict since enable_chunked_context is false."
        )
        return "guaranteed_no_evict"
    return "max_utilization"


def _kv_tokens(parameters: Parameters, warn: Warn) -> int:
    """The smaller of what max_tokens_in_paged_kv_cache allows and the fraction of the memory, in whole blocks."""
    memory = int(parameters["kv_tokens"])
    most = _number(parameters, "max_tokens_in_paged_kv_cache", warn, "will use default value")
    fraction = _fraction(parameters, warn)
    tokens = int(memory * fraction) if most is None else min(most, int(memory * fraction))
    if tokens < KV_BLOCK_TOKENS:
        raise ParameterError(
            f"the KV cache of {tokens} tokens holds no block of {KV_BLOCK_TOKENS}: raise max_tokens_in_paged_kv_cache "
            f"or kv_cache_free_gpu_mem_fraction (of {memory} tokens)"
        )
    return tokens // KV_BLOCK_TOKENS * KV_BLOCK_TOKENS


def _fraction(parameters: Parameters, warn: Warn) -> float:
    """The fraction of `kv_tokens` to use: by default all, because nothing else needs the memory."""
    name = "kv_cache_free_gpu_mem_fraction"
    given = parameters.get(name)
    if given is None:
        return 1.0
    try:
        fraction = float(given)
    except ValueError:
        fraction = 0.0
    if 0.0 < fraction <= 1.0:
        return fraction
    warn(f"{name} is not specified, will use default value of 1 or max_tokens_in_paged_kv_cache")
    return 1.0


def _max_requests(parameters: Parameters, warn: Warn) -> int:
    largest = int(parameters["max_batch_size"])
    given = _number(parameters, "max_num_sequences", warn, "will be set to the TRT engine max_batch_size")
    return largest if given is None else min(largest, given)


def _say_what_is_not_here(parameters: Parameters, warn: Warn) -> None:
    beams = _number(parameters, "max_beam_width", warn, "will use default value of 1") or 1
    if beams > 1:
        warn(
            f"max_beam_width {beams} is more than this engine was built with: requests of more than 1 beam are refused"
        )
    name, longest = "max_attention_window_size", int(parameters["max_sequence_tokens"])
    window = _number(parameters, name, warn, "will use default value (i.e. max_sequence_length)") or longest
    if window < longest:
        warn(f"{name} {window} has no effect: this engine attends to all {longest} tokens of a sequence")


def _number(parameters: Parameters, name: str, warn: Warn, otherwise: str) -> int | None:
    """A whole number of at least 1; None, with a warning, for any other value; None if the parameter is absent."""
    given = parameters.get(name)
    if given is None:
        return None
    if given.isascii() and given.isdigit() and int(given):
        return int(given)
    warn(f"{name} is not specified, {otherwise}")
    return None


def _flag(parameters: Parameters, name: str, warn: Warn, otherwise: str) -> bool:
    """A boolean; False, with a warning, for a word unknown to the backend; False if the parameter is absent."""
    given = parameters.get(name)
    if given is not None and given not in TRUE + FALSE:
        warn(f"{name} is not specified, {otherwise}")
    return given in TRUE
