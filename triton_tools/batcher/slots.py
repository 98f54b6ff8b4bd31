"""Which sequence has which slot: the open sequences, the free slots, and the backlog of sequences without one."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple


class Slot(NamedTuple):
    """A place for one sequence: `row` of the batch on `instance`. Slots are given out by row, then by instance."""

    row: int
    instance: int


@dataclass(slots=True, eq=False)
class OpenSequence:
    """A sequence between its START and the release of its slot. `waiting`: the steps that the batcher lacks yet.

    `closed`: no more steps will come, because END was seen or the sequence was idle for too long.
    """

    name: Hashable
    waiting: deque[int] = field(default_factory=deque)
    slot: Slot | None = None
    in_flight: bool = False
    closed: bool = False
    idle_at_ns: int = 0


class Slots:
    """Free slots and the first-come, first-served backlog for them."""

    def __init__(self, rows: int, instances: int) -> None:
        self._free = [Slot(row, instance) for row in range(rows) for instance in range(instances)]
        heapq.heapify(self._free)
        self.backlog: deque[OpenSequence] = deque()

    def claim(self, sequence: OpenSequence) -> None:
        """Give the sequence the lowest free slot, or a place in the backlog."""
        if self._free:
            sequence.slot = heapq.heappop(self._free)
        else:
            self.backlog.append(sequence)

    def release(self, slot: Slot) -> OpenSequence | None:
        """A slot becomes free: the first sequence of the backlog gets it and is returned."""
        if not self.backlog:
            heapq.heappush(self._free, slot)
            return None
        sequence = self.backlog.popleft()
        sequence.slot = slot
        return sequence
