"""Record the card's power, memory, utilisation and clocks twice a second into a CSV file, by NVML or nvidia-smi."""

from __future__ import annotations

import csv
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

FIELDS = ("power_w", "memory_used_bytes", "utilization", "sm_clock_mhz", "memory_clock_mhz", "temperature_c")
EVERY_S = 0.5
ASKED = "power.draw,memory.used,utilization.gpu,clocks.sm,clocks.mem,temperature.gpu"
Reading = tuple[float, ...]


class Watch:
    """Reads the card in a thread while open; `means` over a span become facts of a point. Idle without a card."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._read = reader()
        self._kept: list[tuple[float, Reading]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)

    def __enter__(self) -> Self:
        if self._read is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def means(self, start_s: float, stop_s: float) -> dict[str, float]:
        """Means of the readings between two times (time.time), named like the other server figures of points."""
        inside = [reading for at_s, reading in tuple(self._kept) if start_s <= at_s <= stop_s]
        if not inside:
            return {}
        columns = dict(zip(FIELDS, (sum(values) / len(inside) for values in zip(*inside, strict=True)), strict=True))
        return {
            "gpu_power_mean_w": columns["power_w"],
            "gpu_utilization_mean": columns["utilization"],
            "gpu_memory_used_bytes": columns["memory_used_bytes"],
            "gpu_sm_clock_mean_mhz": columns["sm_clock_mhz"],
        }

    def _watch(self) -> None:
        assert self._read is not None
        is_new = not self._file.exists()
        with self._file.open("a", newline="") as out:
            writer = csv.writer(out)
            if is_new:
                writer.writerow(("at_s", *FIELDS))
            while not self._over.wait(EVERY_S):
                at_s, reading = time.time(), self._read()
                if reading is not None:
                    self._kept.append((at_s, reading))
                    writer.writerow((f"{at_s:.2f}", *(f"{value:g}" for value in reading)))
                    out.flush()


def reader() -> Callable[[], Reading | None] | None:
    """How to read the card: by the NVML package, or else by nvidia-smi; None if there is no card."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    except ImportError:
        return _smi if _smi() is not None else None
    except pynvml.NVMLError:
        return None
    return lambda: _nvml(pynvml, handle)


def _nvml(pynvml: Any, handle: Any) -> Reading | None:
    try:
        return (
            pynvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            float(pynvml.nvmlDeviceGetMemoryInfo(handle).used),
            pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
            float(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)),
            float(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM)),
            float(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)),
        )
    except pynvml.NVMLError:
        return None


def _smi() -> Reading | None:
    command = ["nvidia-smi", f"--query-gpu={ASKED}", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False).stdout
        power, memory, busy, sm, mem, heat = (float(value) for value in said.splitlines()[0].split(","))
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError):
        return None
    return power, memory * 2**20, busy / 100, sm, mem, heat
