"""The result of a run of the lesson: its steps, its first and last tokens, and figures computed from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

EMPTY, PREFILL, DECODE = "e", "p", "d"
"""Letters of a slot's stage during a step."""


class Held(NamedTuple):
    """A slot during a step: its stage and, if in use, its request, the tokens so far and the age in ticks."""

    stage: str
    request: int = -1
    tokens: int = 0
    age_ticks: float = 0.0


class Step(NamedTuple):
    """One step of the engine: its start and length, the state of each slot, and the number of waiting requests."""

    start: float
    ticks: float
    slots: tuple[Held, ...]
    queue: int

    @property
    def letters(self) -> str:
        """The stages of all slots, the first slot first."""
        return "".join(held.stage for held in self.slots)


class Mark(NamedTuple):
    """A first or last token: its time, its latency, its request, and that request's tokens so far."""

    at: float
    latency_ticks: float
    request: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run: its steps, first tokens, last tokens, gaps as the lesson samples them, tokens made, the time it ended.

    `itl_ticks` holds the length of a step for each request that has two tokens or more when the step begins: the gap
    between its first and second token is not among them. `figures` gives the mean over all gaps beside it.
    """

    steps: tuple[Step, ...]
    first: tuple[Mark, ...]
    last: tuple[Mark, ...]
    itl_ticks: tuple[float, ...]
    tokens: int
    end: float

    @property
    def queue(self) -> int:
        """Requests that wait when the run ends."""
        return self.steps[-1].queue


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a run. Latencies in ticks, None where nothing was recorded; rates per 1,000 ticks of an instance.

    `ttft_*` over all first tokens, requests in progress included; `e2e_*` over completed requests. `gap_mean` is
    (E2E - TTFT) / (tokens - 1) averaged over completed requests of two tokens or more. `empty` is the share of
    slot time in which a slot is idle. p50 is the median.
    """

    completed: int
    end: float
    e2e_mean: float | None
    e2e_p50: float | None
    ttft_mean: float | None
    ttft_p50: float | None
    itl_mean: float | None
    itl_p50: float | None
    gap_mean: float | None
    requests_per_1k: float
    tokens_per_1k: float
    queue: int
    empty: float


def figures(outcome: Outcome) -> Figures:
    """The figures of a run."""
    e2e = [mark.latency_ticks for mark in outcome.last]
    ttft = [mark.latency_ticks for mark in outcome.first]
    return Figures(
        completed=len(e2e),
        end=outcome.end,
        e2e_mean=mean(e2e),
        e2e_p50=median(e2e),
        ttft_mean=mean(ttft),
        ttft_p50=median(ttft),
        itl_mean=mean(outcome.itl_ticks),
        itl_p50=median(outcome.itl_ticks),
        gap_mean=mean(gaps(outcome)),
        requests_per_1k=1000 * len(e2e) / outcome.end,
        tokens_per_1k=1000 * outcome.tokens / outcome.end,
        queue=outcome.queue,
        empty=empty_share(outcome.steps),
    )


def gaps(outcome: Outcome) -> list[float]:
    """Mean gap after the first token of each completed request of two tokens or more."""
    first = {mark.request: mark.at for mark in outcome.first}
    long = (mark for mark in outcome.last if mark.tokens > 1)
    return [(mark.at - first[mark.request]) / (mark.tokens - 1) for mark in long]


def empty_share(steps: Sequence[Step]) -> float:
    """Slot time without a request over all slot time: the grey of the picture."""
    idle = sum(step.letters.count(EMPTY) * step.ticks for step in steps)
    return idle / sum(len(step.slots) * step.ticks for step in steps)


def mean(values: Sequence[float]) -> float | None:
    """The mean; None for no values."""
    return float(np.mean(values)) if values else None


def median(values: Sequence[float]) -> float | None:
    """The 50th percentile; None for no values."""
    return float(np.median(values)) if values else None
