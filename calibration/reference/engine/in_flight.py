"""In-flight batching: requests join and leave between any two forward passes."""

from __future__ import annotations

from collections import deque

from calibration.reference.engine.kv_cache import KvCache
from calibration.reference.engine.request import Load, Request, Token
from calibration.reference.engine.step import chunks_within, run_pass
from calibration.reference.engine.transformer import Transformer


class InFlightEngine:
    """Each `step` is one forward pass: the next token of every running request, and pieces of new prompts.

    First come, first served. A request starts when the KV cache can hold its longest possible sequence
    (guaranteed_no_evict). Running requests take one token each of the pass's budget; the rest of it
    reads prompts, long ones in chunks over several passes.

    `add` and `Request.is_cancelled` may be used from other threads; `step` from one.
    """

    def __init__(self, model: Transformer, cache: KvCache, *, token_budget: int) -> None:
        self.model, self.cache, self.token_budget = model, cache, token_budget
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.passes = 0

    def add(self, request: Request) -> None:
        self.waiting.append(request)

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def step(self) -> list[Token]:
        """One pass; the tokens it made. Empty when there was only a piece of a prompt to read."""
        tokens = self._drop_cancelled()
        self._admit()
        decoding = [request for request in self.running if not request.reads_prompt]
        prompts = [request for request in self.running if request.reads_prompt]
        reading = chunks_within(prompts, self.token_budget - len(decoding))
        if decoding or reading:
            tokens += run_pass(self.model, self.cache, decoding, reading)
            self.passes += 1
        self._let_go()
        return tokens

    def load(self) -> Load:
        running = tuple(self.running)
        unread = [len(request.prompt) - request.computed for request in running if request.reads_prompt]
        return Load(
            waiting=len(self.waiting),
            reading_prompt=len(unread),
            context_tokens=sum(unread),
            decoding=len(running) - len(unread),
            empty_slots=0,
            passes=self.passes,
        )

    def _drop_cancelled(self) -> list[Token]:
        waiting = [self.waiting.popleft() for _ in range(len(self.waiting))]
        self.waiting.extendleft(request for request in reversed(waiting) if not request.is_cancelled)
        dropped = [request for request in (*self.running, *waiting) if request.is_cancelled]
        for request in dropped:
            request.has_ended = True
        self._let_go()
        return [Token(request, None, 0.0, is_last=True) for request in dropped]

    def _admit(self) -> None:
        while self.waiting and self.cache.admit(self.waiting[0]):
            self.running.append(self.waiting.popleft())

    def _let_go(self) -> None:
        for request in self.running:
            if request.has_ended:
                self.cache.release(request)
        self.running = [request for request in self.running if not request.has_ended]
