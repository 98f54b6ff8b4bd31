"""A catalogue entry from a checkpoint's config.json: for models in a local folder, and to write the catalogue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sizing.catalog import PRECISIONS, Model, Precision
from sizing.errors import CatalogueError, EstimateUnavailable
from sizing.estimate.kernels import MISSING, available, bundled

_CONTEXT = 4096
_BF16_BYTES = 2
_QUANT_MODES = ("gemm_quant_mode", "moe_quant_mode", "kvcache_quant_mode", "fmha_quant_mode")


def describe(model_id: str) -> Model:
    """Size, attention shape and precision of a bundled model or of a local folder with a config.json.

    Parameters are counted from the layers that the kernel database models. Raises EstimateUnavailable without the
    library, CatalogueError if the model is neither bundled nor a folder, or its architecture is not supported.
    """
    if not available():
        raise EstimateUnavailable(f"{model_id}: to read a config.json, {MISSING}")
    if not bundled(model_id):
        raise CatalogueError(f"{model_id}: neither bundled with the kernel database nor a folder with a config.json")
    from aisimulate_core.sdk.utils import get_model_config_from_model_path

    try:
        config = get_model_config_from_model_path(model_id)
        built, halved = _build(model_id, 1), _build(model_id, 2)
        cache_bytes = built.get_kvcache_bytes_per_sequence(_CONTEXT)
        split = halved.get_kvcache_bytes_per_sequence(_CONTEXT) < 0.75 * cache_bytes
        parameters, active = _count(built, config)
        return Model(
            id=model_id,
            name=_display(model_id),
            kind="moe" if active < parameters else "dense",
            checkpoint=_checkpoint(model_id, config, active < parameters),
            parameters=parameters,
            active_parameters=active,
            layers=config["layers"],
            heads=config["n"],
            kv_heads=config["n_kv"] if split else 1,
            head_size=config["d"],
            kv_values_per_token=round(cache_bytes / _BF16_BYTES / _CONTEXT),
        )
    except (RuntimeError, ValueError, KeyError, AssertionError, AttributeError, OSError) as error:
        raise CatalogueError(f"{model_id}: its config.json cannot be used ({error})") from None


def _build(model_id: str, tp: int) -> Any:
    from aisimulate_core.sdk.config_builders import build_model_config
    from aisimulate_core.sdk.models import get_model

    quants: dict[str, Any] = dict.fromkeys(_QUANT_MODES, "bfloat16")
    reason: Exception | None = None
    for backend in ("trtllm", "vllm", "sglang"):
        try:
            return get_model(model_id, build_model_config(tp, 1, 1, tp, 1, **quants), backend)
        except (RuntimeError, ValueError, KeyError) as error:
            reason = error
    raise ValueError(f"no engine builds it: {reason}")


def _count(built: Any, config: Mapping[str, Any]) -> tuple[float, float]:
    """All parameters, and those that one token passes through."""
    sizes = [(type(op).__name__, op.get_weights() / _BF16_BYTES) for op in built.context_ops]
    total = sum(size for _, size in sizes)
    experts = sum(size for kind, size in sizes if kind == "MoE")
    if not experts:
        return total, total
    return total, total - experts * _left_out(config)


def left_out(model_id: str) -> float:
    """Share of a mixture's experts that a token does not pass through; 0 for a dense model.

    Only for models that describe() takes.
    """
    from aisimulate_core.sdk.utils import get_model_config_from_model_path

    config = get_model_config_from_model_path(model_id)
    return _left_out(config) if config.get("num_experts") else 0.0


def _left_out(config: Mapping[str, Any]) -> float:
    chosen = config["topk"] or _raw(config, "num_experts_per_tok", "num_experts_per_token", "moe_topk")
    return float(1 - chosen / config["num_experts"])


def _raw(config: Mapping[str, Any], *names: str) -> int:
    raw = config["raw_config"]
    for place in (raw, raw.get("text_config") or {}):
        for name in names:
            if place.get(name):
                return int(place[name])
    raise KeyError(names[0])


def _checkpoint(model_id: str, config: Mapping[str, Any], moe: bool) -> Precision:
    """The precision of most of the bytes: of the experts where there are any, else of the matrix products."""
    from aisimulate_core.sdk.models import _infer_quant_modes_from_raw_config

    if "nvfp4" in model_id.casefold():
        return "nvfp4"
    modes = _infer_quant_modes_from_raw_config(config["raw_config"], config["architecture"])
    mode = modes.get("moe_quant_mode" if moe else "gemm_quant_mode")
    name = getattr(mode, "name", "bfloat16")
    for precision in sorted(PRECISIONS, key=len, reverse=True):
        if precision in name:
            return precision
    return "bf16"


def _display(model_id: str) -> str:
    return model_id.rstrip("/").rpartition("/")[2].removeprefix("Meta-").replace("-", " ").replace("_", ".")
