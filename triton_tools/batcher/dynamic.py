"""The dynamic batcher as a discrete-event simulation: batches are formed ahead, and free instances take them."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from sizing.errors import ScenarioError
from triton_tools.batcher.config import DynamicBatching, ModelBatching
from triton_tools.batcher.forming import Former, Payload
from triton_tools.batcher.outcome import Batch, Outcome, Status, in_request_order
from triton_tools.batcher.requests import US, Requests, nanoseconds
from triton_tools.batcher.strategy import BatchStrategy
from triton_tools.batcher.waiting import WaitingRequests

ServiceTime = Callable[[int], float]
POLL_NS = 500_000_000
"""Time between two looks of the scheduler at its queue while no instance is free."""
AHEAD = 2
"""Payloads per instance that are formed ahead, unless the configuration rules it out."""


def simulate(
    model: ModelBatching,
    service: ServiceTime,
    requests: Requests,
    strategy: BatchStrategy | None = None,
    *,
    late_wakeup: bool = False,
) -> Outcome:
    """Run `requests` through the dynamic batcher of `model`; without a batcher, each request is one execution.

    `service`: seconds of one execution by its rows. Requests that arrive at the same moment are all queued before the
    batcher looks. `late_wakeup`: if batches are not formed ahead (because of priorities or a queue policy), Triton 2.51
    misses the signal that an instance is free and starts up to 500 ms late; False simulates what is documented.

    Raises:
        ScenarioError: the model has a sequence batcher, a request has more rows than max_batch_size, or the service
            times do not reach a batch size that occurs.
    """
    if model.sequence:
        raise ScenarioError(f"{model.name} has a sequence batcher: simulate sequences, not single requests")
    batcher = DynamicBatcher(model, service, requests, strategy, late_wakeup=late_wakeup)
    arrivals, upcoming, count = requests.arrival_ns, 0, len(requests)
    while True:
        following = batcher.next_ns()
        if upcoming < count and (following is None or arrivals[upcoming] <= following):
            following = arrivals[upcoming]
        if following is None:
            break
        batcher.complete(following)
        while upcoming < count and arrivals[upcoming] == following:
            batcher.add(upcoming, following)
            upcoming += 1
        batcher.settle(following)
    return batcher.finish()


class DynamicBatcher:
    """One model's scheduler and its instances. A driver adds requests and asks for the next moment.

    At each moment it calls `complete`, then `add` for each arrival, then `settle`.
    """

    def __init__(
        self,
        model: ModelBatching,
        service: ServiceTime,
        requests: Requests,
        strategy: BatchStrategy | None = None,
        *,
        late_wakeup: bool = False,
    ) -> None:
        self._check_rows(model, requests)
        self._batching = model.dynamic or DynamicBatching()
        self._model = model if model.dynamic else replace(model, dynamic=self._batching)
        self._single = model.dynamic is None
        self._requests = requests
        self._service_ns = _remembered(service)
        self._former = Former(self._model, requests, strategy)
        self._waiting = WaitingRequests(self._batching)
        self._ahead = AHEAD * model.instances if self._batching.prefetches else 0
        self._late_wakeup = late_wakeup and not self._ahead
        self._current = Payload()
        self._line: deque[Payload] = deque()
        self._idle = list(range(model.instances))
        self._busy: list[tuple[int, int, int]] = []  # end, batch number, instance
        self._wake_ns: int | None = None
        self._poll_ns: int | None = None
        self._asleep_until_ns = 0
        self._batches: list[Batch] = []
        self.arrived_ns = list(requests.arrival_ns)
        self._start_ns = [-1] * len(requests)
        self._response_ns = [-1] * len(requests)
        self._status: list[Status] = ["served"] * len(requests)

    @staticmethod
    def _check_rows(model: ModelBatching, requests: Requests) -> None:
        largest = max(requests.rows, default=0)
        if largest > model.rows:
            raise ScenarioError(
                f"inference request batch-size must be <= {model.rows} for '{model.name}', got {largest}"
            )

    def next_ns(self) -> int | None:
        """The next moment at which something happens without a new request; None if nothing will."""
        moments = [self._busy[0][0]] if self._busy else []
        moments += [moment for moment in (self._wake_ns, self._poll_ns) if moment is not None]
        return min(moments) if moments else None

    def complete(self, now_ns: int) -> list[int]:
        """The requests whose executions end now; their instances become free."""
        done: list[int] = []
        while self._busy and self._busy[0][0] <= now_ns:
            _, number, instance = heapq.heappop(self._busy)
            heapq.heappush(self._idle, instance)
            done.extend(self._batches[number].members)
            if self._late_wakeup and self._poll_ns is not None:
                self._asleep_until_ns = now_ns + POLL_NS
        return done

    def add(self, request: int, now_ns: int) -> None:
        """A request arrives; if its queue is full, it is refused at once."""
        self._asleep_until_ns = 0
        self.arrived_ns[request] = now_ns
        asked = self._requests
        rows, priority, timeout = asked.rows[request], asked.priority[request], asked.timeout_us[request]
        if not self._waiting.add(request, rows, priority, timeout, now_ns):
            self._refuse(request, "queue_full", now_ns)

    def settle(self, now_ns: int) -> None:
        """Form batches and give them to free instances until nothing more can be done now."""
        if now_ns < self._asleep_until_ns:
            self._wake_ns, self._poll_ns = self._asleep_until_ns, None
            return
        self._wake_ns = None
        changed = True
        while changed:
            changed = self._form(now_ns)
            changed |= self._dispatch(now_ns)

    def finish(self) -> Outcome:
        """What happened, to be asked when nothing more will."""
        self._former.close()
        if self._batching.preserve_ordering:
            self._hold_back_responses()
        return Outcome(
            requests=replace(self._requests, arrival_ns=self.arrived_ns),
            start_ns=np.array(self._start_ns, dtype=np.int64),
            response_ns=np.array(self._response_ns, dtype=np.int64),
            status=tuple(self._status),
            batches=tuple(self._batches),
            instances=self._model.instances,
        )

    def _form(self, now_ns: int) -> bool:
        """One look at the queue; True if a payload received requests or was sealed, or if requests were rejected."""
        if self._current.sealed:
            self._current = Payload()
        if not self._waiting.count:
            self._poll_ns = None
            return False
        if not self._slot_is_free():
            self._poll(now_ns)
            return False
        self._poll_ns = None
        step = self._former.form(self._current, self._waiting, self.arrived_ns, now_ns)
        self._wake_ns = step.wait_until_ns
        rejected = self._tell_rejected(now_ns)
        if step.count:
            self._move(1 if self._single else step.count)
        return bool(step.count or self._current.sealed or rejected)

    def _slot_is_free(self) -> bool:
        if self._ahead:
            return len(self._line) < self._ahead
        return len(self._idle) > len(self._line)

    def _poll(self, now_ns: int) -> None:
        """No instance can take more: look again in half a second, for late requests alone."""
        if self._ahead:  # in that case no request has a timeout
            return
        if self._poll_ns is None:
            self._poll_ns = now_ns + POLL_NS
        elif now_ns >= self._poll_ns:
            self._waiting.reject_expired(now_ns, self._requests.rows)
            self._tell_rejected(now_ns)
            self._poll_ns = now_ns + POLL_NS if self._waiting.count else None

    def _move(self, count: int) -> None:
        payload, rows = self._current, self._requests.rows
        taken = self._waiting.take(count, rows)
        oldest = min([self.arrived_ns[request] for request in taken])
        payload.oldest_ns = min(payload.oldest_ns, oldest) if payload.members else oldest
        payload.members += taken
        payload.rows += sum([rows[request] for request in taken])
        payload.sealed |= self._single
        if not payload.queued:
            payload.queued = True
            self._line.append(payload)

    def _dispatch(self, now_ns: int) -> bool:
        """Free instances take the payloads that have waited longest."""
        taken = False
        while self._line and self._idle:
            payload = self._line.popleft()
            payload.sealed = taken = True
            self._merge(payload, now_ns)
            self._start(payload, heapq.heappop(self._idle), now_ns)
        return taken

    def _merge(self, payload: Payload, now_ns: int) -> None:
        """With a delay, an instance merges the payloads behind its own into it if they are older than the delay."""
        delay_ns = self._batching.delay_us * US
        while delay_ns and payload.merges and self._line:
            behind = self._line[0]
            if not behind.merges or now_ns - behind.oldest_ns <= delay_ns:
                return
            behind.sealed = True
            if payload.rows + behind.rows > self._model.rows or payload.inputs != behind.inputs:
                return
            payload.members += behind.members
            payload.rows += behind.rows
            self._line.popleft()

    def _start(self, payload: Payload, instance: int, now_ns: int) -> None:
        end = now_ns + self._service_ns(payload.rows)
        heapq.heappush(self._busy, (end, len(self._batches), instance))
        self._batches.append(Batch(now_ns, end, instance, tuple(payload.members), payload.rows))
        for request in payload.members:
            self._start_ns[request] = now_ns
            self._response_ns[request] = end

    def _tell_rejected(self, now_ns: int) -> bool:
        told = self._waiting.rejected
        self._waiting.rejected = []
        for request in told:
            self._refuse(request, "timeout", now_ns)
        return bool(told)

    def _refuse(self, request: int, why: Status, now_ns: int) -> None:
        self._status[request] = why
        self._response_ns[request] = now_ns

    def _hold_back_responses(self) -> None:
        ends = [(request, batch.end_ns) for batch in self._batches for request in batch.members]
        for request, end in in_request_order(ends):
            self._response_ns[request] = end


def _remembered(service: ServiceTime) -> Callable[[int], int]:
    """The service time in whole nanoseconds; each size is computed once."""
    known: dict[int, int] = {}

    def service_ns(rows: int) -> int:
        if rows not in known:
            known[rows] = nanoseconds(service(rows))
        return known[rows]

    return service_ns
