"""A model from its public configuration, the config.json that Hugging Face publishes: size, attention and precision.

Parameters are counted from layer shapes: matrices only, biases and norms left out; so are image and audio towers and
layers that only predict further tokens. Shapes as in the models' own code in Hugging Face transformers; latent
attention: DeepSeek-V2 (arXiv:2405.04434); gated delta rule: Qwen3-Next, Kimi Linear (arXiv:2510.26692); state spaces:
Mamba-2 (arXiv:2405.21060).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from sizing import catalog
from sizing.catalog import BITS, CONTEXT, OWN, Model, Precision
from sizing.errors import CatalogueError, first_fault, quoted
from sizing.files import json_object

MOST_BYTES = 4 * 2**20
"""Of a configuration: those with a format for every layer take 3 MB."""
MOST_LAYERS = 1024
INDEXED_RATIO = 4
"""Compressed keys are chosen by an index where there is one for every 4 tokens; those for 128 tokens are all read."""
STATE_VALUES = 2
"""A recurrent state is kept in 32 bits, which is as much as two values of 16 bits."""
INDEX_VALUES = 2
"""An index key is kept in 8 bits with a scale of 4 bytes: (size + 4) / 2 values of 16 bits."""

_Size = Annotated[int, Field(strict=True, ge=1, le=2**24)]
_Number = Annotated[int, Field(strict=True, ge=0, le=2**24)]
_Listed = Annotated[list[Any], Field(max_length=MOST_LAYERS + 64)]


def _key(*names: str, **settings: Any) -> Any:
    return Field(validation_alias=AliasChoices(*names), **settings)


class _Keys(BaseModel):
    """What is used of a configuration, under every name by which its authors call it."""

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        allow_inf_nan=False,
        protected_namespaces=(),
        defer_build=True,  # takes longer than all else in this file, and only a model of one's own needs it
    )

    model_type: Annotated[str, Field(pattern=r"^[\w.-]{0,60}$")] = ""
    hidden: _Size = _key("hidden_size", "n_embd", "d_model")
    vocabulary: _Size = _key("vocab_size", "padded_vocab_size")
    tied: bool = _key("tie_word_embeddings", default=False)
    layers: Annotated[_Size, Field(le=MOST_LAYERS)] = _key("num_hidden_layers", "n_layer", "num_layers")
    heads: _Size = _key("num_attention_heads", "n_head")
    kv_heads: _Size | None = _key("num_key_value_heads", "num_kv_heads", "multi_query_group_num", default=None)
    head_size: _Size | None = _key("head_dim", "attention_head_dim", "kv_channels", default=None)
    value_size: _Size | None = _key("v_head_dim", default=None)
    context: _Size | None = _key("max_position_embeddings", "seq_length", "n_positions", default=None)
    longest: Any = _key("model_max_length", default=None)
    rope: dict[str, Any] = _key("rope_scaling", "rope_parameters", default={})
    gated_attention: bool = _key("attn_output_gate", "attention_output_gate", "mla_use_output_gate", default=False)

    # Layers that attend to the last tokens only, and what is different about their heads.
    window: _Size | None = _key("sliding_window", default=None)
    use_window: bool = _key("use_sliding_window", default=True)
    window_pattern: _Size | Annotated[str, Field(pattern=r"^[LG]{1,64}$")] | None = _key(
        "sliding_window_pattern", "_sliding_window_pattern", default=None
    )
    full_first: _Number = _key("max_window_layers", default=0)
    window_layers: _Listed | None = _key("hybrid_layer_pattern", default=None)
    window_heads: _Size | None = _key("swa_num_attention_heads", default=None)
    window_kv_heads: _Size | None = _key("swa_num_key_value_heads", default=None)
    global_kv_heads: _Size | None = _key("num_global_key_value_heads", default=None)
    global_head_size: _Size | None = _key("global_head_dim", default=None)
    keys_are_values: bool = _key("attention_k_eq_v", default=False)

    # What each layer is.
    layer_types: _Listed | None = None
    full_marks: _Listed | None = _key("attn_type_list", default=None)
    full_layers: _Listed | None = _key("attn_layer_indices", default=None)
    full_interval: _Size | None = _key("full_attention_interval", default=None)
    pattern: Annotated[str, Field(max_length=MOST_LAYERS)] | None = _key("hybrid_override_pattern", default=None)
    block_types: _Listed | None = _key("layers_block_type", default=None)
    blocks: Annotated[list[dict[str, Any]], Field(max_length=MOST_LAYERS)] | None = _key("block_configs", default=None)

    # Latent attention, its index, and what compresses the cache.
    latent: _Size | None = _key("kv_lora_rank", default=None)
    query_latent: _Size | None = _key("q_lora_rank", default=None)
    output_latent: _Size | None = _key("o_lora_rank", default=None)
    output_groups: _Size = _key("o_groups", default=1)
    rope_size: _Number = _key("qk_rope_head_dim", default=0)
    plain_size: _Size | None = _key("qk_nope_head_dim", default=None)
    index_heads: _Number = _key("index_n_heads", default=0)
    index_size: _Size = _key("index_head_dim", default=128)
    compress_ratios: _Listed | None = None

    # Layers with a state in place of a cache.
    linear: dict[str, Any] | None = _key("linear_attn_config", default=None)
    linear_key_heads: _Size | None = _key("linear_num_key_heads", default=None)
    linear_value_heads: _Size | None = _key("linear_num_value_heads", default=None)
    linear_key_size: _Size | None = _key("linear_key_head_dim", default=None)
    linear_value_size: _Size | None = _key("linear_value_head_dim", default=None)
    mamba_heads: _Size | None = _key("mamba_num_heads", "mamba_n_heads", default=None)
    mamba_head_size: _Size | None = _key("mamba_head_dim", "mamba_d_head", default=None)
    mamba_groups: _Size = _key("n_groups", "mamba_n_groups", default=1)
    state_size: _Size | None = _key("ssm_state_size", "mamba_d_state", default=None)
    convolution: _Size = _key("conv_kernel", "linear_conv_kernel_dim", "mamba_d_conv", default=4)

    # Feed-forward layers and experts.
    inner: _Size | None = _key("intermediate_size", "ffn_hidden_size", "n_inner", default=None)
    dense_inner: _Size | None = _key("dense_intermediate_size", "intermediate_size_mlp", default=None)
    activation: str = _key("mlp_hidden_act", "hidden_act", "hidden_activation", "activation_function", default="")
    experts: _Number = _key("num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts", default=0)
    chosen: _Number = _key(
        *("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "experts_per_token", "moe_topk", "moe_k"),
        default=0,
    )
    expert_inner: _Size | None = _key("moe_intermediate_size", "expert_intermediate_size", default=None)
    expert_hidden: _Size | None = _key("moe_latent_size", "moe_hidden_size", "routed_expert_hidden_size", default=None)
    shared: _Number = _key("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", default=0)
    shared_inner: _Number = _key(
        "shared_expert_intermediate_size",
        "moe_shared_expert_intermediate_size",
        "shared_intermediate_size",
        "share_expert_dim",
        default=0,
    )
    dense_beside_experts: bool = _key("enable_moe_block", "residual_moe", default=False)
    first_dense: _Number = _key("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index", default=0)
    moe_every: _Size | _Listed = _key("moe_layer_freq", default=1)
    moe_step: _Size = _key("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval", default=1)
    dense_layers: _Listed = _key("mlp_only_layers", default=[])
    feed_types: _Listed | None = _key("mlp_layer_types", default=None)

    # Precision.
    quantization: dict[str, Any] = _key("quantization_config", default={})
    expert_dtype: str = ""


_GEMMA_3 = {
    "vocab_size": 262208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
    "sliding_window_pattern": 6,
    "tie_word_embeddings": True,
}
IMPLIED: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "gemma": {"tie_word_embeddings": True},
        "gemma2": {"tie_word_embeddings": True, "sliding_window_pattern": 2},
        "gemma3": _GEMMA_3,
        "gemma3_text": _GEMMA_3,
        "gemma4_text": {"tie_word_embeddings": True},
        "cohere": {"tie_word_embeddings": True},
        "cohere2": {"tie_word_embeddings": True, "sliding_window_pattern": 4},
        "gpt_bigcode": {"tie_word_embeddings": True},
        "starcoder2": {"tie_word_embeddings": True},
        "llama4_text": {"n_shared_experts": 1},
        "qwen3_next": {"attn_output_gate": True},
        "muse_glimmer_text": {"attn_output_gate": True},
        "muse_spark_text": {"attn_output_gate": True},
    }
)
"""What a model's class in transformers supplies where its published file is silent, by `model_type`."""
UNREAD = (
    *("attn_layer_period", "mamba_d_ssm", "lru_width", "hidden_size_per_layer_input"),
    *("layer_group_size", "conv_L_cache", "zero_expert_num", "use_cla", "per_layer_config"),
)
"""Keys of layers that are not counted here, in this order: Jamba, Falcon-H1, RecurrentGemma, Gemma with an embedding
table per layer; Ring and Ling with linear attention, LFM2, LongCat, Hunyuan with layers that share a cache, and layers
with sizes of their own. Ignoring the keys would put size and cache off by several times."""
UNGATED = (
    *("gpt2", "gpt_neox", "gpt_bigcode", "gptj", "starcoder2", "falcon", "phi", "opt", "bloom", "mpt", "nemotron"),
    *("apertus", "apertus1p5_text"),
)
"""Model types whose feed-forward layers are two matrices; those of all others are three, one of them a gate."""


def known(name: str) -> Model:
    """The catalogue's model of that name, or the one that a folder or file of that name configures, kept from then on.

    Raises CatalogueError for a name that is neither, and for a configuration that cannot be used.
    """
    return catalog.model(name) if name in catalog.models() or not is_config(name) else own(name)


def own(config: str | PathLike[str] | Mapping[str, Any], name: str = "") -> Model:
    """The model of a folder, a file or a mapping, found under its id from now on: `name`, else the path, else a digest.

    Raises CatalogueError for a configuration that cannot be used, and for a name that the catalogue has for another.
    """
    if name in catalog.models():
        raise CatalogueError(f"{name} is in the catalogue: leave its configuration out, or give the model another name")
    if isinstance(config, Mapping):
        found = describe(config, name or OWN)
        digest = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode()).hexdigest()[:8]
        name = name or f"{found.name} ({OWN} {digest})"
    else:
        found = read_config(Path(config))
    return catalog.keep(replace(found, id=name or found.id))


def is_config(name: str) -> bool:
    """True for the path of a folder with a config.json, and of a JSON file."""
    try:
        path = Path(name)
        return (path / "config.json").is_file() or (path.suffix.casefold() == ".json" and path.is_file())
    except (OSError, ValueError):
        return False


def read_config(path: Path) -> Model:
    """The model of a config.json, or of a folder with one; an hf_quant_config.json beside it tells its precision.

    Its id is the file's path. Raises CatalogueError, in one line with the key at fault.
    """
    file = path / "config.json" if path.is_dir() else path
    config, beside = parse(_bytes(file), str(file)), file.with_name("hf_quant_config.json")
    packed = parse(_bytes(beside), str(beside)) if beside.is_file() and beside != file else {}
    stem = file.resolve().parent.name if file.name == "config.json" else file.stem
    return describe(config, str(file), stem, packed)


def _bytes(file: Path) -> bytes:
    try:
        with file.open("rb") as stream:
            return stream.read(MOST_BYTES + 1)
    except OSError as error:
        raise CatalogueError(f"{file}: cannot be read ({error.strerror})") from None


def parse(content: bytes, name: str) -> dict[str, Any]:
    """The mapping in a JSON file's bytes. Raises CatalogueError where there is none, or more than MOST_BYTES."""
    try:
        return json_object(content, MOST_BYTES, "config.json of a model")
    except ValueError as error:
        raise CatalogueError(f"{name}: {error}") from None


def describe(
    config: Mapping[str, Any], model_id: str, name: str = "", packed: Mapping[str, Any] = MappingProxyType({})
) -> Model:
    """Size, attention shape, precision and longest context of the model that `config` configures.

    `packed`: the content of its hf_quant_config.json, if it has one. `name`: for a screen; otherwise the model type
    and size. Raises CatalogueError with the missing or faulty key.
    """
    try:
        keys = _Keys.model_validate(_flat(config))
        layers = list(_layers(keys))
        return _model(keys, layers, model_id, name, packed)
    except ValidationError as error:
        fault = first_fault(error)
        key, _, _ = fault.key.partition(".")  # after it comes the way by which the value was read
        raise CatalogueError(f"{model_id}, key {key!r}: {fault.reason}") from None
    except _Unusable as error:
        raise CatalogueError(f"{model_id}, {error}") from None


class _Unusable(Exception):
    """The key at fault, and why."""


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """The language model's keys, those of the whole where it has none, and what its class implies.

    null is no value, and neither is a head of size 0, which configurations of latent attention have, or a window of 0,
    which transformers 5 writes for none. Where all heads share one key and value, the number of these may be left out.
    """
    inner: Mapping[str, Any] = next(
        (found for name in ("text_config", "llm_config") if isinstance(found := config.get(name), Mapping)), {}
    )
    given = {key: value for place in (config, inner) for key, value in place.items() if value is not None}
    for key in ("head_dim", "sliding_window"):
        if given.get(key) == 0:
            del given[key]
    blocks = given.get("layers_block_type")  # in place of a number of layers
    counted = {"num_hidden_layers": len(blocks)} if isinstance(blocks, list) else {}
    if given.get("multi_query") is True and not {"num_key_value_heads", "num_kv_heads"} & {*given}:
        counted["num_kv_heads"] = 1
    if unread := next((key for key in UNREAD if given.get(key)), None):
        raise _Unusable(f"key {unread!r}: layers of this kind are not known")
    kind = given.get("model_type")
    return {**counted, **(IMPLIED.get(kind, {}) if isinstance(kind, str) else {}), **given}


def _model(keys: _Keys, layers: Sequence[_Layer], model_id: str, name: str, packed: Mapping[str, Any]) -> Model:
    table = keys.vocabulary * keys.hidden
    looked_up = 0 if keys.tied else table  # of which a token takes a row
    routed = math.fsum(layer.routed for layer in layers)
    parameters = table + looked_up + math.fsum(layer.weights for layer in layers) + routed
    left_out = 1 - keys.chosen / keys.experts if routed else 0.0
    attends = [layer for layer in layers if layer.token_values]
    if not attends:
        raise _Unusable("key 'layer_types': no layer has a KV cache, which the law of a step needs")
    return Model(
        id=model_id,
        name=name or f"{keys.model_type or 'model'} {parameters / 1e9:.3g}B",
        kind="moe" if left_out else "dense",
        checkpoint=_checkpoint(keys, packed),
        parameters=parameters,
        active_parameters=parameters - (routed * left_out + looked_up if left_out else 0.0),
        unrouted=left_out,
        layers=len(layers),
        heads=keys.heads,
        kv_heads=1 if keys.latent or keys.compress_ratios else keys.kv_heads or attends[0].kv_heads,
        head_size=round(_head_size(keys)),
        kv_values_per_token=round(math.fsum(layer.values(CONTEXT) for layer in layers) / CONTEXT),
        state_values=0 if keys.compress_ratios else round(math.fsum(layer.state_values for layer in layers)),
        max_context_tokens=_context(keys),
    )


def _context(keys: _Keys) -> int | None:
    """As vLLM reads it (`_get_and_verify_max_len`): `model_max_length` goes first (Command R: sixteen times its
    `max_position_embeddings`), and YaRN, which Qwen adds for long prompts, lengthens the context it starts from."""
    known = keys.longest if isinstance(keys.longest, int) and 1 <= keys.longest <= 2**24 else keys.context
    start, factor = keys.rope.get("original_max_position_embeddings"), keys.rope.get("factor")
    is_yarn = "yarn" in (keys.rope.get("rope_type"), keys.rope.get("type"))
    if is_yarn and isinstance(start, int) and isinstance(factor, int | float) and 1 <= start * factor <= 2**24:
        return max(known or 1, round(start * factor))
    return known


# --- Layers


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer: weights that every token passes through, those of its routed experts, and what it keeps of a sequence.

    `token_values`: numbers in the cache per token, of at most `window` tokens; `state_values`: numbers whatever the
    length; in 16 bits each.
    """

    weights: float
    routed: float = 0.0
    token_values: float = 0.0
    window: float = math.inf
    state_values: float = 0.0
    kv_heads: int = 1

    def values(self, length: int) -> float:
        """Numbers kept of a sequence of `length` tokens."""
        return self.token_values * min(length, self.window) + self.state_values


_KINDS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "full_attention": ("full", "ffn"),
        "attention": ("full", "ffn"),
        "sliding_attention": ("window", "ffn"),
        "chunked_attention": ("full", "ffn"),  # blocks of 8,192 tokens and more
        **dict.fromkeys(("deepseek_sparse_attention", "indexed_attention"), ("full", "ffn")),  # reads some, keeps all
        "linear_attention": ("linear", "ffn"),
        "mamba": ("mamba", "ffn"),
    }
)
"""A layer by its name in `layer_types`: what it does between tokens, and within a token."""
_BLOCKS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(("M", "mamba", "linear_attention"), ("mamba", "none")),
        **dict.fromkeys(("*", "attention", "full_attention"), ("full", "none")),
        **dict.fromkeys(("-", "mlp"), ("none", "dense")),
        **dict.fromkeys(("E", "moe"), ("none", "moe")),
    }
)
"""A layer by its name where each is one block: Nemotron-H."""


def _layers(keys: _Keys) -> Iterator[_Layer]:
    if keys.blocks:
        yield from (_searched(keys, block) for block in keys.blocks)
        return
    for index, (mixer, feed) in enumerate(_kinds(keys)):
        between = _MIXERS[mixer](keys, index)
        weights, routed = _feed(keys, index, feed)
        yield replace(between, weights=between.weights + weights, routed=routed)


def _kinds(keys: _Keys) -> list[tuple[str, str]]:
    """What each layer does between tokens and within a token."""
    if keys.pattern:
        return _named(keys.pattern, _BLOCKS, "hybrid_override_pattern")
    if keys.block_types:
        return _named(keys.block_types, _BLOCKS, "layers_block_type")
    if keys.layer_types:
        return _named(_of_all(keys, keys.layer_types, "layer_types"), _KINDS, "layer_types")
    if keys.full_marks:
        marks = _of_all(keys, keys.full_marks, "attn_type_list")
        return [("full" if mark else "lightning", "ffn") for mark in marks]
    if keys.full_layers:
        return [("full" if index in keys.full_layers else "mamba", "ffn") for index in range(keys.layers)]
    if keys.compress_ratios:
        return [("compressed", "ffn")] * keys.layers
    if keys.linear:
        full = keys.linear.get("full_attn_layers")
        if not isinstance(full, list):
            raise _Unusable("key 'linear_attn_config.full_attn_layers': missing")
        return [("full" if index + 1 in full else "delta", "ffn") for index in range(keys.layers)]
    if keys.window_layers:
        marks = _of_all(keys, keys.window_layers, "hybrid_layer_pattern")
        return [("window" if mark else "full", "ffn") for mark in marks]
    if keys.full_interval:
        every = keys.full_interval
        return [("linear" if (index + 1) % every else "full", "ffn") for index in range(keys.layers)]
    if keys.window and keys.use_window:
        pattern = keys.window_pattern or "L"
        if not isinstance(pattern, str):
            pattern = "L" * (pattern - 1) + "G"
        local = [index >= keys.full_first and pattern[index % len(pattern)] == "L" for index in range(keys.layers)]
        return [("window" if each else "full", "ffn") for each in local]
    return [("full", "ffn")] * keys.layers


def _named(marks: Iterable[Any], known: Mapping[str, tuple[str, str]], key: str) -> list[tuple[str, str]]:
    found = []
    for mark in marks:
        if not isinstance(mark, str) or mark not in known:
            raise _Unusable(f"key {key!r}: {quoted(mark)} is not one of {', '.join(known)}")
        found.append(known[mark])
    return found


def _of_all(keys: _Keys, marks: Sequence[Any], key: str) -> Sequence[Any]:
    """The marks of the layers; those of extra prediction layers stand behind them."""
    if len(marks) < keys.layers:
        raise _Unusable(f"key {key!r}: {len(marks)} entries for {keys.layers} layers")
    return marks[: keys.layers]


def _need(value: int | None, key: str) -> int:
    if value is None:
        raise _Unusable(f"key {key!r}: missing")
    return value


def _plain_head_size(keys: _Keys) -> int:
    if keys.head_size is None and keys.hidden % keys.heads:
        raise _Unusable("key 'head_dim': missing, and num_attention_heads does not divide hidden_size")
    return keys.head_size or keys.hidden // keys.heads


def _head_size(keys: _Keys) -> float:
    """Mean of a key's and a value's numbers: what a head's products cost for each pair of tokens."""
    if keys.latent:
        plain = _need(keys.plain_size, "qk_nope_head_dim")
        return (plain + keys.rope_size + _need(keys.value_size, "v_head_dim")) / 2
    size = _plain_head_size(keys)
    return (size + (keys.value_size or size)) / 2


def _full(keys: _Keys, index: int) -> _Layer:
    if keys.latent:
        return _latent(keys)
    heads, size = keys.heads, keys.global_head_size or _plain_head_size(keys)
    kv_heads = (keys.global_kv_heads if keys.keys_are_values else None) or keys.kv_heads or heads
    return _attention(keys, heads, kv_heads, size, math.inf, shared=keys.keys_are_values)


def _window(keys: _Keys, index: int) -> _Layer:
    heads, kv_heads = keys.window_heads or keys.heads, keys.window_kv_heads or keys.kv_heads or keys.heads
    window = float(_need(keys.window, "sliding_window"))
    return _attention(keys, heads, kv_heads, _plain_head_size(keys), window)


def _attention(keys: _Keys, heads: int, kv_heads: int, size: int, window: float, *, shared: bool = False) -> _Layer:
    """Keys and values of `kv_heads` heads; `shared`: a key is projected once and serves as the value."""
    value_size = keys.value_size or size
    query = heads * size * (2 if keys.gated_attention else 1)
    cached = kv_heads * (size + value_size)
    projected = query + heads * value_size + (kv_heads * size if shared else cached)
    return _Layer(float(keys.hidden * projected), 0.0, float(cached), window, 0.0, kv_heads)


def _latent(keys: _Keys) -> _Layer:
    """Keys and values from a latent vector, which is all that is kept, beside the rotated part of a key."""
    rank, rope = _need(keys.latent, "kv_lora_rank"), keys.rope_size
    plain, value = _need(keys.plain_size, "qk_nope_head_dim"), _need(keys.value_size, "v_head_dim")
    weights = _query(keys, plain + rope) + keys.hidden * (rank + rope) + rank * keys.heads * (plain + value)
    weights += keys.heads * value * keys.hidden * (2 if keys.gated_attention else 1)
    index_weights, index_values = _index(keys)
    return _Layer(float(weights + index_weights), 0.0, rank + rope + index_values)


def _query(keys: _Keys, size: int) -> int:
    if keys.query_latent:
        return keys.query_latent * (keys.hidden + keys.heads * size)
    return keys.hidden * keys.heads * size


def _index(keys: _Keys) -> tuple[float, float]:
    """Weights and values per token of the index by which sparse attention chooses tokens; (0, 0) without one."""
    if not keys.index_heads:
        return 0.0, 0.0
    weights = keys.index_heads * keys.index_size * (keys.query_latent or keys.hidden)
    weights += keys.hidden * (keys.index_size + keys.index_heads)
    return float(weights), (keys.index_size + 4) / INDEX_VALUES


def _compressed(keys: _Keys, index: int) -> _Layer:
    """One key, which is the value too, for every so many tokens, beside a window of single ones: DeepSeek V4."""
    ratio = _of_all(keys, keys.compress_ratios or [], "compress_ratios")[index]
    if not isinstance(ratio, int) or not 0 <= ratio <= 2**16:
        raise _Unusable(f"key 'compress_ratios': {quoted(ratio)} is not a whole number")
    size = _plain_head_size(keys)
    outputs = keys.heads * size * (keys.output_latent or keys.hidden)
    outputs += keys.output_groups * keys.output_latent * keys.hidden if keys.output_latent else 0
    weights = float(_query(keys, size) + keys.hidden * size + outputs)
    kept = [(size, float(size))] if ratio else []
    if ratio == INDEXED_RATIO and keys.index_heads:
        weights += _index(keys)[0]
        kept.append((keys.index_size, keys.index_size / 4))  # 4 bits
    overlap = 2 if ratio == INDEXED_RATIO else 1
    weights += sum(2.0 * overlap * keys.hidden * wide for wide, _ in kept)
    pending = sum(2 * STATE_VALUES * overlap * ratio * wide for wide, _ in kept)  # a key and its score, per token
    values = sum(values / ratio for _, values in kept)
    return _Layer(weights, 0.0, values, math.inf, float(size * (keys.window or 0) + pending))


def _linear(keys: _Keys, index: int) -> _Layer:
    """The gated delta rule of Qwen3-Next: a matrix per head as state, and the last inputs of a short convolution.

    transformers 5 calls a state space by this name too."""
    if keys.mamba_heads:
        return _mamba(keys, index)
    keys_width = _need(keys.linear_key_heads, "linear_num_key_heads") * _need(
        keys.linear_key_size, "linear_key_head_dim"
    )
    heads = _need(keys.linear_value_heads, "linear_num_value_heads")
    values_width = heads * _need(keys.linear_value_size, "linear_value_head_dim")
    convolved = 2 * keys_width + values_width
    weights = keys.hidden * (convolved + 2 * values_width + 2 * heads) + keys.convolution * convolved
    state = values_width * _need(keys.linear_key_size, "linear_key_head_dim")
    return _Layer(float(weights), state_values=STATE_VALUES * state + (keys.convolution - 1) * convolved)


def _lightning(keys: _Keys, index: int) -> _Layer:
    """The linear attention of MiniMax-01 (arXiv:2501.08313): a square matrix per head as state, and a gate."""
    size = _plain_head_size(keys)
    width = keys.heads * size
    return _Layer(5.0 * keys.hidden * width, state_values=float(STATE_VALUES * width * size))


def _delta(keys: _Keys, index: int) -> _Layer:
    """The delta rule with a gate for each channel of Kimi Linear."""
    given = keys.linear or {}
    heads, size = given.get("num_heads", 0), given.get("head_dim", 0)
    if not all(isinstance(number, int) and 0 < number < 2**16 for number in (heads, size)):
        raise _Unusable("key 'linear_attn_config': needs num_heads and head_dim")
    width = heads * size
    decay = size * (keys.hidden + width)
    gate = keys.hidden * width if given.get("use_full_rank_gate") else decay
    weights = 4 * keys.hidden * width + gate + decay + keys.hidden * heads + 3 * keys.convolution * width
    state = STATE_VALUES * width * size + (keys.convolution - 1) * 3 * width
    return _Layer(float(weights), state_values=float(state))


def _mamba(keys: _Keys, index: int) -> _Layer:
    """Mamba-2: a matrix of head size by state size per head as state, and the last inputs of a short convolution."""
    heads, size = _need(keys.mamba_heads, "mamba_num_heads"), _need(keys.mamba_head_size, "mamba_head_dim")
    state = _need(keys.state_size, "ssm_state_size")
    width = heads * size
    convolved = width + 2 * keys.mamba_groups * state
    weights = keys.hidden * (2 * width + convolved + heads) + keys.convolution * convolved
    return _Layer(float(weights), state_values=STATE_VALUES * width * state + (keys.convolution - 1) * convolved)


def _nothing(keys: _Keys, index: int) -> _Layer:
    return _Layer(0.0)


_MIXERS = MappingProxyType(
    {
        "full": _full,
        "window": _window,
        "compressed": _compressed,
        "linear": _linear,
        "lightning": _lightning,
        "delta": _delta,
        "mamba": _mamba,
        "none": _nothing,
    }
)


def _feed(keys: _Keys, index: int, kind: str) -> tuple[float, float]:
    """Weights of a layer's feed-forward part that every token passes through, and those of its routed experts."""
    if kind == "none":
        return 0.0, 0.0
    if kind == "dense" or (kind == "ffn" and not _routes(keys, index)):
        return _mlp(keys, keys.hidden, keys.dense_inner or _need(keys.inner, "intermediate_size")), 0.0
    inner = keys.expert_inner or _need(keys.inner, "moe_intermediate_size")
    if not 0 < keys.chosen <= keys.experts:
        raise _Unusable(f"key 'num_experts_per_tok': {keys.chosen} of {keys.experts} experts")
    every = float(keys.hidden * keys.experts) + _mlp(keys, keys.hidden, keys.shared_inner or keys.shared * inner)
    if keys.dense_beside_experts:
        every += _mlp(keys, keys.hidden, _need(keys.inner, "intermediate_size"))
    if keys.expert_hidden:
        every += 2.0 * keys.hidden * keys.expert_hidden
    return every, keys.experts * _mlp(keys, keys.expert_hidden or keys.hidden, inner)


def _mlp(keys: _Keys, outer: int, inner: int) -> float:
    gated = "relu2" not in keys.activation and keys.model_type not in UNGATED
    return float((3 if gated else 2) * outer * inner)


def _routes(keys: _Keys, index: int) -> bool:
    """True where the layer has routed experts."""
    if not keys.experts:
        return False
    if keys.feed_types:
        return bool(_of_all(keys, keys.feed_types, "mlp_layer_types")[index] == "sparse")
    if isinstance(keys.moe_every, list):
        return bool(_of_all(keys, keys.moe_every, "moe_layer_freq")[index])
    if index < keys.first_dense or index in keys.dense_layers:
        return False
    return index % keys.moe_every == 0 and (index + 1) % keys.moe_step == 0


def _searched(keys: _Keys, block: Mapping[str, Any]) -> _Layer:
    """A layer whose shape an architecture search has chosen: `block_configs` of Llama-Nemotron."""
    attention, feed = (part if isinstance(part := block.get(name), Mapping) else {} for name in ("attention", "ffn"))
    layer, weights = _Layer(0.0), 0.0
    if attention.get("replace_with_linear"):
        layer = _Layer(float(keys.hidden**2))
    elif not attention.get("no_op"):
        group = attention.get("n_heads_in_group")
        if not isinstance(group, int) or not 0 < group <= keys.heads:
            raise _Unusable("key 'block_configs.attention.n_heads_in_group': missing")
        layer = _attention(keys, keys.heads, keys.heads // group, _plain_head_size(keys), math.inf)
    if feed.get("replace_with_linear"):
        weights = float(keys.hidden**2)
    elif not feed.get("no_op"):
        factor = feed.get("ffn_mult")
        if not isinstance(factor, int | float) or not 0 < factor < 100:
            raise _Unusable("key 'block_configs.ffn.ffn_mult': missing")
        inner = math.ceil(int(2 * factor * keys.hidden / 3) / 256) * 256
        weights = _mlp(keys, keys.hidden, inner)
    return replace(layer, weights=layer.weights + weights)


# --- Precision of the published weights


def _checkpoint(keys: _Keys, packed: Mapping[str, Any]) -> Precision:
    """The format of most of the bytes: of several formats the one with the fewest bits, which is the experts'."""
    beside = packed.get("quantization")
    told = [*_formats(keys.quantization), *_formats(beside if isinstance(beside, Mapping) else {})]
    if keys.quantization.get("quant_method") and not told:
        raise _Unusable("key 'quantization_config.quantized_layers': missing, and so is hf_quant_config.json")
    if keys.expert_dtype == "fp4" and "nvfp4" not in told:
        told.append("mxfp4")
    return min(told, key=BITS.__getitem__, default="bf16")


def _formats(given: Mapping[str, Any]) -> Iterator[Precision]:
    method = str(given.get("quant_method") or given.get("quant_algo") or "").casefold()
    groups, layers = given.get("config_groups"), given.get("quantized_layers")
    if isinstance(layers, Mapping):
        named = {str(layer.get("quant_algo")).casefold() for layer in layers.values() if isinstance(layer, Mapping)}
        yield from (_format(name, {}) for name in sorted(named))
    if isinstance(groups, Mapping):
        for group in groups.values():
            weights = group.get("weights") if isinstance(group, Mapping) else None
            if isinstance(weights, Mapping):
                yield _of_weights(weights)
    elif method not in ("", "modelopt", "mixed_precision"):
        yield _format(method, given)
    algorithm = str(given.get("quant_algo") or "").casefold()
    if method == "modelopt" and algorithm not in ("", "mixed_precision"):
        yield _format(algorithm, given)


def _format(method: str, given: Mapping[str, Any]) -> Precision:
    bits = given.get("bits", given.get("w_bit", 4))
    if method in ("awq", "gptq", "auto-round", "w4a16_awq", "w4a8_awq", "int4") and bits == 4:
        return "int4"
    if method == "bitsandbytes" and given.get("load_in_4bit"):
        return "int4"
    if "nvfp4" in method or "mxfp4" in method:  # also w4a16_nvfp4, of the weights alone, and nvfp4_awq
        return "nvfp4" if "nvfp4" in method else "mxfp4"
    if method.startswith(("fp8", "fbgemm_fp8", "mxfp8")):
        blocks = given.get("weight_block_size") or method.startswith("mxfp8") or "pb" in method
        return "fp8_block" if blocks else "fp8"
    raise _Unusable(f"key 'quantization_config.quant_method': {quoted(method)} in {quoted(bits)} bits is not known")


def _of_weights(weights: Mapping[str, Any]) -> Precision:
    """A group of compressed-tensors or modelopt."""
    bits, kind, size = weights.get("num_bits"), weights.get("type"), weights.get("group_size")
    formats: list[tuple[bool, Literal["int4", "nvfp4", "mxfp4", "fp8_block", "fp8"]]] = [
        (bits == 4 and kind == "int", "int4"),
        (bits == 4 and kind == "float" and size == 32, "mxfp4"),
        (bits == 4 and kind == "float", "nvfp4"),
        (bits == 8 and kind == "float" and (weights.get("strategy") == "block" or bool(size)), "fp8_block"),
        (bits == 8 and kind == "float", "fp8"),
    ]
    found = next((name for fits, name in formats if fits), None)
    if found is None:
        raise _Unusable(f"key 'quantization_config.config_groups': {quoted(kind)} of {quoted(bits)} bits is not known")
    return found
