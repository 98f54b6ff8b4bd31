"""Custom batching strategies: the five functions of TRITONBACKEND_ModelBatch* as methods, and how one is found.

A strategy comes on top of the dynamic batcher's own rules: it can only end a batch earlier.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from sizing.errors import ScenarioError
from triton_tools.batcher.config import ModelBatching
from triton_tools.batcher.requests import Request

FILE_NAME = "batchstrategy.py"


class BatchStrategy(Protocol):
    """The five functions of Triton's custom batching library, by role."""

    def batcher_initialize(self, model: ModelBatching) -> Any:
        """ModelBatcherInitialize: read-only data for all batches, created once, when the model is loaded."""

    def batch_initialize(self, batcher: Any) -> Any:
        """ModelBatchInitialize: the record of a new batch."""

    def include_request(self, request: Request, batch: Any) -> bool:
        """ModelBatchIncludeRequest: whether the request joins; updates the record if it does. False ends the batch."""

    def batch_finalize(self, batch: Any) -> None:
        """ModelBatchFinalize: the batch is formed."""

    def batcher_finalize(self, batcher: Any) -> None:
        """ModelBatcherFinalize: the model is unloaded."""


@dataclass(slots=True)
class _Volume:
    """The bytes in the batch so far, and their limit."""

    most_bytes: int
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class VolumeBatching:
    """Batches with at most `most_bytes` of input; a larger request goes alone."""

    most_bytes: int

    def batcher_initialize(self, model: ModelBatching) -> int:
        return self.most_bytes

    def batch_initialize(self, batcher: int) -> _Volume:
        return _Volume(batcher)

    def include_request(self, request: Request, batch: _Volume) -> bool:
        if batch.bytes and batch.bytes + request.size_bytes > batch.most_bytes:
            return False
        batch.bytes += request.size_bytes
        return True

    def batch_finalize(self, batch: _Volume) -> None:
        batch.bytes = 0

    def batcher_finalize(self, batcher: int) -> None:
        return None


def find_strategy(model: ModelBatching, version: Path) -> Path | None:
    """The file of the model's strategy: the one that TRITON_BATCH_STRATEGY_PATH names, else `batchstrategy.py` in the
    folder of the version or the model, in that order; None if there is none.

    Raises:
        ScenarioError: the parameter names a file that does not exist.
    """
    if model.strategy_path:
        named = Path(model.strategy_path)
        if not named.is_file():
            raise ScenarioError(f"TRITON_BATCH_STRATEGY_PATH: there is no file {named}")
        return named
    return next((folder / FILE_NAME for folder in (version, version.parent) if (folder / FILE_NAME).is_file()), None)


def load_strategy(path: Path) -> BatchStrategy:
    """The strategy that a Python file defines as `strategy`. The file is executed, so load only what you trust.

    Raises:
        ScenarioError: it is not a Python file, or has no object `strategy` with the five methods.
    """
    spec = importlib.util.spec_from_file_location("batchstrategy", path)
    if path.suffix != ".py" or not path.is_file() or spec is None or spec.loader is None:
        raise ScenarioError(f"{path}: a batching strategy for the simulation is a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = getattr(module, "strategy", None)
    roles = [name for name in vars(BatchStrategy) if not name.startswith("_")]
    missing = [name for name in roles if not callable(getattr(found, name, None))]
    if missing:
        raise ScenarioError(f"{path}: its object `strategy` lacks {', '.join(missing)}")
    return cast("BatchStrategy", found)
