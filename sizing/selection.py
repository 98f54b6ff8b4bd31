"""Order statistics of a sample without sorting it: the values that percentiles are read off."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sizing.compiled import compiled_apart
from sizing.numbers import Floats

MOST_BINS = 4096


def order_statistics(sample: Floats, ranks: NDArray[np.int64]) -> Floats:
    """The values at `ranks`, shape (k,), of a `sample` of shape (n,) if it were sorted.

    None of the values may be NaN. Floating-point numbers of one sign are in the order of their bits read as
    integers, so the leading bits sort values into bins whose widths are in proportion to the values (as Tene's
    HdrHistogram has it). Only those in the bins that a rank falls into are looked at more closely, a few per cent of a
    sample that varies: an eighth of the time of numpy's partition for 80,000 values, and as much for fewer than 8,000
    or where there are values below 0.

    >>> order_statistics(np.array([3.0, 1.0, 2.0]), np.array([0, 2]))
    array([1., 3.])
    """
    ordered = np.sort(ranks)
    candidates, places = _near(sample, np.ascontiguousarray(sample).view(np.int64), ordered)
    found: Floats = np.partition(candidates, places)[places]
    return found[np.searchsorted(ordered, ranks)]


@compiled_apart
def _near(sample: Floats, bits: NDArray[np.int64], ranks: NDArray[np.int64]) -> tuple[Floats, NDArray[np.int64]]:
    """The values of the bins that the ascending `ranks` fall into, bin after bin, and the ranks among these."""
    least, most = bits.min(), bits.max()
    if least < 0:
        return sample.copy(), ranks
    shift = 0
    while ((most - least) >> shift) >= MOST_BINS:
        shift += 1
    counts = np.zeros(((most - least) >> shift) + 1, np.int64)
    for each in bits:
        counts[(each - least) >> shift] += 1
    begins = np.full(len(counts), -1, np.int64)  # where the values of a bin are collected; -1: they are not
    places = np.empty(len(ranks), np.int64)
    below, collected, rank = 0, 0, 0
    for place in range(len(counts)):
        while rank < len(ranks) and ranks[rank] < below + counts[place]:
            begins[place] = collected
            places[rank] = collected + ranks[rank] - below
            rank += 1
        below += counts[place]
        if begins[place] >= 0:
            collected += counts[place]
    values = np.empty(collected)
    for each in range(len(sample)):
        place = (bits[each] - least) >> shift
        if begins[place] >= 0:
            values[begins[place]] = sample[each]
            begins[place] += 1
    return values, places
