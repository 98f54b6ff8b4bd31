"""A naive simulator of one replica, written sequence by sequence and step by step: slow, and plain to check by eye.

It shares with the product only the StepLaw; the rules of batching are written again from docs/simulator.md.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Literal

from sizing.engine import Replica

Outcome = Literal["served", "rejected", "timed_out", "cancelled"]


class Slot:
    """One request on its way through the engine; `lane_tokens` is the padded context of its lane in a static batch."""

    def __init__(
        self,
        place: int,
        isl: int,
        osl: int,
        *,
        priority: int = 0,
        cached: int = 0,
        steps: int | None = None,
        queue_timeout_s: float = math.inf,
        cancel_s: float = math.inf,
    ) -> None:
        self.place, self.isl, self.osl, self.priority = place, isl, osl, priority
        self.cached, self.steps = cached, osl - 1 if steps is None else steps
        self.queue_timeout_s, self.cancel_s = queue_timeout_s, cancel_s
        self.patient = math.isinf(queue_timeout_s) and math.isinf(cancel_s)
        self.arrival_s = self.queued_s = float("nan")  # first arrival, and at the replica it is in
        self.seen_from = 0  # the first iteration that may admit it, by number
        self.scheduled_s = float("nan")
        self.started = False
        self.admission = 0
        self.computed = 0  # prompt tokens computed since it was admitted
        self.recompute = 0  # tokens that it had when it was paused
        self.steps_done = 0
        self.lane_tokens = 0.0
        self.first_token_s = self.done_s = float("nan")
        self.outcome: Outcome = "served"

    def start_anew(self) -> None:
        """All that was computed is lost."""
        self.started, self.admission = False, 0
        self.computed = self.recompute = self.steps_done = 0
        self.first_token_s = float("nan")

    @property
    def generated(self) -> float:
        """Tokens it has produced; real numbers where a step yields several."""
        if math.isnan(self.first_token_s):
            return 0.0
        return 1 + (self.steps_done * (self.osl - 1) / self.steps if self.steps else 0)

    @property
    def prompt(self) -> int:
        """Tokens to compute before it can decode."""
        return self.isl - self.cached + self.recompute

    @property
    def decoding(self) -> bool:
        return self.started and not math.isnan(self.first_token_s) and self.computed == self.prompt

    @property
    def context(self) -> float:
        """Tokens that a decode step reads: the prompt, and every token generated before the last."""
        return self.isl + self.generated - 1

    @property
    def shares(self) -> bool:
        """True if it found a prefix in the cache that it holds together with others."""
        return 0 < self.cached < self.isl

    @property
    def memory(self) -> float:
        """Tokens of the KV cache that are its own: prompts count in full from admission."""
        own = self.isl if self.cached == self.isl else self.isl - self.cached
        return own + (self.generated - 1 if self.decoding else self.recompute)

    def token(self, now_s: float) -> None:
        """The next token comes out, or the tokens of one speculative step."""
        if math.isnan(self.first_token_s):
            self.first_token_s = now_s
        else:
            self.steps_done += 1
        if self.steps_done == self.steps:
            self.done_s = now_s

    @property
    def done(self) -> bool:
        return not math.isnan(self.done_s)

    @property
    def deadline_s(self) -> float:
        cancelled_s = self.arrival_s + self.cancel_s
        return cancelled_s if self.started else min(self.queued_s + self.queue_timeout_s, cancelled_s)

    def give_up(self) -> None:
        """The client is gone, or the server drops it from the line."""
        timed_out = self.deadline_s < self.arrival_s + self.cancel_s
        self.outcome, self.done_s = "timed_out" if timed_out else "cancelled", self.deadline_s


class SlowReplica:
    """The scheduler: `waiting` and `slots` are lists of sequences, in order of service and of admission."""

    def __init__(self, replica: Replica, prefix_tokens: int = 0, *, by_priority: bool = False) -> None:
        self.law, self.batching, self.rough = replica.law, replica.batching, replica.rough
        self.speculation, self.by_priority = replica.speculation, by_priority
        block = replica.batching.kv_block_tokens
        self.prefix_tokens = math.ceil(prefix_tokens / block) * block
        self.now_s = 0.0
        self.iterations, self.iteration_s = 0, 0.0  # formed so far, and how long the last one takes
        self.iterations_when_idle = 0
        self.looked = 0  # the iteration before which it last looked
        self.had_prompts = False  # whether the last iteration had some
        self.waited = 0  # iterations since prompts last ran beside decodes in which they could have run and did not
        self.waiting: list[Slot] = []
        self.slots: list[Slot] = []
        self.batch: list[Slot] = []
        self.gone: list[Slot] = []  # that left at the end of the last iteration
        self.late: list[Slot] = []  # of these, those that the next one was fixed without knowing of
        self.most_kv_tokens = 0.0
        self.most_slots = 0
        self.admissions = 0
        self.pauses = 0

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.slots

    @property
    def checked_tokens(self) -> int:
        """Tokens a decoding sequence puts through the matrix products in a step."""
        return 1 + (self.speculation.draft_tokens if self.speculation else 0)

    def arrive(self, sequence: Slot, time_s: float) -> None:
        sequence.queued_s = time_s
        if math.isnan(sequence.arrival_s):
            sequence.arrival_s = time_s
        self.drop_late(time_s)
        if self.idle:
            self.now_s = max(self.now_s, time_s)
            self.iterations_when_idle = self.iterations
        if 0 < self.batching.max_waiting <= len(self.waiting):
            sequence.outcome, sequence.done_s = "rejected", time_s
            return
        sequence.seen_from = self._first_open(time_s)
        self._line_up(sequence, in_front=False)

    def _first_open(self, time_s: float) -> int:
        """Iterations are fixed `lookahead_steps` before they start, unless the engine had nothing to do."""
        ahead = 0.0 if self.batching.policy == "static" else self.batching.lookahead_steps
        if ahead == 0 or self.iterations == self.iterations_when_idle:
            return self.iterations + 1
        left = self.now_s - time_s
        part_s = (ahead % 1) * self.iteration_s
        return self.iterations + 1 + int(ahead) + int(part_s > left)

    def _line_up(self, sequence: Slot, *, in_front: bool) -> None:
        ahead = [s.priority < sequence.priority + (not in_front) for s in self.waiting]
        self.waiting.insert(sum(ahead), sequence)

    def drop_late(self, now_s: float) -> None:
        """Whoever waits and has lost patience leaves; who runs does so at the end of an iteration."""
        late = [s for s in self.waiting if not s.patient and s.deadline_s <= now_s]
        if not late:
            return
        for sequence in late:
            sequence.give_up()
        self.waiting = [s for s in self.waiting if s not in late]

    def iterate(self) -> list[Slot]:
        """One iteration; returns the sequences that leave at its end, complete or because their clients have gone."""
        self.drop_late(self.now_s)
        if self.idle:
            return []
        if self.batching.policy == "static":
            self._static_iteration()
        else:
            self._in_flight_iteration()
        self.most_slots = max(self.most_slots, len(self.slots))
        self.most_kv_tokens = max(self.most_kv_tokens, self._held(self.slots))
        gone = [s for s in self.slots if s.done or (not s.patient and s.deadline_s <= self.now_s)]
        self.gone = gone
        if gone:
            self.slots = [s for s in self.slots if s not in gone]
        for sequence in gone:
            if not sequence.done or sequence.deadline_s < sequence.done_s:
                sequence.give_up()
        return gone

    def _in_flight_iteration(self) -> None:
        fixed = self.batching.lookahead_steps > 0 and self.iterations > self.iterations_when_idle
        self.late = self.gone if fixed else []
        paused = self.batching.kv_policy == "max_utilization" and self._pause()
        coming = self.iterations + 1
        since = coming - self.looked
        if since >= self.batching.receive_interval_steps or self.had_prompts:
            self.looked = coming
        if not self.slots and not (self.late and self._was_fixed()):
            self.late, self.looked = [], coming
            for sequence in self.waiting:
                sequence.seen_from = min(sequence.seen_from, coming)
        running = sum(s.decoding for s in self.slots)
        decodes = 0 if self._prompts_alone else running * self.checked_tokens
        chunks = [] if not paused and self._wait_for_others(decodes) else self._chunks(decodes, not paused)
        if chunks and running:
            self.waited = 0
        decoding = [] if chunks and self._prompts_alone else [s for s in self.slots if s.decoding]
        attention = sum(chunk * (s.cached + s.computed + chunk / 2) for s, chunk in chunks)
        self.had_prompts = bool(chunks)
        self._spend(len(decoding), sum(s.context for s in decoding), sum(chunk for _, chunk in chunks), attention)
        for sequence in decoding:
            sequence.token(self.now_s)
        for sequence, chunk in chunks:
            sequence.computed += chunk
            if sequence.computed == sequence.prompt:
                sequence.token(self.now_s)

    def _was_fixed(self) -> bool:
        """True if the iteration was fixed with a request beside those that have all left since."""
        seen = [s for s in self.waiting if s.seen_from <= self.looked]
        return bool(seen) and len(self.late) < self.batching.max_batch_size and self._fits(seen[0])

    @property
    def _prompts_alone(self) -> bool:
        return self.batching.policy == "prefill_first"

    def _pause(self) -> bool:
        """Pause those admitted last, or of the last priority those that arrived last, until the next decode step fits
        into the KV cache."""
        paused = False
        while True:
            running = [s for s in self.slots if s.decoding]
            late = self._held(self.late) - self._prefix_of(self.late)
            if len(running) < 2 or self._held(self.slots) + late + len(running) <= self.batching.kv_tokens:
                return paused
            last = max(
                running,
                key=lambda s: (s.priority, s.arrival_s, s.place) if self.by_priority else (s.admission, 0.0, 0),
            )
            self.slots.remove(last)
            last.recompute, last.computed = round(last.generated), 0
            if last.cached == last.isl:
                last.cached = 0  # prefilled elsewhere: here it must be computed from the start
            self._line_up(last, in_front=True)
            self.pauses += 1
            paused = True

    def _wait_for_others(self, decodes: int) -> bool:
        """True if the prompts that could run now wait for others instead: tried out on a copy of the queues."""
        rule = self.batching
        begun = any(s.computed < s.prompt for s in self.slots)
        if self.waited >= rule.batch_wait_steps or begun or not any(s.decoding for s in self.slots):
            return False
        trial = copy.deepcopy(self)
        chunks = trial._chunks(decodes, admitting=True)
        prompts = sum(chunk for _, chunk in chunks)
        computed_elsewhere = len(trial.slots) > len(self.slots) + len(chunks)
        if prompts == 0 or computed_elsewhere or decodes + prompts >= rule.batch_wait_ratio * rule.token_budget:
            return False
        self.waited += 1
        return True

    def _chunks(self, tokens: int, admitting: bool) -> list[tuple[Slot, int]]:
        """Prompt chunks of this iteration, in which `tokens` tokens of the budget are taken by decodes."""
        rule, chunks = self.batching, []
        for sequence in self.slots:
            room = rule.token_budget - tokens
            if sequence.computed < sequence.prompt and room > 0:
                chunks.append((sequence, min(room, sequence.prompt - sequence.computed)))
                tokens += chunks[-1][1]
        while admitting and len(self.slots) + len(self.late) < rule.max_batch_size:
            seen = [s for s in self.waiting if s.seen_from <= self.looked]
            if not seen:
                break
            head, room = seen[0], rule.token_budget - tokens
            if head.prompt and room <= 0:
                break
            if not self._fits(head):
                break
            has_room = head.prompt <= max(room, 0)
            may_wait = chunks or (head.prompt <= rule.token_budget and not rule.budget_guessed)
            if rule.policy == "whole_prompt" and not has_room and may_wait:
                break
            self._admit(head)
            if head.prompt == 0:
                head.first_token_s = self.now_s
                continue
            chunks.append((head, head.prompt if rule.policy == "whole_prompt" else min(head.prompt, room)))
            tokens += chunks[-1][1]
        return chunks

    def _admit(self, head: Slot) -> None:
        self.waiting.remove(head)
        if not head.started:
            head.scheduled_s = self.now_s
        head.started = True
        self.admissions += 1
        head.admission = self.admissions
        self.slots.append(head)

    def _held(self, slots: Sequence[Slot]) -> float:
        """KV tokens that these sequences hold: each its own, if not reserved in blocks of which half the last is empty,
        and all who found the prefix one copy of it."""
        unfilled = (self.batching.kv_block_tokens - 1) / 2 if self.batching.kv_policy == "max_utilization" else 0
        return sum(s.memory + unfilled for s in slots) + self._prefix_of(slots)

    def _prefix_of(self, slots: Sequence[Slot]) -> int:
        return self.prefix_tokens if any(s.shares for s in slots) else 0

    def _fits(self, head: Slot) -> bool:
        rule = self.batching
        if rule.kv_policy == "max_utilization":
            running = sum(s.decoding for s in self.slots)
            late = self._held(self.late) - self._prefix_of(self.late)
            return (
                not (self.slots or self.late) or self._held((*self.slots, head)) + late + running + 1 <= rule.kv_tokens
            )
        wider = (*self.slots, head)
        reserved = sum(map(self._reserved, (*wider, *self.late)))
        return not (self.slots or self.late) or reserved + self._prefix_of(wider) <= rule.kv_tokens

    def _reserved(self, sequence: Slot) -> int:
        own = sequence.isl if sequence.cached == sequence.isl else sequence.isl - sequence.cached
        block = self.batching.kv_block_tokens
        return math.ceil((own + max(sequence.osl, self.batching.max_tokens)) / block) * block

    def _static_iteration(self) -> None:
        if self.slots:
            self._spend(len(self.batch), sum(lane.lane_tokens for lane in self.batch), 0, 0.0)
            for lane in self.batch:
                lane.lane_tokens += (lane.osl - 1) / lane.steps if lane.steps else 1
            for sequence in self.slots:
                sequence.token(self.now_s)
            return
        self.batch = self._static_batch()
        prompts = self._lane_prompts(self.batch)
        self._spend(0, 0, sum(prompts), sum(isl * isl for isl in prompts) / 2)
        for lane, isl in zip(self.batch, prompts, strict=True):
            lane.lane_tokens = isl
        self.slots = list(self.batch)
        for sequence in self.slots:
            sequence.computed = sequence.isl
            sequence.token(self.now_s)

    def _static_batch(self) -> list[Slot]:
        batch: list[Slot] = []
        while self.waiting and len(batch) < self.batching.max_batch_size:
            wider = [*batch, self.waiting[0]]
            answers = len(wider) * max(s.osl for s in wider)
            if sum(self._lane_prompts(wider)) + answers > self.batching.kv_tokens:
                break
            batch.append(self.waiting.pop(0))
            batch[-1].started, batch[-1].scheduled_s = True, self.now_s
        return batch

    def _lane_prompts(self, batch: list[Slot]) -> list[int]:
        """Tokens of each prompt of a static batch, padded to the longest or not."""
        longest = max(s.isl for s in batch)
        return [longest if self.batching.padded else s.isl for s in batch]

    def _spend(self, lanes: int, context: float, prompt_tokens: int, attention: float) -> None:
        law, knee = self.law, 1.0 if self.law.unread_decay else self.rough.knee
        padded = math.ceil(lanes / self.rough.padding) * self.rough.padding
        tokens = padded * self.checked_tokens + prompt_tokens
        read_s = law.weights_s * (1 - law.unread * law.unread_decay ** max(tokens - 1, 0))
        time_s = law.overhead_s + (read_s**knee + (law.token_s * tokens) ** knee) ** (1 / knee)
        time_s += law.sequence_s * padded + law.kv_token_s * context
        if prompt_tokens:
            time_s += law.attention_s * attention + law.prefill_s
        if lanes and self.speculation:
            draft, passes = self.speculation.draft, self.speculation.draft_tokens
            time_s += passes * (draft.overhead_s + draft.weights_s + draft.kv_token_s * context)
            time_s += passes * (draft.sequence_s + draft.token_s) * lanes
        self.now_s += time_s
        self.iterations, self.iteration_s = self.iterations + 1, time_s


def serve(
    replica: Replica, arrival_s: Sequence[float], sequences: Sequence[Slot], prefix_tokens: int = 0
) -> SlowReplica:
    """Serve requests that arrive at these times; their fates stand in them afterwards. Those that find a prefix in the
    cache share one, of `prefix_tokens`."""
    by_priority = len({sequence.priority for sequence in sequences}) > 1
    engine = SlowReplica(replica, prefix_tokens, by_priority=by_priority)
    to_come = list(zip(map(float, arrival_s), sequences, strict=True))
    while to_come or not engine.idle:
        while to_come and (to_come[0][0] <= engine.now_s or engine.idle):
            engine.arrive(to_come[0][1], to_come[0][0])
            to_come.pop(0)
        engine.iterate()
    return engine


def serve_users_slowly(
    replica: Replica, starts_s: Sequence[float], isl: Sequence[int], osl: Sequence[int]
) -> tuple[list[float], list[Slot]]:
    """A closed loop of users who start at `starts_s`, each with one request at least.

    Returns when each request was sent, and the requests.
    """
    engine = SlowReplica(replica)
    request_s = replica.law.request_s
    ready_s, sent_s, sequences = sorted(starts_s), [], []
    lengths = list(zip(isl, osl, strict=True))
    while len(sequences) < len(lengths) or not engine.idle:
        while len(sequences) < len(lengths) and ready_s and (ready_s[0] + request_s <= engine.now_s or engine.idle):
            sent_s.append(ready_s.pop(0))
            sequences.append(Slot(len(sequences), *map(int, lengths[len(sequences)])))
            engine.arrive(sequences[-1], sent_s[-1] + request_s)
        completed = len(engine.iterate())
        left = len(lengths) - len(sequences) - len(ready_s)
        ready_s = sorted(ready_s + [engine.now_s] * min(completed, left))
    return sent_s, sequences
