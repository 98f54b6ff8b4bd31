"""Makes LoRA adapters, and the files in which the public clients look for them."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Row = tuple[int, int, int]
"""Module id, layer, adapter size."""
ALL_MODULES = range(8)


def widths(hidden: int, heads: int, kv_heads: int, **_: Any) -> dict[int, tuple[int, int]]:
    """Inputs and outputs of each module of the reference engine's model, written down a second time."""
    head = hidden // heads
    key_value, inner = kv_heads * head, hidden * 11 // 4
    return {
        0: (hidden, hidden + 2 * key_value),
        1: (hidden, hidden),
        2: (hidden, key_value),
        3: (hidden, key_value),
        4: (hidden, hidden),
        5: (hidden, inner),
        6: (inner, hidden),
        7: (hidden, inner),
    }


def make_adapter(
    model: dict[str, int], rows: Sequence[Row], seed: int, strength: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """`lora_weights` [1, L, n] and `lora_config` [1, L, 3]; B A is about `strength` times as large as the weights.

    Rows that need fewer values than the longest are filled up with values that must not matter.
    """
    rng = np.random.default_rng(seed)
    sizes = widths(**model)
    flat = []
    for module, _, size in rows:
        inputs, outputs = sizes[module]
        down = rng.standard_normal((size, inputs)) / inputs**0.5
        up = rng.standard_normal((outputs, size)) * strength / size**0.5
        flat.append(np.concatenate([down.ravel(), up.ravel()]))
    longest = max(map(len, flat))
    filled = [np.concatenate([values, np.full(longest - len(values), 9.0)]) for values in flat]
    return np.array([filled], np.float16), np.array([list(rows)], np.int32)


def everywhere(layers: int, size: int, modules: Iterable[int] = ALL_MODULES) -> list[Row]:
    return [(module, layer, size) for layer in range(layers) for module in modules]


def write_adapter(
    folder: Path, weights: np.ndarray, config: np.ndarray, config_name: str = "model.lora_config.npy"
) -> Path:
    """The two files in `folder`, named as the public conversion of adapters names them; older ones: model.lora_keys."""
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "model.lora_weights.npy", weights)
    np.save(folder / config_name, config)
    return folder


def read_adapter_files(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """As the public clients read them: the newer name first."""
    newer, older = folder / "model.lora_config.npy", folder / "model.lora_keys.npy"
    return np.load(folder / "model.lora_weights.npy"), np.load(newer if newer.exists() else older)
