"""How one replica uses up an SLA from no load to saturation, by formula: the curve that searches and bands read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sizing.monotone import interpolated
from sizing.prediction import Prediction
from sizing.workload import Sla

Floats = NDArray[np.float64]

FAR = 3.0
"""Log of predicted over allowed is bounded here, so that a root finder can work with it."""

LEVEL = 1e-9
"""Rise of the excess between two loads that use up the SLA alike: less than any that matters."""


@dataclass(frozen=True, slots=True, eq=False)
class LoadResponse:
    """Excess over the SLA (see `log_excess`) at rising requests/s per replica, both shape (n,), excess rising.

    `predictions`: what the formula says at each of the rates; the first is a replica without load.
    """

    rates_per_s: Floats
    excess: Floats
    predictions: tuple[Prediction, ...] = ()

    @classmethod
    def of(cls, predictions: Mapping[float, Prediction], stable_per_s: float, sla: Sla) -> LoadResponse:
        """Of what the formula says at some shares of the stable rate."""
        shares = sorted(predictions)
        ordered = tuple(predictions[share] for share in shares)
        return cls(stable_per_s * np.array(shares), rising_excess(ordered, sla), ordered)

    @property
    def idle(self) -> Prediction:
        """Latencies at the lowest rate: what a request sees that meets no other."""
        return self.predictions[0]

    def under(self, sla: Sla) -> LoadResponse:
        """The response of the same replica and load to another SLA, without asking the formula again."""
        return LoadResponse(self.rates_per_s, rising_excess(self.predictions, sla), self.predictions)

    def rate_per_s(self, level: float) -> float:
        """The rate at which the excess reaches `level`, interpolated monotonically in log rate; within 1 %.

        0 when the excess is higher even at the lowest rate; the highest rate when it is never reached.
        """
        same = np.diff(self.excess) == 0
        kept = ~(
            np.append(False, same) & np.append(same, False)
        )  # of loads that use up as much, the first and the last
        rising, rates = self.excess[kept], self.rates_per_s[kept]
        if level < rising[0]:
            return 0.0
        if level >= rising[-1]:
            return float(self.rates_per_s[-1])
        rising[1:][np.diff(rising) == 0] += LEVEL
        return math.exp(interpolated(level, rising, np.log(rates)))

    def excess_at(self, rate_per_s: float) -> float:
        """The excess at a rate, the inverse of `rate_per_s`; constant beyond both ends."""
        rising, kept = np.unique(self.excess, return_index=True)
        if len(rising) < 2:
            return float(rising[0])
        rate = np.clip(rate_per_s, self.rates_per_s[kept[0]], self.rates_per_s[kept[-1]])
        return float(np.interp(math.log(rate), np.log(self.rates_per_s[kept]), rising))


def rising_excess(predictions: tuple[Prediction, ...], sla: Sla) -> Floats:
    """Excess at each prediction, by rising load, made monotone: latencies may jump down at some load."""
    return np.maximum.accumulate([log_excess(prediction, sla) for prediction in predictions])


def log_excess(prediction: Prediction, sla: Sla) -> float:
    """Log of predicted over allowed for the tightest limit; `FAR` for a load without steady state."""
    if prediction.saturated:
        return FAR
    limit = prediction.binding(sla)
    return log_ratio(prediction.value_s(limit), limit.limit_s)


def log_ratio(value_s: float, limit_s: float) -> float:
    """Log of value over limit, from -FAR to FAR."""
    return min(FAR, max(-FAR, math.log(max(value_s, 1e-12) / limit_s)))
