"""The simulator against queueing theory, with statistics that mean something.

Every system is run many times with independent seeds; the mean of the runs may differ from theory by 4 standard errors
at most, and the standard error must be small enough that agreement is no accident.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import SeedSequence

from sizing.numbers import percent
from validation.evidence.claim import Claim, Setup
from validation.evidence.systems import SYSTEMS, System
from validation.evidence.table import EvidenceRow

MOST_Z = 4.0
MOST_ERROR, MOST_ERROR_QUICK = 0.01, 0.05
BLOCK = 6


@dataclass(frozen=True, slots=True)
class Case:
    """A block of runs of one system (its place in SYSTEMS), `requests` requests each."""

    system: int
    requests: int
    quick: bool


@dataclass(frozen=True, slots=True)
class Agreement:
    """A system's mean over runs against theory: `error`: its standard error, a share; `z`: the gap in such errors."""

    system: System
    gap: float
    error: float

    @property
    def z(self) -> float:
        return abs(self.gap) / max(self.error, 1e-12)


def cases(setup: Setup) -> list[Case]:
    """24 runs of 200,000 requests each, more where waits vary more; quick: 12 of 40,000, and up to 48."""
    blocks, requests = (2, 40_000) if setup.quick else (4, 200_000)
    return [
        Case(place, requests, setup.quick)
        for place, system in enumerate(SYSTEMS)
        for _ in range(blocks * min(system.weight, 4 if setup.quick else system.weight))
    ]


def answer(case: Case, seed: SeedSequence) -> list[float]:
    """What each run of the block measures."""
    run = SYSTEMS[case.system].run
    return [run(case.requests, np.random.default_rng(child)) for child in seed.spawn(BLOCK)]


def agreements(cases: Sequence[Case], answers: Sequence[list[float]]) -> list[Agreement]:
    """One for each system that has cases."""
    found = []
    for place, system in enumerate(SYSTEMS):
        values = np.array(
            [x for case, block in zip(cases, answers, strict=True) if case.system == place for x in block]
        )
        if len(values):
            error = values.std(ddof=1) / math.sqrt(len(values))
            found.append(Agreement(system, float(values.mean() / system.exact - 1), float(error / system.exact)))
    return found


def rows(cases: Sequence[Case], answers: Sequence[list[float]]) -> list[EvidenceRow]:
    """One row for all systems."""
    found = agreements(cases, answers)
    most_error = MOST_ERROR_QUICK if cases[0].quick else MOST_ERROR
    farthest, vaguest = max(found, key=lambda one: one.z), max(found, key=lambda one: one.error)
    size = np.abs([one.gap for one in found])
    note = (
        f"farthest: {farthest.system.name}, |z| {min(farthest.z, 99):.1f}; "
        f"largest standard error {percent(vaguest.error, 2)} ({vaguest.system.name})"
    )
    return [
        EvidenceRow(
            name="systems with exact answers",
            data="queueing theory",
            n=len(found),
            metric="mean or percentile",
            median=float(np.median(size)),
            p90=float(np.quantile(size, 0.9)),
            worst=float(size.max()),
            goal=f"|z| < {MOST_Z:g} and standard error < {percent(most_error)}",
            holds=farthest.z < MOST_Z and vaguest.error < most_error,
            note=note,
        )
    ]


THEORY = Claim("theory", cases, answer, rows)
