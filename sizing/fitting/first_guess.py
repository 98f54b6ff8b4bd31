"""Rough coefficients read off a few measured points, with their doubt: where the fit starts and what it leans on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sizing.curves import Point
from sizing.fitting.levels import in_flight
from sizing.steptime import COEFFICIENTS, StepLaw

DATA_SIGMAS = StepLaw(2.0, 2.0, 1.0, 1.5, 1.5, 1.5, 3.0, 1.5)
"""Standard deviations of the logarithms when the guess comes from the points themselves: factors of 3 to
7; 20 for what an iteration with a prompt costs beside, which may be as good as nothing. Of weights and overhead the sum
is read off the points, and either may be as good as nothing."""

KV_OF_SEQUENCE = 200
"""Tokens of KV cache whose reading takes as long as what a sequence costs beside: 60 to 420 at servers measured."""

COMPUTE_BOUND, PROMPT_SIGMA = 3.0, 0.5
"""A prompt that takes this many decode steps is arithmetic for the most part: then the time of a token is known within
a factor of 1.6, as a prompt leaves little room for anything else."""

PRIOR_SIGMAS = StepLaw(0.25, 1.0, 0.5, 1.0, 0.25, 0.5, 1.5, 1.5)
"""The same for a law from elsewhere (a day-zero estimate): weights and KV reads follow from sizes and bandwidth."""


def guess(points: Sequence[Point], prior: StepLaw | None) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Logarithms of the eight coefficients, and their standard deviations: from `prior` where it has a value."""
    rough = np.array(law_of_points(points).seconds)
    centre, sigma = np.log(rough), np.array(DATA_SIGMAS.seconds)
    if ttft_s(longest_prompts(points)) > COMPUTE_BOUND * itl_s(min(points, key=in_flight)):
        sigma[COEFFICIENTS.index("token_s")] = PROMPT_SIGMA
    if prior is not None:
        values = np.array(prior.seconds)
        known = values > 0
        centre[known], sigma[known] = np.log(values[known]), np.array(PRIOR_SIGMAS.seconds)[known]
    return centre, sigma


def law_of_points(points: Sequence[Point]) -> StepLaw:
    """Coefficients in the range of these points' times, whatever the engine: a CPU's steps are 10 times a GPU's.

    One decode step at the lowest load is weights and overhead. Half of the rise of ITL with load is shared by KV reads
    and the cost per sequence, the longer the contexts the more to KV reads; the rest is arithmetic and prompts. The
    TTFT at the lowest load is the arithmetic of the prompt and the rest: a tenth of it taken for what a prompt costs
    the engine beside, three tenths for time outside it. Closed loops hardly part the two, and what is put down to the
    one is missing at the other: of several ways to part them this one errs least over four simulated engines, from none
    of the first to 1.5 ms and from 1 to 10 ms of the second (rms of the largest rate 2.8 %; a tenth for each 4.9 %).
    """
    calm = min(points, key=in_flight)
    busy = max(points, key=in_flight)
    long = longest_prompts(points)
    step_s = itl_s(calm)
    rise_s = max((itl_s(busy) - step_s) / max(in_flight(busy) - in_flight(calm), 1), 1e-3 * step_s)
    first_s = ttft_s(calm)
    prompt_s = ttft_s(long)
    token_s = min(prompt_s / long.isl, *(1 / (point.requests_per_s * (point.isl + point.osl)) for point in points))
    context = busy.isl + busy.osl / 2
    sequence_s = 0.5 * rise_s / (1 + context / KV_OF_SEQUENCE)
    rest_s = max(first_s - step_s, 0.1 * first_s)
    return StepLaw(
        weights_s=0.75 * step_s,
        overhead_s=0.2 * step_s,
        token_s=0.7 * token_s,
        sequence_s=sequence_s,
        kv_token_s=sequence_s / KV_OF_SEQUENCE,
        attention_s=0.05 * prompt_s / (long.isl**2 / 2),
        prefill_s=0.1 * rest_s,
        request_s=0.3 * rest_s,
    )


def longest_prompts(points: Sequence[Point]) -> Point:
    """The point of the longest prompts, at their lowest load."""
    return max(points, key=lambda point: (point.isl, -in_flight(point)))


def itl_s(point: Point) -> float:
    """Mean ITL of a point; where it was not measured, from Little's law, all of E2E taken for decoding."""
    return point.itl_mean_s or in_flight(point) / point.requests_per_s / point.osl


def ttft_s(point: Point) -> float:
    """Mean TTFT of a point; where it was not measured, what Little's law leaves beside the ITL, at least one step."""
    left_s = in_flight(point) / point.requests_per_s - (point.osl - 1) * itl_s(point)
    return point.ttft_mean_s or max(left_s, itl_s(point))
