"""A naive simulator of one replica, written sequence by sequence and step by step: slow, and plain to check by eye.

It shares with the product only the StepLaw; the rules of batching are written again from the docstring of Batching.
"""

from __future__ import annotations

from collections.abc import Sequence

from sizing.replica import Replica


class Slot:
    """One request on its way through the engine; `lane_tokens` is the padded context of the static batch it leads."""

    def __init__(self, place: int, isl: int, osl: int) -> None:
        self.place, self.isl, self.osl = place, isl, osl
        self.prefilled = 0
        self.generated = 0
        self.lane_tokens = 0
        self.first_token_s = self.done_s = float("nan")

    @property
    def context(self) -> int:
        """Tokens in the KV cache: the prompt, and every token generated before the last."""
        return self.isl + self.generated - 1

    def token(self, now_s: float) -> None:
        """One more token comes out."""
        self.generated += 1
        if self.generated == 1:
            self.first_token_s = now_s
        if self.generated == self.osl:
            self.done_s = now_s

    @property
    def done(self) -> bool:
        return self.generated == self.osl


class SlowReplica:
    """The scheduler: `waiting` and `slots` are lists of sequences, in order of arrival and of admission."""

    def __init__(self, replica: Replica) -> None:
        self.law, self.batching = replica.law, replica.batching
        self.now_s = 0.0
        self.waiting: list[Slot] = []
        self.slots: list[Slot] = []
        self.batch: list[Slot] = []
        self.most_kv_tokens = 0
        self.most_slots = 0

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.slots

    def arrive(self, sequence: Slot, time_s: float) -> None:
        if self.idle:
            self.now_s = max(self.now_s, time_s)
        self.waiting.append(sequence)

    def iterate(self) -> list[Slot]:
        """One iteration; returns the sequences that it completes."""
        done = self._static_iteration() if self.batching.policy == "static" else self._in_flight_iteration()
        self.most_slots = max(self.most_slots, len(self.slots))
        self.most_kv_tokens = max(self.most_kv_tokens, sum(s.prefilled + s.generated for s in self.slots))
        self.slots = [sequence for sequence in self.slots if not sequence.done]
        return done

    def _in_flight_iteration(self) -> list[Slot]:
        decoding = [sequence for sequence in self.slots if sequence.generated]
        chunks = self._chunks(0 if self.batching.policy == "prefill_first" else len(decoding))
        if chunks and self.batching.policy == "prefill_first":
            decoding = []
        attention = sum(chunk * (s.prefilled + chunk / 2) for s, chunk in chunks)
        self._spend(len(decoding), sum(s.context for s in decoding), sum(chunk for _, chunk in chunks), attention)
        for sequence in decoding:
            sequence.token(self.now_s)
        for sequence, chunk in chunks:
            sequence.prefilled += chunk
            if sequence.prefilled == sequence.isl:
                sequence.token(self.now_s)
        return [s for s in self.slots if s.done]

    def _chunks(self, tokens: int) -> list[tuple[Slot, int]]:
        """Prompt chunks of this iteration, in which `tokens` tokens of the budget are taken by decodes."""
        rule, chunks = self.batching, []
        for sequence in self.slots:
            room = rule.token_budget - tokens
            if sequence.prefilled < sequence.isl and room > 0:
                chunks.append((sequence, min(room, sequence.isl - sequence.prefilled)))
                tokens += chunks[-1][1]
        while self.waiting and len(self.slots) < rule.max_batch_size and tokens < rule.token_budget:
            head, room = self.waiting[0], rule.token_budget - tokens
            reserved = sum(s.isl + s.osl for s in self.slots)
            if reserved + head.isl + head.osl > rule.kv_tokens:
                break
            if rule.policy != "chunked" and head.isl > room and chunks:
                break
            chunk = min(head.isl, room) if rule.policy == "chunked" else head.isl
            chunks.append((head, chunk))
            tokens += chunk
            self.slots.append(self.waiting.pop(0))
        return chunks

    def _static_iteration(self) -> list[Slot]:
        if self.slots:
            grown = self.batch[0].lane_tokens
            self._spend(len(self.batch), len(self.batch) * grown, 0, 0.0)
            self.batch[0].lane_tokens += 1
            for sequence in self.slots:
                sequence.token(self.now_s)
            return [s for s in self.slots if s.done]
        self.batch = self._static_batch()
        longest = max(s.isl for s in self.batch)
        lanes = len(self.batch)
        self._spend(0, 0, lanes * longest, lanes * longest * longest / 2)
        self.batch[0].lane_tokens = longest
        self.slots = list(self.batch)
        for sequence in self.slots:
            sequence.prefilled = sequence.isl
            sequence.token(self.now_s)
        return [s for s in self.slots if s.done]

    def _static_batch(self) -> list[Slot]:
        batch: list[Slot] = []
        while self.waiting and len(batch) < self.batching.max_batch_size:
            wider = [*batch, self.waiting[0]]
            if len(wider) * (max(s.isl for s in wider) + max(s.osl for s in wider)) > self.batching.kv_tokens:
                break
            batch.append(self.waiting.pop(0))
        return batch

    def _spend(self, lanes: int, context: int, prompt_tokens: int, attention: float) -> None:
        if prompt_tokens:
            self.now_s += self.law.mixed_s(lanes, context, prompt_tokens, attention)
        else:
            self.now_s += self.law.decode_s(lanes, context)


def serve_slowly(
    replica: Replica, arrival_s: Sequence[float], isl: Sequence[int], osl: Sequence[int]
) -> tuple[list[Slot], SlowReplica]:
    """Serve a stream of requests; returns them with their times, and the replica."""
    engine = SlowReplica(replica)
    sequences = [Slot(place, int(a), int(b)) for place, (a, b) in enumerate(zip(isl, osl, strict=True))]
    to_come = list(zip(arrival_s, sequences, strict=True))
    while to_come or not engine.idle:
        while to_come and (to_come[0][0] <= engine.now_s or engine.idle):
            engine.arrive(to_come[0][1], to_come[0][0])
            to_come.pop(0)
        engine.iterate()
    return sequences, engine


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
