"""The knee of a load curve: beyond it more load costs more in latency than it brings in throughput."""

from __future__ import annotations

import math

from sizing.loadcurve import LoadCurve


def knee_per_s(curve: LoadCurve) -> float | None:
    """Requests/s per replica at which load over mean E2E is highest: Kleinrock's "power" (1979, ICC'79, 43.1).

    For M/M/1 it is half the service rate. Read off the curve's own loads, so no finer than they are. None where power
    still rises at the last load: the knee lies beyond, or there is none.
    """
    powers = [
        0.0 if prediction.saturated or not prediction.e2e.mean_s > 0 else rate_per_s / prediction.e2e.mean_s
        for rate_per_s, prediction in zip(curve.rates_per_s, curve.predictions, strict=True)
    ]
    best = max(range(len(powers)), key=powers.__getitem__, default=0)
    if not powers or not math.isfinite(powers[best]) or best == len(powers) - 1:
        return None
    return curve.rates_per_s[best]
