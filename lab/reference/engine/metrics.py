"""The engine's load as Prometheus gauges, named and labelled as the TensorRT-LLM backend's (release v0.8.0)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from lab.reference.engine.static import StaticEngine
from lab.reference.engine.worker import Engine
from lab.reference.settings import KV_BLOCK_TOKENS


class Metrics:
    """Gauges on Triton's metrics port, set from the engine by `publish`."""

    def __init__(self, pb_utils: Any, args: Mapping[str, str], engine: Engine) -> None:
        self.engine = engine
        self._family = pb_utils.MetricFamily
        self._labels = {"model": args["model_name"], "version": args["model_version"]}
        self._gauges: dict[tuple[str, str], Any] = {}
        self._families: list[Any] = []  # a family must outlive its gauges
        self._memory = _memory_bytes(engine)
        for family, label, values in self._read():
            self._add(family, label, tuple(values))

    def publish(self) -> None:
        for family, _, values in self._read():
            for name, value in values.items():
                self._gauges[family, name].set(value)

    def close(self) -> None:
        """Drop the gauges, then their families: left to the interpreter's exit, that crashes the backend's stub."""
        self._gauges.clear()
        self._families.clear()

    def _add(self, family: str, label: str, names: tuple[str, ...]) -> None:
        name = f"nv_trt_llm_{family}_metrics"
        made = self._family(name=name, description=f"TRT LLM {family} metrics", kind=self._family.GAUGE)
        self._families.append(made)
        for value in names:
            self._gauges[family, value] = made.Metric(labels={**self._labels, label: value})

    def _read(self) -> list[tuple[str, str, dict[str, float]]]:
        """(family, label, value by label) of each family."""
        load, cache = self.engine.load(), self.engine.cache
        scheduled = load.reading_prompt + load.decoding
        requests = {
            "active": load.waiting + scheduled,
            "max": cache.max_requests,
            "scheduled": scheduled,
            "context": load.reading_prompt,
            "waiting": load.waiting,
        }
        used = cache.max_blocks - cache.free_blocks
        blocks: dict[str, float] = {
            "max": cache.max_blocks,
            "free": cache.free_blocks,
            "used": used,
            "tokens_per": KV_BLOCK_TOKENS,
        }
        blocks |= {"reused": cache.reused_blocks, "fraction": used / cache.max_blocks}
        return [
            ("request", "request_type", dict(requests)),
            ("kv_cache_block", "kv_cache_block_type", dict(blocks)),
            self._batcher(),
            ("runtime_memory", "memory_type", dict(self._memory)),
            ("general", "general_type", {"timestamp": time.time(), "iteration_counter": load.passes}),
        ]

    def _batcher(self) -> tuple[str, str, dict[str, float]]:
        load = self.engine.load()
        if isinstance(self.engine, StaticEngine):
            generation = {"total_generation_tokens": load.decoding, "empty_generation_slots": load.empty_slots}
            return "v1", "v1_specific_metric", {"total_context_tokens": load.context_tokens, **generation}
        values = {"total_context_tokens": load.context_tokens, "generation_requests": load.decoding}
        return (
            "inflight_batcher",
            "inflight_batcher_specific_metric",
            {**values, "micro_batch_id": 0, "paused_requests": load.paused},
        )


def _memory_bytes(engine: Engine) -> dict[str, float]:
    """Bytes of the weights and of the KV cache, by where they are."""
    model, cache = engine.model, engine.cache
    weights = [getattr(layer, entry.name) for layer in model.layers for entry in fields(layer)]
    tensors = [*weights, model.embedding, model.head, model.norm, *cache.keys, *cache.values, cache.table]
    size = float(sum(tensor.nbytes for tensor in tensors))
    is_gpu = model.device.type == "cuda"
    return {"cpu": 0.0 if is_gpu else size, "gpu": size if is_gpu else 0.0, "pinned": 0.0}
