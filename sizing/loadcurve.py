"""Latency against load for one replica of a fleet: what the chart with the SLA line and the operating point shows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sizing.capacity import LOADS, predict_at
from sizing.plan import Fleet, Question
from sizing.planner import setting_of
from sizing.prediction import Prediction
from sizing.queueing import stable_rate_per_s


@dataclass(frozen=True, slots=True)
class LoadCurve:
    """Predictions at rising requests/s per replica, up to just below the stable rate.

    `planned_per_s` is the load of a working replica in the answer, `capacity_per_s` where the SLA is about to fail.
    """

    rates_per_s: tuple[float, ...]
    predictions: tuple[Prediction, ...]
    planned_per_s: float
    capacity_per_s: float


def load_curve(question: Question, fleet: Fleet, steps: int = 24) -> LoadCurve:
    """The curve of the fleet's replicas at `steps` loads from idle to the end of the stable range, by formula."""
    candidate = fleet.candidate
    setting = setting_of(question, fleet.working)
    stable = stable_rate_per_s(candidate.replica, question.workload.lengths, question.workload.prefix)
    rates = np.linspace(0.02, min(LOADS[-1], 1.25 * fleet.capacity_per_s / stable), steps) * stable
    predictions = tuple(predict_at(candidate.replica, setting, float(rate)) for rate in rates)
    return LoadCurve(tuple(map(float, rates)), predictions, fleet.load_per_s, fleet.capacity_per_s)
