"""A histogram of the gaps between tokens, as every reader of a stream sees them; compiled by numba."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sizing.simulator.heap import compiled, compiled_apart, request_at
from sizing.simulator.records import GAP_BINS, Requests, State, Work

LEAST_GAP_S = 1e-5
PARTS = 128
"""Bins from a gap to twice that gap, all as wide (as HdrHistogram has them): 0.4 to 0.8 % of the gaps in them. They
begin at 10 us and end beyond 1000 s; what lies outside is in the first or the last."""
EDGES_S = LEAST_GAP_S * np.ldexp(1 + np.arange(GAP_BINS + 1) % PARTS / PARTS, np.arange(GAP_BINS + 1) // PARTS)

Counts = NDArray[np.int64]


@compiled
def bin_of(gap_s: float) -> int:
    """The bin that a gap is counted in; the exponent of a binary number is its logarithm, ready made."""
    if gap_s <= LEAST_GAP_S:
        return 0
    share, exponent = math.frexp(gap_s / LEAST_GAP_S)
    return min((exponent - 1) * PARTS + int((2 * share - 1) * PARTS), GAP_BINS - 1)


@compiled_apart
def count_gaps(counts: Counts, gap_s: float, growth_s: float, steps: int, lanes: int) -> None:
    """Count the gaps of `steps` decode steps of `lanes` sequences, each step `growth_s` longer than the one before.

    Exact: of each bin the steps are counted that end below its upper edge.
    """
    while steps > 0:
        place = bin_of(gap_s)
        inside = steps
        if steps > 1 and growth_s > 0 and place < len(counts) - 1:
            room_s = EDGES_S[place + 1] - gap_s
            if growth_s * (steps - 1) >= room_s:
                inside = min(max(math.ceil(room_s / growth_s), 1), steps)
        counts[place] += inside * lanes
        gap_s += inside * growth_s
        steps -= inside


@compiled
def count_stretch(state: State, work: Work, requests: Requests, steps: int, step_s: float, growth_s: float) -> None:
    """Count the gaps of a stretch of decode steps that ends now and in which nobody leaves but at its end."""
    if state.stalled:
        if steps > 1:
            count_all_but_last(state, work, requests, steps, step_s, growth_s)
        count_last(state, work, requests, step_s + (steps - 1) * growth_s)
    else:
        count_gaps(work.gaps, step_s, growth_s, steps, state.running)
        state.decoded_s = state.clock_s


@compiled_apart
def count_all_but_last(
    state: State, work: Work, requests: Requests, steps: int, step_s: float, growth_s: float
) -> None:
    """Count the gaps of a stretch of two decode steps or more that ends at `clock_s`, without its last step."""
    if state.stalled:
        later_s = (steps - 1) * step_s + 0.5 * growth_s * steps * (steps - 1)
        count_stalled(state, work, requests, state.clock_s - later_s)
        step_s += growth_s
        steps -= 1
    count_gaps(work.gaps, step_s, growth_s, steps - 1, state.running)


@compiled_apart
def count_last(state: State, work: Work, requests: Requests, step_s: float) -> None:
    """Count the gaps that end now, of those who still read."""
    if state.stalled:
        count_stalled(state, work, requests, state.clock_s)
    else:
        count_gaps(work.gaps, step_s, 0.0, 1, state.running)
    state.decoded_s = state.clock_s


@compiled
def count_stalled(state: State, work: Work, requests: Requests, end_s: float) -> None:
    """Count the gaps that end at `end_s` of sequences that had to wait while prompts ran alone, each from its start."""
    for place in range(state.running):
        since_s = max(requests[request_at(work.heap, place)].token_s, state.decoded_s)
        count_gaps(work.gaps, end_s - since_s, 0.0, 1, 1)
    state.stalled = 0


def no_gaps(*, counted: bool) -> Counts:
    """An empty histogram of the gaps of one run; of no length where they are not counted."""
    return np.zeros(GAP_BINS if counted else 0, np.int64)


@compiled
def percentile_s(counts: Counts, percentile: float) -> float:
    """One percentile of the gaps of a run, as `gap_quantiles` has it: a scan of the bins in use."""
    total = counts.sum()
    if total == 0:
        return math.nan
    wanted, below, place = percentile / 100 * total, 0, 0
    while below + counts[place] < wanted:
        below += counts[place]
        place += 1
    share = (wanted - below) / max(counts[place], 1)
    return float(EDGES_S[place] + (EDGES_S[place + 1] - EDGES_S[place]) * share)


def gap_quantiles(counts: Counts, percentiles: Sequence[float]) -> NDArray[np.float64]:
    """Percentiles (0 to 100) in seconds of the gaps counted, shape (percentiles,); NaN if there are none.

    Counts of several replicas may be given, shape (replicas, bins): they are added. Off by less than a bin, 0.8 %.
    """
    total = np.cumsum(np.reshape(counts, (-1, GAP_BINS)).sum(axis=0))
    if total[-1] == 0:
        return np.full(len(percentiles), np.nan)
    wanted = np.clip(np.asarray(percentiles, float) / 100, 0, 1) * total[-1]
    place = np.minimum(np.searchsorted(total, wanted), GAP_BINS - 1)
    below = np.where(place > 0, total[place - 1], 0)
    share = (wanted - below) / np.maximum(total[place] - below, 1)
    return np.asarray(EDGES_S[place] + (EDGES_S[place + 1] - EDGES_S[place]) * share, float)
