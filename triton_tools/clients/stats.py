"""The figures that `benchmark_core_model` and `identity_test` print, by their definitions, from the log of requests.

They cover more than this project's own: every request counts, from the first sending to the end of the last answer, so
they include ramp-up and drain, which `calibration.metrics.measurement` leaves out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from calibration.errors import ServerError
from calibration.metrics import window
from calibration.records import Ints, RequestLog
from sizing.numbers import Floats

INTERVALS_PER_REQUEST = 10


@dataclass(frozen=True, slots=True)
class Stats:
    """One run in the clients' terms: N requests answered within `duration_s`.

    `duration_s` is counted from the first sending to the end of the last answer, a latency from the sending of a
    request to the end of its answer. `latency_p99_s` and `latency_p90_s` are latencies that occurred (nearest rank).
    """

    requests_per_s: float
    output_tokens_per_s: float
    latency_mean_s: float
    latency_p99_s: float
    latency_p90_s: float
    isl_mean: float
    osl_mean: float
    in_flight_mean: float
    duration_s: float
    requests: int

    @property
    def latency_sum_s(self) -> float:
        """Seconds that all requests spent on the server together."""
        return self.latency_mean_s * self.requests


def stats(log: RequestLog, *, tokens_counted: bool = True) -> Stats:
    """The figures of the requests in `log` that were answered, with however many tokens: the clients check no lengths.

    If the model reports no token counts, `tokens_counted` is False and the requested output tokens are used. Raises
    ServerError, with the first failure, if nothing was answered.
    """
    answered = log.where(window.answered(log))
    if not len(answered):
        first = next((error for error in log.error if error), "no request was sent")
        raise ServerError(f"no request was answered; the first failed with: {first}")
    latency_s = np.round(answered.end_s - answered.sent_s, 6)  # the clients round to a thousandth of a millisecond
    duration_s = float(answered.end_s.max() - answered.sent_s.min())
    osl = answered.tokens if tokens_counted else answered.osl
    return Stats(
        requests_per_s=len(answered) / duration_s,
        output_tokens_per_s=float(osl.sum()) / duration_s,
        latency_mean_s=float(latency_s.mean()),
        latency_p99_s=nearest_rank(latency_s, 99),
        latency_p90_s=nearest_rank(latency_s, 90),
        isl_mean=_mean(answered.isl),
        osl_mean=_mean(osl),
        in_flight_mean=in_flight_mean(latency_s, duration_s),
        duration_s=duration_s,
        requests=len(answered),
    )


def nearest_rank(values: Floats, percent: int) -> float:
    """The smallest of `values`, shape (n,), that at least `percent` % of them do not exceed; no interpolation.

    >>> nearest_rank(np.array([4.0, 1.0, 3.0, 2.0]), 90)
    4.0
    """
    rank = math.ceil(percent * len(values) / 100)
    return float(np.sort(values)[rank - 1])


def in_flight_mean(latency_s: Floats, duration_s: float) -> float:
    """Mean requests in flight as the clients compute it: the run is cut into about ten intervals per request.

    Beginning with the interval in which it was sent, a request counts once in as many intervals as its latency fills
    wholly or in part. Rounding up makes that about 0.05 more than Little's `sum(latency_s) / duration_s`.
    """
    n = len(latency_s)
    intervals = max(1, int(duration_s / (duration_s / n / INTERVALS_PER_REQUEST)))
    width_s = duration_s / intervals
    return float(np.ceil(latency_s / width_s).sum()) / intervals


def _mean(lengths: Ints) -> float:
    return float(lengths.mean())
