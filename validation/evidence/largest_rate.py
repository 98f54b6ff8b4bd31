"""The largest rate a replica carries under an SLA: what eight measured points tell of it, against the engine itself.

The answer goes the product's way: closed-loop points with 2 % noise at two contrasting lengths, the fitted law, the
largest rate by simulation and by formula, and beside them the rule of means. The truth is the same engine simulated
with its true law, other random numbers and more requests. Twelve policies and mixes, lengths equal and lognormal, p95
and p99 of seven pairs of limits: 336 questions, each with a calibration of its own, so that the luck of one does not
decide fourteen answers. The rough engine is one that no law of ours describes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.random import SeedSequence

from sizing.edge import BY_FORMULA, BY_SIMULATION, Method, SlaMissed
from sizing.engine import Replica
from sizing.errors import RequestTooLong
from sizing.explain import most_per_s
from sizing.fitting import fit
from sizing.question import Setting
from sizing.simulator import simulated_stable_rate_per_s
from sizing.workload import Lengths, Limit, Sla, Workload
from validation.evidence.claim import Claim, Setup
from validation.evidence.server import (
    CONTRASTING,
    LAW,
    POLICIES,
    PROMPTS_AND_ANSWERS,
    Design,
    calibrate,
    lengths_of,
    rough,
    true_rate_per_s,
    whole_number,
)
from validation.evidence.table import EvidenceRow, Goal, row_of_errors

MIXES = ((128, 128), (1000, 1000), (2000, 256), (200, 1000))
LIMITS_S = ((0.1, 0.015), (0.15, 0.010), (0.2, 0.012), (0.3, 0.020), (0.5, 0.030), (1.0, 0.025), (2.0, 0.050))
SLAS = tuple(
    Sla(Limit("ttft", percentile, ttft_s), Limit("itl", percentile, itl_s))
    for percentile in (95, 99)
    for ttft_s, itl_s in LIMITS_S
)
FEASIBLE = 0.05
"""Share of the stable rate below which an SLA counts as not met: there it is at the floor of the unloaded engine."""


@dataclass(frozen=True, slots=True)
class Case:
    """One engine, one law of lengths, and the questions about it."""

    server: Replica
    lengths: Lengths
    slas: tuple[Sla, ...]
    requests: int

    @property
    def is_rough(self) -> bool:
        return self.server.rough.padding > 1


class Answer(NamedTuple):
    """Requests/s per replica under one SLA; 0 where it is not met. `stable`: the most without an SLA.

    `simulated`, `analytic` and `by_means` go by the law fitted to short and long requests, `apart` by one fitted to a
    mix of long prompts and one of long answers, `formula` by the true law: what it errs by itself.
    """

    truth: float
    simulated: float
    apart: float
    analytic: float
    formula: float
    by_means: float
    stable: float


def cases(setup: Setup) -> list[Case]:
    """24 cases of 14 SLAs for the true engine, 16 for the rough one; quick: 3 and 1 of 4."""
    smooth = list(_cases([Replica(LAW, rule) for rule in POLICIES], 400_000))
    other = list(_cases([rough(Replica(LAW, rule)) for rule in (POLICIES[0], POLICIES[2])], 200_000))
    if not setup.quick:
        return smooth + other
    return [
        Case(case.server, case.lengths, SLAS[3:12:3], 60_000) for case in (smooth[1], smooth[12], smooth[21], other[11])
    ]


def _cases(servers: Sequence[Replica], requests: int) -> Iterator[Case]:
    for server in servers:
        for isl, osl in MIXES:
            for varied in (False, True):
                yield Case(server, lengths_of(isl, osl, varied), SLAS, requests)


def answer(case: Case, seed: SeedSequence) -> list[Answer]:
    """For every SLA: calibrate, fit, and ask."""
    of_truth, *calibrations = seed.spawn(1 + len(case.slas))
    stable_per_s = simulated_stable_rate_per_s(case.server, case.lengths)
    answers = []
    for sla, of_calibration in zip(case.slas, calibrations, strict=True):
        setting = Setting(Workload(case.lengths, 1.0), sla, "random")
        fitted = _fitted(case, CONTRASTING, of_calibration)
        apart = _fitted(case, PROMPTS_AND_ANSWERS, of_calibration)
        answers.append(
            Answer(
                truth=true_rate_per_s(case.server, setting, case.requests, whole_number(of_truth)),
                simulated=carried_per_s(BY_SIMULATION, fitted, setting),
                apart=carried_per_s(BY_SIMULATION, apart, setting),
                analytic=carried_per_s(BY_FORMULA, fitted, setting),
                formula=carried_per_s(BY_FORMULA, case.server, setting),
                by_means=by_means_per_s(fitted, setting),
                stable=stable_per_s,
            )
        )
    return answers


def _fitted(case: Case, design: Design, seed: SeedSequence) -> Replica:
    points = calibrate(case.server, design, not case.lengths.fixed, np.random.default_rng(seed))
    return fit(points, batching=case.server.batching).replica


def carried_per_s(method: Method, replica: Replica, setting: Setting) -> float:
    """Requests/s of a replica under the SLA; 0 where that is out of reach."""
    try:
        return method.capacity_per_s(replica, setting)
    except SlaMissed:
        return 0.0


def by_means_per_s(replica: Replica, setting: Setting) -> float:
    """The same by the rule of means."""
    workload = setting.workload
    try:
        return most_per_s(replica, workload.lengths, workload.prefix, setting.sla)
    except RequestTooLong:
        return 0.0


def rows(cases: Sequence[Case], answers: Sequence[list[Answer]]) -> list[EvidenceRow]:
    """Five ways on the engine that the law describes, two on the rough engine."""
    smooth = [one for case, found in zip(cases, answers, strict=True) if not case.is_rough for one in found]
    other = [one for case, found in zip(cases, answers, strict=True) if case.is_rough for one in found]
    return [
        _row("largest rate, fit and simulation", smooth, "simulated", Goal(0.02, 0.05, 0.03)),
        _row("largest rate, long prompts and long answers measured", smooth, "apart", Goal(0.02, 0.05, 0.03)),
        _row("largest rate, fit and formula", smooth, "analytic", Goal(0.03, 0.10)),
        _row("largest rate, true law and formula", smooth, "formula", Goal(0.03, 0.10)),
        _row("largest rate, rule of means", smooth, "by_means", None),
        _row("largest rate, rough engine, fit and simulation", other, "simulated", Goal(0.04, 0.10)),
        _row("largest rate, rough engine, fit and formula", other, "analytic", None),
    ]


def _row(name: str, answers: Sequence[Answer], method: str, goal: Goal | None) -> EvidenceRow:
    """Errors where truth or answer finds the SLA feasible: a wrong verdict counts, infinite where the truth is 0."""
    pairs = [(one.truth / one.stable, getattr(one, method) / one.stable) for one in answers]
    judged = [pair for pair in pairs if max(pair) >= FEASIBLE]
    errors = [found / truth - 1 if truth else math.inf for truth, found in judged]
    too_hopeful = sum(truth < FEASIBLE <= found for truth, found in pairs)
    too_strict = sum(found < FEASIBLE <= truth for truth, found in pairs)
    never = sum(truth < FEASIBLE and found < FEASIBLE for truth, found in pairs)
    note = f"not met by either: {never}; wrongly called feasible: {too_hopeful}, infeasible: {too_strict}"
    return row_of_errors(name, "engine simulated", "requests/s under the SLA", errors, goal, note)


LARGEST_RATE = Claim("largest_rate", cases, answer, rows)
