"""A naive prefix cache, block by block, and sessions on a fleet with it: an explicit queue of blocks that nobody holds.

The engine under it is the naive one of reference_simulator.py; the rules are written again from docs/simulator.md.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from sizing.engine import Replica
from tests.sizing.reference_simulator import Slot, SlowReplica


class Turn(Slot):
    """A request of a session; `shared` tokens of its prompt are held by the engine, whoever needs them."""

    def __init__(self, place: int, isl: int, osl: int, session: int, shared: int) -> None:
        super().__init__(place, isl, osl)
        self.session, self.shared = session, shared
        self.found = 0

    @property
    def memory(self) -> float:
        return self.isl - self.shared + (self.generated - 1 if self.decoding else self.recompute)


class BlockReplica(SlowReplica):
    """`queue`: blocks that are cached and held by no request, as (session, place in its sequence); the first is evicted
    next."""

    def __init__(self, replica: Replica, shared: int) -> None:
        rule = replica.batching
        super().__init__(replace(replica, batching=replace(rule, kv_tokens=rule.kv_tokens - shared)))
        self.block, self.first_own = rule.kv_block_tokens, shared // rule.kv_block_tokens
        self.queue: list[tuple[int, int]] = []
        self.left = 0

    def iterate(self) -> list[Slot]:
        """Of those complete at once the decoding ones leave first, by number, then prompts by admission."""
        decoding = [s for s in self.slots if s.decoding]
        done = super().iterate()
        done.sort(key=lambda s: (s not in decoding, s.place if s in decoding else s.admission))
        for sequence in done:
            self._cache(sequence, sequence.isl + sequence.osl - 1)
        self.left = len(done)
        return done

    def outstanding(self, time_s: float) -> int:
        return len(self.waiting) + len(self.slots) + (self.left if self.now_s > time_s else 0)

    def cached(self, session: int) -> int:
        """Blocks of a session that stand in the queue without a gap."""
        place = self.first_own
        while (session, place) in self.queue:
            place += 1
        return place - self.first_own

    def _held(self, slots: Sequence[Slot]) -> float:
        return sum(s.memory + (self.block - 1) / 2 for s in slots)

    def _reserved(self, sequence: Slot) -> int:
        assert isinstance(sequence, Turn)
        own = sequence.isl - sequence.shared
        return math.ceil((own + max(sequence.osl, self.batching.max_tokens)) / self.block) * self.block

    def _cache(self, sequence: Slot, tokens: int) -> None:
        assert isinstance(sequence, Turn)
        if self.batching.prefix_cache:
            for place in reversed(range(self.first_own, tokens // self.block)):
                self.queue.append((sequence.session, place))

    def evict(self) -> None:
        room = max(int((self.batching.kv_tokens - self._held(self.slots)) // self.block), 0)
        while len(self.queue) > room:
            self.queue.pop(0)

    def _in_flight_iteration(self) -> None:
        super()._in_flight_iteration()
        self.evict()

    def _line_up(self, sequence: Slot, *, in_front: bool) -> None:
        if in_front:
            self._cache(sequence, sequence.isl + sequence.recompute - 1)
        super()._line_up(sequence, in_front=in_front)

    def _fits(self, head: Slot) -> bool:
        assert isinstance(head, Turn)
        if self.batching.prefix_cache:
            most = (head.isl + head.recompute - 1) // self.block
            head.cached = min(self.first_own + self.cached(head.session), most) * self.block
        return super()._fits(head)

    def _admit(self, head: Slot) -> None:
        assert isinstance(head, Turn)
        if not head.started:
            head.found = head.cached
        self.queue = [block for block in self.queue if block[0] != head.session]
        super()._admit(head)
        self.evict()


Route = Callable[[Sequence[BlockReplica], Turn, float], int]


def serve_sessions_slowly(
    replica: Replica,
    turns: Sequence[Turn],
    start_s: Sequence[float],
    think_s: Sequence[float],
    fleet: int,
    route: Route,
) -> list[BlockReplica]:
    """Serve the turns of all sessions, session after session; `start_s` is NaN but for the first of each. Their fates
    stand in them afterwards."""
    shared = turns[0].shared if turns else 0
    engines = [BlockReplica(replica, shared) for _ in range(fleet)]
    agenda = [(time_s, place) for place, time_s in enumerate(start_s) if not math.isnan(time_s)]
    heapq.heapify(agenda)
    while agenda or any(not engine.idle for engine in engines):
        first = min(engines, key=lambda engine: math.inf if engine.idle else engine.now_s)
        if agenda and (first.idle or agenda[0][0] <= first.now_s):
            time_s, place = heapq.heappop(agenda)
            engines[route(engines, turns[place], time_s)].arrive(turns[place], time_s)
            continue
        for done in first.iterate():
            place = done.place + 1
            if place < len(turns) and turns[place].session == turns[done.place].session:
                heapq.heappush(agenda, (done.done_s + replica.law.request_s + think_s[place], place))
    return engines
