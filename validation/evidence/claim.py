"""The form of a study: cases that are answered one by one, anywhere and in any order, then judged together."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.random import SeedSequence

from sizing.analyses.parallel import Machines, run_all
from validation.evidence.table import EvidenceRow


@dataclass(frozen=True, slots=True)
class Setup:
    """How thoroughly: `quick` takes a few cases, about a minute for all claims. `data`: folder of measured data."""

    quick: bool = False
    data: Path | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """`cases(setup)` lists what is asked; `answer(case, seed)`, a function that other processes can import, answers one
    of them; `rows(cases, answers)` judges all of them."""

    name: str
    cases: Callable[[Setup], Sequence[Any]]
    answer: Callable[[Any, SeedSequence], Any]
    rows: Callable[[Sequence[Any], Sequence[Any]], list[EvidenceRow]]


def check(
    claims: Sequence[Claim],
    setup: Setup,
    machines: Machines,
    progress: Callable[[int], AbstractContextManager[Callable[[], None]]] | None = None,
) -> list[EvidenceRow]:
    """The rows of all claims. Their cases run side by side; each draws from a seed of its claim and its place in it,
    so that a claim gives the same rows alone and with others."""
    cases = [claim.cases(setup) for claim in claims]
    jobs = [
        (claim.answer, case, SeedSequence(zlib.crc32(claim.name.encode()), spawn_key=(place,)))
        for claim, of_claim in zip(claims, cases, strict=True)
        for place, case in enumerate(of_claim)
    ]
    answers = iter(run_all(_answer, jobs, machines=machines, progress=progress))
    rows = []
    for claim, of_claim in zip(claims, cases, strict=True):
        rows += claim.rows(of_claim, [next(answers) for _ in of_claim])
    return rows


def _answer(job: tuple[Callable[[Any, SeedSequence], Any], Any, SeedSequence], place_seed: SeedSequence) -> Any:
    answer, case, seed = job
    return answer(case, seed)
