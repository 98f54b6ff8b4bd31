"""The measured sample inside aiconfigurator-core as series of points: one server, one pair of lengths, rising users.

Each row of the sample is one closed loop: model, GPU, precision, parallelism, engine, lengths, users, and the means of
TTFT and ITL over a whole run. Requests/s, which it does not tell, follow by Little's law. Rows taken from InferenceX,
most of which do not say so, have lengths uniform on 0.8 to 1.0 of the nominal ones; many are in the sample twice. Every
row left out has a fault of its own, and is counted.
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from sizing.points import Point
from validation.evidence.measured_tables import Cells, number, read_table, seconds

NAMES = ("model_path", "system", "precision", "backend", "backend_version")
SIZES = ("tp_size", "pp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
DENSE = ("Llama", "Qwen3-32B")
"""What is in the names of the sample's dense models; all others are mixtures of experts."""
ROUNDS = 10
"""Requests of each user, the burst of the first included."""
LEAST_LEVELS = 5
"""Four to fit and one to predict."""
LARGEST_SERVER = 8
"""GPUs of the servers that InferenceX measured one at a time (``multinode: false`` in its configurations)."""
FALLS = 0.9
"""A mean ITL below this share of that at fewer users: rows of several configurations under one name."""
SAME, SHARED = 0.005, 3
"""Series that share so many levels (the second), and whose figures there are all within the first, relative, are one
measurement under two names."""


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one server at one pair of lengths, by rising users. `server`: the cells of NAMES, then of SIZES.
    `varied`: whether the client was InferenceX's; `marked`: whether a row says so."""

    server: tuple[str, ...]
    lengths: tuple[str, str]
    varied: bool
    points: tuple[Point, ...]
    marked: bool = False

    @property
    def dense(self) -> bool:
        """False for a mixture of experts."""
        return any(name in self.server[0] for name in DENSE)

    @property
    def key(self) -> tuple[str, ...]:
        """What names the series."""
        return (*self.server, *self.lengths, str(self.marked))


@dataclass(frozen=True, slots=True)
class Sample:
    """The series that can be used, and how many rows were left out for which reason."""

    series: tuple[Series, ...]
    dropped: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        reasons = ", ".join(f"{count} {why}" for why, count in self.dropped)
        return f"{sum(len(one.points) for one in self.series)} rows in {len(self.series)} series; left out: {reasons}"


def is_kept_apart(key: tuple[str, ...]) -> bool:
    """True for the half of all series (or servers) that nothing was tuned on: by a hash of the name."""
    return int(hashlib.md5("|".join(key).encode(), usedforsecurity=False).hexdigest(), 16) % 2 == 1


def sample_path() -> Path | None:
    """The sample in the installed package; None where the package or the file is missing."""
    found = importlib.util.find_spec("aiconfigurator_core")
    if found is None or not found.submodule_search_locations:
        return None
    path = Path(found.submodule_search_locations[0]) / "systems" / "silicon_sample.csv"
    return path if path.is_file() else None


def read_sample(path: Path) -> Sample:
    """The usable rows of the sample."""
    return grouped(read_table(path))


def is_marked(row: Cells) -> bool:
    """True where a row says itself that it is of InferenceX: those bear the state of the work ("wip")."""
    return "wip=" in row["silicon_data_source"]


def of_inferencex(row: Cells) -> bool:
    """True if a row was taken from InferenceX, marked or not: only NVIDIA's own measurements are not."""
    return is_marked(row) or "aic-auto-gap-analysis" not in row["silicon_data_source"]


def grouped(table: Iterable[Cells]) -> Sample:
    """Rows by series; those that cannot be used are counted by reason."""
    dropped: Counter[str] = Counter()
    groups: dict[tuple[tuple[str, ...], tuple[str, str], bool], dict[int, Cells]] = {}
    marked: set[tuple[tuple[str, ...], tuple[str, str], bool]] = set()
    for row in table:
        if why := _useless(row):
            dropped[why] += 1
            continue
        server = *(row[key] or "nan" for key in NAMES), *(str(number(row, key)) for key in SIZES)
        name = (server, (row["isl"], row["osl"]), of_inferencex(row))
        if is_marked(row):
            marked.add(name)
        levels, users = groups.setdefault(name, {}), _users(row) or 1
        if users in levels:
            dropped["measured again later"] += 1
        if users not in levels or _date(row) >= _date(levels[users]):
            levels[users] = row
    found: list[Series] = []
    for name, levels in sorted(groups.items(), key=lambda group: _order(*group[0])):
        points = tuple(_point(name[0], levels[users], users, name[2]) for users in sorted(levels))
        series = Series(*name, points, name in marked)
        if why := _useless_series(series, found):
            dropped[why] += len(levels)
        else:
            found.append(series)
    return Sample(tuple(found), tuple(dropped.most_common()))


def _useless(row: Cells) -> str:
    """Why a row cannot be used; empty if it can."""
    if row["mode"] != "agg" or _is_of_pools(row):
        return "with prefill and decode on separate servers"
    users = _users(row)
    if users is None:
        return "without a concurrency"
    if users != number(row, "batch_size") * _ranks(row):
        return "whose concurrency is not the batch"
    return ""


def _is_of_pools(row: Cells) -> bool:
    """True where InferenceX's GPUs of all pools together stand as one TP: 72 of GB200 are three prefill servers of 8
    and one of 48 that decodes, by its configurations, and 128 heads are not divided by 72."""
    return of_inferencex(row) and number(row, "tp_size") > LARGEST_SERVER and number(row, "moe_ep_size") == 1


def _useless_series(series: Series, found: Iterable[Series]) -> str:
    if len(series.points) < LEAST_LEVELS:
        return f"of series with fewer than {LEAST_LEVELS} levels"
    itl_s = [point.itl_mean_s or 0.0 for point in series.points]
    if any(later < FALLS * earlier for earlier, later in pairwise(itl_s)):
        return "of series whose ITL falls by over 10 % with more users (several configurations under one name)"
    if any(_repeats(series, one) for one in found):
        return "of series that repeat another's figures"
    return ""


def _order(server: tuple[str, ...], lengths: tuple[str, str], varied: bool) -> tuple[object, ...]:
    """Of series with the same figures the first in this order stays: the one on the fewest GPUs."""
    sizes = (float(size) for size in server[len(NAMES) :])
    return *server[: len(NAMES)], *sizes, *map(float, lengths), varied


def _repeats(series: Series, other: Series) -> bool:
    own, others = ({point.load_value: point for point in one.points} for one in (series, other))
    shared = own.keys() & others
    return len(shared) >= SHARED and all(_is_same(own[users], others[users]) for users in shared)


def _is_same(point: Point, other: Point) -> bool:
    figures = (point.ttft_mean_s, other.ttft_mean_s), (point.itl_mean_s, other.itl_mean_s)
    return all(math.isclose(one or 0.0, two or 0.0, rel_tol=SAME) for one, two in figures)


def _users(row: Cells) -> int | None:
    found = re.search(r"silicon_concurrency=(\d+)", row["silicon_data_source"])
    return int(found[1]) if found else None


def _date(row: Cells) -> str:
    found = re.search(r"measured=(\S+?);", row["silicon_data_source"])
    return found[1] if found else ""


def _ranks(row: Cells) -> int:
    """Ranks of data-parallel attention, each with a batch of its own."""
    ranks = number(row, "attention_dp_size")
    return 1 if math.isnan(ranks) else round(ranks)


def _gpus(row: Cells, varied: bool) -> int:
    """GPUs of a server. InferenceX tells TP and EP of the same GPUs: its "tp: 8, ep: 8" is one server of eight, for
    which the sample has the product, a TP of 64 with experts split eight ways by matrix and eight ways whole."""
    gpus, split = round(number(row, "tp_size")) * _ranks(row), number(row, "moe_tp_size")
    return round(split) if varied and gpus > LARGEST_SERVER and split == number(row, "moe_ep_size") else gpus


def _point(server: tuple[str, ...], row: Cells, users: int, varied: bool) -> Point:
    model, gpu, precision, engine, version, *_ = server
    mean = 0.9 if varied else 1.0
    cv = 0.2 / math.sqrt(12) / mean if varied else 0.0
    osl = mean * number(row, "osl")
    ttft_s, itl_s = seconds(row, "silicon_ttft_ms"), seconds(row, "silicon_tpot_ms")
    return Point(
        model=model,
        precision=_precisions(model).get(precision, precision),
        gpu=gpu,
        tp=_gpus(row, varied),
        engine=engine,
        engine_version="" if version == "nan" else version,
        isl=mean * number(row, "isl"),
        osl=osl,
        isl_cv=cv,
        osl_cv=cv,
        load_kind="concurrency",
        load_value=users,
        requests=ROUNDS * users,
        requests_per_s=users / (ttft_s + (osl - 1) * itl_s),
        ttft_mean_s=ttft_s,
        itl_mean_s=itl_s,
    )


def _precisions(model: str) -> Mapping[str, str]:
    """The catalogue's names; rows that name none are taken for 16 bits."""
    return {"fp4": "mxfp4" if "gpt-oss" in model else "nvfp4", "nan": "bf16"}
