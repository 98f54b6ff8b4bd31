"""In-flight batching: requests join and leave between any two forward passes."""

from __future__ import annotations

from collections import deque

from lab.reference.engine.kv_cache import KvCache
from lab.reference.engine.request import Load, Request, Token
from lab.reference.engine.step import chunks_within, run_pass, whole_within
from lab.reference.engine.transformer import Transformer
from lab.reference.settings import Policy


class InFlightEngine:
    """Each `step` is one forward pass: the next token of every running request, and new prompts or pieces of them.

    First come, first served. Each running request takes one token of the pass's budget, and prompts get the rest; with
    `chunks_prompts`, a long one is read in pieces over several passes. `policy` decides when a request starts:

    - guaranteed_no_evict: when the KV cache has room for its longest possible sequence. It then runs to its end.
    - max_utilization: when the cache has room for its prompt and one more token. It gets blocks as it grows. If none is
      free, the youngest running request is paused: it returns its blocks, goes to the head of the queue, and later
      reads its prompt and the tokens it had generated again; none is sent twice. The oldest request is never paused for
      another, and each fits into the cache alone or was refused, so every request ends.

    `add` and `Request.is_cancelled` may be used from any thread, `step` from one.
    """

    def __init__(
        self,
        model: Transformer,
        cache: KvCache,
        *,
        token_budget: int,
        policy: Policy = "guaranteed_no_evict",
        chunks_prompts: bool = True,
    ) -> None:
        self.model, self.cache, self.token_budget, self.policy = model, cache, token_budget, policy
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []  # the oldest first: all waiting requests are younger
        self.passes = 0
        self._paused = 0
        self._prompts_within = chunks_within if chunks_prompts else whole_within

    def add(self, request: Request) -> None:
        self.waiting.append(request)

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def step(self) -> list[Token]:
        """One pass; its new tokens. Empty if it only read part of a prompt."""
        tokens = self._drop_cancelled()
        if self.policy == "guaranteed_no_evict" or self._make_room():
            self._admit()
        decoding = [request for request in self.running if not request.reads_prompt]
        prompts = [request for request in self.running if request.reads_prompt]
        reading = self._prompts_within(prompts, self.token_budget - len(decoding))
        if decoding or reading:
            tokens += run_pass(self.model, self.cache, decoding, reading)
            self.passes += 1
        self._let_go()
        return tokens

    def load(self) -> Load:
        running = tuple(self.running)
        unread = [request.to_read - request.computed for request in running if request.reads_prompt]
        return Load(
            waiting=len(self.waiting),
            reading_prompt=len(unread),
            context_tokens=sum(unread),
            decoding=len(running) - len(unread),
            empty_slots=0,
            passes=self.passes,
            paused=self._paused,
        )

    def _drop_cancelled(self) -> list[Token]:
        waiting = [self.waiting.popleft() for _ in range(len(self.waiting))]
        self.waiting.extendleft(request for request in reversed(waiting) if not request.is_cancelled)
        dropped = [request for request in (*self.running, *waiting) if request.is_cancelled]
        for request in dropped:
            request.has_ended = True
            self._paused -= request.is_paused
        self._let_go()
        return [Token(request, None, 0.0, is_last=True) for request in dropped]

    def _make_room(self) -> bool:
        """Ensure that every running request has a slot for its next token; False if that paused another."""
        before, ready = len(self.running), 0
        while ready < len(self.running):
            if self.cache.grow(self.running[ready]):
                ready += 1
            else:
                self._pause(self.running.pop())
        return len(self.running) == before

    def _pause(self, request: Request) -> None:
        self.cache.release(request)
        request.computed, request.restored, request.is_paused = 0, len(request.generated), True
        self._paused += 1
        self.waiting.appendleft(request)

    def _admit(self) -> None:
        while self.waiting and self.cache.admit(self.waiting[0], self._reservation(self.waiting[0])):
            request = self.waiting.popleft()
            self._paused -= request.is_paused
            request.is_paused = False
            self.running.append(request)

    def _reservation(self, request: Request) -> int:
        """Tokens that `request` must have room for to start."""
        if self.policy == "guaranteed_no_evict":
            return request.longest
        return min(request.longest, request.to_read + 1)

    def _let_go(self) -> None:
        for request in self.running:
            if request.has_ended:
                self.cache.release(request)
        self.running = [request for request in self.running if not request.has_ended]
