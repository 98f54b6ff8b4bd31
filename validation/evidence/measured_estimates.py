"""Day-zero estimates against the measured sample: what a server is told to do before anything of it was measured.

Of all rows whose engine has kernels in their own layout, whole groups are left out of the fit of effects (see
silicon_fit) and predicted: each pair of model and GPU, each model, each GPU. Beside each stand the kernels of the row's
own engine without effects, the estimate that a fit leans on, and the latencies that the kernel database's own library
gives the same layout and batch: all on the same rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from sizing.catalog import Layout, of_shape
from sizing.estimate import KERNEL_SIGMA, kernels, prior_law
from sizing.fitting.levels import concurrency
from sizing.numbers import Floats
from sizing.stats import Z90
from validation.evidence.claim import Claim, Setup
from validation.evidence.measured_silicon import DATA
from validation.evidence.measured_silicon_rows import sample_path
from validation.evidence.silicon_fit import (
    LEFT_OUT,
    METRICS,
    Row,
    Studies,
    figures,
    left_sigmas,
    predicted,
    read_rows,
)
from validation.evidence.table import EvidenceRow, Goal, beside, missing, noted, row_of_band, row_of_errors, shown

CALLED = {"ttft": "TTFT mean", "itl": "ITL mean", "requests": "requests/s"}
KINDS = {"dense": "dense servers", "moe_hopper": "mixtures on Hopper", "moe_blackwell": "mixtures on Blackwell"}
ALONE = {"dense": "dense", "moe_hopper": "moe", "moe_blackwell": "moe_blackwell"}
"""The class of KERNEL_SIGMA."""
GOALS = {
    ("dense", "itl"): Goal(0.08),
    ("dense", "ttft"): Goal(0.20),
    ("moe_hopper", "itl"): Goal(0.10),
    ("moe_hopper", "ttft"): Goal(0.25),
    ("moe_blackwell", "itl"): Goal(0.10),
    ("moe_blackwell", "ttft"): Goal(0.25),
}
"""Of medians, with model and GPU left out."""
SHORT = {"both": "model and GPU left out", "model": "model left out", "gpu": "GPU left out"}
LIBRARY = "AIConfigurator"


@dataclass(frozen=True, slots=True)
class Case:
    """The whole sample: everything is fitted to the rest of it. `every`: one series in so many."""

    every: int


class Found(NamedTuple):
    """Of each row its class, ln of METRICS predicted over measured, shape (rows, 3), by what was left out and by the
    rivals, and the standard errors told by the other groups; then a line on the rows left out."""

    kinds: NDArray[np.str_]
    off: dict[str, Floats]
    rivals: dict[str, Floats]
    sigmas: dict[str, Floats]
    note: str


def cases(setup: Setup) -> list[Case]:
    """One; none without the sample."""
    return [Case(8 if setup.quick else 1)] if sample_path() and kernels.available() else []


def answer(case: Case, seed: SeedSequence) -> Found:
    """Fit, leave out, predict."""
    path = sample_path()
    assert path is not None
    rows, dropped = read_rows(path, case.every)
    accounts = [(row, library_s(row)) for row in rows]
    dropped["of which the library has no account"] += sum(account is None for _, account in accounts)
    rows = [row for row, account in accounts if account]
    studies, points = Studies(rows), [row.point for row in rows]
    kinds = studies.kinds()
    told = [prior_law(point.deployment, point.lengths) for point in points]
    known = [one.law if one and one.law else row.law for one, row in zip(told, rows, strict=True)]
    memory = [one.kv_tokens if one and one.kv_tokens else 10**9 for one in told]
    rivals = {
        "own kernels": predicted([row.law for row in rows], [row.kv_tokens for row in rows], points),
        "kernels of the shipped table": predicted(known, memory, points),
        LIBRARY: figures(np.array([account for _, account in accounts if account]), points),
    }
    why = ", ".join(f"{count} {reason}" for reason, count in dropped.most_common())
    return Found(
        kinds,
        dict(studies.off),
        {name: values - studies.measured for name, values in rivals.items()},
        {left_out: left_sigmas(off, kinds, studies.groups(left_out)) for left_out, off in studies.off.items()},
        f"{len(rows)} rows; of usable series left out: {why}",
    )


def library_s(row: Row) -> tuple[float, float] | None:
    """Mean TTFT and ITL in seconds by the library's own account of a batch in flight (run_agg): the row's layout and
    users, iterations with one prompt each, its default. None where it lacks a kernel that the engine's steps do not."""
    from aisimulate_core.sdk import RuntimeConfig

    server, point = row.server, row.point
    built, database, backend = _library(point.model, server.gpu, server.engine, row.layout, server.precision)
    asked = RuntimeConfig(
        isl=round(point.isl), osl=round(point.osl), batch_size=concurrency(point), prefix=0, beam_width=1
    )
    try:
        found = backend.run_agg(built, database, asked, ctx_tokens=round(point.isl)).get_result_dict()
    except RuntimeError:
        return None
    return float(found["ttft"]) / 1e3, float(found["tpot"]) / 1e3


@cache
def _library(served: str, gpu: str, engine: str, layout: Layout, precision: str) -> tuple[Any, Any, Any]:
    from aisimulate_core.sdk.backends.factory import get_backend
    from aisimulate_core.sdk.config_builders import build_model_config
    from aisimulate_core.sdk.models import get_model
    from aisimulate_core.sdk.perf_database import get_database

    model = of_shape(served)
    assert model is not None
    opened = kernels.open_engine(model, gpu, engine, layout, precision)
    experts = layout.tp * layout.dp // layout.ep, layout.ep
    quants: dict[str, Any] = {name: mode for name, mode in opened.settings if name.endswith("quant_mode")}
    built = get_model(model.id, build_model_config(layout.tp, layout.pp, layout.dp, *experts, **quants), engine)
    return built, get_database(gpu, engine, "current"), get_backend(engine)


def rows(cases: Sequence[Case], answers: Sequence[Found]) -> list[EvidenceRow]:
    """Errors by what was left out, class and metric, then how often the bands hold."""
    if not answers:
        return [missing("estimates, dense servers", DATA, "ITL mean", "the sample or the kernel timings are not here")]
    (found,) = answers
    present = [kind for kind in KINDS if kind in found.kinds]
    errors = [_errors(found, left_out, kind, metric) for left_out in LEFT_OUT for kind in present for metric in CALLED]
    bands = [_band(found, kind, metric) for kind in present for metric in CALLED]
    return [noted(errors[0], found.note), *errors[1:], *bands]


def _errors(found: Found, left_out: str, kind: str, metric: str) -> EvidenceRow:
    of_kind, place = found.kinds == kind, METRICS.index(metric)
    goal = GOALS.get((kind, metric)) if left_out == "both" else None
    name = f"estimates, {KINDS[kind]}, {SHORT[left_out]}"
    row = row_of_errors(name, DATA, CALLED[metric], _signed(found.off[left_out][of_kind, place], metric), goal)
    for rival, off in found.rivals.items():
        ahead = left_out == "both" and rival == LIBRARY
        row = beside(row, rival, _signed(off[of_kind, place], metric), never_worse=ahead)
    return row


def _signed(off: Floats, metric: str) -> list[float]:
    """Relative errors, above 0 where more is promised: more requests/s, or shorter times."""
    errors: list[float] = (np.expm1(off) if metric == "requests" else -np.expm1(off)).tolist()
    return errors


def _band(found: Found, kind: str, metric: str) -> EvidenceRow:
    of_kind, place = found.kinds == kind, METRICS.index(metric)

    def told(left_out: str) -> tuple[Floats, NDArray[np.bool_], Floats]:
        off = found.off[left_out][of_kind, place]
        half = Z90 * found.sigmas[left_out][of_kind, place]
        return np.expm1(off), np.abs(off) <= half, np.sinh(half)

    name = f"band, estimates, {KINDS[kind]}, {SHORT['both']}"
    row = row_of_band(name, DATA, CALLED[metric], *told("both"))
    row = noted(row, f"of kernels alone ± {shown(float(np.sinh(Z90 * KERNEL_SIGMA[ALONE[kind]])))}")
    for left_out in LEFT_OUT[1:]:
        _, held, half = told(left_out)
        row = noted(row, f"{SHORT[left_out]}: {shown(float(np.mean(held)))}, ± {shown(float(np.mean(half)))}")
    return row


ESTIMATES = Claim("estimates-on-silicon", cases, answer, rows)
