"""Which values the TensorRT-LLM backend accepts for each parameter, and what it does with others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from string import Template
from typing import Literal

from lab.reference import settings
from lab.reference.engine.parameters import FALSE, IN_FLIGHT_TYPES, STATIC_TYPES, TRUE

POLICIES = settings.POLICIES
BATCHING_TYPES = STATIC_TYPES + IN_FLIGHT_TYPES
POLICY_ALIASES = {"guaranteed_completion": "guaranteed_no_evict"}
TOKENIZER_TYPES = ("auto", "llama", "t5")

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Rule:
    """One parameter: what is legal, and what happens otherwise.

    Attributes:
        says: the legal values in words.
        holds: whether a value is legal; never called with an empty text, which means "not given".
        required: the backend does not load without it.
        otherwise: what the backend does with an illegal value.
    """

    says: str
    holds: Callable[[str], bool]
    otherwise: str
    required: bool = False


def placeholders(text: str) -> list[str]:
    """The names of the placeholders that are left in a text.

    >>> placeholders("${engine_dir}/1")
    ['engine_dir']
    """
    return Template(text).get_identifiers()


def flag(text: str) -> bool | None:
    """A boolean as the backend reads it; None if it counts as not given: empty, a placeholder, or any other word."""
    return True if text in TRUE else False if text in FALSE else None


def _whole(least: int) -> Callable[[str], bool]:
    return lambda text: text.isascii() and text.isdigit() and int(text) >= least


def _fraction(text: str) -> bool:
    try:
        return 0.0 < float(text) <= 1.0
    except ValueError:
        return False


def _number(least: int, default: str) -> Rule:
    return Rule(f"a whole number of at least {least}", _whole(least), f"the backend ignores it and uses {default}")


def _flag(default: str) -> Rule:
    says = f"exactly one of {', '.join(TRUE + FALSE)}"
    return Rule(says, lambda text: flag(text) is not None, f"the backend ignores it and uses {default}")


def _one_of(values: tuple[str, ...], otherwise: str, required: bool = False) -> Rule:
    return Rule(f"one of {', '.join(values)}", lambda text: text in values, otherwise, required)


def _path(what: str) -> Rule:
    return Rule(f"a folder {what}", lambda text: bool(text.strip()), "the model does not load", required=True)


def _ids(text: str) -> bool:
    return all(part.strip().isdigit() for part in text.split(","))


ENGINE = {
    "gpt_model_type": _one_of(
        BATCHING_TYPES,
        "the backend does not load: Invalid gpt_model_type. Must be v1/inflight_batching/inflight_fused_batching.",
        required=True,
    ),
    "gpt_model_path": _path("that holds the engine and its config.json"),
    "batch_scheduler_policy": _one_of(POLICIES, "the backend uses guaranteed_no_evict"),
    "max_tokens_in_paged_kv_cache": _number(1, "the memory fraction alone"),
    "kv_cache_free_gpu_mem_fraction": Rule(
        "a fraction above 0 and at most 1", _fraction, "the backend ignores it and uses its default"
    ),
    "max_num_sequences": _number(1, "the engine's largest batch"),
    "max_beam_width": _number(1, "1"),
    "max_attention_window_size": _number(1, "the longest sequence"),
    "enable_trt_overlap": _flag("its default"),
    "enable_kv_cache_reuse": _flag("False"),
    "enable_chunked_context": _flag("False"),
    "exclude_input_in_output": _flag("False"),
    "normalize_log_probs": _flag("True"),
    "gpu_device_ids": Rule("GPU numbers separated by commas", _ids, "the backend does not load"),
}
_TOKENIZER = {
    "tokenizer_dir": _path("that holds the tokenizer"),
    "tokenizer_type": _one_of(TOKENIZER_TYPES, "the model does not load: Unexpected tokenizer type"),
}
RULES: dict[str, dict[str, Rule]] = {
    "tensorrt_llm": ENGINE,
    "preprocessing": _TOKENIZER | {"add_special_tokens": _flag("False")},
    "postprocessing": _TOKENIZER | {"skip_special_tokens": _flag("True")},
    "tensorrt_llm_bls": {
        "accumulate_tokens": Rule(
            "a yes (true, yes, 1, t) or a no (false, no, 0, f)",
            lambda text: text.lower() in ("true", "yes", "1", "t", "false", "no", "0", "f"),
            "the model reads it as no",
        )
    },
}
