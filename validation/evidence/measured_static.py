"""Static batches measured by others: the law fitted to six of them, the others predicted.

Each row gives the time to prefill a whole batch of equal prompts, and then the mean time of a decode step, at a batch
size and two lengths. The table has the columns of the Splitwise traces: model, hardware, tensor_parallel, prompt_size,
token_size, batch_size and the medians in milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from sizing.estimate.step_grid import Steps, fit_steps, law_seconds
from sizing.numbers import Floats
from validation.evidence.claim import Claim, Setup
from validation.evidence.measured_design import spread
from validation.evidence.measured_tables import Cells, find_table, number, read_table, seconds
from validation.evidence.table import EvidenceRow, missing, row_of_errors

KEYS = ("model", "hardware", "tensor_parallel")
LOADS = ("prompt_size", "token_size", "batch_size")
TIMES = ("prompt_time_ms_median", "token_time_ms_median")
LEAST_ROWS = 10
NAME, DATA = "static batches", "Splitwise, A100 and H100"


@dataclass(frozen=True, slots=True, eq=False)
class Batches:
    """The rows of one model on one kind of GPU at one TP: lengths in tokens, batch sizes and seconds, shape (n,).

    `dropped`: rows that contradict themselves, larger batches prefilled in less time than smaller ones.
    """

    name: str
    isl: Floats
    osl: Floats
    batch: Floats
    prompt_s: Floats
    token_s: Floats
    dropped: int

    def steps(self, chosen: Sequence[int]) -> Steps:
        """The prefills, then the decode steps, of some of the rows, in the law's variables.

        A decode step is taken at the middle of the output, where the context is the prompt and half of the answer.
        """
        places = np.asarray(chosen, int)
        isl, batch = self.isl[places], self.batch[places]
        none = np.zeros(len(places))
        kv_tokens = batch * (isl + self.osl[places] / 2)
        return Steps(
            batch=np.concatenate([none, batch]),
            kv_tokens=np.concatenate([none, kv_tokens]),
            prefill_tokens=np.concatenate([batch * isl, none]),
            attention=np.concatenate([batch * isl * isl / 2, none]),
            seconds=np.concatenate([self.prompt_s[places], self.token_s[places]]),
        )


class Errors(NamedTuple):
    """Relative errors of the prompt and the token times predicted, above 0 where they are too short; rows dropped."""

    prompt: list[float]
    token: list[float]
    dropped: int


def cases(setup: Setup) -> list[Batches]:
    """One case for each model, GPU and TP with enough rows; none without the table."""
    path = find_table(setup.data, (*KEYS, *LOADS, *TIMES))
    if path is None:
        return []
    groups: dict[tuple[str, ...], list[Cells]] = {}
    for row in read_table(path):
        groups.setdefault(tuple(row[key] for key in KEYS), []).append(row)
    found = [_batches(" ".join(key), rows) for key, rows in groups.items()]
    return [group for group in found if len(group.isl) >= LEAST_ROWS]


def _batches(name: str, rows: Sequence[Cells]) -> Batches:
    loads = np.array([[number(row, column) for column in LOADS] for row in rows])
    times_s = np.array([[seconds(row, column) for column in TIMES] for row in rows])
    sound = _sound(loads, times_s)
    isl, osl, batch = loads[sound].T
    prompt_s, token_s = times_s[sound].T
    return Batches(name, isl, osl, batch, prompt_s, token_s, int(np.count_nonzero(~sound)))


def _sound(loads: Floats, times_s: Floats) -> NDArray[np.bool_]:
    """Rows whose times are known, and whose prefill takes no less time than that of half the batch, same prompt."""
    isl, batch, prompt_s = loads[:, 0], loads[:, 2], times_s[:, 0]
    smaller = (isl[:, None] == isl) & (batch <= batch[:, None] / 2)
    slower = smaller & (prompt_s > prompt_s[:, None])
    sound: NDArray[np.bool_] = np.isfinite(times_s).all(axis=1) & ~slower.any(axis=1)
    return sound


def answer(case: Batches, seed: SeedSequence) -> Errors:
    """Fit six rows that are spread over the law's own variables, and predict the others."""
    axes = np.stack([case.batch, case.batch * case.isl, case.batch * (case.isl + case.osl / 2)], axis=1)
    chosen = spread(axes)
    others = [place for place in range(len(case.isl)) if place not in chosen]
    law = fit_steps(case.steps(chosen)).law
    held_out = case.steps(others)
    error = 1 - law_seconds(law, held_out) / held_out.seconds
    return Errors(error[: len(others)].tolist(), error[len(others) :].tolist(), case.dropped)


def rows(cases: Sequence[Batches], answers: Sequence[Errors]) -> list[EvidenceRow]:
    """Prompt times and token times over all groups."""
    if not answers:
        return [missing(NAME, DATA, "prompt and token times", "the table is not at hand")]
    dropped = sum(found.dropped for found in answers)
    note = f"{len(answers)} groups, 6 rows each calibrate; {dropped} rows dropped: a larger batch in less time"
    return [
        row_of_errors(NAME, DATA, "prompt time", [error for found in answers for error in found.prompt], note=note),
        row_of_errors(NAME, DATA, "token time", [error for found in answers for error in found.token], note=note),
    ]


STATIC = Claim("measured-static", cases, answer, rows)
