"""Which requests go into the next batch, and whether it goes now: the heart of the dynamic batcher."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from sizing.errors import ScenarioError
from triton_tools.batcher.config import ModelBatching
from triton_tools.batcher.requests import US, Requests
from triton_tools.batcher.strategy import BatchStrategy
from triton_tools.batcher.waiting import WaitingRequests


@dataclass(slots=True)
class Payload:
    """A batch that is being formed, or waits for an instance. A `sealed` one grows no more.

    `merges` is False if the next request did not fit its inputs or the strategy: then it is not merged with another
    batch either.
    """

    members: list[int] = field(default_factory=list)
    rows: int = 0
    sealed: bool = False
    merges: bool = True
    queued: bool = False
    oldest_ns: int = 0
    inputs: Hashable = None


@dataclass(frozen=True, slots=True)
class Step:
    """What one look at the queue decided: take `count` requests of `rows` in all, or look again at `wait_until_ns`."""

    count: int = 0
    rows: int = 0
    wait_until_ns: int | None = None


@dataclass(slots=True)
class Walk:
    """The candidates so far: their number, their rows, the remembered preferred point, and the times that matter."""

    count: int = 0
    rows: int = 0
    best: tuple[int, int] = (0, 0)
    cannot_grow: bool = False
    oldest_ns: int = 0
    deadline_ns: int = 0


class Former:
    """The rules of forming a batch for one model.

    Source: GetDynamicBatch of Triton's scheduler. Let P be the rows in the payload plus those of the candidates so far.
    Requests join while P is at most max_batch_size. The largest preferred P is remembered; if no preferred size was met
    when P passes the largest of them, the point before that is. Then, in this order: a remembered point goes now unless
    its oldest request has waited for the delay; a batch that cannot grow, or has the largest preferred size, goes as it
    is; so does one without a delay, or whose delay is over; anything else waits.
    """

    def __init__(self, model: ModelBatching, requests: Requests, strategy: BatchStrategy | None) -> None:
        assert model.dynamic is not None
        self._requests = requests
        self._most = model.rows
        self._preferred = frozenset(model.dynamic.preferred or (model.rows,))
        self._largest = max(self._preferred)
        self._delay_ns = model.dynamic.delay_us * US
        self._strategy = strategy
        self._batcher: Any = strategy.batcher_initialize(model) if strategy else None

    def close(self) -> None:
        """The model is unloaded."""
        if self._strategy:
            self._strategy.batcher_finalize(self._batcher)

    def form(self, payload: Payload, waiting: WaitingRequests, arrived_ns: list[int], now_ns: int) -> Step:
        """Decide for `payload` at `now_ns`, and seal it if it must grow no more."""
        walk = self._walk(payload, waiting, arrived_ns, now_ns)
        late = self._delay_ns > 0 and walk.count > 0 and now_ns - walk.oldest_ns >= self._delay_ns
        count, rows = walk.best
        if rows and not late:
            payload.sealed |= self._delay_ns == 0
            return Step(count, rows)
        if not walk.count:
            return Step()
        if walk.cannot_grow or payload.rows + walk.rows >= self._largest:
            payload.sealed = True
            return Step(walk.count, walk.rows)
        # a waiting payload grows at once, unless it has a preferred size, which it leaves only for a better one
        grows = payload.members and payload.rows not in self._preferred and not payload.sealed
        if late or self._delay_ns == 0 or grows:
            return Step(walk.count, walk.rows)
        due = walk.oldest_ns + self._delay_ns
        # a request at its deadline is still in time: it is late one nanosecond after that
        return Step(wait_until_ns=min(due, walk.deadline_ns + 1) if walk.deadline_ns else due)

    def _walk(self, payload: Payload, waiting: WaitingRequests, arrived_ns: list[int], now_ns: int) -> Walk:
        walk, rows_of, inputs = Walk(), self._requests.rows, self._requests.inputs
        record = self._replayed(payload) if self._strategy else None
        for request, deadline in waiting.walk(now_ns, rows_of):
            rows = rows_of[request]
            sum_rows = payload.rows + walk.rows + rows
            if not payload.members and not walk.count:
                payload.inputs = inputs[request]
            else:
                if sum_rows > self._largest and not walk.best[1]:
                    walk.best = (walk.count, walk.rows)
                    payload.sealed = True
                if sum_rows > self._most:
                    walk.cannot_grow = True
                    break
                if inputs[request] != payload.inputs:
                    self._end(payload, walk)
                    break
            if self._strategy and not self._strategy.include_request(self._requests[request], record):
                if not payload.members and not walk.count:
                    raise ScenarioError(f"the batching strategy refuses request {request} even in an empty batch")
                self._end(payload, walk)
                break
            self._advance(walk, request, rows, deadline, arrived_ns[request])
            if sum_rows in self._preferred:
                walk.best = (walk.count, walk.rows)
        if self._strategy:
            self._strategy.batch_finalize(record)
        return walk

    @staticmethod
    def _advance(walk: Walk, request: int, rows: int, deadline: int, arrived_ns: int) -> None:
        walk.oldest_ns = min(walk.oldest_ns, arrived_ns) if walk.count else arrived_ns
        if deadline:
            walk.deadline_ns = min(walk.deadline_ns, deadline) if walk.deadline_ns else deadline
        walk.count += 1
        walk.rows += rows

    @staticmethod
    def _end(payload: Payload, walk: Walk) -> None:
        walk.cannot_grow = payload.sealed = True
        payload.merges = False

    def _replayed(self, payload: Payload) -> Any:
        """A new record that includes the requests already in the payload: every look at the queue starts with one."""
        assert self._strategy is not None
        record = self._strategy.batch_initialize(self._batcher)
        for request in payload.members:
            self._strategy.include_request(self._requests[request], record)
        return record
