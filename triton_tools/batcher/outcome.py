"""What a simulated batcher did: batches, waiting times, rejections, and the counters that Triton would show."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from triton_tools.batcher.requests import NS, Requests

Status = Literal["served", "timeout", "queue_full"]


@dataclass(frozen=True, slots=True)
class Batch:
    """One execution on one instance: `members` are the numbers of its requests in the order of the batch."""

    start_ns: int
    end_ns: int
    instance: int
    members: tuple[int, ...]
    rows: int


@dataclass(frozen=True, slots=True)
class Counters:
    """Triton's counters of one model (nv_inference_...) after the last request.

    `request_success`, `count` (inferences, that is rows), `exec_count` (batches), and `request_failure` by reason.
    Requests that a full queue turned away are in none of Triton's counters: `queue_full` counts them here. Durations
    are summed over requests, so a batch's compute time counts once for each of its requests.
    """

    request_success: int
    request_failure: dict[str, int]
    count: int
    exec_count: int
    queue_duration_us: float
    compute_infer_duration_us: float
    queue_full: int

    @property
    def mean_batch(self) -> float:
        """Mean rows per execution, count / exec_count."""
        return self.count / self.exec_count if self.exec_count else math.nan


@dataclass(frozen=True, slots=True)
class Outcome:
    """A finished run. By request: `start_ns`, `response_ns` (also of a rejection) and `status`."""

    requests: Requests
    start_ns: npt.NDArray[np.int64]
    response_ns: npt.NDArray[np.int64]
    status: tuple[Status, ...]
    batches: tuple[Batch, ...]
    instances: int

    @property
    def served(self) -> npt.NDArray[np.bool_]:
        """Which requests were served."""
        return np.array([status == "served" for status in self.status], dtype=bool)

    @property
    def waiting_s(self) -> npt.NDArray[np.float64]:
        """Seconds from arrival to the start of the execution, of each served request."""
        return (self.start_ns - self._arrival_ns)[self.served] / NS

    @property
    def latency_s(self) -> npt.NDArray[np.float64]:
        """Seconds from arrival to response, of each served request."""
        return (self.response_ns - self._arrival_ns)[self.served] / NS

    def at_percentile_s(self, q: float) -> float:
        """Seconds within which q % of all requests have their response; infinite if too many are refused for that."""
        return percentile(np.concatenate([self.latency_s, np.full(self.rejected, math.inf)]), q)

    @property
    def rejected(self) -> int:
        """Requests refused, for either reason."""
        return len(self.status) - int(self.served.sum())

    @property
    def batch_sizes(self) -> dict[int, int]:
        """The number of executions by their rows, as in Triton's batch_stats."""
        return dict(sorted(Counter(batch.rows for batch in self.batches).items()))

    @property
    def utilization(self) -> float:
        """Fraction of the time, from the first arrival to the last response, that the instances were executing."""
        span = int(self.response_ns.max()) - self.requests.arrival_ns[0] if len(self.status) else 0
        busy = sum(batch.end_ns - batch.start_ns for batch in self.batches)
        return busy / (span * self.instances) if span else 0.0

    @property
    def counters(self) -> Counters:
        """Triton's counters after the run."""
        by_status = Counter(self.status)
        compute = sum((batch.end_ns - batch.start_ns) * len(batch.members) for batch in self.batches)
        return Counters(
            request_success=by_status["served"],
            request_failure={"REJECTED": by_status["timeout"]},
            count=sum(batch.rows for batch in self.batches),
            exec_count=len(self.batches),
            queue_duration_us=float(self.waiting_s.sum()) * 1e6,
            compute_infer_duration_us=compute / 1e3,
            queue_full=by_status["queue_full"],
        )

    def members(self) -> list[tuple[float, tuple[int, ...]]]:
        """The start in seconds and the request numbers of each batch, in order of start."""
        return [(batch.start_ns / NS, batch.members) for batch in self.batches]

    @property
    def _arrival_ns(self) -> npt.NDArray[np.int64]:
        return np.array(self.requests.arrival_ns, dtype=np.int64)


def percentile(values: npt.NDArray[np.float64], q: float) -> float:
    """The q-th percentile: the smallest value that at least q % of the values do not exceed; NaN if there are none."""
    return float(np.percentile(values, q, method="inverted_cdf")) if len(values) else math.nan


def in_request_order(ends: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Requests and their ends in the order in which they were taken, no end before an earlier one (preserve_ordering).

    >>> in_request_order([(0, 30), (1, 10), (2, 40)])
    [(0, 30), (1, 30), (2, 40)]
    """
    latest = 0
    ordered = []
    for request, end in ends:
        latest = max(latest, end)
        ordered.append((request, latest))
    return ordered
