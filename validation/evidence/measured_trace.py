"""A measured trace, request by request: the law fitted to its first half, the whole replayed, the second half judged.
The fit knows when the requests of the second half came, since they load the server, but not what they saw.

The table has the requests of one server under overload: arrival, lengths, TTFT and E2E of each, and the engine's limits
on sequences and on tokens an iteration. How many tokens the KV cache holds is not in it; vLLM tells it when it starts,
here it is one of the numbers fitted. The second half meets the backlog that the first leaves behind, so that errors of
the throughput add up in its waiting times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.random import SeedSequence

from sizing.engine import Batching
from sizing.fitting import ServedTrace, fit_trace
from sizing.points import Deployment
from sizing.simulator import simulate_trace
from validation.evidence.claim import Claim, Setup
from validation.evidence.measured_tables import Cells, find_table, number, read_table
from validation.evidence.table import EvidenceRow, missing, row_of_errors

NAME, DATA = "second half of a trace", "vLLM, Llama-3.1-8B, RTX 4090"
LENGTHS = ("input_tokens", "output_tokens")
COLUMNS = (*LENGTHS, "arrival_s", "ttft_s", "e2e_s", "max_num_seqs", "max_num_batched_tokens")


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A trace by arrival and the limits of the engine that served it."""

    trace: ServedTrace
    batching: Batching
    deployment: Deployment


class Errors(NamedTuple):
    """Relative errors, above 0 where the prediction is too short: of the mean and the 95th percentile of E2E in the
    second half, and of E2E request by request; the size of the KV cache fitted."""

    mean: float
    p95: float
    requests: list[float]
    kv_tokens: int


def cases(setup: Setup) -> list[Case]:
    """The trace, if its table is at hand."""
    path = find_table(setup.data, COLUMNS)
    if path is None:
        return []
    table = sorted(read_table(path), key=lambda row: number(row, "arrival_s"))
    isl, osl = (np.array([number(row, column) for row in table], np.int64) for column in LENGTHS)
    arrival_s, ttft_s, e2e_s = (np.array([number(row, column) for row in table]) for column in COLUMNS[2:5])
    return [Case(ServedTrace(arrival_s, isl, osl, ttft_s, e2e_s), _batching(table[0]), _deployment(table[0]))]


def _batching(row: Cells) -> Batching:
    slots, budget = (int(number(row, column)) for column in ("max_num_seqs", "max_num_batched_tokens"))
    return Batching("chunked", slots, budget, kv_policy="max_utilization", kv_block_tokens=16)


def _deployment(row: Cells) -> Deployment:
    slots = int(number(row, "max_num_seqs"))
    return Deployment(
        row.get("model") or "unknown", "bf16", row.get("gpu") or "unknown", 1, 1, "vllm", "", "chunked", slots
    )


def answer(case: Case, seed: SeedSequence) -> Errors:
    """Fit what the first half saw, and replay the whole trace."""
    half = len(case.trace.isl) // 2
    found = fit_trace(case.trace.known_until(half), case.deployment, batching=case.batching)
    run = simulate_trace(found.replica, case.trace.arrival_s, case.trace.isl, case.trace.osl)
    predicted_s, measured_s = run.e2e_s[half:], case.trace.e2e_s[half:]
    return Errors(
        mean=1 - float(predicted_s.mean() / measured_s.mean()),
        p95=1 - float(np.percentile(predicted_s, 95) / np.percentile(measured_s, 95)),
        requests=(1 - predicted_s / measured_s).tolist(),
        kv_tokens=found.batching.kv_tokens,
    )


def rows(cases: Sequence[Case], answers: Sequence[Errors]) -> list[EvidenceRow]:
    """Mean and p95 of E2E, and E2E of single requests."""
    if not answers:
        return [missing(NAME, DATA, "E2E", "the table is not at hand")]
    found = answers[0]
    note = f"KV cache of {found.kv_tokens:,} tokens fitted to the first half"
    return [
        row_of_errors(NAME, DATA, "E2E mean", [found.mean], note=note),
        row_of_errors(NAME, DATA, "E2E p95", [found.p95], note=note),
        row_of_errors(NAME, DATA, "E2E of each request", found.requests, note=note),
    ]


TRACE = Claim("measured-trace", cases, answer, rows)
