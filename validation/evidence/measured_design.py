"""Which few of the measured points calibrate, spread as a planner would, without a look at any result; and the straight
lines through them that a planner would draw without a law."""

from __future__ import annotations

import numpy as np

from sizing.numbers import Floats

CALIBRATION_POINTS = 6


def spread(coordinates: Floats, most: int = CALIBRATION_POINTS) -> list[int]:
    """Places of up to `most` points that lie far from each other: a maximin design.

    `coordinates`: shape (points, axes), positive, such as lengths and concurrency; distances are taken between their
    logarithms, each axis scaled to its range. The first is the one with the smallest product, the lightest load; every
    further one is the point whose nearest chosen neighbour is farthest. The corners of the range come first, so that
    the highest concurrency is among them.
    """
    logs = np.log(coordinates)
    scaled = (logs - logs.min(axis=0)) / np.maximum(np.ptp(logs, axis=0), 1e-12)
    chosen = [int(np.argmin(scaled.sum(axis=1)))]
    while len(chosen) < min(most, len(scaled)):
        nearest = np.linalg.norm(scaled[:, None] - scaled[chosen], axis=2).min(axis=1)
        if nearest.max() < 1e-9:
            break  # the rest repeat points already chosen
        chosen.append(int(np.argmax(nearest)))
    return chosen


def on_line(loads: Floats, figures: Floats, load: float) -> Floats:
    """Figures at a load: on straight lines in logarithms through those at `loads` (ascending), outer ones drawn out.

    `figures`: shape (loads, any), positive; the result has one row of them.
    """
    at, logs = np.log(loads), np.log(figures)
    right = int(np.clip(np.searchsorted(at, np.log(load)), 1, len(at) - 1))
    share = (np.log(load) - at[right - 1]) / (at[right] - at[right - 1])
    value: Floats = np.exp((1 - share) * logs[right - 1] + share * logs[right])
    return value
