"""Seconds read from the tables that `lab.vllm.pace` wrote; runs in the environments of the engines."""

from __future__ import annotations

from typing import Any

import numpy as np


class Grid:
    """Seconds over a grid: linear between its lines and beyond the last, constant before the first."""

    def __init__(self, axes: list[list[float]], seconds: list[Any]) -> None:
        self._axes, self._seconds = [np.asarray(axis, float) for axis in axes], np.asarray(seconds, float)

    def at(self, *where: float) -> float:
        """Seconds at one value for each axis."""
        table = self._seconds
        for axis, value in zip(self._axes, where, strict=True):
            low = int(np.clip(np.searchsorted(axis, value, side="right") - 1, 0, len(axis) - 2))
            share = (max(value, axis[0]) - axis[low]) / (axis[low + 1] - axis[low])
            table = (1 - share) * table[low] + share * table[low + 1]
        return float(table)
