"""The times of the engine's forward passes by CUDA events, and what was in them, written as CSV while it runs."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from lab.reference.engine.transformer import Pass

COLUMNS = ("at_s", "decoding", "reading", "chunks", "context_tokens", "pass_s", "since_last_s")
KEPT_AT_ONCE = 64


class Timed(NamedTuple):
    """A pass that has begun: `at_s` by the clock, `since_last_s` after the last one, and what it computes."""

    at_s: float
    since_last_s: float
    decoding: int
    reading: int
    chunks: int
    positions: Tensor
    span_s: Callable[[], float]


class PassTimes:
    """Is called when passes begin and end; every `every`th of them is written to `file`, 64 at a time.

    `pass_s` is the time on the device: between two CUDA events, or by the clock on a CPU. `since_last_s` is the time
    from the beginning of one pass to the beginning of the next in the engine's thread: it exceeds `pass_s` by the cost
    of scheduling, packing and handing out tokens. `context_tokens` are the tokens that the decoding requests attend to.
    """

    def __init__(self, file: Path, device: torch.device, every: int = 4) -> None:
        self._file, self._every = file, every
        self._is_cuda = device.type == "cuda"
        self._count, self._last_s = 0, 0.0
        self._open: Callable[[], None] | None = None
        self._kept: list[Timed] = []
        with file.open("w", newline="") as out:
            csv.writer(out).writerow(COLUMNS)

    def begin(self, step: Pass) -> None:
        now_s, last_s = time.perf_counter(), self._last_s
        self._last_s = now_s
        self._count += 1
        if self._count % self._every:
            return
        span_s, self._open = self._cuda_span() if self._is_cuda else _cpu_span(now_s)
        reading = sum(chunk.rows for chunk in step.chunks)
        positions = step.positions[: step.decoding]
        since_s = now_s - last_s if last_s else 0.0
        timed = Timed(time.time(), since_s, step.decoding, reading, len(step.chunks), positions, span_s)
        self._kept.append(timed)

    def end(self) -> None:
        if self._open is not None:
            self._open()
            self._open = None
        if len(self._kept) > KEPT_AT_ONCE:  # the newest may still be computed
            done, self._kept = self._kept[:-1], self._kept[-1:]
            self._write(done)

    def _cuda_span(self) -> tuple[Callable[[], float], Callable[[], None]]:
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        return lambda: float(first.elapsed_time(last)) / 1000, last.record

    def _write(self, done: list[Timed]) -> None:
        contexts = torch.stack([(kept.positions + 1).sum() for kept in done]).tolist()
        with self._file.open("a", newline="") as out:
            writer = csv.writer(out)
            for kept, context in zip(done, contexts, strict=True):
                held = (f"{kept.at_s:.4f}", kept.decoding, kept.reading, kept.chunks, context)
                writer.writerow((*held, f"{kept.span_s():.6f}", f"{kept.since_last_s:.6f}"))


def _cpu_span(start_s: float) -> tuple[Callable[[], float], Callable[[], None]]:
    ends_s: list[float] = []
    return lambda: ends_s[0] - start_s, lambda: ends_s.append(time.perf_counter())
