"""The engine behind `tensorrt_llm` on a GPU: the reference engine's scheduler and cache, and a model of real shape."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import torch

from lab.gpu.engine.pass_times import PassTimes
from lab.gpu.engine.shapes import SHAPES
from lab.gpu.engine.transformer import RealTransformer
from lab.reference.engine.in_flight import InFlightEngine
from lab.reference.engine.kv_cache import KvCache
from lab.reference.engine.request import Limits
from lab.reference.engine.static import StaticEngine
from lab.reference.engine.worker import Engine


def build_engine(parameters: Mapping[str, str]) -> tuple[Engine, Limits]:
    """As the reference engine's function, but with the `shape` of a real model instead of the small one."""
    device = torch.device(parameters["device"])
    dtype = torch.float32 if parameters["precision"] == "fp32" else torch.bfloat16
    shape = SHAPES[parameters["shape"]]
    limits = Limits(int(parameters["max_sequence_tokens"]), int(parameters["kv_tokens"]), shape.vocab_size)
    batch = int(parameters["max_batch_size"])
    model = RealTransformer(
        shape,
        seed=int(parameters["seed"]),
        device=device,
        dtype=dtype,
        longest=limits.max_sequence_tokens,
        ops=operations(parameters["ops"]),
        times=PassTimes(Path(parameters["steps_file"]), device),
    )
    cache = KvCache(
        layers=shape.layers,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        capacity_tokens=limits.kv_tokens,
        max_requests=batch,
        max_sequence_tokens=limits.max_sequence_tokens,
        device=device,
        dtype=dtype,
    )
    if parameters["ops"] == "triton":  # plain torch looks up the longest context on the host, which a graph cannot do
        model.capture(cache, graph_sizes(batch))
    budget = int(parameters["token_budget"])
    if parameters["gpt_model_type"] == "V1":
        delay_s = float(parameters["batch_delay_s"])
        return StaticEngine(model, cache, token_budget=budget, delay_s=delay_s), limits  # type: ignore[arg-type]
    return InFlightEngine(model, cache, token_budget=budget), limits  # type: ignore[arg-type]


def operations(name: str) -> ModuleType:
    """The module `triton_ops` or `torch_ops`; lab.gpu.engine.check finds out which of them suits a machine."""
    return importlib.import_module(f"lab.gpu.engine.{name}_ops")


def graph_sizes(batch: int) -> list[int]:
    """Batch sizes to capture: 1, 2, 4, 8, then in steps of 8 to 64, of 32 to 256, of 64 beyond, and `batch` itself.

    >>> graph_sizes(20)
    [1, 2, 4, 8, 16, 20]
    """
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, 256, 32), *range(256, max(257, batch), 64)]
    return [size for size in sizes if size < batch] + [batch]
