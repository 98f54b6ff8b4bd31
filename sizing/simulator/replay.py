"""Measured closed-loop points replayed on the simulator: the forward model of the fit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from sizing.curves import Point
from sizing.replica import Replica
from sizing.simulator.heap import compiled
from sizing.simulator.loops import measured_rounds, run_users
from sizing.simulator.records import Engine, Requests, States, Work, engine_of, idle_states, work_space
from sizing.simulator.runs import checked_requests
from sizing.workload import Seconds, Tokens

Floats = NDArray[np.float64]


class Replay:
    """The points of one deployment, ready to be simulated again and again with other laws.

    Each point keeps what the measurement did: its number of users, its lengths, and users who start one after the
    other over about the time of one request, or all `together`. Equal lengths hold the users in the phases they started
    in, and TTFT depends on those phases: so the means are taken over several ramps, 25 % shorter to 25 % longer.
    Lengths that vary are drawn evenly (see `even_lengths`), so that a level of a few hundred requests has the means of
    the point.
    """

    def __init__(self, points: Sequence[Point], replica: Replica, together: bool = False, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        lengths = [_level_lengths(point, rng) for point in points]
        self._users = np.array([concurrency(point) for point in points], np.int64)
        request_s = self._users / np.array([point.requests_per_s for point in points])
        self._ramps_s = 0 * request_s if together else request_s
        self._first = np.concatenate([[0], np.cumsum([len(isl) for isl, _ in lengths])])
        isl, osl = (np.concatenate(tokens) for tokens in zip(*lengths, strict=True))
        self._requests = checked_requests(replica, isl, osl, np.zeros(len(isl)))

    def means(self, replica: Replica) -> Floats:
        """requests/s, mean TTFT and mean ITL (seconds; NaN with one output token) per point: shape (points, 3)."""
        means = np.zeros((len(self._users), 3))
        engine = engine_of(replica)
        space = work_space(replica, 1)
        run_levels(engine, idle_states(1), space, self._requests, self._first, self._users, self._ramps_s, means)
        return means


def measured_means(points: Sequence[Point]) -> Floats:
    """What `Replay.means` is to reproduce, same shape; NaN where the point does not tell."""
    measured = np.array(
        [[point.requests_per_s, point.ttft_mean_s or np.nan, point.itl_mean_s or np.nan] for point in points]
    )
    measured[[round(point.osl) <= 1 for point in points], 2] = np.nan
    return measured


def concurrency(point: Point) -> int:
    """Users of a closed-loop point."""
    return max(1, round(point.load_value))


def _level_lengths(point: Point, rng: np.random.Generator) -> tuple[Tokens, Tokens]:
    """Lengths for 6 rounds of the users; 8, and blocks of 32 or more, where lengths vary."""
    users = concurrency(point)
    if point.isl_cv == 0 and point.osl_cv == 0:
        rounds = max(6, -(-12 // users))
        return np.full(rounds * users, max(1, round(point.isl))), np.full(rounds * users, max(1, round(point.osl)))
    block = users * -(-32 // users)
    blocks = max(3, -(-8 * users // block))
    return (
        even_lengths(point.isl, point.isl_cv, block, blocks, rng),
        even_lengths(point.osl, point.osl_cv, block, blocks, rng),
    )


def even_lengths(mean: float, cv: float, block: int, blocks: int, rng: np.random.Generator) -> Tokens:
    """Lognormal tokens, every block the same evenly spaced quantiles, shuffled: means without sampling noise."""
    sigma = np.sqrt(np.log1p(cv * cv))
    quantiles = np.exp(sigma * ndtri((np.arange(block) + 0.5) / block))
    tokens = np.maximum(1, np.rint(quantiles * (mean / quantiles.mean()))).astype(np.int64)
    return np.concatenate([rng.permutation(tokens) for _ in range(blocks)])


@compiled
def run_levels(
    engine: Engine,
    states: States,
    work: Work,
    requests: Requests,
    first: Tokens,
    users: Tokens,
    ramps_s: Seconds,
    means: Floats,
) -> None:
    """Run the closed loop of every level and fill its row of `means`, averaged over ramps of different length."""
    state = states[0]
    for level in range(len(users)):
        run = requests[first[level] : first[level + 1]]
        phases = max(1, min(8, 64 // users[level]))
        for phase in range(phases):
            state.clock_s, state.decode_step = 0.0, 0  # the run before has left the replica empty
            ramp_s = ramps_s[level] * (0.75 + (phase + 0.5) / (2 * phases))
            for user in range(users[level]):
                run[user].arrival_s = engine.request_s + ramp_s * user / users[level]
            run_users(engine, states, work, run, users[level])
            add_means(run, users[level], engine.request_s, 1 / phases, means[level])


@compiled
def add_means(run: Requests, users: int, request_s: float, weight: float, means: Floats) -> None:
    """Add `weight` times the requests/s, mean TTFT and mean ITL of the measured rounds."""
    begin, end = measured_rounds(len(run), users)
    ttft_s, itl_s, with_gaps = 0.0, 0.0, 0
    for place in range(begin, end):
        request = run[place]
        ttft_s += request.first_token_s - request.arrival_s + request_s
        if request.osl > 1:
            itl_s += (request.done_s - request.first_token_s) / (request.osl - 1)
            with_gaps += 1
    means[0] += weight * (end - begin) / (run[end].arrival_s - run[begin].arrival_s)
    means[1] += weight * ttft_s / (end - begin)
    means[2] += weight * itl_s / with_gaps if with_gaps > 0 else np.nan
