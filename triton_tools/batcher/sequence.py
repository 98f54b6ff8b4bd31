"""The sequence batcher as a discrete-event simulation: stateful sequences, and iterative ones (continuous batching)."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

from sizing.errors import ScenarioError
from triton_tools.batcher.config import ModelBatching, SequenceBatching
from triton_tools.batcher.lanes import DirectLanes, Execution, Lanes, OldestLanes
from triton_tools.batcher.requests import NS, US, nanoseconds
from triton_tools.batcher.slots import OpenSequence, Slots

ServiceTime = Callable[[int], float]


@dataclass(frozen=True, slots=True)
class Step:
    """One request of a sequence, as a client sends it: the first has START, the last END."""

    sequence: Hashable
    arrival_s: float
    start: bool = False
    end: bool = False


@dataclass(frozen=True, slots=True)
class IterativeRequest:
    """One request that takes `steps` executions: the model reschedules it after each but the last."""

    sequence: Hashable
    arrival_s: float
    steps: int


@dataclass(frozen=True, slots=True)
class StepResult:
    """What became of a step. `refused`: the message to its client; start and response are then the time of arrival."""

    step: Step
    start_s: float
    response_s: float
    refused: str = ""


@dataclass(frozen=True, slots=True)
class SequenceOutcome:
    """A finished run: the results of all steps, rescheduled ones included, and the executions."""

    model: ModelBatching
    results: tuple[StepResult, ...]
    executions: tuple[Execution, ...]

    def rows(self) -> list[tuple[float, tuple[Hashable | None, ...]]]:
        """The start in seconds and the sequence in each row of each execution; None is a null request."""
        steps = self.results
        return [
            (run.start_ns / NS, tuple(None if step is None else steps[step].step.sequence for step in run.steps))
            for run in self.executions
        ]

    def controls(self, execution: Execution) -> dict[str, list[Hashable]]:
        """What the control inputs of the configuration hold in this execution, row by row.

        For a null request, READY has its value for no, the correlation id is 0, and other controls mean nothing.
        """
        assert self.model.sequence is not None
        held: dict[str, list[Hashable]] = {}
        for control in self.model.sequence.controls:
            held[control.name] = [self._held(control.kind, control.values, step) for step in execution.steps]
        return held

    def _held(self, kind: str, values: tuple[float, float] | None, number: int | None) -> Hashable:
        step = None if number is None else self.results[number].step
        if values is None:
            return step.sequence if step else 0
        says = {"START": step is not None and step.start, "END": step is not None and step.end}
        return values[says.get(kind, step is not None)]


def simulate_sequences(model: ModelBatching, service: ServiceTime, steps: Sequence[Step]) -> SequenceOutcome:
    """Run the steps of sequences; each is sent at its time, whatever became of the one before.

    `service`: seconds of one execution by its rows, null requests included.

    Raises:
        ScenarioError: the model has no sequence batcher, or an iterative one.
    """
    if _batching(model).iterative:
        raise ScenarioError(f"{model.name} has iterative sequences: give one request for each sequence")
    return _SequenceBatcher(model, service, sorted(steps, key=lambda step: nanoseconds(step.arrival_s)), {}).run()


def simulate_iterative(
    model: ModelBatching, service: ServiceTime, requests: Sequence[IterativeRequest]
) -> SequenceOutcome:
    """Run iterative sequences: after each execution a request is either answered or queued again at once.

    Raises:
        ScenarioError: the model's sequence batcher is not iterative, a request has no step, or a name is used twice.
    """
    if not _batching(model).iterative:
        raise ScenarioError(f"{model.name}: sequence_batching.iterative_sequence is not set")
    if len({request.sequence for request in requests}) < len(requests):
        raise ScenarioError("every iterative request is a sequence of its own: give each another name")
    if any(request.steps < 1 for request in requests):
        raise ScenarioError("an iterative request needs at least one step")
    ordered = sorted(requests, key=lambda request: nanoseconds(request.arrival_s))
    first = [Step(request.sequence, request.arrival_s, start=True) for request in ordered]
    again = {number: request.steps - 1 for number, request in enumerate(ordered)}
    return _SequenceBatcher(model, service, first, again).run()


def _batching(model: ModelBatching) -> SequenceBatching:
    if model.sequence is None:
        raise ScenarioError(f"{model.name} has no sequence batcher: add sequence_batching to its configuration")
    return model.sequence


class _SequenceBatcher:
    """The slots, the backlog and the idle sequences around the lanes of a strategy.

    `again`: for the first step of each iterative request, how many more it takes; they are appended to the steps as
    they become due.
    """

    def __init__(self, model: ModelBatching, service: ServiceTime, steps: list[Step], again: dict[int, int]) -> None:
        batching = _batching(model)
        self._model, self._steps, self._again = model, list(steps), again
        self._arrived_ns = [nanoseconds(step.arrival_s) for step in steps]
        self._sent = len(steps)
        oldest = batching.strategy == "oldest"
        self._slots = Slots(batching.max_candidates if oldest else model.rows, model.instances)
        self._lanes: Lanes = (
            OldestLanes(model, service, self._sent + sum(again.values()))
            if oldest
            else DirectLanes(model, service, self._arrived_ns)
        )
        self._idle_ns = batching.idle_us * US
        self._open: dict[Hashable, OpenSequence] = {}
        self._of_step: dict[int, OpenSequence] = {}
        self._idle: list[tuple[int, int, OpenSequence]] = []
        self._refused: dict[int, str] = {}

    def run(self) -> SequenceOutcome:
        upcoming = 0
        while True:
            moments = [self._arrived_ns[upcoming]] if upcoming < self._sent else []
            moments += [moment for moment in (self._lanes.next_ns(), self._next_idle_ns()) if moment is not None]
            if not moments:
                return self._outcome()
            now = min(moments)
            for step in self._lanes.complete(now):
                self._completed(step, now)
            while upcoming < self._sent and self._arrived_ns[upcoming] == now:
                self._arrived(upcoming, now)
                upcoming += 1
            self._close_idle(now)
            self._lanes.settle(now)

    def _arrived(self, number: int, now_ns: int) -> None:
        step = self._steps[number]
        sequence = self._open.get(step.sequence)
        if (sequence is None or sequence.closed) and not step.start:
            self._refused[number] = (
                f"inference request for sequence {step.sequence} to model '{self._model.name}' must specify the START "
                "flag on the first request of the sequence"
            )
            return
        if sequence is None or sequence.closed:
            sequence = self._open[step.sequence] = OpenSequence(step.sequence)
            self._slots.claim(sequence)
        self._of_step[number] = sequence
        sequence.waiting.append(number)
        sequence.closed |= step.end
        sequence.idle_at_ns = now_ns + self._idle_ns
        if not self._again:  # an iterative sequence is one request, so it is never idle
            heapq.heappush(self._idle, (sequence.idle_at_ns, number, sequence))
        self._offer(sequence, now_ns)

    def _completed(self, number: int, now_ns: int) -> None:
        sequence = self._of_step[number]
        sequence.in_flight = False
        if self._again:
            self._reschedule(number, sequence, now_ns)
        self._offer(sequence, now_ns)

    def _reschedule(self, number: int, sequence: OpenSequence, now_ns: int) -> None:
        left = self._again.get(number, 0)
        if not left:
            sequence.closed = True
            return
        following = len(self._steps)
        self._steps.append(Step(sequence.name, now_ns / NS))
        self._arrived_ns.append(now_ns)
        self._again[following] = left - 1
        self._of_step[following] = sequence
        sequence.waiting.append(following)

    def _offer(self, sequence: OpenSequence, now_ns: int) -> None:
        """Give the lanes the sequence's next step; if no more will come, give its slot to the next sequence."""
        if sequence.slot is None or sequence.in_flight:
            return
        if sequence.waiting:
            sequence.in_flight = True
            self._lanes.put(sequence.waiting.popleft(), sequence.slot, now_ns)
        elif sequence.closed:
            slot, sequence.slot = sequence.slot, None
            if self._open.get(sequence.name) is sequence:
                del self._open[sequence.name]
            following = self._slots.release(slot)
            if following:
                self._offer(following, now_ns)

    def _next_idle_ns(self) -> int | None:
        while self._idle and (self._idle[0][2].closed or self._idle[0][0] < self._idle[0][2].idle_at_ns):
            heapq.heappop(self._idle)
        return self._idle[0][0] if self._idle else None

    def _close_idle(self, now_ns: int) -> None:
        while (moment := self._next_idle_ns()) is not None and moment <= now_ns:
            sequence = self._idle[0][2]
            sequence.closed = True
            self._offer(sequence, now_ns)

    def _outcome(self) -> SequenceOutcome:
        executions, responses = self._lanes.finish()
        starts = {step: run.start_ns for run in executions for step in run.steps if step is not None}
        results = []
        for number, step in enumerate(self._steps):
            arrived = self._arrived_ns[number]
            start, response = starts.get(number, arrived) / NS, responses.get(number, arrived) / NS
            results.append(StepResult(replace(step), start, response, self._refused.get(number, "")))
        return SequenceOutcome(self._model, tuple(results), tuple(executions))
