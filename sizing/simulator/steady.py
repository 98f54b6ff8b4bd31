"""Steady state and confidence: which requests of a run count, whether there is a steady state, how sure a share is."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from sizing.errors import ScenarioError
from sizing.simulator.records import Requests
from sizing.simulator.tally import alive_at
from sizing.workload import Seconds

BATCHES = 20
"""Batches of consecutive requests. Neighbouring batches depend on each other the less the longer they are, and more
than 20 would hardly narrow the interval (Student's t at 95 %: 1.73 with 20, 1.65 with 1000): so as few as 20."""

CONFIDENCE = 0.9


def measured_part(run: Requests, warmup: float, *, drain: bool) -> slice:
    """The requests that count, by arrival: the first share `warmup` is not measured.

    With `drain` those who lived on after the last arrival are left out too, at most a tenth: they met less traffic.
    """
    last = len(run)
    if drain:
        alive = alive_at(run, run["arrival_s"][-1])
        last -= min(alive, len(run) // 10)
    return slice(min(int(warmup * len(run)), last - 1), last)


def queue_grows(waits_s: Seconds, served_s: float) -> bool:
    """True when later requests wait over twice as long as earlier ones, and longer than `served_s`.

    That is the mean time from the end of the wait to the last token. A queue that grows steadily makes the second half
    wait 3 times as long as the first (2.4 times after 10 % warm-up). `waits_s`: by arrival; requests that were never
    served waited as long as they stayed.
    """
    half = len(waits_s) // 2
    if half == 0:
        return False
    early_s, late_s = float(np.mean(waits_s[:half])), float(np.mean(waits_s[half:]))
    return late_s > 2 * early_s and late_s > served_s


def share_error(hits: NDArray[np.bool_]) -> float:
    """Half the width of the 90 % interval of the share of `hits` among consecutive requests, by batch means.

    The shares of 20 batches scatter about the whole's; where neighbouring batches still resemble each other (lag-1
    correlation r) they are worth less, (1 - r) / (1 + r) of their number, as in a first-order autoregression. Where the
    shares do not scatter at all (nobody, or everybody), the rule of three: 3 / n.

    Raises ScenarioError for fewer than 40 requests.
    """
    size = len(hits) // BATCHES
    if size < 2:
        raise ScenarioError(f"an interval needs {2 * BATCHES} requests or more, got {len(hits)}")
    shares: Seconds = hits[len(hits) - size * BATCHES :].reshape(BATCHES, size).mean(axis=1)
    centred = shares - shares.mean()
    scatter = float(centred @ centred)
    if scatter == 0:
        return 3 / len(hits)
    r = min(max(float(centred[1:] @ centred[:-1]) / scatter, 0.0), 0.9)
    error = math.sqrt(scatter / (BATCHES - 1) / BATCHES * (1 + r) / (1 - r))
    return float(stdtrit(BATCHES - 1, (1 + CONFIDENCE) / 2)) * error


def quantile_interval(values: Seconds, percentile: float) -> tuple[float, float]:
    """90 % interval of a percentile of consecutive values: where the values beyond it may be more or fewer.

    The share beyond the sample's percentile has an error by batch means; read off the sample at the two shares, it is
    an interval of the percentile that needs no density (Woodruff 1952). On M/M/1 queues, where the truth is known, 86
    to 93 % of the intervals hold it (p50 to p99, 20,000 requests, load up to 0.8); of p99 at load 0.9 77 % (60,000).
    """
    if len(values) == 0:
        raise ScenarioError(f"an interval needs {2 * BATCHES} requests or more, got none with this metric")
    middle = float(np.percentile(values, percentile))
    error = 100 * share_error(values > middle)
    low, high = np.percentile(values, (max(percentile - error, 0.0), min(percentile + error, 100.0)))
    return float(low), float(high)
