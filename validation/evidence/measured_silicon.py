"""Measured servers of the kernel database's own sample: the law fitted to six loads of each, the other loads predicted.

Every load is a closed loop whose users start together and send ten requests each; the sample holds the means over all
of them, the burst of the start included. Fit and prediction repeat that: they speak of the whole run, not of a steady
state. How the engine forms its iterations is told by its name, as in its defaults.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.random import SeedSequence

from sizing import catalog
from sizing.engine import Batching, Policy
from sizing.errors import CatalogueError, EstimateUnavailable
from sizing.estimate import kernels
from sizing.fitting import Protocol, fit
from sizing.numbers import percent
from sizing.points import Point
from validation.evidence.claim import Claim, Setup
from validation.evidence.measured_design import spread
from validation.evidence.measured_silicon_rows import Group, Load, read_sample, sample_path
from validation.evidence.table import EvidenceRow, Goal, missing, row_of_errors

NAME, DATA = "dense servers", "sample in aiconfigurator-core"
ROUNDS = 10
"""Requests of each user, the burst of the first included."""
PROTOCOL = Protocol(start="together", counted="all", ttft_sigma=0.2)
POLICIES: Mapping[str, Policy] = MappingProxyType(
    {"vllm": "chunked", "trtllm": "whole_prompt", "sglang": "prefill_first"}
)
SLOTS = 512
TOKEN_BUDGET = 8192
TPOT_GOAL = Goal(median=0.04)


class Errors(NamedTuple):
    """Relative errors of the loads predicted, above 0 where the prediction is too short."""

    tpot: list[float]
    ttft: list[float]


def cases(setup: Setup) -> list[Group]:
    """The servers of the installed sample; quick: one in eight. None without the sample."""
    path = sample_path()
    return list(read_sample(path).groups[:: 8 if setup.quick else 1]) if path else []


def answer(case: Group, seed: SeedSequence) -> Errors:
    """Fit six loads spread over lengths and concurrency; predict those not above the highest concurrency fitted."""
    points = [_point(case, load) for load in case.loads]
    chosen = spread(np.array([[load.isl, load.osl, load.users] for load in case.loads], float))
    most_users = max(case.loads[place].users for place in chosen)
    others = [p for p in range(len(points)) if p not in chosen and case.loads[p].users <= most_users]
    fitted = fit([points[place] for place in chosen], batching=_batching(case), protocol=PROTOCOL)
    predicted = fitted.means([points[place] for place in others])[:, 1:3]
    measured = np.array([[case.loads[place].ttft_s, case.loads[place].itl_s] for place in others])
    ttft, tpot = (1 - predicted / measured).T.tolist()
    return Errors(tpot, ttft)


def _point(group: Group, load: Load) -> Point:
    """The load as a point; requests/s, which the sample does not tell, by Little's law."""
    mean = (1 + load.shortest) / 2
    cv = (1 - load.shortest) / math.sqrt(12) / mean
    osl = mean * load.osl
    return Point(
        model=group.model,
        precision=group.precision,
        gpu=group.gpu,
        tp=group.tp,
        engine=group.engine,
        max_batch_size=SLOTS,
        isl=mean * load.isl,
        osl=osl,
        isl_cv=cv,
        osl_cv=cv,
        load_kind="concurrency",
        load_value=load.users,
        requests=ROUNDS * load.users,
        requests_per_s=load.users / (load.ttft_s + (osl - 1) * load.itl_s),
        ttft_mean_s=load.ttft_s,
        itl_mean_s=load.itl_s,
    )


def _batching(group: Group) -> Batching:
    """The engine's rule, with the KV cache by the memory model of the kernel database (unknown where that fails)."""
    rule = Batching(POLICIES[group.engine], SLOTS, TOKEN_BUDGET)
    try:
        engine = kernels.open_engine(catalog.model(group.shape), group.gpu, group.engine, group.tp, group.precision)
    except (CatalogueError, EstimateUnavailable):
        return rule
    longest = max(load.isl + load.osl for load in group.loads)
    return replace(rule, kv_tokens=kernels.memory(engine, group.tp).kv_tokens(longest, rule.token_budget))


def rows(cases: Sequence[Group], answers: Sequence[Errors]) -> list[EvidenceRow]:
    """TPOT and TTFT over all servers."""
    path = sample_path()
    if path is None or not answers:
        return [missing(NAME, DATA, "TPOT, TTFT", "aiconfigurator-core is not installed", TPOT_GOAL)]
    tpot = [error for found in answers for error in found.tpot]
    ttft = [error for found in answers for error in found.ttft]
    left_out = str(read_sample(path))
    return [
        row_of_errors(NAME, DATA, "TPOT mean", tpot, TPOT_GOAL, f"{_mean(tpot)}; the sample: {left_out}"),
        row_of_errors(NAME, DATA, "TTFT mean", ttft, note=_mean(ttft)),
    ]


def _mean(errors: Sequence[float]) -> str:
    """The mean error, which the library's own accuracy is published as."""
    return f"mean {percent(float(np.mean(np.abs(errors))))}"


SILICON = Claim("measured-silicon", cases, answer, rows)
