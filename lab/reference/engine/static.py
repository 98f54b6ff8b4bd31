"""Static batching: a batch runs until its longest request ends, and nothing joins it."""

from __future__ import annotations

import time
from collections import deque

from lab.reference.engine.kv_cache import KvCache
from lab.reference.engine.request import Load, Request, Token
from lab.reference.engine.step import chunks_within, run_pass, whole_within
from lab.reference.engine.transformer import Transformer


class StaticEngine:
    """The scheduler with which in-flight batching is compared; same model, cache and interface.

    A free engine waits `delay_s` for more requests; the batch is then all that wait and for which the cache has room.
    All prompts are read first, then all requests decode together; one that has ended stays in the batch as padding.
    Streamed tokens are sent as they are generated, an answer that is not streamed when the batch ends. Each request has
    room for its longest possible sequence, whatever the policy: nothing joins a running batch, so no request could use
    the blocks of one that max_utilization paused.
    """

    def __init__(
        self,
        model: Transformer,
        cache: KvCache,
        *,
        token_budget: int,
        delay_s: float = 0.0,
        chunks_prompts: bool = True,
    ) -> None:
        self.model, self.cache, self.token_budget, self.delay_s = model, cache, token_budget, delay_s
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.passes = 0
        self._held: list[Token] = []
        self._prompts_within = chunks_within if chunks_prompts else whole_within

    def add(self, request: Request) -> None:
        self.waiting.append(request)

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def step(self) -> list[Token]:
        """One pass; the tokens that are sent."""
        if not self.running:
            self._form_batch()
        tokens = self._end_cancelled()
        if not all(request.has_ended for request in self.running):
            prompts = [request for request in self.running if request.reads_prompt and not request.has_ended]
            reading = self._prompts_within(prompts, self.token_budget)
            decoding = [] if reading else [request for request in self.running if request.generated]
            tokens += run_pass(self.model, self.cache, decoding, reading)
            self.passes += 1
        out = [token for token in tokens if token.request.is_streamed or not token.is_last]
        self._held += [token for token in tokens if not token.request.is_streamed and token.is_last]
        return out + self._end_batch()

    def load(self) -> Load:
        running = tuple(self.running)
        unended = [request for request in running if not request.has_ended]
        unread = [len(request.prompt) - request.computed for request in unended if request.reads_prompt]
        return Load(
            waiting=len(self.waiting),
            reading_prompt=len(unread),
            context_tokens=sum(unread),
            decoding=len(unended) - len(unread),
            empty_slots=len(running) - len(unended),
            passes=self.passes,
        )

    def _form_batch(self) -> None:
        if self.delay_s and len(self.waiting) < self.cache.max_requests:
            time.sleep(self.delay_s)
        while self.waiting and self.cache.admit(self.waiting[0], self.waiting[0].longest):
            self.running.append(self.waiting.popleft())

    def _end_cancelled(self) -> list[Token]:
        ended = [request for request in self.running if request.is_cancelled and not request.has_ended]
        for request in ended:
            request.has_ended = True
        return [Token(request, None, 0.0, is_last=True) for request in ended]

    def _end_batch(self) -> list[Token]:
        if not all(request.has_ended for request in self.running):
            return []
        for request in self.running:
            self.cache.release(request)
        self.running, held, self._held = [], self._held, []
        return held
