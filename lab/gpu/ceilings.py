"""The most that this card can do, in copies and in bf16 matrix products, and what it is: driver, clocks, versions.

As a program, `python -m lab.gpu.ceilings cuda`, it prints one line of JSON.
"""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch

ASKED = (
    "name,driver_version,memory.total,power.limit,clocks.sm,clocks.max.sm,clocks.mem,clocks.max.mem,temperature.gpu,"
    "compute_mode,persistence_mode"
)
REPEATS = 10


def measure(device: str) -> dict[str, object]:
    """Medians of ten calls, after three that are not counted. Copies count the bytes read and the bytes written."""
    is_cuda = device == "cuda"
    count, size = (2**31, 8192) if is_cuda else (2**24, 768)
    source = torch.empty(count, dtype=torch.bfloat16, device=device).normal_()
    target = torch.empty_like(source)
    copy_s = timed(lambda: target.copy_(source), is_cuda)
    read_s = timed(lambda: torch.amax(source), is_cuda)
    left, right = (torch.randn(size, size, device=device).bfloat16() for _ in range(2))
    product_s = timed(lambda: left @ right, is_cuda)
    memory = torch.cuda.get_device_properties(0).total_memory if is_cuda else 0
    return {
        "copy_bytes_per_s": 2 * source.nbytes / copy_s,
        "read_bytes_per_s": source.nbytes / read_s,
        "bf16_flops_per_s": 2 * size**3 / product_s,
        "product_size": size,
        "memory_bytes": memory,
        "environment": environment(is_cuda),
    }


def timed(work: Callable[[], object], is_cuda: bool) -> float:
    """Seconds of one call, the median of ten, timed by events on a GPU and by the clock elsewhere."""
    for _ in range(3):
        work()
    return statistics.median(_once(work, is_cuda) for _ in range(REPEATS))


def _once(work: Callable[[], object], is_cuda: bool) -> float:
    if not is_cuda:
        start_s = time.perf_counter()
        work()
        return time.perf_counter() - start_s
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    work()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) / 1000


def environment(is_cuda: bool) -> dict[str, str]:
    """Versions, and what nvidia-smi says about the card; the host's name is left out."""
    found = {"python": platform.python_version(), "torch": str(torch.__version__), "cuda": str(torch.version.cuda)}
    found["system"] = f"{platform.system()} {platform.release()} {platform.machine()}"
    if is_cuda:
        found |= {"device": torch.cuda.get_device_name(), **card()}
    return found


def card() -> dict[str, str]:
    """What nvidia-smi reports, by field; empty if there is no nvidia-smi."""
    command = ["nvidia-smi", f"--query-gpu={ASKED}", "--format=csv,noheader"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return {}
    values = [value.strip() for value in said.splitlines()[0].split(",")] if said.strip() else []
    return dict(zip(ASKED.split(","), values, strict=False))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(sys.argv[1])))
