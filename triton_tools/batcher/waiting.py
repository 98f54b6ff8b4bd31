"""The scheduler's queue: priority levels, each with its requests in time and, behind them, the delayed late ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from triton_tools.batcher.config import DynamicBatching, QueuePolicy
from triton_tools.batcher.requests import US


@dataclass(slots=True)
class Level:
    """One priority level: `in_time` holds requests and deadlines (ns; 0: none), `delayed` the requests past theirs."""

    policy: QueuePolicy
    in_time: deque[tuple[int, int]] = field(default_factory=deque)
    delayed: deque[int] = field(default_factory=deque)

    def __len__(self) -> int:
        return len(self.in_time) + len(self.delayed)


class WaitingRequests:
    """Requests, by number, that are in no batch yet; `rejected` collects those found expired under REJECT."""

    def __init__(self, batching: DynamicBatching) -> None:
        self._batching = batching
        self._levels: dict[int, Level] = {}
        self._order: list[Level] = []
        self.rejected: list[int] = []
        self.count = 0
        self.rows = 0

    def add(self, request: int, rows: int, priority: int, timeout_us: int, now_ns: int) -> bool:
        """Queue a request; False if its level is full (max_queue_size)."""
        level = self._level(self._batching.level_of(priority))
        if level.policy.max_size and len(level) >= level.policy.max_size:
            return False
        timeout = level.policy.timeout_of(timeout_us)
        level.in_time.append((request, now_ns + timeout * US if timeout else 0))
        self.count += 1
        self.rows += rows
        return True

    def walk(self, now_ns: int, rows: list[int]) -> Iterator[tuple[int, int]]:
        """Requests and deadlines in the order in which they would be served; expired ones are rejected or delayed.

        Only requests that the walk reaches are examined: a late one further back stays until then.
        """
        for level in self._order:
            place = 0
            while place < len(level.in_time):
                request, deadline = level.in_time[place]
                if deadline and now_ns > deadline:
                    del level.in_time[place]
                    self._expire(level, request, rows)
                else:
                    yield request, deadline
                    place += 1
            for request in level.delayed:
                yield request, 0

    def take(self, count: int, rows: list[int]) -> list[int]:
        """Remove the first `count` requests in the order of the walk."""
        taken: list[int] = []
        for level in self._order:
            while level.in_time and len(taken) < count:
                taken.append(level.in_time.popleft()[0])
            while level.delayed and len(taken) < count:
                taken.append(level.delayed.popleft())
        self.count -= len(taken)
        self.rows -= sum([rows[request] for request in taken])
        return taken

    def reject_expired(self, now_ns: int, rows: list[int]) -> None:
        """Reject late requests anywhere in the queue, as the scheduler does every 500 ms if no instance is free."""
        for level in self._order:
            if level.policy.timeout_action == "REJECT":
                for request, deadline in list(level.in_time):
                    if deadline and now_ns > deadline:
                        level.in_time.remove((request, deadline))
                        self._expire(level, request, rows)

    def _expire(self, level: Level, request: int, rows: list[int]) -> None:
        if level.policy.timeout_action == "DELAY":
            level.delayed.append(request)
            return
        self.rejected.append(request)
        self.count -= 1
        self.rows -= rows[request]

    def _level(self, number: int) -> Level:
        if number not in self._levels:
            self._levels[number] = Level(self._batching.policy_of(number))
            self._order = [self._levels[key] for key in sorted(self._levels)]
        return self._levels[number]
