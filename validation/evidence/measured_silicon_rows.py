"""The measured sample inside aiconfigurator-core, by server: which rows of dense models can be used, and why not.

Each row of the sample is one load of one server: model, GPU, precision, TP, engine, lengths, concurrency, and the means
of TTFT and TPOT over a whole run. Runs taken from InferenceX have lengths uniform on 0.8 to 1.0 of the nominal ones.
"""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from validation.evidence.measured_tables import Cells, number, read_table, seconds

SHAPES = MappingProxyType(
    {
        "Qwen/Qwen3-32B": "Qwen/Qwen3-32B",
        "meta-llama/Llama-3.1-70B": "meta-llama/Meta-Llama-3.1-70B",
        "meta-llama/Llama-3.1-8B-Instruct": "meta-llama/Meta-Llama-3.1-8B",
        "nvidia/Llama-3.1-8B-Instruct-FP8": "meta-llama/Meta-Llama-3.1-8B",
    }
)
"""The dense models of the sample, and the models of the catalogue with the same shape."""
PRECISIONS = MappingProxyType({"fp8": "fp8", "fp4": "nvfp4", "": "bf16"})
"""Rows that name no precision are taken for the checkpoint's own; only the size of the KV cache follows from it."""
LEAST_ROWS = 8
KEYS = ("model_path", "system", "precision", "backend", "backend_version", "tp_size")


@dataclass(frozen=True, slots=True)
class Load:
    """One row: lengths in tokens, users of the closed loop, and the measured means in seconds.

    `shortest`: lengths are uniform from this share of the nominal ones to all of them; 1 for equal lengths.
    """

    isl: int
    osl: int
    users: int
    ttft_s: float
    itl_s: float
    shortest: float


@dataclass(frozen=True, slots=True)
class Group:
    """The loads of one server. `shape`: its model in the catalogue; `precision` in the catalogue's spelling."""

    model: str
    shape: str
    gpu: str
    precision: str
    engine: str
    tp: int
    loads: tuple[Load, ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """The groups with enough rows, and how many rows were left out for which reason."""

    groups: tuple[Group, ...]
    dropped: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        reasons = ", ".join(f"{count} {why}" for why, count in self.dropped)
        return f"{len(self.groups)} groups; rows left out: {reasons}"


def sample_path() -> Path | None:
    """The sample in the installed package; None where the package or the file is missing."""
    found = importlib.util.find_spec("aiconfigurator_core")
    if found is None or not found.submodule_search_locations:
        return None
    path = Path(found.submodule_search_locations[0]) / "systems" / "silicon_sample.csv"
    return path if path.is_file() else None


def read_sample(path: Path) -> Sample:
    """The usable rows of the sample, by server."""
    return grouped(read_table(path))


def grouped(table: Iterable[Cells]) -> Sample:
    """Rows by server; those that cannot be used are counted by reason."""
    dropped: Counter[str] = Counter()
    groups: dict[tuple[str, ...], list[Load]] = {}
    for row in table:
        if why := _useless(row):
            dropped[why] += 1
        else:
            groups.setdefault(tuple(row[key] for key in KEYS), []).append(_load(row))
    enough = {key: loads for key, loads in groups.items() if len(loads) >= LEAST_ROWS}
    dropped["of servers with fewer than 8 rows"] = sum(map(len, groups.values())) - sum(map(len, enough.values()))
    return Sample(tuple(_group(key, loads) for key, loads in enough.items()), tuple(dropped.most_common()))


def _useless(row: Cells) -> str:
    """Why a row cannot be used; empty if it can."""
    if row["model_path"] not in SHAPES:
        return "of mixtures of experts"
    if row["mode"] != "agg":
        return "with prefill and decode on separate servers"
    if row["precision"] not in PRECISIONS:
        return "in an unknown precision"
    users = _concurrency(row)
    if users is None:
        return "without a concurrency"
    if users != number(row, "batch_size"):
        return "whose concurrency is not the batch"
    return ""


def _concurrency(row: Cells) -> int | None:
    found = re.search(r"silicon_concurrency=(\d+)", row["silicon_data_source"])
    return int(found[1]) if found else None


def _load(row: Cells) -> Load:
    # InferenceX marks its rows with the state of the work ("wip"); its client draws lengths from 0.8 to 1.0.
    varied = "wip=" in row["silicon_data_source"]
    return Load(
        isl=round(number(row, "isl")),
        osl=round(number(row, "osl")),
        users=_concurrency(row) or 1,
        ttft_s=seconds(row, "silicon_ttft_ms"),
        itl_s=seconds(row, "silicon_tpot_ms"),
        shortest=0.8 if varied else 1.0,
    )


def _group(key: tuple[str, ...], loads: list[Load]) -> Group:
    model, gpu, precision, engine, _, tp = key
    return Group(model, SHAPES[model], gpu, PRECISIONS[precision], engine, round(float(tp)), tuple(loads))
