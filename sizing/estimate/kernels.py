"""Step times and memory of an engine from the kernel timings inside aisimulate: the planner's only door to it.

Only step times and memory are taken: its own latency under load is off by half on its own measured sample. Traps kept
away from callers: it would download an unknown model's config (only bundled ids get through), logs
to stderr, answers outside its tables without saying so, and drops its tables when the last engine handle dies.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from types import MappingProxyType
from typing import Any

from sizing.catalog import Layout, Model
from sizing.errors import EstimateUnavailable
from sizing.estimate.memory import BUDGET, KV_LENGTHS, Memory
from sizing.files import written

LIBRARY = "aisimulate 0.13.0 of 2026-10-27"
REQUIREMENT = "aisimulate==0.13.0.dev202610270000000085"
MISSING = f"the kernel timings are not here: make timings, or pip install --no-deps {REQUIREMENT}"
BACKENDS = ("trtllm", "vllm", "sglang")
_MODES = MappingProxyType({"bf16": "bfloat16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4"})
MXFP8_ENGINES, MXFP8_GPUS = ("trtllm", "sglang"), ("b200_sxm", "b300_sxm", "gb200", "gb300")
"""Who multiplies MXFP4 weights by activations in MXFP8, by default, where the library takes 16 bits for gpt-oss:
TensorRT-LLM's deployment guide for GPT-OSS, and SGLang's pull requests 8898 and 9004. vLLM keeps 16 bits."""
Quant = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, eq=False)
class TimedModel:
    """A model compiled for one GPU, engine, layout and precision; answers step times in seconds.

    Batches and tokens are those of one rank and stage, all others having as many. Answers outside the collected shapes
    are extrapolated silently, and memory is ignored: keep queries within the KV cache. `settings` are the arguments it
    was compiled with.
    """

    handle: Any
    model_id: str
    gpu: str
    backend: str
    version: str
    layout: Layout
    settings: Quant

    def decode_s(self, batch: int, context: int) -> float:
        """Seconds to decode one token for each of `batch` sequences of `context` tokens."""
        return float(self.handle.predict_decode_latency(bs=batch, isl=context - 1, osl=2)) / 1e3

    def prefill_s(self, batch: int, isl: int) -> float:
        """Seconds to prefill `batch` whole prompts of `isl` tokens with no decodes beside them."""
        return float(self.handle.predict_prefill_latency(bs=batch, isl=isl)) / 1e3

    def mixed_s(self, prefill_tokens: int, batch: int, isl: int) -> float:
        """Seconds to prefill `prefill_tokens` of prompts of `isl` beside `batch` decodes at contexts of `isl`."""
        return float(self.handle.mixed_step_latency(prefill_tokens, batch, isl, 2)) / 1e3


def open_engine(model: Model, gpu: str, backend: str, layout: Layout, precision: str) -> TimedModel:
    """The engine whose kernels are in the database.

    Cached for the life of the process. Raises EstimateUnavailable with the reason.
    """
    if not available():
        raise EstimateUnavailable(MISSING)
    outcome = _open(model.id, gpu, backend, layout, precision == model.checkpoint, precision)
    if isinstance(outcome, str):
        raise EstimateUnavailable(outcome)
    return outcome


@lru_cache(maxsize=512)
def _open(
    model_id: str, gpu: str, backend: str, layout: Layout, as_published: bool, precision: str
) -> TimedModel | str:
    # Why a cached text and not an exception: a failure takes as long as a success and is asked for as often.
    reason = f"no setting for {precision}"
    if not bundled(model_id):
        return "the kernel database does not know the model"
    for settings in _settings(backend, gpu, as_published, precision):
        try:
            engine = _compile(model_id, gpu, backend, layout, settings)
            engine.decode_s(32, 2048), engine.prefill_s(1, 2048), engine.mixed_s(2048, 32, 2048)
            return engine
        except (RuntimeError, ValueError, KeyError, AssertionError) as error:
            reason = _plain(error)
    return f"{backend}: {reason}"


def _plain(error: Exception) -> str:
    text = str(error.args[0] if error.args else error).replace("perf database error: ", "")
    # What follows is the key that was looked up and the file, which tell a reader nothing.
    return re.split(r" \(| for | from | at /| in either ", text)[0].strip() or type(error).__name__


def _settings(backend: str, gpu: str, as_published: bool, precision: str) -> list[Quant]:
    quants: list[dict[str, str]] = [{}, {"fmha_quant_mode": "bfloat16"}]  # {}: the library reads the checkpoint's own
    if precision == "mxfp4" and backend in MXFP8_ENGINES and gpu in MXFP8_GPUS:
        quants = [quant | {"moe_quant_mode": "w4a8_mxfp4_mxfp8"} for quant in quants] + quants
    if not as_published or precision == "bf16":
        if (mode := _MODES.get(precision)) is None:
            return []
        kv = "bfloat16" if precision == "bf16" else "fp8"
        base = {"gemm_quant_mode": mode, "moe_quant_mode": mode, "kvcache_quant_mode": kv}
        attentions = [kv, "bfloat16"] if backend != "vllm" else ["bfloat16"]  # vLLM has no fp8 prefill attention
        quants = [base | {"fmha_quant_mode": attention} for attention in dict.fromkeys(attentions)]
    return [tuple(quant.items()) for quant in quants]


def _sizes(layout: Layout) -> dict[str, int]:
    """The library's arguments; a dense model has no experts to split and ignores theirs."""
    return {
        "tp_size": layout.tp,
        "pp_size": layout.pp,
        "attention_dp_size": layout.dp,
        "moe_tp_size": layout.tp * layout.dp // layout.ep,
        "moe_ep_size": layout.ep,
    }


@lru_cache(maxsize=1024)
def _compile(model_id: str, gpu: str, backend: str, layout: Layout, settings: Quant) -> TimedModel:
    # Cached even when a query then misses: a living handle keeps the backend's tables loaded (0.5 s to read again).
    from aisimulate_core.sdk import EngineHandle

    _hush()
    named: dict[str, Any] = dict(settings)
    handle = EngineHandle.compile(model_id, gpu, backend, backend_version="current", **_sizes(layout), **named)
    return TimedModel(handle, model_id, gpu, backend, _version(gpu, backend), layout, settings)


@cache
def _version(gpu: str, backend: str) -> str:
    from aisimulate_core.sdk.perf_database import get_version_slots

    return str((get_version_slots(gpu, backend) or {}).get("current", ""))


@lru_cache(maxsize=1024)
def memory(engine: TimedModel) -> Memory:
    """Memory of one GPU. Raises EstimateUnavailable where the library does not count the model's KV cache."""
    parts, smaller = _breakdown(engine, BUDGET), _breakdown(engine, BUDGET // 2)
    if not parts["kv_size_per_token_bytes"]:
        raise EstimateUnavailable(f"{engine.backend}: the bytes of its KV cache are not known")
    return Memory(
        backend=engine.backend,
        capacity_bytes=parts["gpu_memory_capacity_bytes"],
        fixed_bytes=parts["non_kv_bytes"],
        budget_token_bytes=(parts["non_kv_bytes"] - smaller["non_kv_bytes"]) / (BUDGET - BUDGET // 2),
        sequence_bytes_at=tuple(_sequence_bytes(parts, length) for length in KV_LENGTHS),
    )


def _breakdown(engine: TimedModel, token_budget: int) -> Mapping[str, Any]:
    from aisimulate_core.sdk.memory import KVCacheEstimator

    settings: dict[str, Any] = dict(engine.settings)
    estimator = KVCacheEstimator.from_request(
        engine.model_id,
        engine.gpu,
        engine.backend,
        "current",
        max_num_tokens=token_budget,
        max_batch_size=256,  # asked for, without influence
        **_sizes(engine.layout),
        **settings,
    )
    parts: Mapping[str, Any] = estimator.breakdown
    return parts


def _sequence_bytes(parts: Mapping[str, Any], length: int) -> float:
    """The fewest bytes that hold `length` tokens: the library gives tokens for bytes only."""
    tokens_in: Callable[[float], int] = parts["tokens_from_kv_bytes"]
    most = parts["kv_size_per_token_bytes"] * length
    if tokens_in(most) <= length:
        return float(most)
    least = 0.0
    for _ in range(40):
        middle = (least + most) / 2
        least, most = (least, middle) if tokens_in(middle) >= length else (middle, most)
    return float(most)


HOME = written(".cache/kernels")
"""Where `make laws` puts the library, without the forty packages that only its optimiser uses."""


@cache
def available() -> bool:
    """True where the kernel database is: installed, or in HOME. It runs on Linux, x86-64."""
    if str(HOME) not in sys.path and HOME.is_dir():
        sys.path.append(str(HOME))
    try:
        import aisimulate_core.sdk  # noqa: F401
    except ImportError:
        return False
    return True


def bundled(model_id: str) -> bool:
    """True if the library has this model's configuration, and so needs no download."""
    from aisimulate_core.sdk.common import DefaultHFModels

    return model_id in DefaultHFModels


def _hush() -> None:
    # Why: with no handler of its own, the library's warnings would reach stderr through logging's last resort.
    logger = logging.getLogger("aisimulate_core")
    logger.propagate = False
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
