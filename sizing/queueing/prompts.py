"""Prompts that a shared prefix splits in two kinds, found and not found: the law of their sums, by quantiles.

Lognormal prompts need none of this: their sums are lognormal nearly enough.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from sizing.queueing.points import token_sum

Floats = NDArray[np.float64]

SUMMED = 8
"""Sums of more prompts than this are taken as lognormal."""

PARTS = 256
"""Equally likely parts of a law, each told by its mean."""


@dataclass(frozen=True, slots=True, eq=False)
class Prompts:
    """Computed tokens of prompts: `table` (SUMMED, PARTS), the parts of the law of 1, 2, ... prompts together."""

    mean: float
    cv: float
    table: Floats

    @classmethod
    def of(cls, tokens: Floats, weight: Floats) -> Prompts:
        """Of a population with probabilities `weight`; sums are of independent prompts. Means are kept exactly."""
        one = _parts(tokens, weight)
        rows = [one]
        for _ in range(1, SUMMED):
            both = (rows[-1][:, None] + one).ravel()
            rows.append(np.sort(both).reshape(PARTS, PARTS).mean(axis=1))
        mean = float(one.mean())
        return cls(mean, float(one.std()) / mean, np.array(rows))

    def sum_at(self, count: Floats, normal: Floats) -> Floats:
        """Tokens of `count` prompts together at the standard normal deviates `normal`; 0 for none."""
        place = np.clip(ndtr(normal) * PARTS - 0.5, 0, PARTS - 1.001)
        part = place.astype(np.int64)
        row = np.clip(count.astype(np.int64), 1, SUMMED) - 1
        low, high = self.table[row, part], self.table[row, part + 1]
        few = low + (high - low) * (place - part)
        return np.where(count > SUMMED, token_sum(count, self.mean, self.cv, normal), np.where(count > 0, few, 0.0))

    def in_quanta(self, quantum: float, prompts: int, count: int) -> Floats:
        """P(j prompts are m quanta), shape (prompts, count); what overflows is in the last column.

        Each prompt is split between the two multiples of the quantum next to it, which keeps the mean.
        """
        exact = np.minimum(self.table[0] / quantum, count - 1.0)
        below = np.minimum(exact.astype(np.int64), count - 2)
        one = np.zeros(count)
        np.add.at(one, below, (1 - (exact - below)) / PARTS)
        np.add.at(one, below + 1, (exact - below) / PARTS)
        law = np.zeros((prompts, count))
        law[0, 0] = 1.0
        for number in range(1, prompts):
            law[number] = np.convolve(law[number - 1], one)[:count]
            law[number, -1] += max(0.0, 1 - law[number].sum())
        return law


def _parts(value: Floats, weight: Floats) -> Floats:
    """Means of PARTS equally likely parts of a law, ascending."""
    order = np.argsort(value)
    reached = np.concatenate([[0.0], np.cumsum(weight[order])])
    total = np.concatenate([[0.0], np.cumsum((weight * value)[order])])
    edges = np.linspace(0.0, reached[-1], PARTS + 1)
    return np.asarray(np.diff(np.interp(edges, reached, total)) * PARTS / reached[-1])
