"""Public configurations are read as their authors mean them: sizes as published, caches by hand, faults in one line."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sizing
from sizing import catalog
from sizing.catalog import CATALOG, models
from sizing.cli import main
from sizing.errors import LONGEST, CatalogueError
from sizing.estimate import estimate
from sizing.estimate.checkpoints import MOST_BYTES, describe, known, own, parse, read_config
from sizing.files import read_yaml
from sizing.workload import Lengths

LLAMA_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "vocab_size": 129280,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "num_nextn_predict_layers": 1,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
DEEPSEEK_V2_LITE = {
    "model_type": "deepseek_v2",
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "vocab_size": 102400,
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 1408,
    "first_k_dense_replace": 1,
}
GPT_OSS_20B = {
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 24,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 201088,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "quantization_config": {"quant_method": "mxfp4"},
}
LLAMA_4_SCOUT = {
    "model_type": "llama4",
    "text_config": {
        "model_type": "llama4_text",
        "hidden_size": 5120,
        "intermediate_size": 8192,
        "num_hidden_layers": 48,
        "intermediate_size_mlp": 16384,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "vocab_size": 202048,
        "num_local_experts": 16,
        "num_experts_per_tok": 1,
        "interleave_moe_layer_step": 1,
    },
}
GLM_4_5 = {
    "model_type": "glm4_moe",
    "hidden_size": 5120,
    "intermediate_size": 12288,
    "num_hidden_layers": 92,
    "num_attention_heads": 96,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151552,
    "n_routed_experts": 160,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 1536,
    "first_k_dense_replace": 3,
}
GLM_4_5_AIR = {
    "model_type": "glm4_moe",
    "hidden_size": 4096,
    "intermediate_size": 10944,
    "num_hidden_layers": 46,
    "num_attention_heads": 96,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151552,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 1408,
    "first_k_dense_replace": 1,
}
QWEN_15_MOE = {
    "model_type": "qwen2_moe",
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "vocab_size": 151936,
    "num_experts": 60,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
}
GRANITE_8B = {
    "model_type": "granite",
    "hidden_size": 4096,
    "intermediate_size": 12800,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 49155,
    "tie_word_embeddings": True,
}
OLMO_2_7B = {
    "model_type": "olmo2",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "vocab_size": 100352,
}
GEMMA_3_4B = {  # the published file leaves heads, vocabulary and context to the class
    "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "sliding_window": 1024,
    },
}
NEMOTRON_H_56B = {
    "model_type": "nemotron_h",
    "hidden_size": 8192,
    "intermediate_size": 32768,
    "num_hidden_layers": 118,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "attention_head_dim": 128,
    "vocab_size": 131072,
    "mamba_num_heads": 256,
    "mamba_head_dim": 64,
    "ssm_state_size": 256,
    "n_groups": 8,
    "mlp_hidden_act": "relu2",
    "hybrid_override_pattern": "M-M-M-M*-" + "M-M-M-M-M*-" * 9 + "M-M-M-M-M-"[:10],
}
MINIMAX_TEXT_01 = {
    "model_type": "minimax_text_01",
    "hidden_size": 6144,
    "intermediate_size": 9216,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 200064,
    "num_local_experts": 32,
    "num_experts_per_tok": 2,
    "attn_type_list": [0, 0, 0, 0, 0, 0, 0, 1] * 10,
}
BAMBA_9B = {
    "model_type": "bamba",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "attn_layer_indices": [9, 18, 27],
    "mamba_n_heads": 128,
    "mamba_d_head": 64,
    "mamba_d_state": 128,
    "mamba_n_groups": 1,
}
STARCODER = {
    "model_type": "gpt_bigcode",
    "n_embd": 6144,
    "n_head": 48,
    "n_layer": 40,
    "n_inner": 24576,
    "n_positions": 8192,
    "multi_query": True,
    "vocab_size": 49152,
}
STARCODER_2_3B = {
    "model_type": "starcoder2",
    "hidden_size": 3072,
    "intermediate_size": 12288,
    "num_hidden_layers": 30,
    "num_attention_heads": 24,
    "num_key_value_heads": 2,
    "vocab_size": 49152,
    "sliding_window": 4096,
}
EXAONE_4_32B = {
    "model_type": "exaone4",
    "hidden_size": 5120,
    "intermediate_size": 27392,
    "num_hidden_layers": 64,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 102400,
    "sliding_window": 4096,
    "sliding_window_pattern": "LLLG",
}
ERNIE_45_21B = {
    "model_type": "ernie4_5_moe",
    "hidden_size": 2560,
    "intermediate_size": 12288,
    "num_hidden_layers": 28,
    "num_attention_heads": 20,
    "num_key_value_heads": 4,
    "vocab_size": 103424,
    "tie_word_embeddings": True,
    "moe_intermediate_size": 1536,
    "moe_num_experts": 64,
    "moe_k": 6,
    "moe_num_shared_experts": 2,
    "moe_layer_start_index": 1,
}
APERTUS_8B = {
    "model_type": "apertus",
    "hidden_act": "xielu",
    "hidden_size": 4096,
    "intermediate_size": 21504,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 131072,
}
MUSE_GLIMMER = {
    "model_type": "muse_glimmer_text",
    "hidden_size": 6656,
    "intermediate_size": 19968,
    "num_hidden_layers": 52,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "vocab_size": 202048,
}
MUSE_SPARK = {
    "model_type": "muse_spark_text",
    "hidden_size": 8192,
    "intermediate_size": 16384,
    "num_hidden_layers": 62,
    "num_attention_heads": 128,
    "num_key_value_heads": 16,
    "head_dim": 64,
    "vocab_size": 202048,
    "moe_hidden_size": 4096,
    "moe_intermediate_size": 4096,
    "num_local_experts": 256,
    "num_experts_per_tok": 8,
}
GROK_2 = {
    "hidden_size": 8192,
    "intermediate_size": 32768,
    "num_hidden_layers": 64,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 131072,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16384,
    "residual_moe": True,
}
"""Figures of the models' config.json on Hugging Face."""

PUBLISHED = [
    ("Llama 3.1 8B", LLAMA_8B, 8.03, 8.03),
    ("DeepSeek V3", DEEPSEEK_V3, 671, 37),
    ("DeepSeek V2 Lite", DEEPSEEK_V2_LITE, 15.7, 2.4),
    ("gpt-oss 20b", GPT_OSS_20B, 20.9, 3.6),
    ("Llama 4 Scout", LLAMA_4_SCOUT, 109, 17),
    ("GLM 4.5", GLM_4_5, 355, 32),
    ("GLM 4.5 Air", GLM_4_5_AIR, 106, 12),
    ("Qwen1.5 MoE", QWEN_15_MOE, 14.3, 2.7 - 0.31),  # 2.7 with the table of which a token takes a row
    ("Granite 3.1 8B", GRANITE_8B, 8.17, 8.17),
    ("OLMo 2 7B", OLMO_2_7B, 7.3, 7.3),
    ("Gemma 3 4B", GEMMA_3_4B, 3.88, 3.88),
    ("MiniMax-Text-01", MINIMAX_TEXT_01, 456, 45.9),
    ("Bamba 9B", BAMBA_9B, 9.78, 9.78),
    ("StarCoder", STARCODER, 15.5, 15.5),
    ("StarCoder2 3B", STARCODER_2_3B, 3.03, 3.03),
    ("EXAONE 4.0 32B", EXAONE_4_32B, 32.0, 32.0),
    ("Apertus 8B", APERTUS_8B, 8.05, 8.05),
    ("Grok 2", GROK_2, 270, 115),
    ("Muse Glimmer", MUSE_GLIMMER, 27.9, 27.9),  # both without towers, as transformers 5.24 builds them
    ("Muse Spark", MUSE_SPARK, 820, 820 - 799 * 248 / 256 - 1.7),
    ("ERNIE 4.5 21B A3B", ERNIE_45_21B, 21.8, 3 + 0.26),  # the table of words is the output's, too
]
"""Billions of parameters, and those that a token passes through, of the models' cards."""


@pytest.mark.parametrize(("name", "config", "billions", "active"), PUBLISHED)
def test_sizes_are_those_of_the_model_cards(name: str, config: dict[str, Any], billions: float, active: float) -> None:
    found = describe(config, name)
    print(f"{name}: {found.parameters / 1e9:.2f} of {billions}, {found.active_parameters / 1e9:.2f} of {active} active")
    assert found.parameters == pytest.approx(billions * 1e9, rel=0.03)
    assert found.active_parameters == pytest.approx(active * 1e9, rel=0.1)  # cards round it


@pytest.mark.parametrize(("config", "width"), [(STARCODER, 6144), (STARCODER_2_3B, 3072)])
def test_starcoder_s_output_has_the_table_of_words_unless_told_otherwise(config: dict[str, Any], width: int) -> None:
    tied, apart = (describe(config | {"tie_word_embeddings": said}, "s").parameters for said in (True, False))
    assert describe(config, "s").parameters == tied == apart - width * 49152


OURS = read_yaml(CATALOG / "configs.yaml", "file of configurations")


@pytest.mark.parametrize("name", sorted(OURS))
def test_catalogued_configurations_have_their_published_size(name: str) -> None:
    found, published = describe(OURS[name]["config"], name), OURS[name]["published"]
    assert found.parameters == pytest.approx(published, rel=0.03)
    if "active" in OURS[name]:
        assert found.active_parameters == pytest.approx(OURS[name]["active"], rel=0.03)
    known_model = models()[name]
    assert known_model.parameters == pytest.approx(found.parameters, rel=1e-4)
    assert known_model.kv_values_per_token == found.kv_values_per_token


@pytest.mark.parametrize(
    ("config", "values"),
    [
        (LLAMA_8B, 2 * 32 * 8 * 128),
        (DEEPSEEK_V3, 61 * (512 + 64)),
        (GPT_OSS_20B, 2 * 12 * 8 * 64 * (1 + 128 / 4096)),
        (GEMMA_3_4B, 2 * 4 * 256 * (5 + 29 * 1024 / 4096)),
        (LLAMA_4_SCOUT, 2 * 48 * 8 * 128),
        ({**DEEPSEEK_V3, "layer_types": ["indexed_attention"] * 61}, 61 * (512 + 64)),
        ({**LLAMA_8B, "sliding_window": 0}, 2 * 32 * 8 * 128),
        (STARCODER, 2 * 40 * 128),
        ({**EXAONE_4_32B, "sliding_window": 1024}, 2 * 8 * 128 * (16 + 48 * 1024 / 4096)),
        ({**LLAMA_8B, "sliding_window": 1024, "max_window_layers": 28}, 2 * 8 * 128 * (28 + 4 * 1024 / 4096)),
        (MINIMAX_TEXT_01, 2 * 10 * 8 * 128 + 70 * 2 * 64 * 128 * 128 / 4096),
    ],
)
def test_the_cache_is_what_each_kind_of_layer_keeps(config: dict[str, Any], values: float) -> None:
    """Keys and values of every head; a latent vector and the rotated part of a key; of a window, its share of 4,096."""
    assert describe(config, "model").kv_values_per_token == values


def test_layers_without_a_cache_keep_a_state_whose_share_falls_with_the_context() -> None:
    """Nemotron-H: 10 layers of 118 attend; 54 keep a state of heads x size x state size in 32 bits."""
    found = describe(NEMOTRON_H_56B, "model")
    pattern = str(NEMOTRON_H_56B["hybrid_override_pattern"])
    state = 2 * 256 * 64 * 256 + 3 * (256 * 64 + 2 * 8 * 256)
    expected = 2 * pattern.count("*") * 8 * 128 + pattern.count("M") * state / 4096
    assert found.kv_values_per_token == pytest.approx(expected, abs=1)
    assert found.state_values == pattern.count("M") * state


def test_yarn_lengthens_the_context() -> None:
    """As the card of Qwen3 says to: 131,072 tokens, of 40,960 that its configuration has."""
    config = LLAMA_8B | {"max_position_embeddings": 40960}
    yarn = {"factor": 4.0, "original_max_position_embeddings": 32768}
    for told in ({"rope_scaling": yarn | {"type": "yarn"}}, {"rope_parameters": yarn | {"rope_type": "yarn"}}):
        assert describe(config | told, "m").max_context_tokens == 131072
    longer = {"rope_scaling": yarn | {"rope_type": "llama3"}}  # which has it in max_position_embeddings
    assert describe(config | longer, "m").max_context_tokens == 40960


@pytest.mark.parametrize(("longest", "tokens"), [(131072, 131072), (10**30, 8192)])  # a tokenizer's "no limit" is none
def test_command_r_takes_its_model_max_length(longest: int, tokens: int) -> None:
    config = LLAMA_8B | {"model_type": "cohere", "max_position_embeddings": 8192, "model_max_length": longest}
    assert describe(config, "m").max_context_tokens == tokens


def test_state_spaces_are_known_by_the_name_that_transformers_5_gives_them() -> None:
    kinds = ["full_attention" if index in (9, 18, 27) else "linear_attention" for index in range(32)]
    assert describe(BAMBA_9B | {"attn_layer_indices": None, "layer_types": kinds}, "m") == describe(BAMBA_9B, "m")
    names = {"M": "linear_attention", "*": "full_attention", "-": "mlp"}
    blocks = [names[mark] for mark in str(NEMOTRON_H_56B["hybrid_override_pattern"])]
    renamed = NEMOTRON_H_56B | {"hybrid_override_pattern": None, "layers_block_type": blocks}
    assert describe(renamed, "m") == describe(NEMOTRON_H_56B, "m")
    with pytest.raises(CatalogueError, match=r"key 'layers_block_type': 'conv' is not one of"):
        describe(renamed | {"layers_block_type": ["conv", *blocks]}, "m")


@pytest.mark.parametrize(
    ("given", "precision"),
    [
        ({}, "bf16"),
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8_block"),
        ({"quant_method": "fbgemm_fp8"}, "fp8"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
        ({"quant_method": "awq", "bits": 4}, "int4"),
        ({"quant_method": "gptq", "bits": 4}, "int4"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4_AWQ"}, "nvfp4"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_MXFP4_FP8"}, "mxfp4"),
        ({"config_groups": {"a": {"weights": {"num_bits": 8, "type": "float"}}}}, "fp8"),
        ({"config_groups": {"a": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}}}}, "nvfp4"),
        ({"config_groups": {"a": {"weights": {"num_bits": 4, "type": "int", "group_size": 128}}}}, "int4"),
    ],
)
def test_precision_is_that_of_the_published_weights(given: dict[str, Any], precision: str) -> None:
    assert describe({**LLAMA_8B, "quantization_config": given}, "model").checkpoint == precision


def test_a_file_beside_it_tells_the_precision(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    assert read_config(tmp_path).checkpoint == "bf16"
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "FP8"}}))
    assert read_config(tmp_path).checkpoint == "fp8"


# Against the configurations that the kernel database bundles.

BY_CARD = {
    "DeepSeek-V4-Flash": 284,  # model cards, where the name has no number
    "DeepSeek-V4-Pro": 1600,
    "DeepSeek": 671,
    "GLM-5": 744,
    "Kimi-K2": 1026,  # the weights of all but the layer for further tokens; the card rounds to 1,000
    "Kimi-K3": 2800,
    "MiniMax-M2": 229,
    "MiniMax-M3": 428,
    "MiMo-7B": 7.83,  # with a layer for further tokens, which is left out here
    "MiMo-V2-Flash": 309,
    "Step-3.7-Flash": 196,  # Step 3.5 Flash, of the same shape
    "Llama-4-Maverick": 400,
    "Llama-4-Scout": 109,
    "emma-4-26B": 25.2,  # the card of Gemma 4: 26 is with the image tower
    "emma-4-31B": 30.7,
    "Nemotron-3-Nano": 31.6,
    "Nemotron-3.5-Lightning": 31.6,
    "Qwen3-VL-2B": 1.72,  # Qwen3-1.7B, without the image tower
    "Qwen3-0.6B": 0.596,
    "gpt-oss-20b": 20.9,
    "gpt-oss-120b": 116.8,
    "Mixtral-8x7B": 46.7,
    "Mixtral-8x22B": 141,
}


def published(name: str) -> float:
    """Parameters by the model's card, else by its name."""
    on_card = next((billions for part, billions in BY_CARD.items() if part in name), None)
    number = re.search(r"-(\d+(?:\.\d+)?)B(?=-|$)", name)
    assert on_card or number, name
    return 1e9 * (on_card or float(number[1] if number else 0))


def test_bundled_configurations_have_their_published_size() -> None:
    pytest.importorskip("aiconfigurator_core")
    folder, off = Path(str(files("aiconfigurator_core"))) / "model_configs", {}
    for file in sorted(folder.glob("*_config.json")):
        if not file.name.endswith("_hf_quant_config.json"):
            name = file.name.removesuffix("_config.json").replace("--", "/")
            found = describe(parse(file.read_bytes(), name), name)
            off[name] = found.parameters / published(name) - 1
            print(f"{name}: {found.parameters / 1e9:.2f} billion, {off[name]:+.1%} of published")
    assert len(off) >= 85
    assert sum(abs(error) < 0.03 for error in off.values()) >= 0.95 * len(off)


# Faults.


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"hidden_size": None}, "'hidden_size'"),
        ({"num_attention_heads": None}, "'num_attention_heads'"),
        ({"vocab_size": None}, "'vocab_size'"),
        ({"intermediate_size": None}, "'intermediate_size'"),
        ({"num_hidden_layers": 0}, "'num_hidden_layers'"),
        ({"num_hidden_layers": 10**9}, "'num_hidden_layers'"),
        ({"hidden_size": -4096}, "'hidden_size'"),
        ({"hidden_size": 4096.5}, "'hidden_size'"),
        ({"hidden_size": "4096"}, "'hidden_size'"),
        ({"hidden_size": float("nan")}, "'hidden_size'"),
        ({"hidden_size": 10**40}, "'hidden_size'"),
        ({"num_attention_heads": 7}, "'head_dim'"),
        ({"layer_types": ["full_attention"]}, "1 entries for 32 layers"),
        ({"layer_types": ["guesswork"] * 32}, "'guesswork'"),
        ({"layer_types": ["mamba"] * 32}, "'mamba_num_heads'"),
        ({"num_local_experts": 8}, "'num_experts_per_tok'"),
        ({"num_local_experts": 8, "num_experts_per_tok": 9}, "'num_experts_per_tok'"),
        ({"kv_lora_rank": 512}, "'qk_nope_head_dim'"),
        ({"quantization_config": {"quant_method": "sorcery"}}, "'sorcery'"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 3}}, "in 3 bits"),
        ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}}, "quantized_layers'"),
        ({"attn_layer_period": 8, "attn_layer_offset": 4}, "'attn_layer_period'"),
        ({"hidden_size_per_layer_input": 256}, "'hidden_size_per_layer_input'"),
        ({"layer_group_size": 5}, "'layer_group_size'"),
        ({"conv_L_cache": 3, "full_attn_idxs": [2, 5]}, "'conv_L_cache'"),
        ({"zero_expert_num": 256}, "'zero_expert_num'"),
        ({"use_cla": True}, "'use_cla'"),
        ({"per_layer_config": {"05": {"head_dim": 512}}}, "'per_layer_config'"),
        ({"sliding_window": 1024, "sliding_window_pattern": "LXG"}, "'sliding_window_pattern"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_key(change: dict[str, Any], part: str) -> None:
    with pytest.raises(CatalogueError) as caught:
        describe({**LLAMA_8B, **change}, "model")
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"{", "not JSON"),
        (b"[1]", "a list"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b" " * (MOST_BYTES + 1), "larger than 4 MiB"),
        (b'{"hidden_size": ' + b"9" * 5000 + b"}", "not JSON"),
    ],
)
def test_what_is_no_configuration_is_refused(content: bytes, part: str) -> None:
    with pytest.raises(CatalogueError, match=part):
        parse(content, "config.json")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-10, 2**40) | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=10,
)
KEYS = sorted(
    {*LLAMA_8B, *DEEPSEEK_V3, *GPT_OSS_20B, *NEMOTRON_H_56B, "block_configs", "linear_attn_config", "rope_scaling"}
)


@settings(max_examples=150)
@given(st.dictionaries(st.sampled_from(KEYS), JSON, max_size=6))
def test_any_mapping_is_a_model_or_one_line(change: dict[str, Any]) -> None:
    try:
        found = describe({**DEEPSEEK_V3, **change}, "model")
    except CatalogueError as error:
        assert "\n" not in str(error)
        assert len(str(error)) < LONGEST
    else:
        assert 0 < found.active_parameters <= found.parameters


# A model of one's own.


def test_a_model_of_ones_own_is_planned_by_path_name_and_content(tmp_path: Path) -> None:
    """The same answer for a folder, a file, and the mapping, by the library; from the law of the nearest relative."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B | {"num_hidden_layers": 34}))
    asked: dict[str, Any] = {"rate": 10, "isl": 1000, "osl": 200, "gpus": "h100_sxm", "tps": 1, "ttft": "p95:1s"}
    plans = [
        sizing.plan(str(tmp_path), **asked),
        sizing.plan(config=tmp_path, **asked),
        sizing.plan("mine", config=tmp_path / "config.json", **asked),
        sizing.plan(config=json.loads((tmp_path / "config.json").read_text()), **asked),
    ]
    assert len({plan.answer.gpus for plan in plans}) == 1
    candidate = plans[2].answer.candidate
    assert candidate.model == "mine"
    assert "scaled" in candidate.source
    assert candidate.warnings[0].facts["why"] == "nobody has timed this model"
    assert catalog.model("mine").layers == 34


def test_a_name_of_the_catalogue_keeps_its_meaning(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    with pytest.raises(CatalogueError, match="is in the catalogue"):
        own(tmp_path, "Qwen/Qwen3-8B")
    assert known("Qwen/Qwen3-8B") is models()["Qwen/Qwen3-8B"]
    assert known(str(tmp_path)).layers == 32


def test_four_bit_weights_of_ones_own_run_on_any_gpu() -> None:
    packed = own({**LLAMA_8B, "quantization_config": {"quant_method": "awq", "bits": 4}}, "packed")
    found = estimate(packed.id, "h100_sxm", 1, "int4", Lengths(1000, 200))
    assert found.source.startswith("roofline")


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[object, str, str]:
    """Exit code, output and errors of `sizing plan` with these arguments and a load."""
    load = ["--gpu", "h100_sxm", "--tp", "1", "--isl", "500", "--osl", "100", "--rate", "5", "--ttft", "p95:1s"]
    with pytest.raises(SystemExit) as stopped:
        main(["plan", *arguments, *load, "--json"])
    return stopped.value.code, *capsys.readouterr()


def test_the_command_line_takes_a_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    folder = str(tmp_path)
    asked = (["--config", folder], ["--model", folder], ["--config", folder, "--model", "mine"])
    answers = [json.loads(run(arguments, capsys)[1]) for arguments in asked]
    assert len({answer["gpus"] for answer in answers}) == 1
    assert [answer["model"] for answer in answers] == [str(tmp_path / "config.json")] * 2 + ["mine"]


def test_a_configuration_gives_measured_points_a_law_to_lean_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One level of a model that the catalogue lacks: refused without its shape, answered with it."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    columns = "model,precision,gpu,tp,isl,osl,load_kind,load_value,requests_per_s,ttft_mean_s,itl_mean_s,e2e_mean_s"
    level = "acme/own-8b,bf16,h100_sxm,1,1000,200,concurrency,8,4.4,0.05,0.0089,1.82"
    (tmp_path / "points.csv").write_text(f"{columns}\n{level}\n")
    asked = ["predict", "--points", str(tmp_path / "points.csv"), "--isl", "1000", "--osl", "200", "--rate", "3"]
    for more, expected in (([], 2), (["--config", str(tmp_path)], 0)):
        with pytest.raises(SystemExit) as stopped:
            main([*asked, *more, "--json"])
        assert stopped.value.code == expected, capsys.readouterr()


def test_a_configuration_that_cannot_be_used_is_one_line_and_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    code, _, said = run(["--config", str(tmp_path)], capsys)
    assert code == 2
    assert said.count("\n") == 1
    assert "'hidden_size'" in said


@pytest.mark.parametrize(("key", "value"), [("sliding_window_pattern", "XY"), ("moe_layer_freq", -1)])
def test_a_key_of_several_forms_is_named_as_it_stands_in_the_file(key: str, value: object) -> None:
    with pytest.raises(CatalogueError, match=f"key '{key}': "):
        describe({**GEMMA_3_4B, key: value}, "m")
