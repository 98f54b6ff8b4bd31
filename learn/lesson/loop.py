"""The lesson's engine, step by step: compute, record latencies, free slots, accept requests, fill slots, repeat."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from learn.lesson.outcome import DECODE, EMPTY, PREFILL, Held, Mark, Outcome, Step
from learn.lesson.setting import Load, Setting

SHORTEST_STEP = 1.0
"""Ticks of a step that computes nothing, and the minimum of any other step."""


@dataclass(slots=True)
class Request:
    """A request in the queue or in a slot."""

    number: int
    queued_at: float
    target_tokens: int
    chunks_left: int
    tokens: int = 0

    @property
    def stage(self) -> str:
        return PREFILL if self.chunks_left else DECODE

    def advance(self) -> None:
        """One step: a chunk of the prompt, the last of which yields token 1, or one more token."""
        if self.chunks_left:
            self.chunks_left -= 1
            self.tokens = 0 if self.chunks_left else 1
        else:
            self.tokens += 1


def draws(seed: int) -> np.random.RandomState:
    """The stream of normal draws that reproduces the published runs of this lesson exactly."""
    return np.random.RandomState(seed)


def run(setting: Setting, rng: np.random.RandomState | None = None) -> Outcome:
    """Simulate `setting`; lengths are drawn from `rng`, or from a stream of the setting's own seed.

    >>> run(Setting(load=Load("batch", 1), mean_tokens=4, std_tokens=0, ticks=10)).last[0].latency_ticks
    5.0
    """
    engine = Engine(setting, rng or draws(setting.seed))
    while engine.now < setting.ticks:
        engine.step()
    return engine.outcome()


class Engine:
    """Slots, queue and clock of one run, and what has been recorded so far."""

    def __init__(self, setting: Setting, rng: np.random.RandomState) -> None:
        self.setting = setting
        self.rng = rng
        self.now = 0.0
        self.came_until = 0.0
        self.created = 0
        self.slots: list[Request | None] = [None] * setting.slots
        self.queue: deque[Request] = deque()
        self.steps: list[Step] = []
        self.first: list[Mark] = []
        self.last: list[Mark] = []
        self.itl_ticks: list[float] = []
        self.tokens_done = 0

    @property
    def in_slots(self) -> list[Request]:
        return [request for request in self.slots if request is not None]

    def step(self) -> None:
        """End the current step and begin the next."""
        for request in self.in_slots:
            request.advance()
            self._note(request)
        self._free_slots()
        self._let_come()
        self._fill_slots()
        ticks = step_ticks(self.setting, self.in_slots)
        self.steps.append(Step(self.now, ticks, tuple(map(self._held, self.slots)), len(self.queue)))
        self.itl_ticks += [ticks for request in self.in_slots if request.tokens > 1]
        self.now += ticks

    def _note(self, request: Request) -> None:
        mark = Mark(self.now, self.now - request.queued_at, request.number, request.tokens)
        if request.tokens == 1:
            self.first.append(mark)
        if request.tokens == request.target_tokens:
            self.last.append(mark)
            self.tokens_done += request.tokens

    def _free_slots(self) -> None:
        self.slots = [
            None if request is None or request.tokens == request.target_tokens else request for request in self.slots
        ]

    def _let_come(self) -> None:
        count = coming(self.setting.load, self.came_until, self.now, len(self.in_slots) + len(self.queue), self.steps)
        self.came_until = self.now
        for _ in range(count):
            drawn = self.rng.normal(self.setting.mean_tokens, abs(self.setting.std_tokens))  # -0.0 is no scale
            tokens = int(max(drawn, 1))
            self.queue.append(Request(self.created, self.now, tokens, self.setting.chunks))
            self.created += 1

    def _fill_slots(self) -> None:
        for place in admitted(self.setting, self.slots)[: len(self.queue)]:
            self.slots[place] = self.queue.popleft()

    def _held(self, request: Request | None) -> Held:
        if request is None:
            return Held(EMPTY)
        return Held(request.stage, request.number, request.tokens, self.now - request.queued_at)

    def outcome(self) -> Outcome:
        """Everything recorded; tokens of requests in progress count."""
        tokens = self.tokens_done + sum(request.tokens for request in self.in_slots)
        return Outcome(tuple(self.steps), tuple(self.first), tuple(self.last), tuple(self.itl_ticks), tokens, self.now)


def step_ticks(setting: Setting, running: list[Request]) -> float:
    """Ticks of a step: prompts add up (they are compute-bound), tokens share one pass (memory-bound)."""
    prompts = [setting.prefill_ticks / setting.chunks for request in running if request.stage == PREFILL]
    tokens = setting.itl_ticks if len(running) > len(prompts) else 0.0
    return max(sum(prompts), tokens, SHORTEST_STEP)


def admitted(setting: Setting, slots: list[Request | None]) -> list[int]:
    """Slots that may be filled now, lowest number first."""
    free = [place for place, request in enumerate(slots) if request is None]
    if setting.batching == "static":
        return free if len(free) == len(slots) else []
    if setting.batching == "one_prefill":
        prompt_runs = any(request is not None and request.stage == PREFILL for request in slots)
        return [] if prompt_runs else free[:1]
    return free


def coming(load: Load, since: float, now: float, present: int, before: list[Step]) -> int:
    """Requests that arrive between two steps: all at the first, one for each that finished, or by the clock."""
    if load.kind == "batch":
        return 0 if before else int(load.amount)
    if load.kind == "concurrency":
        return max(int(load.amount) - present, 0)
    gap = 1 / load.amount
    return int(now // gap) - int(since // gap)
