"""What the requests of a finished run add up to, in one pass through their records; compiled by numba."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sizing.simulator.heap import compiled
from sizing.simulator.records import SERVED, Requests
from sizing.workload import Seconds

SENT, WAIT, TTFT, ITL, E2E = range(5)
ROWS = 5


class Tally(NamedTuple):
    """The measured requests of a run, by arrival, and two sums.

    `seconds`: shape (ROWS, measured). The wait of a request that was not served is its whole stay in the replica, its
    other latencies mean nothing; ITL is NaN with one output token. `outcome`: shape (measured,). `in_flight_s`: what
    all requests, measured or not, spent from their sending to their end between the first and the last measured
    sending. `answers`: complete in that time.
    """

    seconds: Seconds
    outcome: NDArray[np.int8]
    in_flight_s: float
    answers: int


def tallied(run: Requests, part: slice, outside_s: float | Seconds, early_s: float = 0.0) -> Tally:
    """The requests of the slice `part`; `outside_s` is what a request pays outside the engine, one or for each.

    Clients sent their requests `early_s` before these came to the replica.
    """
    seconds, outcome = np.empty((ROWS, part.stop - part.start)), np.empty(part.stop - part.start, np.int8)
    outside = np.atleast_1d(np.asarray(outside_s, np.float64))
    return Tally(seconds, outcome, *_tally(run, part.start, outside, early_s, seconds, outcome))


@compiled
def _tally(
    run: Requests, first: int, outside_s: Seconds, early_s: float, seconds: Seconds, outcome: NDArray[np.int8]
) -> tuple[float, int]:
    """Fill `seconds` and `outcome` from request number `first` on; returns the two sums."""
    measured = len(outcome)
    from_s, until_s = run[first].arrival_s - early_s, run[first + measured - 1].arrival_s - early_s
    in_flight_s, answers = 0.0, 0
    for number in range(len(run)):
        request = run[number]
        pays_s = outside_s[number if len(outside_s) > 1 else 0]
        sent_s = request.arrival_s - early_s
        stay_s = request.done_s - request.arrival_s + pays_s
        served = request.outcome == SERVED
        in_flight_s += min(max(sent_s + stay_s, from_s), until_s) - min(max(sent_s, from_s), until_s)
        answers += int(served and from_s < request.done_s <= until_s)
        place = number - first
        if 0 <= place < measured:
            outcome[place] = request.outcome
            gaps = request.osl - 1
            seconds[SENT, place] = sent_s
            seconds[WAIT, place] = (request.scheduled_s if served else request.done_s) - request.arrival_s
            seconds[TTFT, place] = request.first_token_s - request.arrival_s + pays_s
            seconds[ITL, place] = (request.done_s - request.first_token_s) / gaps if gaps > 0 else np.nan
            seconds[E2E, place] = stay_s
    return in_flight_s, answers


@compiled
def alive_at(run: Requests, time_s: float) -> int:
    """Requests of a finished run that left after a time."""
    alive = 0
    for request in run:
        alive += int(request.done_s > time_s)
    return alive
