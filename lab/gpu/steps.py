"""Decode steps by their number of sequences, from the times when the tokens of a measurement arrived.

A request gets a token from every iteration that it is in, so the time between two of its tokens is that of an
iteration; of one that only decodes, if no other request got its first token meanwhile. Delays of single tokens on their
way to the client cancel out in the median.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, get_type_hints

import numpy as np

from calibration.records import RequestLog
from sizing.numbers import Floats
from sizing.points import Point

LATE_S = 5e-3
"""A first token reaches the client at most this much later than the other tokens of its iteration."""
BATCHES = (1, 2, 4, 8, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128, 192, 256)
"""Upper ends of the groups of batches: vLLM's kernels for fp8 change at 16, 64 and 128."""
FEWEST = 100
"""Least number of gaps in a group that is shown."""


class DecodeSteps(NamedTuple):
    """Steps with more than `above` and at most `most` sequences: how many tokens show them, their mean number of
    sequences, and the median of their times in seconds."""

    model: str
    precision: str
    isl: float
    osl: float
    above: int
    most: int
    tokens: int
    sequences: float
    median_s: float


def decode_gaps(log: RequestLog) -> tuple[Floats, Floats]:
    """For each pair of tokens between which the engine only decoded: its sequences, and the seconds between the tokens,
    both of shape (pairs,)."""
    served = (log.chunks > 1) & ~log.failed
    starts_s = np.sort(log.chunk_at_s[log.begins])
    lasts_s = np.sort(log.chunk_at_s[np.cumsum(log.chunks)[log.chunks > 0] - 1])
    after = np.flatnonzero(np.repeat(served, log.chunks) & ~log.begins)
    before_s, after_s = log.chunk_at_s[after - 1], log.chunk_at_s[after]
    begun = np.searchsorted(starts_s, before_s, "right")
    sequences = begun - np.searchsorted(lasts_s, before_s, "right")
    alone = np.searchsorted(starts_s, after_s + LATE_S) == np.searchsorted(starts_s, before_s - LATE_S)
    return sequences[alone].astype(float), (after_s - before_s)[alone]


def decode_steps(measured: Iterable[tuple[Point, RequestLog]]) -> list[DecodeSteps]:
    """The steps of all levels together, by model, precision and lengths."""
    gaps: dict[tuple[str, str, float, float], list[tuple[Floats, Floats]]] = {}
    for point, log in measured:
        gaps.setdefault((point.model, point.precision, point.isl, point.osl), []).append(decode_gaps(log))
    found = []
    for of, parts in gaps.items():
        sequences, gap_s = (np.concatenate(column) for column in zip(*parts, strict=True))
        for above, most in zip((0, *BATCHES), BATCHES, strict=False):
            own = (sequences > above) & (sequences <= most)
            if own.sum() >= FEWEST:
                middle_s = float(np.median(gap_s[own]))
                found.append(DecodeSteps(*of, above, most, int(own.sum()), float(sequences[own].mean()), middle_s))
    return found


def write_steps(path: Path, steps: Iterable[DecodeSteps]) -> None:
    """Write the steps as a table."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(DecodeSteps._fields)
        writer.writerows((*step[:-2], f"{step.sequences:.2f}", f"{step.median_s:.6f}") for step in steps)


def read_steps(path: Path) -> list[DecodeSteps]:
    """Read what `write_steps` wrote; empty if there is no such table."""
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))[1:]
    kinds = get_type_hints(DecodeSteps).values()
    return [DecodeSteps._make(kind(cell) for kind, cell in zip(kinds, row, strict=True)) for row in rows]
