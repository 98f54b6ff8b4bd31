"""How steps of sequences become executions: direct (each sequence keeps its row) or oldest (a dynamic batcher).

Both hold at most one step of each sequence, and have the same methods, which the driver calls in turn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from triton_tools.batcher.config import DynamicBatching, ModelBatching
from triton_tools.batcher.dynamic import DynamicBatcher
from triton_tools.batcher.requests import US, Requests, nanoseconds
from triton_tools.batcher.slots import Slot


@dataclass(frozen=True, slots=True)
class Execution:
    """One execution: its `steps` by row. None is a null request, which keeps later rows in place (READY = 0)."""

    start_ns: int
    end_ns: int
    instance: int
    steps: tuple[int | None, ...]


class Lanes(Protocol):
    """What the sequence batcher needs from a strategy."""

    def next_ns(self) -> int | None:
        """The next moment at which something happens without a new step."""

    def complete(self, now_ns: int) -> list[int]:
        """Steps whose executions end now."""

    def put(self, step: int, slot: Slot, now_ns: int) -> None:
        """A step is ready for execution in its sequence's slot."""

    def settle(self, now_ns: int) -> None:
        """Start every execution that can start now."""

    def finish(self) -> tuple[list[Execution], dict[int, int]]:
        """The executions, and when each step was answered."""


@dataclass(slots=True)
class _Instance:
    """The ready step of each row, since when it has been ready, and the execution in progress."""

    ready: dict[int, tuple[int, int]]
    running: Execution | None = None
    wake_ns: int | None = None


class DirectLanes:
    """The strategy direct: an execution takes the ready step of every row from 0 to the highest ready one.

    It starts as soon as the instance is free; with `minimum_utilization` and a delay, only once that fraction of the
    rows is ready or the oldest ready step has waited longer than the delay.
    """

    def __init__(self, model: ModelBatching, service: Callable[[int], float], arrived_ns: list[int]) -> None:
        assert model.sequence is not None
        self._rows = model.rows
        self._service = service
        self._share = model.sequence.minimum_utilization
        self._delay_ns = model.sequence.delay_us * US
        self._arrived_ns = arrived_ns
        self._instances = [_Instance({}) for _ in range(model.instances)]
        self._executions: list[Execution] = []

    def next_ns(self) -> int | None:
        moments = [instance.running.end_ns for instance in self._instances if instance.running]
        moments += [instance.wake_ns for instance in self._instances if instance.wake_ns is not None]
        return min(moments) if moments else None

    def complete(self, now_ns: int) -> list[int]:
        done: list[int] = []
        for instance in self._instances:
            if instance.running and instance.running.end_ns <= now_ns:
                done += [step for step in instance.running.steps if step is not None]
                instance.running = None
        return done

    def put(self, step: int, slot: Slot, now_ns: int) -> None:
        self._instances[slot.instance].ready[slot.row] = (step, self._arrived_ns[step])

    def settle(self, now_ns: int) -> None:
        for number, instance in enumerate(self._instances):
            instance.wake_ns = None
            if instance.running or not instance.ready:
                continue
            due = self._due_ns(instance)
            if due is not None and now_ns < due:
                instance.wake_ns = due
                continue
            highest = max(instance.ready)
            steps = [instance.ready[row][0] if row in instance.ready else None for row in range(highest + 1)]
            instance.ready.clear()
            end = now_ns + nanoseconds(self._service(len(steps)))
            instance.running = Execution(now_ns, end, number, tuple(steps))
            self._executions.append(instance.running)

    def finish(self) -> tuple[list[Execution], dict[int, int]]:
        ends = {step: run.end_ns for run in self._executions for step in run.steps if step is not None}
        return self._executions, ends

    def _due_ns(self, instance: _Instance) -> int | None:
        """When an execution that has too few rows starts all the same; None if it may start at once."""
        if not self._delay_ns or len(instance.ready) / self._rows >= self._share:
            return None
        return min(since for _, since in instance.ready.values()) + self._delay_ns + 1  # the wait must exceed the delay


class OldestLanes:
    """The strategy oldest: each instance has a dynamic batcher for the steps of its candidate sequences."""

    def __init__(self, model: ModelBatching, service: Callable[[int], float], steps: int) -> None:
        assert model.sequence is not None
        given = model.sequence
        inner = ModelBatching(
            name=model.name,
            max_batch_size=model.rows,
            dynamic=DynamicBatching(given.preferred, given.delay_us, given.preserve_ordering),
        )
        requests = Requests.at([0] * steps)
        self._batchers = [DynamicBatcher(inner, service, requests) for _ in range(model.instances)]

    def next_ns(self) -> int | None:
        moments = [moment for batcher in self._batchers if (moment := batcher.next_ns()) is not None]
        return min(moments) if moments else None

    def complete(self, now_ns: int) -> list[int]:
        return [step for batcher in self._batchers for step in batcher.complete(now_ns)]

    def put(self, step: int, slot: Slot, now_ns: int) -> None:
        self._batchers[slot.instance].add(step, now_ns)

    def settle(self, now_ns: int) -> None:
        for batcher in self._batchers:
            batcher.settle(now_ns)

    def finish(self) -> tuple[list[Execution], dict[int, int]]:
        executions: list[Execution] = []
        responses: dict[int, int] = {}
        for instance, batcher in enumerate(self._batchers):
            outcome = batcher.finish()
            for batch in outcome.batches:
                executions.append(Execution(batch.start_ns, batch.end_ns, instance, batch.members))
                responses |= {step: int(outcome.response_ns[step]) for step in batch.members}
        return sorted(executions, key=lambda execution: execution.start_ns), responses
