"""Whether the kernels of a device compute what plain torch computes: on random numbers, before anything is timed.

As a program, `python -m lab.gpu.engine.check cuda bf16 [triton]`, it prints {"difference": ...}; if a compiler fails,
or a kernel breaks the device, only this process is lost.
"""

from __future__ import annotations

import json
import sys
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from lab.gpu.engine import torch_ops
from lab.gpu.engine.build import operations

HEADS, KV_HEADS, HEAD_DIM, INNER = 8, 2, 64, 1500
CONTEXTS = (1, 15, 64, 65, 700)


class Case(NamedTuple):
    """Random inputs of the operations: a cache of `keys` and `values`, and requests with `CONTEXTS` tokens."""

    packed: Tensor
    angles: tuple[Tensor, Tensor]
    positions: Tensor
    table: Tensor
    rows: Tensor
    keys: Tensor
    values: Tensor
    gate_up: Tensor


def worst_difference(ops: ModuleType, device: torch.device, dtype: torch.dtype) -> float:
    """The largest |found - expected| / |expected| (norms) over all operations of `ops`; NaN if any result is NaN.

    Expected are the results of `torch_ops` in float32 on the same numbers; memory to be written is poisoned first.
    """
    case = random_case(device, dtype)
    exact = Case(*(_upcast(part) for part in case))
    found, expected = results(ops, case), results(torch_ops, exact)
    differences = [_relative(a.float(), b) for a, b in zip(found, expected, strict=True)]
    return max(differences, key=lambda value: (value != value, value))


def results(ops: ModuleType, case: Case) -> list[Tensor]:
    """The results: query and cache after rotating and storing, attention of single queries, the gated product."""
    keys, values = case.keys.clone(), case.values.clone()
    slots = case.table[case.rows, case.positions]
    keys[slots], values[slots] = torch.nan, torch.nan
    with torch.inference_mode():
        query = ops.rotate_and_store(case.packed, case.angles, case.positions, slots, keys, values)
        attended = ops.attend_decoding(query, keys, values, case.table, case.rows, case.positions)
        return [query, keys, values, attended, ops.gated(case.gate_up)]


def random_case(device: torch.device, dtype: torch.dtype) -> Case:
    generator = torch.Generator().manual_seed(0)

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=generator).to(device, dtype)

    batch, longest, half = len(CONTEXTS), max(CONTEXTS), HEAD_DIM // 2
    slots = (batch + 1) * longest
    places = torch.randperm(slots, generator=generator)
    turns = torch.rand((longest, half), generator=generator) * 6.28
    return Case(
        packed=normal(batch, HEADS + 2 * KV_HEADS, HEAD_DIM),
        angles=(turns.cos().to(device), turns.sin().to(device)),
        positions=torch.tensor(CONTEXTS, device=device) - 1,
        table=places.view(batch + 1, longest).to(device),
        rows=torch.randperm(batch + 1, generator=generator)[:batch].to(device),
        keys=normal(slots, KV_HEADS, HEAD_DIM),
        values=normal(slots, KV_HEADS, HEAD_DIM),
        gate_up=normal(batch, 2 * INNER),
    )


def _upcast(part: Tensor | tuple[Tensor, Tensor]) -> Tensor | tuple[Tensor, Tensor]:
    return part.float() if isinstance(part, Tensor) and part.is_floating_point() else part


def _relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


if __name__ == "__main__":
    device, dtype = torch.device(sys.argv[1]), {"bf16": torch.bfloat16, "fp32": torch.float32}[sys.argv[2]]
    name = sys.argv[3] if len(sys.argv) > 3 else "triton" if device.type == "cuda" else "torch"
    sys.stdout.write(json.dumps({"difference": worst_difference(operations(name), device, dtype)}))
