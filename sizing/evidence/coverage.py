"""The 90 % band of a replica's capacity: how often it holds the truth at lengths that were not measured.

Synthetic calibrations of one engine, half of them with equal lengths, by two designs; each fit answers at two other
mixes. A band that is right holds the truth in nine of ten; one that always does is too wide to be of use.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.random import SeedSequence

from sizing.band import capacity_band
from sizing.candidates import from_fit
from sizing.capacity import BY_SIMULATION, Setting, SlaMissed
from sizing.evidence.claim import Claim, Setup
from sizing.evidence.server import CONTRASTING, LAW, ONE_MIX, POLICIES, Design, calibrate, lengths_of, true_rate_per_s
from sizing.evidence.table import ENOUGH, EvidenceRow
from sizing.fitting import fit
from sizing.replica import Replica
from sizing.workload import Limit, Sla, Workload

SERVER = Replica(LAW, POLICIES[1])
DESIGNS = {"two contrasting mixes, 8 points": CONTRASTING, "1000/1000, 5 points": ONE_MIX}
TARGETS = {
    "2000/256": ((2000, 256), Sla(Limit("ttft", 95, 0.3), Limit("itl", 95, 0.020))),
    "400/600": ((400, 600), Sla(Limit("ttft", 99, 0.2), Limit("itl", 99, 0.014))),
}
GOAL = (0.85, 0.97)


@dataclass(frozen=True, slots=True)
class Case:
    """One calibration."""

    design: Design
    varied: bool
    requests: int


class Answer(NamedTuple):
    """Requests/s per replica: the truth, what the fit says, and the ends of its 90 % band."""

    truth: float
    found: float
    low: float
    high: float


def cases(setup: Setup) -> list[Case]:
    """60 calibrations of each design, quick 2."""
    each, requests = (2, 60_000) if setup.quick else (60, 400_000)
    return [Case(design, number % 2 == 1, requests) for design in DESIGNS.values() for number in range(each)]


def answer(case: Case, seed: SeedSequence) -> list[Answer]:
    """Calibrate, fit, and ask at each target."""
    points = calibrate(SERVER, case.design, case.varied, np.random.default_rng(seed))
    fitted = fit(points, batching=SERVER.batching)
    answers = []
    for target in TARGETS:
        setting = _setting(target, case.varied)
        candidate = from_fit(fitted, setting.workload.lengths)
        try:
            found = BY_SIMULATION.capacity_per_s(candidate.replica, setting)
        except SlaMissed:
            found = 0.0
        low, high = capacity_band(candidate, setting)
        answers.append(Answer(_truth_per_s(target, case.varied, case.requests), found, found * low, found * high))
    return answers


def _setting(target: str, varied: bool) -> Setting:
    (isl, osl), sla = TARGETS[target]
    return Setting(Workload(lengths_of(isl, osl, varied), 1.0), sla, "random")


@lru_cache(maxsize=16)
def _truth_per_s(target: str, varied: bool, requests: int) -> float:
    return true_rate_per_s(SERVER, _setting(target, varied), requests, seed=12345)


def rows(cases: Sequence[Case], answers: Sequence[list[Answer]]) -> list[EvidenceRow]:
    """One row for each design and target."""
    found = []
    for name, design in DESIGNS.items():
        mine = [answer for case, answer in zip(cases, answers, strict=True) if case.design == design]
        for place, target in enumerate(TARGETS):
            if mine:
                found.append(_row(f"band, {name} → {target}", [answer[place] for answer in mine]))
    return found


def _row(name: str, answers: Sequence[Answer]) -> EvidenceRow:
    n, held = len(answers), sum(one.low <= one.truth <= one.high for one in answers)
    covered, likely = held / n, (held + 0.5) / (n + 1)
    width = float(np.mean([(one.high - one.low) / 2 / one.truth for one in answers]))
    size = np.abs([one.found / one.truth - 1 for one in answers])
    luck = math.sqrt(likely * (1 - likely) / n)
    note = f"covers {covered:.0%} (standard error {luck:.0%}), mean width ± {width:.1%}"
    goal = f"covers {GOAL[0]:.0%}-{GOAL[1]:.0%}"
    ends = float(np.median(size)), float(np.quantile(size, 0.9)), float(size.max())
    holds = GOAL[0] <= covered <= GOAL[1] if n >= ENOUGH else None
    return EvidenceRow(name, "engine simulated", n, "requests/s under the SLA", *ends, goal, holds, note)


COVERAGE = Claim("coverage", cases, answer, rows)
