"""What a replica holds, sampled over time; compiled by numba."""

from __future__ import annotations

import math

from sizing.simulator.heap import compiled_apart
from sizing.simulator.records import NOBODY, State, Work

COLUMNS = ("time_s", "running", "waiting", "prefilling", "kv_tokens", "paused")
"""Columns of a row: the last three are prompts cut in chunks (0 or 1), KV tokens in use, pauses since the start."""


@compiled_apart
def sample(state: State, work: Work) -> None:
    """Write a row for the first iteration that is formed at or after each multiple of `sample_every_s`.

    When the rows are all taken, every second one is dropped and samples are taken half as often: however long a run is,
    the rows cover it.
    """
    rows = len(work.series)
    if rows == 0:
        state.next_sample_s = math.inf
        return
    if state.samples == rows:
        state.samples = rows // 2
        for place in range(state.samples):
            work.series[place] = work.series[2 * place + 1]
        state.sample_every_s *= 2
    due = math.floor(state.clock_s / state.sample_every_s)
    state.next_sample_s = (due + 1) * state.sample_every_s
    if state.samples > 0 and work.series[state.samples - 1, 0] >= due * state.sample_every_s:
        return
    row = work.series[state.samples]
    row[0], row[1], row[2] = state.clock_s, state.running, state.waiting
    row[3], row[4], row[5] = int(state.prefilling != NOBODY), state.used_tokens, state.paused
    state.samples += 1
