"""How long the steps of a GPU last, by the tables that `lab.pace` wrote; runs in the environments of the engines."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np


class StepTimes:
    """Seconds of a step, from the JSON file that PACE names."""

    def __init__(self) -> None:
        with open(os.environ["PACE"], encoding="utf-8") as file:
            tables = json.load(file)
        self._decode, self._mixed = (Grid(**tables[name]) for name in ("decode", "mixed"))

    def decode_s(self, contexts: Sequence[int]) -> float:
        """Of a step in which sequences of these contexts decode; 0 without any."""
        return self._decode.at(len(contexts), float(np.mean(contexts))) if contexts else 0.0

    def mixed_s(self, prompt_tokens: int, decoding: int, contexts: Sequence[int]) -> float:
        """Of a step that computes so many prompt tokens of prompts with these contexts, beside decoding sequences."""
        return self._mixed.at(prompt_tokens, decoding, float(np.mean(contexts)))


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
