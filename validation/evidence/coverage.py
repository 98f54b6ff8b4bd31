"""The 90 % band of a replica's capacity: how often it holds the truth at lengths that were not measured.

Synthetic calibrations, half of them with equal lengths, by two designs; each fit answers at two other mixes. Every
calibration is of another engine: a band speaks of all engines that could have given the points, so its nine in ten can
be checked on a population of them only. These are engines about an 8B model on an 80 GB GPU, every coefficient off by a
factor of its own; the fit is told nothing of that. A band that is right holds the truth in nine of ten; one that always
does is too wide to be of use.

A second population shows where this ends: dense models of the shipped table, from half a billion parameters on eight
GPUs, whose steps are overhead and arithmetic and hardly any reading of weights. There the fit may choose a wrong split
that explains the points as well as the right one, and the band around it does not know of the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.random import SeedSequence

from sizing.candidates import from_fit
from sizing.catalog import model as model_named
from sizing.edge import BY_SIMULATION, SlaMissed, capacity_band
from sizing.engine import COEFFICIENTS, Replica
from sizing.estimate.day_zero import LAWS, read_rows, timed_of
from sizing.fitting import fit
from sizing.numbers import percent
from sizing.question import Setting
from sizing.workload import Limit, Sla, Workload
from validation.evidence.claim import Claim, Setup
from validation.evidence.server import CONTRASTING, LAW, ONE_MIX, POLICIES, calibrate, lengths_of, true_rate_per_s
from validation.evidence.table import EvidenceRow, row_of_band

BATCHING = POLICIES[1]
TABLED = "two contrasting mixes, laws of the shipped table"
DESIGNS = {"two contrasting mixes, 8 points": CONTRASTING, "1000/1000, 5 points": ONE_MIX}
TARGETS = {"2000/256": ((2000, 256), 95), "400/600": ((400, 600), 99)}
SLACK = {"ttft": 6.0, "itl": 2.5}
"""Limits of the SLA over what the engine takes without load."""
FACTOR_SIGMA = 0.3
"""Standard deviation of the logarithm of the factor on each coefficient of an engine."""
PREFILL_S, REQUEST_S = (0.05e-3, 1.5e-3), (1e-3, 10e-3)
"""Of the overheads of a prompt and of a request, evenly spread in the logarithm."""
GOAL = (0.85, 0.97)


@dataclass(frozen=True, slots=True)
class Case:
    """One calibration."""

    server: Replica
    group: str  # a key of DESIGNS, or TABLED
    varied: bool
    requests: int


class Answer(NamedTuple):
    """Requests/s per replica: the truth, what the fit says, and the ends of its 90 % band."""

    truth: float
    found: float
    low: float
    high: float


def cases(setup: Setup) -> list[Case]:
    """60 engines calibrated by each design, and 60 of the shipped table by the better one; quick 2 of each."""
    each, requests = (2, 60_000) if setup.quick else (60, 400_000)
    servers = [engine(np.random.default_rng([2026, number])) for number in range(each)]
    found = [Case(server, name, number % 2 == 1, requests) for name in DESIGNS for number, server in enumerate(servers)]
    tabled = tabled_engines(each, np.random.default_rng(2026))
    return found + [Case(server, TABLED, number % 2 == 1, requests) for number, server in enumerate(tabled)]


def engine(rng: np.random.Generator) -> Replica:
    """An engine about the usual one: lognormal factors, and overheads of its own."""
    factors = np.exp(FACTOR_SIGMA * rng.standard_normal(len(LAW.seconds)))
    law = LAW.with_values(**dict(zip(COEFFICIENTS, map(float, LAW.seconds * factors), strict=True)))
    return Replica(law.with_values(prefill_s=spread(PREFILL_S, rng), request_s=spread(REQUEST_S, rng)), BATCHING)


def tabled_engines(count: int, rng: np.random.Generator) -> list[Replica]:
    """Engines with laws of dense models in the shipped table, no two alike."""
    rows = [row for row in read_rows(LAWS) if not row["why_not"] and is_dense(row["model"])]
    laws = [timed_of(rows[place]).law for place in rng.choice(len(rows), count, replace=False)]
    return [Replica(law.with_values(request_s=spread(REQUEST_S, rng)), BATCHING) for law in laws]


def spread(ends: tuple[float, float], rng: np.random.Generator) -> float:
    """A draw between the ends, evenly in the logarithm."""
    return float(np.exp(rng.uniform(math.log(ends[0]), math.log(ends[1]))))


def answer(case: Case, seed: SeedSequence) -> list[Answer]:
    """Calibrate, fit, and ask at each target."""
    points = calibrate(case.server, DESIGNS.get(case.group, CONTRASTING), case.varied, np.random.default_rng(seed))
    fitted = fit(points, batching=BATCHING)
    answers = []
    for target in TARGETS:
        setting = setting_of(case.server, target, case.varied)
        candidate = from_fit(fitted, setting.workload.lengths)
        try:
            found = BY_SIMULATION.capacity_per_s(candidate.replica, setting)
        except SlaMissed:
            found = 0.0
        low, high = capacity_band(candidate, setting)
        truth = true_rate_per_s(case.server, setting, case.requests, seed=12345)
        answers.append(Answer(truth, found, found * low, found * high))
    return answers


def is_dense(model: str) -> bool:
    """True unless the model is a mixture of experts."""
    known = model_named(model)
    return known.active_parameters == known.parameters


def setting_of(server: Replica, target: str, varied: bool) -> Setting:
    """The question: limits that this engine keeps with ease while it has nothing else to do."""
    (isl, osl), percentile = TARGETS[target]
    lengths, law = lengths_of(isl, osl, varied), server.law
    ttft_s = law.prefill_alone_s(isl) + law.request_s
    itl_s = law.decode_s(1, isl + osl / 2)
    sla = Sla(Limit("ttft", percentile, SLACK["ttft"] * ttft_s), Limit("itl", percentile, SLACK["itl"] * itl_s))
    return Setting(Workload(lengths, 1.0), sla, "random")


def rows(cases: Sequence[Case], answers: Sequence[list[Answer]]) -> list[EvidenceRow]:
    """One row for each design, and for the second population, of which no share is promised."""
    found = []
    for group in (*DESIGNS, TABLED):
        mine = [answer for case, answer in zip(cases, answers, strict=True) if case.group == group]
        if mine:
            row = _row(f"band, {group}", [one for answer in mine for one in answer])
            parts = [
                f"{target} {percent(share_held([answer[place] for answer in mine]))}"
                for place, target in enumerate(TARGETS)
            ]
            row = replace(row, note=f"{row.note}; {', '.join(parts)}")
            found.append(row if group in DESIGNS else replace(row, goal="", holds=None))
    return found


def share_held(answers: Sequence[Answer]) -> float:
    """Share of the answers whose band holds the truth."""
    return sum(one.low <= one.truth <= one.high for one in answers) / len(answers)


def _row(name: str, answers: Sequence[Answer]) -> EvidenceRow:
    return row_of_band(
        name,
        "engine simulated",
        "requests/s under the SLA",
        [one.found / one.truth - 1 for one in answers],
        [one.low <= one.truth <= one.high for one in answers],
        [(one.high - one.low) / 2 / one.truth for one in answers],
        GOAL,
    )


COVERAGE = Claim("coverage", cases, answer, rows)
