"""How sure the means of a point are: the requests of a window as series of batches, and the half widths they give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from calibration.metrics.intervals import Floats, batch_means, batch_rates, batches, half_width

Mean = Literal["ttft_mean", "itl_mean", "e2e_mean", "requests_per_s"]
MEANS: tuple[Mean, ...] = get_args(Mean)


@dataclass(frozen=True, slots=True)
class Answers:
    """Answered requests in any order, arrays of shape (n,); E2E from `due_s` to `last_s`, `itl_s` NaN where unknown.

    Requests from before the window belong in it too if they end inside: rates count their share.
    """

    due_s: Floats
    last_s: Floats
    ttft_s: Floats
    itl_s: Floats


def series(answers: Answers, window_s: tuple[float, float]) -> dict[Mean, Floats]:
    """Batch means by time over the window; nothing where it is too short for eight waves (`intervals.batches`).

    Latencies are batched by the time due and taken of all requests that fell due inside, so that neither long nor short
    ones are preferred at the edges. ITL is left out where a batch has none.
    """
    in_flight, cohort = _in_flight(answers, window_s), _cohort(answers, window_s)
    cut = batches(len(cohort.due_s), in_flight)
    if cut is None:
        return {}
    found: dict[Mean, Floats] = {
        "ttft_mean": batch_means(cohort.ttft_s, cut),
        "e2e_mean": batch_means(cohort.last_s - cohort.due_s, cut),
        "requests_per_s": batch_rates(answers.due_s, answers.last_s, window_s, cut.count),
    }
    known = cohort.itl_s[np.isfinite(cohort.itl_s)]
    cut = batches(len(known), in_flight)
    return found if cut is None else found | {"itl_mean": batch_means(known, cut)}


def half_widths(found: dict[Mean, Floats], confidence: float) -> dict[Mean, float]:
    """Relative half widths of the confidence intervals of the means of `series`."""
    return {name: half_width(means, confidence) / float(means.mean()) for name, means in found.items() if means.any()}


def waves(answers: Answers, window_s: tuple[float, float]) -> float:
    """How many times the requests in flight were replaced over the window."""
    in_flight = _in_flight(answers, window_s)
    return len(_cohort(answers, window_s).due_s) / in_flight if in_flight else 0.0


def _in_flight(answers: Answers, window_s: tuple[float, float]) -> float:
    start_s, stop_s = window_s
    inside_s = np.minimum(answers.last_s, stop_s) - np.maximum(answers.due_s, start_s)
    return float(np.maximum(0.0, inside_s).sum()) / (stop_s - start_s)


def _cohort(answers: Answers, window_s: tuple[float, float]) -> Answers:
    """The requests that fell due inside the window, in that order."""
    order = np.argsort(answers.due_s, kind="stable")
    due_s = answers.due_s[order]
    order = order[(window_s[0] <= due_s) & (due_s < window_s[1])]
    return Answers(answers.due_s[order], answers.last_s[order], answers.ttft_s[order], answers.itl_s[order])
