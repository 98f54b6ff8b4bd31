"""A model folder as vLLM reads one: configuration and tokenizer; the weights are drawn at random when it loads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lab.reference.settings import SPECIAL_TOKENS
from lab.reference.tokenizer import save_tokenizer
from lab.vllm.settings import Settings

EXPERTS_PER_TOKEN = 2
_PAD, _END, _UNKNOWN = SPECIAL_TOKENS


def write_model(folder: Path, settings: Settings) -> Path:
    """Write the model of `settings` into `folder`, which is made: a Llama, with experts a Mixtral."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(configuration(settings)))
    save_tokenizer(folder, settings.vocab_size)
    tokenizer = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": _PAD, "eos_token": _END, "bos_token": _END}
    limits = {"unk_token": _UNKNOWN, "model_max_length": settings.max_sequence_tokens}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer | limits))
    return folder


def configuration(settings: Settings) -> dict[str, Any]:
    """The fields of config.json.

    >>> configuration(Settings(experts=8))["architectures"]
    ['MixtralForCausalLM']
    """
    shape = {
        "hidden_size": settings.hidden,
        "intermediate_size": 11 * settings.hidden // 4,  # as wide as Llama's, in whole numbers
        "num_hidden_layers": settings.layers,
        "num_attention_heads": settings.heads,
        "num_key_value_heads": settings.kv_heads,
        "vocab_size": settings.vocab_size,
        "max_position_embeddings": settings.max_sequence_tokens,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "torch_dtype": "float32",
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 1,
    }
    if not settings.experts:
        return shape | {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    experts = {"num_local_experts": settings.experts, "num_experts_per_tok": EXPERTS_PER_TOKEN}
    return shape | experts | {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"}
