"""The requests that a batcher receives, as columns, because a tuner draws hundreds of thousands of them.

The simulation counts time in whole nanoseconds, as Triton does, so comparisons with a delay or timeout are exact.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from sizing.errors import ScenarioError

NS = 1_000_000_000
US = 1_000
LONGEST_S = 1e9
"""The longest run: its nanoseconds, and a few standard deviations more, fit in 64 bits."""


def nanoseconds(seconds: float) -> int:
    """Seconds as the nearest whole nanoseconds."""
    return round(seconds * NS)


@dataclass(frozen=True, slots=True)
class Request:
    """One request: `rows` is its own batch size; `priority` and `timeout_us` are its parameters (0: not given).

    `inputs` stands for the shapes of its inputs and the set of optional ones: only requests that are equal in it share
    a batch.
    """

    arrival_s: float
    rows: int = 1
    priority: int = 0
    timeout_us: int = 0
    inputs: Hashable = None
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests as columns, in order of arrival."""

    arrival_ns: list[int]
    rows: list[int]
    priority: list[int]
    timeout_us: list[int]
    inputs: list[Hashable]
    size_bytes: list[int]

    def __len__(self) -> int:
        return len(self.arrival_ns)

    def __getitem__(self, index: int) -> Request:
        return Request(
            self.arrival_ns[index] / NS,
            self.rows[index],
            self.priority[index],
            self.timeout_us[index],
            self.inputs[index],
            self.size_bytes[index],
        )

    @classmethod
    def of(cls, requests: Sequence[Request]) -> Requests:
        """The columns of individual requests; those that arrive at the same moment keep their order.

        Raises:
            ScenarioError: a request has no rows, or arrives before 0.
        """
        for request in requests:
            if request.rows < 1 or not request.arrival_s >= 0:
                raise ScenarioError(f"a request needs at least 1 row and an arrival of 0 s or later, got {request}")
        ordered = sorted(requests, key=lambda request: nanoseconds(request.arrival_s))
        return cls(
            [nanoseconds(request.arrival_s) for request in ordered],
            [request.rows for request in ordered],
            [request.priority for request in ordered],
            [request.timeout_us for request in ordered],
            [request.inputs for request in ordered],
            [request.size_bytes for request in ordered],
        )

    @classmethod
    def at(cls, arrival_ns: list[int]) -> Requests:
        """Requests of one row each that differ only in their arrivals."""
        count = len(arrival_ns)
        return cls(arrival_ns, [1] * count, [0] * count, [0] * count, [None] * count, [0] * count)

    @classmethod
    def poisson(cls, rate_per_s: float, count: int, rng: np.random.Generator) -> Requests:
        """`count` requests of one row at random, `rate_per_s` per second on average.

        The same generator state gives the same arrivals at every rate, only stretched, so that rates compare without
        noise.
        """
        if not 0 < rate_per_s < 1e9 or count < 1:
            raise ScenarioError(f"rate must be above 0 and below 1e9 requests/s, got {rate_per_s:g}")
        if count > rate_per_s * LONGEST_S:
            raise ScenarioError(
                f"{count:,} requests at {rate_per_s:g} requests/s would take longer than {LONGEST_S:g} s: "
                "give a higher rate or fewer requests"
            )
        arrivals = np.cumsum(rng.exponential(size=count)) / rate_per_s
        return cls.at(np.rint(arrivals * NS).astype(np.int64).tolist())
