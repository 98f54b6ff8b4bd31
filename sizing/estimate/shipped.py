"""Laws and memory fitted beforehand to the kernel timings of every catalogued model, read from data/laws/day_zero.csv.

They answer at once, also where the kernel database cannot be installed. Written by sizing/estimate/build_laws.py.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from sizing.catalog import gpus
from sizing.errors import CatalogueError, EstimateUnavailable
from sizing.estimate.memory import KV_LENGTHS, Memory
from sizing.estimate.timed import Timed
from sizing.steptime import StepLaw

LAWS = Path(__file__).resolve().parents[2] / "data" / "laws" / "day_zero.csv"
KEY = ("model", "gpu", "tp", "precision")
TIMES = ("weights_s", "overhead_s", "token_s", "sequence_s", "kv_token_s", "attention_s", "prefill_s")
SHARES = ("unread", "unread_decay", "mean_error", "rms_error")
BYTES = ("fixed_bytes", "budget_token_bytes", *(f"kv_{length}_bytes" for length in KV_LENGTHS))
COLUMNS = (*KEY, "engine", "engine_version", *TIMES, *SHARES, *BYTES, "why_not")
"""`why_not`: why there are no timings; then all columns between the key and this one are empty."""
DISTRIBUTION, VERSION = "aiconfigurator-core", "0.12.0"

Key = tuple[str, str, int, str]


def current() -> bool:
    """True unless another version of the kernel database is installed, whose timings then count."""
    try:
        return version(DISTRIBUTION) == VERSION
    except PackageNotFoundError:
        return True


def shipped(model: str, gpu: str, tp: int, precision: str) -> Timed | None:
    """What the shipped table holds; None if it has no such row.

    Raises EstimateUnavailable, with the reason, where the database was asked and had no timings.
    """
    row = rows().get((model, gpu, tp, precision))
    if row is None:
        return None
    if row["why_not"]:
        raise EstimateUnavailable(row["why_not"])
    return timed_of(row)


@cache
def rows() -> Mapping[Key, Mapping[str, str]]:
    """All rows as text, by model, GPU, TP and precision. Raises CatalogueError if the file is faulty."""
    try:
        with LAWS.open(newline="", encoding="utf-8") as file:
            table = list(csv.DictReader(line for line in file if not line.startswith("#")))
    except OSError as error:
        raise CatalogueError(f"{LAWS}: cannot be read ({error.strerror}); write it with {BUILD}") from None
    if table and tuple(table[0]) != COLUMNS:
        raise CatalogueError(f"{LAWS}: its columns are not those of this version; write it again with {BUILD}")
    return {(row["model"], row["gpu"], int(row["tp"]), row["precision"]): row for row in table}


BUILD = "python -m sizing.estimate.build_laws"


def timed_of(row: Mapping[str, str]) -> Timed:
    """A row's engine, law and memory."""
    unread = {name: float(row[name]) for name in ("unread", "unread_decay")}
    law = StepLaw(**{name: float(row[name]) for name in TIMES}, **unread)
    mean_error, rms_error = float(row["mean_error"]), float(row["rms_error"])
    neighbour = partial(_memory_of, row["model"], row["gpu"], row["precision"], row["engine"])
    return Timed(row["engine"], row["engine_version"], law, mean_error, rms_error, memory_of(row), neighbour)


def memory_of(row: Mapping[str, str]) -> Memory:
    """Memory of one GPU of a row."""
    fixed, budget_token, *sequence = (float(row[name]) for name in BYTES)
    return Memory(row["engine"], gpus()[row["gpu"]].memory_bytes, fixed, budget_token, tuple(sequence))


def _memory_of(model: str, gpu: str, precision: str, engine: str, tp: int) -> Memory | None:
    row = rows().get((model, gpu, tp, precision))
    return memory_of(row) if row and row["engine"] == engine else None


def row_of(key: Key, timed: Timed) -> dict[str, str]:
    """The row that `timed_of` reads back: times with six digits, far more than any timing has, bytes with nine."""
    memory = timed.memory
    numbers = {
        **{name: getattr(timed.law, name) for name in (*TIMES, *SHARES[:2])},
        **{name: getattr(timed, name) for name in SHARES[2:]},
        **dict(zip(BYTES[:2], (memory.fixed_bytes, memory.budget_token_bytes), strict=True)),
        **dict(zip(BYTES[2:], memory.sequence_bytes_at, strict=True)),
    }
    texts = {name: f"{value:.9g}" if name in BYTES else f"{value:.6g}" for name, value in numbers.items()}
    named = dict(zip(KEY, map(str, key), strict=True))
    return {**named, "engine": timed.backend, "engine_version": timed.version, **texts, "why_not": ""}
